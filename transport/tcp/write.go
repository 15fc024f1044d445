package tcp

import (
	"net"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
)

// Send writes without blocking; see transport.Link.
func (l *Link) Send(b *transport.Batch) (bool, error) {
	l.fdMu.RLock()
	done, err := write(l.fd, b)
	l.fdMu.RUnlock()
	if err != nil {
		l.failed(err)
	}
	if done || err != nil {
		return done, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false, net.ErrClosed
	}
	l.out = b
	if err := l.wait(); err != nil {
		l.out = nil
		l.loop.r.DoFor(l, func() { l.end(err) })
		return false, err
	}
	return false, nil
}

// failed closes a link that could not be written to, in good order: what has come on it is still read. Of a
// connection that broke its reader says so.
func (l *Link) failed(err error) {
	if err == unix.EPIPE || err == unix.ECONNRESET {
		return
	}
	l.mu.Lock()
	l.why = os.NewSyscallError("write", err)
	l.mu.Unlock()
	l.Close()
}

// iovecs are for batches of more than one piece.
var iovecs = sync.Pool{New: func() any { return new([transport.BatchPieces + 8]unix.Iovec) }}

// write hands over as much as the socket takes now, and reports whether that was all.
func write(fd int, b *transport.Batch) (done bool, err error) {
	if fd < 0 {
		return false, net.ErrClosed
	}
	for pieces := b.Pieces; len(pieces) > 0; pieces = b.Pieces {
		n, err := writeOnce(fd, pieces)
		if err == unix.EAGAIN {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		// All at once, as mostly: there is nothing to be remembered.
		if n == b.Bytes || b.Wrote(n) {
			break
		}
	}
	return true, nil
}

// writeOnce is one system call, at most BatchPieces pieces of which count. On a non-blocking
// descriptor none of them blocks, so the runtime's scheduler need not know (RawSyscall).
func writeOnce(fd int, pieces [][]byte) (int, error) {
	if len(pieces) != 1 {
		return writePieces(fd, pieces)
	}
	p := pieces[0]
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if e == 0 {
			return int(n), nil
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

func writePieces(fd int, pieces [][]byte) (int, error) {
	iov := iovecs.Get().(*[transport.BatchPieces + 8]unix.Iovec)
	n := 0
	for _, p := range pieces {
		if len(p) > 0 && n < len(iov) {
			iov[n].Base = &p[0]
			iov[n].SetLen(len(p))
			n++
		}
	}
	var sent uintptr
	e := unix.EINTR
	for e == unix.EINTR {
		sent, _, e = unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(n))
	}
	clear(iov[:n])
	iovecs.Put(iov)
	if e != 0 {
		return 0, e
	}
	return int(sent), nil
}

// flush goes on with a batch that met a full socket buffer. On the reactor's thread.
func (l *Link) flush() {
	l.mu.Lock()
	b := l.out
	l.mu.Unlock()
	if b == nil {
		return
	}
	left := b.Left()
	done, err := write(l.fd, b)
	// The socket is full again: its becoming writable brings this here once more.
	if !done && err == nil {
		if b.Left() < left {
			l.h.Progress()
		}
		return
	}
	l.mu.Lock()
	l.out = nil
	l.mu.Unlock()
	// The lock is released: the handler may Send the next batch, and have it kept.
	l.h.Written(b, err)
	if err != nil {
		l.failed(err)
	}
	l.mu.Lock()
	err = l.wait()
	l.mu.Unlock()
	if err != nil {
		l.end(err)
	}
}
