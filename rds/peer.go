package rds

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// Peer is one remote address as the sockets see it: its connection, its congestion map, and
// the flows that wait for its ports. The engine's own address is a Peer without a
// connection.
type Peer struct {
	e            *Engine
	c            *conn.Conn // nil: this address itself
	addr         netip.Addr
	cmap         *cong.Map // of its ports: theirs, or the engine's own
	owed         uint32    // datagrams to it, of all sockets, that have no outcome yet or wait to be accepted
	asked        uint16    // answers due to AskReaders
	askFrom      uint16    // port that the next question begins with
	theirs       cong.Map
	flows        flowList             // of all sockets
	busy         int                  // of them, not among the idle ones
	ports        map[uint16]*peerPort // that concern a socket here
	late         []*peerPort          // whose change was not told yet
	lateTm       timer
	mapAt        time.Duration // last change
	mapTold      time.Duration // when all ports were last told
	blockedPorts int           // of ports, with sends refused or made to wait
	ctr          stats.Counters
	tm           timer
	allLate      bool // a whole map was not told yet
	isFull       bool
	answered     bool   // something is there
	portsMost    uint32 // of ports; see fit

	asking time.Duration // when the last question of the peer was

	at      int // in Engine.order
	origin  origin
	account *quota.Account // it is charged to; nil: none
}

// Peer finds or makes the peer of an address.
func (e *Engine) Peer(addr netip.Addr) (*Peer, error) { return e.peer(e.now, addr, origin{}) }

func (e *Engine) peer(now time.Duration, addr netip.Addr, o origin) (*Peer, error) {
	if e.lastPeer != nil && e.lastPeer.addr == addr {
		return e.lastPeer, nil
	}
	if addr == e.local {
		return e.loop, nil
	}
	pe := e.peers[addr]
	if pe == nil {
		if err := e.mayPeer(addr); err != nil {
			return nil, err
		}
		// A client that names a destination or a node that connects makes a peer, so the table is
		// bounded, and its memory is charged to an account.
		if err := e.makeRoom(now, o); err != nil {
			return nil, err
		}
		account, err := e.chargePeer(now, addr)
		if err != nil {
			return nil, err
		}
		pe = &Peer{e: e, account: account, addr: addr, mapTold: -tellEvery, at: len(e.order), origin: o, asking: -answerEvery}
		if o.named {
			e.count(o.uid, 1)
		}
		pe.cmap = &pe.theirs
		pe.c = conn.New(&e.conns, pe, &pe.ctr, addr)
		e.peers[addr] = pe
		e.order = append(e.order, pe)
	}
	e.lastPeer = pe
	return pe, nil
}

// known finds the peer of an address, nil when there is none.
func (e *Engine) known(addr netip.Addr) *Peer {
	if addr == e.local {
		return e.loop
	}
	return e.peers[addr]
}

// mayPeer says why an address can be no peer.
func (e *Engine) mayPeer(addr netip.Addr) error {
	switch {
	case !addr.IsValid() || addr.IsUnspecified():
		return rdserr.With(rdserr.ErrDestination, "the destination address %v is no address of a node", addr)
	case addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return rdserr.With(rdserr.ErrInvalid, "the destination address %v is a multicast or broadcast address; RDS sends to one node", addr)
	case addr.Is4() != e.local.Is4():
		return rdserr.With(rdserr.ErrFamily, "the socket's address %v and the destination %v are not of the same family", e.local, addr)
	case e.cfg.AllowPeer != nil && !e.cfg.AllowPeer(addr):
		return rdserr.With(rdserr.ErrHostDown, "%v is not an allowed peer; allow it with a [[peers]] entry of the configuration", addr)
	}
	return nil
}

// Peers lists the peers, about in the order they became known.
func (e *Engine) Peers() []*Peer { return e.order }

// Known finds the peer of an address, nil when there is none.
func (e *Engine) Known(addr netip.Addr) *Peer { return e.peers[addr] }

// Addr is the peer's address.
func (pe *Peer) Addr() netip.Addr { return pe.addr }

// AddrPort is a port of the peer.
func (pe *Peer) AddrPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(pe.addr, port) }

