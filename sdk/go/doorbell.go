//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// doorbell is an eventfd that the daemon rings. One call may sleep on it in the
// kernel (sleep): woken up so, it goes on 5 µs after the ring where both share a
// core. By the runtime's poller and another goroutine (listen, heard) that
// takes 50 to 150 µs, but any number of calls can wait and none holds a thread.
//
// The poller must not hear of rings that are for a sleeping call: each would
// start a thread to look for work. So it watches an epoll set with the eventfd
// in it, armed for one event each time somebody parks.
type doorbell struct {
	fd  int      // closed with the mapping
	set *os.File // the epoll set; closed when the link ends
	raw syscall.RawConn
	arm func(uintptr)
	has func(uintptr) bool
}

// open takes fd over if it succeeds.
func (b *doorbell) open(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT})
	if err == nil {
		err = unix.SetNonblock(set, true) // or the runtime's poller would not take it
	}
	if err != nil {
		unix.Close(set)
		return os.NewSyscallError("epoll_ctl", err)
	}
	b.fd, b.set = fd, os.NewFile(uintptr(set), "doorbell")
	if b.raw, err = b.set.SyscallConn(); err != nil {
		b.set.Close()
		return err
	}
	b.arm = func(set uintptr) {
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

// heard waits for a ring after listen; false: hush was called.
func (b *doorbell) heard() bool {
	if b.raw.Read(b.has) != nil {
		return false
	}
	b.drain()
	return true
}

// hush ends heard, now and for ever.
func (b *doorbell) hush() { b.set.Close() }

// sleep waits for a ring, in the kernel, at most for d.
func (b *doorbell) sleep(d time.Duration) {
	fds := [1]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(d))
	if n, _ := unix.Ppoll(fds[:], &ts, nil); n > 0 {
		b.drain()
	}
}

func (b *doorbell) drain() {
	var count [8]byte
	_, _ = unix.Read(b.fd, count[:])
}

// ring is for another call of this process that sleeps.
func (b *doorbell) ring() {
	one := uint64(1)
	_, _ = unix.Write(b.fd, (*[8]byte)(unsafe.Pointer(&one))[:]) // in the byte order of the machine
}
