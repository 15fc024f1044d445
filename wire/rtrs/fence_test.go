package rtrs_test

import (
	"bytes"
	"testing"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

var fenceVectors = []struct {
	hex   string
	fence rtrswire.Fence
}{
	{"018034120000000000112233445566778899aabbccddeeff", rtrswire.Fence{Type: rtrswire.FenceType, Attempt: 0x1234}},
	{"028001001600000000112233445566778899aabbccddeeff", rtrswire.Fence{Type: rtrswire.FencedType, Attempt: 1, Errno: 22}},
}

var noticeVectors = map[string]rtrswire.Notice{
	"0380010000000000": {Type: rtrswire.RefusedType, Errno: 1},
	"0480000000000000": {Type: rtrswire.RestType},
	"05800b0000000000": {Type: rtrswire.RestedType, Errno: 11},
	"0680000000000000": {Type: rtrswire.WakeType},
}

func TestFence(t *testing.T) {
	for _, v := range fenceVectors {
		b := wiretest.Unhex(t, v.hex)
		v.fence.Path = [16]byte(b[8:])
		if f, err := rtrswire.ParseFence(b); f != v.fence || err != nil {
			t.Errorf("%s is %+v, %v", v.hex, f, err)
		}
		if out := v.fence.Append([]byte{9}); !bytes.Equal(out[1:], b) {
			t.Errorf("%+v is %x", v.fence, out[1:])
		}
		if _, err := rtrswire.ParseFence(b[:23]); err != rtrswire.ErrShort {
			t.Error(err)
		}
		b[0] = 9
		if _, err := rtrswire.ParseFence(b); err != rtrswire.ErrType {
			t.Error(err)
		}
	}
	for hex, n := range noticeVectors {
		b := wiretest.Unhex(t, hex)
		if got, err := rtrswire.ParseNotice(b); got != n || err != nil {
			t.Errorf("%s is %+v, %v", hex, got, err)
		}
		if out := n.Append(nil); !bytes.Equal(out, b) {
			t.Errorf("%+v is %x", n, out)
		}
		if _, err := rtrswire.ParseNotice(b[:7]); err != rtrswire.ErrShort {
			t.Error(err)
		}
		if typ, err := rtrswire.MessageType(b); typ != n.Type || err != nil {
			t.Error(typ, err)
		}
	}
	for _, typ := range []rtrswire.Type{rtrswire.FenceType, rtrswire.WakeType + 1, rtrswire.InfoRspType} {
		if _, err := rtrswire.ParseNotice(rtrswire.Notice{Type: typ}.Append(nil)); err != rtrswire.ErrType {
			t.Errorf("%d: %v", typ, err)
		}
	}
}

// TestMarks: a parser of the kernel's messages does not see ours.
func TestMarks(t *testing.T) {
	q := rtrswire.ConnReq{Conns: 2, Attempt: 3, FirstConn: true}
	b := q.Append(nil)
	if rtrswire.FencesSet(b) || rtrswire.FencesSet(b[:44]) {
		t.Error("the mark is set")
	}
	rtrswire.SetFences(b)
	if got, err := rtrswire.ParseConnReq(b); got != q || err != nil || !rtrswire.FencesSet(b) {
		t.Errorf("%+v, %v", got, err)
	}
	c := newChunks(t, 2, 400, 400)
	ds := []rtrswire.Desc{{Addr: 4096, Key: 7, Len: 1600}}
	b = rtrswire.AppendInfoRsp(nil, ds)
	if rtrswire.Generation(b) != 0 {
		t.Error("a generation of", rtrswire.Generation(b))
	}
	rtrswire.SetGeneration(b, 0xdeadbeef)
	if got, err := rtrswire.ParseInfoRsp(b, c); err != nil || len(got) != 1 || got[0] != ds[0] || rtrswire.Generation(b) != 0xdeadbeef {
		t.Errorf("%+v, %v, %x", got, err, b)
	}
}

func FuzzFence(f *testing.F) {
	for _, v := range fenceVectors {
		f.Add(wiretest.Unhex(f, v.hex))
	}
	for hex := range noticeVectors {
		f.Add(wiretest.Unhex(f, hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := rtrswire.ParseFence(b); err == nil {
			wiretest.SameBut(t, b, m.Append(nil), 6, 8)
		}
		if n, err := rtrswire.ParseNotice(b); err == nil {
			wiretest.SameBut(t, b, n.Append(nil), 4, 8)
		}
		rtrswire.FencesSet(b)
	})
}

// TestMessageTypeNeedsTwoBytes, and no more.
func TestMessageTypeNeedsTwoBytes(t *testing.T) {
	for n, want := range []error{rtrswire.ErrShort, rtrswire.ErrShort, nil, nil} {
		if k, err := rtrswire.MessageType([]byte{7, 1, 9}[:n]); err != want || err == nil && k != 0x107 {
			t.Errorf("%d bytes: %v, %v", n, k, err)
		}
	}
}
