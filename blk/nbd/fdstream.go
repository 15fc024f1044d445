package nbd

import (
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/unixsock"
	"github.com/rdsd/rdsd/rdserr"
)

// fdStream is a non-blocking socket that a reactor watches. Its calls cannot block, so the
// runtime's scheduler need not know of them.
type fdStream struct {
	looks bool          // before a read: a client may pass descriptors
	riov  [2]unix.Iovec // of the reader
	wiov  []unix.Iovec  // of the writer

	// fd is used without mu by reader and writer, which are gone when it is closed.
	mu sync.Mutex
	fd int // -1: closed
}

func (s *fdStream) inline() bool { return true }

func (s *fdStream) wait() error { return errAgain }

func (s *fdStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
}

// hungUp reports whether the client has closed its end.
func (s *fdStream) hungUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fd < 0 || fdHungUp(s.fd)
}

// close closes the descriptor, which takes as long as the last close of what the client has
// passed and nobody has received.
func (s *fdStream) close() {
	s.mu.Lock()
	fd := s.fd
	s.fd = -1
	s.mu.Unlock()
	unix.Close(fd)
}

// takesRights reports whether a client may pass descriptors over fd: a Unix socket of a kernel
// that cannot refuse them. To read them, though nobody asks for them, closes them, and who passed
// one decides how long its last close takes.
func takesRights(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_UNIX && !unixsock.RefuseRights(fd)
}

func (s *fdStream) read(a, b []byte) (int, error) {
	k := 0
	for _, p := range [2][]byte{a, b} {
		if len(p) > 0 {
			s.riov[k].Base = &p[0]
			s.riov[k].SetLen(len(p))
			k++
		}
	}
	n, err := 1, error(nil)
	if s.looks {
		n, err = s.look(k)
	}
	if n > 0 && err == nil {
		n, err = rawVectored(unix.SYS_READV, s.fd, s.riov[:k])
	}
	s.riov = [2]unix.Iovec{}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// look fills the first k pieces of riov with what has come, leaves it in the socket, and cuts
// them to that: it brings no descriptors. The kernel does not tell that of bytes it has not
// copied, so they are copied twice.
func (s *fdStream) look(k int) (int, error) {
	h := unix.Msghdr{Iov: &s.riov[0]}
	h.SetIovlen(k)
	for {
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&h)), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case e == unix.EINTR:
			continue
		case e != 0:
			return 0, e
		case h.Flags&unix.MSG_CTRUNC != 0:
			return 0, rdserr.With(rdserr.ErrProtocol, "the client passed descriptors, which nobody asked for")
		}
		left := n
		for i := range s.riov[:k] {
			v := &s.riov[i]
			there := min(left, uintptr(v.Len))
			v.SetLen(int(there))
			left -= there
		}
		return int(n), nil
	}
}

func (s *fdStream) write(v [][]byte, _ bool) (int, error) {
	s.wiov = appendIovecs(s.wiov[:0], v)
	n, err := rawVectored(unix.SYS_WRITEV, s.fd, s.wiov)
	clear(s.wiov)
	return n, err
}

// appendIovecs appends as much of v as one call takes.
func appendIovecs(iov []unix.Iovec, v [][]byte) []unix.Iovec {
	for _, p := range v[:min(len(v), maxVec)] {
		i := unix.Iovec{Base: &p[0]}
		i.SetLen(len(p))
		iov = append(iov, i)
	}
	return iov
}

// rawVectored is readv or writev that does not block.
func rawVectored(trap uintptr, fd int, iov []unix.Iovec) (int, error) {
	for {
		n, _, e := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}
