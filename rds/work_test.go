package rds

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// Work under the lock is bounded by what its asker owns. These tests count who is
// visited, or compare times that differ by a factor of thousands when it is not.

func lone(t testing.TB, tune func(*Config)) (*Engine, time.Duration) {
	cfg := DefaultConfig()
	if tune != nil {
		tune(&cfg)
	}
	return NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1))), time.Second
}

func ticks(e *Engine, now time.Duration, d time.Duration) time.Duration {
	for end := now + d; ; {
		at, ok := e.Next()
		if !ok || at > end {
			return end
		}
		now = max(now, at)
		e.Tick(now)
		e.End()
	}
}

// To cancel, to close, and to bind and close again cost the same whether or not
// others have hundreds of thousands of datagrams queued to the same peer.
func TestCancelAndCloseCostTheirOwn(t *testing.T) {
	const rounds = 300
	cost := func(queued int) time.Duration {
		e, now := lone(t, func(c *Config) { c.MaxUndecided, c.MaxBufBytes = 1<<20, 1<<30 })
		dst := netip.MustParseAddrPort("10.0.0.2:4000")
		other, err := e.Bind(5000, SocketOptions{SndBufBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		for i := range queued {
			if err := other.Send(now, dst, []byte{1}, uint64(i), Quiet); err != nil {
				t.Fatal(err)
			}
		}
		pe := e.known(dst.Addr())
		pe.c.Cancel(now, &other.flow(pe, netip.AddrPortFrom(dst.Addr(), 1234)).out, 0) // nothing of this one
		took := make([]time.Duration, rounds)
		for i := range rounds {
			begun := time.Now()
			s, err := e.Bind(5001, SocketOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := s.Send(now, dst, []byte{2}, uint64(i), Quiet); err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					if n, _, _ := s.Cancel(now, dst); n != 1 {
						t.Fatalf("%d cancelled of 1", n)
					}
				}
			}
			s.Close(now)
			took[i] = time.Since(begun)
		}
		slices.Sort(took) // the middle one: the machine may pause in any, and the collector be at work
		if u := other.Info().Undecided; u != queued || pe.c.Queued().Queued != queued {
			t.Fatalf("%d and %d queued, want %d", u, pe.c.Queued().Queued, queued)
		}
		other.Close(now)
		if u := e.memory(); u != 0 || pe.c.Queued().Queued != 0 {
			t.Fatalf("%d bytes and %d datagrams are left", u, pe.c.Queued().Queued)
		}
		return took[rounds/2]
	}
	cost(10)
	few, many := cost(10), cost(300_000)
	if many > 100*few {
		t.Errorf("a round of send, cancel and close takes %v beside 10 queued datagrams and %v beside 300,000", few, many)
	}
}

// openMany opens a destination on each of n ports from port on, by sockets of 1,000 each.
func openMany(t testing.TB, e *Engine, now time.Duration, n int, port func(i int) uint16) (boxes []*box) {
	for i := range n {
		if i%1000 == 0 {
			boxes = append(boxes, bindBox(t, e, 0, 1<<20, SocketOptions{}))
		}
		mustOpen(t, boxes[len(boxes)-1].s, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port(i)), i)
	}
	return boxes
}

func mapOf(on func(p int) bool) []byte {
	var m cong.Map
	for p := range cong.Ports {
		if on(p) {
			m.Set(uint16(p), true)
		}
	}
	return m.AppendTo(nil)
}

