package toll

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is a connection whose reads and writes are measured. When its client is found to be
// costly the owner is told, once, and the call under way and all later ones fail. One
// goroutine at a time reads and one writes.
type Conn struct {
	net.Conn
	told    func(error)
	once    sync.Once // of told
	toll    Toll
	raw     syscall.RawConn
	in, out half
}

// half is one direction of a Conn, with the call under way.
type half struct {
	try  func(fd uintptr) bool
	p    []byte
	n    int
	err  error
	over error // why the client is not served any more
}

// Wrap has the calls on c measured, if it, or what its method NetConn leads to, has a
// descriptor: sockets have. told, which must not block, is called with the reason when a
// client is ended. u is its user, or nil.
func Wrap(c net.Conn, u *User, told func(error)) net.Conn {
	inner := c
	for {
		u, ok := inner.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		inner = u.NetConn()
	}
	s, ok := inner.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return c
	}
	w := &Conn{Conn: c, told: told, toll: Toll{User: u}, raw: raw}
	// Those of syscall, as package net has them: by these the race detector knows that
	// bytes were received after they were sent.
	w.in.try = func(fd uintptr) bool { return w.call(&w.in, fd, syscall.Read) }
	w.out.try = func(fd uintptr) bool { return w.call(&w.out, fd, syscall.Write) }
	return w
}

// call makes the system call of a half; false: the descriptor is not ready.
func (c *Conn) call(h *half, fd uintptr, f func(fd int, p []byte) (int, error)) bool {
	for {
		m := c.toll.Begin()
		h.n, h.err = f(int(fd), h.p)
		h.over = c.toll.End(m, h.n)
		if h.err != unix.EINTR || h.over != nil {
			return h.err != unix.EAGAIN || h.over != nil
		}
	}
}

// do has a call made when the descriptor is ready.
func (c *Conn) do(h *half, name string, wait func(func(uintptr) bool) error, p []byte) (int, error) {
	if h.over != nil {
		return 0, h.over
	}
	h.p = p
	err := wait(h.try)
	h.p = nil
	switch {
	case err != nil: // closed, or too late
		return 0, err
	case h.over != nil:
		c.once.Do(func() { c.told(h.over) })
		return max(h.n, 0), h.over
	case h.err != nil:
		return 0, &net.OpError{Op: name, Net: c.RemoteAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(name, h.err)}
	}
	return h.n, nil
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.do(&c.in, "read", c.raw.Read, p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = c.do(&c.out, "write", c.raw.Write, p[n:])
		n += k
	}
	return n, err
}

// Left reports whether the client has closed its end, or at least the way from it to here,
// whatever of what it sent before is unread.
func (c *Conn) Left() (left bool) {
	_ = c.raw.Control(func(fd uintptr) { // of a closed one nothing is known
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		left = n == 1 && err == nil
	})
	return left
}
