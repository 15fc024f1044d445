package rds

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// nobody is a port at an address where nobody is.
func nobody(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.77"), uint16(1000+i))
}

// heap is what lives of Go's memory.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// dropAll forgets all idle flows.
func dropAll(e *Engine) {
	for e.DropIdle() > 0 {
	}
}

// TestFlowsAreMemory: who names many destinations, whether by sending there, by opening them or by
// waiting, is charged with what they take, and has it back when they are forgotten.
func TestFlowsAreMemory(t *testing.T) {
	const n = 20000
	for what, name := range map[string]func(e *Engine, now time.Duration, s *Socket, i int) (charged int, err error){
		"send": func(e *Engine, now time.Duration, s *Socket, i int) (int, error) {
			return msgBytes, s.Send(now, nobody(i), nil, uint64(i), Quiet)
		},
		"run": func(e *Engine, now time.Duration, s *Socket, i int) (int, error) {
			if s.SendRun(now, nobody(i), nil, []uint32{0}, uint64(i), Quiet) != 1 {
				return 0, rdserr.ErrNoMemory
			}
			return msgBytes, nil
		},
		"open": func(e *Engine, now time.Duration, s *Socket, i int) (int, error) {
			_, err := s.Open(nobody(i), nil)
			return 0, err
		},
		"wait": func(e *Engine, now time.Duration, s *Socket, i int) (int, error) {
			pe, _ := e.Peer(nobody(i).Addr())
			pe.CongestionDelta(now, wire.PortState{Port: nobody(i).Port(), Congested: true})
			queued, err := s.SendWait(now, nobody(i), nil, uint64(i), Quiet, 0, nil)
			if err == nil && !queued {
				err = errors.New("it does not wait")
			}
			return 0, err
		},
	} {
		e, now := lone(t, nil)
		b := e.cfg.Budget
		account := quota.New(b.Limit, b.Datagrams).Account(quota.User(7))
		s := bind(t, e, 4000, SocketOptions{Account: account})
		before := heap()
		sum := 0
		for i := range n {
			c, err := name(e, now, s, i)
			if err != nil {
				t.Fatalf("%s: number %d: %v", what, i, err)
			}
			sum += c
		}
		want, waiting := int64(sum+(n-freeFlows)*FlowBytes), int64(0)
		if what == "wait" { // as its caller has charged it; of some the engine remembers that they were refused
			want, waiting = (maxRefused-freeFlows)*FlowBytes, n*(msgBytes+FlowBytes)
		}
		if got := e.memory(); got != want || account.Used() != want {
			t.Errorf("%s: %d bytes are charged to the node and %d to the user for %d destinations, want %d", what, got, account.Used(), n, want)
		}
		if took := heap() - before; took > want+waiting {
			t.Errorf("%s: %d destinations take %d bytes, and %d are charged", what, n, took, want+waiting)
		}
		s.Close(now)
		if e.memory() != 0 || account.Used() != 0 {
			t.Errorf("%s: %d and %d bytes are left", what, e.memory(), account.Used())
		}
		for at := e.Trim(0); at > 0; at = e.Trim(at) {
		}
		if left := heap() - before; left > 1<<20 {
			t.Errorf("%s: %d bytes live on when all is closed", what, left)
		}
		runtime.KeepAlive(e)
		runtime.KeepAlive(s)
	}
}

// TestFewDestinationsCostNothing: the first destinations of a socket are in what it is charged with,
// also when others came before.
func TestFewDestinationsCostNothing(t *testing.T) {
	e, _ := lone(t, nil)
	s := bindBox(t, e, 4000, 1<<20, SocketOptions{}).s
	var l []*Dest
	for i := range 2 * freeFlows {
		l = append(l, mustOpen(t, s, nobody(i), i))
		if got, want := e.memory(), int64(max(0, i+1-freeFlows)*FlowBytes); got != want {
			t.Fatalf("%d destinations cost %d bytes, want %d", i+1, got, want)
		}
	}
	for _, d := range l[:freeFlows] {
		d.Close()
	}
	if got := e.memory(); got != freeFlows*FlowBytes {
		t.Errorf("%d bytes are charged", got)
	}
	e.dropIdle(maxIdleFlows)
	for i := range freeFlows {
		mustOpen(t, s, nobody(100+i), i)
	}
	if got := e.memory(); got != freeFlows*FlowBytes {
		t.Errorf("%d bytes are charged for %d destinations after some were closed", got, 2*freeFlows)
	}
}

