package shm

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/internal/unixsock"
)

// Doorbells wake a side that sleeps (docs/shm.md, "Waiting"). The two directions
// differ, because the daemon must never wait for a client.
//
// Bell, client to daemon, is an eventfd. Both hold the same open file, so a client can
// clear its O_NONBLOCK and fill its counter; a thread that writes or reads it then blocks.
// The daemon does neither: it watches the eventfd edge-triggered, where every write is an
// event, and nothing has to be cleared.
//
// A client that sends a byte instead of writing to an eventfd rings the other end of its Alarm,
// and has no Bell (NewDoorbell). What it sends stands in a queue of its own; each byte is an event.
// The daemon takes it out without waiting after an event and before it sleeps again, so that a client
// that finds the queue full has rung. It must pass no descriptors there: the last close of one may
// take as long as its owner likes.
//
// Alarm, daemon to client, is a pair of connected sockets. The daemon's end is an open file of
// its own, each send says itself that it must not block, and the kernel holds no lock meanwhile
// that the other end's owner could hold for longer than a moment. A pipe has such a lock: its
// reader may sleep with it, in a page fault. So has an epoll set with an eventfd of the daemon's
// in it, which would cost half as much: closing the eventfd takes the lock of the set, and the
// set's owner may sleep with that likewise, for as long as it likes. A client can still have very
// many watchers, all of which the kernel wakes: see internal/toll.

var one = [8]byte{1}

// NewBell makes a client's way to wake the daemon. The daemon watches it with
// EPOLLET and makes no other system call on it.
func NewBell() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("shm: eventfd: %w", err)
	}
	return fd, nil
}

// Ring wakes the daemon. It is for clients. bell is an eventfd, or the client's end of a
// doorbell; one that takes no more has rung already.
func Ring(bell int) {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(bell), uintptr(unsafe.Pointer(&one)), 1, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e == unix.ENOTSOCK {
		unix.RawSyscall(unix.SYS_WRITE, uintptr(bell), uintptr(unsafe.Pointer(&one)), 8)
	}
}

// Alarm is the daemon's end of a client's doorbell. Ring, Hear and Close may be called at the
// same time: then this client's doorbell is rung or heard, or none.
type Alarm struct {
	// Costly, unless it is nil, is called by Ring when waking this client takes too long;
	// it must not block. It has to be set before the first Ring.
	Costly func(error)
	// Toll measures the calls.
	Toll toll.Toll

	fd      int
	hears   bool // NewDoorbell made it
	refuses bool // the kernel takes no descriptors from the client
	muted   atomic.Bool
	closed  atomic.Bool
	ringers atomic.Int32 // calls of Ring and Hear under way; below 0: muted
}

// alarmClosed is added to ringers when the alarm is muted.
const alarmClosed = -1 << 30

// NewAlarm makes a client's doorbell. client is the end for the client, which
// the caller closes when the client has it.
func NewAlarm() (a *Alarm, client int, err error) {
	a, client, err = newDoorbell()
	if err != nil {
		return nil, -1, err
	}
	// Nothing can come in at the daemon's end, above all no descriptors.
	if err = unix.Shutdown(a.fd, unix.SHUT_RD); err != nil {
		unix.Close(a.fd)
		unix.Close(client)
		return nil, -1, fmt.Errorf("shm: a doorbell: %w", err)
	}
	return a, client, nil
}

// NewDoorbell makes an alarm that the client rings as well, by Ring on its end: the daemon
// watches FD with EPOLLIN and EPOLLET, and calls Hear.
func NewDoorbell() (a *Alarm, client int, err error) {
	if a, client, err = newDoorbell(); err == nil {
		a.hears = true
		a.refuses = unixsock.RefuseRights(a.fd)
	}
	return a, client, err
}

