package nbd

import (
	"io"
	"net"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stream is a connection as the hot path wants it: several buffers in one
// system call, and calls that do not wait.
type stream interface {
	// read reads into a and then b, at least one byte. It returns errAgain when
	// nothing is there; then wait waits until something is.
	read(a, b []byte) (int, error)
	wait() error
	// write writes as much of v, which is not empty, as the connection takes. If that is
	// nothing it waits if it may, and returns errAgain otherwise.
	write(v [][]byte, mayWait bool) (int, error)
	// end makes both ends of the connection read the end, without waiting for
	// calls that are under way.
	end()
	// inline tells whether write without waiting is worth trying.
	inline() bool
}

// errAgain says that nothing can be read or written now.
const errAgain = unix.EAGAIN

// maxVec is how many pieces one write takes: IOV_MAX.
const maxVec = 1024

// newStream picks the way that fits a connection.
func newStream(nc net.Conn, spin time.Duration) stream {
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			return newRawStream(raw, spin)
		}
	}
	return &plainStream{nc: nc}
}

// rawStream makes the system calls itself. Waiting has three steps, because a
// wake-up by the net poller costs several times a request: a reader that finds
// nothing lets others run and looks again, for a while if that was worth it
// lately; then it sleeps in the system call, which wakes this very thread; and
// only when nothing comes for attention it parks in the net poller and leaves
// the thread to others.
type rawStream struct {
	raw  syscall.RawConn
	spin time.Duration

	// Of the reader.
	readFn, waitFn func(fd uintptr) bool
	riov           [2]unix.Iovec
	rn             int // pieces of riov
	got            int
	rerr           error
	poll           [1]unix.PollFd
	quick          bool      // the last wait was short
	alone          time.Time // from when on spinning is worth trying again
	idle           bool      // attention is over

	// Of the writer.
	writeFn func(fd uintptr) bool
	mayWait bool
	wiov    []unix.Iovec
	put     int
	werr    error
}

// sendBuffer bounds the replies in the socket that the client has not read, in bytes: some
// large ones, so that the client and we need not take turns.
const sendBuffer = 512 << 10

// setSendBuffer sets it. Only root gets more than net.core.wmem_max; less does no harm.
func setSendBuffer(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
}

func newRawStream(raw syscall.RawConn, spin time.Duration) *rawStream {
	s := &rawStream{raw: raw, spin: spin, quick: true}
	raw.Control(func(fd uintptr) { setSendBuffer(int(fd)) })
	// Made once, so that a call allocates nothing.
	s.readFn, s.waitFn, s.writeFn = s.tryRead, s.tryWait, s.tryWrite
	return s
}

func (s *rawStream) inline() bool { return true }

func (s *rawStream) end() {
	s.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

func (s *rawStream) read(a, b []byte) (int, error) {
	s.rn = 0
	for _, p := range [2][]byte{a, b} {
		if len(p) > 0 {
			s.riov[s.rn].Base = &p[0]
			s.riov[s.rn].SetLen(len(p))
			s.rn++
		}
	}
	err := s.raw.Read(s.readFn)
	s.riov = [2]unix.Iovec{}
	switch {
	case err != nil:
		return 0, err
	case s.rerr != nil:
		return 0, s.rerr
	case s.got == 0:
		return 0, io.EOF
	}
	return s.got, nil
}

// crowded is how long a connection does not spin after a yield that took long: another
// process had use for the processor, and had it for a time slice.
const crowded = 50 * time.Millisecond

// tryRead reads once, or for a while.
func (s *rawStream) tryRead(fd uintptr) bool {
	var began, last time.Time
	for {
		s.got, s.rerr = vectored(unix.SYS_READV, fd, s.riov[:s.rn])
		if s.rerr != errAgain {
			return true
		}
		runtime.Gosched() // to other goroutines: above all those that carry out earlier requests
		// Looking again is worth it only for a client that has answered soon before.
		if s.spin == 0 || !s.quick {
			return true
		}
		now := time.Now()
		switch {
		case began.IsZero():
			if began = now; now.Before(s.alone) {
				return true
			}
		// The yield took long: another process has work for this processor, so do not look
		// again for a while.
		case now.Sub(last) > 4*s.spin:
			s.alone = now.Add(crowded)
			return true
		case now.Sub(began) > s.spin:
			return true
		}
		last = now
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // to other processes
	}
}

// attention is how long a connection keeps a thread after its last request.
const attention = 20 * time.Millisecond

func (s *rawStream) wait() error {
	s.idle = false
	if s.spin == 0 {
		return s.raw.Read(s.waitFn)
	}
	began := time.Now()
	err := s.raw.Read(s.waitFn)
	s.quick = time.Since(began) < 4*s.spin
	return err
}

// tryWait sleeps for attention; by returning false it parks the goroutine. Afterwards it
// only looks: bytes that came before RawConn.Read was ready to park would not wake it.
func (s *rawStream) tryWait(fd uintptr) bool {
	s.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	timeout := int(attention / time.Millisecond)
	if s.idle {
		timeout = 0
	}
	s.idle = true
	n, err := unix.Poll(s.poll[:], timeout)
	for err == unix.EINTR {
		n, err = unix.Poll(s.poll[:], timeout)
	}
	return n > 0 || err != nil
}

func (s *rawStream) write(v [][]byte, mayWait bool) (int, error) {
	s.wiov = appendIovecs(s.wiov[:0], v)
	s.mayWait = mayWait
	err := s.raw.Write(s.writeFn)
	clear(s.wiov)
	if err != nil {
		return 0, err
	}
	return s.put, s.werr
}

func (s *rawStream) tryWrite(fd uintptr) bool {
	s.put, s.werr = vectored(unix.SYS_WRITEV, fd, s.wiov)
	return s.werr != errAgain || !s.mayWait
}

// vectored is readv or writev.
func vectored(trap, fd uintptr, iov []unix.Iovec) (int, error) {
	for {
		n, _, e := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// plainStream is any other connection. Everything waits.
type plainStream struct {
	nc  net.Conn
	buf net.Buffers
}

func (s *plainStream) inline() bool { return false }

func (s *plainStream) end() { s.nc.Close() }

func (s *plainStream) wait() error { return nil }

func (s *plainStream) read(a, b []byte) (int, error) {
	if len(a) == 0 {
		a = b
	}
	n, err := s.nc.Read(a)
	if n > 0 {
		return n, nil
	}
	return 0, err
}

func (s *plainStream) write(v [][]byte, _ bool) (int, error) {
	s.buf = append(s.buf[:0], v...)
	b := s.buf // WriteTo moves its receiver on
	n, err := b.WriteTo(s.nc)
	clear(s.buf)
	return int(n), err
}
