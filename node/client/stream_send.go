package client

import (
	"context"
	"errors"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// maxBatchErrors bounds the entries of SendResult.errors that carry a text.
const maxBatchErrors = 256

// errorBytes is what an entry takes until it is written.
const errorBytes = 96

// sendCall is a SendBatch whose datagrams are being decided. Its reader fills
// it in; once some of its datagrams wait, the engine's lock guards it.
type sendCall struct {
	id        uint64
	firstTag  uint64
	left      int // datagrams not decided
	bytes     int // payload of the batch, while it is undecided
	datagrams int // in it
	flows     int // destinations, which wait with them
	accepted  uint32
	errs      []*rdsdv1.SendError
}

// reserveWindow holds a client to the window that Bound gave it, and charges
// its user: what waits to be accepted is in nobody's send buffer yet.
func (s *sockStream) reserveWindow(n, datagrams, flows int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.flushes == nil:
		return rdserr.ErrClosed
	case s.windowN >= sendWindowBatches:
		return rdserr.With(rdserr.ErrTooMany, "%d batches of this socket have no result yet (bound.send_window_batches); wait for one", s.windowN)
	case s.windowB > 0 && s.windowB+n > sendWindowBytes:
		return rdserr.With(rdserr.ErrTooMany, "%d bytes of this socket have no result yet, with this batch they would be more than %d (bound.send_window_bytes); wait for one", s.windowB, sendWindowBytes)
	}
	size := waitingSize(n, datagrams, flows)
	if err := s.memory.Take(quota.Waiting, size); err != nil {
		return err
	}
	s.windowSize += size
	s.windowN++
	s.windowB += n
	return nil
}

// windowPatience is how long a batch that may wait does so for the memory to wait in. It is in memory meanwhile, as a
// message, which nobody else is charged with any more; what its client sends behind it is not read.
// windowLook is how often it looks, at first, and windowLooks at last.
const (
	windowPatience = 2 * time.Second
	windowLook     = 5 * time.Millisecond
	windowLooks    = 50 * time.Millisecond
)

// awaitWindow is reserveWindow for b. That others hold all memory for a moment ends no send that may wait. Who
// holds much of it himself does not wait: what gives it back, credits and cancels, stands behind. For the same
// reason one batch waits in vain, and not each of those behind it. One of a user looks at a time.
func (s *sockStream) awaitWindow(b *inBatch) error {
	n, datagrams, dests := len(b.payload), len(b.lengths), len(b.dests)
	err := s.reserveWindow(n, datagrams, dests)
	size := waitingSize(n, datagrams, dests)
	if !errors.Is(err, rdserr.ErrNoMemory) || s.vain || s.memory.Used() > s.front.deps.Memory.Limit()/4 {
		s.vain = s.vain && err != nil
		return err
	}
	if b.message > 0 && s.memory.Sure(quota.Waiting, b.message) != nil {
		return err // so much waits that has no memory of its own
	}
	defer s.memory.Give(quota.Waiting, b.message)
	begun, patience := time.Now(), windowPatience
	if b.timeout > 0 {
		patience = min(patience, b.timeout)
	}
	ctx, cancel := context.WithTimeout(s.stream.Context(), patience)
	defer cancel()
	turn := s.front.lacks.Of(s.id.UID)
	defer turn.Leave()
	mine := turn.Take(ctx.Done())
	for look := windowLook; mine && errors.Is(err, rdserr.ErrNoMemory); look = min(2*look, windowLooks) {
		if !s.memory.Tight(quota.Waiting, size) {
			err = s.reserveWindow(n, datagrams, dests)
			continue
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			mine = false
		}
	}
	if s.vain = err != nil; s.vain && s.stream.Context().Err() != nil {
		return rdserr.ErrClosed
	}
	if b.timeout > 0 {
		b.timeout = max(b.timeout-time.Since(begun), 1)
	}
	return err
}

// waitingSize is what a batch takes while datagrams of it wait. The engine charges flows of what it has
// accepted.
func waitingSize(bytes, datagrams, flows int) int64 {
	return int64(bytes) + 192*int64(datagrams) + rds.FlowBytes*int64(flows)
}

