package reactor

import (
	"sync"
	"sync/atomic"
)

// queue holds functions other threads want run on the reactor's thread.
type queue struct {
	posted  atomic.Bool // there may be some
	mu      sync.Mutex
	funcs   []task // guarded by mu
	closed  bool   // guarded by mu
	running []task // owned by the thread
	at      int    // of running, the task being run; owned by the thread
}

// task is a function with its owner.
type task struct {
	f     func()
	owner Owner // nil: none
}

// put reports whether the functions of the reactor will still be run.
func (q *queue) put(f task) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.funcs = append(q.funcs, f)
	q.posted.Store(true)
	return true
}

// run runs the functions that are there now; those they add wait for the next turn.
func (q *queue) run() bool {
	q.mu.Lock()
	q.funcs, q.running = q.running[:0], q.funcs
	q.posted.Store(false)
	q.mu.Unlock()
	for q.at = 0; q.at < len(q.running); q.at++ {
		f := q.running[q.at].f
		f()
		q.running[q.at] = task{}
	}
	return len(q.running) > 0
}

// close runs the functions that are left and takes no more.
func (q *queue) close() {
	for {
		q.mu.Lock()
		if len(q.funcs) == 0 {
			q.closed = true
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		q.run()
	}
}

// Do runs f on the reactor's thread soon, in the order of the calls; called on
// that thread, in the next turn. It costs a system call only if the reactor
// sleeps. A reactor that has been closed runs nothing any more.
func (r *Reactor) Do(f func()) { r.DoFor(nil, f) }

// DoFor is Do for work that is one's: a panic in it ends that one.
func (r *Reactor) DoFor(o Owner, f func()) {
	if r.queue.put(task{f, o}) {
		r.ring()
	}
}

// again puts back the functions that a panic kept from being run. It is called on the
// thread.
func (q *queue) again() {
	if q.at >= len(q.running) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.funcs = append(append([]task(nil), q.running[q.at+1:]...), q.funcs...)
	clear(q.running)
	q.running = q.running[:0]
	q.posted.Store(true)
}

// Sync waits until the reactor's thread is between two pieces of work: handlers, pollers
// and timers that were removed, forgotten or stopped before the call are not being called
// any more. On the reactor's own thread, and when that has ended, it returns at once.
func (r *Reactor) Sync() {
	if r.OnThread() {
		return
	}
	passed := make(chan struct{})
	if !r.queue.put(task{f: func() { close(passed) }}) {
		<-r.done
		return
	}
	r.ring()
	<-passed
}
