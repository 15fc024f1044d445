package reactor

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReady: an event comes as long as its cause lasts, with what Modify asked for.
func TestReady(t *testing.T) {
	t.Run("spinning", func(t *testing.T) { testReady(t, open(t, 0)) })
	t.Run("resting", func(t *testing.T) { testReady(t, open(t, resting)) })
}

func testReady(t *testing.T, r *Reactor) {
	fd := eventfd(t)
	got := make(chan struct{}, 1)
	var times atomic.Int32
	if err := r.Add(fd, unix.EPOLLIN, readyFunc(func(ev uint32) {
		if !r.OnThread() || ev != unix.EPOLLIN {
			t.Errorf("events %#x, on the thread %v", ev, r.OnThread())
		}
		if times.Add(1) == 3 {
			drainFD(fd)
			got <- struct{}{}
		}
	})); err != nil {
		t.Fatal(err)
	}
	ringFD(fd)
	within(t, "the third call", got)
	if err := r.Modify(fd, 0); err != nil {
		t.Fatal(err)
	}
	times.Store(0)
	ringFD(fd)
	r.Sync()
	r.Sync()
	if n := times.Load(); n != 0 {
		t.Errorf("%d calls while nothing is asked for", n)
	}
	if err := r.Modify(fd, unix.EPOLLIN); err != nil {
		t.Fatal(err)
	}
	within(t, "the event that waited", got)
}

// eagerFD counts what its two ways of reading an eventfd found.
type eagerFD struct {
	fd           int
	ready, tried atomic.Int32 // that found something
	tries        atomic.Int32
}

func (e *eagerFD) Ready(uint32) { e.ready.Add(e.take()) }

func (e *eagerFD) Try() bool {
	e.tries.Add(1)
	n := e.take()
	e.tried.Add(n)
	return n > 0
}

func (e *eagerFD) take() int32 {
	var b [8]byte
	if n, _ := unix.Read(e.fd, b[:]); n == 8 {
		return 1
	}
	return 0
}

