package rdsd

import (
	"context"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
)

// recvQueue holds the datagrams that the daemon has pushed and no call has taken yet. Its
// size is bounded by the credit: the receive window.
type recvQueue struct {
	windowN, windowB int
	replies          bool          // a reply port: datagrams that no request waits for are dropped
	wake             chan struct{} // capacity 1; passed on from reader to reader

	mu       sync.Mutex
	batches  fifo[*inBatch] // guarded by mu
	n, bytes int            // guarded by mu; unread
	owedN    int            // guarded by mu; read and not yet credited again
	owedB    int            // guarded by mu
	over     error          // guarded by mu
	waiters  requestList    // guarded by mu; Request calls, before everybody else
	loans    []*loan        // guarded by mu; to be used again
	own      slab           // guarded by mu

	// lend is set while the last call lent payloads or copied them. Then messages stay in
	// memory of the pool; otherwise each gets memory of its own, because the receiver may
	// keep it.
	lend atomic.Bool

	// taken is set when a call has taken datagrams, until the next batch is written.
	taken atomic.Bool
}

// loan holds the batches of one Borrow.
type loan struct {
	q       *recvQueue
	turn    uint64     // guarded by q.mu; leases of earlier turns are void
	batches []*inBatch // guarded by q.mu
}

const maxLoans = 64 // kept for use again

func (q *recvQueue) init(cfg bindConfig) {
	q.windowN, q.windowB, q.replies = cfg.windowDatagrams, cfg.windowBytes, cfg.replies
	q.wake = make(chan struct{}, 1)
}

// initialCredit is the credit of a new stream: the window less the datagrams still unread
// from the stream before.
func (q *recvQueue) initialCredit() (datagrams uint32, bytes uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.owedN, q.owedB = 0, 0
	return uint32(min(max(q.windowN-q.n, 0), math.MaxInt32)), uint64(max(q.windowB-q.bytes, 0))
}

// deliver queues a batch that arrived.
func (q *recvQueue) deliver(b *inBatch, s *stream) {
	q.mu.Lock()
	if q.over != nil {
		q.mu.Unlock()
		return
	}
	takenN, takenB := 0, 0
	rest := []*inBatch{b}
	if !q.waiters.empty() {
		// Requests first: an answer must not be read by a Recv that happens to wait.
		if rest = q.waiters.take(b, &takenN, &takenB); takenN > 0 {
			q.tookSome()
		}
	}
	for _, part := range rest {
		// On a reply port nothing else is wanted. It counts as read, or the daemon's credit
		// would run out.
		if q.replies {
			takenN, takenB = takenN+part.left, takenB+len(part.payload)
			continue
		}
		q.n += part.left
		q.bytes += len(part.payload)
		q.batches.push(part)
	}
	unread := q.n > 0
	due := q.owe(takenN, takenB)
	q.mu.Unlock()
	if unread {
		q.signal()
	}
	// Without the lock: granting takes the socket's.
	s.grant(due)
}

// tookSome notes that a call has datagrams.
func (q *recvQueue) tookSome() {
	if !q.taken.Load() {
		q.taken.Store(true)
	}
}

