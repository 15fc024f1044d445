package rds

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// pass lets a step of e end.
func pass(e *Engine) { e.runDeferred(e.now); e.End() }

func bind(t testing.TB, e *Engine, port uint16, o SocketOptions) *Socket {
	t.Helper()
	s, err := e.Bind(port, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBindRefuses: what a socket may not be, at the last that is allowed and the first that is not.
func TestBindRefuses(t *testing.T) {
	e, now := lone(t, func(c *Config) { c.MaxSockets, c.MaxBufBytes = 3, 1<<20 })
	for _, c := range []struct {
		port     uint16
		snd, rcv int
		want     error
	}{
		{wire.PortProbe, 0, 0, rdserr.ErrInvalid},
		{4000, -1, 0, rdserr.ErrInvalid},
		{4000, 0, -1, rdserr.ErrInvalid},
		{4000, 1<<20 + 1, 0, rdserr.ErrInvalid},
		{4000, 0, 1<<20 + 1, rdserr.ErrInvalid},
		{4000, 1 << 20, 1 << 20, nil},
		{4000, 0, 0, rdserr.ErrAddrInUse},
		{0, 0, 0, nil},
		{wire.PortFirst, 1, 1, nil},
		{4001, 0, 0, rdserr.ErrTooMany},
	} {
		s, err := e.Bind(c.port, SocketOptions{SndBufBytes: c.snd, RcvBufBytes: c.rcv})
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || (s == nil) != (err != nil) {
			t.Errorf("port %d, buffers of %d and %d: %v; want %v", c.port, c.snd, c.rcv, err, c.want)
		}
	}
	s := e.Socket(4000)
	s.Close(now)
	s.Close(now) // again
	if !s.Closed() || e.Socket(4000) != nil || len(e.Bound()) != 2 || len(e.Sockets()) != 2 {
		t.Errorf("after a close: %d bound, %d sockets", len(e.Bound()), len(e.Sockets()))
	}
	if err := s.Send(now, netip.AddrPortFrom(e.Local(), wire.PortFirst), nil, 0, Quiet); !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("a send of a closed socket: %v", err)
	}
	if _, _, err := s.Cancel(now, netip.AddrPortFrom(e.Local(), wire.PortFirst)); !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("a cancel of a closed socket: %v", err)
	}
	if err := e.Socket(wire.PortFirst).Send(now, netip.AddrPortFrom(e.Local(), wire.PortProbe), nil, 0, Quiet); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a send to the port of the handshake: %v", err)
	}
	// A client over rings has the errno of its flow, and asks for the words so.
	if _, err := e.Socket(wire.PortFirst).Congested(netip.AddrPortFrom(e.Local(), wire.PortProbe)); err == nil || err.Error() != errProbePort.Error() {
		t.Errorf("whether the port of the handshake is congested: %v", err)
	}
}

// TestPingOfItself: a node answers the ping that a socket sends to the node's own address.
func TestPingOfItself(t *testing.T) {
	e, now := lone(t, nil)
	s := bind(t, e, 4000, SocketOptions{})
	if err := s.Send(now, netip.AddrPortFrom(e.Local(), wire.PortPing), nil, 7, Reported); err != nil {
		t.Fatal(err)
	}
	d, ok := s.Queue().Recv()
	if !ok || d.Source != netip.AddrPortFrom(e.Local(), wire.PortPing) || len(d.Payload) != 0 {
		t.Errorf("answered: %v, %+v", ok, d)
	}
	if l := s.Queue().Outcomes(nil); len(l) != 1 || l[0].Kind != conn.Delivered || l[0].First != 7 {
		t.Errorf("outcomes %+v", l)
	}
}

