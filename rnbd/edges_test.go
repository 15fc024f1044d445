package rnbd

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// TestOpeningMeanwhile: what happens to a volume while it is being opened.
func TestOpeningMeanwhile(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/d", 1<<20)
	newOne := func() (*world, *end) {
		w := newWorld(t, ServerConfig{})
		w.root(&Root{Path: dir})
		w.holdOpen = true
		return w, w.client("c")
	}
	t.Run("opened twice", func(t *testing.T) {
		w, e := newOne()
		a := e.rawStart(rawRead, must(open1("d", rw)), 56)
		b := e.rawStart(rawRead, must(open1("d", ro)), 56)
		w.holdOpen = false
		w.run()
		x, err := rnbdwire.ParseOpenRsp(a.Data)
		y, err2 := rnbdwire.ParseOpenRsp(b.Data)
		if err != nil || err2 != nil || x != y || len(w.srv.Open()) != 1 {
			t.Errorf("%+v, %v; %+v, %v", x, err, y, err2)
		}
	})
	t.Run("taken away", func(t *testing.T) {
		w, e := newOne()
		a := e.rawStart(rawRead, must(open1("d", rw)), 56)
		w.run()
		if err := w.takeAway(e, "d"); err != nil {
			t.Fatal(err)
		}
		w.holdOpen = false
		w.run()
		wantErr(t, "open", a.Err, ErrNotOpen)
		if len(w.srv.Open())+len(w.srv.Devices()) != 0 || len(w.closed) != 1 {
			t.Error("something is left")
		}
	})
	t.Run("session lost", func(t *testing.T) {
		w, e := newOne()
		e.rawStart(rawRead, must(open1("d", rw)), 56)
		w.run()
		e.cut()
		w.holdOpen = false
		w.run()
		if len(w.srv.Open())+len(w.srv.Devices()) != 0 || len(w.closed) != 1 {
			t.Error("something is left")
		}
		r := e.rawStart(rawRead, must(open1("d", rw)), 56) // RTRS does not bring such
		w.run()
		if r.Ctx.(*rawWait).done && r.Err == nil {
			t.Error("a session that is down was served")
		}
	})
}

// TestNumbersWrap: a number that is in use is not given again.
func TestNumbersWrap(t *testing.T) {
	w := newWorld(t, ServerConfig{FirstID: 1<<32 - 1})
	for _, n := range []string{"a", "b", "c"} {
		w.mem(n, 4096)
	}
	e := w.client("c")
	a, err := e.rawOpen("a", ro)
	if err != nil || a.DeviceID != 1<<32-1 {
		t.Fatalf("%d, %v", a.DeviceID, err)
	}
	w.srv.nextID = 1<<32 - 1
	b, err := e.rawOpen("b", ro)
	if err != nil || b.DeviceID != 0 {
		t.Errorf("%d, %v", b.DeviceID, err)
	}
}

// TestSessionEnded: what a session refuses fails, and mapping with it.
func TestSessionEnded(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.refuse = rtrs.ErrClosed
	wantErr(t, "a write in pieces", e.write(v, 0, 1, 200<<10, 0), rtrs.ErrClosed)
	if sent, held := v.Inflight(); sent+held != 0 {
		t.Errorf("%d sent, %d held", sent, held)
	}
	_, err := e.tryMap("e", rw)
	wantErr(t, "another mapping", err, rtrs.ErrClosed)
	if err := v.Unmap(w.now); err != nil || !e.unmapped[v] {
		t.Errorf("unmap: %v, told %v", err, e.unmapped[v])
	}
}

// TestRemapRefused: when it is of no use, or too early.
func TestRemapRefused(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/d", 1<<20)
	w := newWorld(t, ServerConfig{})
	w.root(&Root{Path: dir})
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	wantErr(t, "without a path", v.Remap(w.now), rdserr.ErrHostDown)
	w.holdOpen = true
	e.connect()
	if !v.Asking() {
		t.Error("it is not being opened")
	}
	wantErr(t, "while it is being opened", v.Remap(w.now), ErrBusy)
	w.holdOpen = false
	w.run()
	wantState(t, "at the end", v, Open)
}

// TestNeverAsks: AskEvery below 0.
func TestNeverAsks(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{AskEvery: -1})
	e.connect()
	v := e.mustMap("d", rw)
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	w.tick(time.Hour)
	if v.Info().Size != 1<<20 || e.c.Next() != Never {
		t.Errorf("size %d, next at %v", v.Info().Size, e.c.Next())
	}
	v.Ask(w.now)
	w.run()
	if v.Info().Size != 2<<20 || e.c.Next() != Never {
		t.Errorf("asked: size %d, next at %v", v.Info().Size, e.c.Next())
	}
}

// TestNamesOfThings: what logs and tables show.
func TestNamesOfThings(t *testing.T) {
	for _, c := range [][2]string{
		{Init.String(), "init"}, {Open.String(), "open"}, {Closed.String(), "closed"}, {Unmapped.String(), "unmapped"}, {numStates.String(), "unknown"},
		{VolumeState.String(), "state"}, {VolumeSyncLost.String(), "sync-lost"}, {numClientEvents.String(), "unknown"},
		{ServerOpened.String(), "opened"}, {ServerSyncLost.String(), "sync-lost"}, {numServerEvents.String(), "unknown"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

// TestAnswers: the errno of an answer is the error that is meant, and none that says it of this node.
func TestAnswers(t *testing.T) {
	for n, want := range map[syscall.Errno]error{
		syscall.EPERM: ErrWriter, syscall.ENOENT: rdserr.ErrNotFound, syscall.EIO: blk.ErrMedium, syscall.EACCES: errDenied, syscall.ENOMEM: errSpent, syscall.EBUSY: ErrBusy,
		syscall.ENODEV: ErrGone, syscall.EMFILE: errFull, syscall.ENOSPC: blk.ErrNoSpace, syscall.EROFS: blk.ErrReadOnly,
		syscall.EOPNOTSUPP: blk.ErrNotSupported, syscall.ENOTCONN: ErrNotOpen, syscall.ESTALE: ErrStale, syscall.EREMOTEIO: syscall.EREMOTEIO,
	} {
		if got := answer(n); !errors.Is(got, want) {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
		for _, here := range []error{rdserr.ErrPerm, rdserr.ErrTooMany, rdserr.ErrNoMemory} {
			if got := answer(n); errors.Is(got, here) {
				t.Errorf("%d: %v is said of this node", n, got)
			}
		}
	}
}
