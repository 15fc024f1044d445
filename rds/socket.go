package rds

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// SocketOptions of a socket. Zero buffers take the engine's defaults.
type SocketOptions struct {
	SndBufBytes int
	RcvBufBytes int // soft limit: above it the port is congested
	UID, PID    uint32
	Label       string
	Data        any // the shell's
	// Account is charged for the socket's datagrams, beside the Budget; nil: none is.
	Account *quota.Account
	// Sink takes received datagrams and outcomes; nil: a Queue does, which Socket.Queue
	// returns.
	Sink Sink
}

// Events a socket can have.
const (
	EvReadable   = 1 << iota // the queue was empty, and something can be received
	EvOutcomes               // outcomes can be fetched
	EvSends                  // waiting sends were decided
	EvCongestion             // congestion news can be fetched
	EvFlushed                // flushes were answered
	EvWritable               // there is room again, after a Send or Admit that found none: half of the send buffer, or memory of the node
)

// SendDone is the end of a waiting send: accepted when Err is nil.
type SendDone struct {
	Batch any
	Tag   uint64
	Err   error
}

// Stats of a socket. Accepted = Delivered + Cancelled + Failed + Unknown + in
// flight, at every instant (D3).
type Stats struct {
	Accepted, Delivered, Cancelled, Failed, Unknown uint64
	Received, ReceivedBytes                         uint64
}

// Socket is one (address, port) of one local client. The engine's lock guards it.
// The kernel calls it struct rds_sock (net/rds/rds.h). Its invariants are tested by
// holds in rules_test.go.
type Socket struct {
	e    *Engine
	id   uint64
	port uint16
	opt  SocketOptions

	sink     Sink     // opt.Sink, or queue
	queue    *Queue   // nil: the client has memory of its own
	reserver Reserver // sink, if it is one

	// Sending, from acceptance to outcome (send.go).
	//
	// Invariant: Stats.Accepted == Delivered + Cancelled + Failed + Unknown + undecided.
	// Invariant: used is the payload of the undecided datagrams; one is accepted while
	// used < SndBufBytes, and may pass it (net/rds/send.c, rds_send_queue_rm).

	used      int // bytes
	undecided int // datagrams without an outcome, at most MaxUndecided when one is accepted
	// flows are the destinations that hold something of this socket, or that it has
	// opened; lastFlow is that of the last lookup.
	flows     map[netip.AddrPort]*flow
	flowsMost uint32 // of flows; see fit
	flowsFree int    // flows that are not charged, freeFlows at most
	lastFlow  *flow
	kept      int // bytes that Keep has charged
	// lingers says that a closed socket has datagrams undecided: their payload may be the
	// client's memory, and is read until the last has its outcome.
	lingers bool

	// Waiting for acceptance (wait.go). A flow with something in its queue is lined up or
	// awaits its port (flow.awaitsPort), never both.
	//
	// Invariant: waiting + held is the number of datagrams in the flows' queues, and held
	// <= undecided. Of all sockets undecided and waiting are Peer.owed of all peers.

	lined    flowList      // flows that wait for the send buffer or for memory, in turn
	holding  flowList      // flows with something in their queues
	waiting  int           // datagrams that are not accepted yet
	held     int           // accepted ones: from Post, or without room at this very address
	deadline time.Duration // the first of those of waiting sends; Never: none has one
	lookAt   time.Duration // before when those whose deadline has passed are not looked for
	// spaceListed says that the socket is in Engine.space: its lined-up flows go on when
	// the step ends.
	spaceListed bool
	// wantSpace says that a send found the buffer full: EvWritable follows when half
	// of it is free.
	wantSpace bool
	// batches holds the batch that SendWait was given with each waiting datagram, by the
	// message's Cookie; batchFree are unused places in it.
	batches   []any
	batchFree []uint32
	sends     []SendDone // waiting sends that were decided, not fetched yet

	// Outcomes that the queue has and nobody has fetched, and flushes (flush.go).
	//
	// Invariant: the sum of n over epochs is undecided.

	outcomesN  int     // datagrams
	epochs     []epoch // places for epochs, see conn.Msg.Epoch
	firstEpoch uint32
	lastEpoch  uint32 // of what is accepted now
	freeEpoch  uint32 // noEpoch: no place is free
	flushes    []flush
	flushed    []uint64

	// Receiving (recv.go).
	//
	// Soft account: queued, payload bytes as in the kernel (net/rds/recv.c,
	// rds_recv_rcvbuf_delta); above RcvBufBytes the port is congested. Hard account: mem,
	// the memory they really take, which no peer takes above hard. A client's own memory is
	// a hard limit whose size the sink alone knows: hard is math.MaxInt then, and fullAt the
	// value of mem when there was no room. Invariant, of a socket with a queue: queued <=
	// mem <= hard.

	queued int
	aside  int // of RcvBufBytes, for pairs (paired.go)
	mem    int
	hard   int
	fullAt int // hard: there was room always
	unread int // datagrams that the sink has
	paired PairedUnread
	// congested is our port's bit in Engine.cmap, but for ports that are held.
	congested   bool
	congestedAt time.Duration
	// wasFull says that something found no room: peers wait for ReadAll to make some.
	wasFull      bool
	toldWantRoom bool   // the last value told to Sink.WantRoom
	tracedTo     uint64 // a trace follows the datagram before this number; 0: none

	// Waiting for memory of the node (memwait.go).

	recvWaitAt int // position in Engine.recvWaiters, from 1: a datagram that arrived was refused for want of memory
	recvNeeds  int // how many bytes that was, the smallest since
	sendWaitAt int // position in Engine.sendWaiters, from 1: a send was refused for it
	sendNeeds  int // how many bytes that was, the smallest since

	// Congestion news of destinations (Monitor, SetMonitor; net/rds/cong.c,
	// rds_cong_map_updated).

	mon     Monitor
	monAt   int      // position in Engine.monitors, from 1
	freed   uint64   // groups of ports that became clear, not fetched yet
	changes []Change // likewise, at most maxRefused
	refused int      // flows whose changes the socket hears of, at most maxRefused
	// crowded says that one more was to be remembered since the client was last told to look at
	// all: any group that becomes clear may be that destination's.
	crowded bool

	boundAt int // position in Engine.bound, from 1
	events  int // news since Events was called last
	listed  bool
	closed  bool
	Stats   Stats
	tm      timer // for deadline
}

