package reactor

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
)

// TestWaitWithoutASet: that the kernel does not let a reactor wait is an error, not events.
func TestWaitWithoutASet(t *testing.T) {
	r := &Reactor{epfd: -1}
	for _, until := range []time.Duration{never, 0} {
		if n, err := r.waitOnce(until); n != 0 || err != unix.EBADF {
			t.Errorf("without an epoll set: %d events, %v", n, err)
		}
	}
}

// On a kernel without epoll_pwait2 a reactor waits in milliseconds: never too short, and
// whoever has something wakes it all the same.
func TestWaitsInMilliseconds(t *testing.T) {
	if noPwait2.Swap(true) {
		t.Skip("this kernel has nothing else")
	}
	defer noPwait2.Store(false)
	r := open(t, -1)
	on(r, func() {
		r.timers.next.Store(int64(never))
		// Who gave the reactor this function may have rung while it was about to sleep.
		if n, err := r.waitOnce(Clock()); n > 1 || err != nil {
			t.Errorf("the ring of who woke it: %d events, %v", n, err)
		}
		for _, d := range []time.Duration{0, 1, time.Millisecond - 1, time.Millisecond, time.Millisecond + 1} {
			until := Clock() + d
			if n, err := r.waitOnce(until); n != 0 || err != nil || Clock() < until {
				t.Errorf("waited %v too short for %v: %d events, %v", until-Clock(), d, n, err)
			}
		}
		if n, err := r.waitOnce(Clock() - time.Hour); n != 0 || err != nil {
			t.Errorf("until an hour ago: %d events, %v", n, err)
		}
	})
	for range 20 {
		fired := make(chan time.Duration, 1)
		began := Clock()
		r.After(1500*time.Microsecond, func() { fired <- Clock() - began })
		select {
		case d := <-fired:
			if d < 1500*time.Microsecond {
				t.Errorf("a timer after %v", d)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a timer does not fire")
		}
	}
	for range 20 { // nothing is due: only the ring ends the sleep
		passed := make(chan struct{})
		r.Do(func() { close(passed) })
		within(t, "a ring", passed)
	}
}

// What the kernel refuses for a moment is waited out; what is asked wrongly ends the process.
func TestCannotWait(t *testing.T) {
	for _, e := range []unix.Errno{unix.EPERM, unix.ENOMEM, unix.EINTR} {
		begun := time.Now()
		if cannotWait("a call", e); time.Since(begun) < refused {
			t.Errorf("%v: tried again after %v", e, time.Since(begun))
		}
	}
	for _, e := range []unix.Errno{unix.EBADF, unix.EFAULT, unix.EINVAL} {
		func() {
			defer func() {
				if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "a call: "+e.Error()) {
					t.Errorf("%v: recovered %v", e, v)
				}
			}()
			cannotWait("a call", e)
		}()
	}
}

// readyCount counts the calls of a handler and may be Eager.
type readyCount struct {
	ready, tried int
	has          bool
}

func (c *readyCount) Ready(uint32) { c.ready++ }

type eagerCount struct{ readyCount }

func (c *eagerCount) Try() bool { c.tried++; return c.has }

// An event is for the descriptor it was fetched for and nobody else, and a ring is for nobody.
func TestDispatch(t *testing.T) {
	r := open(t, -1)
	a, b := &readyCount{}, &eagerCount{}
	fa, fb := eventfd(t), eventfd(t)
	for fd, h := range map[int]Handler{fa: a, fb: b} {
		if err := r.Add(fd, 0, h); err != nil {
			t.Fatal(err)
		}
	}
	on(r, func() {
		event := func(fd int, events uint32, older int32) {
			gen := int32(0)
			if s := r.source(fd); s != nil {
				gen = int32(s.gen)
			}
			r.events[0] = unix.EpollEvent{Fd: int32(fd), Pad: gen - older, Events: events}
			r.dispatch(1)
		}
		event(fa, unix.EPOLLIN, 0)
		event(fa, unix.EPOLLIN, 1)
		event(-1, unix.EPOLLIN, 0)
		event(1<<20, unix.EPOLLIN, 0)
		if a.ready != 1 || b.ready != 0 || r.eager != nil {
			t.Errorf("%d and %d calls, eager %v", a.ready, b.ready, r.eager)
		}
		event(fb, unix.EPOLLOUT, 0)
		if b.ready != 1 || r.eager != nil {
			t.Errorf("%d calls; room to write makes nobody eager: %v", b.ready, r.eager)
		}
		event(fb, unix.EPOLLIN|unix.EPOLLOUT, 0)
		if b.ready != 2 || r.eager != r.source(fb) {
			t.Errorf("%d calls, eager %v", b.ready, r.eager)
		}
		for i := range eagerTries { // a few times in place of epoll, then that is asked
			b.has = i == 1
			if _, worked := r.look(true); worked != b.has || b.tried != i+1 || r.tries != i+1 {
				t.Errorf("look %d: worked %v, %d calls", i, worked, b.tried)
			}
		}
		if _, worked := r.look(true); worked || b.tried != eagerTries || r.tries != 0 {
			t.Errorf("one more: %d calls", b.tried)
		}
		if _, worked := r.look(false); worked || b.tried != eagerTries {
			t.Errorf("without spinning: %d calls", b.tried)
		}
		if err := r.Remove(fb); err != nil {
			t.Error(err)
		}
		if r.look(true); b.tried != eagerTries || r.eager != nil {
			t.Errorf("after it was removed: %d calls", b.tried)
		}
		table := len(*r.sources.Load())
		for _, fd := range []int{-1, table, table + 1, 1 << 30} {
			if r.source(fd) != nil {
				t.Errorf("descriptor %d of %d is there", fd, table)
			}
		}
	})
	r.regMu.Lock()
	defer r.regMu.Unlock()
	was := *r.sources.Load()
	for fd, want := range map[int]int{len(was) - 1: len(was), len(was): 2 * len(was), 5 * len(was): 5*len(was) + 1} {
		r.sources.Store(&was)
		got, err := r.tableFor(fd)
		if err != nil || len(got) != want || got[fa].Load() != was[fa].Load() || got[fa].Load() == nil {
			t.Errorf("a place for %d in a table of %d: one of %d, %v", fd, len(was), len(got), err)
		}
	}
}

