package reactor

import (
	"sync"
	"sync/atomic"
	"time"
)

const never = time.Duration(1<<63 - 1)

// Timer calls a function on the reactor's thread. It may be used again with
// Reset, from its own function too.
type Timer struct {
	r  *Reactor
	f  func()
	o  Owner         // nil: none; set before it runs
	at time.Duration // guarded by timers.mu
	i  int           // place in the heap, -1: not in it; guarded by timers.mu
}

// timers is a binary heap by time.
type timers struct {
	mu   sync.Mutex
	heap []*Timer     // guarded by mu
	next atomic.Int64 // when the first is due; never when there is none
	at   *Timer       // the timer being run; owned by the thread
}

// After runs f on the reactor's thread when d has passed.
func (r *Reactor) After(d time.Duration, f func()) *Timer {
	t := &Timer{r: r, f: f, i: -1}
	t.Reset(d)
	return t
}

// NewTimer makes a timer that is not running; Reset starts it.
func (r *Reactor) NewTimer(f func()) *Timer { return &Timer{r: r, f: f, i: -1} }

// For says whose timer it is, before it is started: a panic of its function ends that
// one.
func (t *Timer) For(o Owner) *Timer {
	t.o = o
	return t
}

// Reset lets the timer fire when d has passed from now, and only then.
func (t *Timer) Reset(d time.Duration) {
	ts := &t.r.timers
	at := Clock()
	if d = max(d, 0); d < never-at {
		at += d
	} else {
		at = never - 1
	}
	ts.mu.Lock()
	ts.remove(t)
	t.at, t.i = at, len(ts.heap)
	ts.heap = append(ts.heap, t)
	ts.up(t.i)
	earlier := ts.note()
	ts.mu.Unlock()
	if earlier && !t.r.OnThread() {
		t.r.ring() // it may sleep longer than that
	}
}

// Stop keeps the timer from firing and reports whether it would have. On the
// reactor's thread its function is not called any more; from another thread it
// may be under way, which Sync waits for.
func (t *Timer) Stop() bool {
	ts := &t.r.timers
	ts.mu.Lock()
	defer ts.mu.Unlock()
	was := ts.remove(t)
	ts.note()
	return was
}

// run calls the timers that are due at now, and reports whether there were any.
func (ts *timers) run(now time.Duration) (worked bool) {
	for {
		ts.mu.Lock()
		if len(ts.heap) == 0 || ts.heap[0].at > now {
			ts.mu.Unlock()
			return worked
		}
		t := ts.heap[0]
		ts.remove(t)
		ts.note()
		ts.mu.Unlock()
		ts.at = t
		t.f()
		worked = true
	}
}

// note publishes the time of the first and tells whether it is now earlier.
func (ts *timers) note() (earlier bool) {
	first := never
	if len(ts.heap) > 0 {
		first = ts.heap[0].at
	}
	was := ts.next.Swap(int64(first))
	return int64(first) < was
}

// sleepUntil returns the time of the first. It is called after Reactor.asleep is set: a
// thread that adds an earlier one from now on rings.
func (ts *timers) sleepUntil() time.Duration {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return time.Duration(ts.next.Load())
}

func (ts *timers) remove(t *Timer) bool {
	i := t.i
	if i < 0 {
		return false
	}
	last := len(ts.heap) - 1
	ts.swap(i, last)
	ts.heap[last] = nil
	ts.heap = ts.heap[:last]
	t.i = -1
	if i < last {
		ts.down(i)
		ts.up(i)
	}
	return true
}

func (ts *timers) swap(i, j int) {
	h := ts.heap
	h[i], h[j] = h[j], h[i]
	h[i].i, h[j].i = i, j
}

func (ts *timers) up(i int) {
	for i > 0 && ts.heap[i].at < ts.heap[(i-1)/2].at {
		ts.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (ts *timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(ts.heap) {
			return
		}
		if c+1 < len(ts.heap) && ts.heap[c+1].at < ts.heap[c].at {
			c++
		}
		if ts.heap[i].at <= ts.heap[c].at {
			return
		}
		ts.swap(i, c)
		i = c
	}
}
