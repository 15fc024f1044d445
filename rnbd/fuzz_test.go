package rnbd

import (
	"bytes"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// guard is a device that fails the test when it is asked for what it did not
// announce, or is not open for.
type guard struct {
	*blk.Mem
	t testing.TB
}

func (d *guard) Submit(batch []*blk.Request) {
	for _, r := range batch {
		if r.Off > 1<<20 || r.Len > 1<<20 && r.Op < blk.OpDiscard {
			d.t.Logf("asked for %v at %d, %d bytes", r.Op, r.Off, r.Len) // the device refuses it
		}
		if uint64(len(r.Buf)) != r.Len && (r.Op == blk.OpRead || r.Op == blk.OpWrite) {
			d.t.Errorf("%v of %d bytes with a buffer of %d", r.Op, r.Len, len(r.Buf))
		}
	}
	d.Mem.Submit(batch)
}

// FuzzServer: whatever a session sends, it is answered once, and nothing but
// what its volumes hold, or zeroes, comes back; another session's volume is as
// it was.
func FuzzServer(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Kind == "request" && len(v.Hex) >= int(v.num("usrlen")) {
			f.Add(v.user(), uint8(0), uint16(v.num("datalen")))
			f.Add(v.user(), uint8(1), uint16(v.num("datalen")))
		}
	}
	f.Add(rnbdwire.AppendInfo(nil, 1), uint8(0), uint16(56))
	f.Add(rnbdwire.AppendSessInfoExt(nil, rnbdwire.SessInfo, 2, 255), uint8(0), uint16(100))
	f.Fuzz(func(t *testing.T, usr []byte, op uint8, room uint16) {
		if len(usr) > rnbdwire.OpenLen {
			usr = usr[:rnbdwire.OpenLen]
		}
		w := newWorld(t, ServerConfig{FirstID: 1})
		m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		w.export(&Export{Name: "d", Device: &guard{m, t}})
		w.export(&Export{Name: "r", Device: newRecorder(cached), Rules: Rules{ReadOnly: true}})
		secret := w.mem("secret", 1<<20)
		if err := blk.WriteAt(secret, bytes.Repeat([]byte{0x5e}, 4096), 0, 0); err != nil {
			t.Fatal(err)
		}
		other := w.client("other")
		other.mustMap("secret", rw) // device 1
		e := w.client("c")
		e.mustMap("d", rw) // device 2
		e.mustMap("r", ro) // device 3
		r := e.rawStart(rtrs.Op(op&1), usr, int(room))
		w.run()
		if !r.Ctx.(*rawWait).done {
			t.Fatal("no answer")
		}
		if r.Op == rtrs.Read && r.Err == nil {
			for _, b := range r.Data {
				if b == 0xa5 || b == 0x77 || b == 0x5e {
					if k, _ := rnbdwire.Kind(usr); k != rnbdwire.IOType { // the recorder's reads hold anything
						t.Fatalf("the answer holds what nobody put there: %x", r.Data)
					}
				}
			}
		}
		if b, err := other.read(other.c.Volumes()[0], 0, 4096); b != 0x5e || err != nil {
			t.Fatalf("another session's volume: %#x, %v", b, err)
		}
	})
}

// FuzzClient: whatever a server answers, requests complete once, and the
// volume has a description that makes sense or none.
func FuzzClient(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Kind == "openrsp" && len(v.Hex) == rnbdwire.OpenRspLen {
			f.Add(v.Hex, v.Hex, uint8(2), uint16(0))
			f.Add(v.Hex, v.Hex, uint8(0), uint16(2))
		}
	}
	good := describe(&cached, 7)
	moved := good
	moved.DeviceID, moved.Sectors = 8, 100
	f.Add(good.Append(nil), moved.Append(nil), uint8(2), uint16(0))
	f.Fuzz(func(t *testing.T, first, second []byte, ver uint8, errno uint16) {
		c := &answering{ver: ver, errno: errno}
		c.rsp = first
		e := &end{w: &world{t: t}, maxIO: 64 << 10, mapped: map[*Volume]error{}, unmapped: map[*Volume]bool{}}
		c.c = NewClient(ClientConfig{}, e, c)
		c.c.Up(0)
		v, err := c.c.Map(0, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		c.run(t)
		io := func() {
			var dones []*bool
			for op := range blk.Op(blk.NumOps) {
				r := &blk.Request{Op: op, Off: 4096, Len: 128 << 10, Queue: ioDone}
				if op == blk.OpRead || op == blk.OpWrite {
					r.Buf = make([]byte, r.Len)
				}
				if op == blk.OpFlush {
					r.Off, r.Len = 0, 0
				}
				done := new(bool)
				r.Ctx = done
				dones = append(dones, done)
				v.Submit(0, []*blk.Request{r})
			}
			c.run(t)
			for op, d := range dones {
				if !*d && stateOf(v) != Closed {
					t.Fatalf("%v, %v: request %d has not completed", stateOf(v), v.Err(), op)
				}
			}
		}
		check := func() {
			if i := v.Info(); i != nil {
				if err := i.Validate(); err != nil {
					t.Fatalf("%+v: %v", i, err)
				}
				if stateOf(v) == Open && v.most(blk.OpWrite) == 0 {
					t.Fatal("pieces of nothing")
				}
			}
		}
		io()
		check()
		c.c.Down(0)
		c.rsp = second
		c.c.Up(0)
		c.run(t)
		check()
		v.Ask(0)
		io()
		check()
		if stateOf(v) != Unmapped {
			if err := v.ForceUnmap(0); err != nil {
				t.Fatal(err)
			}
			c.run(t)
			if !e.unmapped[v] {
				t.Fatal("not unmapped")
			}
		}
		if n := len(c.c.Volumes()); n != 0 {
			t.Fatalf("%d volumes left", n)
		}
	})
}
