package rnbd

import (
	"bytes"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// TestResumesTogether: what the session had when its path was lost is sent again when
// each volume that was open has been asked for, in its order, and not before: the
// one that is back at once waits for the one whose file is still being opened.
func TestResumesTogether(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/slow", 1<<20)
	w := newWorld(t, ServerConfig{})
	w.root(&Root{Path: dir})
	fa, _ := w.fault("quick", 1<<20)
	e := w.client("c")
	quick, slow := e.mustMap("quick", rw), e.mustMap("slow", rw)
	fa.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	done := e.submit(quick, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{1}, 4096)})
	w.run()
	e.cut()
	fa.Release()
	w.run()
	w.holdOpen = true
	e.connect()
	w.run()
	wantState(t, "the quick one", quick, Open)
	wantState(t, "the slow one", slow, Closed)
	if sent, held := quick.Inflight(); e.resumed || *done || sent != 1 || held != 0 {
		t.Errorf("while one is being opened: resumed %v, done %v, %d sent, %d held; want false, false, 1, 0", e.resumed, *done, sent, held)
	}
	w.holdOpen = false
	w.run()
	wantState(t, "the slow one, opened", slow, Open)
	if !e.resumed || !*done {
		t.Errorf("afterwards: resumed %v, done %v", e.resumed, *done)
	}
}

// TestResumesWithoutOneThatStandsStill: where the server does not come to an end with opening a
// volume, the others of the session do not wait for it for long, and its requests go nowhere
// until it has.
func TestResumesWithoutOneThatStandsStill(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/slow", 1<<20)
	w := newWorld(t, ServerConfig{})
	w.root(&Root{Path: dir})
	w.mem("quick", 1<<20)
	e := w.client("c")
	quick, slow := e.mustMap("quick", rw), e.mustMap("slow", rw)
	e.cut()
	w.run()
	waits := e.submit(slow, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{2}, 4096)})
	done := e.submit(quick, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{1}, 4096)})
	w.holdOpen = true
	e.connect()
	w.tick(e.c.cfg.RetryEvery - 1)
	if e.resumed || *done {
		t.Fatalf("before its time: resumed %v, done %v", e.resumed, *done)
	}
	if next := e.c.Next(); next > w.now+1 {
		t.Errorf("it is to be called in %v", next-w.now)
	}
	w.tick(2 * time.Millisecond)
	if !e.resumed || !*done || *waits {
		t.Fatalf("resumed %v, done %v; the other's done %v", e.resumed, *done, *waits)
	}
	later := e.submit(slow, &blk.Request{Op: blk.OpWrite, Off: 4096, Len: 4096, Buf: bytes.Repeat([]byte{3}, 4096)})
	w.tick(time.Second)
	wantState(t, "the slow one", slow, Closed)
	if sent, held := slow.Inflight(); sent != 0 || held != 2 || *later {
		t.Errorf("of the slow one %d are sent, %d held", sent, held)
	}
	w.holdOpen = false
	w.run()
	wantState(t, "the slow one, opened", slow, Open)
	if b, err := e.read(slow, 0, 4096); !*waits || !*later || b != 2 || err != nil {
		t.Errorf("afterwards: done %v, %v; %d, %v", *waits, *later, b, err)
	}
}

