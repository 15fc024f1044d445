package soft

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport/ib"
)

// clog has x post more than a small burst while its device's socket takes nothing, until full is
// false.
func clog(t *testing.T, x *end, full *atomic.Bool) {
	t.Helper()
	x.d.sock.mu.Lock() // no call is under way
	x.d.sock.fault = func() error {
		if full.Load() {
			return unix.EAGAIN
		}
		return nil
	}
	x.d.sock.mu.Unlock()
	full.Store(true)
	x.post(ib.WR{ID: 7, Op: ib.Send, Piece: [3][]byte{pattern(40<<10, 1)}, Flags: ib.Signal})
	await.Until(t, patience, "The socket is full, with a burst.", func() bool {
		x.d.mu.Lock()
		defer x.d.mu.Unlock()
		return x.d.out.held
	})
}

// TestFaultWhileFull: a device whose handler panics while its socket is full goes on when there is
// room.
func TestFaultWhileFull(t *testing.T) {
	a, b := devices(t, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	u, v := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, u, v)
	y.slots(1, 40<<10)
	u.slots(1, 8)
	a.r.Sync() // ready is its thread's
	u.ready = func() { u.ready = nil; panic("a handler of a test") }
	a.r.Sync()
	var full atomic.Bool
	clog(t, x, &full)
	v.post(ib.WR{Op: ib.Send})
	if _, ok := errors.AsType[*guard.Error](u.end()); !ok {
		t.Error("the connection did not end with the panic")
	}
	full.Store(false)
	if c := x.next(); c.ID != 7 || c.Status != ib.OK {
		t.Errorf("another connection: %+v", c)
	}
}

// TestCloseWhileFull: a device that is closed while its socket is full gives back what waits to be
// sent: nothing more is read of it.
func TestCloseWhileFull(t *testing.T) {
	x, y := connected(t, nil)
	y.slots(1, 40<<10)
	var full atomic.Bool
	clog(t, x, &full)
	if err := x.d.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case c := <-x.done:
		if c.ID != 7 || c.Status != ib.Flushed {
			t.Errorf("completed as %+v", c)
		}
	default:
		t.Error("what was posted is not given back")
	}
	if x.d.out.busy || x.d.out.box.n != 0 {
		t.Error("something waits to be sent still")
	}
}
