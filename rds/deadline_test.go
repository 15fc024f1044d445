package rds

import (
	"errors"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// TestDeadlinesOfMany: to look for sends whose deadline has passed costs for each destination that
// something waits for, and is done the more seldom the more they are; those that nothing waits for
// do not count.
func TestDeadlinesOfMany(t *testing.T) {
	for _, others := range []int{tellFew - 1, 1000} {
		e, now := lone(t, nil)
		s := bind(t, e, 4000, SocketOptions{})
		for i := range 2000 { // nothing waits there
			if err := s.Send(now, nobody(30000+i), nil, 0, Quiet); err != nil {
				t.Fatal(err)
			}
		}
		pe, _ := e.Peer(nobody(0).Addr())
		wait := func(i int, deadline time.Duration) {
			if queued, err := s.SendWait(now, nobody(i), nil, uint64(i), Quiet, deadline, nil); !queued || err != nil {
				t.Fatal(queued, err)
			}
		}
		for i := range others + 1 {
			pe.CongestionDelta(now, wire.PortState{Port: nobody(i).Port(), Congested: true})
			if i < others {
				wait(i, 0)
			}
		}
		looks, at := 0, s.endedAt
		const calls = 1000
		begun := now
		for range calls {
			wait(others, now+1)
			now += 100 * time.Microsecond
			e.Tick(now)
			e.holds(t)
			if s.endedAt != at {
				looks, at = looks+1, s.endedAt
			}
		}
		want := calls
		if others > tellFew {
			want = int((now-begun)/(time.Duration(others+1)*tellTime)) + 1
		}
		if looks > want || looks < want/2 {
			t.Errorf("%d others wait: in %v it was looked %d times, want %d", others, now-begun, looks, want)
		}
		now += tellEvery
		e.Tick(now)
		d := s.SendsDone(nil)
		if len(d) != calls || s.waiting != others {
			t.Errorf("%d others wait: %d of %d have ended", s.waiting, len(d), calls)
		}
		for _, d := range d {
			if !errors.Is(d.Err, rdserr.ErrTimeout) {
				t.Fatal(d.Err)
			}
		}
		if n := s.holding.n; n != others {
			t.Errorf("%d destinations are said to be waited for, want %d", n, others)
		}
	}
}
