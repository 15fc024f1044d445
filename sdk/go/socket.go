package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// Socket is an RDS socket: a local (address, port) of which this process is the
// one owner. All methods may be called from many goroutines.
//
// Lock order: mu, then those of the front end (see there), then outcomes.mu or
// watch.mu; requests.mu after mu and before that of a reply port; none is held while a message is written to the daemon.
type Socket struct {
	client *Client
	cfg    bindConfig
	ctx    context.Context // ends with the socket
	cancel context.CancelFunc
	ended  chan struct{} // closed when the reading goroutine is gone, or Bind has failed
	fe     frontEnd      // set by Bind with mu held; fixed once Bind has returned

	requests replyPorts
	outcomes outcomeQueue
	watch    watchers

	mu       sync.Mutex
	local    netip.AddrPort                        // guarded by mu; fixed after the first bind
	maxBytes int                                   // guarded by mu; largest datagram, 0: not known
	link     link                                  // guarded by mu; nil while not connected
	up       chan struct{}                         // guarded by mu; closed while link is set or the socket is over
	over     error                                 // guarded by mu; why nothing will work any more
	down     error                                 // guarded by mu; why link is nil, for the texts of timeouts
	nextID   uint64                                // guarded by mu; of messages that are answered
	replies  map[uint64]chan *rdsdv1.ServerMessage // guarded by mu; the calls that wait, by the id of their answer
}

// Bind opens a socket. Port 0 takes any free port; the address must be one of
// the daemon's. It fails with rdserr.ErrAddrInUse, ErrAddrNotAvail, ErrPerm,
// ErrTooMany, ErrNoMemory, ErrShutdown (no daemon there), ErrTimeout.
//
// Whether the socket uses rings or a gRPC stream is decided here, see
// WithFrontEnd, and stays so when the daemon restarts.
func (c *Client) Bind(ctx context.Context, local netip.AddrPort, opts ...BindOption) (*Socket, error) {
	switch {
	case c == nil || c.conn == nil:
		return nil, opError("bind", local, netip.AddrPort{}, errNoClient)
	case ctx == nil:
		return nil, opError("bind", local, netip.AddrPort{}, errNoContext)
	}
	cfg := newBindConfig(opts)
	cfg.frontEnd = c.frontEnd
	return c.bind(ctx, unmap(local), cfg)
}

func (c *Client) bind(ctx context.Context, local netip.AddrPort, cfg bindConfig) (*Socket, error) {
	s := &Socket{
		client:  c,
		cfg:     cfg,
		ended:   make(chan struct{}),
		up:      make(chan struct{}),
		replies: make(map[uint64]chan *rdsdv1.ServerMessage),
		local:   local,
	}
	if !local.Addr().IsValid() {
		return nil, opError("bind", local, netip.AddrPort{}, rdserr.With(rdserr.ErrInvalid, "a local address is needed"))
	}
	if s.cfg.sendBuffer < 0 || s.cfg.recvBuffer < 0 {
		return nil, opError("bind", local, netip.AddrPort{}, rdserr.With(rdserr.ErrInvalid, "buffer sizes are not negative"))
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.outcomes.init()
	// Before the link: Close of the client then finds every socket, also one that is being
	// bound.
	if err := c.add(s); err != nil {
		s.cancel()
		return nil, opError("bind", local, netip.AddrPort{}, err)
	}
	l, err := s.begin(ctx)
	if err != nil {
		s.cancel()
		close(s.ended) // for Close, which may have been there meanwhile
		if c.remove(s) && errors.Is(err, rdserr.ErrClosed) {
			err = errClientClosed // which is why the socket is
		}
		return nil, opError("bind", local, netip.AddrPort{}, err)
	}
	go s.run(l) // ends with s.ctx
	return s, nil
}

// begin makes the first link and starts it, unless the socket is over by then.
func (s *Socket) begin(ctx context.Context) (link, error) {
	// Close waits for this, and not for a daemon that may not answer.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	l, err := s.open(ctx)
	s.mu.Lock()
	over := s.over
	if err == nil && over == nil {
		// With the port that was chosen, if none was asked for.
		s.local, _ = l.bound()
		s.startLocked(l)
	}
	s.mu.Unlock()
	if over != nil { // closed meanwhile
		if err == nil {
			l.discard()
		}
		return nil, over
	}
	return l, err
}

// LocalAddr returns the bound address and port. It stays the same over reconnections.
func (s *Socket) LocalAddr() netip.AddrPort {
	if s == nil {
		return netip.AddrPort{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// closeGrace is how long Close waits for the daemon to say that the port is free.
const closeGrace = 2 * time.Second

// Close releases the port; calls that wait return rdserr.ErrClosed. Datagrams accepted and
// not yet sent may be dropped: Flush first where that matters. When Close returns, the
// daemon has let go of the port, unless it did not answer within 2 s. Borrowed payloads
// stay valid until they are released. Closing twice is no error.
func (s *Socket) Close() error {
	if s == nil || s.ended == nil {
		return opError("close", netip.AddrPort{}, netip.AddrPort{}, errNoSocket)
	}
	s.mu.Lock()
	l := s.link
	first := s.finishLocked(rdserr.ErrClosed)
	switch {
	case !first: // another Close is at it, and has the time for the daemon
	case l != nil:
		l.endLocked()
	default:
		s.cancel()
	}
	s.mu.Unlock()
	if first && l != nil {
		t := time.NewTimer(closeGrace)
		select {
		case <-s.ended:
		case <-t.C:
		}
		t.Stop()
		s.cancel()
	}
	<-s.ended
	s.requests.closing.Wait()
	s.client.remove(s)
	return nil
}

// startLocked makes l the socket's link.
func (s *Socket) startLocked(l link) {
	s.link = l
	_, s.maxBytes = l.bound()
	s.down = nil
	close(s.up)
	s.fe.startLocked(l)
	if s.watch.active() {
		s.fe.tellLocked(s.monitorMessage())
	}
}

// finishLocked makes err the answer to everything from now on. It returns false
// when the socket was over already.
func (s *Socket) finishLocked(err error) bool {
	wasOver := s.over != nil
	if wasOver && s.over == error(rdserr.ErrClosed) {
		return false
	}
	if !wasOver && s.link == nil {
		close(s.up)
	}
	s.over = err
	if s.link != nil {
		s.fe.dropLocked(s.link, err)
		s.link = nil // up stays closed
	}
	for id, answer := range s.replies {
		delete(s.replies, id)
		close(answer)
	}
	// Without a front end nothing is queued and no call waits: Bind has just begun.
	if s.fe != nil {
		s.fe.cancelQueuedLocked() // while outcomes are still read
	}
	s.requests.finish(err)
	s.outcomes.finish(err)
	s.watch.finish(err)
	if s.fe != nil {
		s.fe.finishLocked(err) // wakes the calls that wait for the two
	}
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
	if err == nil {
		return nil
	}
	return opError(op, s.LocalAddr(), remote, err)
}
