package conn

import (
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// What waits to be told to an rdsd that is a kernel by then is dropped, and makes room:
// a kernel is never sent what only an rdsd understands.
func TestTellToWhatBecameAKernel(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("hold on")
	for w.c.Tell(wire.CtlAskPorts, nil) {
		w.settle()
	}
	if p.tells != maxTells {
		t.Fatalf("%d messages wait", p.tells)
	}
	w.steps("drop 0", "lost 0", "hold off", "wrote 0")
	if p.tells != maxTells {
		t.Fatalf("%d messages wait when the link is gone", p.tells)
	}
	w.steps("accept 40000", "recv 0 probe seq=1 npaths=1", "drop 0", "lost 0")
	w.step([]string{"accept", "40000"})
	w.steps("recv 0 map ; probe seq=1 npaths=1", "recv 0 answer seq=2 npaths=1")
	if w.c.kind != KindKernelLegacy || !w.c.lanes[0].ready {
		t.Fatalf("the peer is %v, ready %v", w.c.kind, w.c.lanes[0].ready)
	}
	if p := w.c.lanes[0]; p.tells != 0 || p.control.head != nil {
		t.Errorf("%d messages of Tell are counted", p.tells)
	}
	if w.c.Tell(wire.CtlAskPorts, nil) {
		t.Error("a kernel is told something")
	}
	w.check()
}

// A link begins unpaused, whatever the one before it waited for, and what it waits for is
// counted anew.
func TestNextLinkIsNotPaused(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	w.steps("accept 40000", "recv 0 map ; probe seq=1 npaths=1", "recv 0 answer seq=2 npaths=1", "port 5000 no-room")
	p := w.c.lanes[0]
	if err := w.recvOne(p, "data 4000>5000 seq=3 len=1"); err != ErrPause || !p.Paused() {
		t.Fatalf("without room: %v, paused %v", err, p.Paused())
	}
	w.steps("lost 0", "accept 40000")
	if p.Paused() || p.Info().Paused {
		t.Error("the next link is paused")
	}
	before := w.ctr.ReadPaused
	if err := w.recvOne(p, "data 4000>5000 seq=3 len=1 flags=retrans"); err != ErrPause || w.ctr.ReadPaused != before+1 {
		t.Errorf("without room again: %v, %d pauses counted", err, w.ctr.ReadPaused-before)
	}
}