// TestHardLimitIsExact: datagrams without bytes never reach the soft limit; as many are taken
// as fit into the hard one, to the byte.
func TestHardLimitIsExact(t *testing.T) {
	const rcv = 1000
	hard := 2*rcv + buf.SizeOf(wire.MaxDatagram) + itemOverhead
	for _, over := range []int{0, 1} { // whether the last one passes it by a byte
		e, now := lone(t, func(c *Config) { c.RcvBufBytes = rcv })
		from, to := bind(t, e, 4000, SocketOptions{}), bind(t, e, 4001, SocketOptions{})
		first := hard%itemOverhead + over
		n := (hard - first) / itemOverhead // with the one that has bytes
		for i := range n {
			var b []byte
			if i == 0 {
				b = make([]byte, first)
			}
			if err := from.Send(now, to.Addr(), b, uint64(i), Quiet); err != nil {
				t.Fatalf("datagram %d of %d: %v", i, n, err)
			}
		}
		if mem := to.ReceiveMemory(); over == 0 && (mem != hard || to.Info().Congested) || over == 1 && mem > hard {
			t.Errorf("one byte too many %d: %d bytes held of %d, congested %v", over, mem, hard, to.Info().Congested)
		}
		from.Send(now, to.Addr(), nil, 0, Quiet)
		if mem := to.ReceiveMemory(); mem > hard || !to.Info().Congested {
			t.Errorf("one more: %d bytes held of %d, congested %v", mem, hard, to.Info().Congested)
		}
	}
}

// TestClearBelowHalf: a port that is congested becomes clear with less than half of its buffer
// unread, and not with half.
func TestClearBelowHalf(t *testing.T) {
	for _, c := range []struct {
		stays int
		clear bool
	}{{500, false}, {499, true}, {501, false}} {
		e, now := lone(t, func(c *Config) { c.RcvBufBytes = 1000 })
		from, to := bind(t, e, 4000, SocketOptions{}), bind(t, e, 4001, SocketOptions{})
		for _, n := range []int{1001 - c.stays, c.stays} {
			if err := from.Send(now, to.Addr(), make([]byte, n), 0, Quiet); err != nil {
				t.Fatal(err)
			}
		}
		if on, _ := from.Congested(to.Addr()); !on {
			t.Fatal("it is not congested with a byte above its buffer")
		}
		to.Queue().Recv()
		to.ReadAll(now)
		pass(e)
		if on, _ := from.Congested(to.Addr()); on == c.clear {
			t.Errorf("%d of 1000 bytes unread: congested %v", c.stays, on)
		}
	}
}

// TestSendBudgetIsExact: what may be accepted at once is three quarters of the budget, to the byte.
func TestSendBudgetIsExact(t *testing.T) {
	const limit = 8000
	e, _ := lone(t, func(c *Config) { c.Budget = &Budget{Limit: limit} })
	s := bind(t, e, 4000, SocketOptions{})
	if n := sendRoom(e); n != limit*3/4 {
		t.Fatalf("room for %d", n)
	}
	if err := s.checkSendBudget(&flow{s: s}, limit*3/4); err != nil {
		t.Errorf("all of it: %v", err)
	}
	if err := s.checkSendBudget(&flow{s: s}, limit*3/4+1); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("a byte more: %v", err)
	}
	b := &Budget{Limit: limit, Rest: new(atomic.Int64)}
	x, _ := lone(t, func(c *Config) { c.Budget = b })
	x.tally.sending, x.tally.held = 300, 500
	b.held.Store(1000)
	b.Rest.Store(2500)
	if n := sendRoom(x); n != limit-1000-500-2500-300 {
		t.Errorf("beside what others have: room for %d", n)
	}
	w := newPair(t)
	w.a.cfg.Budget = &Budget{Limit: limit}
	from := bind(t, w.a, 4000, SocketOptions{})
	to := netip.AddrPortFrom(w.b.Local(), 4001)
	if n := from.SendRun(w.now, to, make([]byte, 6000), []uint32{2000, 2000, 2000 - 3*msgBytes, 0}, 0, Quiet); n != 3 {
		t.Errorf("%d datagrams of a run were taken where three fit to the byte", n)
	}
	w = newPair(t)
	w.a.cfg.Budget = &Budget{Limit: limit}
	from = bind(t, w.a, 4000, SocketOptions{})
	if n := from.SendRun(w.now, to, make([]byte, 6000), []uint32{2000, 2000, 2001 - 3*msgBytes}, 0, Quiet); n != 2 {
		t.Errorf("%d datagrams of a run were taken where the third is a byte too large", n)
	}
}

