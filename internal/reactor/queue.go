package reactor

import (
	"sync"
	"sync/atomic"
)

// queue holds functions other threads want run on the reactor's thread.
type queue struct {
	posted  atomic.Bool // there may be some
	mu      sync.Mutex
	funcs   []func() // guarded by mu
	closed  bool     // guarded by mu
	running []func() // owned by the thread
}

// put reports whether the functions of the reactor will still be run.
func (q *queue) put(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.funcs = append(q.funcs, f)
	q.posted.Store(true)
	return true
}

// run runs what is there now; what that adds waits for the next turn.
func (q *queue) run() bool {
	q.mu.Lock()
	q.funcs, q.running = q.running[:0], q.funcs
	q.posted.Store(false)
	q.mu.Unlock()
	for i, f := range q.running {
		q.running[i] = nil
		f()
	}
	return len(q.running) > 0
}

// close runs what is left and takes no more.
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
func (r *Reactor) Do(f func()) {
	if r.queue.put(f) {
		r.ring()
	}
}

// Sync waits until the reactor's thread is between two pieces of work: what was
// removed, forgotten or stopped before it was called is not being called any
// more. On the reactor's own thread, and when that has ended, it returns at once.
func (r *Reactor) Sync() {
	if r.OnThread() {
		return
	}
	passed := make(chan struct{})
	if !r.queue.put(func() { close(passed) }) {
		<-r.done
		return
	}
	r.ring()
	<-passed
}
