package shm

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Packets of the control socket (docs/shm.md, "Control socket").
const (
	packetHead    = 4
	MaxPiece      = 65536    // bytes of a message in one packet
	MaxMessage    = 16 << 20 // bytes
	packetKind    = 1
	packetGoesOn  = 1
	maxMessageFDs = 3
)

// ErrAgain says that a non-blocking call has to be made again when the
// descriptor is ready.
var ErrAgain error = unix.EAGAIN

// Cred is who is at the other end, as the kernel knows it from connect time.
type Cred struct{ UID, GID, PID uint32 }

// Control is one end of a control connection on a raw non-blocking descriptor,
// for a reactor. Its methods never wait. One goroutine at a time uses Recv and
// one Send and Flush.
type Control struct {
	FD int

	in      assembler
	out     []byte // what Send could not write yet
	outFDs  []int
	started bool // the first packet of out has left
	packet  []byte
	oob     []byte
}

// NewControl takes fd, a connected non-blocking SEQPACKET socket. Descriptors
// that come with messages are handed out up to maxFDs a message, others closed.
func NewControl(fd, maxFDs int) *Control {
	return &Control{FD: fd, in: assembler{maxFDs: maxFDs}}
}

// Recv returns the next whole message and the descriptors that came with it,
// which are the caller's then. The message is valid until the next call.
// ErrAgain: none is complete yet. io.EOF: the other end is gone. Anything else
// is an error of the connection; close it.
func (c *Control) Recv() (msg []byte, fds []int, err error) {
	if c.packet == nil {
		c.packet = make([]byte, packetHead+MaxPiece)
		c.oob = make([]byte, unix.CmsgSpace(4*(maxMessageFDs+1)))
	}
	for {
		n, oobn, flags, _, err := unix.Recvmsg(c.FD, c.packet, c.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return nil, nil, ErrAgain
		}
		if err == unix.ECONNRESET {
			return nil, nil, io.EOF // it went with something of ours unread
		}
		if err != nil {
			return nil, nil, fmt.Errorf("shm: control socket: %w", err)
		}
		msg, fds, whole, err := c.in.take(c.packet[:n], c.oob[:oobn], flags)
		if whole || err != nil {
			return msg, fds, err
		}
	}
}

// Send writes a message with descriptors, which stay the caller's and must stay
// open until done. done is false when the rest waits for Flush: call that when the descriptor
// is writable, and Send no other message before.
func (c *Control) Send(msg []byte, fds ...int) (done bool, err error) {
	if len(c.out) > 0 {
		return false, fmt.Errorf("shm: control socket: %w: the message before is not written yet", unix.EBUSY)
	}
	if err := checkMessage(msg, fds); err != nil {
		return false, err
	}
	c.started = false
	rest, err := c.write(msg, fds)
	if err != nil || len(rest) == 0 {
		return err == nil, err
	}
	c.out = append(c.out[:0], rest...)
	c.outFDs = append(c.outFDs[:0], fds...)
	return false, nil
}

// Flush goes on with what Send could not write.
func (c *Control) Flush() (done bool, err error) {
	rest, err := c.write(c.out, c.outFDs)
	if err != nil {
		return false, err
	}
	c.out = c.out[:copy(c.out, rest)]
	if len(c.out) == 0 && cap(c.out) > 1<<20 {
		c.out = nil
	}
	return len(c.out) == 0, nil
}

// Pending reports whether Flush has something to do.
func (c *Control) Pending() bool { return len(c.out) > 0 }

func (c *Control) write(msg []byte, fds []int) (rest []byte, err error) {
	for len(msg) > 0 {
		head, piece := packetOf(msg)
		var rights []byte
		if len(fds) > 0 && !c.started {
			rights = unix.UnixRights(fds...)
		}
		_, err := unix.SendmsgBuffers(c.FD, [][]byte{head[:], piece}, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			msg, c.started = msg[len(piece):], true
		case unix.EINTR:
		case unix.EAGAIN:
			return msg, nil
		default:
			return nil, fmt.Errorf("shm: control socket: %w", err)
		}
	}
	return nil, nil
}