// Whole maps that flip cost nothing but themselves where nobody is concerned, and
// those concerned are told at most every tellEvery, how the ports stand then.
func TestFlippingMaps(t *testing.T) {
	const concerned = 5000
	e, now := lone(t, nil)
	full, none, odd := mapOf(func(int) bool { return true }), make([]byte, cong.Bytes), mapOf(func(p int) bool { return p&1 == 1 })
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	flip := func(n int, last []byte) {
		for i := range n {
			m := full
			if i%2 == 1 {
				m = none
			}
			now += 100 * time.Microsecond
			pe.CongestionMap(now, m)
			e.runDeferred(now)
		}
		pe.CongestionMap(now, last)
		e.runDeferred(now)
	}
	flip(1000, none)
	if e.told != 0 || len(pe.ports) != 0 || len(e.cnotes) != 0 || len(e.cleared) != 0 {
		t.Errorf("nobody is concerned: %d told, %d ports kept, %d notices", e.told, len(pe.ports), len(e.cnotes))
	}
	boxes := openMany(t, e, now, concerned, func(i int) uint16 { return uint16(10000 + i) })
	s, _ := e.Bind(6000, SocketOptions{})
	waits := netip.AddrPortFrom(pe.Addr(), 10010)
	pe.CongestionMap(now, full)
	if queued, err := s.SendWait(now, waits, nil, 1, Quiet, 0, nil); !queued || err != nil {
		t.Fatal(queued, err)
	}
	before := e.told
	begun := now
	flip(1000, odd) // 100 ms
	if most := concerned * (2 + int((now-begun)/tellEvery)); e.told-before > most {
		t.Errorf("%d were told in %v, want at most %d", e.told-before, now-begun, most)
	}
	ticks(e, now, tellEvery)
	for _, b := range boxes {
		state := map[any]bool{}
		for _, c := range b.changes {
			var i int
			var on, is bool
			fmt.Sscan(c, &i, &on, &is)
			state[i] = on
		}
		for i, on := range state {
			if want := pe.Congested(uint16(10000 + i.(int))); on != want {
				t.Fatalf("port %d was last told congested %v, it is %v", 10000+i.(int), on, want)
			}
		}
		if len(state) == 0 {
			t.Fatal("nobody was told anything")
		}
	}
	if d := s.SendsDone(nil); len(d) != 1 || d[0].Err != nil {
		t.Errorf("port %d is clear, and who waits for it was not woken: %v", waits.Port(), d)
	}
}

// A port that flips is told to those concerned no more often than one of them in tellTime, and
// last how it stands, soon after; few are told at once.
func TestFlippingPort(t *testing.T) {
	for _, concerned := range []int{tellFew - 1, 1000} {
		e, now := lone(t, nil)
		pe, _ := e.Peer(netip.MustParseAddr("10.0.0.2"))
		var boxes []*box
		for i := range concerned {
			b := bindBox(t, e, 0, 1<<20, SocketOptions{})
			mustOpen(t, b.s, netip.MustParseAddrPort("10.0.0.2:4000"), i)
			boxes = append(boxes, b)
		}
		s, _ := e.Bind(6000, SocketOptions{})
		const flips = 1001
		for i := range flips {
			now += 100 * time.Microsecond
			pe.CongestionDelta(now, wire.PortState{Port: 4000, Congested: i%2 == 0})
			e.runDeferred(now)
		}
		most := 2*concerned + int(100*time.Millisecond/tellTime)
		if concerned < tellFew {
			most = concerned * flips
		}
		if e.told > most {
			t.Errorf("%d concerned: %d were told, want at most %d", concerned, e.told, most)
		}
		// Whoever comes to wait meanwhile is woken.
		if queued, err := s.SendWait(now, netip.MustParseAddrPort("10.0.0.2:4000"), nil, 1, Quiet, 0, nil); !queued || err != nil {
			t.Fatal(queued, err)
		}
		now += 100 * time.Microsecond
		pe.CongestionDelta(now, wire.PortState{Port: 4000, Congested: false})
		e.runDeferred(now)
		ticks(e, now, time.Duration(concerned+1)*tellTime)
		for i, b := range boxes {
			if c := b.changes; len(c) == 0 || c[len(c)-1] != fmt.Sprint(i, " false false") {
				t.Fatalf("%d concerned: the last change told was %q", concerned, c)
			}
		}
		if d := s.SendsDone(nil); len(d) != 1 {
			t.Errorf("%d concerned: who waits for the port was not woken", concerned)
		}
	}
}

// A port of ours that flips is told to many peers by pages, and not each time; the
// last change reaches all of them.
func TestFlippingPortOfOurs(t *testing.T) {
	const peers = 2000
	e, now := lone(t, nil)
	for i := range peers {
		if _, err := e.Peer(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		now += 20 * time.Microsecond
		before := e.walked
		e.setCongested(now, 4000, i%2 == 0)
		e.Tick(now)
		if n := e.walked - before; n > 2*peersAtOnce {
			t.Fatalf("%d peers were told in one step", n)
		}
	}
	if most := peers * (2 + int(20*time.Millisecond/(peers*peerTime))); e.walked > most {
		t.Errorf("%d peers were told of 1,000 changes in 20 ms, want at most %d", e.walked, most)
	}
	now += time.Second
	e.Tick(now)
	ticks(e, now, time.Second)
	before := e.walked
	e.setCongested(now, 4001, true)
	ticks(e, now, time.Second)
	if e.walked-before != peers {
		t.Errorf("%d peers of %d were told of a change", e.walked-before, peers)
	}
}

// A change while the peers are being told of another is told to all of them again, once;
// one that comes before they are begun to be told goes along.
func TestChangesBesideAWalk(t *testing.T) {
	const peers = peersAtOnce + 44
	e, now := lone(t, nil)
	for i := range peers {
		if _, err := e.Peer(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})); err != nil {
			t.Fatal(err)
		}
	}
	walked := func(what string, want int) {
		t.Helper()
		if e.walked != want {
			t.Errorf("%s: %d peers were told, want %d", what, e.walked, want)
		}
	}
	e.setCongested(now, 4000, true)
	walked("the first page", peersAtOnce)
	e.setCongested(now, 4001, true)
	e.setCongested(now, 4002, true)
	walked("two changes meanwhile", peersAtOnce)
	now = ticks(e, now, time.Millisecond)
	walked("after the walk, and before the next may begin", peers)
	now = ticks(e, now, time.Second)
	walked("both changes", 2*peers)
	e.setCongested(now, 4001, false)
	now = ticks(e, now, time.Millisecond)
	e.setCongested(now, 4002, false)
	e.setCongested(now, 4003, true)
	walked("two changes, and the next walk may not begin", 3*peers)
	now = ticks(e, now, time.Second)
	walked("both go along", 4*peers)
	e.setCongested(now, 4000, false)
	now = ticks(e, now, time.Second)
	walked("a change by itself", 5*peers)
	ticks(e, now, time.Second)
	walked("nothing changed", 5*peers)
}

