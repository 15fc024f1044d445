package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// cancelGrace is how long Request waits, after its own deadline, for the daemon
// to confirm that the request will not leave any more.
const cancelGrace = 100 * time.Millisecond

// Request sends one datagram and waits for the answer of dst to it.
//
// A request leaves from a reply port, a port of its own beside the socket's (see
// replyports.go), and its answer is the datagram that dst sends to that port: so no Request
// is ever given the answer to another one, whether that has given up or is still waiting,
// and no Recv sees it. The responder needs to know nothing of this and answers to the
// datagram's source, as with Reply. All other datagrams to a reply port are dropped.
//
// This means: the responder sees the socket's address with a port that is not the socket's;
// a Request is not ordered with what Send has sent before (Flush first where it must come
// after it); Outcomes, Flush and CancelSentTo of the socket do not concern it. Any number
// of goroutines may make requests; to one destination 32 at a time are under way, others
// wait for their turn within ctx. Reply ports count against the user's limit of sockets.
//
// When ctx ends, a request that is still queued is cancelled as with CancelSentTo and the
// error is rdserr.ErrTimeout or ErrCanceled. Other errors are those of Send, and of Bind
// when there is no reply port to be had.
func (s *Socket) Request(ctx context.Context, dst netip.AddrPort, p []byte) (Datagram, error) {
	dst = unmap(dst)
	// The misuse of a reply port would be told as that of a socket nobody knows.
	if err := s.misuse(ctx, "request", dst); err != nil {
		return Datagram{}, err
	}
	if ctx.Err() != nil {
		return Datagram{}, s.opErr("request", dst, ctxError(ctx, nil))
	}
	var err error
	for lost := true; lost; {
		var port *replyPort
		if port, err = s.requests.acquire(ctx, s, dst); err != nil {
			return Datagram{}, s.opErr("request", dst, bareError(err))
		}
		var d Datagram
		var late bool
		d, late, err = port.sock.exchange(ctx, dst, p)
		s.requests.release(port, dst, late)
		if err == nil {
			return d, nil
		}
		lost = !late && errors.Is(err, rdserr.ErrAddrInUse) // and this has not left: it leaves from another one
	}
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over != nil { // its ports were closed because of that
		err = over
	}
	return Datagram{}, s.opErr("request", dst, bareError(err))
}

// Reply sends p to where d came from, from this socket's own port: with it a
// responder answers a Request. Errors are those of Send.
func (s *Socket) Reply(ctx context.Context, d Datagram, p []byte) error {
	return s.Send(ctx, d.Addr, p)
}

// bareError takes the addresses of a reply port off an error: they would be
// another socket's than the caller's.
func bareError(err error) error {
	if op, ok := err.(*OpError); ok {
		return op.Err
	}
	return err
}

var errPortLost = rdserr.With(rdserr.ErrShutdown, "the daemon was restarted, and somebody else has the port the reply was to come to")

// exchange sends p and waits for the answer. late says that it has not come and may still
// come. It is for reply ports, where only the answer to this request can come from dst.
func (s *Socket) exchange(ctx context.Context, dst netip.AddrPort, p []byte) (d Datagram, late bool, err error) {
	w := &requestWaiter{from: dst, reply: make(chan Datagram, 1), failed: make(chan struct{})}
	s.fe.addRequest(w)
	defer s.fe.removeRequest(w)
	if err := s.Send(ctx, dst, p); err != nil {
		op, ok := errors.AsType[*OpError](err)
		return Datagram{}, ok && op.Undecided && !s.takeBack(ctx, dst), err // undecided: the daemon may have it
	}
	err = s.fe.awaitReply(ctx, w)
	s.fe.removeRequest(w)
	select {
	case d := <-w.reply: // perhaps at the last moment
		return d, false, nil
	case <-w.failed:
		if errors.Is(w.err, rdserr.ErrAddrInUse) {
			return Datagram{}, true, errPortLost
		}
		return Datagram{}, true, w.err
	default:
	}
	return Datagram{}, !s.takeBack(ctx, dst), err
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

// takeBack cancels a request and reports whether it has provably not left. The caller of
// Request gets the timeout in any case.
func (s *Socket) takeBack(ctx context.Context, dst netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
	defer cancel()
	r, err := s.CancelSentTo(ctx, dst)
	return err == nil && r.Cancelled > 0 && r.InFlight == 0
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

// take gives datagrams of b to the Requests that wait for them and returns the parts of b
// that are left. n and bytes count those given.
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
