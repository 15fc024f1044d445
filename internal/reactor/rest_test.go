package reactor

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRest: a reactor whose work comes far apart gives its thread back, with
// nothing of its own left on it, and has one again when work comes faster.
func TestRest(t *testing.T) {
	if !selfIsGoroutine {
		t.Skip("reactors keep their threads on " + runtime.GOARCH)
	}
	r := open(t, -1)
	state := func() (locked bool, name string) {
		on(r, func() {
			locked = r.rest.locked
			b, _ := os.ReadFile("/proc/thread-self/comm")
			name = strings.TrimSpace(string(b))
			if !r.OnThread() {
				t.Error("not on its own thread")
			}
		})
		return locked, name
	}
	if locked, name := state(); !locked || name != "test" {
		t.Fatalf("at first: locked %v, thread %q", locked, name)
	}
	limit := time.Now().Add(10 * time.Second)
	for locked := true; locked; {
		if time.Now().After(limit) {
			t.Fatal("it does not rest")
		}
		time.Sleep(longGap + time.Millisecond)
		var name string
		if locked, name = state(); !locked && name == "test" {
			t.Error("the thread it gave back keeps its name")
		}
	}
	for locked := false; !locked; {
		if time.Now().After(limit) {
			t.Fatal("it rests although work comes fast")
		}
		r.Sync()
		r.Sync()
		var name string
		if locked, name = state(); locked && name != "test" {
			t.Errorf("locked again, thread %q", name)
		}
	}
	// On a busy machine it may rest between any two looks. It has not where it slept at
	// most once between them, at a time when the gaps before were short.
	type look struct {
		tid, longs int
		locked     bool
		sleeps     uint64
	}
	for kept := false; !kept; {
		if time.Now().After(limit) {
			t.Fatal("it rests although work comes fast")
		}
		var looks [2]look
		for i := range looks {
			on(r, func() {
				_, sleeps, _, _ := r.Stats()
				looks[i] = look{unix.Gettid(), r.rest.longs, r.rest.locked, sleeps}
			})
		}
		kept = looks[0].locked && looks[0].longs < longGaps && looks[1].sleeps <= looks[0].sleeps+1
		if kept && looks[0].tid != looks[1].tid {
			t.Error("locked, and on two threads")
		}
	}
}

// bound opens a reactor that keeps its thread, on a processor that this process may use.
func bound(t *testing.T, spin time.Duration) *Reactor {
	t.Helper()
	var have unix.CPUSet
	if err := unix.SchedGetaffinity(0, &have); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !have.IsSet(cpu) {
		cpu++
	}
	r, err := New(Options{SpinFor: spin, CPU: cpu})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// TestRestBound: a reactor bound to a processor stays on its thread.
func TestRestBound(t *testing.T) {
	r := bound(t, -1)
	tid := 0
	on(r, func() { r.rest.always = true; tid = unix.Gettid() })
	for range 50 {
		time.Sleep(100 * time.Microsecond)
		on(r, func() {
			if unix.Gettid() != tid || !r.rest.locked {
				t.Error("it left its thread")
			}
		})
	}
}

// TestRestRefused: where the kernel does not set the alarm, or does not watch, the
// thread itself waits: timers are in time, and who has something wakes it.
func TestRestRefused(t *testing.T) {
	for what, of := range map[string]func(*rest) *int{
		"timerfd_settime": func(s *rest) *int { return &s.alarm },
		"epoll_ctl":       func(s *rest) *int { return &s.set },
	} {
		t.Run(what, func(t *testing.T) {
			r := open(t, -1)
			var whole int
			on(r, func() {
				r.rest.always = true
				whole, *of(&r.rest) = *of(&r.rest), -1
			})
			_, before, _, _ := r.Stats()
			for range 20 {
				fired := make(chan time.Duration, 1)
				began := Clock()
				r.After(5*time.Millisecond, func() { fired <- Clock() - began })
				select {
				case d := <-fired:
					if d < 5*time.Millisecond {
						t.Errorf("a timer after %v", d)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("a timer does not fire")
				}
				on(r, func() {})
			}
			if turns, sleeps, _, _ := r.Stats(); sleeps == before || turns > 100*sleeps {
				t.Errorf("%d turns, %d sleeps: it does not sleep", turns, sleeps-before)
			}
			on(r, func() {
				if !r.rest.failed && what == "timerfd_settime" {
					t.Error("nothing was refused")
				}
				*of(&r.rest) = whole
			})
			for range 5 {
				time.Sleep(2 * longGap)
				on(r, func() {})
			}
			on(r, func() {
				if r.rest.failed {
					t.Error("it does not rest again")
				}
			})
		})
	}
}

// TestRestRefusedKeeps: what a look found when the kernel refused to watch is not
// forgotten over the wait that follows; an edge is reported once.
func TestRestRefusedKeeps(t *testing.T) {
	r := open(t, -1)
	on(r, func() {
		r.asleep.Store(true)
		r.ring()
		r.asleep.Store(false)
		whole := r.rest.set
		r.rest.set = -1
		defer func() { r.rest.set = whole }()
		began := Clock()
		r.rest.wait(r, began+10*time.Second)
		if took := Clock() - began; r.late == 0 || took > 5*time.Second {
			t.Errorf("%d events after %v", r.late, took)
		}
	})
}

// TestRestFindsOne: a single event ends the rest. The look has taken it, and an edge is not
// reported again. Without any it goes on.
func TestRestFindsOne(t *testing.T) {
	r := open(t, -1)
	on(r, func() {
		defer r.rest.watch(r, 0)
		if !r.rest.arm(never) {
			t.Fatal("the alarm cannot be set")
		}
		for n := 1; n > 0; { // who gave the reactor this function may have rung
			n, _ = r.look(false)
		}
		if r.rest.ready(0) || r.late != 0 {
			t.Errorf("without an event: %d events", r.late)
		}
		r.asleep.Store(true)
		r.ring()
		if !r.rest.ready(0) || r.late != 1 {
			t.Errorf("it rests on with %d events, want 1", r.late)
		}
	})
}

// TestRestThatFails: of descriptors that cannot be had, those that were made are closed.
func TestRestThatFails(t *testing.T) {
	count := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	before := count()
	for range 10 {
		var s rest
		if err := s.open(&Reactor{epfd: -1}); err == nil {
			t.Fatal("it was opened without an epoll set")
		}
		s.close()
	}
	if after := count(); after >= before+10 {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}