// TestEvictedBesideAWalk: a peer that makes room while the peers are being told of a change has no
// other told twice, nor missed, and the walk goes on where it was.
func TestEvictedBesideAWalk(t *testing.T) {
	peers := func(n int) (*Engine, time.Duration) {
		e, now := lone(t, nil)
		for i := range n {
			if _, err := e.Peer(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})); err != nil {
				t.Fatal(err)
			}
		}
		return e, now
	}
	for n := 1; n <= 6; n++ {
		for next := range n + 1 {
			for at := range n {
				e, _ := peers(n)
				told := map[*Peer]bool{}
				for _, pe := range e.order[:next] {
					told[pe] = true
				}
				gone := e.order[at]
				e.walk.next = next
				e.forgetPeer(gone)
				if delete(told, gone); len(e.order) != n-1 || e.walk.next != len(told) {
					t.Fatalf("number %d of %d goes, %d were told: %d are left, of which %d were", at, n, next, len(e.order), e.walk.next)
				}
				for i, pe := range e.order {
					if pe == gone || pe.at != i || told[pe] != (i < e.walk.next) {
						t.Errorf("number %d of %d goes, %d were told: wrong at %d", at, n, next, i)
					}
				}
			}
		}
	}
	const pages = 4
	e, now := peers(pages * peersAtOnce)
	e.setCongested(now, 4000, true)
	for range pages - 1 {
		e.forgetPeer(e.order[0])
		now++
		e.Tick(now)
	}
	if e.holds(t); e.walked != pages*peersAtOnce || e.walk.tm.t != nil {
		t.Errorf("%d were told, and the walk goes on at %d", e.walked, e.walk.next)
	}
}

