package rnbd

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// TestOldest: since when the oldest request of a volume is under way, at the store, without a path and
// while the server has no such volume; and since when the store has it.
func TestOldest(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	f, exp := w.fault("d", 1<<20)
	w.mem("well", 1<<20)
	e := w.client("c")
	v, well := e.mustMap("d", rw), e.mustMap("well", rw)
	want := func(where string, since time.Duration) {
		t.Helper()
		list := e.c.Oldest()
		if at, ok := list[v]; at != since || ok != (since != 0) {
			t.Errorf("%s: since %v (%v), want %v", where, at, ok, since)
		}
		if at, ok := list[well]; ok {
			t.Errorf("%s: the other volume since %v", where, at)
		}
	}
	atStore := func() (n int, oldest time.Duration) {
		oldest = Never
		for _, fl := range w.flights {
			if of, since := AtStore(&fl.sr); of.Device == exp.Device && of.Export == exp && fl.req != nil {
				n, oldest = n+1, min(oldest, since)
			} else if of.Device != nil {
				t.Error("a request that was answered, or is of another volume, is at a store")
			}
		}
		return n, oldest
	}
	want("nothing", 0)
	f.Add(blk.Rule{Stall: true})
	begun := w.now
	one := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 130 << 10, Buf: make([]byte, 130<<10)}) // in three pieces
	w.run()
	w.tick(time.Second)
	two := e.submit(v, &blk.Request{Op: blk.OpRead, Len: 512, Buf: make([]byte, 512)})
	w.run()
	if err := e.write(well, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	want("at the store", begun)
	if n, at := atStore(); n != 4 || at != begun {
		t.Errorf("the store has %d, the oldest since %v; want 4, %v", n, at, begun)
	}
	e.cut()
	want("without a path", begun)
	f.Clear()
	f.Release()
	w.run()
	if n, _ := atStore(); n != 0 {
		t.Errorf("the store has %d afterwards", n)
	}
	w.restart(ServerConfig{Boot: 1})
	e.connect()
	if sent, held := v.Inflight(); sent != 0 || held == 0 || *one || *two {
		t.Fatalf("%d sent, %d held", sent, held)
	}
	want("without the volume", begun)
	if err := v.ForceUnmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	want("unmapped", 0)
}

// TestAtStoreOfAnother: a request that waits for something else is at no store, whatever was carried
// out, or refused, in its place before.
func TestAtStoreOfAnother(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 4096)
	w.root(&Root{Path: t.TempDir()})
	e := w.client("c")
	v := e.mustMap("d", ro)
	if _, err := e.raw(rawWrite, rawIO(v.id, rnbdwire.Write, 0, 0, 512), 512); err == nil {
		t.Fatal("a write to what is read-only")
	}
	w.holdOpen = true
	e.rawStart(rawRead, must(open1("other", ro)), rnbdwire.OpenRspLen)
	w.run()
	left := false
	for _, f := range w.flights {
		left = left || f.req != nil && f.sr.Ctx != nil
		if of, _ := AtStore(&f.sr); of.Device != nil {
			t.Error("a request is at a store")
		}
	}
	if !left {
		t.Error("the one that waits has nothing of one before: this shows nothing")
	}
	w.holdOpen = false
	w.run()
}
