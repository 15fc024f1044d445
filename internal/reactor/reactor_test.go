package reactor

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// resting, instead of a time to spin: a reactor that always rests when it is idle.
const resting = -2

func open(t testing.TB, spin time.Duration) *Reactor {
	t.Helper()
	r, err := New(Options{SpinFor: spin, CPU: -1, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if spin == resting {
		on(r, func() { r.rest.always = true })
	}
	return r
}

// on runs f on the reactor's thread and waits for its end.
func on(r *Reactor, f func()) {
	done := make(chan struct{})
	r.Do(func() { f(); close(done) })
	<-done
}

func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal(what, "did not happen in 10 s")
	}
}

// eventfd makes a doorbell.
func eventfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func ringFD(fd int) { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func drainFD(fd int) { unix.Read(fd, make([]byte, 8)) }

type readyFunc func(events uint32)

func (f readyFunc) Ready(events uint32) { f(events) }

// TestDoLosesNothing: whatever the reactor is doing, about to sleep above all,
// what it is given is run, in order.
func TestDoLosesNothing(t *testing.T) {
	for _, spin := range []time.Duration{-1, resting, 2 * time.Microsecond, 0} {
		r := open(t, spin)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				var ran atomic.Int64
				passed := make(chan struct{}, 1)
				for i := range int64(500) {
					r.Do(func() {
						if !ran.CompareAndSwap(i, i+1) {
							t.Errorf("number %d ran after %d others", i, ran.Load())
						}
						if i%7 == 0 {
							passed <- struct{}{}
						}
					})
					if i%7 == 0 {
						within(t, "a function given to Do", passed)
					}
				}
				r.Sync()
				if ran.Load() != 500 {
					t.Errorf("%d of 500 ran before Sync returned", ran.Load())
				}
			})
		}
		wg.Wait()
		turns, sleeps, wakes, spins := r.Stats()
		// Not every ring finds it asleep: one may come while it is about to, and finds work itself.
		if turns == 0 || sleeps > turns || wakes > turns || spin < 0 && spins > 0 {
			t.Errorf("spin %v: %d turns, %d sleeps, %d wakes, %d spins", spin, turns, sleeps, wakes, spins)
		}
	}
}

func TestOnThread(t *testing.T) {
	r, other := open(t, 0), open(t, 0)
	if r.OnThread() {
		t.Error("the test runs on the reactor's thread")
	}
	var here, there, child bool
	on(r, func() {
		here, there = r.OnThread(), other.OnThread()
		c := make(chan bool)
		go func() { c <- r.OnThread() }()
		child = <-c
	})
	if !here || there || child {
		t.Errorf("on its thread %v, another's %v, in a goroutine it started %v", here, there, child)
	}
}

// TestDeferRunsOnceAtTheEnd of a turn, behind everything that was found in it.
func TestDeferRunsOnceAtTheEnd(t *testing.T) {
	r := open(t, 0)
	var log []string
	done := make(chan struct{})
	on(r, func() {
		for _, s := range []string{"a", "b"} {
			r.Do(func() {
				log = append(log, s)
				r.Defer(func() {
					log = append(log, s+" end")
					if s == "b" {
						r.Defer(func() { log = append(log, "next turn"); close(done) })
						r.Do(func() { log = append(log, "c") })
					}
				})
			})
		}
	})
	within(t, "the end", done)
	if got := strings.Join(log, ", "); got != "a, b, a end, b end, c, next turn" {
		t.Errorf("ran %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("Defer from another thread goes through")
		}
	}()
	r.Defer(func() {})
}

// TestAtEnd: it is called when the turn has found everything and before what was deferred, and a
// turn that leaves something is followed by another without a sleep.
func TestAtEnd(t *testing.T) {
	r := open(t, -1)
	var log []string
	done := make(chan struct{})
	left := 0
	r.AtEnd(func() (more bool) {
		if left == 0 {
			return false
		}
		if left--; left == 0 {
			close(done)
		}
		log = append(log, "end")
		return left > 0
	})
	r.Do(func() {
		left = 4
		r.Defer(func() { log = append(log, "deferred") })
		r.Do(func() { log = append(log, "next turn") })
		log = append(log, "work")
	})
	within(t, "the fourth end", done)
	on(r, func() {
		if got := strings.Join(log, ", "); !strings.HasPrefix(got, "work, end, deferred, ") || strings.Count(got, "end") != 4 || !strings.Contains(got, "next turn, end") {
			t.Errorf("ran %s", got)
		}
	})
}

func TestClose(t *testing.T) {
	r, err := New(Options{CPU: -1})
	if err != nil {
		t.Fatal(err)
	}
	fd := eventfd(t)
	if err := r.Add(fd, unix.EPOLLIN, readyFunc(func(uint32) {})); err != nil {
		t.Fatal(err)
	}
	ran := false
	r.Do(func() { ran = true })
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(r.Close)
		wg.Go(func() { r.Do(func() {}); r.Sync() })
	}
	wg.Wait()
	r.Close()
	if !ran {
		t.Error("what Do was given before Close did not run")
	}
	r.Sync()
	r.Do(func() { t.Error("a closed reactor runs something") })
	r.After(0, func() { t.Error("a closed reactor has timers") })
	if err := r.Add(fd, unix.EPOLLIN, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Add: %v", err)
	}
	if err := r.Modify(fd, 0); err == nil {
		t.Error("Modify works on a closed reactor")
	}
	if err := r.Remove(fd); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if r.OnThread() {
		t.Error("OnThread of a reactor that has ended")
	}
}

