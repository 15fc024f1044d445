package rnbd

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// mapAgain maps d as the next process of e does, whose former one was cut off.
func (w *world) mapAgain(cfg ClientConfig, access string, k Kept) (*end, *Volume) {
	w.t.Helper()
	e := w.newEnd("c", "10.0.0.1", cfg)
	e.connect()
	a := rw
	if access == "ro" {
		a = ro
	}
	v, err := e.c.MapAgain(w.now, "d", a, k)
	if err != nil {
		w.t.Fatal(err)
	}
	w.run()
	if err, told := e.mapped[v]; !told || err != nil {
		w.t.Fatalf("mapped again: %v, %v", told, err)
	}
	return e, v
}

// TestMapAgain: who goes on with a volume over a restart of its own learns of what happened
// to it meanwhile, and of nothing where nothing has.
func TestMapAgain(t *testing.T) {
	for _, c := range []struct {
		what     string
		volatile bool
		lasts    bool   // what is there afterwards does
		through  bool   // without a cache
		access   string // "": rw
		boot     uint64 // afterwards; 1 before
		other    bool   // another session wrote
		flushed  bool   // and the former process ended in order
		failed   bool   // a flush failed there
		io       error
		flush    error
	}{
		{what: "nothing", boot: 1},
		{what: "the server was started again", boot: 2, flush: blk.ErrSyncFailed},
		{what: "the same with nothing unflushed", boot: 2, flushed: true},
		{what: "the same without a cache", boot: 2, through: true},
		{what: "the same of a reader", boot: 2, access: "ro"},
		{what: "memory was lost", boot: 1, volatile: true, io: ErrStale, flush: ErrStale},
		{what: "memory was lost, and its name is a file's now", boot: 1, volatile: true, lasts: true, io: ErrStale, flush: ErrStale},
		{what: "the same without a cache", boot: 1, volatile: true, lasts: true, through: true, io: ErrStale, flush: ErrStale},
		{what: "the same of a reader", boot: 1, volatile: true, lasts: true, access: "ro", io: ErrStale, flush: ErrStale},
		{what: "another writer", boot: 1, other: true, io: ErrStale, flush: ErrStale},
		{what: "another writer and everything flushed", boot: 1, other: true, flushed: true, io: ErrStale, flush: ErrStale},
		{what: "another writer, of a reader", boot: 1, other: true, access: "ro"},
		{what: "a flush had failed", boot: 1, failed: true, flush: blk.ErrSyncFailed},
	} {
		w := newWorld(t, ServerConfig{Boot: 1})
		info := cached
		info.WriteCache = !c.through
		f := blk.NewFault(newRecorder(info), 1)
		exp := &Export{Name: "d", Device: f, Volatile: c.volatile}
		w.export(exp)
		e := w.client("c")
		access := rw
		if c.access == "ro" {
			access = ro
		}
		v := e.mustMap("d", access)
		if v.Kept().Verifier == 0 {
			t.Fatal("no verifier")
		}
		if access == rw {
			if err := e.write(v, 0, 1, 512, 0); err != nil {
				t.Fatal(err)
			}
		}
		if c.failed {
			f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1})
			wantErr(t, c.what, e.flush(v), blk.ErrMedium)
			if e.kept != 1 {
				t.Errorf("%s: told %d times that there is something to keep", c.what, e.kept)
			}
		}
		if c.flushed {
			if v.Kept().Flushed {
				t.Errorf("%s: an unflushed write, and %+v", c.what, v.Kept())
			}
			if err := e.flush(v); err != nil {
				t.Fatal(err)
			}
		}
		k := v.Kept()
		if c.flushed != k.Flushed && !c.through && access == rw {
			t.Errorf("%s: %+v", c.what, k)
		}
		e.cut()
		w.run()
		if c.boot != 1 || c.volatile {
			w.restart(ServerConfig{Boot: c.boot}, &Export{Name: "d", Device: exp.Device, Volatile: c.volatile && !c.lasts})
		}
		if c.other {
			b := w.client("b")
			if err := b.mustMap("d", rw).Unmap(w.now); err != nil {
				t.Fatal(err)
			}
			w.run()
		}
		k.Flushed = c.flushed
		e, v = w.mapAgain(ClientConfig{}, c.access, k)
		r := &blk.Request{Op: blk.OpRead, Len: 512, Buf: make([]byte, 512)}
		e.submit(v, r)
		w.run()
		wantErr(t, c.what+": read", r.Err, c.io)
		wantErr(t, c.what+": flush", e.flush(v), c.flush)
		if c.io != nil {
			wantState(t, c.what, v, Closed)
			if len(w.srv.Open()) != 0 {
				t.Errorf("%s: it is still open at the server", c.what)
			}
			if err := v.Remap(w.now); err != nil {
				t.Fatal(err)
			}
			w.run()
			wantState(t, c.what+": opened all the same", v, Open)
			if v.Kept().Stale {
				t.Errorf("%s: opened all the same, and %+v", c.what, v.Kept())
			}
		}
	}
}

