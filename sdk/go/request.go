package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// cancelGrace is how long Request waits, after its own deadline, for the daemon
// to confirm that the request will not leave any more.
const cancelGrace = 100 * time.Millisecond

// Request sends one datagram and waits for the next one that comes from dst.
//
// It does not look into payloads: correlation is left to the application.
// Several requests to one destination may be outstanding; replies are given to
// them in the order in which they were made, which is right for a peer that
// answers in order. A datagram that dst sends for another reason meanwhile is
// taken for the reply; a reply that comes after its Request gave up is received
// by the next Request to dst, or by Recv.
//
// The reply needs receive window: where others send to this socket too,
// somebody must Recv.
//
// When ctx ends, what is still queued to dst (of all senders of this socket) is
// cancelled as with CancelSentTo and the error is rdserr.ErrTimeout or
// ErrCanceled.
func (s *Socket) Request(ctx context.Context, dst netip.AddrPort, p []byte) (Datagram, error) {
	dst = unmap(dst)
	w := &requestWaiter{from: dst, reply: make(chan Datagram, 1), failed: make(chan struct{})}
	s.fe.addRequest(w)
	defer s.fe.removeRequest(w)
	if err := s.Send(ctx, dst, p); err != nil {
		if op, ok := errors.AsType[*OpError](err); ok && op.Undecided {
			s.takeBack(ctx, dst) // the daemon may have it
		}
		return Datagram{}, err
	}
	err := s.fe.awaitReply(ctx, w)
	s.fe.removeRequest(w)
	select {
	case d := <-w.reply: // perhaps at the last moment
		return d, nil
	case <-w.failed:
		return Datagram{}, s.opErr("request", dst, w.err)
	default:
	}
	s.takeBack(ctx, dst)
	return Datagram{}, s.opErr("request", dst, err)
}

func (s *stream) addRequest(w *requestWaiter) { s.recv.addWaiter(w) }

func (s *stream) removeRequest(w *requestWaiter) { s.recv.removeWaiter(w) }

func (s *stream) awaitReply(ctx context.Context, w *requestWaiter) error {
	select {
	case d := <-w.reply:
		w.reply <- d // capacity 1
	case <-w.failed:
	case <-ctx.Done():
		return ctxError(ctx, nil)
	}
	return nil
}

func (s *Socket) takeBack(ctx context.Context, dst netip.AddrPort) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
	defer cancel()
	// Best effort: the caller learns of the timeout, whatever this says.
	_, _ = s.CancelSentTo(ctx, dst)
}

// requestWaiter is one Request that waits for its reply.
type requestWaiter struct {
	from   netip.AddrPort
	reply  chan Datagram // capacity 1
	failed chan struct{} // closed after err is set
	err    error
}

// requestList holds waiting Requests in the order they were made.
type requestList struct{ list []*requestWaiter }

func (l *requestList) empty() bool { return len(l.list) == 0 }

// pick takes out the first Request that waits for a datagram from src.
func (l *requestList) pick(src netip.AddrPort) *requestWaiter {
	i := slices.IndexFunc(l.list, func(w *requestWaiter) bool { return w.from == src })
	if i < 0 {
		return nil
	}
	w := l.list[i]
	l.list = slices.Delete(l.list, i, i+1)
	return w
}

// add has w wait, unless over says that it is too late.
func (l *requestList) add(w *requestWaiter, over error) {
	if over != nil {
		w.err = over
		close(w.failed)
		return
	}
	l.list = append(l.list, w)
}

func (l *requestList) remove(w *requestWaiter) {
	if i := slices.Index(l.list, w); i >= 0 {
		l.list = slices.Delete(l.list, i, i+1)
	}
}

// decided says whether w has its reply or has failed.
func (w *requestWaiter) decided() bool {
	select {
	case <-w.failed:
		return true
	default:
		return len(w.reply) > 0
	}
}

// take gives datagrams of b to the Requests that wait for them and returns
// what is left of b. n and bytes count what was given.
func (l *requestList) take(b *inBatch, n, bytes *int) []*inBatch {
	if !slices.ContainsFunc(l.list, func(w *requestWaiter) bool { return slices.Contains(b.sources, w.from) }) {
		return []*inBatch{b}
	}
	var rest []*inBatch
	for b.left > 0 {
		d := b.next()
		w := l.pick(d.Addr)
		if w == nil {
			rest = append(rest, singleBatch(d))
			continue
		}
		w.reply <- d // capacity 1, and a waiter is in the list once
		*n++
		*bytes += len(d.Payload)
	}
	return rest
}

func (l *requestList) failAll(err error) {
	for _, w := range l.list {
		w.err = err
		close(w.failed)
	}
	l.list = nil
}

func (q *recvQueue) addWaiter(w *requestWaiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters.add(w, q.over)
}

func (q *recvQueue) removeWaiter(w *requestWaiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters.remove(w)
}
