package tcp

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/reactor"
)

// socket is one connection's descriptor on its reactor.
type socket struct {
	loop   *loop
	local  netip.AddrPort
	remote netip.AddrPort

	// fdMu keeps the descriptor, whose number may be another file's a moment later, from
	// being closed under a system call of another thread.
	fdMu sync.RWMutex
	fd   int // -1: closed; guarded by fdMu

	watched uint32 // events the reactor has been asked for; 0: not registered; guarded by the link's mu
}

// open takes the connection over; nc is closed in any case.
func (s *socket) open(lp *loop, nc *net.TCPConn, buffer int) error {
	defer nc.Close()
	fd, err := takeFD(nc)
	if err != nil {
		return err
	}
	if err := setOptions(fd, buffer); err != nil {
		unix.Close(fd)
		return err
	}
	s.loop, s.fd, s.local, s.remote = lp, fd, unmap(nc.LocalAddr()), unmap(nc.RemoteAddr())
	return nil
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
func (s *socket) LocalAddr() netip.AddrPort { return s.local }

// RemoteAddr is the peer's end.
func (s *socket) RemoteAddr() netip.AddrPort { return s.remote }

// Reactor is the one whose thread calls the handler.
func (s *socket) Reactor() *reactor.Reactor { return s.loop.r }

func (s *socket) closeFD() {
	s.fdMu.Lock()
	defer s.fdMu.Unlock()
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// watch asks the reactor for the events h waits for. A link that waits for nothing is not
// registered, because an error would be reported in every turn.
func (s *socket) watch(want uint32, h reactor.Handler) error {
	was := s.watched
	if want == was {
		return nil
	}
	s.watched = want
	switch {
	case was == 0:
		return s.loop.r.Add(s.fd, want, h)
	case want == 0:
		return s.loop.r.Remove(s.fd)
	}
	return s.loop.r.Modify(s.fd, want)
}
