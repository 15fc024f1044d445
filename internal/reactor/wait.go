package reactor

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noPwait2: this kernel is older than Linux 5.11, milliseconds have to do.
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
		case unix.ENOSYS:
			if !noPwait2.Swap(true) {
				continue
			}
		}
		panic("reactor: epoll_pwait: " + err.Error())
	}
}

func (r *Reactor) waitOnce(until time.Duration) (int, error) {
	left := never
	if until != never {
		left = max(until-Clock(), 0)
	}
	if noPwait2.Load() {
		ms := -1
		if left != never {
			ms = int(min((left+time.Millisecond-1)/time.Millisecond, 1<<30))
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