// Owed is how many datagrams of sockets here are to go there or are not acknowledged: on their way, before
// a congested port, or waiting to be accepted.
func (pe *Peer) Owed() int { return int(pe.owed) }

// Conn is its connection; nil for the engine's own address.
func (pe *Peer) Conn() *conn.Conn { return pe.c }

// Counters are the peer's own.
func (pe *Peer) Counters() stats.Counters { return pe.ctr }

// CongestedPorts counts the peer's congested ports.
func (pe *Peer) CongestedPorts() int { return pe.cmap.Len() }

// AppendCongested appends which of the peer's ports are congested: 8,192 bytes, in which
// bit p%8 of byte p/8 stands for port p.
func (pe *Peer) AppendCongested(b []byte) []byte { return pe.cmap.AppendTo(b) }

func (pe *Peer) tick(now time.Duration) {
	pe.tm.t = nil
	pe.c.Tick(now)
}

// trim lets go what is kept for traffic to come.
func (pe *Peer) trim() {
	pe.c.Trim()
	if len(pe.ports) == 0 {
		pe.ports = nil
	}
}

// --- conn.Owner ---------------------------------------------------------------

// Deliver places a datagram for one of our ports.
func (pe *Peer) Deliver(a conn.Arrival) conn.Verdict {
	v := conn.NoPort
	if s := pe.e.sock(a.DPort); s != nil && a.Skipped > 0 {
		v = s.lacked(a)
	} else if s != nil {
		v = s.place(pe, a)
	} else if pe.e.held.has(a.DPort) {
		v = conn.NoRoom // until its owner is back, or for good (Leave)
	}
	if pe.e.tracer != nil {
		pe.tracePlaced(a, v)
	}
	// A kernel's link pauses for this: the peer is remembered, to be resumed when any
	// receiver has room (roomAgain).
	if v == conn.NoRoom && !pe.isFull {
		pe.isFull = true
		pe.e.full = append(pe.e.full, pe)
	}
	return v
}

// Told implements conn.Owner.
func (pe *Peer) Told(now time.Duration, topic conn.Topic, payload []byte) error {
	switch topic {
	case conn.ToldMap:
		pe.CongestionMap(now, payload)
	case conn.ToldOldMap:
		m := pe.cmap.AppendTo(nil)
		for i := range m {
			m[i] &= payload[i]
		}
		pe.CongestionMap(now, m)
	case conn.ToldPorts:
		return wire.ParsePortStates(payload, func(s wire.PortState) { pe.CongestionDelta(now, s) })
	case conn.ToldAsk:
		return pe.tellReaders(now, payload)
	case conn.ToldReader:
		return pe.readerTold(now, payload)
	}
	return nil
}

// LocalCongestion implements conn.Owner.
func (pe *Peer) LocalCongestion(since uint64, wholeOnly bool) (uint64, []wire.PortState, []byte) {
	return pe.e.localCongestion(since, wholeOnly)
}

// Keep implements conn.Owner: what is kept is the peer's, like the rest of what it costs.
func (pe *Peer) Keep(n int, sure bool) bool {
	switch a := pe.account; {
	case a == nil:
	case n > 0 && sure:
		return a.Sure(quota.Peers, int64(n)) == nil
	case n > 0:
		return a.Take(quota.Peers, int64(n)) == nil
	default:
		pe.account.Give(quota.Peers, int64(-n))
	}
	return true
}

// MayGrant implements conn.Owner. A peer without credits sends nothing that a socket could refuse and
// wait for, so what clients have released is asked for here, too.
func (pe *Peer) MayGrant() bool {
	may := pe.e.mayGrant()
	if !may {
		pe.e.armMemoryTimer(pe.e.now)
	}
	return may
}

// mayGrant reports whether a tenth of the memory budget is left, while which credits are given.
func (e *Engine) mayGrant() bool {
	free, _, _ := e.room(nil, 0)
	return free > e.cfg.Budget.Limit/10
}

// Arm implements conn.Owner.
func (pe *Peer) Arm(at time.Duration) { pe.e.arm(&pe.tm, pe, at) }

// Refused implements conn.Owner.
func (pe *Peer) Refused(m *conn.Msg) {
	if pe.e.tracer != nil {
		pe.e.traceMsg(StageRefused, m)
	}
}
