package rds

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

const (
	spentLimit = 8 << 20   // of the memory of spent
	littleFree = 300 << 10 // what others give back of it: enough for 100 bytes, and not for 1 MiB
)

// spent is a socket at a node whose memory others hold.
func spent(t *testing.T) (b *Budget, s *Socket, now time.Duration) {
	b = &Budget{Limit: spentLimit}
	e, now := lone(t, func(c *Config) { c.Budget = b })
	b.held.Store(spentLimit)
	return b, bind(t, e, 4000, SocketOptions{}), now
}

// waitsFor has a send of so many bytes wait.
func waitsFor(t *testing.T, s *Socket, now time.Duration, to, bytes int, deadline time.Duration) {
	t.Helper()
	if queued, err := s.SendWait(now, nobody(to), make([]byte, bytes), uint64(to), Quiet, deadline, nil); !queued || err != nil {
		t.Fatal(queued, err)
	}
}

// TestLargeRefusalHoldsUpNoSmallSend: a send that waits goes on when memory for it is free, although another
// of its socket was refused that wanted more; that one is told when there is room for it.
func TestLargeRefusalHoldsUpNoSmallSend(t *testing.T) {
	b, s, now := spent(t)
	e := s.e
	waitsFor(t, s, now, 1, 100, 0)
	large := func(want error) {
		t.Helper()
		if err := s.Send(now, nobody(2), make([]byte, 1<<20), 2, Quiet); !errors.Is(err, want) {
			t.Fatalf("1 MiB: %v, want %v", err, want)
		}
	}
	large(rdserr.ErrNoMemory)
	e.End()
	b.held.Add(-littleFree)
	now = ticks(e, now, time.Second)
	if done := s.SendsDone(nil); len(done) != 1 || done[0].Tag != 1 || done[0].Err != nil {
		t.Fatalf("with room for 100 bytes for a second those that wait ended as %v", done)
	}
	s.Events()
	large(rdserr.ErrNoMemory)
	now = ticks(e, now, time.Second)
	if ev := s.Events(); ev&EvWritable != 0 || len(e.sendWaiters) != 1 {
		t.Fatalf("events %d without room for 1 MiB, and %d wait", ev, len(e.sendWaiters))
	}
	b.held.Store(0)
	now = ticks(e, now, soon)
	if s.Events()&EvWritable == 0 {
		t.Error("nobody is told that there is room for 1 MiB")
	}
	large(nil)
	e.holds(t)
}

// TestLargeRefusalHoldsUpNoSmallArrival: the same for what arrives at one port, in whichever order.
func TestLargeRefusalHoldsUpNoSmallArrival(t *testing.T) {
	for _, sizes := range [][]int{{100, 1 << 20}, {1 << 20, 100}} {
		b, s, now := spent(t)
		for _, n := range sizes {
			if v := s.place(s.e.loop, conn.Arrival{Train: wire.One(make([]byte, n))}); v != conn.NoRoom || !s.congested {
				t.Fatalf("%d bytes without memory: %v", n, v)
			}
		}
		s.e.End()
		b.held.Add(-littleFree)
		ticks(s.e, now, time.Second)
		if s.congested || s.recvWaitAt > 0 {
			t.Errorf("%v were refused, and with room for 100 bytes the port is congested, for %d", sizes, s.recvNeeds)
		}
		s.e.holds(t)
	}
}

// TestNextInLineGoesWhenTheFirstEnds: what stands behind a send that there is no room for is tried as soon as that one
// ends, whether its deadline passes or it is cancelled, and whether or not both go to one port.
func TestNextInLineGoesWhenTheFirstEnds(t *testing.T) {
	for _, c := range []struct {
		next   int // where the second goes
		cancel bool
		want   error
	}{{2, false, rdserr.ErrTimeout}, {1, false, rdserr.ErrTimeout}, {2, true, rdserr.ErrCanceled}} {
		t.Run(fmt.Sprint(c.next, c.cancel), func(t *testing.T) {
			b, s, now := spent(t)
			e, deadline := s.e, now+time.Second
			waitsFor(t, s, now, 1, 1<<20, deadline)
			waitsFor(t, s, now, c.next, 100, 0)
			e.End()
			b.held.Add(-littleFree)
			now = ticks(e, now, time.Second-1)
			if done := s.SendsDone(nil); len(done) != 0 {
				t.Fatalf("without room for the first %v", done)
			}
			if c.cancel {
				if _, _, err := s.Cancel(now, nobody(1)); err != nil {
					t.Fatal(err)
				}
			} else {
				e.Tick(deadline)
				e.End()
			}
			done := s.SendsDone(nil)
			if len(done) != 2 || !errors.Is(done[0].Err, c.want) || done[1].Err != nil || s.waiting != 0 {
				t.Errorf("the first has ended, and of two there are %v", done)
			}
			e.holds(t)
		})
	}
}

// TestLaterInLineChangesNothing: when another than the first in line ends nobody is tried, and refused, again.
func TestLaterInLineChangesNothing(t *testing.T) {
	for _, to := range []int{1, 2} {
		b, s, now := spent(t)
		waitsFor(t, s, now, 1, 1<<20, 0)
		waitsFor(t, s, now, to, 100, now+1)
		s.e.End()
		refused := b.Refused()
		s.e.Tick(now + 1)
		s.e.End()
		if done := s.SendsDone(nil); len(done) != 1 || b.Refused() != refused || s.waiting != 1 {
			t.Errorf("to %d: %v, and %d times more there was no memory", to, done, b.Refused()-refused)
		}
		s.e.holds(t)
	}
}
