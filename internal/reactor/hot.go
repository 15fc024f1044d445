package reactor

import (
	"slices"
	"time"
)

// Poller is memory to look at: a ring another process writes to. It is hot,
// polled every turn, or sleeping, and then its other side must ring a doorbell
// (a descriptor given to Add, whose handler calls Hot). Its methods are called
// on the reactor's thread. The dynamic type must be comparable: a pointer.
type Poller interface {
	// Poll does a bounded piece of work and reports whether there was any. now is when the turn
	// began, by Clock: no two turns have the same.
	Poll(now time.Duration) bool
	// Sleep declares to the other side that it must ring from now on, and then looks once
	// more. It returns false if work has arrived, and the declaration is taken back.
	Sleep() bool
	// Wake takes the declaration back. It may be called without one.
	Wake()
}

// A poller is looked at for stayHot although nothing comes, and leastLooks times at least. A hundred
// sockets that are used in turn are idle for longer than stayHot each, and when they sleep in
// between each use of one rings: a system call of its client, an event, and a call to empty the
// doorbell, some 3 µs together. That is what so many looks at idle memory cost, so nobody is looked at for
// much more than his sleep would have cost. When the reactor sleeps all sleep and wake with it, which
// counts as sleepLooks.
const (
	stayHot    = time.Millisecond
	leastLooks = 256
	sleepLooks = 8
)

type hotPoller struct {
	p      Poller // nil: it was forgotten meanwhile
	moment        // when it had work
}

type moment struct {
	last time.Duration
	look uint64 // which of hotList.looks that was
}

// hotList holds the pollers that are hot; owned by the thread.
type hotList struct {
	list  []hotPoller
	place map[Poller]int
	holes bool
	looks uint64 // calls of poll, and what counts as some
	at    Poller // the poller being called; see Reactor.doing
	// dozed went to sleep together with the reactor. If that was short they go
	// on where they were, and the other side need not ring.
	dozed []hotPoller
}

func (l *hotList) init() { l.place = map[Poller]int{} }

// Hot has p polled every turn from now on, until it has been idle for about a millisecond and
// some hundred turns, or the reactor sleeps: then p.Sleep is called, and it is polled no more until Hot is
// called again. Wake is called on a poller that becomes hot.
func (r *Reactor) Hot(p Poller) {
	if !r.OnThread() {
		r.Do(func() { r.Hot(p) })
		return
	}
	l := &r.hot
	if i, ok := l.place[p]; ok {
		l.list[i].moment = moment{r.now, l.looks}
		return
	}
	l.undoze(p)
	p.Wake()
	l.add(hotPoller{p, moment{r.now, l.looks}})
}

// Forget ends the polling of p without a word to it. On the reactor's thread it
// is not called any more; from another one Sync waits until that is so. A Hot that another
// thread has asked for and that is still to come, or asks for later, brings p back: a poller
// that is over has to have no work then, and to sleep.
func (r *Reactor) Forget(p Poller) {
	if !r.OnThread() {
		r.Do(func() { r.Forget(p) })
		return
	}
	r.hot.undoze(p)
	r.hot.leave(p)
}

// idle reports whether h has had nothing to do for as long as it may stay hot.
func (l *hotList) idle(h *hotPoller, now time.Duration) bool {
	return now-h.last > stayHot && l.looks-h.look >= leastLooks
}

func (l *hotList) add(h hotPoller) {
	l.place[h.p] = len(l.list)
	l.list = append(l.list, h)
}

func (l *hotList) leave(p Poller) {
	if i, ok := l.place[p]; ok {
		l.list[i].p = nil
		l.holes = true
		delete(l.place, p)
	}
}

func (l *hotList) undoze(p Poller) {
	for i := range l.dozed {
		if l.dozed[i].p == p {
			l.dozed[i].p = nil
		}
	}
}

// close up after an iteration.
func (l *hotList) compact() {
	if !l.holes {
		return
	}
	l.holes = false
	l.list = slices.DeleteFunc(l.list, func(h hotPoller) bool { return h.p == nil })
	for i := range l.list {
		l.place[l.list[i].p] = i
	}
}

// poll polls each of them once. Those it adds meanwhile wait for the next turn.
func (l *hotList) poll(now time.Duration) (worked bool) {
	l.looks++
	for i := range len(l.list) {
		p := l.list[i].p
		l.at = p
		switch {
		case p == nil:
		case p.Poll(now):
			worked = true
			l.list[i].moment = moment{now, l.looks}
		case now-l.list[i].last > stayHot:
			worked = !l.rest(i, now) || worked
		}
	}
	if l.holes {
		l.compact()
	}
	return worked
}

// rest sends poller i to sleep if it has been looked at often enough, too; false: it has work.
func (l *hotList) rest(i int, now time.Duration) bool {
	h := &l.list[i]
	if !l.idle(h, now) {
		return true
	}
	if !h.p.Sleep() {
		h.moment = moment{now, l.looks}
		return false
	}
	l.leave(h.p)
	return true
}

// sleep sends all of them to sleep; false: one has work, and all are hot again.
func (l *hotList) sleep(now time.Duration) bool {
	clear(l.dozed)
	l.dozed = l.dozed[:0]
	for i := range len(l.list) {
		h := &l.list[i]
		if h.p == nil {
			continue
		}
		l.at = h.p
		if !h.p.Sleep() {
			h.moment = moment{now, l.looks}
			for j := range i {
				if p := l.list[j].p; p != nil {
					p.Wake()
				}
			}
			l.compact()
			return false
		}
	}
	l.list, l.dozed = l.dozed, l.list
	l.holes = false
	l.looks += sleepLooks
	clear(l.place)
	return true
}

// woken makes those hot again whose time was not up.
func (l *hotList) woken(now time.Duration) {
	for _, h := range l.dozed {
		if h.p == nil || l.idle(&h, now) {
			continue
		}
		l.at = h.p
		h.p.Wake()
		l.add(h)
	}
	clear(l.dozed)
	l.dozed = l.dozed[:0]
}
