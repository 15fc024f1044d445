package rds

import (
	"maps"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
)

// flow is the state of one socket for one destination: the messages under way, sends that
// wait, destinations it opened, and whether it wants news of the port's congestion.
// Everything about a destination hangs on its flow and everything about a port of a peer on
// the flows to it, so that the cost of closing, cancelling and telling a change depends on
// the flows concerned alone.
//
// A flow that has none of this is idle. The idle flows of an engine are kept in the order
// in which they became idle, up to maxIdleFlows: a client that sends one datagram after the
// other always finds its flow.
type flow struct {
	s   *Socket
	pe  *Peer
	dst netip.AddrPort

	out        conn.Sender // accepted, with the connection
	q          msgs        // waits here
	dests      []*Dest     // open to it
	awaitsPort bool        // q: the port is congested
	refused    bool        // the socket hears of changes of the port
	fee        fee         // who pays for it

	links [numFlowLists]flowLink
}

// maxIdleFlows bounds the memory of idle flows. Those that are paid for are dropped when memory
// is wanted.
const maxIdleFlows = 4096

// fee says who pays for a flow. A client makes as many as it names destinations, so that a flow is
// charged to the socket's account before it has anything to hold, beyond the first few of a socket,
// which are in what a socket is charged with. What waits to be accepted is charged by who calls SendWait,
// with a flow for it, and its flow is paid for when it is accepted. Whoever is refused a datagram leaves a flow behind that
// is not paid for: it is idle, and of these the engine has maxIdleFlows at most.
type fee uint8

const (
	unpaid fee = iota
	within     // one of freeFlows
	paid       // FlowBytes
)

// freeFlows is how many flows a socket has that cost nothing.
const freeFlows = 16

// FlowBytes is the memory of a flow: itself, its place in the table of the socket, and if it is
// open, or waits for its port, a Dest and the entry of the port. 420 to 600 bytes were measured.
const FlowBytes = 608

// cost is what f is charged with while it has something to hold.
func (f *flow) cost() int {
	if f.fee == within || f.fee == unpaid && f.s.flowsFree < freeFlows {
		return 0
	}
	return FlowBytes
}

// price is what of it is still to be paid.
func (f *flow) price() int {
	if f.fee != unpaid {
		return 0
	}
	return f.cost()
}

// pay charges f to its socket. Whoever calls has asked whether there is room for its price.
func (f *flow) pay() {
	s := f.s
	if f.fee != unpaid {
		return
	}
	if f.cost() == 0 {
		f.fee = within
		s.flowsFree++
		return
	}
	f.fee = paid
	s.e.paidFlows++
	s.spend(FlowBytes)
}

// repay ends it.
func (f *flow) repay() {
	switch f.fee {
	case within:
		f.s.flowsFree--
	case paid:
		f.s.e.paidFlows--
		f.s.spend(-FlowBytes)
	}
	f.fee = unpaid
}

// The lists a flow may be in.
const (
	byIdle    = iota // Engine.idle
	byPeer           // Peer.flows
	byOpened         // peerPort.opened: it has dests
	byWaiting        // peerPort.waiters: it awaits the port
	byRefused        // peerPort.refused
	byLined          // Socket.lined: the send buffer, or the node's memory, is full
	byQueued         // Socket.holding: something waits here
	numFlowLists
)

type flowLink struct {
	next, prev *flow
	on         bool
}

// flowList is a list of flows, linked by the field of links it is made for.
type flowList struct {
	head, tail *flow
	n          int
}

func (l *flowList) push(by int, f *flow) {
	k := &f.links[by]
	if k.on {
		return
	}
	*k = flowLink{prev: l.tail, on: true}
	if l.tail == nil {
		l.head = f
	} else {
		l.tail.links[by].next = f
	}
	l.tail = f
	l.n++
}

// unshift puts f before the others.
func (l *flowList) unshift(by int, f *flow) {
	k := &f.links[by]
	if k.on {
		return
	}
	*k = flowLink{next: l.head, on: true}
	if l.head == nil {
		l.tail = f
	} else {
		l.head.links[by].prev = f
	}
	l.head = f
	l.n++
}

func (l *flowList) remove(by int, f *flow) {
	k := &f.links[by]
	if !k.on {
		return
	}
	if k.prev == nil {
		l.head = k.next
	} else {
		k.prev.links[by].next = k.next
	}
	if k.next == nil {
		l.tail = k.prev
	} else {
		k.next.links[by].prev = k.prev
	}
	*k = flowLink{}
	l.n--
}

