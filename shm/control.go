package shm

import (
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/toll"
)

// Packets of the control socket (docs/shm.md, "Control socket").
const (
	packetHead    = 4
	MaxPiece      = 65536   // bytes of a message in one packet
	MaxMessage    = 4 << 20 // bytes: the most that either end takes
	MaxRequest    = 1 << 20 // bytes of a client's message once its socket has rings
	packetKind    = 1
	packetGoesOn  = 1
	maxMessageFDs = 4
)

// ErrAgain says that a non-blocking call has to be made again when the
// descriptor is ready.
var ErrAgain error = unix.EAGAIN

// Cred identifies the process at the other end, as the kernel knows it from connect time.
type Cred struct{ UID, GID, PID uint32 }

// Control is one end of a control connection on a raw non-blocking descriptor,
// for a reactor. Its methods never wait. One goroutine at a time uses Recv and
// one Send and Flush.
type Control struct {
	FD   int
	Toll toll.Toll // measures the calls

	in      assembler
	out     []byte // bytes that Send could not write yet
	outFDs  []int
	started bool       // the first packet of out has left
	held    *packetBuf // that the message last returned may lie in
}

// release gives up the packet of the message last returned.
func (c *Control) release() {
	if c.held != nil {
		packets.Put(c.held)
		c.held = nil
	}
}

// packets are where packets are received. One is out only while its connection
// is being read: of thousands of sockets few are at a time.
var packets = sync.Pool{New: func() any { return new(packetBuf) }}

type packetBuf struct {
	data [packetHead + MaxPiece]byte
	oob  [256]byte
}

// NewControl takes fd, a connected non-blocking SEQPACKET socket. Descriptors
// that come with messages are handed out up to maxFDs a message, others closed;
// when maxFDs is 0 they are an error (EBADMSG), and are not received.
func NewControl(fd, maxFDs int) *Control {
	return &Control{FD: fd, in: assembler{maxFDs: maxFDs, max: MaxMessage}}
}

// Charge has charge called before memory for a message in pieces is taken, with a number of
// bytes, and with a negative one when it is free again. Its error ends the connection. A
// message may have max bytes at most.
func (c *Control) Charge(max int, charge func(bytes int) error) { c.in.max, c.in.charge = max, charge }

// Half reports whether a message has come in part.
func (c *Control) Half() bool { return c.in.half() }