// TestMapAgainWithOtherBlocks: a store with blocks of another size is not what the users of the
// volume go on with, and they do not get it by Remap either.
func TestMapAgainWithOtherBlocks(t *testing.T) {
	for _, c := range []struct {
		was  uint16
		want error
	}{{512, nil}, {4096, ErrStale}, {0, nil}} {
		w := newWorld(t, ServerConfig{Boot: 1})
		w.mem("d", 1<<20)
		e, v := w.mapAgain(ClientConfig{}, "", Kept{LogicalBlock: c.was})
		for range 2 {
			wantErr(t, "a write", e.write(v, 0, 1, 4096, 0), c.want)
			if k := v.Kept(); k.Stale != (c.want != nil) || c.was != 0 && k.LogicalBlock != c.was {
				t.Errorf("blocks of %d: %+v", c.was, k)
			}
			if c.want != nil {
				if err := v.Remap(w.now); err != nil {
					t.Fatal(err)
				}
				w.run()
			}
		}
	}
}

// TestStaleIsToldUntilItIsNoted: the server forgets that another has written as soon as it
// is asked for something. So nothing is asked until it is written down here: a process that
// ends before leaves it to the next to learn it.
func TestStaleIsToldUntilItIsNoted(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{Notes: true})
	e.connect()
	v := e.mustMap("d", rw)
	k := v.Kept()
	if err := v.Leave(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if !e.unmapped[v] || len(w.srv.Open()) != 1 {
		t.Fatalf("left: ended %v, %d open at the server", e.unmapped[v], len(w.srv.Open()))
	}
	e.cut()
	w.run()
	b := w.client("b")
	vb := b.mustMap("d", rw)
	if err := b.write(vb, 0, 2, 512, 0); err != nil {
		t.Fatal(err)
	}
	if err := vb.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	for range 2 {
		e, v = w.mapAgain(ClientConfig{Notes: true}, "", k)
		wantState(t, "of another's writes", v, Closed)
		if len(e.noting) != 1 || !v.Kept().Stale {
			t.Fatalf("%d notes, %+v", len(e.noting), v.Kept())
		}
		w.tick(time.Second)
		if len(w.srv.Open()) != 1 {
			t.Fatal("it was closed at the server before that was noted")
		}
		e.cut()
		w.run()
	}
	// Also one that had it open all the time, and one that was lost on the way.
	e, v = w.mapAgain(ClientConfig{Notes: true}, "", k)
	k = v.Kept()
	v.Noted(w.now)
	w.run()
	if len(w.srv.Open()) != 0 {
		t.Fatal("it is still open at the server")
	}
	wantErr(t, "a write", e.write(v, 0, 1, 512, 0), ErrStale)
	e.cut()
	w.run()
	// The server has forgotten it.
	e, v = w.mapAgain(ClientConfig{Notes: true}, "", k)
	wantErr(t, "a write of the next process", e.write(v, 0, 1, 512, 0), ErrStale)
	if err := v.Remap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if err := e.write(v, 0, 3, 512, 0); err != nil {
		t.Fatal(err)
	}
	if e.kept == 0 || v.Kept().Stale {
		t.Errorf("opened all the same: told %d times, %+v", e.kept, v.Kept())
	}
}

// TestNotedOfOneThatStayed: the same of a process that had the volume all the time.
func TestNotedOfOneThatStayed(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{Notes: true})
	e.connect()
	v := e.mustMap("d", rw)
	e.cut()
	w.run()
	if err := w.client("b").mustMap("d", rw).Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	e.connect()
	wantState(t, "of another's writes", v, Closed)
	if len(e.noting) != 1 || len(w.srv.Open()) != 1 {
		t.Fatalf("%d notes, %d open at the server", len(e.noting), len(w.srv.Open()))
	}
	v.Noted(w.now)
	w.run()
	if len(w.srv.Open()) != 0 {
		t.Error("it is still open at the server")
	}
}

// TestTakenAsItIs: who maps anew what others have written takes it, and asks the server for
// something at once: it is no news to the next process.
func TestTakenAsItIs(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	w.mem("d", 1<<20)
	e := w.client("c")
	e.mustMap("d", rw)
	e.cut()
	w.run()
	if err := w.client("b").mustMap("d", rw).Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	e = w.client("c")
	v := e.mustMap("d", rw)
	w.run()
	k := v.Kept()
	e.cut()
	w.run()
	e, v = w.mapAgain(ClientConfig{}, "", k)
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Error(err)
	}
}