// each calls f for every flow of the list; it may take the one it is called for out.
func (l *flowList) each(by int, do func(f *flow)) {
	for f := l.head; f != nil; {
		next := f.links[by].next
		do(f)
		f = next
	}
}

// flow finds or makes the flow to dst.
func (s *Socket) flow(pe *Peer, dst netip.AddrPort) *flow {
	f := s.flows[dst]
	if f == nil {
		f = &flow{s: s, pe: pe, dst: dst}
		f.out = conn.NewSender(f)
		if s.flows == nil {
			s.flows = make(map[netip.AddrPort]*flow)
		}
		s.flows[dst] = f
		s.flowsMost = max(s.flowsMost, uint32(len(s.flows)))
		pe.flows.push(byPeer, f)
		pe.busy++
		s.endFlow(f) // until it has something to do
	}
	s.lastFlow = f
	return f
}

// find is the flow to dst if there is one.
func (s *Socket) find(dst netip.AddrPort) *flow {
	if f := s.lastFlow; f != nil && f.dst == dst {
		return f
	}
	f := s.flows[dst]
	if f != nil {
		s.lastFlow = f
	}
	return f
}

func (f *flow) rests() bool {
	return f.out.Messages() == 0 && f.q.head == nil && len(f.dests) == 0 && !f.refused
}

// endFlow notes that f may have become idle. One that is not idle any more stays
// in the list until its turn comes, so that going back and forth costs nothing.
func (s *Socket) endFlow(f *flow) {
	if f.links[byIdle].on && !s.closed || !f.rests() {
		return
	}
	if s.closed {
		f.forget()
		return
	}
	e := s.e
	e.idle.push(byIdle, f)
	f.pe.busy--
	e.dropIdle(e.idle.n - maxIdleFlows)
}

// dropIdle takes so many out of the idle flows, those that have been idle longest, and forgets them.
func (e *Engine) dropIdle(most int) {
	for ; most > 0 && e.idle.n > 0; most-- {
		old := e.idle.head
		e.stir(old)
		// It may have become busy since it was put here, without having been taken out.
		if old.rests() {
			old.forget()
		}
	}
}

// DropIdle gives back memory of flows that have nothing to hold, and reports of how many: sockets of
// this engine or of another one of the node wait for memory (Orders.Collect). It is called between
// steps, and followed by End.
func (e *Engine) DropIdle() (n int) {
	n = e.dropPaid()
	e.tell()
	return n
}

// dropPaid forgets flows that have nothing to hold and are paid for, idleAtOnce of them at most.
func (e *Engine) dropPaid() (n int) {
	for f := e.idle.head; f != nil && n < idleAtOnce && e.paidFlows > 0; {
		next := f.links[byIdle].next
		if f.fee == paid && f.rests() {
			f.forget()
			n++
		}
		f = next
	}
	return n
}

// idleAtOnce are some hundred microseconds' work, for which others wait.
const idleAtOnce = 1024

// stir takes f out of the idle ones.
func (e *Engine) stir(f *flow) {
	if f.links[byIdle].on {
		e.idle.remove(byIdle, f)
		f.pe.busy++
	}
}

// forget ends f. A socket that closes comes here once for each thing that the flow loses,
// and only the first call counts: a peer with a flow too few among its busy ones would be
// given up although others have destinations open there.
func (f *flow) forget() {
	s, pe := f.s, f.pe
	if s.flows[f.dst] != f {
		return
	}
	if f.links[byIdle].on {
		s.e.idle.remove(byIdle, f)
	} else {
		pe.busy--
	}
	pe.flows.remove(byPeer, f)
	delete(s.flows, f.dst)
	s.flows = fit(s.flows, &s.flowsMost)
	if s.lastFlow == f {
		s.lastFlow = nil
	}
	f.repay()
	// A send that was refused may have left the entry of the port, and nobody that it concerns.
	pe.tidy(f.dst.Port())
}

// fit returns m, or a copy of it when most, the most entries that it has had, are many more than it
// has now: a map keeps its memory when entries are deleted, and these were charged one by one.
func fit[K comparable, V any](m map[K]V, most *uint32) map[K]V {
	if *most <= keptEntries || len(m) > int(*most/4) {
		return m
	}
	*most = uint32(len(m))
	if len(m) == 0 {
		return nil
	}
	n := make(map[K]V, len(m))
	maps.Copy(n, m)
	return n
}

// keptEntries may be kept by a map that is empty.
const keptEntries = 64
