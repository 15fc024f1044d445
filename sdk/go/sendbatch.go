package rdsd

import (
	"context"
	"net/netip"

	"github.com/rdsd/rdsd/rdserr"
)

// SendBatch sends datagrams in order and returns when each is decided: how many
// were accepted and, unless all were, a *BatchError that names the others and
// why. One that is refused (too large, say) does not stop those after it. It
// waits for room as Send does; the payloads may be reused when it returns.
//
// SendBatch sets each Datagram.Tag before anything is sent, so that Outcomes,
// read by another goroutine, can be matched.
func (s *Socket) SendBatch(ctx context.Context, ds []Datagram) (accepted int, err error) {
	return s.sendBatch(ctx, "send", ds, true)
}

// TrySendBatch is SendBatch that does not wait for room: what finds none fails
// with rdserr.ErrWouldBlock or ErrCongested. ctx bounds the wait for the
// daemon's answer.
func (s *Socket) TrySendBatch(ctx context.Context, ds []Datagram) (accepted int, err error) {
	return s.sendBatch(ctx, "try-send", ds, false)
}

func (s *Socket) sendBatch(ctx context.Context, op string, ds []Datagram, wait bool) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	r := batchRun{s: s, op: op, ds: ds}
	s.mu.Lock()
	r.local = s.local
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
	if r.err == nil {
		return len(ds), nil
	}
	return len(ds) - len(r.err.Errors), r.err
}

// batchRun is one SendBatch call.
type batchRun struct {
	s     *Socket
	op    string
	local netip.AddrPort
	ds    []Datagram
	err   *BatchError
}

// fail notes why count datagrams from index on were not accepted.
func (r *batchRun) fail(index, count int, err error, und bool) {
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

// chunk sends as many datagrams from index from on as one message takes, and
// waits for their result: chunks follow each other one by one, so that order
// holds whatever is refused. It returns how many it dealt with, and an error
// when the rest has no chance.
func (r *batchRun) chunk(ctx context.Context, from int, wait bool) (n int, stop error) {
	s := r.s
	// Outside the lock: copying is the larger part.
	b := newBatch()
	b.wantOutcomes, b.wait = s.cfg.outcomes, wait
	limit, maxDatagram := maxBatchBytes, 0
	s.mu.Lock()
	maxDatagram = s.maxBytes
	if s.sess != nil {
		limit = min(limit, s.sess.windowBytes)
	}
	s.mu.Unlock()
	bytes := 0
	for _, d := range r.ds[from:] {
		if n > 0 && (n == maxBatchDatagrams || bytes+len(d.Payload) > limit) {
			break
		}
		if !d.Addr.Addr().IsValid() || d.Addr.Addr().IsUnspecified() || maxDatagram > 0 && len(d.Payload) > maxDatagram {
			break // refused below, alone
		}
		bytes += len(d.Payload)
		n++
	}
	for _, d := range r.ds[from : from+n] {
		b.add(unmap(d.Addr), d.Payload, bytes)
	}
	s.mu.Lock()
	if s.over != nil {
		err := s.over
		s.mu.Unlock()
		b.recycle()
		return 0, err
	}
	if n == 0 {
		err := s.refuseLocked(r.ds[from].Addr, len(r.ds[from].Payload))
		s.mu.Unlock()
		b.recycle()
		if err == nil { // the limit changed with a reconnection: look again
			return 0, nil
		}
		r.fail(from, 1, err, false)
		return 1, nil
	}
	if !wait {
		err := error(nil)
		switch {
		case s.sess == nil:
			err = s.awayLocked()
		case !s.sess.room(b.bytes), s.outcomes.full():
			err = rdserr.ErrWouldBlock
		}
		if err != nil {
			s.mu.Unlock()
			b.recycle()
			r.fail(from, n, err, false)
			return n, nil
		}
	}
	b.firstTag = r.ds[from].Tag
	b.deadline, _ = ctx.Deadline()
	c := newCall()
	c.batch, b.one = b, c
	s.queueLocked(b)
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
	for _, e := range c.errs {
		r.fail(from+e.index, e.count, e.err, false)
	}
	c.recycle()
	return n, stop
}
