package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// State is where a queue pair is in its life.
type State uint8

// States of a queue pair, in the order in which it goes through them.
const (
	Reset State = iota // nothing can be posted
	Init               // receives can be posted, nothing moves
	RTR                // ready to receive: the peer is known, its messages are taken
	RTS                // ready to send as well
	Error              // what is posted completes as Flushed

	numStates
)

var stateNames = [numStates]string{"RESET", "INIT", "RTR", "RTS", "ERROR"}

func (s State) String() string { return stateNames[s] }

// Why a call of a queue pair fails. The error says more than these, which it wraps.
var (
	ErrState  = errors.New("roce: the state of the queue pair does not allow it")
	ErrConfig = errors.New("roce: a queue pair cannot have this value")
	ErrFull   = errors.New("roce: the queue is full until completions are polled")
	ErrWork   = errors.New("roce: no such work can be done")
)

// entry says from which states another is entered, and what to do in others.
type entry struct {
	from [numStates]bool
	hint string
}

// entries is the table of states: all changes go by it. Error is entered from everywhere.
var entries = [numStates]entry{
	Reset: {[numStates]bool{Init: true, Error: true}, "call Fail, and poll what was posted"},
	Init:  {[numStates]bool{Reset: true}, "a new queue pair is in RESET, an old one after Reset"},
	RTR:   {[numStates]bool{Init: true}, "call Init first, and Connect once"},
	RTS:   {[numStates]bool{RTR: true}, "call Connect first, and Start once"},
	Error: {[numStates]bool{Reset: true, Init: true, RTR: true, RTS: true, Error: true}, ""},
}

// maxNumber is the largest number of a queue pair.
const maxNumber = 1<<24 - 1

// Limits of the queues of a queue pair.
const (
	MaxQueue   = 1 << 16
	MaxMessage = 1 << 31
)

// QPConfig is what a queue pair is made with.
type QPConfig struct {
	Sends  int      // work requests that can be posted and not yet polled
	Recvs  int      // receives, likewise
	RNR    Syndrome // what a peer is told for which no receive is posted: RNR(d)
	Memory *Memory  // that the peer may touch; nil: that of the device
}

func (c *QPConfig) check() error {
	switch {
	case c.Sends < 1 || c.Sends > MaxQueue:
		return fmt.Errorf("%w: %d sends, want 1 to %d", ErrConfig, c.Sends, MaxQueue)
	case c.Recvs < 1 || c.Recvs > MaxQueue:
		return fmt.Errorf("%w: %d receives, want 1 to %d", ErrConfig, c.Recvs, MaxQueue)
	case !c.RNR.IsRNR():
		return fmt.Errorf("%w: %q for a receiver that is not ready, want RNR(d)", ErrConfig, c.RNR)
	}
	return nil
}

// QP is one end of a reliable connection, of one device. Nothing of it allocates after Connect.
//
// After whatever lets it send something (Post, Receive, Tick) it stands in the device's line
// until Fill has taken all of it.
type QP struct {
	dev    *Device
	number uint32
	cfg    QPConfig
	state  State
	peer   Peer // its Addr is plain
	to     netip.AddrPort
	way    *way // to the peer; nil: there is none yet
	stats  Counters
	req    requester
	resp   responder
	done   ring[Completion]

	told    bool // of something to Poll
	arrived bool // a packet of the peer
	lent    bool // a burst refers to memory of work requests

	inLine bool // of the device, with behind
	behind *QP

	// place in the device's timers, from 1 on, if any. look <= due() while it has one.
	place    int
	look     time.Duration
	deadline time.Duration // when the requester does something by itself
}

// Peer is the other end of a connection.
type Peer struct {
	Number uint32     // of its queue pair
	Addr   netip.Addr // that its packets come from, and to whose port 4791 ours go
	MTU    int        // of the path: 256, 512, 1024, 2048 or 4096
	First  PSN        // of the first packet that it sends

	// Timeout is the code of the time (AckTimeout) after which the peer expects packets again
	// that were not acknowledged; 0 stands for Config.Patience. They are sent again earlier
	// and more often than Retry says, but given up only after Retry + 1 such times.
	Timeout  uint8
	Retry    uint8 // 0 to 7
	RNRRetry uint8 // how often a message is sent again that the peer had no Recv for; 7: for ever

	Reads       uint8 // READs that the peer takes at a time (initiator depth); 0: OpRead fails
	ReadsOfPeer uint8 // READs of the peer at a time (responder resources); 0: they are refused
}

