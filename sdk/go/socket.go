package rdsd

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// Socket is an RDS socket: a local (address, port) of which this process is the
// one owner. All methods may be called from many goroutines.
//
// Lock order: mu, then recv.mu or outcomes.mu or watch.mu; none is held while a
// message is written to the stream.
type Socket struct {
	client *Client
	cfg    bindConfig
	ctx    context.Context // ends with the socket
	cancel context.CancelFunc
	ended  chan struct{} // closed when the reading goroutine is gone

	recv     recvQueue
	outcomes outcomeQueue
	watch    watchers

	mu       sync.Mutex
	local    netip.AddrPort         // guarded by mu; fixed after the first bind
	maxBytes int                    // guarded by mu; largest datagram, 0: not known
	sess     *session               // guarded by mu; nil while not connected
	up       chan struct{}          // guarded by mu; closed while sess is set or the socket is over
	over     error                  // guarded by mu; why nothing will work any more
	down     error                  // guarded by mu; why sess is nil, for the texts of timeouts
	nextID   uint64                 // guarded by mu
	nextTag  uint64                 // guarded by mu
	seq      uint64                 // guarded by mu
	tryq     fifo[*batch]           // guarded by mu; not waiting batches, not written yet
	waitq    fifo[*batch]           // guarded by mu; waiting batches, not written yet
	waiters  map[netip.AddrPort]int // guarded by mu; waiting batches by destination, written or not
	undecid  tagSet                 // guarded by mu; sent and without outcome, with cfg.outcomes
}

// Bind opens a socket. Port 0 takes any free port; the address must be one of
// the daemon's. It fails with rdserr.ErrAddrInUse, ErrAddrNotAvail, ErrPerm,
// ErrTooMany, ErrNoMemory, ErrShutdown (no daemon there), ErrTimeout.
func (c *Client) Bind(ctx context.Context, local netip.AddrPort, opts ...BindOption) (*Socket, error) {
	local = unmap(local)
	s := &Socket{
		client:  c,
		cfg:     newBindConfig(opts),
		ended:   make(chan struct{}),
		up:      make(chan struct{}),
		waiters: make(map[netip.AddrPort]int),
		local:   local,
	}
	if !local.Addr().IsValid() {
		return nil, opError("bind", local, netip.AddrPort{}, rdserr.With(rdserr.ErrInvalid, "a local address is needed"))
	}
	if s.cfg.sendBuffer < 0 || s.cfg.recvBuffer < 0 {
		return nil, opError("bind", local, netip.AddrPort{}, rdserr.With(rdserr.ErrInvalid, "buffer sizes are not negative"))
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.recv.init(s.cfg)
	s.outcomes.init()
	if err := c.add(s); err != nil {
		s.cancel()
		return nil, opError("bind", local, netip.AddrPort{}, err)
	}
	sess, err := s.connect(ctx)
	if err != nil {
		s.cancel()
		c.remove(s)
		return nil, opError("bind", local, netip.AddrPort{}, err)
	}
	s.mu.Lock()
	s.local = sess.local
	s.startLocked(sess)
	s.mu.Unlock()
	go s.run(sess) // ends with s.ctx
	return s, nil
}

// LocalAddr is the bound address and port. It stays the same over reconnections.
func (s *Socket) LocalAddr() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// closeGrace is how long Close waits for the daemon to say that the port is free.
const closeGrace = 2 * time.Second

// Close releases the port; calls that wait return rdserr.ErrClosed. What was
// accepted and not yet sent may be dropped: Flush first where that matters.
// When Close returns, the daemon has let go of the port, unless it did not
// answer within 2 s. Closing twice is no error.
func (s *Socket) Close() error {
	s.mu.Lock()
	sess := s.sess
	first := s.finishLocked(rdserr.ErrClosed)
	if sess != nil && first {
		// The writer sends what the stream needs: half-close after the message
		// it is at. The daemon answers by ending the stream.
		sess.closing = true
		sess.kickWriterLocked()
	} else {
		s.cancel()
	}
	s.mu.Unlock()
	if first && sess != nil {
		t := time.NewTimer(closeGrace)
		select {
		case <-s.ended:
		case <-t.C:
		}
		t.Stop()
		s.cancel()
	}
	<-s.ended
	s.client.remove(s)
	return nil
}

// finishLocked makes err the answer to everything from now on. It returns false
// when the socket was over already.
func (s *Socket) finishLocked(err error) bool {
	wasOver := s.over != nil
	if wasOver && s.over == error(rdserr.ErrClosed) {
		return false
	}
	if !wasOver && s.sess == nil {
		close(s.up)
	}
	s.over = err
	if s.sess != nil {
		s.dropPendingLocked(s.sess, err)
		for id, answer := range s.sess.replies {
			delete(s.sess.replies, id)
			close(answer)
		}
		s.sess = nil // up stays closed
	}
	for _, q := range []*fifo[*batch]{&s.tryq, &s.waitq} {
		for q.len() > 0 {
			b := q.pop()
			s.failLocked(b, err, false)
		}
	}
	s.recv.finish(err)
	s.outcomes.finish(err)
	s.watch.finish(err)
	return true
}

func unmap(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Is4In6() {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return a
}

// opErr wraps err with this socket's address.
func (s *Socket) opErr(op string, remote netip.AddrPort, err error) error {
	return opError(op, s.LocalAddr(), remote, err)
}
