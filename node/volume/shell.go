package volume

import (
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rtrs"
)

// shell is what a session as a client and the server have in common: one lock
// over the cores, the links to flush, one timer.
//
// Every call into a core is a step: lock, the call, settle, unlock, and then
// what settle handed out. A link's turn is several steps (link.go) of which only
// the last settles, so that what a turn brings leaves and completes together.
type shell struct {
	mu    sync.Mutex
	clock func() time.Duration
	last  time.Duration           // guarded by mu; the latest time a core was told
	tick  func(now time.Duration) // of the core
	next  func() time.Duration
	step  func() // a whole step in which only tick is called; what the timer runs

	dirty  []*link          // guarded by mu; posted to and not flushed
	tell   []func()         // guarded by mu; what the core is to be told at the end of the step
	home   *reactor.Reactor // runs the timer, and reads a client's first links; may be nil
	timer  Timer
	armed  time.Duration // guarded by mu; when the timer fires; rtrs.Never: it does not
	closed bool          // guarded by mu; no timer any more
	posts  []func()      // guarded by mu; run when the lock is let go
	events *events
	lives  map[*life]bool // guarded by mu; those not gone
	work   *group         // of the Host
}

func (s *shell) init(h *Host, tick func(time.Duration), next func() time.Duration, step func()) {
	s.clock, s.tick, s.next, s.step = h.now, tick, next, step
	s.armed, s.lives, s.work, s.events = rtrs.Never, map[*life]bool{}, h.work, h.ev
	s.home = h.reactor()
	s.timer = h.machine.NewTimer(s.home, step)
}

// lock begins a step at now, and returns the time to tell the core: no earlier
// than the last one, which another thread may have taken later and told sooner.
func (s *shell) lock(now time.Duration) time.Duration {
	s.mu.Lock()
	s.last = max(s.last, now)
	return s.last
}

// look begins a look at the core in which nothing is changed, so that there is
// nothing to settle. Unlike a step it may be taken with Host.mu held.
func (s *shell) look() (done func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// maxFlush is how many links a step flushes without an allocation.
const maxFlush = 32

// flushes are the links to flush after a step.
type flushes struct {
	few  [maxFlush]*link
	n    int
	many []*link
	do   []func()
}

// tellCore tells the core what could not be told within its call: it is the
// first thing at the end of a step, because requests may complete by it. mu is held.
func (s *shell) tellCore() {
	for len(s.tell) > 0 {
		tell := s.tell
		s.tell = nil
		for _, f := range tell {
			f()
		}
	}
}

// settle ends a step, with mu held and after tellCore: it sets the timer, and
// takes what is to be done when the lock is let go.
func (s *shell) settle(now time.Duration, f *flushes) {
	if at := s.next(); at < s.armed && !s.closed {
		s.arm(now, at)
	}
	if n := len(s.dirty); n > 0 {
		if n <= maxFlush {
			f.n = copy(f.few[:], s.dirty)
		} else {
			f.many = append(f.many, s.dirty...)
		}
		for i, k := range s.dirty {
			k.dirty = false
			s.dirty[i] = nil
		}
		s.dirty = s.dirty[:0]
	}
	f.do, s.posts = s.posts, nil
}

// run does what settle handed out, without the lock.
func (f *flushes) run() {
	for _, k := range f.few[:f.n] {
		k.l.Flush()
	}
	for _, k := range f.many {
		k.l.Flush()
	}
	for _, do := range f.do {
		do()
	}
}

// arm is called with mu held.
func (s *shell) arm(now, at time.Duration) {
	s.armed = at
	s.timer.Reset(max(at-now, 0))
}

// due begins the timer's step, with mu held.
func (s *shell) due(now time.Duration) {
	s.armed = rtrs.Never
	if !s.closed {
		s.tick(now)
	}
}

// event notes an event now, and logs it when the lock, which is held, is let go.
func (s *shell) event(ev Event) {
	ev = s.events.record(ev)
	s.posts = append(s.posts, func() { s.events.write(&ev) })
}

// end stops the timer; mu is held.
func (s *shell) end() {
	s.closed = true
	s.timer.Stop()
}
