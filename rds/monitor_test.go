package rds

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// turn makes a port of dst's node congested or clear, as a peer would tell it.
func turn(t testing.TB, w *pair, dst netip.AddrPort, on bool) {
	t.Helper()
	pe, err := w.a.Peer(dst.Addr())
	if err != nil {
		t.Fatal(err)
	}
	pe.CongestionDelta(w.now, wire.PortState{Port: dst.Port(), Congested: on})
}

func wantNews(t testing.TB, what string, s *Socket, freed uint64, changes ...Change) {
	t.Helper()
	if f, c := s.CongestionNews(); f != freed || !slices.Equal(c, changes) {
		t.Errorf("%s: freed %#x, changes %v, want %#x, %v", what, f, c, freed, changes)
	}
}

// A client with a Sink refuses its own sends to a destination that its flow
// table shows as congested. The engine never learns of such a refusal, so the
// destination must concern the socket from the moment it is open, in whatever
// order the opening, the watching and the congestion come.
func TestOpenDestinationsConcernTheirWatcher(t *testing.T) {
	w := newPair(t)
	watch := Monitor{Clear: true, Set: true}
	port := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(w.b.local, p) }

	first, later, before, closed := port(4000), port(4001), port(4002), port(4003)
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	mustOpen(t, a.s, before, nil)
	turn(t, w, before, true)
	turn(t, w, first, true)
	a.s.SetMonitor(watch)
	wantNews(t, "open before the watch", a.s, 0, Change{before, true})

	mustOpen(t, a.s, first, nil)
	wantNews(t, "opened while congested: its state says so", a.s, 0)
	turn(t, w, first, false)
	wantNews(t, "opened while congested, nothing ever posted", a.s, 0, Change{first, false})

	mustOpen(t, a.s, later, nil)
	turn(t, w, later, true)
	turn(t, w, later, false)
	wantNews(t, "congested after it was opened", a.s, 0, Change{later, true}, Change{later, false})

	turn(t, w, before, false)
	wantNews(t, "open before the watch, clear now", a.s, 0, Change{before, false})

	d := mustOpen(t, a.s, closed, nil)
	d.Close()
	turn(t, w, closed, true)
	turn(t, w, closed, false)
	wantNews(t, "no longer open", a.s, 0)
	turn(t, w, port(4004), true)
	wantNews(t, "never opened", a.s, 0)
}

// News that find no room any more are not lost: the watcher is told to look at
// every destination.
func TestCongestionNewsBeyondTheirLimit(t *testing.T) {
	w := newPair(t)
	s, err := w.a.Bind(5000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetMonitor(Monitor{Clear: true, Set: true})
	for p := range uint16(maxRefused + 1) {
		dst := netip.AddrPortFrom(w.b.local, 10000+p)
		turn(t, w, dst, true)
		if on, err := s.Congested(dst); !on || err != nil {
			t.Fatal(on, err)
		}
	}
	turn(t, w, netip.AddrPortFrom(w.b.local, 10000+maxRefused), false)
	wantNews(t, "a destination that was not remembered", s, math.MaxUint64)
	for p := range uint16(maxRefused) {
		turn(t, w, netip.AddrPortFrom(w.b.local, 10000+p), false)
	}
	if freed, changes := s.CongestionNews(); freed != 0 || len(changes) != maxRefused {
		t.Fatalf("freed %#x and %d changes, want as many changes as there is room for", freed, len(changes))
	}
	for p := range uint16(maxRefused) {
		turn(t, w, netip.AddrPortFrom(w.b.local, 10000+p), true)
	}
	turn(t, w, netip.AddrPortFrom(w.b.local, 10000), false)
	if freed, changes := s.CongestionNews(); freed != math.MaxUint64 || len(changes) != maxRefused {
		t.Errorf("freed %#x and %d changes, want all groups: one change found no room", freed, len(changes))
	}
}

// TestOnePortChangesOften: news of a port that becomes congested and clear without an end take no more memory
// than is charged when nobody fetches them; then the client is told to look at all destinations.
func TestOnePortChangesOften(t *testing.T) {
	w := newPair(t)
	s := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}).s
	dst := netip.AddrPortFrom(w.b.local, 4000)
	mustOpen(t, s, dst, nil)
	s.SetMonitor(Monitor{Clear: true, Set: true})
	for i := range 2 * maxRefused {
		turn(t, w, dst, i%2 == 0)
	}
	if freed, changes := s.CongestionNews(); freed != math.MaxUint64 || len(changes) > freeChanges+1 {
		t.Errorf("%d changes are kept of one port, freed %#x", len(changes), freed)
	}
	turn(t, w, dst, true)
	wantNews(t, "fetched", s, 0, Change{dst, true})
}

// TestCaughtUpInOrder: destinations that were congested before the watch are told in the
// order of their addresses, whatever order they were opened in.
func TestCaughtUpInOrder(t *testing.T) {
	w := newPair(t)
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	var want []Change
	for _, p := range []uint16{4012, 4003, 4009, 4001, 4010, 4005, 4002, 4011, 4004, 4008, 4006, 4007} {
		dst := netip.AddrPortFrom(w.b.local, p)
		mustOpen(t, a.s, dst, nil)
		turn(t, w, dst, true)
		want = append(want, Change{dst, true})
	}
	slices.SortFunc(want, func(x, y Change) int { return x.Endpoint.Compare(y.Endpoint) })
	a.s.SetMonitor(Monitor{Clear: true, Set: true})
	wantNews(t, "congested before", a.s, 0, want...)
}

// A socket is one that waits for a port, whether a send of it waits in the engine, a call
// in its client, or both.
func TestASocketWaitsOnce(t *testing.T) {
	w := newPair(t)
	to := netip.AddrPortFrom(w.b.local, 4000)
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	d := mustOpen(t, a.s, to, nil)
	turn(t, w, to, true)
	wantWaiting := func(what string, n int) {
		t.Helper()
		if l := w.a.CongestedPorts(); len(l) != 1 || l[0].Waiting != n {
			t.Errorf("%s: %+v; want %d waiting", what, l, n)
		}
	}
	wantWaiting("nothing was sent", 0)
	a.calls = 2
	wantWaiting("two calls of the client wait", 1)
	if err := a.s.Post(w.now, d, wire.One([]byte("x")), 0, 0, Quiet, nil); err != nil {
		t.Fatal(err)
	}
	wantWaiting("and a send that it posted", 1)
	a.calls = 0
	wantWaiting("that send alone", 1)
}
