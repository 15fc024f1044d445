package nbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// Design notes.
//
// The kernel sends a request again when its time is over, on another connection, while the
// first one may be at the store still. If both were carried out as they come, the first
// could come after a later write to the same place that has been answered: an old block
// over a new one. So a device has one connection at a time, and the next one is not read
// before everything of the last one has ended. It is given to the kernel at once all the
// same: a device without a connection is given up by the kernel after its dead-connection
// timeout.

const (
	// reconnectEvery is how long to wait for the kernel to see that a socket is dead.
	reconnectEvery = 10 * time.Millisecond
	// hangUpEvery is how often to look whether the kernel has given up a
	// connection that is not read yet. The shortest timeout it knows is a second.
	hangUpEvery = 100 * time.Millisecond
)

// KernelInFlight is the most requests the driver has in flight on a connection.
// Options of a server for devices must allow for them at their largest, or it
// stops reading and does not see that the kernel has given the connection up.
const KernelInFlight = 128

// Reconnect gives a device a new socket in place of a dead one and returns its
// other end, for ServeKernel. reconfigure is Reconfigure of the device; a.Sockets
// is ignored. A socket that was closed is dead to the kernel a moment later, and what
// this process or the kernel lacks may be there again: so this tries again until ctx ends.
func Reconnect(ctx context.Context, a Attach, reconfigure func(Attach) error) (net.Conn, error) {
	for {
		ours, err := reconnect(a, reconfigure)
		if ours != nil || err != nil && !lacks(err) {
			return ours, err
		}
		if err == nil {
			err = errNoneDead
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("nbd: reconnect: %w: %w", err, ctx.Err())
		case <-time.After(reconnectEvery):
		}
	}
}

var errNoneDead = errors.New("the kernel takes no socket, those it has are not dead to it")

// reconnect tries once; nil: the kernel has not taken the socket.
func reconnect(a Attach, reconfigure func(Attach) error) (net.Conn, error) {
	kernel, ours, err := KernelPair()
	if err != nil {
		return nil, err
	}
	a.Sockets = []int{int(kernel.Fd())}
	err = reconfigure(a)
	kernel.Close()
	if err == nil && taken(ours) {
		return ours, nil
	}
	ours.Close()
	return nil, err
}

// Insist asks the kernel for something, by ask, and again while something is lacking for a moment to ask with: a
// device that is not detached, say, stays when nobody serves it any more.
func Insist(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if err == nil || !lacks(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nbd: asking the kernel: %w: %w", err, ctx.Err())
		case <-time.After(reconnectEvery):
		}
	}
}

// lacks reports whether something was lacking for a moment: descriptors, memory, an answer. The kernel
// has the device as long as it has not refused.
func lacks(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, rdserr.ErrTimeout} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// taken reports whether the kernel has kept the other end of a pair, which no process has
// any more.
func taken(c net.Conn) bool {
	var n int
	var b [1]byte
	err := control(c, func(fd int) (err error) {
		n, _, err = unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err
	})
	return n > 0 || err == unix.EAGAIN
}

// hungUp reports whether the kernel has closed its end, even if there is still something to
// read.
func hungUp(c net.Conn) bool {
	gone := true // where there is no descriptor any more
	control(c, func(fd int) error { gone = fdHungUp(fd); return nil })
	return gone
}

func fdHungUp(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	_, err := unix.Poll(fds, 0)
	return err != nil && err != unix.EINTR || fds[0].Revents != 0
}

// control runs f on the descriptor of a connection.
func control(c net.Conn, f func(fd int) error) error {
	s, ok := c.(syscall.Conn)
	if !ok {
		return os.ErrInvalid
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

// ServeDevice serves a device of the kernel's over one connection after another,
// to its end: nil when it is disconnected or the server stops. When the kernel
// gives a connection up, because a request passed its timeout, or it breaks,
// renew is called for the next one (Reconnect); its context ends with the server.
// The next connection is not read before the device has given back all requests
// of the last one.
func (s *Server) ServeDevice(nc net.Conn, name string, renew func(context.Context) (net.Conn, error)) error {
	for {
		k := keeper{s: s, renew: renew, drained: make(chan struct{}), done: make(chan struct{})}
		err := s.serveKernel(nc, name, k.begin)
		switch {
		case s.quit.Err() != nil && !k.begun:
			return nil
		case !k.begun:
			return err
		}
		s.opts.Log.Warn("nbd: a connection of the kernel has ended", "export", name, "err", err)
		close(k.drained)
		<-k.done
		if k.err != nil || k.next == nil {
			return k.err
		}
		nc = k.next
	}
}

// keeper gets the next connection and keeps it until the last one's requests
// have ended.
type keeper struct {
	s       *Server
	renew   func(context.Context) (net.Conn, error)
	begun   bool
	drained chan struct{} // closed when the next one can be served
	done    chan struct{} // closed by run

	next net.Conn // after done; nil: none is wanted
	err  error    // after done
}

// begin is called when nothing is read any more from the present connection.
func (k *keeper) begin(c *conn) {
	if c.disconnected || c.stopping.Load() || k.s.quit.Err() != nil {
		return
	}
	k.begun = true
	go k.run(c) // ends when the device has given back c's requests
}

func (k *keeper) run(c *conn) {
	defer close(k.done)
	defer k.s.opts.Guard.Recover(guard.Volume, func(err error) { k.err = err })
	tick := time.NewTicker(hangUpEvery)
	defer tick.Stop()
	for {
		// The next connection is ready before it is needed: the kernel takes it at once when
		// the present one ends.
		nc, err := k.renew(k.s.quit)
		if err != nil {
			if k.s.quit.Err() == nil {
				k.err = err
			}
			return
		}
		// The other end may hang up while the connection waits for its turn; then it is no
		// use, and another is made.
		for !hungUp(nc) {
			select {
			case <-k.drained:
				k.next = nc
				return
			case <-tick.C:
			}
			if c.stopping.Load() || k.s.quit.Err() != nil {
				nc.Close()
				return
			}
		}
		nc.Close()
	}
}
