package datagram

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// fakeLink is a link whose other end is the test.
type fakeLink struct {
	local, remote netip.AddrPort

	mu      sync.Mutex
	h       transport.Handler
	starts  int
	resumes int
	closes  []bool // how gracefully
	frames  []wire.Header
	bytes   uint64
	acked   uint64
	pinged  uint64 // up to the end of the last handshake ping: what comes behind it acknowledges these
	late    bool   // what comes was sent before the ping had arrived
	keep    bool   // Send keeps what it is given
	sendErr error  // Send fails
	kept    *transport.Batch
	over    bool
	mute    bool   // Close does not end it: the test does
	during  func() // the next Send calls it first
	skips   int    // how often it was told to skip
}

func (l *fakeLink) Skip() { l.skips++ }

func (l *fakeLink) LocalAddr() netip.AddrPort  { return l.local }
func (l *fakeLink) RemoteAddr() netip.AddrPort { return l.remote }

func (l *fakeLink) Start(h transport.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starts++; l.h == nil {
		l.h = h
	}
}

func (l *fakeLink) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumes++
}

func (l *fakeLink) Acked() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

func (l *fakeLink) Close() { l.close(true) }
func (l *fakeLink) Abort() { l.close(false) }

func (l *fakeLink) close(graceful bool) {
	l.mu.Lock()
	l.closes = append(l.closes, graceful)
	mute := l.mute
	l.mu.Unlock()
	if !mute {
		go l.end(net.ErrClosed) // ends at once
	}
}

// end tells the handler, once, that the link is closed.
func (l *fakeLink) end(err error) {
	l.mu.Lock()
	h, kept, acked := l.h, l.kept, l.acked
	first := !l.over && h != nil
	l.over, l.kept = l.over || first, nil
	l.mu.Unlock()
	if first {
		if kept != nil {
			h.Written(kept, err)
		}
		h.Closed(err, acked)
	}
}

func (l *fakeLink) Send(b *transport.Batch) (bool, error) {
	l.mu.Lock()
	during := l.during
	l.during = nil
	l.mu.Unlock()
	if during != nil {
		during()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sendErr != nil {
		return false, l.sendErr
	}
	var all []byte
	for _, p := range b.Pieces {
		all = append(all, p...)
	}
	for len(all) >= wire.HeaderLen {
		var h wire.Header
		h.Parse(all)
		l.frames = append(l.frames, h)
		n := wire.HeaderLen + int(h.Len)
		if l.bytes += uint64(n); h.SPort == wire.PortProbe && h.DPort == wire.PortPing {
			l.pinged = l.bytes
		}
		all = all[n:]
	}
	if l.keep {
		l.kept = b
		return false, nil
	}
	return true, nil
}

// written tells the handler that what was kept has left.
func (l *fakeLink) written() {
	l.mu.Lock()
	b, h := l.kept, l.h
	l.kept, l.keep = nil, false
	l.mu.Unlock()
	h.Written(b, nil)
}

// bring has the host read frames.
func (l *fakeLink) bring(t *testing.T, frames ...*transport.Frame) (err error) {
	t.Helper()
	l.mu.Lock()
	h := l.h
	if !l.late {
		l.acked = max(l.acked, l.pinged)
	}
	l.mu.Unlock()
	if h == nil {
		t.Fatal("a link that was not started is read")
	}
	h.Begin()
	for _, f := range frames {
		if err == nil {
			err = h.Frame(f)
		}
	}
	h.End()
	return err
}

// state is a look at what was done to the link.
func (l *fakeLink) state() (starts, resumes int, closes []bool, data int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.frames {
		if h.SPort != 0 && h.DPort != 0 && h.Seq != 0 {
			data++
		}
	}
	return l.starts, l.resumes, append([]bool(nil), l.closes...), data
}

func frameOf(sport, dport uint16, seq uint64, payload string) *transport.Frame {
	h := wire.Header{Seq: seq, SPort: sport, DPort: dport, Len: uint32(len(payload))}
	return &transport.Frame{Raw: h.Append(nil), Payload: []byte(payload)}
}

// hello is the two frames by which an rdsd shows what it is.
func hello(incarnation uint64) (l []*transport.Frame) {
	x := wire.Handshake{NPaths: 1, Hello: wire.Hello{Version: 1, Lanes: 1, CreditLog2: 10, Incarnation: incarnation}}
	for _, p := range [][2]uint16{{1, 0}, {0, 1}} {
		h := wire.Header{SPort: p[0], DPort: p[1], Ext: x.Encode()}
		l = append(l, &transport.Frame{Raw: h.Append(nil)})
	}
	return l
}

// fakeProvider gives out links, or errors.
type fakeProvider struct {
	transport.Provider

	mu    sync.Mutex
	dials int
	lanes []int
	fails error
	links []*fakeLink
	news  chan *fakeLink

	during func() // the next Dial calls it first
}

func (p *fakeProvider) Dial(_ context.Context, local, remote netip.AddrPort, lane int) (transport.Link, error) {
	p.mu.Lock()
	during := p.during
	p.during = nil
	p.mu.Unlock()
	if during != nil {
		during()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dials++
	p.lanes = append(p.lanes, lane)
	if p.fails != nil {
		return nil, p.fails
	}
	l := &fakeLink{local: local, remote: remote}
	p.links = append(p.links, l)
	p.news <- l
	return l, nil
}

func (p *fakeProvider) dialled() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// seam is a host between an engine and fake links.
type seam struct {
	t *testing.T
	a *Host
	h *Local
	p *fakeProvider
}

var (
	seamLower  = netip.MustParseAddr("203.0.113.1") // of no machine
	seamLocal  = netip.MustParseAddr("203.0.113.2")
	seamHigher = netip.MustParseAddr("203.0.113.3")
)

func newSeam(t *testing.T, change func(*rds.Config)) *seam {
	t.Helper()
	c := config.Default()
	c.RDS.Addresses = []netip.Addr{seamLocal}
	c.HTTP.Listen, c.API.Ledger = "", "none"
	c.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.MustParsePrefix("203.0.113.0/29")}, Kernel: true}}
	a := newTestHost(t, c)
	a.engineConfig.Conn.ReconnectMin, a.engineConfig.Conn.ReconnectMax = time.Millisecond, 2*time.Millisecond
	a.engineConfig.Conn.ProbeTimeout = 200 * time.Millisecond
	if change != nil {
		change(&a.engineConfig)
	}
	if err := a.startReactors(); err != nil {
		t.Fatal(err)
	}
	s := &seam{t: t, a: a, h: a.list[0], p: &fakeProvider{news: make(chan *fakeLink, 64)}}
	a.provider = s.p
	s.h.attach(a.workers[0])
	a.states.start(a)
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { a.Close(); close(closed) }() // ends at once, or the test fails
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("the end waits for a link that nobody reports")
		}
		if b := a.peers.Budgets()[0]; b.Used != 0 {
			t.Errorf("%d handshakes are left", b.Used)
		}
	})
	return s
}