// TestWaitsAreBoundedAndEnd: so many sends of a socket may wait and not one more; each ends at
// its own time, whatever the times of those before it.
func TestWaitsAreBoundedAndEnd(t *testing.T) {
	w := newPair(t)
	w.a.cfg.MaxUndecided = 3
	s := bind(t, w.a, 4000, SocketOptions{})
	dst := netip.AddrPortFrom(w.b.Local(), 4001)
	turn(t, w, dst, true)
	for i, in := range []time.Duration{2, 1, 5} {
		if queued, err := s.SendWait(w.now, dst, nil, uint64(i), Quiet, w.now+in*time.Second, i); !queued || err != nil {
			t.Fatal(queued, err)
		}
	}
	if _, err := s.SendWait(w.now, dst, nil, 9, Quiet, 0, nil); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("a fourth of three: %v", err)
	}
	begun := w.now
	var ended []int
	for _, at := range []time.Duration{1, 2, 5} {
		ticks(w.a, w.now, begun+at*time.Second-time.Millisecond-w.now)
		if l := s.SendsDone(nil); len(l) != 0 {
			t.Errorf("%+v ended a millisecond before %d s", l, at)
		}
		w.now = begun + at*time.Second
		w.a.Tick(w.now)
		w.a.End()
		for _, d := range s.SendsDone(nil) {
			if !errors.Is(d.Err, rdserr.ErrTimeout) || d.Batch != int(d.Tag) {
				t.Errorf("%+v", d)
			}
			ended = append(ended, int(d.Tag))
		}
	}
	if len(ended) != 3 || ended[0] != 1 || ended[1] != 0 || ended[2] != 2 {
		t.Errorf("ended in the order %v, want 1 0 2", ended)
	}
}

// TestBudgetShrinksUnderAWait: a send that waits for room that can never be there any more fails.
func TestBudgetShrinksUnderAWait(t *testing.T) {
	w := newPair(t)
	s := bind(t, w.a, 4000, SocketOptions{SndBufBytes: 1000})
	dst := netip.AddrPortFrom(w.b.Local(), 4001)
	if err := s.Send(w.now, dst, make([]byte, 1000), 1, Quiet); err != nil {
		t.Fatal(err)
	}
	if queued, err := s.SendWait(w.now, dst, make([]byte, 900), 2, Quiet, 0, nil); !queued || err != nil {
		t.Fatal(queued, err)
	}
	w.a.cfg.Budget = &Budget{Limit: 1000}
	if k, _, err := s.Cancel(w.now, netip.AddrPortFrom(w.b.Local(), 9)); k != 0 || err != nil { // nothing to do with it
		t.Fatal(k, err)
	}
	s.hasSpace()
	s.used = 0
	w.a.runDeferred(w.now)
	if l := s.SendsDone(nil); len(l) != 1 || !errors.Is(l[0].Err, rdserr.ErrNoMemory) {
		t.Errorf("%+v", l)
	}
	s.used = 1000
}

// TestWatcherCatchesUp: who begins to watch is told of the destinations that it has opened and
// that are congested already, of no others, and is woken for it.
func TestWatcherCatchesUp(t *testing.T) {
	w := newPair(t)
	opened, waits, clear := netip.AddrPortFrom(w.b.local, 4000), netip.AddrPortFrom(w.b.local, 4001), netip.AddrPortFrom(w.b.local, 4002)
	b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	mustOpen(t, b.s, opened, nil)
	mustOpen(t, b.s, clear, nil)
	turn(t, w, opened, true)
	turn(t, w, waits, true)
	if queued, err := b.s.SendWait(w.now, waits, nil, 1, Quiet, 0, nil); !queued || err != nil {
		t.Fatal(queued, err)
	}
	b.s.Events()
	b.s.CongestionNews()
	b.s.SetMonitor(Monitor{Set: true})
	if ev := b.s.Events(); ev&EvCongestion == 0 {
		t.Error("the news do not wake it")
	}
	wantNews(t, "watched", b.s, 0, Change{opened, true})
	b.s.SetMonitor(Monitor{})
	b.s.SetMonitor(Monitor{Mask: 1}) // of groups alone
	wantNews(t, "groups", b.s, 0)
}
