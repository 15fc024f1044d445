package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/rdsd/rdsd/rdserr"
)

// SendBatch sends datagrams in order and returns when each is decided: how many
// were accepted and, unless all were, a *BatchError that names the others and
// why. One that is refused (too large, say) does not stop those after it. It
// waits for room as Send does; the payloads may be reused when it returns. Small
// batches of several goroutines travel to the daemon together.
//
// SendBatch sets each Datagram.Tag before anything is sent, so that Outcomes,
// read by another goroutine, can be matched.
func (s *Socket) SendBatch(ctx context.Context, ds []Datagram) (accepted int, err error) {
	if err := s.misuse(ctx, "send", netip.AddrPort{}); err != nil {
		return 0, err
	}
	return s.fe.sendBatch(ctx, "send", ds, true)
}

// TrySendBatch is SendBatch that does not wait for room: a datagram that finds none fails
// with rdserr.ErrWouldBlock or ErrCongested. ctx bounds the wait for the daemon's answer.
func (s *Socket) TrySendBatch(ctx context.Context, ds []Datagram) (accepted int, err error) {
	if err := s.misuse(ctx, "try-send", netip.AddrPort{}); err != nil {
		return 0, err
	}
	return s.fe.sendBatch(ctx, "try-send", ds, false)
}

func (s *stream) sendBatch(ctx context.Context, op string, ds []Datagram, wait bool) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	r := batchRun{s: s, batchErrors: batchErrors{op: op, ds: ds}}
	s.mu.Lock()
	r.local = s.local
	// Tags before anything is sent: another goroutine may read an outcome before this one
	// returns.
	first := s.takeTags(len(ds))
	s.mu.Unlock()
	for i := range ds {
		ds[i].Tag = first + uint64(i)
	}
	for i := 0; i < len(ds); {
		if err := ctx.Err(); err != nil {
			r.fail(i, len(ds)-i, ctxError(ctx, nil), false)
			break
		}
		n, stop := r.chunk(ctx, i, wait)
		i += n
		if stop != nil {
			r.fail(i, len(ds)-i, stop, false)
			break
		}
	}
	return r.result()
}

// batchRun is one SendBatch call over a stream.
type batchRun struct {
	batchErrors
	s *stream
	// Where a datagram found no room, of a try or in time. Those behind it in later messages,
	// for which there may be room again, do not overtake it.
	jammed map[netip.AddrPort]error
}

// jam refuses count datagrams from index on, which found no room or no daemon.
func (r *batchRun) jam(index, count int, err error) {
	if r.jammed == nil {
		r.jammed = make(map[netip.AddrPort]error)
	}
	for _, d := range r.ds[index : index+count] {
		r.jammed[unmap(d.Addr)] = err
	}
	r.fail(index, count, err, false)
}

// refuse notes what the daemon refused for good. It gives up a little before the caller's
// deadline (timeoutNs), so later messages may still be sent.
func (r *batchRun) refuse(e sendErr) {
	if noRoom(e.err) || errors.Is(e.err, rdserr.ErrTimeout) {
		r.jam(e.index, e.count, e.err)
		return
	}
	r.fail(e.index, e.count, e.err, false)
}

// batchErrors gathers the errors of one SendBatch call.
type batchErrors struct {
	op    string
	local netip.AddrPort
	ds    []Datagram
	err   *BatchError
}

func (r *batchErrors) result() (accepted int, err error) {
	if r.err == nil {
		return len(r.ds), nil
	}
	slices.SortFunc(r.err.Errors, func(a, b DatagramError) int { return a.Index - b.Index })
	return len(r.ds) - len(r.err.Errors), r.err
}

// fail notes why count datagrams from index on were not accepted.
func (r *batchErrors) fail(index, count int, err error, und bool) {
	if count == 0 {
		return
	}
	if r.err == nil {
		r.err = &BatchError{Total: len(r.ds)}
	}
	var wrapped error
	var dst netip.AddrPort
	for i := index; i < index+count; i++ {
		if wrapped == nil || r.ds[i].Addr != dst {
			dst = r.ds[i].Addr
			wrapped = &OpError{Op: r.op, Local: r.local, Remote: dst, Err: err, Undecided: und}
		}
		r.err.Errors = append(r.err.Errors, DatagramError{Index: i, Err: wrapped})
	}
}

