//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/shm"
)

// doorbell is a socket into which the daemon rings. One call may sleep on it in the
// kernel (sleep): woken up so, it goes on 5 µs after the ring where both share a
// core. By the runtime's poller and another goroutine (listen, heard) that
// takes 50 to 150 µs, but any number of calls can wait and none holds a thread.
//
// The poller must not hear of rings that are for a sleeping call: each would start a thread
// to look for work. So it watches an epoll set with the doorbell in it, armed for one event
// each time a call parks.
//
// When the daemon is gone the doorbell is readable for ever; the end of the control
// connection says so too, and ends the calls that wait here.
type doorbell struct {
	fd   int      // closed with the mapping, or when the daemon is gone and nobody sleeps any more
	kick int      // an eventfd: another call of this process wakes the one that sleeps; closed with the last use of the link
	set  *os.File // the epoll set; closed when the link ends
	raw  syscall.RawConn
	arm  func(uintptr)
	has  func(uintptr) bool

	files sync.Mutex // held by who closes fd and kick
}

// open takes fd over if it succeeds.
func (b *doorbell) open(fd int) error {
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		unix.Close(kick)
		return os.NewSyscallError("epoll_create1", err)
	}
	// The doorbell is in the set without an event asked for, until arm: rings for a call
	// that sleeps on it must not start a thread of the poller.
	err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT})
	if err == nil {
		err = unix.SetNonblock(set, true) // or the runtime's poller would not take it
	}
	if err != nil {
		unix.Close(kick)
		unix.Close(set)
		return os.NewSyscallError("epoll_ctl", err)
	}
	b.fd, b.kick, b.set = fd, kick, os.NewFile(uintptr(set), "doorbell")
	// The runtime's poller watches the set, not the doorbell.
	if b.raw, err = b.set.SyscallConn(); err != nil {
		unix.Close(kick)
		b.set.Close()
		return err
	}
	b.arm = func(set uintptr) {
		// For one event: the next ring is reported only if it is armed again.
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
		_ = unix.EpollCtl(int(set), unix.EPOLL_CTL_MOD, fd, &ev)
	}
	b.has = func(set uintptr) bool {
		var ev [1]unix.EpollEvent
		n, _ := unix.EpollWait(int(set), ev[:], 0)
		return n > 0
	}
	return nil
}

// listen has heard return at the next ring, or at once if it has rung.
func (b *doorbell) listen() { _ = b.raw.Control(b.arm) }

// heard waits for a ring after listen. It returns false when stopListening was called, or
// the daemon is gone. It makes no difference if another call has taken the ring meanwhile.
func (b *doorbell) heard() bool {
	if b.raw.Read(b.has) != nil {
		return false
	}
	_, over := shm.Drain(b.fd)
	return !over
}

// stopListening ends heard, now and for ever.
func (b *doorbell) stopListening() { b.set.Close() }

// close closes the descriptors that sleep uses. No call sleeps any more. Of a link that was
// not made nobody has stopped listening.
func (b *doorbell) close() {
	b.stopListening()
	b.files.Lock()
	defer b.files.Unlock()
	closeOnce(&b.fd)
	closeOnce(&b.kick)
}

// quiet is for a link that nobody uses and whose region is still mapped: it closes what tells
// the daemon nothing, and reports whether that was all. A daemon that lives charges for the region, and counts the
// connection, until the doorbell is closed.
func (b *doorbell) quiet() bool {
	b.files.Lock()
	defer b.files.Unlock()
	closeOnce(&b.kick)
	if b.fd < 0 {
		return true
	}
	fds := [1]unix.PollFd{{Fd: int32(b.fd)}}
	if n, err := unix.Poll(fds[:], 0); err != nil || n == 0 || fds[0].Revents&unix.POLLHUP == 0 {
		return false
	}
	closeOnce(&b.fd)
	return true
}

func closeOnce(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}

// sleep waits for a ring of the daemon's or of another call, in the kernel, at most for d.
func (b *doorbell) sleep(d time.Duration) {
	fds := [2]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}, {Fd: int32(b.kick), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(d))
	n, err := unix.Ppoll(fds[:], &ts, nil)
	for err == unix.EINTR { // a signal, such as Go's to itself; ts is the time left
		n, err = unix.Ppoll(fds[:], &ts, nil)
	}
	if n <= 0 {
		return
	}
	shm.Drain(b.fd)
	if fds[1].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(b.kick, count[:])
	}
}

// ring is for another call of this process that sleeps.
func (b *doorbell) ring() { shm.Ring(b.kick) }
