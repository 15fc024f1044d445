package roce

import "fmt"

// Status is how a work request ended.
type Status uint8

// How a work request ended. After all but OK the queue pair is in ERROR.
const (
	OK              Status = iota
	Flushed                // the queue pair failed before its turn came
	LocalLength            // a message is longer than the memory to receive it
	RemoteInvalid          // the peer refused it as something it does not do, or too long
	RemoteAccess           // the peer's memory is not to be touched so
	RemoteOperation        // the peer could not do it
	RetryExceeded          // the peer did not acknowledge it
	RNRExceeded            // the peer had nothing to receive it into
	numStatuses
)

var statusNames = [numStatuses]string{
	"ok", "flushed", "local length error", "remote invalid request", "remote access error",
	"remote operation error", "retries exceeded", "receiver not ready",
}

func (s Status) String() string { return statusNames[s] }

// Op says what a work request does, and what a completion is of.
type Op uint8

// Operations. The first ones are of work requests, those of Recv of what a peer did.
const (
	OpSend      Op = iota + 1 // into a Recv of the peer
	OpSendImm                 // likewise, with Imm
	OpSendInval               // likewise; ends the peer's key Inval before the peer is told
	OpWrite                   // into the peer's memory at Key and Addr
	OpWriteImm                // likewise, and takes a Recv of the peer, which gets Imm
	OpRead                    // of the peer's memory at Key and Addr, into the pieces
	OpRecv                    // a SEND has come
	OpRecvWrite               // a WRITE with immediate has come, whose bytes are not in the Recv
	numOps
)

var opNames = [numOps]string{
	"", "send", "send with immediate", "send with invalidate", "write", "write with immediate", "read",
	"receive", "receive of a write with immediate",
}

func (o Op) String() string { return opNames[o] }

// Work is an operation to be done with the peer.
type Work struct {
	ID  uint64 // the caller's own, for its completion
	Op  Op
	Imm uint32 // of OpSendImm and OpWriteImm

	// Piece is what is sent, or what is read into: one piece behind the other, such as a
	// header, data and a tail. It is not to be touched until the completion.
	Piece [3][]byte

	Addr  uint64 // of OpWrite, OpWriteImm, OpRead: in the peer's memory
	Key   uint32 // likewise
	Inval uint32 // of OpSendInval: the peer's key

	Solicited bool // the receiver is to be woken; not of OpWrite and OpRead
	Fence     bool // it begins when each OpRead before it is complete
	Quiet     bool // it has no completion if it succeeds, and is complete when a later one is
}

// Len is how many bytes w sends or reads.
func (w *Work) Len() int { return len(w.Piece[0]) + len(w.Piece[1]) + len(w.Piece[2]) }

// Recv is memory for one message of the peer. A WRITE with immediate takes one as well, and
// puts nothing into it.
type Recv struct {
	ID   uint64 // the caller's own, for its completion
	Data []byte // q's until the completion
}

// Completion tells that q needs the memory of a work request no more.
type Completion struct {
	ID     uint64
	Op     Op // of a Recv that did not succeed: OpRecv
	Status Status
	N      int // bytes that came: of OpRecv into the Recv, of OpRecvWrite to Key and Addr

	Imm uint32 // if HasImm

	// Key is the one that the peer has ended (if HasInval), or where a WRITE with immediate
	// went (OpRecvWrite), which began at Addr.
	Key  uint32
	Addr uint64

	// Filled is how many bytes peers had written to what Key was for when it was ended, from
	// the first on and without a gap.
	Filled int

	HasImm    bool
	HasInval  bool
	Solicited bool // the peer asked for the receiver to be woken
}

// Received reports whether a Recv ended, not a Work.
func (c *Completion) Received() bool { return c.Op >= OpRecv }

// Post adds w to what is to be done, in order. In ERROR it completes at once, as Flushed. It
// fails with ErrState before RTS, with ErrFull, and with ErrWork.
func (q *QP) Post(w Work) error {
	n := w.Len()
	switch {
	case q.state != RTS && q.state != Error:
		return fmt.Errorf("%w: queue pair %d is in %v and sends in RTS: call Start first", ErrState, q.number, q.state)
	case w.Op < OpSend || w.Op > OpRead:
		return fmt.Errorf("%w: operation %d is none of a work request", ErrWork, w.Op)
	case w.Op == OpRead && q.peer.Reads == 0:
		return fmt.Errorf("%w: the peer of queue pair %d takes no READs", ErrWork, q.number)
	case n > MaxMessage:
		return fmt.Errorf("%w: a message of %d bytes, want up to %d", ErrWork, n, MaxMessage)
	case q.req.out >= q.cfg.Sends:
		return ErrFull // as it is, because a full queue is no fault, and is met often
	}
	q.req.out++
	q.req.push(w, n, q.peer.MTU)
	if q.state == Error {
		q.completeSend(Flushed)
		return nil
	}
	q.kick()
	return nil
}

// PostRecv adds r to what messages are received into. In ERROR it completes at once, as
// Flushed. It fails with ErrState in RESET, and with ErrFull.
func (q *QP) PostRecv(r Recv) error {
	switch {
	case q.state == Reset:
		return fmt.Errorf("%w: queue pair %d is in %v and takes receives from INIT on: call Init first", ErrState, q.number, q.state)
	case q.resp.out >= q.cfg.Recvs:
		return ErrFull
	}
	q.resp.out++
	q.resp.queue.push(r)
	if q.state == Error {
		q.completeRecv(Completion{Op: OpRecv, Status: Flushed})
	}
	return nil
}

// Poll is the oldest completion, if there is one. Those of sends are in the order of their
// posting, and so are those of receives.
func (q *QP) Poll() (c Completion, ok bool) {
	if q.done.n == 0 || q.lent {
		q.told = false
		return Completion{}, false
	}
	c = q.done.pop()
	if c.Received() {
		q.resp.out--
	} else {
		q.req.out--
	}
	return c, true
}

// completeSend ends the oldest work request.
func (q *QP) completeSend(s Status) {
	w := q.req.pop()
	if s == OK {
		q.stats.RDMASends++
		if w.Quiet {
			q.req.out--
			return
		}
	}
	q.complete(Completion{ID: w.ID, Op: w.Op, Status: s})
}

// completeRecv ends the oldest receive as c says.
func (q *QP) completeRecv(c Completion) {
	c.ID = q.resp.queue.pop().ID
	if c.Status == OK {
		q.stats.RDMARecvs++
	}
	q.complete(c)
}
