package rds

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

func peerAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }

// One user who names destinations without end gets three quarters of the table, is
// told so, and keeps nobody else out.
func TestPeersOfOneUser(t *testing.T) {
	e, now := lone(t, func(c *Config) { c.MaxPeers = 100 })
	a, _ := e.Bind(0, SocketOptions{UID: 7})
	b, _ := e.Bind(0, SocketOptions{UID: 8})
	named := 0
	var err error
	for i := range 200 {
		if err = a.Send(now, netip.AddrPortFrom(peerAddr(i), 4000), nil, 0, Quiet); err == nil {
			named++
		}
	}
	if named != 75 || !errors.Is(err, rdserr.ErrNoMemory) || !strings.Contains(err.Error(), "limits.max_peers (100)") || !strings.Contains(err.Error(), "user 7") {
		t.Errorf("%d destinations of 100 places, then %v", named, err)
	}
	if err := b.Send(now, netip.AddrPortFrom(peerAddr(1000), 4000), nil, 0, Quiet); err != nil {
		t.Errorf("another user: %v", err)
	}
	if _, err := e.Accept(now, netip.AddrPortFrom(peerAddr(1001), 1024)); err != nil {
		t.Errorf("a peer that connects: %v", err)
	}
	if n, full := e.NoPlace(); n != 125 || full != 0 {
		t.Errorf("%d peers were refused, want 125; the table was full at %v", n, full)
	}
	a.Close(now)
	if err := b.Send(now, netip.AddrPortFrom(peerAddr(1002), 4000), nil, 0, Quiet); err != nil {
		t.Error(err)
	}
	for i := range 200 { // what a closed socket named makes room
		c, _ := e.Bind(6000, SocketOptions{UID: 9})
		if err := c.Send(now, netip.AddrPortFrom(peerAddr(2000+i), 4000), nil, 0, Quiet); err != nil {
			t.Fatalf("destination %d: %v", i, err)
		}
		c.Close(now)
	}
	if len(e.order) > 100 || len(e.order) != len(e.peers) {
		t.Errorf("%d peers in order, %d by address, at most 100", len(e.order), len(e.peers))
	}
	for i, pe := range e.order {
		if pe.at != i {
			t.Fatalf("peer %d believes to be at %d", i, pe.at)
		}
	}
	if pe := e.known(peerAddr(1000)); pe == nil || pe.c.Queued().Queued != 1 {
		t.Error("a peer with something queued was forgotten")
	}
	b.Close(now)
	n := 0
	for _, k := range e.named {
		n += k.peers
	}
	for _, pe := range e.order {
		if pe.origin.named && !pe.answered {
			n--
		}
	}
	if n != 0 {
		t.Errorf("the account of named peers is wrong by %d", n)
	}
}

// TestPeersAreNamedAtAPace: each destination costs an attempt to connect, so who has its
// share goes on one in 5 ms, whatever rests.
func TestPeersAreNamedAtAPace(t *testing.T) {
	e, now := lone(t, func(c *Config) { c.MaxPeers = 100 })
	named, last := 0, now
	for i := range 2000 {
		e.Tick(now)
		s, _ := e.Bind(6000, SocketOptions{UID: 9})
		err := s.Send(now, netip.AddrPortFrom(peerAddr(i), 4000), nil, 0, Quiet)
		if err == nil {
			named++
			if at := now - last; named > 76 && at < evictEvery {
				t.Fatalf("destination %d came %v after the one before", named, at)
			}
			last = now
		} else if !errors.Is(err, rdserr.ErrNoMemory) {
			t.Fatal(err)
		}
		s.Close(now)
		now += time.Millisecond
	}
	if want := 75 + (2000-75)/5; named != want {
		t.Errorf("%d destinations in 2 s, not %d", named, want)
	}
	// Others are not concerned.
	s, _ := e.Bind(6000, SocketOptions{UID: 10})
	for i := range 30 {
		if err := s.Send(now, netip.AddrPortFrom(peerAddr(5000+i), 4000), nil, 0, Quiet); err != nil {
			t.Fatalf("another user's destination %d: %v", i, err)
		}
	}
}