// Sockets that watch groups of ports are looked at together, at most every groupsEvery.
func TestManyMonitors(t *testing.T) {
	const monitors = 1000
	e, now := lone(t, nil)
	pe, _ := e.Peer(netip.MustParseAddr("10.0.0.2"))
	var socks []*Socket
	for range monitors {
		s, err := e.Bind(0, SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.SetMonitor(Monitor{Mask: 1 << 3})
		socks = append(socks, s)
	}
	for i := range 2000 {
		now += 10 * time.Microsecond
		pe.CongestionDelta(now, wire.PortState{Port: 3 + 64*7, Congested: i%2 == 0})
		e.runDeferred(now)
	}
	if e.told > 3*monitors {
		t.Errorf("%d looks at %d monitors for 1,000 clearings in 20 ms", e.told, monitors)
	}
	for _, s := range socks {
		s.CongestionNews()
	}
	pe.CongestionDelta(now, wire.PortState{Port: 3, Congested: true})
	pe.CongestionDelta(now, wire.PortState{Port: 3, Congested: false})
	pe.CongestionDelta(now, wire.PortState{Port: 4, Congested: true})
	pe.CongestionDelta(now, wire.PortState{Port: 4, Congested: false})
	ticks(e, now, groupsEvery)
	for i, s := range socks {
		if freed, _ := s.CongestionNews(); freed != 1<<3 {
			t.Fatalf("monitor %d was told groups %#x, want those it asked for", i, freed)
		}
		s.Close(now)
	}
	if len(e.monitors) != 0 {
		t.Errorf("%d monitors are left", len(e.monitors))
	}
}

// Flows at rest are kept for the next datagram, and no more of them than
// maxIdleFlows; those of a closed socket are not.
func TestIdleFlows(t *testing.T) {
	e, now := lone(t, nil)
	here, _ := e.Bind(4000, SocketOptions{})
	s, _ := e.Bind(5000, SocketOptions{})
	for i := range maxIdleFlows + 500 {
		if err := s.Send(now, netip.AddrPortFrom(e.local, uint16(6000+i)), nil, 0, Quiet); err != nil {
			t.Fatal(err)
		}
	}
	if e.idle.n != maxIdleFlows || len(s.flows) != maxIdleFlows || e.loop.flows.n != maxIdleFlows || e.loop.busy != 0 {
		t.Errorf("%d idle flows, %d of the socket, %d of the peer with %d busy; want %d and 0", e.idle.n, len(s.flows), e.loop.flows.n, e.loop.busy, maxIdleFlows)
	}
	dst := here.Addr()
	s.Send(now, dst, nil, 0, Quiet)
	if n := testing.AllocsPerRun(100, func() { s.Send(now, dst, nil, 0, Quiet) }); n > 1 { // the frame of what stays at this address
		t.Errorf("%v allocations for each datagram of one flow after the other", n)
	}
	s.Close(now)
	if e.idle.n != 0 || e.loop.flows.n != 0 || e.loop.busy != 0 {
		t.Errorf("%d idle flows and %d of the peer after the socket was closed", e.idle.n, e.loop.flows.n)
	}
}

// TestAskedMeanwhile: who asks about a port whose change is to be told later has those
// concerned told first, and acts upon what they are told.
func TestAskedMeanwhile(t *testing.T) {
	const concerned = 10 * tellFew
	e, now := lone(t, nil)
	dst := netip.MustParseAddrPort("10.0.0.2:4000")
	pe, _ := e.Peer(dst.Addr())
	for i := range concerned {
		mustOpen(t, bindBox(t, e, 0, 1<<20, SocketOptions{}).s, dst, i)
	}
	now += tellEvery
	for i, on := range []bool{true, false} {
		now += time.Millisecond
		pe.CongestionDelta(now, wire.PortState{Port: dst.Port(), Congested: on})
		e.runDeferred(now)
		pp := pe.ports[dst.Port()]
		if late := i > 0; pp.late != late || (pp.told != on) != late {
			t.Fatalf("a change to %v: told late %v, told %v: the test looks at another moment", on, pp.late, pp.told)
		}
		before := e.told
		if pe.portOf(now, dst.Port()); pp.told != on || i > 0 && e.told != before+concerned {
			t.Errorf("a change to %v: %d of %d were told, and it stands as %v", on, e.told-before, concerned, pp.told)
		}
	}
}

// Next is when Tick is due; ok is false when nothing is.
func (e *Engine) Next() (at time.Duration, ok bool) {
	t, ok := e.timers.Min()
	return t.at, ok
}

// A port's change is told to every destination that is open: how many a socket has there counts, and
// is bounded.
func TestFlippingPortOpenedAgain(t *testing.T) {
	e, now := lone(t, nil)
	pe, _ := e.Peer(netip.MustParseAddr("10.0.0.2"))
	dst := netip.MustParseAddrPort("10.0.0.2:4000")
	const sockets = tellFew / maxDests
	var l []*Dest
	for range sockets {
		b := bindBox(t, e, 0, 1<<20, SocketOptions{})
		for i := range maxDests {
			l = append(l, mustOpen(t, b.s, dst, i))
		}
		if _, err := b.s.Open(dst, maxDests); !errors.Is(err, rdserr.ErrTooMany) {
			t.Fatalf("opened once more: %v", err)
		}
	}
	flip := func() (told int) {
		before := e.told
		for i := range 100 {
			now += time.Microsecond
			pe.CongestionDelta(now, wire.PortState{Port: 4000, Congested: i%2 == 0})
			e.runDeferred(now)
		}
		return e.told - before
	}
	if n := flip(); n > 2*len(l) {
		t.Errorf("%d were told in 100 µs, of %d that are open", n, len(l))
	}
	now = ticks(e, now, time.Second)
	for _, d := range l[maxDests:] {
		d.Close()
	}
	if n := flip(); n != 100*maxDests {
		t.Errorf("%d were told of 100 changes, of %d that are open", n, maxDests)
	}
	l[0].Close()
	mustOpen(t, e.bound[0], dst, 0)
	e.bound[0].Close(now)
	if now = ticks(e, now, time.Second); len(pe.ports) != 0 {
		t.Errorf("%d ports are kept that concern nobody", len(pe.ports))
	}
}
