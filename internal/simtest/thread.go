package simtest

import (
	"time"

	"github.com/rdsd/rdsd/node/datagram"
)

// thread is a reactor of a simulated node (datagram.Thread): one event is one turn.
type thread struct {
	n   *node
	on  bool // a turn is under way
	end func() (more bool)
}

func (t *thread) OnThread() bool     { return t.on }
func (t *thread) Now() time.Duration { return t.n.w.Now() }

// Do wakes the thread, which takes a moment when it sleeps.
func (t *thread) Do(f func()) {
	w, d := t.n.w, time.Duration(0)
	if w.chance(8) {
		d = w.upTo(50 * time.Microsecond)
	}
	w.After(d, t.n.guard(func() { t.n.turn(f) }))
}

func (t *thread) AtEnd(f func() (more bool)) { t.end = f }

func (t *thread) NewTimer(f func()) datagram.Timer { return &timer{t: t, f: f} }

// turn runs f on the thread, and what is left for the end of the turn. What that leaves is
// for the next one.
func (n *node) turn(f func()) {
	t := n.thread
	t.on = true
	n.depth++
	f()
	if t.end() {
		t.Do(func() {})
	}
	n.depth--
	t.on = false
	n.check()
}

// timer is a thread's.
type timer struct {
	t   *thread
	f   func()
	set int // how often it was set or stopped
}

func (t *timer) Reset(d time.Duration) {
	t.set++
	set := t.set
	n := t.t.n
	n.w.After(d, n.guard(func() {
		if t.set == set {
			n.turn(t.f)
		}
	}))
}

func (t *timer) Stop() bool {
	t.set++
	return true
}
