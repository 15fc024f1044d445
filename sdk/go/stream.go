package rdsd

import (
	"context"
	"net/netip"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// stream is the front end over gRPC: one stream of the call Datagrams.Open
// carries the socket. It uses its Socket's lock; after Socket.mu comes recv.mu.
//
// Read first: session.go (one stream), transmit.go (which goroutine writes when), recv.go.
type stream struct {
	*Socket
	recv recvQueue

	sess    *session               // guarded by mu; Socket.link as what it is
	nextTag uint64                 // guarded by mu
	seq     uint64                 // guarded by mu
	tryq    fifo[*batch]           // guarded by mu; not waiting batches, not written yet
	waitq   fifo[*batch]           // guarded by mu; waiting batches, not written yet
	waiters map[netip.AddrPort]int // guarded by mu; waiting batches by destination, written or not
	posts   posts                  // guarded by mu; accepted here, without a result
	ways    map[netip.AddrPort]way // guarded by mu; of the session in use
	undecid tagSet                 // guarded by mu; sent and without outcome, with cfg.outcomes
}

func newStream(s *Socket) *stream {
	st := &stream{Socket: s, waiters: make(map[netip.AddrPort]int)}
	st.recv.init(s.cfg)
	return st
}

func (s *stream) kind() FrontEnd { return GRPC }

func (s *stream) tellLocked(m *rdsdv1.ClientMessage) { s.sess.ctl.tell(m) }

func (s *stream) withdrawLocked(m *rdsdv1.ClientMessage, waits func(id uint64) bool) {
	if s.sess != nil {
		s.sess.ctl.withdraw(m, waits)
	}
}

func (s *stream) push() {
	s.mu.Lock()
	m, sess := s.kickLocked()
	s.mu.Unlock()
	s.write(m, sess)
}

func (s *stream) knows(netip.AddrPort) (congested, ok bool) { return false, false }

func (s *stream) outcomesRead() { s.push() }

func (s *stream) finishLocked(err error) {
	for _, q := range []*fifo[*batch]{&s.tryq, &s.waitq} {
		for q.len() > 0 {
			b := q.pop()
			s.failLocked(b, err, false)
		}
	}
	s.recv.finish(err)
}

func (s *stream) awaitOutcome(ctx context.Context) error { return awaitSignal(ctx, s.outcomes.wake) }

func (s *stream) awaitCongestion(ctx context.Context, w *watcher) error {
	return awaitSignal(ctx, w.wake)
}

func awaitSignal(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctxError(ctx, nil)
	}
}
