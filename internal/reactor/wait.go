package reactor

import (
	"math"
	"runtime"
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

// passEvery is half of the time after which Go's monitor takes a goroutine for one that computes (forcePreemptNS of
// runtime/proc.go).
const passEvery = 5 * time.Millisecond

// pass has the reactor's goroutine, which is about to wait, go through Go's scheduler now and then. From one that
// has not for 10 ms the runtime's monitor takes its place at each wait, however short, and then sleeps itself. To wake
// the monitor is the first that the thread does when it wakes, and the monitor runs 2,000 times a second: with work
// each millisecond that was two fifths of a daemon's processor time (docs/performance-log.md, 46). Goroutines that are
// ready come first, as they do when a place was taken.
func (r *Reactor) pass() {
	if r.now-r.passed >= passEvery {
		r.passed = r.now
		runtime.Gosched()
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