func TestBadOptions(t *testing.T) {
	if _, err := New(Options{CPU: 1000}); err == nil || !strings.Contains(err.Error(), "CPU 1000") {
		t.Errorf("CPU 1000: %v", err)
	}
	if _, err := New(Options{CPU: -1, Name: "a name of 17 bytes"}); err == nil {
		t.Error("a long name is taken")
	}
}

func TestCPU(t *testing.T) {
	var have unix.CPUSet
	if err := unix.SchedGetaffinity(0, &have); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !have.IsSet(cpu) {
		cpu++
	}
	r, err := New(Options{CPU: cpu, Name: "rds/7"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var set unix.CPUSet
	var name []byte
	on(r, func() {
		unix.SchedGetaffinity(0, &set)
		name, _ = os.ReadFile("/proc/thread-self/comm")
	})
	if set.Count() != 1 || !set.IsSet(cpu) || strings.TrimSpace(string(name)) != "rds/7" {
		t.Errorf("%d processors, thread %q", set.Count(), name)
	}
}

// TestPanicEndsTheProcess: a mistake in a handler is seen, not swallowed.
func TestPanicEndsTheProcess(t *testing.T) {
	if os.Getenv("REACTOR_PANIC") != "" {
		r := open(t, 0)
		r.Do(func() { panic("a mistake of the handler's") })
		r.Sync()
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "TestPanicEndsTheProcess$")
	c.Env = append(os.Environ(), "REACTOR_PANIC=1")
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "a mistake of the handler's") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSyncOnItsOwnThread holds that Sync returns at once where it could only wait for itself.
func TestSyncOnItsOwnThread(t *testing.T) {
	r := open(t, -1)
	done := make(chan struct{})
	r.Do(func() { r.Sync(); close(done) })
	within(t, "Sync on the reactor's own thread", done)
}

// TestTurnThatOnlyEndsHasWorked holds that a turn in which nothing was done but what an earlier one deferred counts as work: an idle
// reactor looks once more before it sleeps, because whoever that was done for may answer.
func TestTurnThatOnlyEndsHasWorked(t *testing.T) {
	r := open(t, -1)
	on(r, func() {
		r.turn(true) // takes the event of the ring that woke the thread, if it slept
		if r.turn(true) {
			t.Error("a turn in which there was nothing has worked")
		}
		for _, spinning := range []bool{true, false} {
			ended := 0
			r.Defer(func() { ended++ })
			if worked := r.turn(spinning); !worked || ended != 1 {
				t.Errorf("spinning %v: worked %v, what was deferred ran %d times", spinning, worked, ended)
			}
		}
	})
}

// restless has work whenever it is to sleep.
type restless struct{}

func (restless) Poll(time.Duration) bool { return false }
func (restless) Sleep() bool             { return false }
func (restless) Wake()                   {}

// TestSleepThatDoesNot holds that a reactor which finds work on its way to sleep counts as awake again: nobody rings for it, which is a
// system call.
func TestSleepThatDoesNot(t *testing.T) {
	r := open(t, -1)
	on(r, func() {
		is := func(what string) {
			t.Helper()
			_, sleeps, _, _ := r.Stats()
			slept := r.sleep()
			_, now, wakes, _ := r.Stats()
			if r.ring(); slept || r.asleep.Load() || now != sleeps {
				t.Errorf("%s: slept %v, counts as asleep %v", what, slept, r.asleep.Load())
			}
			if _, _, rung, _ := r.Stats(); rung != wakes {
				t.Errorf("%s: somebody rang", what)
			}
		}
		r.queue.posted.Store(true)
		is("something was posted")
		r.queue.posted.Store(false)
		r.Hot(restless{})
		is("a poller has work")
		r.Forget(restless{})
	})
}

// TestDescriptorZero: a descriptor whose number is 0 is one like others.
func TestDescriptorZero(t *testing.T) {
	kept, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Skip("elsewhere: there is no standard input to stand in for")
	}
	defer unix.Close(kept)
	bell := eventfd(t)
	if err := unix.Dup3(bell, 0, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Dup2(kept, 0)
	r := open(t, -1)
	ready := make(chan struct{}, 1)
	added := make(chan error, 1)
	r.Do(func() {
		added <- r.Add(0, unix.EPOLLIN|unix.EPOLLET, readyFunc(func(uint32) {
			select {
			case ready <- struct{}{}:
			default:
			}
		}))
	})
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	ringFD(bell)
	within(t, "its handler is called", ready)
	r.Do(func() { r.Remove(0) })
	r.Sync()
}
