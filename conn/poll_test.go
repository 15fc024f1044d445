package conn

import (
	"strings"
	"testing"
	"time"
)

// TestPollsInVain: TCP is asked ever more rarely what a kernel has acknowledged while that is nothing
// new, never later by more than a few tenths of the time it took, and at once again when it was something.
func TestPollsInVain(t *testing.T) {
	w := newWorld(t, "10.0.0.1", "10.0.0.2", nil)
	for _, s := range []string{"send 5000>4000 10", "connected 0", "recv 0 map ; probe seq=1 npaths=1", "recv 0 answer seq=2 npaths=1"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	p := w.c.lanes[0]
	if w.c.kind != KindKernelLegacy || p.unacked.head == nil {
		t.Fatalf("%v, %d unacknowledged", w.c.kind, p.unacked.n)
	}
	// polls lets d pass, with the answer that acked bytes are acknowledged, and returns when polls were.
	polls := func(d time.Duration, acked uint64) (at []time.Duration) {
		w.take()
		for until := w.now + d; w.now < until; w.advance(time.Millisecond) {
			if n := strings.Count(w.take(), "poll lane 0"); n > 0 {
				at = append(at, w.now)
				p.Acked(w.now, p.attempt, acked)
			}
			w.check()
		}
		return at
	}
	half := w.txB[p] / 2
	p.Acked(w.now, p.attempt, half)
	begun := w.now
	at := polls(10*time.Second, half)
	if n := len(at); n >= 200 || n < 70 {
		t.Fatalf("%d polls in 10 s", n)
	}
	for i, last := 1, at[0]; i < len(at); i, last = i+1, at[i] {
		if gap, most := at[i]-last, max(6*time.Millisecond, min(130*time.Millisecond, (last-begun)/2)); gap > most {
			t.Errorf("no poll from %v to %v", last-begun, at[i]-begun)
		}
	}
	if at = polls(200*time.Millisecond, half+1); len(at) < 5 || at[2]-at[0] > 6*time.Millisecond {
		t.Errorf("polls at %v when the first told something new", at)
	}
	polls(200*time.Millisecond, w.txB[p])
	if n := len(polls(time.Second, w.txB[p])); n != 0 || p.unacked.head != nil {
		t.Errorf("%d polls when all is acknowledged", n)
	}
	w.step(strings.Fields("send 5000>4000 10"))
	w.settle()
	if n := len(polls(4*time.Millisecond, w.txB[p])); n != 1 {
		t.Errorf("%d polls in 4 ms for what was sent next", n)
	}
}

// TestPollsOfASilentLink: TCP is asked more and more rarely, too, while its answer is not believed, because
// nothing has come on the next link of a kernel.
func TestPollsOfASilentLink(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	w.steps("accept 40000", "recv 0 map ; probe seq=1 npaths=8 sportidx", "recv 0 answer seq=2 npaths=8 sportidx", "send 5000>4000 10", "lost 0", "accept 40000")
	p, polls := w.c.lanes[0], 0
	for until := w.now + 10*time.Second; w.now < until; w.advance(time.Millisecond) {
		if n := strings.Count(w.take(), "poll lane 0"); n > 0 {
			polls += n
			p.Acked(w.now, p.attempt, w.txB[p])
		}
	}
	if len(w.undone) != 1 || polls < 70 || polls > 200 {
		t.Errorf("%d polls in 10 s, %d datagrams without an outcome; want some 100, and 1", polls, len(w.undone))
	}
	w.step(strings.Fields("recv 0 map"))
	for range 200 {
		w.advance(time.Millisecond)
		if strings.Contains(w.take(), "poll lane 0") {
			p.Acked(w.now, p.attempt, w.txB[p])
		}
	}
	if len(w.undone) != 0 {
		t.Error("the kernel sends its map, and the datagram has no outcome")
	}
}
