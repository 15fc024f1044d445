package rnbd

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// TestReopened: after the server returns every volume is opened by itself, what
// waited runs, and the numbers may be others.
func TestReopened(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1, FirstID: 100})
	fa, expA := w.fault("a", 1<<20)
	_, expB := w.fault("b", 1<<20)
	e := w.client("c")
	va, vb := e.mustMap("a", rw), e.mustMap("b", rw)
	fa.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	sent := e.submit(va, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{0xaa}, 4096)})
	w.run()
	e.cut()
	wantState(t, "without a path", va, Closed)
	waits := e.submit(vb, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{0xbb}, 4096)})
	fa.Release()
	w.run()
	if *sent || *waits {
		t.Fatal("answered without a path")
	}
	// The numbers of before are now the other volumes': nothing may go there.
	w.restart(ServerConfig{Boot: 1, FirstID: 98}, expB, expA)
	w.mem("filler", 4096)
	slices.Reverse(e.c.volumes) // opened in another order
	filler := w.client("f")
	filler.mustMap("filler", ro)
	e.connect()
	if !*sent || !*waits {
		t.Fatalf("not carried out: %v, %v; %v, %v", *sent, *waits, stateOf(va), stateOf(vb))
	}
	for b, v := range map[byte]*Volume{0xaa: va, 0xbb: vb} {
		wantState(t, v.Name(), v, Open)
		if got, err := e.read(v, 0, 4096); got != b || err != nil {
			t.Errorf("%s: %#x, %v; want %#x", v.Name(), got, err, b)
		}
	}
	if va.id == 100 && vb.id == 101 {
		t.Error("the numbers are the same: the test shows nothing")
	}
}

// TestServerComesBackWithoutIt: requests wait while the volume may still come,
// and only so long.
func TestServerComesBackWithoutIt(t *testing.T) {
	for _, policy := range []rtrs.OnLoss{rtrs.Wait, rtrs.Error} {
		w := newWorld(t, ServerConfig{Boot: 1})
		_, exp := w.fault("d", 1<<20)
		e := w.newEnd("c", "10.0.0.1", ClientConfig{OnLoss: policy, LossTimeout: 10 * time.Second})
		e.connect()
		v := e.mustMap("d", rw)
		e.cut()
		w.restart(ServerConfig{Boot: 1})
		before := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
		e.connect()
		after := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
		w.run()
		wantState(t, "without the export", v, Closed)
		wantErr(t, "why", v.Err(), rdserr.ErrNotFound)
		if sent, held := v.Inflight(); sent != 0 || held != 2 || *before || *after {
			t.Errorf("%d sent, %d held", sent, held)
		}
		w.tick(9 * time.Second)
		if *before || *after {
			t.Errorf("%v: failed before its time", policy)
		}
		if policy == rtrs.Error {
			w.tick(2 * time.Second)
			if !*before || !*after {
				t.Error("they wait for longer than they may")
			}
			wantErr(t, "a later one", e.flush(v), rtrs.ErrNoPath)
		}
		w.export(exp)
		w.tick(time.Second)
		wantState(t, "with the export", v, Open)
		if !*before || !*after {
			t.Error("not carried out")
		}
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Error(err)
		}
	}
}

// TestAnotherWriterTookOver: B6. What waited is not written over what another
// session has written meanwhile.
func TestAnotherWriterTookOver(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		w.mem("d", 1<<20)
		a, b := w.client("a"), w.client("b")
		va := a.mustMap("d", rw)
		reader := a.w.client("r")
		vr := reader.mustMap("d", ro)
		a.cut()
		reader.cut()
		late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{1}, 512)}
		done := a.submit(va, late)
		vb := b.mustMap("d", rw)
		if err := b.write(vb, 0, 2, 512, 0); err != nil {
			t.Fatal(err)
		}
		want := error(ErrWriter)
		if gone {
			if err := vb.Unmap(w.now); err != nil {
				t.Fatal(err)
			}
			w.run()
			want = ErrStale
		}
		reader.connect()
		wantState(t, "a reader", vr, Open)
		a.connect()
		wantState(t, "the writer that was away", va, Closed)
		if !*done || rdserr.Errno(late.Err) != rdserr.Errno(want) {
			t.Errorf("its write: %v, %v; want %v", *done, late.Err, want)
		}
		if got, err := reader.read(vr, 0, 512); got != 2 || err != nil {
			t.Errorf("the volume holds %d, %v", got, err)
		}
		wantErr(t, "a later write", a.write(va, 0, 1, 512, 0), want)
		if !gone {
			if err := vb.Unmap(w.now); err != nil {
				t.Fatal(err)
			}
			w.run()
		}
		if n := len(w.srv.Open()); n != 1 {
			t.Errorf("%d handles at the server; want the reader's", n)
		}
		w.tick(10 * time.Second)
		wantState(t, "it does not open by itself", va, Closed)
		if err := va.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		wantState(t, "mapped anew", va, Open)
		if err := a.write(va, 0, 3, 512, 0); err != nil {
			t.Error(err)
		}
		wantErr(t, "again while it is open", va.Remap(w.now), ErrAlready)
	}
}