// Bind makes a socket on port, or on a random free port when that is 0
// (net/rds/bind.c).
func (e *Engine) Bind(port uint16, o SocketOptions) (*Socket, error) {
	switch {
	case port == wire.PortProbe:
		return nil, rdserr.With(rdserr.ErrInvalid, "port 1 is reserved for the RDS handshake; bind 0 for any free port, or 2 to 65535")
	case len(e.socks) >= e.cfg.MaxSockets:
		return nil, rdserr.With(rdserr.ErrTooMany, "the limit of %d sockets on %v is reached", e.cfg.MaxSockets, e.local)
	case o.SndBufBytes < 0 || o.RcvBufBytes < 0 || o.SndBufBytes > e.cfg.MaxBufBytes || o.RcvBufBytes > e.cfg.MaxBufBytes:
		return nil, rdserr.With(rdserr.ErrInvalid, "a buffer of %d or %d bytes was asked for; at most %d are allowed", o.SndBufBytes, o.RcvBufBytes, e.cfg.MaxBufBytes)
	case port != 0 && e.socks[port] != nil:
		return nil, rdserr.With(rdserr.ErrAddrInUse, "%v is bound by another socket (uid %d, pid %d)", netip.AddrPortFrom(e.local, port), e.socks[port].opt.UID, e.socks[port].opt.PID)
	}
	// After a restart of the daemon ports are held for the users they belonged to.
	if err := e.mayTake(port, o.UID); err != nil {
		return nil, err
	}
	if port == 0 {
		if port = e.freePort(); port == 0 {
			return nil, rdserr.With(rdserr.ErrAddrInUse, "all ports of %v are bound", e.local)
		}
	}
	if o.SndBufBytes == 0 {
		o.SndBufBytes = e.cfg.SndBufBytes
	}
	if o.RcvBufBytes == 0 {
		o.RcvBufBytes = e.cfg.RcvBufBytes
	}
	e.nextID++
	s := &Socket{e: e, id: e.nextID, port: port, opt: o, deadline: conn.Never}
	s.newEpochs()
	s.sink, s.hard = o.Sink, math.MaxInt
	if o.Sink == nil {
		s.queue = &Queue{s: s}
		// HardFactor times the soft limit, and room for one datagram of the largest size.
		s.sink, s.hard = s.queue, e.cfg.HardFactor*o.RcvBufBytes+buf.SizeOf(wire.MaxDatagram)+itemOverhead
	}
	s.fullAt = s.hard
	s.reserver, _ = s.sink.(Reserver)
	e.socks[port] = s
	e.endHold(port)
	e.held.tellBound(port, o.UID)
	e.bound = append(e.bound, s)
	s.boundAt = len(e.bound)
	return s, nil
}

