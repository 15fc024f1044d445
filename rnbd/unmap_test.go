package rnbd

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
)

// TestUnmapWhileOpening: the server is not left with a volume nobody closes,
// nor is one of the same name closed that is mapped next.
func TestUnmapWhileOpening(t *testing.T) {
	for _, cut := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		dir := t.TempDir()
		writeFile(t, dir+"/d", 1<<20)
		w.root(&Root{Path: dir})
		e := w.client("c")
		w.holdOpen = true
		v, err := e.c.Map(w.now, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		if err := v.Unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if e.unmapped[v] {
			t.Fatal("unmapped while the server opens it")
		}
		_, err = e.c.Map(w.now, "d", rw)
		wantErr(t, "mapped again meanwhile", err, ErrBusy)
		if cut {
			e.cut()
			if !e.unmapped[v] {
				t.Error("the session is lost, and the volume is still waited for")
			}
			w.holdOpen = false
			w.run()
			e.connect()
		}
		w.holdOpen = false
		w.run()
		if !e.unmapped[v] || len(w.srv.Open()) != 0 {
			t.Errorf("cut %v: unmapped %v, %d open at the server", cut, e.unmapped[v], len(w.srv.Open()))
		}
		if e.mapped[v] != nil || len(e.mapped) != 0 {
			t.Error("told as mapped")
		}
		e.mustMap("d", rw)
	}
}

// TestUnmapBusy: normal refuses while requests are under way, force ends them.
func TestUnmapBusy(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	atStore := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
	w.run()
	wantErr(t, "normal", v.Unmap(w.now), ErrBusy)
	waiting := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)}
	wd := e.submit(v, waiting) // the session has it, and has not sent it
	if err := v.ForceUnmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if !*wd || !errors.Is(waiting.Err, blk.ErrClosed) {
		t.Errorf("what was not sent: %v, %v", *wd, waiting.Err)
	}
	e.Each(func(r *rtrs.Req) {
		if !r.Abandoned {
			t.Error("what the store has keeps its limit, though nobody waits for it")
		}
	})
	if e.unmapped[v] || *atStore {
		t.Error("unmapped while its memory is in use")
	}
	wantErr(t, "a request", e.flush(v), blk.ErrClosed)
	wantErr(t, "again", v.ForceUnmap(w.now), ErrGone)
	f.Release()
	w.run()
	if !e.unmapped[v] || !*atStore || len(w.srv.Open()) != 0 {
		t.Error("not unmapped")
	}
}

// TestUnmapWithoutPath ends at once, with what the session keeps for a path
// that may never come.
func TestUnmapWithoutPath(t *testing.T) {
	for _, force := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		f, _ := w.fault("d", 1<<20)
		e := w.client("c")
		v := e.mustMap("d", rw)
		var sent *bool
		if force {
			f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
			sent = e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
			w.run()
		}
		e.cut()
		unmap := v.Unmap
		if force {
			unmap = v.ForceUnmap
		}
		if err := unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if !e.unmapped[v] || sent != nil && !*sent {
			t.Error("it waits for a path")
		}
	}
}

// TestForceAfterNormal: an Unmap that waits for the server's answer is not
// waited for any more.
func TestForceAfterNormal(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	if err := v.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "normal again", v.Unmap(w.now), ErrGone)
	if e.unmapped[v] {
		t.Fatal("the server has not answered")
	}
	if err := v.ForceUnmap(w.now); err != nil || !e.unmapped[v] {
		t.Errorf("%v", err)
	}
	w.run()
	if len(w.srv.Open()) != 0 {
		t.Error("the server was not told")
	}
}
