package datagram

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/shm"
)

// onThread runs f in a turn of the worker, and returns when the turn is over.
func (s *seam) onThread(f func(w *Worker)) {
	s.t.Helper()
	w := s.a.workers[0]
	over := make(chan struct{})
	w.thread.Do(func() {
		f(w)
		w.Defer(func() { close(over) })
	})
	<-over
}

// lone sends as a ring does whose client has posted this one alone.
func (s *seam) lone(w *Worker, k *rds.Socket, payloads ...string) {
	s.t.Helper()
	_, now := s.h.Lock()
	s.h.OfferLone(w)
	for _, p := range payloads {
		if err := k.Send(now, netip.AddrPortFrom(seamHigher, 9), []byte(p), 0, rds.Quiet); err != nil {
			s.t.Error(err)
		}
	}
	s.h.Unlock()
}

// TestLoneLeavesWithItsTurn: the datagram is in a batch when its step ends, without an order, it is
// written at the end of the turn, and the turn of its lane is left to the next step.
func TestLoneLeavesWithItsTurn(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	s.onThread(func(w *Worker) {
		s.lone(w, k, "second")
		if len(w.kicked) != 1 || w.kicked[0].b == nil || w.kicked[0].b.Frames() != 1 || w.lone.Batch != nil {
			t.Errorf("the turn has %+v to end with", w.kicked)
		}
		if _, _, _, n := l.state(); n != 1 {
			t.Errorf("%d datagrams left before the end of the turn", n)
		}
	})
	if _, _, _, n := l.state(); n != 2 {
		t.Errorf("%d datagrams left with the turn", n)
	}
	if !s.over() {
		t.Error("the turn is not over")
	}
}

// TestLoneOfferEnds: an offer that nobody takes is over with its step, and its batch is for the
// next one.
func TestLoneOfferEnds(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	s.onThread(func(w *Worker) {
		s.lone(w, k)
		if w.lone.Batch == nil {
			t.Error("the batch is lost")
		}
		s.send(k, seamHigher, "second")
		if len(w.kicked) != 1 || w.kicked[0].b != nil {
			t.Errorf("the turn has %+v to end with", w.kicked)
		}
	})
	if _, _, _, n := l.state(); n != 2 {
		t.Errorf("%d datagrams left", n)
	}
}

// TestLoneTakesAlongWhatIsBehind: what the same step queues behind a lone datagram leaves with the
// same turn, because nobody orders another.
func TestLoneTakesAlongWhatIsBehind(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	s.onThread(func(w *Worker) { s.lone(w, k, "second", "third", "fourth") })
	if _, _, _, n := l.state(); n != 4 {
		t.Errorf("%d datagrams left", n)
	}
	if !s.over() {
		t.Error("the turn is not over")
	}
}

// TestLoneOfALinkThatIsLost: a batch goes to the link that it was filled for and to no later one;
// what was in it is sent again there.
func TestLoneOfALinkThatIsLost(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	s.onThread(func(w *Worker) {
		s.lone(w, k, "second")
		s.h.Lock()
		s.h.laneOf(s.h.e.Known(seamHigher).Conn().LaneAt(0)).links[0].dead = true
		s.h.Unlock()
		l.mu.Lock()
		l.sendErr = errFake
		l.mu.Unlock()
	})
	s.h.Lock()
	n := 0
	s.h.e.Known(seamHigher).Conn().LaneAt(0).Writing(func(*conn.Msg) { n++ })
	s.h.Unlock()
	if n != 0 {
		t.Errorf("%d messages are still being written", n)
	}
	l.end(errFake)
	again := s.dialled()
	if err := again.bring(t, hello(1)...); err != nil {
		t.Fatal(err)
	}
	s.until("it is sent again", func() bool { _, _, _, n := again.state(); return n == 2 })
}

// TestLoneWithoutALink: a link that nothing more may be written to gets no batch either.
func TestLoneWithoutALink(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	s.onThread(func(w *Worker) {
		s.h.Lock()
		s.h.laneOf(s.h.e.Known(seamHigher).Conn().LaneAt(0)).links[0].dead = true
		s.h.Unlock()
		s.lone(w, k, "second")
	})
	if _, _, _, n := l.state(); n != 1 {
		t.Errorf("%d datagrams left", n)
	}
	if !s.over() {
		t.Error("the turn is not over")
	}
}

// TestLoneIsInTheLedgerBeforeItLeaves: the next sequence of the lane is in the ledger when the link
// gets the batch, or a daemon that starts again would give the same one to another datagram.
func TestLoneIsInTheLedgerBeforeItLeaves(t *testing.T) {
	s := newSeam(t, nil)
	file := filepath.Join(t.TempDir(), "ledger")
	s.a.deps.Config.API.Ledger = file
	if err := s.a.openLedger(); err != nil {
		t.Fatal(err)
	}
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	l.mu.Lock()
	want := l.frames[len(l.frames)-1].Seq + 2
	l.mu.Unlock()
	seen := false
	s.onThread(func(w *Worker) {
		s.lone(w, k, "second")
		l.mu.Lock()
		l.during = func() {
			rep, err := shm.RecoverFile(file, func(*shm.RegionRecord) *shm.Region { return nil })
			if err != nil {
				t.Error(err)
				return
			}
			for _, r := range rep.Lanes {
				if r.Remote == seamHigher {
					seen = true
					if r.NextSeq != want {
						t.Errorf("the ledger has %d for the next sequence as number %d leaves", r.NextSeq, want-1)
					}
				}
			}
		}
		l.mu.Unlock()
	})
	if !seen {
		t.Error("the ledger has no such lane, or nothing left")
	}
}
