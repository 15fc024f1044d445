package conn

import (
	"fmt"
	"strings"
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

// A kernel with one lane is not heard of on a link of another lane for ever: it pings on its
// first links alone, so nothing else would bring the newest one to lane 0, and it makes no
// other while it has that.
func TestKernelsNewestLinkIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		accept  []string // source ports
		kind    []string // how the kernel is known
		newest  int      // the lane of its newest link
		refused []string // lost before that begins
	}{
		"on a lane of its own":         {[]string{"40004", "40005"}, []string{"recv 4 map ; probe seq=1 npaths=1"}, 5, nil},
		"waiting for the one before":   {[]string{"40004", "40005", "40005"}, []string{"recv 4 map ; probe seq=1 npaths=1"}, 5, []string{"lost 0", "lost 5"}},
		"waiting for one of its own":   {[]string{"40005", "40005"}, []string{"recv 5 map ; probe seq=1 npaths=1"}, 0, []string{"lost 0"}},
		"the only one, and not lane 0": {[]string{"40005"}, []string{"recv 5 map ; probe seq=1 npaths=1"}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
			for _, port := range c.accept {
				w.steps("accept " + port)
			}
			w.steps(c.kind...)
			if w.c.kind != KindKernelLegacy {
				t.Fatalf("the peer is %v", w.c.kind)
			}
			w.steps(c.refused...)
			p := w.c.lanes[c.newest]
			if c.newest == 0 {
				if p.state != Up {
					t.Fatalf("the link of lane 0 is %v", p.state)
				}
				return
			}
			if p.state != Disconnecting || p.lastErr != errWrongLane {
				t.Fatalf("the link of lane %d is %v, %v", c.newest, p.state, p.lastErr)
			}
			w.steps("lost 0", "lost 5", "accept 40006")
			if p := w.c.lanes[0]; p.state != Up {
				t.Errorf("after it the kernel's link of lane 0 is %v", p.state)
			}
			w.check()
		})
	}
}

// What was sent on a link that is lost while a batch is being written is not acknowledged by what TCP
// says of the links behind it, whichever offsets it had: it is sent again.
func TestAcksOfTheNextLinkWhileABatchIsWritten(t *testing.T) {
	for _, off := range []uint64{0, 1 << 30, 2<<30 - 100, 3 << 30, 4<<30 - 100, 7 << 30} {
		w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
		w.steps("accept 40000", "recv 0 map ; probe seq=1 npaths=1", "recv 0 answer seq=2 npaths=1", "acked 0 all")
		p := w.c.lanes[0]
		p.txOff += off // the link has carried so much
		p.msgOff, p.txAcked = p.txOff, p.txOff
		w.steps("send 5000>4000 10", "hold on", "send 5000>4001 20", fmt.Sprintf("lost 0 acked=%d", p.txAcked),
			"accept 40000", "recv 0 map", "acked 0 0", "lost 0", "accept 40000", "recv 0 map", "acked 0 0", "wait 1s", "acked 0 0")
		if len(w.undone) != 2 {
			t.Errorf("behind %d bytes: %d datagrams without an outcome, want 2", off, len(w.undone))
		}
		w.hold = false
		w.step([]string{"wrote", "0"})
		if w.settle(); strings.Count(w.take(), "flags=retrans") != 2 {
			t.Errorf("behind %d bytes: not both are sent again", off)
		}
		if w.steps("acked 0 all"); len(w.undone) != 0 {
			t.Errorf("behind %d bytes: %d datagrams without an outcome in the end", off, len(w.undone))
		}
	}
}

// What TCP has acknowledged of a one-lane kernel's link on which nothing came is not called delivered
// because it is looked at late: the kernel may have closed the link unread.
func TestAcksOfALinkThatWasLookedAtLate(t *testing.T) {
	for name, c := range map[string]struct {
		late      []string
		delivered bool
	}{
		"lost":                           {[]string{"asleep 4s", "lost 0 acked=all"}, false},
		"lost, and closed by us before":  {[]string{"drop 0", "asleep 4s", "lost 0 acked=all"}, false},
		"lost behind its map":            {[]string{"recv 0 map", "asleep 4s", "lost 0 acked=all"}, true},
		"asked at once":                  {[]string{"asleep 4s", "wait 1ms", "acked 0 all"}, false},
		"asked at once, lost then":       {[]string{"asleep 4s", "wait 1ms", "acked 0 all", "wait 500ms", "acked 0 all", "lost 0 acked=all"}, false},
		"asked when it has had its time": {[]string{"asleep 4s", "wait 1ms", "wait 1s", "acked 0 all"}, true},
		"asked without having slept":     {[]string{"wait 3s", "acked 0 all"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
			w.steps("accept 40000", "recv 0 map ; probe seq=1 npaths=1", "recv 0 answer seq=2 npaths=1", "acked 0 all",
				"lost 0", "accept 40000", "send 5000>4000 10")
			if w.c.kind != KindKernelLegacy || w.c.lanes[0].unacked.n == 0 {
				t.Fatalf("the peer is %v, %d messages are unacknowledged", w.c.kind, w.c.lanes[0].unacked.n)
			}
			w.steps(c.late...)
			if delivered := len(w.undone) == 0; delivered != c.delivered {
				t.Errorf("delivered: %v, want %v", delivered, c.delivered)
			}
		})
	}
}
