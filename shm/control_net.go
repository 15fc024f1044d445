package shm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/internal/unixsock"
)

// SocketSuffix is appended to the path of the daemon's gRPC socket.
const SocketSuffix = ".rings"

// Conn is a control connection that blocks, for goroutines: deadlines and Close
// are those of net.UnixConn.
type Conn struct {
	*net.UnixConn

	// Costly, unless it is nil, is called once when waking the other end takes too long;
	// the call under way fails. It has to be set before the first call.
	Costly func(error)
	// Toll measures the calls.
	Toll toll.Toll

	in       assembler
	held     *packetBuf // that the message last returned may lie in
	told     sync.Once  // of Costly
	raw      syscall.RawConn
	patience time.Duration // for the rest of a message
	read     func(fd uintptr) bool
	got      struct {
		n, oobn, flags int
		err            error
	}
}

// NewConn wraps an accepted or dialled connection. Descriptors that come with
// messages are handed out up to maxFDs a message, others closed; when maxFDs is
// 0 they are an error (EBADMSG), and are not received.
func NewConn(c *net.UnixConn, maxFDs int) *Conn {
	return &Conn{UnixConn: c, in: assembler{maxFDs: maxFDs, max: MaxMessage}}
}

// Charge is Control.Charge, and patience how long the rest of a message may take
// once a part has come, 0 for ever; a read deadline of the caller's goes then.
func (c *Conn) Charge(max int, patience time.Duration, charge func(bytes int) error) {
	c.in.max, c.in.charge, c.patience = max, charge, patience
}

// Dial connects to a daemon's control socket. The caller gets up to three
// descriptors with a message.
func Dial(ctx context.Context, path string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	return NewConn(c.(*net.UnixConn), maxMessageFDs), nil
}

// ReadMessage waits for the next whole message. It is valid until the next call; the
// descriptors are the caller's. It returns io.EOF when the other end is gone. (After a read
// deadline it returns a net.Error with Timeout; the connection is still good then.)
func (c *Conn) ReadMessage() (msg []byte, fds []int, err error) {
	c.in.done()
	half := false
	for {
		c.release()
		err := c.receive()
		if err != nil {
			c.in.drop()
			if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
				return nil, nil, io.EOF
			}
			if Bad(err) {
				return nil, nil, err
			}
			return nil, nil, fmt.Errorf("shm: control socket: %w", err)
		}
		g := &c.got
		msg, fds, whole, err := c.in.take(c.held.data[:g.n], c.held.oob[:g.oobn], g.flags)
		if whole || err != nil {
			// The deadline is only for the rest of a message that has begun: between messages
			// the other end may be silent for ever.
			if half {
				c.SetReadDeadline(time.Time{})
			}
			return msg, fds, err
		}
		if !half && c.patience > 0 {
			half = true
			c.SetReadDeadline(time.Now().Add(c.patience))
		}
	}
}

// Short reports whether descriptors of the packet last read are lost: this process may open
// no more.
func (c *Conn) Short() bool { return c.got.flags&unix.MSG_CTRUNC != 0 }

// Done gives back the memory of the message last returned, which is not valid any more
// then. The next call of ReadMessage does it too; a caller that may not call again calls
// Done.
func (c *Conn) Done() { c.in.done() }

// receive waits for one packet. Memory to receive it in is taken when there is
// one: a connection on which nothing happens has none.
func (c *Conn) receive() (err error) {
	if c.read == nil {
		if c.raw, err = c.SyscallConn(); err != nil {
			return err
		}
		c.read = c.tryReceive
	}
	if err := c.raw.Read(c.read); err != nil {
		return err
	}
	return c.got.err
}

func (c *Conn) costly(err error) error {
	c.told.Do(func() {
		if c.Costly != nil {
			c.Costly(err)
		}
	})
	return err
}

