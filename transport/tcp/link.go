package tcp

import (
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Link is one TCP connection. Its reactor's thread reads it, goes on writing a batch that
// met a full socket buffer, and alone closes the descriptor.
type Link struct {
	socket
	ackBase uint64 // bytes TCP counted as acknowledged before ours: the SYN, on the connecting side
	fin     bool   // our side is shut; guarded by fdMu

	mu      sync.Mutex        // guards the fields below; only epoll_ctl is called with it held
	h       transport.Handler // set by Start
	closing bool              // Close was called
	ended   bool              // Closed has been, or is about to be, called; set by the thread
	paused  bool              // the receiver is full; set by the thread
	out     *transport.Batch  // kept by Send
	why     error             // it could not be written to

	// Owned by the reactor's thread.
	framer   transport.Framer
	discard  bool // the handler gave the link up: received bytes are thrown away
	waste    int  // bytes of that
	deaf     bool // TCP takes nothing any more: this ends
	held     *held
	drain    *reactor.Timer
	gate     transport.Gate // nil: it is read always
	again    *reactor.Timer // asks the gate again; nil: it has never said no
	patience time.Duration  // until then
}

// newLink takes the connection over; nc is closed in any case.
func newLink(lp *loop, nc *net.TCPConn, buffer int) (*Link, error) {
	l := &Link{}
	if err := l.open(lp, nc, buffer); err != nil {
		return nil, err
	}
	l.framer.Max = wire.MaxDatagram
	l.ackBase = acked(l.fd)
	return l, nil
}

// Acked is how many of our bytes the peer's TCP acknowledged.
func (l *Link) Acked() uint64 {
	l.fdMu.RLock()
	defer l.fdMu.RUnlock()
	n := acked(l.fd)
	if l.fin {
		n = withoutFIN(l.fd, n)
	}
	return n - l.ackBase
}

// withoutFIN is how many of n acknowledged bytes are not the FIN, which TCP counts as one, when
// it was sent: it comes last, so it is acknowledged if nothing is left in the queue. Taken for a
// byte, it would also be the last one of a message that was cut off.
func withoutFIN(fd int, n uint64) uint64 {
	for {
		left, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		now := acked(fd)
		switch {
		case now != n: // what is left may be from before or after that
			n = now
		case err == nil && left > 0:
			return n
		default:
			return n - 1
		}
	}
}

var _ transport.Skipper = (*Link)(nil)

// Skip implements transport.Skipper.
func (l *Link) Skip() { l.framer.Skip() }

// Start begins to read.
func (l *Link) Start(h transport.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h != nil {
		return
	}
	l.h = h
	if l.ended { // closed before it was started
		l.loop.r.DoFor(l, func() { h.Closed(net.ErrClosed, 0) })
		return
	}
	l.gate, _ = h.(transport.Gate)
	if p, ok := h.(transport.Placer); ok {
		l.framer.Place = p.Buffer
	}
	if err := l.wait(); err != nil {
		l.loop.r.DoFor(l, func() { l.end(err) })
	}
}

// wait asks the reactor for the events that the link waits for. mu is held.
func (l *Link) wait() error {
	var want uint32
	if l.h != nil && !l.ended {
		if !l.paused {
			want |= unix.EPOLLIN
		}
		if l.out != nil {
			want |= unix.EPOLLOUT
		}
	}
	return l.watch(want, l)
}

// Ready is called by the reactor.
func (l *Link) Ready(events uint32) {
	guard.Point("link.ready")
	const failed = unix.EPOLLERR | unix.EPOLLHUP
	if events&(unix.EPOLLOUT|failed) != 0 {
		l.flush()
	}
	if events&(unix.EPOLLIN|failed) != 0 {
		l.Try()
	}
}

// Work implements reactor.Owner.
func (l *Link) Work() guard.What { return guard.Link }

// Fault implements reactor.Owner.
func (l *Link) Fault(err error) { l.end(err) }