// TestSharedIsNotTakenOver: where several may write, others having written is
// no surprise.
func TestSharedIsNotTakenOver(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m, _ := blk.NewMem(blk.MemOptions{Size: 1 << 20})
	w.export(&Export{Name: "d", Device: m, Rules: Rules{Shared: true}})
	a, b := w.client("a"), w.client("b")
	va := a.mustMap("d", rw)
	b.mustMap("d", rw)
	a.cut()
	a.connect()
	wantState(t, "opened anew", va, Open)
}

// TestServerWasStartedAgain: unflushed writes may be lost, so the flush that
// would have covered them fails; memory is lost as a whole.
func TestServerWasStartedAgain(t *testing.T) {
	for _, c := range []struct {
		what     string
		volatile bool
		boot     uint64 // afterwards; 1 before
		dirty    bool
		state    State
		flush    error
	}{
		{"the daemon alone", false, 1, true, Open, nil},
		{"the machine, nothing unflushed", false, 2, false, Open, nil},
		{"the machine", false, 2, true, Open, blk.ErrSyncFailed},
		{"memory", true, 1, false, Closed, ErrStale},
	} {
		w := newWorld(t, ServerConfig{Boot: 1})
		info := cached
		exp := &Export{Name: "d", Device: newRecorder(info), Volatile: c.volatile}
		w.export(exp)
		e := w.client("c")
		v := e.mustMap("d", rw)
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Fatal(err)
		}
		if !c.dirty {
			if err := e.flush(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.write(v, 0, 1, 512, blk.FUA); err != nil {
			t.Fatal(err)
		}
		e.cut()
		flush := &blk.Request{Op: blk.OpFlush} // one that waited is no better than one that comes
		done := e.submit(v, flush)
		w.run()
		w.restart(ServerConfig{Boot: c.boot}, &Export{Name: "d", Device: exp.Device, Volatile: c.volatile})
		e.connect()
		wantState(t, c.what, v, c.state)
		if !*done {
			t.Fatalf("%s: the flush waits", c.what)
		}
		wantErr(t, c.what+": the flush that waited", flush.Err, c.flush)
		wantErr(t, c.what+": another", e.flush(v), c.flush)
	}
}

// TestTakenAway: the server took the volume; it stays closed until it is
// mapped anew.
func TestTakenAway(t *testing.T) {
	for _, ask := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		w.mem("d", 1<<20)
		e := w.client("c")
		v := e.mustMap("d", rw)
		if err := w.takeAway(e, "d"); err != nil {
			t.Fatal(err)
		}
		if ask {
			v.Ask(w.now)
			w.run()
		} else {
			wantErr(t, "a write", e.write(v, 0, 1, 512, 0), ErrNotOpen)
		}
		wantState(t, "afterwards", v, Closed)
		w.tick(time.Minute)
		wantState(t, "a minute later", v, Closed)
		wantErr(t, "another write", e.write(v, 0, 1, 512, 0), ErrNotOpen)
		if err := v.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Error(err)
		}
		if err := v.Unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		wantErr(t, "remap of what is not mapped", v.Remap(w.now), ErrGone)
	}
}

// TestTakenAwayWhileAsked: the server took the volume while a question was on its way, which a kernel is
// asked by OPEN. The answer does not open a volume that is closed for good: it is closed at the server.
func TestTakenAwayWhileAsked(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	e.asKernel = true
	e.connect()
	v := e.mustMap("d", rw)
	if err := w.takeAway(e, "d"); err != nil {
		t.Fatal(err)
	}
	e.log = nil
	v.Ask(w.now)
	r := &blk.Request{Op: blk.OpFlush}
	e.submit(v, r)
	slices.Reverse(e.queue) // they go on different connections
	e.deliverOne()
	wantState(t, "the flush is answered", v, Closed)
	w.run()
	wantErr(t, "the flush", r.Err, ErrNotOpen)
	wantState(t, "the question is answered", v, Closed)
	var sent []rnbdwire.Type
	for _, b := range e.log {
		k, _ := rnbdwire.Kind(b)
		sent = append(sent, k)
	}
	if want := []rnbdwire.Type{rnbdwire.IOType, rnbdwire.OpenType, rnbdwire.CloseType}; !slices.Equal(sent, want) {
		t.Errorf("the server was sent %v, want %v", sent, want)
	}
	if err := v.Remap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	wantState(t, "mapped anew", v, Open)
	if err := e.flush(v); err != nil {
		t.Error(err)
	}
}