func (q *recvQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// owe counts datagrams that were read, and reports whether they are to be granted again: once they
// are half a window of either kind. Until then, and while there is no session, they stay owed.
func (q *recvQueue) owe(n, bytes int) (due bool) {
	q.owedN += n
	q.owedB += bytes
	return q.due()
}

func (q *recvQueue) due() bool { return 2*q.owedN >= q.windowN || 2*q.owedB >= q.windowB }

// credit takes what is to be granted.
func (q *recvQueue) credit() (datagrams, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.due() {
		return 0, 0
	}
	datagrams, bytes = q.owedN, q.owedB
	q.owedN, q.owedB = 0, 0
	return datagrams, bytes
}

func (q *recvQueue) finish(err error) {
	q.mu.Lock()
	q.over = err
	if isClosed(err) {
		q.batches, q.n, q.bytes = fifo[*inBatch]{}, 0, 0
	}
	q.waiters.failAll(err)
	q.mu.Unlock()
	q.signal()
}

// grant gives the daemon credit if it is due.
func (s *stream) grant(due bool) {
	if !due {
		return
	}
	s.mu.Lock()
	if s.sess == nil { // startLocked grants what the next Bind has not counted in
		s.mu.Unlock()
		return
	}
	s.grantLocked()
	m, sess := s.kickLocked()
	s.mu.Unlock()
	s.write(m, sess)
}

func (s *stream) grantLocked() {
	n, bytes := s.recv.credit()
	s.sess.creditN += uint64(n)
	s.sess.creditB += uint64(bytes)
}

// take moves the datagrams that are there into into, as many as fit.
func (q *recvQueue) take(into []Datagram, how place) (got int, l Lease, due bool, err error) {
	if pool := how != ownMemory; q.lend.Load() != pool {
		q.lend.Store(pool)
	}
	q.mu.Lock()
	bytes := 0
	var h *loan
	// A batch stays at the head until it is read to its end, and each Borrow that took from
	// it holds a reference: its memory goes back to the pool with the last.
	for got < len(into) && q.batches.len() > 0 {
		b := *q.batches.front()
		switch {
		case b.mem == nil || how == givenMemory || how == givenOnly:
		case how == ownMemory:
			b.mem = nil // a caller may keep its part of it
		case h == nil:
			h = q.newLoan()
			fallthrough
		default:
			h.batches = append(h.batches, b)
			b.refs++
		}
		if n := b.nextSize(); how == givenOnly && !into[got].hasRoom(n) {
			err = errRoom(n, cap(into[got].Payload))
			break
		}
		for got < len(into) && b.left > 0 {
			d := b.next()
			bytes += len(d.Payload)
			switch how {
			case ownMemory:
				into[got] = d
			case inPlace:
				d.lent = true
				into[got] = d
			default:
				into[got].Addr, into[got].Tag = d.Addr, 0
				into[got].copyIn(d.Payload, how, &q.own)
			}
			got++
		}
		if b.left == 0 {
			q.batches.pop()
			b.giveBack()
		}
	}
	q.n -= got
	q.bytes -= bytes
	switch {
	case got > 0:
		q.tookSome()
		due = q.owe(got, bytes)
	case err == nil:
		err = q.over
	}
	// One token wakes one reader; a reader that leaves something behind passes it on.
	more := q.n > 0 || q.over != nil
	if h != nil {
		l = Lease{h, h.turn}
	}
	q.mu.Unlock()
	if more {
		q.signal()
	}
	return got, l, due, err
}

// newLoan is called with the lock held.
func (q *recvQueue) newLoan() *loan {
	if n := len(q.loans); n > 0 {
		h := q.loans[n-1]
		q.loans = q.loans[:n-1]
		return h
	}
	return &loan{q: q}
}

// release gives messages back to the pool that were read to their end and are lent to no
// other call.
func (h *loan) release(turn uint64) {
	q := h.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if h.turn != turn {
		return
	}
	h.turn++
	for i, b := range h.batches {
		b.refs--
		b.giveBack()
		h.batches[i] = nil
	}
	h.batches = h.batches[:0]
	if len(q.loans) < maxLoans {
		q.loans = append(q.loans, h)
	}
}

func (s *stream) receive(ctx context.Context, into []Datagram, how place) (int, Lease, error) {
	for {
		got, l, due, err := s.recv.take(into, how)
		if got > 0 {
			s.grant(due)
			return got, l, nil
		}
		if err != nil {
			return 0, Lease{}, err
		}
		select {
		case <-s.recv.wake:
		case <-ctx.Done():
			return 0, Lease{}, ctxError(ctx, nil)
		}
	}
}

// rest and restInto leave everything to receive: its lock is the least of what a datagram costs
// over a stream.
func (s *stream) rest() (d Datagram, ok bool) { return Datagram{}, false }

func (s *stream) restInto([]byte) (n int, from netip.AddrPort, ok bool) {
	return 0, netip.AddrPort{}, false
}
