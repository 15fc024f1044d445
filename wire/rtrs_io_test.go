package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

func newChunks(t testing.TB, depth, maxIO, maxHdr uint32) wire.RTRSChunks {
	c, err := wire.NewRTRSChunks(depth, maxIO, maxHdr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRTRSLayout: what a client lays out a server finds, up to the limits; what
// is beyond them neither makes nor takes.
func TestRTRSLayout(t *testing.T) {
	c := newChunks(t, 4, 8192, 256)
	chunk := make([]byte, c.Size())
	read := func(usr uint16, sg uint16, n uint32) wire.RTRSReq {
		r := wire.RTRSReq{Type: wire.RTRSRead, UsrLen: usr, SGCnt: sg}
		if sg == 1 {
			r.Desc = wire.RTRSDesc{Addr: 1 << 40, Key: 7, Len: n}
		}
		return r
	}
	write := func(usr uint16) wire.RTRSReq { return wire.RTRSReq{Type: wire.RTRSWrite, UsrLen: usr} }
	for _, k := range []struct {
		what  string
		r     wire.RTRSReq
		data  uint32
		start uint32
		err   error
	}{
		{"write", write(32), 4096, 0, nil},
		{"write without data", write(8), 0, 0, nil},
		{"largest write", write(252), 8192, 0, nil},
		{"write with too much data", write(32), 8193, 0, wire.ErrRTRSDataLen},
		{"write with a long header", write(253), 0, 0, wire.ErrRTRSHdrLen},
		{"read", read(32, 1, 4096), 4096, 4096, nil},
		{"flush", read(32, 0, 0), 0, 0, nil},
		{"largest read", read(232, 1, 8192), 8192, 8192, nil},
		{"read of less than asked for", read(32, 1, 512), 4096, 4096, nil},
		{"read of more than asked for", read(32, 1, 4097), 4096, 0, wire.ErrRTRSDescLen},
		{"read of nothing", read(32, 1, 0), 4096, 0, wire.ErrRTRSDescLen},
		{"read with a long header", read(233, 1, 1), 1, 0, wire.ErrRTRSHdrLen},
		{"read of too much", read(32, 1, 8193), 8193, 0, wire.ErrRTRSDataLen},
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

// TestRTRSRequestBounds: no offset reads beyond the chunk, even one that no
// immediate can bear, and nothing behind a chunk's end is read from memory that
// goes on.
func TestRTRSRequestBounds(t *testing.T) {
	c := newChunks(t, 4, 64, 64)
	r := wire.RTRSReq{Type: wire.RTRSRead, SGCnt: 1, Desc: wire.RTRSDesc{Len: 1}}
	msg := r.Append(nil)
	for off := uint32(0); off < 128; off++ {
		region := make([]byte, 256) // two chunks, one behind the other
		copy(region[off:], msg)
		_, _, err := c.ParseRequest(region, off)
		if fits := off+uint32(len(msg)) <= 128; fits == (err == wire.ErrRTRSOff) {
			t.Errorf("at byte %d: %v", off, err)
		}
	}
	for _, off := range []uint32{125, 128, 1 << 28, 0xfffffffd, 0xffffffff} {
		if _, _, err := c.ParseRequest(make([]byte, 128), off); err != wire.ErrRTRSOff {
			t.Errorf("at byte %d: %v", off, err)
		}
	}
	if _, _, err := c.ParseRequest(nil, 0); err != wire.ErrRTRSOff {
		t.Error(err)
	}
}

// TestRTRSErrorsSayWhich: a set-up error has the numbers that disagree.
func TestRTRSErrorsSayWhich(t *testing.T) {
	q := wire.RTRSConnReq{Conn: 5, Conns: 5}
	_, e1 := wire.ParseRTRSConnReq(q.Append(nil))
	_, e2 := wire.AppendRTRSInfoReq(nil, "a/b")
	_, e3 := wire.ParseRTRSInfoRsp(wire.AppendRTRSInfoRsp(nil, make([]wire.RTRSDesc, 3)), newChunks(t, 4, 64, 64))
	_, e4 := wire.ParseRTRSConnRsp(make([]byte, 40))
	_, e5 := wire.NewRTRSChunks(4096, 126976, 4096)
	for err, want := range map[error]string{e1: "connection 5 of 5, a path has 1 to 4096", e2: `"a/b" has '/' in it`, e3: "3 of them for 4 chunks",
		e4: "CON_RSP of 40 bytes, 56 are needed", e5: "chunks of 131072 bytes, at most 65536 go with a queue depth of 4096"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, name := range []string{"", ".", "a.b", "/", "a\x00", strings.Repeat("n", 255)} {
		if b, err := wire.AppendRTRSInfoReq([]byte{1}, name); !errors.Is(err, wire.ErrRTRSName) || len(b) != 1 {
			t.Errorf("%q: %d bytes, %v", name, len(b), err)
		}
	}
}

// TestRTRSIODoesNotAllocate: a request and its answer, both ends, good and bad.
func TestRTRSIODoesNotAllocate(t *testing.T) {
	c := newChunks(t, 512, 126976, 4096)
	chunk, buf := make([]byte, c.Size()), make([]byte, 0, 256)
	bad := 0
	n := testing.AllocsPerRun(100, func() {
		io := wire.RNBDIO{DeviceID: 1, Sector: 8, RW: wire.RNBDRW(wire.RNBDRead, 0), Size: 4096}
		r := wire.RTRSReq{Type: wire.RTRSRead, UsrLen: wire.RNBDIOLen, Flags: wire.RTRSNeedInval, SGCnt: 1, Desc: wire.RTRSDesc{Addr: 1, Key: 2, Len: 4096}}
		l, err := c.Layout(&r, 4096)
		copy(chunk[l.Usr:], r.Append(io.Append(buf[:0])))
		b := c.Req(5, l.Msg).Append(buf[:0])
		i, _ := wire.ParseRTRSImm(b)
		_, off, err2 := c.ParseReq(i)
		got, at, err3 := c.ParseRequest(chunk, off)
		o, err4 := wire.ParseRNBDIO(chunk[at.Usr:at.Msg])
		if err != nil || err2 != nil || err3 != nil || err4 != nil || o.Check(got.Type, at.DataLen()) != nil || o != io || got != r {
			bad++
		}
		rk, err := wire.ParseRTRSRKeyRsp(wire.RTRSRKeyRsp{BufID: 5, Key: 9}.Append(buf[:0]))
		if id, _, _ := wire.RTRSDone(uint32(rk.BufID), 0, got.NeedInval()).Done(); err != nil || id != 5 {
			bad++
		}
		if _, _, err := c.ParseRequest(chunk, c.Size()-1); err == nil {
			bad++
		}
	})
	if n != 0 || bad != 0 {
		t.Errorf("%v allocations, %d failures", n, bad)
	}
}