// TestOtherBlocks: a volume that comes back with other blocks is another one.
func TestOtherBlocks(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	d := newRecorder(cached)
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	i := cached
	i.LogicalBlock = 4096
	d.SetInfo(&i)
	e.connect()
	wantState(t, "with other blocks", v, Closed)
	wantErr(t, "why", v.Err(), ErrStale)
	if len(w.srv.Open()) != 0 {
		t.Error("it is still open at the server")
	}
}

// TestCutWhileOpening: sessions come and go at any moment of the opening.
func TestCutWhileOpening(t *testing.T) {
	for i := range 24 {
		steps := i / 2
		w := newWorld(t, ServerConfig{})
		f, _ := w.fault("d", 1<<20)
		f.Clear()
		w.mem("e", 1<<20)
		e := w.client("c")
		e.lateGone = i%2 == 1
		v, v2 := e.mustMap("d", rw), e.mustMap("e", rw)
		e.cut()
		done := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{9}, 4096)})
		e.connectFor(steps)
		e.cut()
		e.connectFor(12 - steps)
		e.cut()
		e.connect()
		if b, err := e.read(v, 0, 4096); !*done || b != 9 || err != nil {
			t.Errorf("after %d steps: %v, %d, %v", steps, *done, b, err)
		}
		wantState(t, "the other", v2, Open)
		if n := len(w.srv.Open()); n != 2 {
			t.Errorf("after %d steps: %d are open at the server", steps, n)
		}
	}
}

// TestAnotherWriterTookOverBeforeARestart: B6 holds although the server that let
// the other one write is not the one the first finds when it is back.
func TestAnotherWriterTookOverBeforeARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	exp := &Export{Name: "d", Path: path}
	for _, other := range []bool{false, true} {
		w := newWorld(t, ServerConfig{Boot: 7})
		w.export(exp)
		a, b := w.client("a"), w.client("b")
		va := a.mustMap("d", rw)
		a.cut()
		late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{1}, 512)}
		done := a.submit(va, late)
		if other {
			vb := b.mustMap("d", rw)
			if err := b.write(vb, 0, 2, 512, 0); err != nil {
				t.Fatal(err)
			}
		}
		b.cut()
		w.run()
		w.restart(ServerConfig{Boot: 7, Past: w.srv.Past()}, exp)
		a.connect()
		if !other {
			if !*done || late.Err != nil {
				t.Errorf("nobody else wrote: %v, %v", *done, late.Err)
			}
			continue
		}
		wantState(t, "the writer that was away", va, Closed)
		if !*done || rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) {
			t.Errorf("its write: %v, %v; want %v", *done, late.Err, ErrStale)
		}
	}
}

// TestStartedAgainTwice: what the server was when the volume was opened last is what
// counts, not what it was when it was mapped: a second cut without a restart loses
// nothing, and a second restart is noticed.
func TestStartedAgainTwice(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	dev := newRecorder(cached)
	w.export(&Export{Name: "d", Device: dev})
	e := w.client("c")
	v := e.mustMap("d", rw)
	again := func(boot uint64) {
		e.cut()
		if boot != 0 {
			w.restart(ServerConfig{Boot: boot}, &Export{Name: "d", Device: dev})
		}
		e.connect()
		wantState(t, "afterwards", v, Open)
	}
	again(2) // with nothing to lose
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	verifier, life := v.store.Verifier, v.losses
	again(0)
	if v.store.Verifier != verifier || v.losses != life {
		t.Errorf("verifier %#x, life %d; they were %#x and %d", v.store.Verifier, v.losses, verifier, life)
	}
	if err := e.flush(v); err != nil {
		t.Errorf("the server is the same, and the flush fails: %v", err)
	}
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	again(1) // the boot it was mapped under
	wantErr(t, "a flush of what a restart may have lost", e.flush(v), blk.ErrSyncFailed)
}

// TestGreetingOfAFormerLife: a session is lost while it waits for the answer to its
// greeting, and comes up again before that path is gone: the server is greeted anew then,
// and the volumes are opened.
func TestGreetingOfAFormerLife(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		w.mem("d", 1<<20)
		e := w.client("c")
		v := e.mustMap("d", rw)
		e.lateGone = late
		e.cut()
		e.connectFor(0)
		if len(e.queue) != 1 || v.state == Open {
			t.Fatalf("%d messages are on their way with the volume %v: the test looks at another moment", len(e.queue), v.state)
		}
		e.cut()
		e.connect()
		if _, err := e.read(v, 0, 4096); err != nil || v.state != Open {
			t.Errorf("late %v: the volume is %v, %v", late, v.state, err)
		}
	}
}