// Recv returns the next whole message and the descriptors that came with it,
// which are the caller's then. The message is valid until the next call.
// ErrAgain: none is complete yet. io.EOF: the other end is gone. Anything else
// is an error of the connection; close it.
func (c *Control) Recv() (msg []byte, fds []int, err error) {
	c.in.done()
	c.release()
	p := packets.Get().(*packetBuf)
	c.held = p // of the message returned, if one is
	defer func() {
		if msg == nil {
			c.release()
		}
	}()
	for {
		oob := p.oob[:oobBytes]
		if c.in.maxFDs == 0 {
			// An end that takes no descriptors must not even receive them: closing another's
			// file may take as long as its owner likes.
			oob = nil
			if err := peekPacket(c.FD); err != nil {
				return nil, nil, recvError(err)
			}
		}
		m := c.Toll.Begin()
		n, oobn, flags, _, err := unix.Recvmsg(c.FD, p.data[:], oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		// The other end decides how long a call on its socket takes; one that makes the
		// daemon pay too much is cut off.
		if costly := c.Toll.End(m, n); costly != nil {
			closeAll(rightsOf(p.oob[:oobn]))
			return nil, nil, costly
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, nil, recvError(err)
		}
		msg, fds, whole, err := c.in.take(p.data[:n], p.oob[:oobn], flags)
		if whole || err != nil {
			return msg, fds, err
		}
	}
}

// recvError returns the error of Recv for one of the system's.
func recvError(err error) error {
	switch err {
	case unix.EAGAIN:
		return ErrAgain
	case io.EOF, unix.ECONNRESET: // the latter: it went with something of ours unread
		return io.EOF
	}
	if Bad(err) {
		return err
	}
	return fmt.Errorf("shm: control socket: %w", err)
}

// peekPacket looks whether there is a packet on fd, io.EOF if there comes none any more, and
// whether it brings descriptors, and leaves it there. They were not asked for, so that is EBADMSG; and
// they must not be received, not even to be closed: the last close of a socket, for example, may
// take as long as its owner likes, and without room for them the kernel closes them in the same
// thread. While the packet stands in the queue it holds them.
func peekPacket(fd int) error {
	for {
		_, _, flags, _, err := unix.Recvmsg(fd, nil, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err == nil && flags&unix.MSG_CTRUNC != 0 {
			return badMsg("the control socket brought descriptors, which nobody asked for")
		}
		if err == nil && flags&unix.MSG_TRUNC == 0 {
			return io.EOF // a packet has bytes, none of which there was room for
		}
		return err
	}
}

// Send writes a message with descriptors, which stay the caller's and must stay open until
// done. done is false when the rest waits for Flush: the caller calls that when the
// descriptor is writable, and sends no other message before.
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

// Try is Send of a message of one packet, which is forgotten when it cannot be written at
// once: then done is false, without an error.
func (c *Control) Try(msg []byte, fds ...int) (done bool, err error) {
	if len(c.out) > 0 || len(msg) > MaxPiece {
		return false, nil
	}
	if err := checkMessage(msg, fds); err != nil {
		return false, err
	}
	c.started = false
	rest, err := c.write(msg, fds)
	return err == nil && len(rest) == 0, err
}

// Flush goes on with the bytes that Send could not write.
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
	m, size := c.Toll.Begin(), len(msg)
	defer func() {
		if costly := c.Toll.End(m, size); costly != nil && err == nil {
			rest, err = nil, costly
		}
	}()
	for len(msg) > 0 {
		head, piece := packetOf(msg)
		var rights []byte
		// Descriptors go with the first packet of a message. started stays set over a Flush,
		// so that they are not sent twice.
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

// Shutdown ends the connection in both directions: the other end sees that at once, behind
// the messages written before. It does not block, as Close may.
func (c *Control) Shutdown() {
	if c.FD >= 0 {
		_ = unix.Shutdown(c.FD, unix.SHUT_RDWR) // fails when the other end has gone before
	}
}

// Cred identifies the process at the other end.
func (c *Control) Cred() (Cred, error) { return credOf(c.FD) }

// Close closes the descriptor and drops a message received in part. Descriptors that the other
// end has passed and that were not received are closed with it, which may take as long as their
// last owner likes (SO_LINGER): a reactor must not call it.
func (c *Control) Close() error {
	c.in.drop()
	c.release()
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

// oobBytes is room for one descriptor more than a message has.
var oobBytes = unix.CmsgSpace(4 * (maxMessageFDs + 1))

// assembler puts messages together from packets.
type assembler struct {
	maxFDs int
	max    int                   // bytes of a message
	charge func(bytes int) error // nil: memory is not charged
	buf    []byte                // pieces so far, or the message last returned
	whole  bool                  // buf is that
	fds    []int
}

// half reports whether there are pieces of a message that is not complete.
func (a *assembler) half() bool { return len(a.buf) > 0 && !a.whole }

// done forgets the message last returned.
func (a *assembler) done() {
	if a.whole {
		a.shrink()
	}
}

func (a *assembler) shrink() {
	if a.charge != nil && cap(a.buf) > 0 {
		_ = a.charge(-cap(a.buf)) // less is not refused
	}
	a.buf, a.whole = nil, false
}

// add appends a piece, in memory that was charged before.
func (a *assembler) add(piece []byte) error {
	if need := len(a.buf) + len(piece); need > cap(a.buf) {
		// It begins with the size of most messages, and doubles, so that little is copied
		// twice and a length that was only announced costs nothing.
		size := min(max(2*cap(a.buf), 2*MaxPiece, need), max(a.max, need))
		if a.charge != nil {
			if err := a.charge(size); err != nil {
				return err
			}
		}
		buf := append(make([]byte, 0, size), a.buf...)
		a.shrink()
		a.buf = buf
	}
	a.buf = append(a.buf, piece...)
	return nil
}

// take adds a packet. If whole is true msg is complete; it lies in packet, or until done in
// the assembler's own memory.
func (a *assembler) take(packet, oob []byte, flags int) (msg []byte, fds []int, whole bool, err error) {
	got := rightsOf(oob)
	if len(packet) == 0 && len(got) == 0 {
		a.drop()
		return nil, nil, false, io.EOF
	}
	first := len(a.buf) == 0
	// Descriptors that are one too many are closed here: nobody else knows their numbers.
	// Those kept are in a.fds, so that drop closes them on every error below.
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
	// A message in pieces has full pieces but for the last, so that its number of packets,
	// each of which costs a system call, is bounded by its length.
	piece, goesOn := packet[packetHead:], packet[1]&packetGoesOn != 0
	if goesOn && len(piece) != MaxPiece {
		return fail("a piece of %d bytes that goes on", len(piece))
	}
	if len(a.buf)+len(piece) > a.max {
		return fail("a message of more than %d bytes", a.max)
	}
	// Most messages are one packet, and are handed out where they were received.
	if first && !goesOn {
		fds, a.fds = a.fds, nil
		return piece, fds, true, nil
	}
	if err := a.add(piece); err != nil {
		a.drop()
		return nil, nil, false, err
	}
	if goesOn {
		return nil, nil, false, nil
	}
	fds, a.fds, a.whole = a.fds, nil, true
	return a.buf, fds, true, nil
}

// drop forgets the pieces of an incomplete message.
func (a *assembler) drop() {
	closeAll(a.fds)
	a.fds = nil
	a.shrink()
}

// rightsOf returns the descriptors in control data. The kernel has closed those that it cut
// off for lack of room.
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