// TestPlacesBehindPeersThatDoNotRest: a user has its share of the table in a row with peers that do
// not rest. Newcomers get the places behind them nevertheless; but in a flood of them the search stays short.
func TestPlacesBehindPeersThatDoNotRest(t *testing.T) {
	const most, pinned = 1000, 750
	e, now := lone(t, func(c *Config) { c.MaxPeers = most })
	a, _ := e.Bind(0, SocketOptions{UID: 7})
	for i := range pinned {
		if err := a.Send(now, netip.AddrPortFrom(peerAddr(i), 4000), nil, 0, Quiet); err != nil {
			t.Fatal(err)
		}
	}
	come := func(i int) error {
		_, err := e.Accept(now, netip.AddrPortFrom(peerAddr(i), 1024))
		return err
	}
	for i := range most - pinned {
		if err := come(1000 + i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 * most { // a whole walk through the table earns itself in 4 ms
		e.evictAt = 0
		now += most * evictSpare
		if err := come(5000 + i); err != nil {
			t.Fatalf("newcomer %d: %v", i, err)
		}
	}
	now += time.Hour // looks are not earned without end
	looked, refused := 0, 0
	for i := range 100 {
		e.evictAt = 0
		if come(10000+i) != nil {
			refused++
		}
		looked += e.evictAt - evictLook
	}
	if refused < 90 || looked != most || e.evictAt != evictLook {
		t.Errorf("of a flood of 100 %d were refused, and for all %d peers were looked at beyond what each may", refused, looked)
	}
	now += evictSpare
	if e.evictAt = 0; come(20000) == nil || e.evictAt != evictLook+1 {
		t.Errorf("with one look earned %d peers were looked at, not %d", e.evictAt, evictLook+1)
	}
}

// Strangers that connect from many addresses, whether or not they say anything or
// hang up, do not fill the table.
func TestPeersOfStrangers(t *testing.T) {
	for _, local := range []string{"10.0.0.1", "10.200.0.1"} { // smaller, larger than theirs
		cfg := DefaultConfig()
		cfg.MaxPeers = 64
		e, now := lone(t, nil)
		e.cfg, e.local = &cfg, netip.MustParseAddr(local)
		s, _ := e.Bind(5000, SocketOptions{})
		open := netip.AddrPortFrom(peerAddr(5000), 4000)
		sink := bindBox(t, e, 5001, 1<<20, SocketOptions{})
		mustOpen(t, sink.s, open, nil)
		for i := range 1000 {
			now += time.Millisecond
			a, err := e.Accept(now, netip.AddrPortFrom(peerAddr(i), 1024))
			if err != nil {
				t.Fatalf("%s: stranger %d: %v", local, i, err)
			}
			if a.Link {
				a.Lane.Lost(now, a.Attempt, 0, nil)
			}
			takeActions(e, nil)
			e.Tick(now)
		}
		if len(e.order) > 64 {
			t.Errorf("%d peers, at most 64", len(e.order))
		}
		if e.known(open.Addr()) == nil {
			t.Error("a peer with a destination open was forgotten")
		}
		if err := s.Send(now, netip.AddrPortFrom(peerAddr(3000), 4000), nil, 0, Quiet); err != nil {
			t.Errorf("%s: a destination after 1,000 strangers: %v", local, err)
		}
		if n := len(taken(e).Evicted); n < 900 || e.Counters().PeersEvicted != uint64(n) {
			t.Errorf("%d forgotten, %d counted", n, e.Counters().PeersEvicted)
		}
		if e.timers.Len() > 2*64+10 {
			t.Errorf("%d timers for %d peers", e.timers.Len(), len(e.order))
		}
	}
}

// Peers that say who they are, ping, and go without acknowledging the answer rest like others,
// whichever side connects: they do not have their places for ever.
func TestPlacesOfPeersThatAreGone(t *testing.T) {
	for _, local := range []string{"10.0.0.1", "10.200.0.1"} { // smaller, larger than theirs
		e, now := lone(t, func(c *Config) { c.MaxPeers = 64 })
		e.local = netip.MustParseAddr(local)
		e.conns.Local = e.local
		greet := func(p *conn.Lane, attempt uint64) {
			x := wire.Handshake{NPaths: 1, Hello: wire.Hello{Version: 1, Lanes: 1, CreditLog2: 10, Incarnation: 7}}
			for _, h := range []wire.Header{{SPort: 1, Ext: x.Encode()}, {DPort: 1, Ext: x.Encode()}, {Seq: 1, SPort: 9}} {
				if err := p.Receive(now, attempt, &transport.Frame{Raw: h.Append(nil)}); err != nil {
					t.Fatal(err)
				}
			}
			p.ReceivedAll(now, attempt)
			b := transport.GetBatch()
			for p.Fill(now, b) { // our answers are not acknowledged
				p.Wrote(now)
				b.Reset()
			}
			b.Put()
			p.Lost(now, attempt, 0, errors.New("gone"))
		}
		for i := range 500 {
			now = ticks(e, now, 200*time.Millisecond)
			a, err := e.Accept(now, netip.AddrPortFrom(peerAddr(i), 1024))
			if err != nil {
				t.Fatalf("%s: stranger %d: %v", local, i, err)
			}
			if a.Link {
				greet(a.Lane, a.Attempt)
			}
			for _, o := range takeActions(e, nil) {
				switch {
				case o.Kind != conn.ActDial:
				case o.Lane == a.Lane && o.Lane.Connected(now, o.Attempt):
					greet(o.Lane, o.Attempt)
				default:
					o.Lane.DialFailed(now, o.Attempt, errors.New("gone"))
				}
			}
			if !a.Lane.Conn().Known() || a.Lane.State() == conn.Up {
				t.Fatalf("%s: stranger %d has not said who it is, or is %v", local, i, a.Lane.State())
			}
		}
		if n := e.Counters().PeersEvicted; len(e.order) != 64 || n != 500-64 {
			t.Errorf("%s: %d peers, %d forgotten", local, len(e.order), n)
		}
	}
}

// A peer that was forgotten and comes again is served like one that comes after a
// restart of ours: what it sends arrives once, in order, and so does what is sent to it.
func TestForgottenPeerComesAgain(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{})
	exchange := func(n byte) {
		t.Helper()
		for _, x := range [][2]*Socket{{s, r}, {r, s}} {
			if err := x[0].Send(w.now, x[1].Addr(), []byte{n}, uint64(n), Reported); err != nil {
				t.Fatal(err)
			}
			w.advance(50 * time.Millisecond)
			d, ok := x[1].Queue().Recv()
			if !ok || len(d.Payload) != 1 || d.Payload[0] != n {
				t.Fatalf("%d: received %v %v", n, ok, d.Payload)
			}
			d.Release()
			if _, more := x[1].Queue().Recv(); more {
				t.Fatalf("%d: received twice", n)
			}
			x[1].ReadAll(w.now)
			if o := x[0].Queue().Outcomes(nil); len(o) != 1 || o[0].Kind != conn.Delivered {
				t.Fatalf("%d: outcomes %v", n, o)
			}
		}
	}
	exchange(1)
	pe := w.a.order[0]
	sent := w.a.Counters().SendQueued
	if w.a.evict(w.now+time.Hour, false, func(*Peer) bool { return true }) {
		t.Fatal("a peer with a link was forgotten")
	}
	for _, e := range []*Engine{w.b, w.a} {
		for _, x := range e.order {
			x.c.EachLane(func(p *conn.Lane) {
				if p.State() == conn.Up {
					p.Lost(w.now, p.Attempt(), 0, errors.New("cut"))
				}
			})
		}
		takeActions(e, nil) // nobody dials
	}
	if w.a.evict(w.now+evictAfter-time.Millisecond, false, func(*Peer) bool { return true }) {
		t.Error("a peer with a history was forgotten at once")
	}
	if !w.a.evict(w.now+evictAfter+time.Second, false, func(*Peer) bool { return true }) {
		t.Fatal("a peer that rests was not forgotten")
	}
	if w.a.known(w.b.Local()) != nil || w.a.Counters().SendQueued != sent {
		t.Errorf("it is known still, or its counters are lost")
	}
	pe.c.EachLane(func(p *conn.Lane) {
		if p.Connected(w.now, p.Attempt()-1) {
			t.Error("a connection of the forgotten peer is taken")
		}
	})
	w.now += time.Minute
	exchange(2)
	exchange(3)
	if w.a.order[0] == pe || w.a.order[0].c.Incarnation() == pe.c.Incarnation() {
		t.Error("it has the incarnation of its former life")
	}
}

// TestRefusalsAreCharged: what a peer has kept beside what any costs is charged, given back when it is not
// kept any more, and refused when there is no memory.
func TestRefusalsAreCharged(t *testing.T) {
	memory := quota.New(64*10*peerCost/32, nil)
	e, now := lone(t, func(c *Config) {
		c.PeerAccount = func(addr netip.Addr) *quota.Account { return memory.Account(quota.Peer(addr)) }
	})
	used := func(want int64) {
		t.Helper()
		if n := memory.Kinds()[quota.Peers].Used; n != want {
			t.Errorf("%d bytes are charged, want %d", n, want)
		}
	}
	pe, err := e.Peer(peerAddr(1))
	if err != nil {
		t.Fatal(err)
	}
	if !pe.Keep(5000, false) || !pe.Keep(3000, true) || pe.Keep(10*peerCost, false) || pe.Keep(10*peerCost, true) {
		t.Error("8,000 bytes are not had, or more than there are")
	}
	used(peerCost + 8000)
	// Of what others leave free it has what is sure.
	other := memory.Account(quota.Peer(peerAddr(2)))
	defer other.Close()
	rest := memory.Limit() - memory.Used() - 4000
	other.Grow(quota.Chunks, rest)
	if pe.Keep(4000, false) || !pe.Keep(4000, true) {
		t.Error("4,000 bytes that others leave free are had, or are not when they are sure")
	}
	pe.Keep(-4000, false)
	other.Give(quota.Chunks, rest)
	used(peerCost + 8000)
	pe.Keep(-3000, false)
	used(peerCost + 5000)
	pe.Keep(-5000, false)
	if !e.Evict(now) {
		t.Fatal("the peer is not forgotten")
	}
	used(0)
}

// Peers are charged before they are there: when memory is spent one that rests makes
// room, and where none does whoever comes is told. Everything comes back.
func TestPeersAreCharged(t *testing.T) {
	const fit = 10
	memory := quota.New(64*fit*peerCost/32, nil) // of which peers have a half
	e, now := lone(t, func(c *Config) {
		c.PeerAccount = func(addr netip.Addr) *quota.Account { return memory.Account(quota.Peer(addr)) }
	})
	used := func() int64 { return memory.Kinds()[quota.Peers].Used }
	s, _ := e.Bind(0, SocketOptions{UID: 7})
	var err error
	n := 0
	for ; n < 2*fit; n++ {
		if err = s.Send(now, netip.AddrPortFrom(peerAddr(n), 4000), nil, 0, Quiet); err != nil {
			break
		}
		if want := int64(n+1) * peerCost; used() != want {
			t.Fatalf("%d peers: %d bytes are charged, want %d", n+1, used(), want)
		}
	}
	if n != fit || !errors.Is(err, rdserr.ErrNoMemory) || !strings.Contains(err.Error(), "peers hold") {
		t.Errorf("%d peers, then %v", n, err)
	}
	if len(memory.Holders()) != fit {
		t.Errorf("%d holders: who was refused has an account", len(memory.Holders()))
	}
	s.Close(now)
	b, _ := e.Bind(0, SocketOptions{UID: 8})
	if err := b.Send(now, netip.AddrPortFrom(peerAddr(100), 4000), nil, 0, Quiet); err != nil {
		t.Errorf("none made room: %v", err)
	}
	if used() != fit*peerCost {
		t.Errorf("%d bytes are charged, want %d", used(), fit*peerCost)
	}
	b.Close(now)
	for e.evict(now, false, func(*Peer) bool { return true }) {
	}
	if used() != 0 || len(memory.Holders()) != 0 || memory.Used() != 0 {
		t.Errorf("%d bytes and %d holders are left of peers that were forgotten", used(), len(memory.Holders()))
	}
}

// Where others hold all the memory but what new peers leave to them, one that nobody knew
// has the place of one that rests, and takes no more than that gave back.
func TestPeersComeWhenMemoryIsSpent(t *testing.T) {
	memory := quota.New(64*peerCost, nil) // of which peers leave 3/64
	e, now := lone(t, func(c *Config) {
		c.PeerAccount = func(addr netip.Addr) *quota.Account { return memory.Account(quota.Peer(addr)) }
	})
	for i := range 2 {
		if _, err := e.Accept(now, netip.AddrPortFrom(peerAddr(i), 16385)); err != nil {
			t.Fatal(err)
		}
	}
	held := memory.Used()
	for i := 0; memory.Limit()-memory.Used() > 2*peerCost; i++ { // users who have little each leave nothing
		if err := memory.Account(quota.User(uint32(i))).Take(quota.Regions, peerCost/8); err != nil {
			t.Fatal(err)
		}
	}
	before := memory.Used()
	_, err := e.Accept(now, netip.AddrPortFrom(peerAddr(100), 16385))
	switch rests := e.Counters().PeersEvicted; {
	case held == 0:
		t.Fatal("peers cost nothing")
	case err != nil && rests > 0:
		t.Errorf("one made room for nobody: %v", err)
	case err == nil && (rests != 1 || memory.Used() != before):
		t.Errorf("%d made room, %d bytes are held where %d were", rests, memory.Used(), before)
	case err != nil:
		t.Errorf("it was refused: %v", err)
	}
}

// A peer that somebody has a destination open to stays, however many others have closed
// sockets that had something to do with it, in whatever state.
func TestOpenDestinationsKeepTheirPeer(t *testing.T) {
	const most = 8
	e, now := lone(t, func(c *Config) { c.MaxPeers = most })
	addr := netip.MustParseAddr("10.9.9.9")
	open := mustOpen(t, bindBox(t, e, 4000, 1<<20, SocketOptions{}).s, netip.AddrPortFrom(addr, 5000), nil)
	pe := e.known(addr)
	for i, what := range []func(s *Socket, dst netip.AddrPort){
		func(s *Socket, dst netip.AddrPort) { // queued, and cancelled by the close
			if err := s.Send(now, dst, []byte("x"), 1, Reported); err != nil {
				t.Fatal(err)
			}
		},
		func(s *Socket, dst netip.AddrPort) { // refused
			pe.cmap.Set(dst.Port(), true)
			if err := s.Send(now, dst, []byte("x"), 1, Reported); err != rdserr.ErrCongested {
				t.Fatal(err)
			}
		},
		func(s *Socket, dst netip.AddrPort) { // waits for its port
			pe.cmap.Set(dst.Port(), true)
			if queued, err := s.SendWait(now, dst, []byte("x"), 1, Reported, 0, nil); !queued || err != nil {
				t.Fatal(queued, err)
			}
		},
		func(s *Socket, dst netip.AddrPort) { s.flow(pe, dst) }, // was found, and nothing else
	} {
		for n := range 3 {
			s, err := e.Bind(uint16(4100+n), SocketOptions{})
			if err != nil {
				t.Fatal(err)
			}
			what(s, netip.AddrPortFrom(addr, uint16(6000+i)))
			s.Close(now)
			e.holds(t)
		}
		pe.cmap.Set(uint16(6000+i), false)
		pe.changed(now, uint16(6000+i), false)
		e.runDeferred(now)
	}
	for i := range byte(4 * most) {
		if _, err := e.Peer(netip.AddrFrom4([4]byte{10, 1, 1, i})); err != nil {
			t.Fatal(err)
		}
		e.holds(t)
	}
	if e.known(addr) != pe || open.f == nil || open.f.s.flows[open.Addr()] != open.f {
		t.Fatal("the peer was given up with a destination that is open to it")
	}
	if _, ok := pe.idleSince(now); ok || pe.busy != 1 {
		t.Errorf("one flow to the peer is busy, and %d are counted", pe.busy)
	}
	open.Close()
	if _, ok := pe.idleSince(now); !ok || pe.busy != 0 {
		t.Errorf("nobody has anything to do with the peer any more, and %d flows are busy", pe.busy)
	}
}

// TestPeerSize: with the 8 bytes that Go puts before it a peer fits into 896, which Go has a size for; the
// next is 1,024.
func TestPeerSize(t *testing.T) {
	if n := unsafe.Sizeof(Peer{}); n > 896-8 {
		t.Errorf("%d bytes", n)
	}
}

// TestTrim: what peers keep for traffic to come is let go, some peers at a time, and what
// somebody needs stays.
func TestTrim(t *testing.T) {
	e, _ := lone(t, nil)
	s, _ := e.Bind(0, SocketOptions{})
	var open *Dest // at the first peer
	for i := range trimPeers + 6 {
		d, err := s.Open(netip.AddrPortFrom(peerAddr(i), 4000), nil)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			d.Close()
		} else {
			open = d
		}
	}
	e.conns.FreeMsg(e.conns.NewMsg())
	e.cver++ // as if a port had been congested
	if _, _, whole := e.localCongestion(0, true); len(whole) != 8192 {
		t.Fatalf("a map has %d bytes", len(whole))
	}
	if next := e.Trim(0); next != trimPeers || e.conns.Spare != 1 {
		t.Fatalf("the next is %d, and %d messages are kept; want %d peers at a time, and the rest at the end", next, e.conns.Spare, trimPeers)
	}
	if next := e.Trim(trimPeers); next != 0 || e.conns.Spare != 0 || e.cwhole != nil {
		t.Errorf("the next is %d, %d messages and a map of %d bytes are kept; want the end and none", next, e.conns.Spare, len(e.cwhole))
	}
	for i, pe := range e.order {
		if kept := pe.ports != nil; kept != (i == 0) {
			t.Errorf("peer %d of %d keeps its ports: %v", i, len(e.order), kept)
		}
	}
	if open.Close(); len(e.order[0].ports) != 0 {
		t.Error("the port of a destination that is closed is still there")
	}
	if _, _, whole := e.localCongestion(0, true); len(whole) != 8192 {
		t.Errorf("a map has %d bytes after", len(whole))
	}
	if next := e.Trim(1 << 20); next != 0 { // peers were forgotten meanwhile
		t.Errorf("behind the last peer comes %d", next)
	}
}
