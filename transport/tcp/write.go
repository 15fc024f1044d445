package tcp

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
)

// Send writes without blocking; see transport.Link.
func (l *Link) Send(b *transport.Batch) (bool, error) {
	l.fdMu.RLock()
	done, err := write(l.fd, b)
	l.fdMu.RUnlock()
	if done || err != nil {
		return done, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false, net.ErrClosed
	}
	l.out = b
	if err := l.watch(); err != nil {
		l.out = nil
		l.loop.r.Do(func() { l.end(err) })
		return false, err
	}
	return false, nil
}

// iovecs are for batches of more than one piece.
var iovecs = sync.Pool{New: func() any { return new([transport.BatchPieces + 8]unix.Iovec) }}

// write hands over what the socket takes now, and reports whether that was all.
func write(fd int, b *transport.Batch) (done bool, err error) {
	if fd < 0 {
		return false, net.ErrClosed
	}
	for {
		var n int
		pieces := b.Pieces()
		switch len(pieces) {
		case 0:
			return true, nil
		case 1:
			n, err = send(fd, pieces[0])
		default:
			n, err = writePieces(fd, pieces)
		}
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false, nil
		case err != nil:
			return false, err
		default:
			if b.Wrote(n) {
				return true, nil
			}
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
	sent, err := writev(fd, iov[:n])
	clear(iov[:n])
	iovecs.Put(iov)
	return sent, err
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
	if !done && err == nil {
		if b.Left() < left {
			l.h.Progress()
		}
		return
	}
	l.mu.Lock()
	l.out = nil
	l.mu.Unlock()
	l.h.Written(b, err) // who may Send the next, and have it kept
	l.mu.Lock()
	err = l.watch()
	l.mu.Unlock()
	if err != nil {
		l.end(err)
	}
}
