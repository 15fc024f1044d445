package rdsd

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// Bounds of the pause between two attempts to reach the daemon.
const (
	backoffMin = 20 * time.Millisecond
	backoffMax = 2 * time.Second
	// attemptTimeout bounds one attempt, so that a daemon that accepts and then
	// says nothing is tried again.
	attemptTimeout = 10 * time.Second
)

// backoffDelay is the pause before attempt n (0, 1, ...): between half of and
// the whole of 20 ms doubled n times, at most 2 s.
func backoffDelay(n int, random float64) time.Duration {
	d := backoffMax
	if n < 7 {
		d = min(backoffMin<<n, backoffMax)
	}
	return d/2 + time.Duration(random*float64(d/2))
}

// run is the socket's one long-lived goroutine: it reads the stream and, when
// that breaks, makes a new one. It ends with the socket.
func (s *Socket) run(l link) {
	defer close(s.ended)
	for l != nil {
		err := l.read()
		s.broken(l, err)
		l = s.reconnect(err)
	}
	s.cancel()
}

// broken is the end of a link: nothing that was waiting for it waits on.
func (s *Socket) broken(l link, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l { // Close was there first
		return
	}
	s.link = nil
	s.down = err
	s.up = make(chan struct{})
	s.fe.dropLocked(l, nil)
	// In the same step, so that no call waits for a daemon that will not be tried again.
	s.endLocked(err)
}

// dropLocked gives every batch without a result its error and every datagram
// without an outcome the outcome Unknown. Nothing is sent again: it might arrive
// twice.
func (s *stream) dropLocked(l link, cause error) {
	sess := l.(*session)
	s.sess = nil
	s.roomLocked() // those that wait for credit wait for the next session
	err, reason := cause, reasonClosed
	if cause == nil {
		err, reason = errLost, reasonRestarted
	}
	for id, b := range sess.pending {
		delete(sess.pending, id)
		if b.posted { // Unknown, with the others below
			s.endPostLocked(b, err)
			continue
		}
		if b.wantOutcomes {
			s.undecid.remove(b.firstTag, uint64(len(b.lengths)))
		}
		s.failLocked(b, err, true)
	}
	if s.cfg.outcomes {
		for _, r := range s.undecid.take() {
			s.outcomes.add(r.first, r.count, Unknown, reason)
		}
	}
}

// The reasons of the outcomes the SDK itself decides.
const (
	reasonRestarted = "daemon restarted"
	reasonClosed    = "the socket was closed"
	reasonCancelled = "cancelled by the application"
)

// failLocked fails every call that waits for b. The batch is left to the collector: a
// goroutine may be writing it to the stream that has just broken.
func (s *stream) failLocked(b *batch, err error, undecided bool) {
	for _, p := range b.parts {
		if !p.c.abandoned {
			p.c.err, p.c.undecided = err, undecided
		}
		p.c.finish()
	}
	s.unwaitLocked(b)
}

// reconnect returns the next link, or nil when there will be none.
func (s *Socket) reconnect(err error) link {
	for n := 0; ; n++ {
		if s.end(err) {
			return nil
		}
		t := time.NewTimer(backoffDelay(n, rand.Float64()))
		select {
		case <-t.C:
		// Around once more: end has the last word, and there is an error to be told.
		case <-s.ctx.Done():
			t.Stop()
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, attemptTimeout)
		l, cerr := s.fe.connect(ctx)
		cancel()
		s.mu.Lock()
		// Closed and connected exclude each other under the lock: either Close finds the
		// link, or this finds the socket over.
		if cerr == nil && s.over == nil {
			// What became clear meanwhile was told to nobody, so every watcher looks again.
			s.watch.lost()
			s.startLocked(l)
			s.mu.Unlock()
			s.fe.push()
			return l
		}
		if cerr == nil { // closed meanwhile
			l.discard()
		} else {
			err = cerr
			s.down = cerr
		}
		s.mu.Unlock()
	}
}

// end decides whether the socket is over after err.
func (s *Socket) end(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(err)
}

func (s *Socket) endLocked(err error) bool {
	switch {
	case s.over != nil:
		return true
	case s.ctx.Err() != nil:
		s.finishLocked(rdserr.ErrClosed)
		return true
	// A reply port whose number somebody else was given meanwhile: requests leave from another one.
	case !worthRetry(err), s.cfg.replies && errors.Is(err, rdserr.ErrAddrInUse):
		s.finishLocked(err)
		return true
	case !s.cfg.reconnect:
		s.finishLocked(rdserr.With(rdserr.ErrShutdown, "the daemon went away: %v", err))
		return true
	}
	return false
}

// dismissed is the reason of a Closing that is not about the daemon's own end:
// an administrator closed this socket.
type dismissed struct{ error }

func (d dismissed) Unwrap() error { return d.error }

// worthRetry reports whether a socket that ended, or a bind that failed, with this error
// may work later: the daemon is away, or still has the old socket, or has not got its
// addresses or its memory yet. A refusal that depends on the user or the request stays one,
// and a socket closed by an administrator stays closed.
func worthRetry(err error) bool {
	if _, ok := errors.AsType[dismissed](err); ok {
		return false
	}
	for _, s := range []error{rdserr.ErrShutdown, rdserr.ErrCanceled, rdserr.ErrTimeout, rdserr.ErrReset, rdserr.ErrIO,
		rdserr.ErrAddrInUse, rdserr.ErrAddrNotAvail, rdserr.ErrNoMemory, rdserr.ErrTooMany,
		rdserr.ErrRateLimited, rdserr.ErrHostDown, rdserr.ErrRefused} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}
