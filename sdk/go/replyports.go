package rdsd

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// A Request must not be given the answer to another one, above all not the late answer to
// one that gave up. Payloads are the application's, and a responder may be any program: a
// kernel, or one without this package. All that a responder does for certain is to answer
// to the port the request came from. So the port that a request leaves from, together with
// the answer's source, tells which request an answer is for.
//
// A socket has a few such reply ports beside its own, as many as its requests need: one
// port serves requests to any number of destinations, but one request to each at a time. It
// is used again for a destination only when the answer has come, or the request has
// provably not left. A port that may be sent a late answer (it is spoiled) takes no request
// any more and is closed with its last one, so that the late answer ends as "no such port"
// at the responder and never fills a buffer that is not read. The daemon does not soon give
// the number of a closed port to a client that asks for any.
//
// Tried before: counting the answers that a destination still owes, which a lost
// request or a responder that answers out of order puts wrong for ever; a number
// in front of each payload, which only a responder with the same package returns.

const (
	maxReplyPorts  = 32 // of one socket
	keepReplyPorts = 4  // of these, without a request
)

// replyPorts are the reply ports of one socket.
type replyPorts struct {
	mu      sync.Mutex
	list    []*replyPort  // guarded by mu
	binding bool          // guarded by mu; a call has the turn to add a port
	over    error         // guarded by mu; why there will be no request any more
	changed chan struct{} // guarded by mu; closed when a request may find a port now

	cancel context.CancelFunc // guarded by mu; of the bind under way

	closing sync.WaitGroup // ports that are being closed
}

// replyPort is a socket that requests leave from. In its list, and guarded by
// replyPorts.mu.
type replyPort struct {
	sock    *Socket
	asked   map[netip.AddrPort]struct{} // destinations with a request
	spoiled bool                        // a late answer may come: no further requests
}

// acquire finds or binds a port for a request from s to dst.
func (p *replyPorts) acquire(ctx context.Context, s *Socket, dst netip.AddrPort) (*replyPort, error) {
	// One port is bound at a time, since it may do for all that wait: the call that has the
	// turn keeps it over its pauses.
	turn := false
	defer func() {
		if turn {
			p.endTurn()
		}
	}()
	for failed := 0; ; failed++ {
		p.mu.Lock()
		if p.over != nil {
			p.mu.Unlock()
			return nil, p.over
		}
		// Both under one lock: a change between the look and the wait would be missed.
		port, changed := p.pickLocked(dst), p.changedLocked()
		// closing counts a bind under way, so that Close can wait for its socket.
		if !turn && port == nil && !p.binding && len(p.list) < maxReplyPorts {
			turn, p.binding = true, true
			p.closing.Add(1)
		}
		p.mu.Unlock()
		if port != nil {
			return port, nil
		}
		var pause <-chan time.Time
		var why error
		if turn {
			if why = p.bind(ctx, s); why == nil {
				turn = false
				continue
			}
			switch {
			case ctx.Err() != nil:
				return nil, ctxError(ctx, nil)
			case p.isOver():
				continue
			// The daemon is being restarted: the turn is kept over the pause, so that not
			// every waiter asks it anew.
			case s.cfg.reconnect && isAway(why):
				pause = time.After(backoffDelay(failed, rand.Float64()))
			// At the user's limit of sockets a port that is in use will become free; without
			// one nothing will.
			case !isLimit(why) || !p.used():
				return nil, why
			}
		}
		select {
		case <-changed:
		case <-pause:
		case <-ctx.Done():
			return nil, ctxError(ctx, why)
		}
	}
}

// endTurn lets another call bind a port.
func (p *replyPorts) endTurn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.binding = false
	p.closing.Done()
	p.tellLocked()
}

// pickLocked finds a port that has no request to dst, and puts one on it.
func (p *replyPorts) pickLocked(dst netip.AddrPort) *replyPort {
	var port *replyPort
	p.list = slices.DeleteFunc(p.list, func(q *replyPort) bool {
		lost := q.sock.isLost()
		if lost && len(q.asked) == 0 {
			p.closeLocked(q.sock)
			return true
		}
		if _, busy := q.asked[dst]; port == nil && !busy && !q.spoiled && !lost {
			port = q
		}
		return false
	})
	if port != nil {
		port.asked[dst] = struct{}{}
	}
	return port
}

func (p *replyPorts) changedLocked() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// tellLocked wakes every call that waits for a port.
func (p *replyPorts) tellLocked() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// bind adds a port, which ends the turn.
func (p *replyPorts) bind(ctx context.Context, s *Socket) error {
	cfg := s.cfg
	// Nobody reads anything but answers from this socket.
	cfg.replies, cfg.outcomes, cfg.mask = true, false, 0
	if s.fe.kind() == GRPC {
		cfg.frontEnd = GRPC
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	// close cancels a bind under way, instead of waiting for a daemon that may not answer.
	p.cancel = cancel
	// Closed before cancel was there to be called.
	if p.over != nil {
		cancel()
	}
	p.mu.Unlock()
	sock, err := s.client.bind(ctx, netip.AddrPortFrom(s.LocalAddr().Addr(), 0), cfg)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.over != nil {
		p.closeLocked(sock)
	} else {
		p.list = append(p.list, &replyPort{sock: sock, asked: make(map[netip.AddrPort]struct{})})
	}
	p.mu.Unlock()
	p.endTurn()
	return nil
}

// release ends the request to dst. late: an answer to it may still come.
func (p *replyPorts) release(q *replyPort, dst netip.AddrPort, late bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(q.asked, dst)
	q.spoiled = q.spoiled || late
	idle := 0
	p.list = slices.DeleteFunc(p.list, func(o *replyPort) bool {
		if len(o.asked) > 0 {
			return false
		}
		if idle++; idle <= keepReplyPorts && !o.spoiled {
			return false
		}
		p.closeLocked(o.sock)
		return true
	})
	p.tellLocked()
}

// closeLocked lets go of a port without waiting for the daemon. wait does that.
func (p *replyPorts) closeLocked(sock *Socket) {
	p.closing.Go(func() { sock.Close() })
}

// finish ends all requests, because their socket is over.
func (p *replyPorts) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = err
	for _, q := range p.list {
		p.closeLocked(q.sock)
	}
	p.list = nil
	if p.cancel != nil {
		p.cancel()
	}
	p.tellLocked()
}

func (p *replyPorts) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over != nil
}

// used reports whether there is a port that may become free.
func (p *replyPorts) used() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.list) > 0
}

// isAway reports whether binding failed because there is no daemon for a moment.
func isAway(err error) bool {
	return worthRetry(err) && !isLimit(err) && !errors.Is(err, rdserr.ErrTimeout) && !errors.Is(err, rdserr.ErrCanceled)
}

// isLimit reports whether binding failed because too much is bound already.
func isLimit(err error) bool {
	return errors.Is(err, rdserr.ErrTooMany) || errors.Is(err, rdserr.ErrNoMemory) || errors.Is(err, rdserr.ErrAddrInUse)
}

// isLost reports whether the socket is over, as an administrator may have closed it. A reply port
// is also when somebody else has its number: after a restart of the daemon one that asks for any
// may get it first.
func (s *Socket) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over != nil
}