// Shutdown ends the connection in both directions: the other end sees that at
// once, with what was written for it before. It does not block, as Close may.
func (c *Control) Shutdown() {
	if c.FD >= 0 {
		_ = unix.Shutdown(c.FD, unix.SHUT_RDWR) // fails when the other end has gone before
	}
}

// Cred tells who is at the other end.
func (c *Control) Cred() (Cred, error) { return credOf(c.FD) }

// Close closes the descriptor and what was received in pieces. Descriptors that
// the other end has passed and nobody received are closed with it, and that may take as long as
// their last owner likes (SO_LINGER): it is nothing for a reactor.
func (c *Control) Close() error {
	c.in.drop()
	fd := c.FD
	c.FD = -1
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

func credOf(fd int) (Cred, error) {
	u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Cred{}, fmt.Errorf("shm: SO_PEERCRED: %w", err)
	}
	return Cred{UID: u.Uid, GID: u.Gid, PID: uint32(u.Pid)}, nil
}

func checkMessage(msg []byte, fds []int) error {
	if len(msg) == 0 || len(msg) > MaxMessage || len(fds) > maxMessageFDs {
		return &Error{unix.EMSGSIZE, fmt.Sprintf("a message of %d bytes with %d descriptors; 1 to %d and at most %d are possible", len(msg), len(fds), MaxMessage, maxMessageFDs)}
	}
	return nil
}

// packetOf cuts the next packet off a message.
func packetOf(msg []byte) (head [packetHead]byte, piece []byte) {
	head[0] = packetKind
	if len(msg) > MaxPiece {
		head[1] = packetGoesOn
		return head, msg[:MaxPiece]
	}
	return head, msg
}

// assembler puts messages together from packets.
type assembler struct {
	maxFDs int
	buf    []byte // pieces so far
	fds    []int
}

// take adds a packet. whole: msg is complete; it lies in packet or in the
// assembler's own memory.
func (a *assembler) take(packet, oob []byte, flags int) (msg []byte, fds []int, whole bool, err error) {
	got := rightsOf(oob)
	if len(packet) == 0 && len(got) == 0 {
		a.drop()
		return nil, nil, false, io.EOF
	}
	first := len(a.buf) == 0
	if room := a.maxFDs - len(a.fds); first && len(got) > room {
		closeAll(got[max(room, 0):])
		got = got[:max(room, 0)]
	}
	a.fds = append(a.fds, got...)
	fail := func(format string, args ...any) ([]byte, []int, bool, error) {
		a.drop()
		return nil, nil, false, badMsg("the control socket brought "+format, args...)
	}
	if flags&unix.MSG_TRUNC != 0 || len(packet) <= packetHead || packet[0] != packetKind || packet[1]&^packetGoesOn != 0 || packet[2]|packet[3] != 0 {
		return fail("a packet of %d bytes that begins with % x, which is no packet of this protocol", len(packet), packet[:min(len(packet), packetHead)])
	}
	if !first && len(got) > 0 {
		return fail("descriptors with a later piece")
	}
	piece, goesOn := packet[packetHead:], packet[1]&packetGoesOn != 0
	if goesOn && len(piece) != MaxPiece {
		return fail("a piece of %d bytes that goes on", len(piece))
	}
	if len(a.buf)+len(piece) > MaxMessage {
		return fail("a message of more than %d bytes", MaxMessage)
	}
	if goesOn {
		a.buf = append(a.buf, piece...)
		return nil, nil, false, nil
	}
	msg, fds = piece, a.fds
	a.fds = nil
	if !first {
		msg = append(a.buf, piece...)
		a.buf = a.buf[:0]
		if cap(msg) > 1<<20 {
			a.buf = nil // not to be kept for ever
		}
	}
	return msg, fds, true, nil
}

// drop forgets what was received of an incomplete message.
func (a *assembler) drop() {
	closeAll(a.fds)
	a.fds, a.buf = nil, nil
}

// rightsOf returns the descriptors in control data. What the kernel cut off
// for lack of room it has closed itself.
func rightsOf(oob []byte) (fds []int) {
	if len(oob) == 0 {
		return nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range cmsgs {
		if got, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
