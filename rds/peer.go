package rds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/mutant"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Peer is one remote address as the sockets see it: its connection, its
// congestion map, and who waits for which of its ports. The engine's own
// address is a Peer without a connection.
type Peer struct {
	e       *Engine
	c       *conn.Conn // nil: this address itself
	addr    netip.Addr
	cmap    cong.Map
	since   map[uint16]time.Duration // congested since
	waiters map[uint16][]*flow
	opened  map[uint16][]*flow // destinations sockets have open, by port
	blocked map[uint16]uint64  // sends refused or made to wait, of ports congested now
	ctr     stats.Counters
	tm      timer
	isFull  bool
}

// Peer finds or makes the peer of an address.
func (e *Engine) Peer(addr netip.Addr) (*Peer, error) {
	if e.lastPeer != nil && e.lastPeer.addr == addr {
		return e.lastPeer, nil
	}
	if addr == e.local {
		return e.loop, nil
	}
	pe := e.peers[addr]
	if pe == nil {
		switch {
		case !addr.IsValid() || addr.IsUnspecified():
			return nil, rdserr.With(rdserr.ErrDestination, "the destination address %v is no address of a node", addr)
		case addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			return nil, rdserr.With(rdserr.ErrInvalid, "the destination address %v is a multicast or broadcast address; RDS sends to one node", addr)
		case addr.Is4() != e.local.Is4():
			return nil, rdserr.With(rdserr.ErrFamily, "the socket's address %v and the destination %v are not of the same family", e.local, addr)
		case e.cfg.AllowPeer != nil && !e.cfg.AllowPeer(addr):
			return nil, rdserr.With(rdserr.ErrHostDown, "%v is not an allowed peer; allow it with a [[peers]] entry of the configuration", addr)
		case len(e.peers) >= e.cfg.MaxPeers:
			return nil, rdserr.With(rdserr.ErrNoMemory, "the limit of %d peers is reached", e.cfg.MaxPeers)
		}
		pe = &Peer{e: e, addr: addr}
		pe.c = conn.New(&e.cfg.Conn, pe, e.rng, &pe.ctr, e.local, addr)
		e.peers[addr] = pe
		e.order = append(e.order, pe)
	}
	e.lastPeer = pe
	return pe, nil
}

// Peers lists the peers in the order they became known.
func (e *Engine) Peers() []*Peer { return e.order }

// Addr is the peer's address.
func (pe *Peer) Addr() netip.Addr { return pe.addr }

// Conn is its connection; nil for the engine's own address.
func (pe *Peer) Conn() *conn.Conn { return pe.c }

// Counters are the peer's own.
func (pe *Peer) Counters() stats.Counters { return pe.ctr }

// CongestedPorts counts the peer's congested ports.
func (pe *Peer) CongestedPorts() int { return pe.cmap.Len() }

func (pe *Peer) tick(now time.Duration) {
	pe.tm.t = nil
	pe.c.Tick(now)
}

// --- conn.Owner ---------------------------------------------------------------

// Deliver places a datagram for one of our ports.
func (pe *Peer) Deliver(p *conn.Path, seq uint64, sport, dport uint16, t wire.Train, f *transport.Frame) conn.Verdict {
	s := pe.e.sock(dport)
	if s == nil {
		return conn.NoPort
	}
	v := s.place(pe, p, seq, sport, t, f)
	if v == conn.NoRoom && !pe.isFull {
		pe.isFull = true
		pe.e.full = append(pe.e.full, pe)
	}
	return v
}

// Congested asks the peer's map.
func (pe *Peer) Congested(port uint16) bool {
	if pe.c == nil {
		return pe.e.cmap.Congested(port)
	}
	return pe.cmap.Congested(port)
}

// CongestionMap takes over the peer's whole map.
func (pe *Peer) CongestionMap(now time.Duration, m []byte) {
	pe.cmap.Replace(m, func(p uint16, on bool) { pe.changed(now, p, on) })
}

// CongestionDelta takes over one change.
func (pe *Peer) CongestionDelta(now time.Duration, s wire.PortState) {
	if pe.cmap.Set(s.Port, s.Congested) {
		pe.changed(now, s.Port, s.Congested)
	}
}

