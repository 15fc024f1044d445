package reactor

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noPwait2 is set when this kernel is older than Linux 5.11: milliseconds have to do.
var noPwait2 atomic.Bool

// wait blocks until a descriptor is ready or the time has come. The scheduler
// is told (Syscall): the thread gives up its place meanwhile.
func (r *Reactor) wait(until time.Duration) int {
	for {
		n, err := r.waitOnce(until)
		switch err {
		case nil:
			return n
		case unix.EINTR:
			return 0
		case unix.ENOSYS, unix.EPERM: // EPERM is the answer of old system call filters to new calls
			if !noPwait2.Swap(true) {
				continue
			}
		}
		cannotWait("epoll_pwait2", err)
		return 0
	}
}

// refused is how long a reactor pauses when the kernel does not let it wait.
const refused = time.Millisecond

// cannotWait returns when the kernel may let us wait again, and panics where it never will
// because the request was wrong.
func cannotWait(what string, err error) {
	switch err {
	case unix.EBADF, unix.EFAULT, unix.EINVAL:
		panic("reactor: " + what + ": " + err.Error())
	}
	time.Sleep(refused)
}

func (r *Reactor) waitOnce(until time.Duration) (int, error) {
	left := never
	if until != never {
		left = max(until-Clock(), 0)
	}
	if noPwait2.Load() {
		ms := -1
		if left != never {
			ms = int(min((left+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
		}
		return unix.EpollWait(r.epfd, r.events[:], ms)
	}
	var ts *unix.Timespec
	if left != never {
		t := unix.NsecToTimespec(int64(left))
		ts = &t
	}
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(r.epfd), uintptr(unsafe.Pointer(&r.events[0])), maxEvents,
		uintptr(unsafe.Pointer(ts)), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