// few makes a socket whose free flows are used, at a node with so little memory; b is for another
// engine of the node, too.
func few(t *testing.T, limit int64) (e *Engine, now time.Duration, s *Socket, b *Budget) {
	b = &Budget{Limit: limit}
	e, now = lone(t, func(c *Config) { c.Budget = b })
	s = bindBox(t, e, 4000, 1<<20, SocketOptions{}).s
	for i := range freeFlows {
		mustOpen(t, s, nobody(20000+i), i)
	}
	return e, now, s, b
}

// TestNoMemoryForAFlow: a destination that there is no memory for is refused, and whoever is refused
// hears of memory that comes back.
func TestNoMemoryForAFlow(t *testing.T) {
	const limit = 4000
	const others = limit*3/4 - msgBytes - 100 // a datagram fits beside it, and no flow
	const left = others - FlowBytes - msgBytes
	room := func() (*Engine, time.Duration, *Socket, *Budget) {
		e, now, s, b := few(t, limit)
		b.sending.Store(others)
		return e, now, s, b
	}
	writable := func(what string, e *Engine, now time.Duration, s *Socket, b *Budget) time.Duration {
		t.Helper()
		e.End()
		now = ticks(e, now, soon)
		if s.Events()&EvWritable != 0 || len(e.sendWaiters) != 1 {
			t.Errorf("%s: %d sockets wait, and there is no memory", what, len(e.sendWaiters))
		}
		b.sending.Add(-FlowBytes - msgBytes)
		now = ticks(e, now, soon)
		if s.Events()&EvWritable == 0 {
			t.Errorf("%s: nobody was told that there is memory", what)
		}
		return now
	}
	e, now, s, b := room()
	if err := s.Send(now, nobody(20000), nil, 1, Quiet); err != nil {
		t.Errorf("to a destination that is there: %v", err)
	}
	if n := s.SendRun(now, nobody(1), nil, []uint32{0}, 0, Quiet); n != 0 {
		t.Errorf("a run of %d was accepted", n)
	}
	if err := s.Send(now, nobody(1), nil, 1, Quiet); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("to another: %v", err)
	}
	now = writable("send", e, now, s, b)
	if err := s.Send(now, nobody(1), nil, 1, Quiet); err != nil {
		t.Errorf("with memory: %v", err)
	}

	e, now, s, b = room()
	if _, err := s.Open(nobody(1), nil); err != rdserr.ErrWouldBlock {
		t.Errorf("opened: %v", err)
	}
	writable("open", e, now, s, b)
	d := mustOpen(t, s, nobody(1), nil)
	if _, err := s.Open(nobody(1), nil); err != nil {
		t.Errorf("opened once more: %v", err)
	}
	if got := e.memory(); got != left+FlowBytes {
		t.Errorf("%d bytes with %v open", got, d.Addr())
	}

	e, now, s, b = room()
	if err := s.Keep(FlowBytes + msgBytes); err != rdserr.ErrWouldBlock {
		t.Errorf("kept: %v", err)
	}
	writable("keep", e, now, s, b)
	if err := s.Keep(msgBytes); err != nil || e.memory() != left+msgBytes {
		t.Errorf("kept: %v, %d bytes", err, e.memory())
	}
	if s.Close(now); e.memory() != left || s.Keep(1) != rdserr.ErrClosed {
		t.Errorf("%d bytes are left", e.memory())
	}

	e, _, s, _ = few(t, FlowBytes)
	if _, err := s.Open(nobody(1), nil); !errors.Is(err, rdserr.ErrNoMemory) || len(e.sendWaiters) > 0 {
		t.Errorf("what can never be: %v, %d wait", err, len(e.sendWaiters))
	}
	if err := s.Keep(FlowBytes); !errors.Is(err, rdserr.ErrNoMemory) || len(e.sendWaiters) > 0 {
		t.Errorf("what can never be: %v, %d wait", err, len(e.sendWaiters))
	}
}

