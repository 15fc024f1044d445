package rnbd

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

func stateOf(v *Volume) State { s, _ := v.State(); return s }

func wantState(t testing.TB, what string, v *Volume, want State) {
	t.Helper()
	if got := stateOf(v); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, v.Err(), want)
	}
}

func TestMapErrors(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	for _, c := range []struct {
		name   string
		access rnbdwire.Access
		want   error
	}{
		{"", rw, rdserr.ErrInvalid},
		{"a\x00b", rw, rdserr.ErrInvalid},
		{"d", 3, rdserr.ErrInvalid},
		{"nothing", rw, rdserr.ErrNotFound},
		{"../d", rw, rdserr.ErrInvalid},
		{"d", rw, nil},
		{"d", ro, ErrExists},
	} {
		v, err := e.tryMap(c.name, c.access)
		wantErr(t, c.name, err, c.want)
		if err != nil && v != nil {
			wantState(t, c.name, v, Unmapped)
		}
	}
	if n := len(e.c.Volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

// TestMapBeforeThePath: a mapping waits for the session, and may be given up.
func TestMapBeforeThePath(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	v, err := e.c.Map(w.now, "d", rw)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := e.c.Map(w.now, "nothing", rw)
	if err != nil {
		t.Fatal(err)
	}
	w.run()
	wantState(t, "without a path", v, Init)
	wantErr(t, "a request", e.flush(v), ErrNotOpen)
	if err := gone.Unmap(w.now); err != nil || !e.unmapped[gone] {
		t.Errorf("given up: %v", err)
	}
	e.connect()
	wantState(t, "with a path", v, Open)
	if err, told := e.mapped[v]; !told || err != nil {
		t.Errorf("told %v, %v", told, err)
	}
	if _, told := e.mapped[gone]; told {
		t.Error("what was given up was told of")
	}
}

// TestPathLostWhileMapping: it goes on when there is a path again.
func TestPathLostWhileMapping(t *testing.T) {
	for _, late := range []bool{false, true} {
		dir := t.TempDir()
		writeFile(t, dir+"/d", 1<<20)
		w := newWorld(t, ServerConfig{})
		w.root(&Root{Path: dir})
		e := w.client("c")
		e.lateGone = late
		w.holdOpen = true
		v, err := e.c.Map(w.now, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		e.cut()
		wantState(t, "without a path", v, Init)
		w.holdOpen = false
		w.run()
		e.connect()
		wantState(t, "with one again", v, Open)
		if n := len(w.srv.Open()); n != 1 {
			t.Errorf("%d are open at the server", n)
		}
	}
}

// TestResizedMeanwhile: the size is seen when the volume is opened anew, and by
// asking.
func TestResizedMeanwhile(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	e.connect()
	if v.Info().Size != 2<<20 || e.changed != 1 || e.countEvents(VolumeResized) != 1 {
		t.Errorf("size %d, told %d times", v.Info().Size, e.changed)
	}
	if err := e.write(v, 2<<20-512, 1, 512, 0); err != nil {
		t.Error(err)
	}
	if err := m.Resize(3 << 20); err != nil {
		t.Fatal(err)
	}
	w.tick(6 * time.Second)
	if v.Info().Size != 3<<20 || e.changed != 2 {
		t.Errorf("size %d after it was due to ask", v.Info().Size)
	}
	if err := m.Resize(1 << 20); err != nil {
		t.Fatal(err)
	}
	v.Ask(w.now)
	w.run()
	if v.Info().Size != 1<<20 {
		t.Errorf("size %d after asking", v.Info().Size)
	}
	wantErr(t, "behind the new end", e.write(v, 2<<20, 1, 512, 0), blk.ErrRange)
	w.tick(time.Minute)
	if e.changed != 3 {
		t.Errorf("told %d times", e.changed)
	}
}

// TestResizeHere: the kernel's attribute, which changes this side alone.
func TestResizeHere(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	wantErr(t, "half a block", v.Resize(1<<20+100), rdserr.ErrInvalid)
	if err := v.Resize(512 << 10); err != nil || v.Info().Size != 512<<10 || e.changed != 1 {
		t.Fatalf("%v, %d", err, v.Info().Size)
	}
	w.tick(20 * time.Second)
	if v.Info().Size != 512<<10 {
		t.Error("what the server says, and has said before, undid it")
	}
	if err := m.Resize(4 << 20); err != nil {
		t.Fatal(err)
	}
	w.tick(20 * time.Second)
	if v.Info().Size != 4<<20 {
		t.Errorf("size %d after the server's changed", v.Info().Size)
	}
	if err := v.ForceUnmap(w.now); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "afterwards", v.Resize(4096), ErrGone)
}

// TestKernelServerIsNotAsked: a server that does not know the additions sees
// none of them.
func TestKernelServerIsNotAsked(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	e.asKernel = true
	e.connect()
	v := e.mustMap("d", rw)
	e.log = nil
	w.tick(time.Minute)
	if len(e.log) != 0 {
		t.Errorf("a kernel was sent %x", e.log)
	}
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	e.cut()
	e.connect()
	if v.Info().Size != 2<<20 {
		t.Errorf("size %d", v.Info().Size)
	}
	if err := e.flush(v); err != nil {
		t.Errorf("flush: %v", err)
	}
}

// TestKernelServerIsAskedByOpening: asked for, what a kernel's volume is like now is found out by
// opening it again, which changes nothing else, and what goes wrong with that does neither.
func TestKernelServerIsAskedByOpening(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	e.asKernel = true
	e.connect()
	v := e.mustMap("d", rw)
	id, changes := v.id, e.countEvents(VolumeState)
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	e.log = nil
	v.Ask(w.now)
	w.run()
	if v.Info().Size != 2<<20 || e.changed != 1 || v.AskErr() != nil || v.id != id || len(e.log) != 1 {
		t.Errorf("size %d, told %d times, %v, %x", v.Info().Size, e.changed, v.AskErr(), e.log)
	}
	if n := e.countEvents(VolumeState) - changes; n != 0 {
		t.Errorf("%d changes of its state", n)
	}
	w.tick(time.Minute)
	if len(e.log) != 1 {
		t.Errorf("it was asked again: %x", e.log)
	}
	if err := e.write(v, 1<<20, 1, 512, 0); err != nil {
		t.Error(err)
	}
	w.srv.ForceUnexport(w.now, w.named("d"))
	w.run()
	v.Ask(w.now)
	w.run()
	wantErr(t, "a volume that is not there any more", v.AskErr(), rdserr.ErrNotFound)
	wantState(t, "asked in vain", v, Open)
}
