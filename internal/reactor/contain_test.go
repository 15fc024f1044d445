package reactor

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
)

// owned panics wherever it is told to, and notes its end.
type owned struct {
	in     string
	fault  chan error
	polls  atomic.Int32
	readys atomic.Int32
}

func newOwned(in string) *owned { return &owned{in: in, fault: make(chan error, 8)} }

func (o *owned) at(where string) {
	if o.in == where {
		panic("in " + where)
	}
}

func (o *owned) Work() guard.What        { return guard.Socket }
func (o *owned) Fault(err error)         { o.fault <- err }
func (o *owned) Ready(uint32)            { o.readys.Add(1); o.at("ready") }
func (o *owned) Poll(time.Duration) bool { o.polls.Add(1); o.at("poll"); return false }
func (o *owned) Sleep() bool             { o.at("sleep"); return true }
func (o *owned) Wake()                   { o.at("wake") }
func (o *owned) Try() bool               { o.at("try"); return false }

// safeBuffer is a log.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func guarded(t *testing.T) (*Reactor, *guard.Guard, *safeBuffer) {
	t.Helper()
	log := &safeBuffer{}
	g := &guard.Guard{Log: slog.New(slog.NewTextHandler(log, nil))}
	r, err := New(Options{CPU: -1, Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, g, log
}

// TestAPanicEndsItsOwner: whatever the reactor was doing for it, the one is told, once,
// and what the others wait for comes.
func TestAPanicEndsItsOwner(t *testing.T) {
	for _, where := range []string{"ready", "poll", "sleep", "wake", "do", "timer"} {
		t.Run(where, func(t *testing.T) {
			r, g, log := guarded(t)
			bad, good := newOwned(where), newOwned("")
			fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			other, err := unix.Eventfd(1, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) // always ready
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(other)
			if err := r.Add(other, unix.EPOLLIN|unix.EPOLLET, good); err != nil {
				t.Fatal(err)
			}
			r.Hot(good)
			switch where {
			case "ready":
				if err := r.Add(fd, unix.EPOLLIN, bad); err != nil {
					t.Fatal(err)
				}
				unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			case "poll", "sleep", "wake":
				r.DoFor(bad, func() { r.Hot(bad) })
			case "do":
				r.DoFor(bad, func() { bad.at("do") })
			case "timer":
				r.NewTimer(func() { bad.at("timer") }).For(bad).Reset(time.Millisecond)
			}
			behind := make(chan int, 10)
			for i := range 10 {
				r.Do(func() { behind <- i })
			}
			select {
			case err := <-bad.fault:
				if !strings.Contains(err.Error(), "socket") {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the owner was not told")
			}
			for i := range 10 {
				if got := <-behind; got != i {
					t.Errorf("function %d came in the place of %d", got, i)
				}
			}
			fired := make(chan struct{})
			r.After(time.Millisecond, func() { close(fired) })
			<-fired
			polls, readys := bad.polls.Load(), bad.readys.Load()
			r.Do(func() { r.Defer(func() {}) })
			time.Sleep(5 * time.Millisecond) // the reactor sleeps meanwhile, and wakes
			r.Sync()
			if bad.polls.Load() != polls || bad.readys.Load() != readys {
				t.Error("it is still called")
			}
			if n := g.Count(guard.Socket); n != 1 {
				t.Errorf("%d panics were counted", n)
			}
			if !strings.Contains(log.String(), "in "+where) || !strings.Contains(log.String(), "contain_test.go") {
				t.Errorf("the log has no stack: %s", log)
			}
			if len(good.fault) > 0 || len(bad.fault) > 0 {
				t.Error("somebody else was told, or somebody twice")
			}
		})
	}
}

// TestEventsBehindAPanic: a handler panics, and edges that were fetched with its event are told, once.
func TestEventsBehindAPanic(t *testing.T) {
	r, _, _ := guarded(t)
	const n = 10
	var all []*owned
	var fds []int
	for i := range n {
		in := ""
		if i%4 == 0 {
			in = "ready"
		}
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		all, fds = append(all, newOwned(in)), append(fds, fd)
		if err := r.Add(fd, unix.EPOLLIN|unix.EPOLLET, all[i]); err != nil {
			t.Fatal(err)
		}
	}
	r.Do(func() { // before epoll is asked
		for _, fd := range fds {
			unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	})
	for i := 0; i < n; i += 4 {
		select {
		case <-all[i].fault:
		case <-time.After(30 * time.Second):
			t.Fatalf("owner %d was not told", i)
		}
	}
	for range 3 {
		r.Sync()
	}
	for i, o := range all {
		if got := o.readys.Load(); got != 1 {
			t.Errorf("handler %d was called %d times", i, got)
		}
	}
}

// TestFunctionsBehindAPanic: one of many functions panics, all others run, in order.
func TestFunctionsBehindAPanic(t *testing.T) {
	r, _, _ := guarded(t)
	bad := newOwned("do")
	var got []int
	started := make(chan struct{})
	r.Do(func() {
		for i := range 20 {
			r.DoFor(bad, func() {
				if i%7 == 3 {
					bad.at("do")
				}
				got = append(got, i)
			})
		}
		close(started)
	})
	<-started
	for range 3 {
		<-bad.fault
	}
	r.Sync()
	r.Sync()
	want := 0
	for i := range 20 {
		if i%7 == 3 {
			continue
		}
		if want >= len(got) || got[want] != i {
			t.Fatalf("run were %v", got)
		}
		want++
	}
}

// TestNobodysPanicEndsTheProcess: there is no one to end in its place.
func TestNobodysPanicEndsTheProcess(t *testing.T) {
	r, g, log := guarded(t)
	over := make(chan int, 1)
	g.Exit = func(code int) { over <- code }
	r.Do(func() { panic("nobody's") })
	if code := <-over; code != guard.ExitCode {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(log.String(), "nobody's") {
		t.Errorf("the log does not say so: %s", log)
	}
	r.Sync() // a process that goes on all the same, as this test does, has its reactor
}
