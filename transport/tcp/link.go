package tcp

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Link is one TCP connection. Its reactor's thread reads it, goes on writing
// what met a full socket buffer, and alone closes the descriptor.
type Link struct {
	loop    *loop
	local   netip.AddrPort
	remote  netip.AddrPort
	ackBase uint64 // bytes TCP counted as acknowledged before ours: the SYN, on the connecting side

	// fdMu keeps the descriptor, whose number may be somebody else's a moment
	// later, from being closed under a system call of another thread.
	fdMu sync.RWMutex
	fd   int // -1: closed; guarded by fdMu

	mu      sync.Mutex        // guards what follows; only epoll_ctl is called with it held
	h       transport.Handler // set by Start
	closing bool              // Close was called
	ended   bool              // Closed has been, or is about to be, called; set by the thread
	paused  bool              // the receiver is full; set by the thread
	out     *transport.Batch  // kept by Send
	watched uint32            // events the reactor has been asked for; 0: not registered

	// Owned by the reactor's thread.
	framer  transport.Framer
	discard bool // the handler gave the link up: what comes is thrown away
	deaf    bool // TCP takes nothing any more: this ends
	held    *held
	drain   *reactor.Timer
}

// newLink takes the connection over; nc is closed in any case.
func newLink(lp *loop, nc *net.TCPConn, buffer int) (*Link, error) {
	defer nc.Close()
	fd, err := takeFD(nc)
	if err != nil {
		return nil, err
	}
	if err := setOptions(fd, buffer); err != nil {
		unix.Close(fd)
		return nil, err
	}
	l := &Link{loop: lp, fd: fd, local: unmap(nc.LocalAddr()), remote: unmap(nc.RemoteAddr())}
	l.framer.Max = wire.MaxDatagram
	l.ackBase = acked(fd)
	return l, nil
}

// takeFD returns a descriptor of nc's connection that Go's poller knows nothing
// of. (TCPConn.File would make it blocking.)
func takeFD(nc *net.TCPConn) (fd int, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, err
}

func unmap(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// LocalAddr is our end.
func (l *Link) LocalAddr() netip.AddrPort { return l.local }

// RemoteAddr is the peer's end.
func (l *Link) RemoteAddr() netip.AddrPort { return l.remote }

// Reactor is the one whose thread calls the handler.
func (l *Link) Reactor() *reactor.Reactor { return l.loop.r }

// Acked is how many of our bytes the peer's TCP acknowledged.
func (l *Link) Acked() uint64 {
	l.fdMu.RLock()
	defer l.fdMu.RUnlock()
	return acked(l.fd) - l.ackBase
}

// Start begins to read.
func (l *Link) Start(h transport.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h != nil {
		return
	}
	l.h = h
	if l.ended { // closed before it was started
		l.loop.r.Do(func() { h.Closed(net.ErrClosed, 0) })
		return
	}
	if p, ok := h.(transport.Placer); ok {
		l.framer.Place = p.Buffer
	}
	if err := l.watch(); err != nil {
		l.loop.r.Do(func() { l.end(err) })
	}
}

// watch asks the reactor for what the link waits for. mu is held. A link that
// waits for nothing is not registered, for an error would be told in every turn.
func (l *Link) watch() error {
	var want uint32
	if l.h != nil && !l.ended {
		if !l.paused {
			want |= unix.EPOLLIN
		}
		if l.out != nil {
			want |= unix.EPOLLOUT
		}
	}
	was := l.watched
	if want == was {
		return nil
	}
	l.watched = want
	switch {
	case was == 0:
		return l.loop.r.Add(l.fd, want, l)
	case want == 0:
		return l.loop.r.Remove(l.fd)
	}
	return l.loop.r.Modify(l.fd, want)
}

// Ready is called by the reactor.
func (l *Link) Ready(events uint32) {
	const failed = unix.EPOLLERR | unix.EPOLLHUP
	if events&(unix.EPOLLOUT|failed) != 0 {
		l.flush()
	}
	if events&(unix.EPOLLIN|failed) != 0 && !l.paused && !l.ended {
		l.read()
	}
}