// releaseWindow ends what reserveWindow began.
func (s *sockStream) releaseWindow(n, datagrams, flows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushes == nil { // over: close has given it all back
		return
	}
	s.windowN--
	s.windowB -= n
	size := waitingSize(n, datagrams, flows)
	s.windowSize -= size
	s.memory.Give(quota.Waiting, size)
}

// send offers a batch to the engine and queues the answer, unless some of it has
// to wait.
func (s *sockStream) send(b *inBatch) {
	s.front.deps.Count.SendBatches.Add(1)
	if b.refused != nil {
		s.refuseBatch(b, b.refused)
		return
	}
	if problem := b.check(); problem != "" {
		s.refuseBatch(b, rdserr.With(rdserr.ErrInvalid, "%s", problem))
		return
	}
	if err := s.front.sockets.draining(); err != nil {
		s.refuseBatch(b, err)
		return
	}
	// Errors of many datagrams take more than the batch, and are charged when they are there:
	// too late to refuse them.
	if n := len(b.lengths); n > maxBatchErrors && s.memory.Tight(quota.Calls, errorBytes*int64(n)) {
		s.refuseBatch(b, rdserr.With(rdserr.ErrNoMemory, "there is no memory for what may have to be said of %d datagrams", n))
		return
	}
	if b.wait {
		if err := s.awaitWindow(b); err != nil {
			s.refuseBatch(b, err)
			return
		}
	}
	o := offering{s: s, b: b, call: sendCall{id: b.id, firstTag: b.firstTag, left: len(b.lengths), bytes: len(b.payload), datagrams: len(b.lengths), flows: len(b.dests)}}
	if !o.offer() {
		return // the client is gone
	}
	if o.rejected > 0 {
		s.front.deps.Count.SendRejected.Add(uint64(o.rejected))
	}
	if call := &o.call; call.left == 0 {
		if b.wait {
			s.releaseWindow(call.bytes, call.datagrams, call.flows)
		}
		if b.later && len(call.errs) == 0 {
			s.replyLater(call.result())
		} else {
			s.reply(s.heavy(call))
		}
	}
}

// refuseBatch answers a batch of which nothing is accepted.
func (s *sockStream) refuseBatch(b *inBatch, err error) {
	n := max(1, len(b.lengths), b.many)
	s.front.deps.Count.SendRejected.Add(uint64(n))
	call := sendCall{id: b.id, errs: []*rdsdv1.SendError{sendError(0, uint32(n), err)}}
	s.reply(call.result())
}

// refuse notes that datagram i was not accepted.
func (c *sendCall) refuse(i int, err error) {
	c.left--
	errno := int32(rdserr.Errno(err))
	if k := len(c.errs); k > 0 {
		last := c.errs[k-1]
		same := last.GetErrno() == errno && last.GetIndex()+last.GetCount() == uint32(i)
		if same && (k >= maxBatchErrors || last.GetMessage() == err.Error()) {
			last.SetCount(last.GetCount() + 1)
			return
		}
		if k >= maxBatchErrors { // a batch of nothing but different errors
			e := &rdsdv1.SendError{}
			e.SetIndex(uint32(i))
			e.SetCount(1)
			e.SetErrno(errno)
			c.errs = append(c.errs, e)
			return
		}
	}
	c.errs = append(c.errs, sendError(uint32(i), 1, err))
}

func sendError(index, count uint32, err error) *rdsdv1.SendError {
	e := &rdsdv1.SendError{}
	e.SetIndex(index)
	e.SetCount(count)
	e.SetErrno(int32(rdserr.Errno(err)))
	e.SetMessage(err.Error())
	return e
}

// decided notes the end of a waiting send, under the engine's lock; it returns
// true when the whole batch is decided.
func (c *sendCall) decided(d *rds.SendDone) bool {
	if d.Err != nil {
		c.refuse(int(d.Tag-c.firstTag), d.Err)
	} else {
		c.accepted++
		c.left--
	}
	return c.left == 0
}

// result is the SendResult of a decided batch.
func (c *sendCall) result() any {
	if len(c.errs) == 0 {
		return &outResult{c.id, c.accepted}
	}
	r := &rdsdv1.SendResult{}
	r.SetId(c.id)
	r.SetAccepted(c.accepted)
	r.SetErrors(c.errs)
	m := &rdsdv1.ServerMessage{}
	m.SetSendResult(r)
	return m
}
