package datagram

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// rdsd makes a link to an rdsd, up and known, on which one datagram of k has left. The
// turn that wrote it is over.
func (s *seam) rdsd(k *rds.Socket) *fakeLink {
	s.t.Helper()
	s.send(k, seamHigher, "first")
	l := s.dialled()
	if err := l.bring(s.t, hello(1)...); err != nil {
		s.t.Fatal(err)
	}
	s.until("the first datagram leaves", func() bool { _, _, _, n := l.state(); return n == 1 })
	s.until("its turn is over", s.over)
	return l
}

// over reports whether the turn of lane 0 is left to the next step, or was ended by one: a
// timer's may begin while the batch is written.
func (s *seam) over() bool {
	if s.h.written.Load() != nil {
		return true
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	n := 0
	s.h.e.Known(seamHigher).Conn().LaneAt(0).Writing(func(*conn.Msg) { n++ })
	return n == 0
}

// TestTurnLeftToTheNextStep: a turn with nothing behind it ends without the lock, and the
// next step, here the one that reads the acknowledgement, finds it ended.
func TestTurnLeftToTheNextStep(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	l.mu.Lock()
	ack := wire.Header{Ack: l.frames[len(l.frames)-1].Seq}
	l.mu.Unlock()
	if err := l.bring(t, &transport.Frame{Raw: ack.Append(nil)}); err != nil {
		t.Fatal(err)
	}
	if p := s.h.written.Load(); p != nil {
		t.Errorf("%v is still left after a step", p)
	}
	if n := s.undecided(k); n != 0 {
		t.Errorf("%d undecided after the acknowledgement", n)
	}
}

// TestTurnEndsForWhoQueuedBehindIt: what is queued while a batch is written leaves with the
// same turn, because nobody else orders one.
func TestTurnEndsForWhoQueuedBehindIt(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	l.mu.Lock()
	l.during = func() { s.send(k, seamHigher, "third") }
	l.mu.Unlock()
	s.send(k, seamHigher, "second")
	s.until("both leave", func() bool { _, _, _, n := l.state(); return n == 3 })
	s.until("the turn is over", s.over)
}

// TestTurnThatFailsBehindItsLink: a write may fail when its link has ended already and the lane
// has the next, which could order no turn meanwhile: the one that failed goes on there.
func TestTurnThatFailsBehindItsLink(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	s.until("the turn is over", s.over)
	p := s.lane(seamHigher)
	s.h.Lock()
	s.h.laneOf(p).lastTurn = -time.Hour // not busy: this thread writes
	s.h.Unlock()
	var next *fakeLink
	l.mu.Lock()
	l.acked = l.bytes
	l.during = func() {
		l.mu.Lock()
		l.sendErr = errFake
		l.mu.Unlock()
		l.end(errFake)
		next = s.dialled()
		s.until("the lane has the next link", func() bool { return s.info(seamHigher).State == conn.Up })
	}
	l.mu.Unlock()
	s.send(k, seamHigher, "second")
	if next == nil {
		t.Fatal("it was not written by this thread")
	}
	s.until("it is sent on the next link", func() bool { _, _, _, n := next.state(); return n == 1 })
}

// TestTurnOfAKernelEndsAtOnce: its TCP has to be asked what it acknowledged, which the end of
// the turn orders.
func TestTurnOfAKernelEndsAtOnce(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	s.kernel(k)
	if p := s.h.written.Load(); p != nil {
		t.Errorf("%v is left", p)
	}
}

// TestLeaveWritten: who leaves a turn takes it back when a step has begun, unless that step
// has taken it.
func TestLeaveWritten(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	s.rdsd(k)
	p := s.lane(seamHigher)
	step := s.h.steps.Load()
	if s.h.leaveWritten(p, step-1) || s.h.written.Load() != nil {
		t.Error("a turn was left although a step had begun")
	}
	if !s.h.leaveWritten(p, step) || s.h.written.Load() != p {
		t.Error("a turn was not left although no step had begun")
	}
	if s.h.leaveWritten(p, step) {
		t.Error("a second turn was left beside another")
	}
	s.h.written.Store(nil) // no batch was filled
}