// TestWaitsForMemoryForAFlow: a send that waits may wait for a destination of its own, too; the caller
// has charged what waits.
func TestWaitsForMemoryForAFlow(t *testing.T) {
	const limit = 4000
	e, now, s, b := few(t, limit)
	b.sending.Store(limit * 3 / 4)
	queued, err := s.SendWait(now, nobody(1), nil, 1, Quiet, 0, nil)
	if !queued || err != nil {
		t.Fatal(queued, err)
	}
	if got := e.memory(); got != limit*3/4 {
		t.Errorf("%d bytes", got)
	}
	b.sending.Add(-msgBytes)
	now = ticks(e, now, soon)
	if d := s.SendsDone(nil); len(d) > 0 {
		t.Errorf("without memory for its flow: %+v", d)
	}
	b.sending.Add(-FlowBytes)
	now = ticks(e, now, soon)
	if d := s.SendsDone(nil); len(d) != 1 || d[0].Err != nil {
		t.Errorf("with memory: %+v", d)
	}
	s.Cancel(now, nobody(1))
	if dropAll(e); e.memory() != limit*3/4-FlowBytes-msgBytes {
		t.Errorf("%d bytes are left", e.memory())
	}
	// What can never be accepted beside its flow does not wait.
	if queued, err := s.SendWait(now, nobody(2), make([]byte, limit*3/4-msgBytes-FlowBytes+1), 1, Quiet, 0, nil); queued || !errors.Is(err, rdserr.ErrNoMemory) {
		t.Error(queued, err)
	}
}

// TestIdleFlowsMakeRoom: flows that have nothing to hold are dropped when somebody lacks memory, and
// when nothing happens.
func TestIdleFlowsMakeRoom(t *testing.T) {
	const n = 2*idleAtOnce + freeFlows
	for _, how := range []string{"send", "receive", "trim"} {
		e, now, s, b := few(t, 2*n*FlowBytes)
		for i := range n {
			if err := s.Send(now, nobody(i), nil, uint64(i), Quiet); err != nil {
				t.Fatal(err)
			}
		}
		if k, _, _ := s.Cancel(now, netip.AddrPortFrom(nobody(0).Addr(), 0)); k != n {
			t.Fatalf("%d cancelled", k)
		}
		if got := e.memory(); got != n*FlowBytes {
			t.Fatalf("%d bytes for %d idle flows", got, n)
		}
		r := bindBox(t, e, 5000, 1<<30, SocketOptions{})
		d := mustOpen(t, r.s, r.s.Addr(), nil)
		big := wire.Train{Body: make([]byte, 1<<20), Count: 1}
		switch how {
		case "send":
			b.sending.Add(b.Limit*3/4 - n*FlowBytes)
			if err := r.s.Admit(d, wire.Train{Body: big.Body[:1<<20-msgBytes], Count: 1}, Within); err != rdserr.ErrWouldBlock {
				t.Fatal(err)
			}
		case "receive":
			b.held.Add(b.Limit - n*FlowBytes)
			if v := r.s.place(e.loop, conn.Arrival{Train: big}); v != conn.NoRoom {
				t.Fatal(v)
			}
		case "trim":
			for at := e.Trim(0); at > 0; at = e.Trim(at) {
			}
			if got := b.Used(); got != 0 {
				t.Errorf("%s: %d bytes", how, got)
			}
			continue
		}
		ticks(e, now, 5*soon)
		if r.s.Events()&EvWritable == 0 && how == "send" || r.s.congested {
			t.Errorf("%s: nobody goes on beside %d idle flows", how, e.idle.n)
		}
	}
}

