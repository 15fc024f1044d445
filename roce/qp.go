package roce

import (
	"errors"
	"fmt"
	"net/netip"
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
	Number uint32   // of 24 bits; 0 and 1 belong to connection managers
	Sends  int      // work requests that can be posted and not yet polled
	Recvs  int      // receives, likewise
	RNR    Syndrome // what a peer is told for which no receive is posted: RNR(d)
	Memory *Memory  // that the peer may touch; nil: that of the device
}

// QP is one end of a reliable connection. Its caller carries packets: Receive takes one, Next
// says which is to be sent, Poll says what was done. Nothing of it allocates.
//
// Nothing is sent twice yet: a queue pair behaves as one with retry counts of 0, and a peer's
// negative acknowledgement ends it. What is lost without a later packet is not noticed.
type QP struct {
	cfg   QPConfig
	state State
	peer  Peer
	stats Stats
	req   requester
	resp  responder
	done  ring[Completion]
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

// Stats counts what a queue pair was given.
type Stats struct {
	Duplicates uint64 // packets that had come before
	Gaps       uint64 // packets that came before one that is missing
	NotReady   uint64 // messages for which no receive was posted
	Dropped    uint64 // packets that were not for this queue pair, or not now
}

// NewQP makes a queue pair in RESET. It fails with ErrConfig.
func NewQP(cfg QPConfig) (*QP, error) {
	switch {
	case cfg.Number < 2 || cfg.Number > maxNumber:
		return nil, fmt.Errorf("%w: number %d, want 2 to %d", ErrConfig, cfg.Number, maxNumber)
	case cfg.Sends < 1 || cfg.Sends > MaxQueue:
		return nil, fmt.Errorf("%w: %d sends, want 1 to %d", ErrConfig, cfg.Sends, MaxQueue)
	case cfg.Recvs < 1 || cfg.Recvs > MaxQueue:
		return nil, fmt.Errorf("%w: %d receives, want 1 to %d", ErrConfig, cfg.Recvs, MaxQueue)
	case !cfg.RNR.IsRNR():
		return nil, fmt.Errorf("%w: %q for a receiver that is not ready, want RNR(d)", ErrConfig, cfg.RNR)
	}
	// A place is given back when its completion is polled, so completions always have one.
	q := &QP{cfg: cfg, done: newRing[Completion](cfg.Sends + cfg.Recvs)}
	q.req.queue = newRing[send](cfg.Sends)
	q.resp.queue = newRing[Recv](cfg.Recvs)
	return q, nil
}

// State is the state that q is in.
func (q *QP) State() State { return q.state }

// Stats is what q has counted since it was made.
func (q *QP) Stats() Stats { return q.stats }

// enter is the only place where a state changes.
func (q *QP) enter(to State) error {
	if e := &entries[to]; !e.from[q.state] {
		return fmt.Errorf("%w: queue pair %d is in %v and cannot go to %v: %s", ErrState, q.cfg.Number, q.state, to, e.hint)
	}
	q.state = to
	return nil
}

// Init lets receives be posted.
func (q *QP) Init() error { return q.enter(Init) }

// Connect names the peer and takes what it sends from now on (RTR).
func (q *QP) Connect(p Peer) error {
	switch {
	case p.Number < 2 || p.Number > maxNumber:
		return fmt.Errorf("%w: number %d of the peer, want 2 to %d", ErrConfig, p.Number, maxNumber)
	case p.MTU < 256 || p.MTU > MaxPayload || p.MTU&(p.MTU-1) != 0:
		return fmt.Errorf("%w: MTU %d, want 256, 512, 1024, 2048 or 4096", ErrConfig, p.MTU)
	case p.First > psnMask:
		return fmt.Errorf("%w: first packet %#x, want 24 bits", ErrConfig, uint32(p.First))
	}
	if err := q.enter(RTR); err != nil {
		return err
	}
	q.peer = p
	q.resp.begin(p.First)
	return nil
}

// Start lets q send; its first packet has the number first (RTS).
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
	for q.req.queue.n > 0 {
		q.completeSend(Flushed)
	}
	for q.resp.queue.n > 0 {
		q.completeRecv(Completion{Status: Flushed})
	}
}

// Reset makes q as good as new. Each work request completes, so it fails with ErrState while
// one is posted or its completion not polled.
func (q *QP) Reset() error {
	if n := q.req.out + q.resp.out; n > 0 {
		return fmt.Errorf("%w: queue pair %d has %d work requests that were not polled: %s",
			ErrState, q.cfg.Number, n, entries[Reset].hint)
	}
	if err := q.enter(Reset); err != nil {
		return err
	}
	q.peer = Peer{}
	q.resp.owed = false
	return nil
}

// Receive takes a packet that came from the peer's address; nothing of it is kept. Poll and
// Next may have something after that.
func (q *QP) Receive(p *Packet) {
	if q.state != RTR && q.state != RTS || p.Dest != q.cfg.Number || p.PKey != DefaultPKey {
		q.stats.Dropped++
		return
	}
	switch opcodes[p.Op].kind {
	case kindSend, kindWrite, kindReadRequest, kindAtomic:
		q.request(p)
	case kindAck:
		q.acknowledged(p)
	default:
		q.stats.Dropped++ // nothing was asked for that this answers
	}
}

// Next makes p the next packet to be sent, and reports whether there is one. The payload is
// memory of a work request, which stays its owner's to keep until it completes.
func (q *QP) Next(p *Packet) bool {
	return q.nextAnswer(p) || q.nextRequest(p)
}