// TestRemapBeforeItResumes: what waited for a volume that another session has taken over does
// not go over its data where the volume is mapped anew while the session still waits for
// another one. What is written then does.
func TestRemapBeforeItResumes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/slow", 1<<20)
	w := newWorld(t, ServerConfig{})
	w.root(&Root{Path: dir})
	w.mem("quick", 1<<20)
	e, other := w.client("c"), w.client("other")
	quick := e.mustMap("quick", rw)
	e.mustMap("slow", rw)
	e.cut()
	late := &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{1}, 4096)}
	done := e.submit(quick, late)
	theirs := other.mustMap("quick", rw)
	if err := other.write(theirs, 0, 2, 4096, 0); err != nil {
		t.Fatal(err)
	}
	other.cut()
	w.holdOpen = true
	e.connect()
	wantState(t, "taken over", quick, Closed)
	if rdserr.Errno(quick.Err()) != rdserr.Errno(ErrStale) || e.resumed || *done {
		t.Fatalf("%v; resumed %v, done %v", quick.Err(), e.resumed, *done)
	}
	for range 2 {
		wantErr(t, "while what waited has not ended", quick.Remap(w.now), ErrBusy)
		if !quick.Ending() {
			t.Error("nothing is ending")
		}
		w.tick(e.c.cfg.RetryEvery / 3)
	}
	w.tick(e.c.cfg.RetryEvery)
	if rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) || quick.Ending() {
		t.Errorf("what waited: %v", late.Err)
	}
	if err := quick.Remap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if b, err := e.read(quick, 0, 4096); b != 2 || err != nil {
		t.Errorf("mapped anew: %d, %v; want what the other has written", b, err)
	}
	if err := e.write(quick, 0, 3, 4096, 0); err != nil {
		t.Error(err)
	}
}

// TestRemapOfWhatCameBack: likewise where the session has given the request back, which waits
// to be started again.
func TestRemapOfWhatCameBack(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	done := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{1}, 4096)})
	e.c.up, e.c.resumed = true, false // it comes back in a generation that has not resumed yet
	e.Cancel(w.now, e.queue[0], errAgain)
	v.fail(w.now, ErrStale)
	if sent, held := v.Inflight(); sent != 0 || held != 0 || *done {
		t.Fatalf("%d sent, %d held, done %v", sent, held, *done)
	}
	wantErr(t, "while it has not ended", v.Remap(w.now), ErrBusy)
}

// TestRemapIsNoConsent: who has a volume opened again that was not refused for good, and for
// which requests wait, has not been told that another session has written.
func TestRemapIsNoConsent(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e, other := w.client("c"), w.client("other")
	v := e.mustMap("d", rw)
	e.cut()
	late := &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{1}, 4096)}
	e.submit(v, late)
	theirs := other.mustMap("d", rw)
	if err := other.write(theirs, 0, 2, 4096, 0); err != nil {
		t.Fatal(err)
	}
	other.cut()
	w.run()
	if err := w.srv.Unexport(w.now, w.named("d")); err != nil {
		t.Fatal(err)
	}
	e.connect()
	wantState(t, "not exported just now", v, Closed)
	w.export(&Export{Name: "d", Device: m})
	if err := v.Remap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if wantState(t, "another has written", v, Closed); rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) {
		t.Errorf("what waited: %v", late.Err)
	}
}

// TestToldNothing: a volume stays what it is when the server does not say what it is
// like, unless it says that this session does not have it open.
func TestToldNothing(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	notOpen := syscall.Errno(ErrNotOpen.Errno)
	for _, err := range []error{rtrs.ErrTimeout, rtrs.ErrNoPath, errAgain, ErrNotOpen, syscall.EIO, syscall.ENOMEM} {
		v.infoAnswered(w.now, err)
		wantState(t, err.Error(), v, Open)
		if v.failed != nil {
			t.Fatalf("%v closed the volume for good: %v", err, v.failed)
		}
	}
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Error(err)
	}
	e.cut()
	if v.infoAnswered(w.now, notOpen); v.failed != nil {
		t.Errorf("it is not open anyway, and was closed for good: %v", v.failed)
	}
	e.connect()
	wantState(t, "with a path again", v, Open)
	v.infoAnswered(w.now, notOpen)
	wantState(t, "taken", v, Closed)
	if !errors.Is(v.Err(), ErrNotOpen) || rdserr.Errno(v.failed) != ErrNotOpen.Errno {
		t.Errorf("taken, and told %v", v.Err())
	}
}

