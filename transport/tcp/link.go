package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

const (
	readBytes  = 64 << 10 // one read of small messages
	aheadBytes = 4 << 10  // read behind the rest of a large payload: the next header, little that must be copied
	drainTime  = time.Second
	deafTime   = 20 * time.Millisecond // for each read of what TCP had taken before deafen
)

// Link is one TCP connection.
type Link struct {
	nc      *net.TCPConn
	raw     syscall.RawConn
	local   netip.AddrPort
	remote  netip.AddrPort
	ackBase uint64 // bytes TCP counted as acknowledged before ours: the SYN, on the connecting side

	// Written by the sender only (one Send at a time).
	iov     []unix.Iovec
	out     *transport.Batch
	outErr  error
	outDone bool
	writeFn func(fd uintptr) bool
	flushFn func(fd uintptr) bool

	h        transport.Handler
	resume   chan struct{} // capacity 1
	mu       sync.Mutex
	started  bool // guarded by mu
	closing  bool // guarded by mu
	aborted  chan struct{}
	abortOne sync.Once

	// Owned by the reader.
	framer transport.Framer
	stage  *buf.Buf
	nread  int
	nwant  int
	rdErr  error
	iovR   [2]unix.Iovec
}

func newLink(nc *net.TCPConn) (*Link, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &Link{nc: nc, raw: raw, resume: make(chan struct{}, 1), aborted: make(chan struct{})}
	l.local, l.remote = unmap(nc.LocalAddr()), unmap(nc.RemoteAddr())
	l.framer.Max = wire.MaxDatagram
	l.writeFn, l.flushFn = l.writeSome, l.writeAll
	l.ackBase = l.tcpAcked()
	return l, setOptions(raw)
}

func unmap(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// LocalAddr is our end.
func (l *Link) LocalAddr() netip.AddrPort { return l.local }

// RemoteAddr is the peer's end.
func (l *Link) RemoteAddr() netip.AddrPort { return l.remote }

// Start begins to read.
func (l *Link) Start(h transport.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started {
		l.h, l.started = h, true
		go l.read()
	}
}

// Resume goes on reading.
func (l *Link) Resume() {
	select {
	case l.resume <- struct{}{}:
	default:
	}
}

// --- writing -----------------------------------------------------------------

// Send writes without blocking; see transport.Link.
func (l *Link) Send(b *transport.Batch) (bool, error) {
	l.out, l.outErr, l.outDone = b, nil, false
	if err := l.raw.Write(l.writeFn); err != nil {
		l.out = nil
		return false, err
	}
	if l.outErr != nil || l.outDone {
		l.out = nil
		return l.outDone, l.outErr
	}
	go l.flush(b)
	return false, nil
}

// writeSome hands over what the socket takes now. It always ends the
// RawConn.Write, so that Send does not block.
func (l *Link) writeSome(fd uintptr) bool {
	for !l.outDone {
		l.iov = l.iov[:0]
		for _, p := range l.out.Pieces() {
			if len(p) > 0 {
				v := unix.Iovec{Base: &p[0]}
				v.SetLen(len(p))
				l.iov = append(l.iov, v)
			}
		}
		n, err := writev(int(fd), l.iov)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return true
		case err != nil:
			l.outErr = err
			return true
		}
		l.outDone = l.out.Wrote(n)
	}
	return true
}

// writeAll is writeSome that waits for the socket to take more.
func (l *Link) writeAll(fd uintptr) bool {
	left := l.out.Left()
	l.writeSome(fd)
	if l.outDone || l.outErr != nil {
		return true
	}
	if l.out.Left() < left {
		l.handler().Progress()
	}
	return false
}

func (l *Link) handler() transport.Handler {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.h
}

// flush finishes a batch that met a full socket buffer. It ends with the batch
// or with the connection.
func (l *Link) flush(b *transport.Batch) {
	err := l.raw.Write(l.flushFn)
	if err == nil {
		err = l.outErr
	}
	l.out = nil
	l.handler().Written(b, err)
}

// --- reading -----------------------------------------------------------------

func (l *Link) read() {
	err := l.readAll()
	acked := l.Acked()
	l.nc.Close()
	l.framer.Close()
	l.dropStage()
	l.h.Closed(err, acked)
}

