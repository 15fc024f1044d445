package nbd

import (
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fdStream is a non-blocking socket that a reactor watches. Its calls cannot block, so the
// runtime's scheduler need not know of them.
type fdStream struct {
	riov [2]unix.Iovec // of the reader
	wiov []unix.Iovec  // of the writer

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

func (s *fdStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	unix.Close(s.fd)
	s.fd = -1
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
	n, err := rawVectored(unix.SYS_READV, s.fd, s.riov[:k])
	s.riov = [2]unix.Iovec{}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
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
