package cm

import (
	"net/netip"
	"slices"
	"testing"
)

// pair is two worlds whose messages come at once and in order, or one with itself.
type pair struct {
	t    *testing.T
	ends map[netip.Addr]*world
	mads []simMAD
}

// pairEnd is a world that sends to the others of its pair.
type pairEnd struct {
	*world
	p *pair
}

func (e pairEnd) Send(to netip.AddrPort, mad []byte) {
	e.world.Send(to, mad)
	e.p.mads = append(e.p.mads, simMAD{e.m.cfg.Local, to.Addr(), [MADLen]byte(mad)})
}

func newPair(t *testing.T, addrs ...string) (p *pair, ends []*world) {
	p = &pair{t: t, ends: map[netip.Addr]*world{}}
	for i, a := range addrs {
		addr := netip.MustParseAddr(a)
		w := newWorld(t, Config{Local: addr})
		w.draw.ids = []uint64{uint64(0x10 * (i + 1)), uint64(0x10*(i+1) + 1), uint64(0x10*(i+1) + 2)}
		w.m.env = pairEnd{w, p}
		if err := w.m.Listen(1234); err != nil {
			t.Fatal(err)
		}
		p.ends[addr] = w
		ends = append(ends, w)
	}
	return p, ends
}

// deliver brings what is on the way when it is called, and nothing that is sent for it.
func (p *pair) deliver() {
	mads := p.mads
	p.mads = nil
	for _, m := range mads {
		p.ends[m.to].m.Receive(0, netip.AddrPortFrom(m.from, 1), m.mad[:])
	}
}

func (p *pair) all() {
	for len(p.mads) > 0 {
		p.deliver()
	}
}

// dial is from one world to another, by a queue pair.
func (p *pair) dial(from, to *world, qpn uint32) *Conn {
	p.t.Helper()
	c, err := from.m.Dial(0, netip.AddrPortFrom(from.m.cfg.Local, 5000), netip.AddrPortFrom(to.m.cfg.Local, 1234), Param{QPN: qpn, MTU: 1024})
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// accept accepts all that w was asked for.
func (p *pair) accept(w *world, qpn uint32) {
	p.t.Helper()
	for _, c := range w.m.byAsk {
		if err := c.Accept(0, Param{QPN: qpn}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pair) states(w *world, want ...State) {
	p.t.Helper()
	var got []State
	for _, c := range w.m.byID {
		got = append(got, c.State())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		p.t.Errorf("connections of %v are %v, want %v", w.m.cfg.Local, got, want)
	}
}

// TestBothDial: two sides that dial each other at once, by queue pairs of the same number, have
// two connections, each with its own end.
func TestBothDial(t *testing.T) {
	p, ends := newPair(t, "10.0.0.1", "10.0.0.2")
	a, b := ends[0], ends[1]
	ca, cb := p.dial(a, b, 17), p.dial(b, a, 17)
	p.deliver() // the requests cross
	p.states(a, ReqSent, ReqRcvd)
	p.accept(a, 18)
	p.accept(b, 18)
	p.all()
	p.states(a, Established, Established)
	p.states(b, Established, Established)
	if ca.Peer().QPN != 18 || cb.Peer().QPN != 18 {
		t.Errorf("connected to queue pairs %d and %d", ca.Peer().QPN, cb.Peer().QPN)
	}
	ca.Disconnect(0)
	p.all()
	p.states(a, Established, TimeWait)
	p.states(b, Established, TimeWait)
	if cb.State() != Established {
		t.Errorf("the end of one is the end of the other")
	}
	// Both ends of the other at once.
	cb.Disconnect(0)
	for _, c := range a.m.byAsk {
		c.Disconnect(0)
	}
	p.all()
	p.states(a, TimeWait, TimeWait)
	p.states(b, TimeWait, TimeWait)
}

// TestDialMyself: an address may dial itself.
func TestDialMyself(t *testing.T) {
	p, ends := newPair(t, "10.0.0.1")
	a := ends[0]
	c := p.dial(a, a, 17)
	p.deliver()
	p.states(a, ReqSent, ReqRcvd)
	p.accept(a, 18)
	p.all()
	p.states(a, Established, Established)
	if c.Peer().QPN != 18 || c.Local() != netip.MustParseAddrPort("10.0.0.1:5000") || c.Remote() != netip.MustParseAddrPort("10.0.0.1:1234") {
		t.Errorf("%v to %v, queue pair %d", c.Local(), c.Remote(), c.Peer().QPN)
	}
	c.Disconnect(0)
	p.all()
	p.states(a, TimeWait, TimeWait)
}