// A panic at the end of a turn keeps nothing that stands behind it from being run, once,
// in order, and before what is deferred later.
func TestEndsBehindAPanic(t *testing.T) {
	r, g, _ := guarded(t)
	g.Exit = func(int) {} // what is deferred is nobody's
	var got []int
	on(r, func() {
		for i := range 5 {
			r.Defer(func() {
				if i == 2 {
					r.Defer(func() { got = append(got, 10) })
					panic("at the end")
				}
				got = append(got, i)
			})
		}
	})
	for range 5 {
		r.Sync()
	}
	on(r, func() {
		if fmt.Sprint(got) != "[0 1 3 4 10]" {
			t.Errorf("run were %v", got)
		}
		for _, f := range append(r.ending[:cap(r.ending)], r.ends...) {
			if f != nil {
				t.Error("a function that has run is kept")
			}
		}
	})
}

// A panic of an Eager that is tried is its own, and its descriptor is left alone then; so
// is a panic of a poller whose time is up, or that is woken.
func TestPanicOfAnEager(t *testing.T) {
	r, g, _ := guarded(t)
	bad := newOwned("try")
	fd := eventfd(t)
	if err := r.Add(fd, unix.EPOLLIN, bad); err != nil {
		t.Fatal(err)
	}
	on(r, func() {
		r.eager, r.tries = r.source(fd), 0
		r.doing.what = inEager
		if r.at() != r.eager || r.owner() != Owner(bad) {
			t.Error("it is not known whom is asked")
		}
	})
	r.DoFor(bad, func() {
		r.eager, r.tries = r.source(fd), 0
		r.look(true)
	})
	if err := <-bad.fault; !strings.Contains(err.Error(), "socket") {
		t.Error(err)
	}
	r.Sync()
	on(r, func() {
		if r.source(fd) != nil {
			t.Error("its descriptor is watched still")
		}
	})
	if n := g.Count(guard.Socket); n != 1 {
		t.Errorf("%d panics were counted", n)
	}
}

// Close waits for whoever is ringing, so that the doorbell is not another's by then.
func TestCloseWaitsForRings(t *testing.T) {
	r, err := New(Options{CPU: -1, SpinFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	r.ringing.Add(1)
	var closed atomic.Bool
	done := make(chan struct{})
	go func() {
		r.Close()
		closed.Store(true)
		close(done)
	}()
	<-r.done
	for range 10 {
		time.Sleep(100 * time.Microsecond)
		if closed.Load() {
			t.Fatal("closed in the middle of a ring")
		}
	}
	if _, err := unix.FcntlInt(uintptr(r.evfd), unix.F_GETFD, 0); err != nil {
		t.Errorf("the doorbell is closed: %v", err)
	}
	r.ringing.Add(-1)
	within(t, "the end", done)
	if err := r.Add(0, 0, &readyCount{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if r.thread.Load() != 0 {
		t.Error("a thread that has ended has a name")
	}
	r2 := open(t, -1)
	on(r2, func() {
		defer func() {
			if v := recover(); v == nil {
				t.Error("Close on its own thread")
			}
		}()
		r2.Close()
	})
}

// A reactor counts what it does, each thing for what it is, and leaves no descriptor.
func TestReactorsLeaveNothing(t *testing.T) {
	count := func() (n int) {
		for fd := range 512 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				n++
			}
		}
		return n
	}
	once := func() {
		r, err := New(Options{CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		r.Sync()
		r.Close()
	}
	once()
	before := count()
	for range 5 {
		once()
		if r, err := New(Options{CPU: 1000}); err == nil {
			r.Close()
			t.Error("CPU 1000")
		}
	}
	if n := count(); n != before {
		t.Errorf("%d descriptors, before %d", n, before)
	}
}

// TestPass: a reactor that waits again and again passes Go's scheduler as often as the runtime's monitor asks for, and not
// at each wait.
func TestPass(t *testing.T) {
	r := &Reactor{now: time.Hour}
	for _, c := range []struct {
		after  time.Duration
		passes bool
	}{{0, true}, {0, false}, {passEvery - 1, false}, {1, true}, {1, false}, {passEvery, true}} {
		r.now += c.after
		was := r.passed
		if r.pass(); (r.passed != was) != c.passes || c.passes && r.passed != r.now {
			t.Errorf("%v later: passed %v before and %v now, at %v", c.after, was, r.passed, r.now)
		}
	}
}