func (pe *Peer) changed(now time.Duration, port uint16, on bool) {
	if on {
		if pe.since == nil {
			pe.since = make(map[uint16]time.Duration)
		}
		pe.since[port] = now
	} else {
		delete(pe.since, port)
		delete(pe.blocked, port)
		pe.e.cleared = append(pe.e.cleared, clearedPort{pe, port})
	}
	pe.e.note(netip.AddrPortFrom(pe.addr, port), pe.c == nil, on)
	pe.e.tellMonitors(pe, port, on)
	for _, f := range pe.opened[port] {
		for _, d := range f.dests {
			f.s.opt.Sink.Changed(d, on)
		}
	}
}

// LocalCongestion: see conn.Owner.
func (pe *Peer) LocalCongestion(since uint64, wholeOnly bool) (uint64, []wire.PortState, []byte) {
	return pe.e.localCongestion(since, wholeOnly)
}

// Blocked: see conn.Owner.
func (pe *Peer) Blocked() bool { return len(pe.blocked) > 0 }

// MayGrant: credits are given while a tenth of the memory budget is left.
func (pe *Peer) MayGrant() bool {
	b := pe.e.cfg.Budget
	return b.Used() < b.Limit-b.Limit/10
}

// AllowKernel: see conn.Owner.
func (pe *Peer) AllowKernel() bool {
	return pe.e.cfg.AllowKernel == nil || pe.e.cfg.AllowKernel(pe.addr)
}

// Emit: see conn.Owner.
func (pe *Peer) Emit(a conn.Action) { pe.e.actions = append(pe.e.actions, a) }

// Arm: see conn.Owner.
func (pe *Peer) Arm(at time.Duration) { pe.e.arm(&pe.tm, pe, at) }

// StateChanged: see conn.Owner.
func (pe *Peer) StateChanged(p *conn.Path, was conn.State) {
	if len(pe.e.states) < 1024 {
		pe.e.states = append(pe.e.states, StateChange{p, was, p.State(), p.Info().LastErr})
	}
}

// NewMsg: see conn.Owner.
func (pe *Peer) NewMsg() *conn.Msg { return pe.e.newMsg() }

// FreeMsg: see conn.Owner.
func (pe *Peer) FreeMsg(m *conn.Msg) { pe.e.freeMsg(m) }

// Measured: see conn.Owner.
func (pe *Peer) Measured(d time.Duration) { pe.e.QueueNs.Add(d) }

// MeasuredRTT: see conn.Owner.
func (pe *Peer) MeasuredRTT(d time.Duration) { pe.e.RTTNs.Add(d) }

// --- who waits for a port ---------------------------------------------------------

func (pe *Peer) await(port uint16, f *flow) {
	if pe.waiters == nil {
		pe.waiters = make(map[uint16][]*flow)
	}
	pe.waiters[port] = append(pe.waiters[port], f)
}

func (pe *Peer) unawait(port uint16, f *flow) {
	w := pe.waiters[port]
	if i := slices.Index(w, f); i >= 0 {
		w = slices.Delete(w, i, i+1)
	}
	if len(w) == 0 {
		delete(pe.waiters, port)
	} else {
		pe.waiters[port] = w
	}
}

// wake lets every flow that waits for port try again.
func (pe *Peer) wake(now time.Duration, port uint16) {
	w := pe.waiters[port]
	delete(pe.waiters, port)
	if mutant.On(mutant.LoseWake) {
		return
	}
	for _, f := range w {
		f.awaits = false
		f.s.lineUp(f)
		f.s.hasSpace()
	}
}

// block notes a send that is refused or has to wait because port is congested.
func (pe *Peer) block(now time.Duration, port uint16) {
	if pe.blocked == nil {
		pe.blocked = make(map[uint16]uint64)
	}
	if len(pe.blocked) < 4096 || pe.blocked[port] > 0 {
		pe.blocked[port]++
	}
	if pe.c != nil {
		pe.c.Blocked(now)
	}
}