// freePort picks a random free port, from 1024 up so that the low ones stay for clients
// that name them. Ports closed recently are used only when there is no other.
func (e *Engine) freePort() uint16 {
	start := 1024 + e.conns.Rng.Intn(65536-1024)
	resting := uint16(0)
	for i := range 65536 - 2 {
		p := start + i
		if p > 65535 {
			p = p - 65536 + wire.PortFirst
		}
		switch free, rested := e.Free(uint16(p)); {
		case rested:
			return uint16(p)
		case free && resting == 0:
			resting = uint16(p)
		}
	}
	return resting
}

// Free tells whether a port that can be bound is bound by nobody and held for nobody, and if so
// whether that has been so for a while: others are for when there is none of those.
func (e *Engine) Free(port uint16) (free, rested bool) {
	free = e.socks[port] == nil && !e.held.has(port)
	return free, free && !e.rest.has(port)
}

func (e *Engine) sock(port uint16) *Socket {
	if s := e.lastSock; s != nil && s.port == port {
		return s
	}
	s := e.socks[port]
	if s != nil {
		e.lastSock = s
	}
	return s
}

// Socket finds the socket bound to port, nil when there is none.
func (e *Engine) Socket(port uint16) *Socket { return e.socks[port] }

// Sockets lists the sockets by port.
func (e *Engine) Sockets() []*Socket {
	l := make([]*Socket, 0, len(e.socks))
	for _, s := range e.socks {
		l = append(l, s)
	}
	slices.SortFunc(l, func(a, b *Socket) int { return int(a.port) - int(b.port) })
	return l
}

// Bound lists the sockets in no order, which takes much less time.
func (e *Engine) Bound() []*Socket { return slices.Clone(e.bound) }

// Closed reports whether Close was called.
func (s *Socket) Closed() bool { return s.closed }

// Addr returns the address the socket is bound to.
func (s *Socket) Addr() netip.AddrPort { return netip.AddrPortFrom(s.e.local, s.port) }

// Options are those of Bind with the defaults filled in.
func (s *Socket) Options() *SocketOptions { return &s.opt }

// Queue is where a client without memory of its own finds what the socket has for it; nil:
// the socket has another Sink.
func (s *Socket) Queue() *Queue { return s.queue }

// Info describes a socket to an administrator.
type Info struct {
	ID                         uint64
	SendQueued, Undecided      int // bytes, datagrams
	RecvQueued, RecvMem, RecvN int // bytes, bytes, datagrams
	Hard                       int // bytes; 0: the client's memory is the limit
	Congested                  bool
	Waiting, Held              int // datagrams that wait to be accepted; accepted ones that wait here
	Stats                      Stats
}

// Info describes the socket.
func (s *Socket) Info() Info {
	hard := s.hard
	if s.queue == nil {
		hard = 0
	}
	return Info{s.id, s.used, s.undecided, s.queued + s.paired.Bytes, s.mem, s.unread + s.paired.Datagrams, hard, s.congested, s.waiting, s.held, s.Stats}
}

// Events returns and clears the news since the last call.
func (s *Socket) Events() int {
	ev := s.events
	s.events = 0
	return ev
}

func (s *Socket) news(ev int) {
	s.events |= ev
	if !s.listed && !s.closed {
		s.listed = true
		s.e.ready = append(s.e.ready, s)
	}
}

// Close gives the port back. Messages that had not left are cancelled, sends that wait for
// acceptance fail, received datagrams that were not read are dropped; the outcome of
// messages that had begun to leave is counted but not told.
func (s *Socket) Close(now time.Duration) {
	if s.closed {
		return
	}
	e := s.e
	s.closed = true
	delete(e.socks, s.port)
	e.bound = leave(e.bound, s.boundAt, func(o *Socket, at int) { o.boundAt = at })
	e.rest.add(s.port)
	if e.leaving {
		e.held.leaves(s)
	} else {
		e.held.tellClosed(s.port, s.opt.UID)
	}
	if e.lastSock == s {
		e.lastSock = nil
	}
	flows := s.sortedFlows()
	for _, f := range flows {
		s.failWaiting(f, rdserr.ErrClosed, conn.WhyClosed)
	}
	for _, f := range flows {
		if f.pe.c != nil {
			f.pe.c.Cancel(now, &f.out, conn.WhyClosed)
		}
		f.unopen()
		f.calm()
		s.endFlow(f)
	}
	if e.tracer != nil {
		s.traceDropped()
	}
	s.spend(-s.kept)
	s.kept = 0
	e.ctr.RecvDropDeadSock += uint64(s.unread)
	s.unread = 0
	if s.queue != nil {
		s.queue.discard()
	}
	s.hold(-s.mem)
	s.mem, s.queued = 0, 0
	switch {
	case e.leaving:
		s.congested = false
		e.congest(now, s.port) // one that was bound after Leave was not
	// The port is unbound now: a peer that sends there has to be refused for that reason,
	// and must not wait for a reader.
	case s.congested:
		s.congested = false
		e.clear(now, s.port)
	}
	s.SetMonitor(Monitor{})
	s.leaveRecvWaiters()
	s.leaveSendWaiters()
	// Kernel links may have paused for this socket, whose memory is free now.
	e.roomAgain()
	s.sends, s.changes = nil, nil
	e.runDeferred(now)
	// Messages that have begun to leave are still read by the shell: until their outcome the
	// client's memory must stay.
	if s.lingers = s.undecided > 0; !s.lingers {
		s.sink.Drained()
	}
}