// send writes one packet.
func (c *Conn) send(packet, rights []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = raw.Write(func(fd uintptr) bool {
		for {
			m := c.Toll.Begin()
			werr = unix.Sendmsg(int(fd), packet, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if costly := c.Toll.End(m, len(packet)); costly != nil {
				werr = c.costly(costly)
			}
			if werr != unix.EINTR {
				return werr != unix.EAGAIN
			}
		}
	})
	return cmp.Or(err, werr)
}

func (c *Conn) tryReceive(fd uintptr) bool {
	g := &c.got
	if c.in.maxFDs == 0 { // see Control.Recv
		// Without a packet no memory is taken for one: of hundreds that end together each would.
		if g.err = peekPacket(int(fd)); g.err != nil {
			return g.err != unix.EAGAIN
		}
	}
	c.held = packets.Get().(*packetBuf)
	var oob []byte
	if c.in.maxFDs > 0 {
		oob = c.held.oob[:oobBytes]
	}
	for {
		m := c.Toll.Begin()
		g.n, g.oobn, g.flags, _, g.err = unix.Recvmsg(int(fd), c.held.data[:], oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if costly := c.Toll.End(m, g.n); costly != nil {
			closeAll(rightsOf(c.held.oob[:g.oobn]))
			c.release()
			g.err = c.costly(costly)
			return true
		}
		// A reset, once: the other end has closed with something of ours unread. What it had
		// written is still here.
		if g.err == unix.EINTR || g.err == unix.ECONNRESET {
			continue
		}
		if g.err == unix.EAGAIN {
			c.release()
			return false
		}
		return true
	}
}

func (c *Conn) release() {
	if c.held != nil {
		packets.Put(c.held)
		c.held = nil
	}
}

// WriteMessage writes a message with descriptors, which stay the caller's. After
// an error in the middle of a message the connection is useless.
func (c *Conn) WriteMessage(msg []byte, fds ...int) error {
	if err := checkMessage(msg, fds); err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	packet := make([]byte, 0, packetHead+min(len(msg), MaxPiece))
	for len(msg) > 0 {
		head, piece := packetOf(msg)
		packet = append(append(packet[:0], head[:]...), piece...)
		if err := c.send(packet, rights); err != nil {
			return fmt.Errorf("shm: control socket: %w", err)
		}
		msg, rights = msg[len(piece):], nil
	}
	return nil
}

// Cred identifies the process at the other end.
func (c *Conn) Cred() (cred Cred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return cred, err
	}
	if e := raw.Control(func(fd uintptr) { cred, err = credOf(int(fd)) }); e != nil {
		return cred, e
	}
	return cred, err
}

// Detach takes the connection out of the runtime's poller, for a reactor: c is closed, the
// Control goes on where it was. No other goroutine may be reading or writing.
func (c *Conn) Detach() (*Control, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if e != nil || err != nil {
		return nil, fmt.Errorf("shm: %w", errors.Join(e, err))
	}
	c.UnixConn.Close()
	k := NewControl(fd, c.in.maxFDs)
	k.in = c.in
	c.in = assembler{}
	c.release()
	return k, nil
}

// Close closes the connection. The reading goroutine drops a message received in part.
func (c *Conn) Close() error { return c.UnixConn.Close() }

// Listener accepts control connections in a goroutine.
type Listener struct{ *net.UnixListener }

// Listen makes the control socket at path with the permission bits perm; a
// socket that a dead daemon left there is replaced. Close removes it.
func Listen(path string, perm os.FileMode) (*Listener, error) {
	addr := &net.UnixAddr{Name: path, Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", addr)
	if errors.Is(err, unix.EADDRINUSE) && stale(addr) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("shm: %w", err)
		}
		l, err = net.ListenUnix("unixpacket", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { unixsock.RefuseRights(int(fd)) })
	}
	if perm != 0 && path[0] != '@' {
		if err := os.Chmod(path, perm); err != nil {
			l.Close()
			return nil, fmt.Errorf("shm: %w", err)
		}
	}
	return &Listener{l}, nil
}

// stale reports whether there is a socket on which no process listens.
func stale(addr *net.UnixAddr) bool {
	st, err := os.Lstat(addr.Name)
	if err != nil || st.Mode()&os.ModeSocket == 0 {
		return false
	}
	c, err := net.DialUnix("unixpacket", nil, addr)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// AcceptConn waits for the next connection. Descriptors that clients send are an error.
func (l *Listener) AcceptConn() (*Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return NewConn(c, 0), nil
}
