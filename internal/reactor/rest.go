package reactor

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Resting is sleeping when nothing has come for long. A thread that blocks in a
// system call keeps its place in the Go scheduler until the runtime's monitor
// takes it away, for which that looks every 20 µs for some milliseconds: 0.3 ms
// of CPU each time a reactor wakes for a moment. So where work comes
// milliseconds apart the reactor's goroutine waits as any other does, in the
// runtime's poller and without a thread of its own, and locks itself to a
// thread again when work comes faster. The first piece of work after a pause
// waits a little longer for that.
//
// The runtime's poller watches an epoll set with the reactor's own in it, armed for one
// event each time the reactor goes to rest: the poller does not see events that come while
// the reactor is awake.
type rest struct {
	set   int // epoll set: epfd is in it
	file  *os.File
	raw   syscall.RawConn
	ready func(uintptr) bool
	alarm int           // timerfd, in epfd
	due   time.Duration // the time alarm is set to

	opt    Options
	locked bool // to the thread
	failed bool // the last wait could not be made in the poller
	longs  int  // gaps in a row that were long
	always bool // for tests
}

const (
	longGap  = 4 * time.Millisecond
	longGaps = 2 // so many, and it rests
)

// open makes the descriptors. epfd is there.
func (s *rest) open(r *Reactor) (err error) {
	s.set, s.alarm, s.due = -1, -1, never
	if s.set, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if s.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	if err = unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, s.alarm, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: -1}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if err = unix.EpollCtl(s.set, unix.EPOLL_CTL_ADD, r.epfd, &unix.EpollEvent{Events: unix.EPOLLONESHOT}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if err = unix.SetNonblock(s.set, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	s.file = os.NewFile(uintptr(s.set), "reactor") // non-blocking: the runtime's poller takes it
	s.raw, err = s.file.SyscallConn()
	s.ready = func(uintptr) bool {
		s.failed = !s.watch(r, unix.EPOLLIN)
		r.late, _ = r.look(false)
		return s.failed || r.late > 0
	}
	return err
}

func (s *rest) close() {
	switch {
	case s.file != nil:
		s.file.Close()
	case s.set >= 0:
		unix.Close(s.set)
	}
	if s.alarm >= 0 {
		unix.Close(s.alarm)
	}
}

// wait blocks until a descriptor is ready or the time has come. Where the kernel
// refuses the alarm or the watch, the thread itself waits, as without resting.
func (s *rest) wait(r *Reactor, until time.Duration) {
	s.failed = !s.arm(until)
	if !s.failed {
		if s.opt.CPU < 0 && selfIsGoroutine {
			s.unlock()
		}
		// ready says whether it failed; an error of Read is one more way to.
		s.failed = s.raw.Read(s.ready) != nil || s.failed
	}
	if s.failed {
		// The events that ready found are not reported again: descriptors report edges.
		if r.late == 0 {
			r.late = r.wait(until)
		}
		return
	}
	s.watch(r, 0) // at worst the poller is woken once for nothing
}

// arm sets the alarm.
func (s *rest) arm(until time.Duration) bool {
	if until == s.due {
		return true
	}
	var t unix.ItimerSpec // zero: off
	if until != never {
		t.Value = unix.NsecToTimespec(int64(max(until-Clock(), 1)))
	}
	if unix.TimerfdSettime(s.alarm, 0, &t, nil) != nil {
		s.due = -1 // from any value it is set to now
		return false
	}
	s.due = until
	return true
}

// watch says which events of the reactor's set the runtime's poller is to hear of, once.
// The event stays in the set in between, so without 0 the poller would be woken by every
// later event.
func (s *rest) watch(r *Reactor, events uint32) bool {
	ev := unix.EpollEvent{Events: events | unix.EPOLLONESHOT}
	return unix.EpollCtl(s.set, unix.EPOLL_CTL_MOD, r.epfd, &ev) == nil
}

// gap notes how far apart work came.
func (s *rest) gap(d time.Duration) {
	if d < longGap {
		s.longs = 0
	} else {
		s.longs++
	}
}

func (s *rest) wanted() bool { return s.longs >= longGaps || s.always }

// lock gives the reactor's goroutine a thread of its own. Only the first time
// can it fail: afterwards the thread is bound to no processor.
func (s *rest) lock() error {
	if s.locked {
		return nil
	}
	s.locked = true
	runtime.LockOSThread()
	return setThread(s.opt)
}

// unlock gives the thread back as it was.
func (s *rest) unlock() {
	if s.locked {
		s.locked = false
		if s.opt.Name != "" {
			setName(processName)
		}
		runtime.UnlockOSThread()
	}
}