// --- congestion monitoring -------------------------------------------------------

// Monitor says which congestion news a socket wants.
type Monitor struct {
	Mask  uint64 // groups of ports (bit = port mod 64) whose clearing is reported
	Clear bool   // report each destination this socket was refused, when it clears
	Set   bool   // report too when a destination this socket sends to becomes congested
}

// Change is one destination that became congested or clear.
type Change struct {
	Endpoint  netip.AddrPort
	Congested bool
}

// maxRefused bounds the memory of one socket's congestion news. Of those that are not fetched there are
// freeChanges at most beside one for each of its flows.
const (
	maxRefused  = 4096
	freeChanges = 64
)

// SetMonitor replaces the congestion news the socket wants.
func (s *Socket) SetMonitor(m Monitor) {
	had, has := s.mon != Monitor{}, m != Monitor{}
	s.mon = m
	switch {
	case has && !had:
		s.e.monitors = append(s.e.monitors, s)
		s.monAt = len(s.e.monitors)
		s.catchUp()
	case had && !has:
		s.e.monitors = leave(s.e.monitors, s.monAt, func(o *Socket, at int) { o.monAt = at })
		s.freed, s.changes, s.monAt = 0, nil, 0
	}
}

// catchUp is for a socket whose sends and whose SetMonitor come by different
// ways and may have overtaken each other: of the destinations it has opened,
// those that are congested already are news.
func (s *Socket) catchUp() {
	if !s.mon.Set {
		return
	}
	first := len(s.changes)
	for dst, f := range s.flows {
		if len(f.dests) > 0 && f.pe.Congested(dst.Port()) {
			s.changes = append(s.changes, Change{dst, true})
		}
	}
	if len(s.changes) > first {
		slices.SortFunc(s.changes[first:], func(a, b Change) int { return a.Endpoint.Compare(b.Endpoint) })
		s.news(EvCongestion)
	}
}

// CongestionNews returns and clears the groups freed and the changes.
func (s *Socket) CongestionNews() (freed uint64, changes []Change) {
	freed, changes = s.freed, s.changes
	s.freed, s.changes = 0, nil
	return freed, changes
}

// Congested asks whether a destination is congested as far as this node knows. Its error
// is why nothing can be sent there: a client over rings has the errno alone and asks for
// the words here.
func (s *Socket) Congested(dst netip.AddrPort) (bool, error) {
	if dst.Port() == wire.PortProbe {
		return false, errProbePort
	}
	pe := s.e.known(dst.Addr())
	if pe == nil {
		return false, s.e.mayPeer(dst.Addr())
	}
	on := pe.Congested(dst.Port())
	if on && !s.closed {
		s.concern(s.e.now, s.flow(pe, dst))
	}
	return on, nil
}

// concern remembers a destination whose changes the socket will hear of.
func (s *Socket) concern(now time.Duration, f *flow) {
	switch {
	case f.refused:
	// Any port without a place here may be the one that becomes clear: tellGroups makes the
	// client look at all of them.
	case s.refused >= maxRefused, !s.affords(f.price()):
		s.crowded = true
	default:
		f.pay()
		s.e.stir(f)
		f.refused = true
		s.refused++
		f.pe.portOf(now, f.dst.Port()).refused.push(byRefused, f)
	}
}

// calm ends concern.
func (f *flow) calm() {
	if f.refused {
		pp := f.pe.ports[f.dst.Port()]
		f.unconcern(pp)
		f.pe.tidy(f.dst.Port())
	}
}

func (f *flow) unconcern(pp *peerPort) {
	pp.refused.remove(byRefused, f)
	f.refused = false
	f.s.refused--
	f.s.endFlow(f)
}