// TestUnmapOfTheLost: a volume that the server did not have any more when the session came
// back is not closed there: its number may be another's now.
func TestUnmapOfTheLost(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1, FirstID: 7})
	w.mem("gone", 1<<20)
	e := w.client("c")
	gone := e.mustMap("gone", rw)
	e.cut()
	w.restart(ServerConfig{Boot: 2, FirstID: 7})
	w.mem("other", 1<<20)
	e.connect()
	wantState(t, "without the export", gone, Closed)
	other := e.mustMap("other", rw)
	if other.id != gone.id {
		t.Fatalf("the numbers are %d and %d: the test shows nothing", gone.id, other.id)
	}
	e.log = nil
	if err := gone.Unmap(w.now); err != nil || !e.unmapped[gone] {
		t.Errorf("%v, unmapped %v", err, e.unmapped[gone])
	}
	w.run()
	if len(e.log) != 0 || len(w.srv.Open()) != 1 {
		t.Errorf("the server was sent %x, and has %d open", e.log, len(w.srv.Open()))
	}
	if err := e.write(other, 0, 1, 512, 0); err != nil {
		t.Errorf("the other: %v", err)
	}
}

// TestGreetsWhenDue: a session whose greeting had no answer greets again at the very time
// that Next names: a shell that calls Tick then would else turn round until it is later.
func TestGreetsWhenDue(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	e := w.client("c")
	e.c.introduced = false
	e.c.sessInfoAnswered(w.now, rtrs.ErrTimeout)
	due := e.c.Next()
	if due != w.now+e.c.cfg.RetryEvery {
		t.Fatalf("greets at %v; want %v later than %v", due, e.c.cfg.RetryEvery, w.now)
	}
	e.log = nil
	w.now = due
	if next := e.c.Tick(due); next == due {
		t.Error("nothing was done when it was due")
	}
	if w.run(); len(e.log) != 1 {
		t.Errorf("%d messages; want the greeting", len(e.log))
	}
}

// TestGreetsAgainWhereRefused: a session whose greeting the server had no memory for takes it for no kernel: it would not be told that
// another has written meanwhile, nor that the machine was started again.
func TestGreetsAgainWhereRefused(t *testing.T) {
	greetings := func(w *world, times int) {
		w.short = func(usr []byte) error {
			if k, _ := rnbdwire.Kind(usr); k != rnbdwire.SessInfo || times == 0 {
				return nil
			}
			times--
			return rdserr.ErrNoMemory
		}
	}
	t.Run("another has written", func(t *testing.T) {
		w, exp, a, va, late := twoWriters(t, ServerConfig{})
		greetings(w, 2)
		a.connect()
		w.tick(5 * time.Second)
		if rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) || va.Final() == nil || begins(t, exp.Path) != 2 {
			t.Errorf("the write that waited: %v, %v; the file begins with %d", late.Err, va.Final(), begins(t, exp.Path))
		}
	})
	t.Run("the machine was started", func(t *testing.T) {
		exp := &Export{Name: "d", Path: filepath.Join(t.TempDir(), "d")}
		writeFile(t, exp.Path, 1<<20)
		w := newWorld(t, ServerConfig{Boot: 1})
		w.export(exp)
		e := w.client("c")
		v := e.mustMap("d", rw)
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Fatal(err)
		}
		e.cut()
		w.run()
		w.restart(ServerConfig{Boot: 2}, exp)
		greetings(w, 2)
		e.connect()
		w.tick(5 * time.Second)
		wantErr(t, "flush", e.flush(v), blk.ErrSyncFailed)
	})
	t.Run("a volume is mapped", func(t *testing.T) {
		w := newWorld(t, ServerConfig{})
		w.mem("d", 1<<20)
		e := w.newEnd("c", "10.0.0.1", ClientConfig{})
		greetings(w, 2)
		v, err := e.c.Map(w.now, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		e.connect()
		wantErr(t, "its caller is told", e.mapped[v], rdserr.ErrNoMemory)
		if v, err = e.c.Map(w.now, "d", rw); err != nil {
			t.Fatal(err)
		}
		w.run()
		if stateOf(v) != Init {
			t.Errorf("it is %v before the session is greeted", stateOf(v))
		}
		w.tick(600 * time.Millisecond)
		wantErr(t, "and of the next one", e.mapped[v], rdserr.ErrNoMemory)
		if v, err = e.c.Map(w.now, "d", rw); err != nil {
			t.Fatal(err)
		}
		w.tick(time.Second)
		if stateOf(v) != Open || v.store.Verifier == 0 {
			t.Errorf("%v, its verifier is %d", stateOf(v), v.store.Verifier)
		}
	})
}