// retryForEver is the RNRRetry that does not end.
const retryForEver = 7

func validMTU(n int) bool { return n >= 256 && n <= MaxPayload && n&(n-1) == 0 }

func (p *Peer) check(c *Config) error {
	addr := plain(p.Addr)
	switch {
	case p.Number < 2 || p.Number > maxNumber:
		return fmt.Errorf("%w: number %d of the peer, want 2 to %d", ErrConfig, p.Number, maxNumber)
	case !addr.IsValid() || addr.Is4() != c.Local.Is4():
		return fmt.Errorf("%w: address %v of the peer, want one like %v", ErrConfig, p.Addr, c.Local)
	case !validMTU(p.MTU) || p.MTU > c.MTU:
		return fmt.Errorf("%w: MTU %d, want 256, 512, 1024, 2048 or 4096, up to %d", ErrConfig, p.MTU, c.MTU)
	case p.First > psnMask:
		return fmt.Errorf("%w: first packet %#x, want 24 bits", ErrConfig, uint32(p.First))
	case p.Timeout > 31 || p.Retry > 7 || p.RNRRetry > retryForEver:
		return fmt.Errorf("%w: timeout code %d and retry counts %d and %d, want up to 31, 7 and 7", ErrConfig, p.Timeout, p.Retry, p.RNRRetry)
	}
	return nil
}

// QPBytes is about what NewQP takes for a queue pair: itself with its place among those of the
// device, and its rings.
func QPBytes(cfg QPConfig) int { return 896 + 192*cfg.Sends + 88*cfg.Recvs }

func newQP(d *Device, number uint32, cfg QPConfig) *QP {
	// A place is given back when its completion is polled, so completions always have one.
	q := &QP{dev: d, number: number, cfg: cfg, deadline: never, done: newRing[Completion](cfg.Sends + cfg.Recvs)}
	q.req.queue = newRing[send](cfg.Sends)
	q.resp = responder{queue: newRing[Recv](cfg.Recvs), repeat: never}
	return q
}

// Number is q's number, which a peer is told.
func (q *QP) Number() uint32 { return q.number }

// Peer is what Connect was given.
func (q *QP) Peer() Peer { return q.peer }

// State is the state that q is in.
func (q *QP) State() State { return q.state }

// Counters is what q has counted since it was made.
func (q *QP) Counters() Counters { return q.stats }

// enter is the only place where a state changes.
func (q *QP) enter(to State) error {
	if e := &entries[to]; !e.from[q.state] {
		return fmt.Errorf("%w: queue pair %d is in %v and cannot go to %v: %s", ErrState, q.number, q.state, to, e.hint)
	}
	q.state = to
	return nil
}

// Init lets receives be posted.
func (q *QP) Init() error { return q.enter(Init) }

// Connect names the peer and takes what it sends from now on (RTR). It fails with ErrConfig and
// ErrState.
func (q *QP) Connect(p Peer) error {
	if err := p.check(&q.dev.cfg); err != nil {
		return err
	}
	if err := q.enter(RTR); err != nil {
		return err
	}
	q.to = netip.AddrPortFrom(p.Addr.Unmap(), Port)
	p.Addr = plain(p.Addr)
	q.peer = p
	q.arrived = false
	q.way = q.dev.useWay(p.Addr)
	q.resp.begin(p.First, int(p.ReadsOfPeer))
	return nil
}

// Start lets q send; its first packet has the number first (RTS). It fails with ErrConfig and
// ErrState.
func (q *QP) Start(first PSN) error {
	if first > psnMask {
		return fmt.Errorf("%w: first packet %#x, want 24 bits", ErrConfig, uint32(first))
	}
	if err := q.enter(RTS); err != nil {
		return err
	}
	q.req.begin(first)
	return nil
}

