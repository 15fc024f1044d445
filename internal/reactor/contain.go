package reactor

import "github.com/rdsd/rdsd/internal/guard"

// Owner is an object that a reactor works for: a socket, a link, a connection. A Handler or
// a Poller that is an Owner answers for itself; functions and timers are given theirs with
// DoFor and Timer.For. A panic in work that has no Owner ends the process.
type Owner interface {
	// Work returns the kind of work done for it, for the counter of panics.
	Work() guard.What
	// Fault is called on the reactor's thread when the work for it has panicked: it ends
	// itself with that reason. Its descriptor is not watched any more, and it is not
	// polled. Fault may find its own locks held and its state half changed; a panic in
	// Fault ends the process.
	Fault(err error)
}

// doing says what the thread calls, so that the owner of a panic can be told.
type doing struct {
	what uint8
	at   int // of events
	of   int // so many of them
}

const (
	inNothing uint8 = iota
	inQueue
	inTimer
	inPoller
	inSource
	inEager
	inEnd
)

// contain is deferred by the loop: it ends the owner whose work has panicked, and keeps the
// work behind it for the turns to come.
func (r *Reactor) contain() {
	if r.rest.opt.Guard == nil {
		return // as if there were nothing here
	}
	v := recover()
	if v == nil {
		return
	}
	o := r.owner()
	what := guard.Step
	if o != nil {
		what = o.Work()
	}
	err := r.rest.opt.Guard.Caught(what, v)
	r.asleep.Store(false)
	if p, ok := o.(Poller); ok {
		r.hot.undoze(p)
		r.hot.leave(p)
	}
	if s := r.at(); s != nil {
		r.Remove(s.fd)
	}
	switch r.doing.what {
	case inQueue:
		r.queue.again()
	case inSource: // epoll tells an edge once
		r.late = copy(r.events[:], r.events[r.doing.at+1:r.doing.of])
	case inEnd:
		r.endsAgain()
	}
	if o != nil { // else the process has ended, but in tests
		r.queue.put(task{f: func() { o.Fault(err) }})
	}
}

// at is the source that is called, nil when it is none.
func (r *Reactor) at() *source {
	switch r.doing.what {
	case inSource:
		return r.source(int(r.events[r.doing.at].Fd))
	case inEager:
		return r.eager
	}
	return nil
}

// owner returns the owner of the work under way.
func (r *Reactor) owner() (o Owner) {
	switch r.doing.what {
	case inQueue:
		if q := &r.queue; q.at < len(q.running) {
			o = q.running[q.at].owner
		}
	case inTimer:
		if t := r.timers.at; t != nil {
			o = t.o
		}
	case inPoller:
		o, _ = r.hot.at.(Owner)
	case inSource, inEager:
		if s := r.at(); s != nil {
			o, _ = s.h.(Owner)
		}
	}
	return o
}

// endsAgain puts back the functions that runEnds has not come to.
func (r *Reactor) endsAgain() {
	var rest []func()
	for _, f := range r.ending {
		if f != nil {
			rest = append(rest, f)
		}
	}
	clear(r.ending)
	r.ending = r.ending[:0]
	r.ends = append(rest, r.ends...)
}