// fewWatching is few with a socket that watches, no memory left to remember a destination by, and a
// congested port of a peer.
func fewWatching(t *testing.T, limit int64) (e *Engine, now time.Duration, s *Socket, b *Budget, pe *Peer) {
	t.Helper()
	e, now, s, b = few(t, limit)
	s.SetMonitor(Monitor{Clear: true})
	b.sending.Store(limit * 3 / 4)
	pe, _ = e.Peer(nobody(1).Addr())
	pe.CongestionDelta(now, wire.PortState{Port: nobody(1).Port(), Congested: true})
	return e, now, s, b, pe
}

// TestCrowdedWithoutMemory: a socket that watches, and has no memory to remember one more destination
// by, is told to look at all of them.
func TestCrowdedWithoutMemory(t *testing.T) {
	const limit = 4000
	e, now, s, b, pe := fewWatching(t, limit)
	if err := s.Send(now, nobody(1), nil, 1, Quiet); err != rdserr.ErrCongested {
		t.Fatal(err)
	}
	if s.refused != 0 || len(e.sendWaiters) != 0 || e.memory() != limit*3/4 {
		t.Errorf("%d are remembered, %d wait, %d bytes", s.refused, len(e.sendWaiters), e.memory())
	}
	now += time.Second
	pe.CongestionDelta(now, wire.PortState{Port: nobody(1).Port()})
	wantNews(t, "clear", s, allGroups)

	// It is told once for each time that one was not remembered.
	other, _ := e.Peer(netip.MustParseAddr("10.0.0.78"))
	clears := func() {
		now += time.Second
		other.CongestionDelta(now, wire.PortState{Port: 7, Congested: true})
		other.CongestionDelta(now, wire.PortState{Port: 7})
	}
	clears()
	wantNews(t, "another port", s, 0)
	pe.CongestionDelta(now, wire.PortState{Port: nobody(1).Port(), Congested: true})
	for range 2 {
		if err := s.Send(now, nobody(1), nil, 1, Quiet); err != rdserr.ErrCongested {
			t.Fatal(err)
		}
		clears()
		wantNews(t, "another port, refused again", s, allGroups)
	}
	b.sending.Store(0)
	if err := s.Send(now, nobody(1), nil, 1, Quiet); err != rdserr.ErrCongested || s.refused != 1 {
		t.Fatalf("%v, %d are remembered", err, s.refused)
	}
	clears()
	wantNews(t, "another port, remembered", s, 0)
	pe.CongestionDelta(now, wire.PortState{Port: nobody(1).Port()})
	wantNews(t, "clear, remembered", s, 0, Change{nobody(1), false})
}

// TestCrowdedWishForALink: with the flow of a refused send that was not remembered ends the wish for a
// link, by which the peer's map would be known to be an old one. Its socket is told to look again.
func TestCrowdedWishForALink(t *testing.T) {
	const limit = 4000
	e, now, s, _, pe := fewWatching(t, limit)
	for range 3 {
		if err := s.Send(now, nobody(1), nil, 1, Quiet); err != rdserr.ErrCongested || !s.crowded || pe.blockedPorts != 1 {
			t.Fatalf("%v, crowded %v, %d ports block", err, s.crowded, pe.blockedPorts)
		}
		for at := e.Trim(0); at > 0; at = e.Trim(at) {
		}
		if pe.blockedPorts != 0 {
			t.Fatal("the flow was not forgotten")
		}
		now = ticks(e, now, wishEvery)
		wantNews(t, "the wish has ended", s, allGroups)
	}
	ticks(e, now, 2*wishEvery)
	wantNews(t, "nothing was refused since", s, 0)
}

// refusedUnpaid is a peer, and a socket that was refused by one of its ports and has no memory to be
// remembered by.
func refusedUnpaid(t *testing.T, dst netip.AddrPort) (*Engine, time.Duration, *Socket, *Budget, *Peer) {
	const limit = 1 << 20
	e, now, s, b := few(t, limit)
	b.sending.Store(limit * 3 / 4)
	pe, err := e.Peer(dst.Addr())
	if err != nil {
		t.Fatal(err)
	}
	pe.CongestionDelta(now, wire.PortState{Port: dst.Port(), Congested: true})
	if err := s.Send(now, dst, nil, 1, Quiet); err != rdserr.ErrCongested {
		t.Fatal(err)
	}
	if s.refused != 0 || pe.blockedPorts != 1 {
		t.Fatalf("%d flows are remembered, %d ports blocked", s.refused, pe.blockedPorts)
	}
	return e, now, s, b, pe
}

