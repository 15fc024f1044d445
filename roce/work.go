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
	RetryExceeded          // packets of it are missing at the peer
	RNRExceeded            // the peer had nothing to receive it into
	numStatuses
)

var statusNames = [numStatuses]string{
	"ok", "flushed", "local length error", "remote invalid request", "remote access error",
	"remote operation error", "retries exceeded", "receiver not ready",
}

func (s Status) String() string { return statusNames[s] }

// Work is a message to be sent.
type Work struct {
	ID        uint64 // the caller's own, for its completion
	Data      []byte // not to be changed until the completion
	HasImm    bool
	Imm       uint32
	Solicited bool // the receiver is to be woken
}

// Recv is memory for one message of the peer.
type Recv struct {
	ID   uint64 // the caller's own, for its completion
	Data []byte // q's until the completion
}

// Completion tells that q needs the memory of a work request no more.
type Completion struct {
	ID        uint64
	Status    Status
	Received  bool // a Recv ended, not a Work
	Solicited bool // of a Recv: the sender asked for it to be woken
	HasImm    bool
	Imm       uint32
	N         int // bytes received
}

// Post adds w to what is to be sent. In ERROR it completes at once, as Flushed. It fails with
// ErrState before RTS, with ErrFull, and with ErrWork.
func (q *QP) Post(w Work) error {
	switch {
	case q.state != RTS && q.state != Error:
		return fmt.Errorf("%w: queue pair %d is in %v and sends in RTS: call Start first", ErrState, q.cfg.Number, q.state)
	case q.req.out == q.cfg.Sends:
		return ErrFull // as it is, because a full queue is no fault, and is met often
	case len(w.Data) > MaxMessage:
		return fmt.Errorf("%w: a message of %d bytes, want up to %d", ErrWork, len(w.Data), MaxMessage)
	}
	q.req.out++
	q.req.queue.push(send{Work: w})
	if q.state == Error {
		q.completeSend(Flushed)
	}
	return nil
}

// PostRecv adds r to what messages are received into. In ERROR it completes at once, as
// Flushed. It fails with ErrState in RESET, and with ErrFull.
func (q *QP) PostRecv(r Recv) error {
	switch {
	case q.state == Reset:
		return fmt.Errorf("%w: queue pair %d is in %v and takes receives from INIT on: call Init first", ErrState, q.cfg.Number, q.state)
	case q.resp.out == q.cfg.Recvs:
		return ErrFull
	}
	q.resp.out++
	q.resp.queue.push(r)
	if q.state == Error {
		q.completeRecv(Completion{Status: Flushed})
	}
	return nil
}

// Poll is the oldest completion, if there is one. Those of sends are in the order of their
// posting, and so are those of receives.
func (q *QP) Poll() (c Completion, ok bool) {
	if q.done.n == 0 {
		return Completion{}, false
	}
	c = q.done.pop()
	if c.Received {
		q.resp.out--
	} else {
		q.req.out--
	}
	return c, true
}

// completeSend ends the oldest work request.
func (q *QP) completeSend(s Status) {
	w := q.req.queue.pop()
	if q.req.sent > 0 {
		q.req.sent--
	}
	q.done.push(Completion{ID: w.ID, Status: s})
}

// completeRecv ends the oldest receive as c says.
func (q *QP) completeRecv(c Completion) {
	c.ID, c.Received = q.resp.queue.pop().ID, true
	q.done.push(c)
}