// readAll reads until the connection ends. While it waits it holds no buffer.
func (l *Link) readAll() error {
	discard, deaf := false, false
	sink := func(f *transport.Frame) error {
		if discard {
			return nil
		}
		return l.h.Frame(f)
	}
	var held transport.Frame // not taken yet
	var heldBuf *buf.Buf
	keep := func(f *transport.Frame) error {
		err := sink(f)
		if err == transport.ErrPause {
			heldBuf = buf.Get(wire.HeaderLen + len(f.Payload))
			copy(heldBuf.B, f.Raw)
			copy(heldBuf.B[wire.HeaderLen:], f.Payload)
			held = transport.Frame{Raw: heldBuf.B[:wire.HeaderLen], Payload: heldBuf.B[wire.HeaderLen:]}
			if len(f.Payload) >= transport.DirectLen {
				held.Buf = buf.Get(len(f.Payload))
				copy(held.Buf.B, f.Payload)
				held.Payload = held.Buf.B
			}
		}
		return err
	}
	drop := func() {
		if heldBuf != nil {
			heldBuf.Release()
		}
		if held.Buf != nil {
			held.Buf.Release()
		}
		held, heldBuf = transport.Frame{}, nil
	}
	defer drop()
	for {
		if err := l.raw.Read(l.readSome); err != nil {
			if !deaf && errors.Is(err, os.ErrDeadlineExceeded) {
				if deaf = l.deafen(); deaf {
					continue
				}
			}
			return err
		}
		if l.nwant+l.nread == 0 {
			return l.rdErr
		}
		if deaf { // this ends: nothing is added any more
			l.nc.SetReadDeadline(time.Now().Add(deafTime))
		}
		var err error
		rest := l.stage.B[:l.nread]
		l.h.Begin()
		if l.nwant > 0 {
			err = l.framer.Filled(l.nwant, keep)
		}
		for {
			if err == nil && len(rest) > 0 {
				var n int
				n, err = l.framer.Feed(rest, keep)
				rest = rest[n:]
			}
			if err == nil {
				break
			}
			if err != transport.ErrPause {
				var long *transport.ErrTooLong
				if errors.As(err, &long) {
					l.h.End()
					return err
				}
				discard, err = true, nil
				continue
			}
			l.h.End()
			if !l.waitResume() {
				return net.ErrClosed
			}
			l.h.Begin()
			if err = sink(&held); err != transport.ErrPause {
				drop()
			}
		}
		l.h.End()
	}
}

// readSome reads once into the rest of a large payload and the stage. Nothing
// there: it gives the stage back before it waits.
func (l *Link) readSome(fd uintptr) bool {
	l.nread, l.nwant, l.rdErr = 0, 0, nil
	if l.stage == nil {
		l.stage = buf.Get(readBytes)
	}
	for {
		want := l.framer.Want()
		stage := l.stage.B
		n, err := 0, error(nil)
		if want != nil {
			l.iovR[0] = unix.Iovec{Base: &want[0]}
			l.iovR[0].SetLen(len(want))
			l.iovR[1] = unix.Iovec{Base: &stage[0]}
			l.iovR[1].SetLen(aheadBytes)
			n, err = readv(int(fd), l.iovR[:])
		} else {
			n, err = unix.Read(int(fd), stage)
		}
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			l.dropStage()
			return false
		case err != nil:
			l.rdErr = err
			return true
		case n == 0:
			l.rdErr = io.EOF
			return true
		}
		l.nwant = min(n, len(want))
		l.nread = n - l.nwant
		return true
	}
}

func (l *Link) dropStage() {
	if l.stage != nil {
		l.stage.Release()
		l.stage = nil
	}
}

// waitResume waits while the receiver is full; false when the link was aborted.
func (l *Link) waitResume() bool {
	select {
	case <-l.resume:
		return true
	case <-l.aborted:
		return false
	}
}

// --- closing -----------------------------------------------------------------

// Close: gracefully, our side is shut and what the peer has sent is read to its
// end, because the peer's kernel forgot what our TCP acknowledged.
func (l *Link) Close(graceful bool) {
	l.mu.Lock()
	started, again := l.started, l.closing
	l.closing = true
	l.mu.Unlock()
	if graceful && started {
		if !again {
			l.nc.CloseWrite()
			l.nc.SetDeadline(time.Now().Add(drainTime))
		}
		return
	}
	l.abortOne.Do(func() { close(l.aborted) })
	if !started {
		l.nc.Close()
		return
	}
	l.nc.SetDeadline(time.Unix(1, 0)) // the reader closes
}

// deafen ends the drain of a link whose peer goes on, or does not close in
// turn: Linux 6.1 takes a connection that we shut before it was accepted for one
// that is up, and would believe in it as long as our TCP answers. From here on
// TCP takes nothing more (the filter drops every segment), so that what can
// still be read is all the peer may forget; then closing resets the connection.
// False: the link was aborted, nothing of it matters.
func (l *Link) deafen() bool {
	select {
	case <-l.aborted:
		return false
	default:
	}
	var err error
	l.raw.Control(func(fd uintptr) {
		drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &drop})
	})
	l.nc.SetLinger(0)
	l.nc.SetDeadline(time.Now().Add(deafTime))
	return err == nil
}