// Fail ends q. What is posted completes as Flushed, sends before receives. An answer that the
// peer is still owed, such as why q failed, is the only packet that leaves.
func (q *QP) Fail() {
	if err := q.enter(Error); err != nil {
		panic(err) // the table allows it from everywhere
	}
	q.resp.repeat = never
	q.deadline = never
	q.resp.active = 0
	for q.req.queue.n > 0 {
		q.completeSend(Flushed)
	}
	for q.resp.queue.n > 0 {
		q.completeRecv(Completion{Op: OpRecv, Status: Flushed})
	}
}

// Reset makes q as good as new. Each work request completes, so it fails with ErrState while
// one is posted or its completion not polled.
func (q *QP) Reset() error {
	if n := q.req.out + q.resp.out; n > 0 {
		return fmt.Errorf("%w: queue pair %d has %d work requests that were not polled: %s",
			ErrState, q.number, n, entries[Reset].hint)
	}
	if err := q.enter(Reset); err != nil {
		return err
	}
	q.peer = Peer{}
	q.leaveWay()
	q.resp.owed = false
	return nil
}

// Close ends q: its number is free, its peer's packets are dropped, and keys for it alone are
// forgotten. What was posted is the caller's again, without completions, and nothing can be
// posted any more. It fails with ErrState between Fill and Sent of a burst of q,
// and does nothing when q is closed.
func (q *QP) Close() error {
	d := q.dev
	switch {
	case d.qps[q.number] != q:
		return nil
	case q.lent:
		return fmt.Errorf("%w: a burst of queue pair %d is on its way: call Sent first", ErrState, q.number)
	}
	delete(d.qps, q.number)
	d.timers.remove(q)
	d.line.remove(q)
	d.stats.add(&q.stats)
	q.leaveWay()
	q.cfg.Memory.Forget(q.number)
	q.state, q.deadline = Error, never
	q.req, q.resp, q.done = requester{}, responder{repeat: never}, ring[Completion]{}
	q.cfg.Sends, q.cfg.Recvs = 0, 0 // so that there is no room to post
	return nil
}

// complete adds a completion and says so.
func (q *QP) complete(c Completion) {
	q.done.push(c)
	q.tell()
}

// tell says that there is something to Poll, once until there is not.
func (q *QP) tell() {
	if q.done.n > 0 && !q.told && !q.lent {
		q.told = true
		q.dev.env.Completed(q)
	}
}

// Receive takes a packet that came from the peer's address; nothing of it is kept.
func (q *QP) receive(now time.Duration, p *Packet) {
	taken := false
	switch opcodes[p.Op].kind {
	case kindSend, kindWrite, kindReadRequest, kindAtomic:
		taken = q.request(p)
	case kindAck:
		taken = q.acknowledged(now, p)
	case kindReadResponse:
		taken = q.response(now, p)
	default:
		q.dev.drop(DropOpcode)
	}
	if !taken {
		return
	}
	q.stats.RcvdPkts++
	if !q.arrived {
		q.arrived = true
		q.dev.env.Arrived(q)
	}
}

// kick has q take its place in the line if it has something to send.
func (q *QP) kick() {
	if q.resp.active > 0 || q.resp.owed || q.canSend() {
		q.dev.line.push(q)
	}
}

// fill adds to b, which is empty, what q has to send: answers to READs, requests, and behind
// them the acknowledgement of all that has come by now. It may have to wait for its turn if
// nothing can follow in this burst.
func (q *QP) fill(now time.Duration, b *Burst) {
	q.dev.begin(b, q.to)
	r := &q.resp
	if r.owed {
		b.spare = ackLen
	}
	for r.active > 0 && q.fillRead(b) {
	}
	for q.canSend() && q.fillRequest(now, b) {
	}
	b.spare = 0
	// An answer that is before a READ's says to the peer that the READ was forgotten.
	if r.owed && r.active == 0 && b.room(ackLen) {
		q.fillAnswer(now, b)
	}
	q.dev.timers.arm(q)
}
