package client

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// clientDeps is what the room of clients is given.
type Deps struct {
	*base.Deps
	Clients *access.Clients                  // their connections
	Limiter *access.Limiter                  // how often a user may call; a bind is a call
	Engine  func(netip.Addr) datagram.Engine // finds the engine of a local address; nil: there is none
	Collect func()                           // has what clients released taken, also by reactors that sleep; may be nil
}

// localFront is what a node has for its clients: their sockets, whichever way they
// came, and the control socket of docs/shm.md. There one SEQPACKET connection is
// one socket of a client of this node, plain or with rings. A plain one keeps
// the goroutine that accepted it; one with rings goes over to a reactor.
type Front struct {
	deps    Deps
	sockets *socketTable
	sends   *access.Turns // of long batches
	lacks   *access.Turns // of batches that wait for memory

	refusals atomic.Int32 // under way

	mu       sync.Mutex
	listener net.Listener           // guarded by mu; of the control socket, nil before Serve
	conns    map[*shm.Conn]struct{} // guarded by mu; nil when the front is stopped
	rings    map[*ringSock]struct{} // guarded by mu
	heard    Felt                   // guarded by mu
	bans     map[uint32]ringBan     // guarded by mu; by user
	wg       sync.WaitGroup         // goroutines, and sockets with rings

	closers *access.Closers // of connections that are refused
	seals   *access.Closers // of memory that clients can write to

	pages regionPages
	pairs pairTable

	fails atomic.Pointer[func(step string) error] // tests have steps of a bind with rings fail
}

// newClients makes the room of a node's clients.
func New(d Deps) *Front {
	l := &d.Config.Limits
	return &Front{
		deps:    d,
		sockets: newSocketTable(l.MaxSockets, l.MaxSocketsPerUID, d.Memory),
		sends:   access.NewTurns(1, 0),
		lacks:   access.NewTurns(1, 0),
		closers: access.NewClosers(d.Guard, maxClosing),
		seals:   access.NewClosers(d.Guard, maxClosing),
		conns:   map[*shm.Conn]struct{}{},
		rings:   map[*ringSock]struct{}{},
	}
}

// step is asked before each step of a bind with rings, and before what is done aside for one that is served.
func (f *Front) step(what string) error {
	if fails := f.fails.Load(); fails != nil {
		return (*fails)(what)
	}
	return nil
}

// Budget is how many sockets are open.
func (f *Front) Budget() base.Budget { return f.sockets.budget() }

// SetMaxPerUser changes how many sockets a user may have.
func (f *Front) SetMaxPerUser(most int) { f.sockets.setMaxPerUID(most) }

// Refuse has no socket opened, and nothing sent, any more: both fail with err.
func (f *Front) Refuse(err error) { f.sockets.refuse(err) }

// Finish ends the sockets that there are. Their clients are told err.
func (f *Front) Finish(err error) { f.sockets.finishAll(err) }

// endSocket ends a socket of a client, who is told err, and reports whether it was one. It
// is not called with the lock of the socket's engine held.
func End(s *rds.Socket, err error) bool {
	switch o := s.Options().Data.(type) {
	case *sockStream:
		o.finish(err)
	case *ringSock:
		o.s.finish(err)
	default:
		return false
	}
	return true
}

// Cancel is cancel_sent_to on a socket at h, by somebody else than its client. What stands in
// a ring has been sent as well: it is cancelled as it is taken, and not counted.
func Cancel(ctx context.Context, h *datagram.Local, s *rds.Socket, dst netip.AddrPort) (cancelled, begun int, err error) {
	r, ok := s.Options().Data.(*ringSock)
	if !ok {
		_, now := h.Lock()
		cancelled, begun, err = s.Cancel(now, dst)
		h.Unlock()
		return cancelled, begun, err
	}
	type result struct {
		cancelled, begun int
		err              error
	}
	done := make(chan result, 1)
	r.react.DoFor(r, func() {
		res := result{err: rdserr.ErrClosed}
		_, now := h.Lock()
		if r.sock == s && !r.closed {
			if res.err = r.mark(dst, r.End.Posted()); res.err == nil {
				res.cancelled, res.begun, res.err = s.Cancel(now, dst)
			}
		}
		h.Unlock()
		done <- res
	})
	select {
	case res := <-done:
		return res.cancelled, res.begun, res.err
	case <-r.react.Done(): // its sockets have ended with it
		return 0, 0, rdserr.ErrClosed
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// ringBytes tells what the region of a client's socket takes, and what it may take; ok is
// false for a socket without one. The lock of the socket's engine is held.
func RingBytes(s *rds.Socket) (used, most uint64, ok bool) {
	r, ok := s.Options().Data.(*ringSock)
	if !ok || r.End == nil || r.closed {
		return 0, 0, false
	}
	return r.End.Used(), r.reg.RegionBytes, true
}