func newDoorbell() (a *Alarm, client int, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("shm: socketpair: %w", err)
	}
	// Only a handful of rings that the client does not take is kept: 1 becomes the least there is. That
	// fails for what is no socket alone, and then more would be kept.
	_ = unix.SetsockoptInt(p[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
	return &Alarm{fd: p[0]}, p[1], nil
}

// Ring wakes the client. It never blocks, whatever the client does: when the socket is full
// the client has rings to read. It is a raw system call, of less than a microsecond and the
// wake-up, which the scheduler need not know of.
func (a *Alarm) Ring() {
	var costly error
	if a.ringers.Add(1) > 0 {
		m := a.Toll.Begin()
		unix.RawSyscall6(unix.SYS_SENDTO, uintptr(a.fd), uintptr(unsafe.Pointer(&one)), 1, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		costly = a.Toll.End(m, 1)
	}
	a.ringers.Add(-1)
	if costly != nil && a.Costly != nil {
		a.Costly(costly)
	}
}

// FD is the daemon's end.
func (a *Alarm) FD() int { return a.fd }

// Hears reports whether the client rings here.
func (a *Alarm) Hears() bool { return a.hears }

// hearMost bounds what is taken out at once, in pieces of hearBytes; the queue of a client holds less
// unless it has asked for more.
const (
	hearMost  = 256
	hearBytes = 1024
)

// Hear follows an event of FD: the client has rung. It takes out all that the client has sent, before
// the daemon sleeps: a client that finds its queue full takes the daemon for rung. A ring that comes
// meanwhile may be no event, so its caller looks at the rings afterwards. It does not wait. An error ends
// the client: EBADMSG, it has passed a descriptor; or it was too costly to hear. Of a muted doorbell
// it takes nothing: the number of its descriptor may be another's.
//
// The calls are raw, and ask for no address: hundreds of sockets that are used in turn each ring
// before they are served, and the calls of package unix took a fifth of such a reactor's time.
func (a *Alarm) Hear() error {
	defer a.ringers.Add(-1)
	if a.ringers.Add(1) <= 0 {
		return nil
	}
	var b [hearBytes]byte
	m := a.Toll.Begin()
	taken, rights := 0, false
	for range hearMost {
		want := len(b)
		if !a.refuses {
			// A look first, which brings no descriptor and says if there is one (see peekPacket);
			// then as many bytes as were seen.
			if want, rights = a.peek(b[:]); rights || want <= 0 {
				break
			}
		}
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(a.fd), uintptr(unsafe.Pointer(&b)), uintptr(want), unix.MSG_DONTWAIT, 0, 0)
		if e != 0 || n == 0 { // EAGAIN, or the client is gone
			break
		}
		if taken += int(n); int(n) < len(b) {
			break
		}
	}
	if err := a.Toll.End(m, taken); err != nil {
		return err
	}
	if rights {
		return badMsg("a doorbell brought descriptors, which nobody asked for")
	}
	return nil
}

// peek looks at what the client has sent and leaves it there: how many bytes, at most len(b), and
// whether descriptors came with them.
func (a *Alarm) peek(b []byte) (n int, rights bool) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	h := unix.Msghdr{Iov: &v}
	h.SetIovlen(1)
	r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(a.fd), uintptr(unsafe.Pointer(&h)), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if e != 0 {
		return 0, false
	}
	return int(r), h.Flags&unix.MSG_CTRUNC != 0
}

// LetGo reports whether no process has the client's end any more.
func (a *Alarm) LetGo() bool {
	fds := []unix.PollFd{{Fd: int32(a.fd)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLHUP != 0
}

// Mute ends the rings once none is under way any more: later ones do nothing, nothing of the
// client's is heard, and what the client hears is the end. Nor does a second Mute do anything, or that of a nil alarm.
func (a *Alarm) Mute() {
	if a == nil || a.muted.Swap(true) {
		return
	}
	a.ringers.Add(alarmClosed)
	for a.ringers.Load() != alarmClosed {
		runtime.Gosched()
	}
	_ = unix.Shutdown(a.fd, unix.SHUT_WR) // fails when the client has gone before
}

// Close mutes the alarm and closes it, which may take as long as whoever has passed a
// descriptor likes if it Hears. Nor does a second Close do anything, or that of a nil alarm.
func (a *Alarm) Close() {
	if a == nil || a.closed.Swap(true) {
		return
	}
	a.Mute()
	unix.Close(a.fd)
}

// Drain takes the rings of the client's doorbell, and reports whether there were any. It
// does not block. When the daemon is gone the doorbell is readable for ever, and over.
func Drain(client int) (rang, over bool) {
	var b [64]byte
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(client), uintptr(unsafe.Pointer(&b)), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == unix.EINTR:
		case e != 0 || n == 0:
			return rang, e == 0
		case n < uintptr(len(b)):
			return true, false
		default:
			rang = true
		}
	}
}
