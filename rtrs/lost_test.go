package rtrs

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// TestLossIsToldByNumber: requests that are given up are one event with their number,
// one of them as well as many; without any there is none.
func TestLossIsToldByNumber(t *testing.T) {
	for n := range 4 {
		f := newFakeClient(t, ClientConfig{Name: "who"})
		f.c.lost(n, ErrTimeout)
		if n == 0 {
			if len(f.events) != 0 {
				t.Errorf("nothing was lost, and told is %+v", f.events)
			}
			continue
		}
		if len(f.events) != 1 || f.events[0].Kind != EventLost || f.events[0].N != n || f.events[0].Err != ErrTimeout || f.events[0].Name != "who" {
			t.Errorf("%d were lost, told is %+v", n, f.events)
		}
	}
}

// TestPausesOfOneLength: pauses before reconnecting may all be of one length, and no
// longer at first than at last.
func TestPausesOfOneLength(t *testing.T) {
	for _, c := range []struct {
		min, max time.Duration
		ok       bool
	}{{time.Second, time.Second, true}, {time.Second, time.Second - 1, false}, {time.Second, time.Second + 1, true}, {0, 0, true}, {-1, 0, false}} {
		if _, err := (ClientConfig{Name: "a", ReconnectMin: c.min, ReconnectMax: c.max}).withDefaults(); (err == nil) != c.ok {
			t.Errorf("from %v to %v: %v", c.min, c.max, err)
		}
	}
}

// writeInFlight is a client with two paths, and a write in flight on one of them.
func writeInFlight(t *testing.T, cfg ClientConfig) (f *fakeClient, r *Req, on *ClientPath) {
	t.Helper()
	f = newFakeClient(t, cfg)
	for i := byte(1); i <= 2; i++ {
		f.connect(f.add(i), fourChunks, ours, 7)
	}
	f.take()
	r = f.submit(Write, make([]byte, 512))
	return f, r, one(t, f.take()).path.(*ClientPath)
}

// TestCancelOnAPathThatIsGivenUp: what was in flight there is not sent again. It ends when
// the links are closed, as its memory may be in use until then.
func TestCancelOnAPathThatIsGivenUp(t *testing.T) {
	f, r, lost := writeInFlight(t, ClientConfig{})
	if f.c.Cancel(f.now, r, syscall.ENODEV) {
		t.Fatal("cancelled in flight")
	}
	lost.Lost(f.now, 0, syscall.ECONNRESET)
	if !f.c.Cancel(f.now, r, syscall.ENODEV) || len(f.done) != 0 {
		t.Fatalf("on a path that is given up: %d are done", len(f.done))
	}
	f.c.Cancel(f.now, r, syscall.EIO) // the first counts
	lost.Gone(f.now)
	if one(t, f.done) != r || r.Err != syscall.ENODEV {
		t.Fatalf("afterwards: %v", r.Err)
	}
	for _, o := range f.take() { // the fence
		if o.op.Kind == transport.OpWriteImm {
			t.Error("it was sent again")
		}
	}
	if f.c.ghosts != 1 { // it may still happen
		t.Errorf("%d ghosts", f.c.ghosts)
	}
	if what := f.c.broken(); what != "" {
		t.Error(what)
	}
}

// TestRecallHoldsUpNobody: a write that is to come back from a path that was lost is not sent again, and comes
// back when it cannot happen any more; others are sent before that.
func TestRecallHoldsUpNobody(t *testing.T) {
	again := errors.New("again")
	f, r, lost := writeInFlight(t, ClientConfig{})
	if f.c.Recall(f.now, r, again) {
		t.Fatal("recalled in flight")
	}
	lost.Lost(f.now, 0, syscall.ECONNRESET)
	if !f.c.Recall(f.now, r, again) {
		t.Fatal("not recalled from a path that is given up")
	}
	lost.Gone(f.now)
	if !f.c.Recall(f.now, r, again) || len(f.done) != 0 || f.c.ghosts != 0 {
		t.Fatalf("%d are done, %d ghosts", len(f.done), f.c.ghosts)
	}
	f.take() // the fence
	other := f.submit(Write, make([]byte, 1024))
	if o := one(t, f.take()); o.op.Kind != transport.OpWriteImm {
		t.Errorf("another write was not sent: %+v", o)
	}
	f.c.epochs[0].fenced = true
	f.c.fence()
	if one(t, f.done) != r || r.Err != again || other.at != inFlight {
		t.Errorf("it came back with %v; the other is %v", r.Err, other.at)
	}
	if what := f.c.broken(); what != "" {
		t.Error(what)
	}
}

// TestAbandonedHasNoLimit: a write that nobody waits for, at a store that stands still, ends neither its path
// nor what others may send when its time has passed, on a path that is there or in an epoch.
func TestAbandonedHasNoLimit(t *testing.T) {
	for _, isLost := range []bool{false, true} {
		f, r, on := writeInFlight(t, ClientConfig{OnLoss: Error, IOTimeout: time.Second, LossTimeout: time.Second, HeartbeatEvery: time.Minute, ConnTimeout: 5 * time.Minute})
		r.Abandoned = true
		paths := 2
		if isLost {
			paths = 1
			on.Lost(f.now, 0, syscall.ECONNRESET)
			on.Gone(f.now)
			f.c.Recall(f.now, r, syscall.ENODEV)
		}
		f.tick(10 * time.Second)
		f.take()
		f.submit(Write, make([]byte, 1024))
		if o := f.take(); len(o) != 1 || o[0].op.Kind != transport.OpWriteImm || f.c.connected != paths || len(f.done) != 0 {
			t.Errorf("path lost %v: %d paths, %d done, %d sent", isLost, f.c.connected, len(f.done), len(o))
		}
		if what := f.c.broken(); what != "" {
			t.Error(what)
		}
	}
}
