package rnbd_test

import (
	"testing"

	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestIODoesNotAllocate: a request and its answer, both ends, good and bad.
func TestIODoesNotAllocate(t *testing.T) {
	c, err := rtrswire.NewChunks(512, 126976, 4096)
	if err != nil {
		t.Fatal(err)
	}
	chunk, buf := make([]byte, c.Size()), make([]byte, 0, 256)
	bad := 0
	n := testing.AllocsPerRun(100, func() {
		io := rnbdwire.IO{DeviceID: 1, Sector: 8, RW: rnbdwire.RW(rnbdwire.Read, 0), Size: 4096}
		r := rtrswire.Req{Type: rtrswire.Read, UsrLen: rnbdwire.IOLen, Flags: rtrswire.NeedInval, SGCnt: 1, Desc: rtrswire.Desc{Addr: 1, Key: 2, Len: 4096}}
		l, err := c.Layout(&r, 4096)
		copy(chunk[l.Usr:], r.Append(io.Append(buf[:0])))
		b := c.Req(5, l.Msg).Append(buf[:0])
		i, _ := rtrswire.ParseImm(b)
		_, off, err2 := c.ParseReq(i)
		got, at, err3 := c.ParseRequest(chunk, off)
		o, err4 := rnbdwire.ParseIO(chunk[at.Usr:at.Msg])
		if err != nil || err2 != nil || err3 != nil || err4 != nil || o.Check(got.Type, at.DataLen()) != nil || o != io || got != r {
			bad++
		}
		rk, err := rtrswire.ParseRKeyRsp(rtrswire.RKeyRsp{BufID: 5, Key: 9}.Append(buf[:0]))
		if id, _, _ := rtrswire.Done(uint32(rk.BufID), 0, got.NeedInval()).Done(); err != nil || id != 5 {
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