// chunk sends as many datagrams from index from on as one message takes, and waits until
// they are decided: chunks follow each other one by one, so that order holds even when some
// are refused. It returns how many it dealt with, and an error when the others have no
// chance.
func (r *batchRun) chunk(ctx context.Context, from int, wait bool) (n int, stop error) {
	s := r.s
	n, bytes := r.measure(from)
	if n == 0 {
		return r.unsendable(from)
	}
	b := r.build(from, n, bytes) // copying, the larger part, is done without the lock
	s.mu.Lock()
	// Looked at after the copy: the state may have changed during it.
	if err, stop := r.closedDoor(wait, b.bytes); err != nil {
		s.mu.Unlock()
		b.recycle()
		r.jam(from, n, err)
		return n, stop
	}
	if wait {
		posted, err := s.postBatchLocked(ctx, b, r.ds[from].Tag)
		if posted {
			m, sess := s.kickLocked()
			s.mu.Unlock()
			s.write(m, sess)
			return n, nil
		}
		// The lock was let go.
		if err == nil {
			err = s.over
		}
		if err != nil {
			s.mu.Unlock()
			b.recycle()
			r.fail(from, n, err, false)
			return n, err
		}
	}
	if wait && s.mustWaitLocked(b) {
		b.wait = true
		b.deadline, _ = ctx.Deadline()
	}
	c := newCall()
	s.queueLocked(b, c)
	m, sess := s.kickLocked()
	s.mu.Unlock()
	s.write(m, sess)

	if err := s.await(ctx, c); err != nil { // c is abandoned: not recycled
		r.fail(from, n, err, c.undecided)
		return n, err
	}
	if c.err != nil { // all of it: the daemon went away, the socket was closed
		stop = c.err
		r.fail(from, n, c.err, c.undecided)
	}
	var again []sendErr
	for _, e := range c.errs {
		e.index += from
		// These are sent again in order. What follows them to the same destination was
		// refused with them (transmit.go), so nothing overtakes.
		if wait && noRoom(e.err) {
			again = append(again, e)
		} else {
			r.refuse(e)
		}
	}
	c.recycle()
	if len(again) > 0 {
		stop = r.wait(ctx, again)
	}
	return n, stop
}

// measure says how many datagrams from index from on one message takes. None:
// the first of them cannot be sent at all.
func (r *batchRun) measure(from int) (n, bytes int) {
	s := r.s
	limit := maxBatchBytes
	s.mu.Lock()
	largest := s.maxBytes
	if s.sess != nil {
		limit = min(limit, s.sess.windowBytes)
	}
	s.mu.Unlock()
	for _, d := range r.ds[from:] {
		if n > 0 && (n == maxBatchDatagrams || bytes+len(d.Payload) > limit) {
			break
		}
		if !d.Addr.Addr().IsValid() || d.Addr.Addr().IsUnspecified() || largest > 0 && len(d.Payload) > largest {
			break
		}
		if r.jammed != nil && r.jammed[unmap(d.Addr)] != nil {
			break
		}
		bytes += len(d.Payload)
		n++
	}
	return n, bytes
}

// unsendable refuses the datagram at index i, which measure has found wanting.
func (r *batchRun) unsendable(i int) (n int, stop error) {
	if err := r.jammed[unmap(r.ds[i].Addr)]; err != nil {
		r.fail(i, 1, err, false)
		return 1, nil
	}
	r.s.mu.Lock()
	over := r.s.over
	err := r.s.refuseLocked(r.ds[i].Addr, len(r.ds[i].Payload))
	r.s.mu.Unlock()
	if over != nil {
		return 0, over
	}
	if err == nil { // the limit changed with a reconnection: look again
		return 0, nil
	}
	r.fail(i, 1, err, false)
	return 1, nil
}

// closedDoor is why a batch cannot be queued: stop when nothing more can, err
// alone for a try that finds no daemon or a full window. The lock is held.
func (r *batchRun) closedDoor(wait bool, bytes int) (err, stop error) {
	s := r.s
	switch {
	case s.over != nil:
		return s.over, s.over
	case wait:
		return nil, nil
	case s.sess == nil:
		return s.awayLocked(), nil
	case !s.sess.room(bytes), s.outcomes.full():
		return rdserr.ErrWouldBlock, nil
	}
	return nil, nil
}

// build copies n datagrams into a batch.
func (r *batchRun) build(from, n, bytes int) *batch {
	b := newBatch()
	if r.s.cfg.outcomes { // else the daemon need not know the tags
		b.wantOutcomes, b.firstTag = true, r.ds[from].Tag
	}
	for _, d := range r.ds[from : from+n] {
		b.add(unmap(d.Addr), d.Payload, bytes)
	}
	return b
}

// wait sends the datagrams that found no room again, run by run, and waits until all are
// decided. The runs are queued together: the daemon keeps the order of each flow among
// waiting datagrams.
func (r *batchRun) wait(ctx context.Context, runs []sendErr) (stop error) {
	s := r.s
	batches := make([]*batch, len(runs))
	calls := make([]*call, len(runs))
	for i, run := range runs {
		// Built from the caller's memory again: the first copy went with its batch.
		b := r.build(run.index, run.count, 0)
		b.wait = true
		b.deadline, _ = ctx.Deadline()
		batches[i], calls[i] = b, newCall()
	}
	s.mu.Lock()
	if err := s.over; err != nil {
		s.mu.Unlock()
		for _, run := range runs {
			r.fail(run.index, run.count, err, false)
		}
		return err
	}
	for i, b := range batches {
		// All under one lock: another call's datagrams must not come between the runs of a
		// flow.
		s.queueLocked(b, calls[i])
	}
	m, sess := s.kickLocked()
	s.mu.Unlock()
	s.write(m, sess)
	for i, c := range calls {
		run := runs[i]
		// The others are waited for all the same: each has an outcome to be reported.
		if err := s.await(ctx, c); err != nil {
			stop = err
			r.fail(run.index, run.count, err, c.undecided)
			continue
		}
		if c.err != nil {
			stop = c.err
			r.fail(run.index, run.count, c.err, c.undecided)
		}
		for _, e := range c.errs {
			e.index += run.index
			r.refuse(e)
		}
		c.recycle()
	}
	return stop
}
