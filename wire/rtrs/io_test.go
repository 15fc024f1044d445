package rtrs_test

import (
	"errors"
	"strings"
	"testing"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

func newChunks(t testing.TB, depth, maxIO, maxHdr uint32) rtrswire.Chunks {
	c, err := rtrswire.NewChunks(depth, maxIO, maxHdr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLayout: what a client lays out a server finds, up to the limits; what
// is beyond them neither makes nor takes.
func TestLayout(t *testing.T) {
	c := newChunks(t, 4, 8192, 256)
	chunk := make([]byte, c.Size())
	read := func(usr uint16, sg uint16, n uint32) rtrswire.Req {
		r := rtrswire.Req{Type: rtrswire.Read, UsrLen: usr, SGCnt: sg}
		if sg == 1 {
			r.Desc = rtrswire.Desc{Addr: 1 << 40, Key: 7, Len: n}
		}
		return r
	}
	write := func(usr uint16) rtrswire.Req { return rtrswire.Req{Type: rtrswire.Write, UsrLen: usr} }
	for _, k := range []struct {
		what  string
		r     rtrswire.Req
		data  uint32
		start uint32
		err   error
	}{
		{"write", write(32), 4096, 0, nil},
		{"write without data", write(8), 0, 0, nil},
		{"largest write", write(252), 8192, 0, nil},
		{"write with too much data", write(32), 8193, 0, rtrswire.ErrDataLen},
		{"write with a long header", write(253), 0, 0, rtrswire.ErrHdrLen},
		{"read", read(32, 1, 4096), 4096, 4096, nil},
		{"flush", read(32, 0, 0), 0, 0, nil},
		{"largest read", read(232, 1, 8192), 8192, 8192, nil},
		{"read of less than asked for", read(32, 1, 512), 4096, 4096, nil},
		{"read of more than asked for", read(32, 1, 4097), 4096, 0, rtrswire.ErrDescLen},
		{"read of nothing", read(32, 1, 0), 4096, 0, rtrswire.ErrDescLen},
		{"read with a long header", read(233, 1, 1), 1, 0, rtrswire.ErrHdrLen},
		{"read of too much", read(32, 1, 8193), 8193, 0, rtrswire.ErrDataLen},
	} {
		l, err := c.Layout(&k.r, k.data)
		if err != k.err {
			t.Errorf("%s: %v, want %v", k.what, err, k.err)
		}
		if err != nil {
			continue
		}
		if l.Start(k.r.Type) != k.start || l.DataLen() != k.data || l.Msg != k.data+uint32(k.r.UsrLen) || l.End > c.Size() {
			t.Errorf("%s: %+v", k.what, l)
		}
		copy(chunk[l.Msg:], k.r.Append(nil))
		if r, again, err := c.ParseRequest(chunk, l.Msg); r != k.r || again != l || err != nil {
			t.Errorf("%s: a server reads %+v at %+v, %v", k.what, r, again, err)
		}
	}
}

// TestRequestBounds: no offset reads beyond the chunk, even one that no
// immediate can bear, and nothing behind a chunk's end is read from memory that
// goes on.
func TestRequestBounds(t *testing.T) {
	c := newChunks(t, 4, 64, 64)
	r := rtrswire.Req{Type: rtrswire.Read, SGCnt: 1, Desc: rtrswire.Desc{Len: 1}}
	msg := r.Append(nil)
	for off := uint32(0); off < 128; off++ {
		region := make([]byte, 256) // two chunks, one behind the other
		copy(region[off:], msg)
		_, _, err := c.ParseRequest(region, off)
		if fits := off+uint32(len(msg)) <= 128; fits == (err == rtrswire.ErrOff) {
			t.Errorf("at byte %d: %v", off, err)
		}
	}
	for _, off := range []uint32{125, 128, 1 << 28, 0xfffffffd, 0xffffffff} {
		if _, _, err := c.ParseRequest(make([]byte, 128), off); err != rtrswire.ErrOff {
			t.Errorf("at byte %d: %v", off, err)
		}
	}
	if _, _, err := c.ParseRequest(nil, 0); err != rtrswire.ErrOff {
		t.Error(err)
	}
}

// TestErrorsSayWhich: a set-up error has the numbers that disagree.
func TestErrorsSayWhich(t *testing.T) {
	q := rtrswire.ConnReq{Conn: 5, Conns: 5}
	_, e1 := rtrswire.ParseConnReq(q.Append(nil))
	_, e2 := rtrswire.AppendInfoReq(nil, "a/b")
	_, e3 := rtrswire.ParseInfoRsp(rtrswire.AppendInfoRsp(nil, make([]rtrswire.Desc, 3)), newChunks(t, 4, 64, 64))
	_, e4 := rtrswire.ParseConnRsp(make([]byte, 40))
	_, e5 := rtrswire.NewChunks(4096, 126976, 4096)
	for err, want := range map[error]string{e1: "connection 5 of 5, a path has 1 to 4096", e2: `"a/b" has '/' in it`, e3: "3 of them for 4 chunks",
		e4: "CON_RSP of 40 bytes, 56 are needed", e5: "chunks of 131072 bytes, at most 65536 go with a queue depth of 4096"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, name := range []string{"", ".", "a.b", "/", "a\x00", strings.Repeat("n", 255)} {
		if b, err := rtrswire.AppendInfoReq([]byte{1}, name); !errors.Is(err, rtrswire.ErrName) || len(b) != 1 {
			t.Errorf("%q: %d bytes, %v", name, len(b), err)
		}
	}
}