// TestEager: the one that was ready last is asked between looks at epoll, nothing
// of it or of others is missed, and it is left alone once it was removed.
func TestEager(t *testing.T) {
	r := open(t, 10*time.Second)
	e, other := &eagerFD{fd: eventfd(t)}, eventfd(t)
	var others atomic.Int32
	if err := r.Add(e.fd, unix.EPOLLIN, e); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(other, unix.EPOLLIN, readyFunc(func(uint32) { drainFD(other); others.Add(1) })); err != nil {
		t.Fatal(err)
	}
	// Try is asked where the reactor spins. It sleeps where somebody else computes, a
	// thousand times in a row and more, and spins again then.
	last := time.Now().Add(30 * time.Second)
	for i := int32(0); i < 1000 || e.tried.Load() == 0 && time.Now().Before(last); i++ {
		ringFD(e.fd)
		ringFD(other)
		for limit := time.Now().Add(10 * time.Second); e.ready.Load()+e.tried.Load() != i+1 || others.Load() != i+1; {
			if time.Now().After(limit) {
				t.Fatalf("%d rings, %d seen by Ready, %d by Try, %d of the other's", i+1, e.ready.Load(), e.tried.Load(), others.Load())
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	if e.ready.Load() == 0 || e.tried.Load() == 0 {
		t.Errorf("%d seen by Ready, %d by Try", e.ready.Load(), e.tried.Load())
	}
	if err := r.Remove(e.fd); err != nil {
		t.Fatal(err)
	}
	r.Sync()
	n := e.tries.Load()
	ringFD(e.fd)
	time.Sleep(time.Millisecond)
	r.Sync()
	if e.tries.Load() != n {
		t.Error("asked after Remove")
	}
}

func TestAddMistakes(t *testing.T) {
	r := open(t, 0)
	fd := eventfd(t)
	h := readyFunc(func(uint32) {})
	if err := r.Add(-1, 0, h); err == nil {
		t.Error("descriptor -1 is taken")
	}
	if err := r.Add(1<<20, 0, h); err == nil {
		t.Error("a descriptor that is not open is taken")
	}
	if err := r.Modify(fd, 0); err == nil {
		t.Error("Modify of a descriptor that is not there")
	}
	for range 2 {
		if err := r.Add(fd, unix.EPOLLIN, h); err != nil {
			t.Fatal(err)
		}
		if err := r.Add(fd, unix.EPOLLIN, h); err == nil {
			t.Error("a descriptor is taken twice")
		}
		if err := r.Remove(fd); err != nil {
			t.Error(err)
		}
	}
}

// TestRemoveOnThread: of two descriptors ready in one turn the handler of the
// first removes the other, closes it and gives its number away. Neither the old
// handler nor the new one hears of the old event.
func TestRemoveOnThread(t *testing.T) {
	r := open(t, 0)
	for range 50 {
		fds := [2]int{eventfd(t), eventfd(t)}
		var calls, stale int
		var other int
		done := make(chan struct{})
		handler := func(i int) Handler {
			return readyFunc(func(uint32) {
				calls++
				if calls > 1 {
					return
				}
				r.Remove(fds[i])
				r.Remove(fds[1-i])
				// The same number, another descriptor, not ready.
				n, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
				if err != nil {
					t.Error(err)
				}
				unix.Dup3(n, fds[1-i], unix.O_CLOEXEC)
				unix.Close(n)
				other = fds[1-i]
				r.Add(other, unix.EPOLLIN, readyFunc(func(uint32) { stale++ }))
				r.After(0, func() { close(done) })
			})
		}
		on(r, func() {
			ringFD(fds[0])
			ringFD(fds[1])
			r.Add(fds[0], unix.EPOLLIN, handler(0))
			r.Add(fds[1], unix.EPOLLIN, handler(1))
		})
		within(t, "the first call", done)
		on(r, func() { r.Remove(other) })
		if calls != 1 || stale != 0 {
			t.Fatalf("%d calls of the old handlers, %d of the new one", calls, stale)
		}
	}
}

// TestRemoveFromOutside: after Remove and Sync the handler's memory may go.
func TestRemoveFromOutside(t *testing.T) {
	r := open(t, 0)
	for range 200 {
		fd := eventfd(t)
		gone := false // not atomic: the race detector watches it
		ringFD(fd)
		if err := r.Add(fd, unix.EPOLLIN, readyFunc(func(uint32) {
			if gone {
				t.Error("called after Remove and Sync")
			}
		})); err != nil {
			t.Fatal(err)
		}
		r.Remove(fd)
		r.Sync()
		gone = true
	}
}

// TestAddAndRemoveRaced: registering goes on from all sides while events come.
func TestAddAndRemoveRaced(t *testing.T) {
	r := open(t, resting)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
				if err != nil {
					t.Error(err)
					return
				}
				got := make(chan struct{}, 1)
				if err := r.Add(fd, unix.EPOLLIN, readyFunc(func(uint32) {
					drainFD(fd)
					got <- struct{}{}
				})); err != nil {
					t.Error(err)
				}
				ringFD(fd)
				within(t, "an event", got)
				r.Remove(fd)
				r.Sync()
				unix.Close(fd)
			}
		})
	}
	wg.Wait()
}

type busyPoller struct{ polls int }

func (p *busyPoller) Poll(time.Duration) bool { p.polls++; return true }
func (p *busyPoller) Sleep() bool             { return false }
func (p *busyPoller) Wake()                   {}

// TestNobodyStarves: beside descriptors and pollers that are always ready,
// others, timers and functions have their turn; and those take turns evenly.
func TestNobodyStarves(t *testing.T) {
	r := open(t, 0)
	const n = 200 // more than one turn takes
	var fds [n]int
	var calls [n]int
	p := &busyPoller{}
	for i := range fds {
		fds[i] = eventfd(t)
		ringFD(fds[i])
		if err := r.Add(fds[i], unix.EPOLLIN, readyFunc(func(uint32) { calls[i]++ })); err != nil {
			t.Fatal(err)
		}
	}
	on(r, func() { clear(calls[:]) }) // the first were alone for a while
	r.Hot(p)
	fired := make(chan struct{})
	r.After(time.Millisecond, func() { close(fired) })
	within(t, "a timer", fired)
	late := eventfd(t)
	got := make(chan struct{}, 1)
	r.Add(late, unix.EPOLLIN, readyFunc(func(uint32) { drainFD(late); got <- struct{}{} }))
	ringFD(late)
	within(t, "one event among many", got)
	time.Sleep(5 * time.Millisecond)
	on(r, func() {
		r.Forget(p)
		for i := range fds {
			r.Remove(fds[i])
		}
		least, most := calls[0], calls[0]
		for _, c := range calls {
			least, most = min(least, c), max(most, c)
		}
		if least == 0 || most > 2*least+2 || p.polls == 0 {
			t.Errorf("descriptors that are always ready were served %d to %d times, the poller %d times", least, most, p.polls)
		}
	})
}