// dialled is the next link that the host dialled, started.
func (s *seam) dialled() *fakeLink {
	s.t.Helper()
	select {
	case l := <-s.p.news:
		s.until("the link is started", func() bool { n, _, _, _ := l.state(); return n > 0 })
		return l
	case <-time.After(5 * time.Second):
		s.t.Fatal("nothing was dialled in 5 s")
		return nil
	}
}

// accepted gives the host a link that remote made.
func (s *seam) accepted(remote netip.Addr) *fakeLink {
	l := &fakeLink{local: netip.AddrPortFrom(seamLocal, 16385), remote: netip.AddrPortFrom(remote, 40000)}
	s.h.Accept(l)
	return l
}

func (s *seam) until(what string, f func() bool) {
	s.t.Helper()
	await.Until(s.t, 3*time.Second, what, f)
}

func (s *seam) lane(remote netip.Addr) (p *conn.Lane) {
	e, _ := s.h.Lock()
	if pe := e.Known(remote); pe != nil && pe.Conn() != nil {
		pe.Conn().EachLane(func(x *conn.Lane) {
			if x.Index() == 0 {
				p = x
			}
		})
	}
	s.h.Unlock()
	return p
}

func (s *seam) info(remote netip.Addr) (i conn.Info) {
	if p := s.lane(remote); p != nil {
		s.h.Lock()
		i = p.Info()
		s.h.Unlock()
	}
	return i
}

func (s *seam) bind(o rds.SocketOptions) *rds.Socket {
	s.t.Helper()
	if o.Data == nil {
		o.Data = make(wakeup, 1)
	}
	e, _ := s.h.Lock()
	k, err := e.Bind(0, o)
	s.h.Unlock()
	if err != nil {
		s.t.Fatal(err)
	}
	return k
}

func (s *seam) send(k *rds.Socket, to netip.Addr, payload string) {
	s.t.Helper()
	_, now := s.h.Lock()
	err := k.Send(now, netip.AddrPortFrom(to, 9), []byte(payload), 0, rds.Quiet)
	s.h.Unlock()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *seam) undecided(k *rds.Socket) int {
	s.h.Lock()
	defer s.h.Unlock()
	return k.Info().Undecided
}

// kernel makes a link to a kernel without lanes, up and known, on which one
// datagram has come for k.
func (s *seam) kernel(k *rds.Socket) *fakeLink {
	s.t.Helper()
	s.send(k, seamHigher, "first")
	l := s.dialled()
	s.pinged(l) // its TCP acknowledges that with what comes
	if err := l.bring(s.t, frameOf(9, k.Addr().Port(), 1, "x")); err != nil {
		s.t.Fatal(err)
	}
	s.until("the first datagram leaves", func() bool { _, _, _, n := l.state(); return n == 1 })
	return l
}