// TestBlockedEndsWithoutMemory: who was refused a port, and has no memory to be remembered by, is not
// dialled for any more when the last that is known of it goes.
func TestBlockedEndsWithoutMemory(t *testing.T) {
	dst := netip.MustParseAddrPort("10.0.0.9:4000")
	e, now, s, _, pe := refusedUnpaid(t, dst)
	if n := failingDials(e, &now); n < 3 {
		t.Errorf("%d attempts to connect, and a socket was refused", n)
	}
	for at := e.Trim(0); at > 0; at = e.Trim(at) {
	}
	s.Close(now)
	e.End()
	failingDials(e, &now) // the one that is due already
	if n := failingDials(e, &now); n != 0 {
		t.Errorf("%d attempts to connect, and nobody waits", n)
	}
	if e.holds(t); len(pe.ports) != 0 || pe.blockedPorts != 0 {
		t.Errorf("%d ports are remembered, %d counted", len(pe.ports), pe.blockedPorts)
	}
}

// TestForgottenWhileTold: what one port's news make idle may forget the last flow of another port, or of
// this one, that is to be told or asked for just then.
func TestForgottenWhileTold(t *testing.T) {
	for _, port := range []uint16{4000, 4001} {
		dst := netip.MustParseAddrPort("10.0.0.9:4001")
		e, now, s, b, pe := refusedUnpaid(t, dst)
		b.sending.Store(0)
		heard := netip.AddrPortFrom(dst.Addr(), port)
		h := bind(t, e, 6000, SocketOptions{})
		h.flow(pe, heard)
		pe.CongestionDelta(now, wire.PortState{Port: port, Congested: true})
		for i := range uint16(2) {
			if err := bind(t, e, 5000+i, SocketOptions{}).Send(now, heard, nil, 1, Quiet); err != rdserr.ErrCongested {
				t.Fatal(err)
			}
		}
		for i := range maxIdleFlows - e.idle.n {
			s.flow(e.loop, netip.AddrPortFrom(e.local, uint16(10000+i)))
		}
		if e.idle.n != maxIdleFlows || e.idle.head.dst != dst || pe.ports[port].refused.n != 2 {
			t.Fatalf("%d idle flows, first %v, %d remembered", e.idle.n, e.idle.head.dst, pe.ports[port].refused.n)
		}
		if port == dst.Port() {
			// As when a whole map is late.
			pe.cmap.SetBy(&e.spare, port, false)
			mustOpen(t, h, heard, nil).Close()
		} else {
			pe.CongestionMap(now, make([]byte, 8192))
		}
		e.End()
		if e.holds(t); s.flows[dst] != nil || len(pe.ports) != 0 || pe.blockedPorts != 0 {
			t.Errorf("%v: %d ports are remembered, %d counted", heard, len(pe.ports), pe.blockedPorts)
		}
	}
}

// TestFit: a map that was large is copied when a quarter is left of it, and goes when it is empty.
func TestFit(t *testing.T) {
	m, most := map[int]int{}, uint32(0)
	for i := range 1000 {
		m[i] = i
		most = max(most, uint32(len(m)))
	}
	for i := range 1000 {
		delete(m, i)
		m = fit(m, &most)
		if len(m) != 999-i || int(most) > max(keptEntries, 4*len(m)+4) {
			t.Fatalf("%d entries after %d were deleted; it is thought to have had %d", len(m), i+1, most)
		}
	}
	if m == nil {
		t.Error("a small map is not kept")
	}
	m = make(map[int]int)
	most = keptEntries + 1
	if m = fit(m, &most); m != nil || most != 0 {
		t.Errorf("%v, %d", m, most)
	}
}
