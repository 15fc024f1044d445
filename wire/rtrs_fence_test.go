package wire_test

import (
	"bytes"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

var fenceVectors = []struct {
	hex   string
	fence wire.RTRSFence
}{
	{"018034120000000000112233445566778899aabbccddeeff", wire.RTRSFence{Type: wire.RTRSFenceType, Attempt: 0x1234}},
	{"028001001600000000112233445566778899aabbccddeeff", wire.RTRSFence{Type: wire.RTRSFencedType, Attempt: 1, Errno: 22}},
}

var noticeVectors = map[string]wire.RTRSNotice{
	"0380010000000000": {Type: wire.RTRSRefusedType, Errno: 1},
	"0480000000000000": {Type: wire.RTRSRestType},
	"05800b0000000000": {Type: wire.RTRSRestedType, Errno: 11},
	"0680000000000000": {Type: wire.RTRSWakeType},
}

func TestRTRSFence(t *testing.T) {
	for _, v := range fenceVectors {
		b := unhex(t, v.hex)
		v.fence.Path = [16]byte(b[8:])
		if f, err := wire.ParseRTRSFence(b); f != v.fence || err != nil {
			t.Errorf("%s is %+v, %v", v.hex, f, err)
		}
		if out := v.fence.Append([]byte{9}); !bytes.Equal(out[1:], b) {
			t.Errorf("%+v is %x", v.fence, out[1:])
		}
		if _, err := wire.ParseRTRSFence(b[:23]); err != wire.ErrRTRSShort {
			t.Error(err)
		}
		b[0] = 9
		if _, err := wire.ParseRTRSFence(b); err != wire.ErrRTRSType {
			t.Error(err)
		}
	}
	for hex, n := range noticeVectors {
		b := unhex(t, hex)
		if got, err := wire.ParseRTRSNotice(b); got != n || err != nil {
			t.Errorf("%s is %+v, %v", hex, got, err)
		}
		if out := n.Append(nil); !bytes.Equal(out, b) {
			t.Errorf("%+v is %x", n, out)
		}
		if _, err := wire.ParseRTRSNotice(b[:7]); err != wire.ErrRTRSShort {
			t.Error(err)
		}
		if typ, err := wire.RTRSMessageType(b); typ != n.Type || err != nil {
			t.Error(typ, err)
		}
	}
	for _, typ := range []wire.RTRSType{wire.RTRSFenceType, wire.RTRSWakeType + 1, wire.RTRSInfoRspType} {
		if _, err := wire.ParseRTRSNotice(wire.RTRSNotice{Type: typ}.Append(nil)); err != wire.ErrRTRSType {
			t.Errorf("%d: %v", typ, err)
		}
	}
}

// TestRTRSMarks: a parser of the kernel's messages does not see ours.
func TestRTRSMarks(t *testing.T) {
	q := wire.RTRSConnReq{Conns: 2, Attempt: 3, FirstConn: true}
	b := q.Append(nil)
	if wire.RTRSFencesSet(b) || wire.RTRSFencesSet(b[:44]) {
		t.Error("the mark is set")
	}
	wire.SetRTRSFences(b)
	if got, err := wire.ParseRTRSConnReq(b); got != q || err != nil || !wire.RTRSFencesSet(b) {
		t.Errorf("%+v, %v", got, err)
	}
	c := newChunks(t, 2, 400, 400)
	ds := []wire.RTRSDesc{{Addr: 4096, Key: 7, Len: 1600}}
	b = wire.AppendRTRSInfoRsp(nil, ds)
	if wire.RTRSGeneration(b) != 0 {
		t.Error("a generation of", wire.RTRSGeneration(b))
	}
	wire.SetRTRSGeneration(b, 0xdeadbeef)
	if got, err := wire.ParseRTRSInfoRsp(b, c); err != nil || len(got) != 1 || got[0] != ds[0] || wire.RTRSGeneration(b) != 0xdeadbeef {
		t.Errorf("%+v, %v, %x", got, err, b)
	}
}

func FuzzRTRSFence(f *testing.F) {
	for _, v := range fenceVectors {
		f.Add(unhex(f, v.hex))
	}
	for hex := range noticeVectors {
		f.Add(unhex(f, hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := wire.ParseRTRSFence(b); err == nil {
			sameBut(t, b, m.Append(nil), 6, 8)
		}
		if n, err := wire.ParseRTRSNotice(b); err == nil {
			sameBut(t, b, n.Append(nil), 4, 8)
		}
		wire.RTRSFencesSet(b)
	})
}

// TestRTRSMessageTypeNeedsTwoBytes, and no more.
func TestRTRSMessageTypeNeedsTwoBytes(t *testing.T) {
	for n, want := range []error{wire.ErrRTRSShort, wire.ErrRTRSShort, nil, nil} {
		if k, err := wire.RTRSMessageType([]byte{7, 1, 9}[:n]); err != want || err == nil && k != 0x107 {
			t.Errorf("%d bytes: %v, %v", n, k, err)
		}
	}
}
