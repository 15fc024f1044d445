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
		looks, at := 0, s.lookAt
		const calls = 1000
		begun := now
		for range calls {
			wait(others, now+1)
			now += 100 * time.Microsecond
			e.Tick(now)
			e.holds(t)
			if s.lookAt != at {
				looks, at = looks+1, s.lookAt
			}
		}
		want := calls
		if others > tellFew {
			want = int((now-begun)/(time.Duration(2*others)*tellTime)) + 1
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

// TestDeadlinesBehindMany: what waits costs when deadlines are looked for, whether it has one or not, and
// for however few destinations: the looks take the same small part of the time.
func TestDeadlinesBehindMany(t *testing.T) {
	const most, calls = 60000, 1000
	for _, ports := range []int{1, most} {
		e, now := lone(t, nil)
		s := bind(t, e, 4000, SocketOptions{})
		pe, _ := e.Peer(nobody(0).Addr())
		wait := func(i int, deadline time.Duration) {
			if queued, err := s.SendWait(now, nobody(i%ports), nil, uint64(i), Quiet, deadline, nil); !queued || err != nil {
				t.Fatal(queued, err)
			}
		}
		for i := range ports {
			pe.CongestionDelta(now, wire.PortState{Port: nobody(i).Port(), Congested: true})
		}
		for i := range most {
			wait(i, 0)
		}
		begun := now
		for i := range calls {
			wait(i, now+1)
			now += 100 * time.Microsecond
			e.Tick(now)
		}
		// The first look comes at once, and each costs the pause behind it.
		steps := int((now-begun)/tellTime) + 2*(most+ports)
		if e.looked > steps {
			t.Errorf("%d datagrams to %d ports: %d were looked at in %v, want %d at most", most, ports, e.looked, now-begun, steps)
		}
		now = ticks(e, now, time.Second)
		if d := s.SendsDone(nil); len(d) != calls || s.waiting != most {
			t.Errorf("%d ports: %d have ended, %d wait", ports, len(d), s.waiting)
		}
		e.holds(t)
	}
}

// TestDeadlinesOfAll: when all that waits ends, however much it is, no other deadline is late for that.
func TestDeadlinesOfAll(t *testing.T) {
	e, now := lone(t, nil)
	s := bind(t, e, 4000, SocketOptions{})
	pe, _ := e.Peer(nobody(0).Addr())
	pe.CongestionDelta(now, wire.PortState{Port: nobody(0).Port(), Congested: true})
	for _, n := range []int{10000, 1, 1} {
		for i := range n {
			if queued, err := s.SendWait(now, nobody(0), nil, uint64(i), Quiet, now+1, nil); !queued || err != nil {
				t.Fatal(queued, err)
			}
		}
		now++
		e.Tick(now)
		if d := s.SendsDone(nil); len(d) != n || e.looked != 0 {
			t.Errorf("%d of %d have ended, and %d were looked at in vain", len(d), n, e.looked)
		}
	}
}
