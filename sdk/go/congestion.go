package rdsd

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"sync"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// maxChanges bounds the changes one watcher holds unread.
const maxChanges = 1024

// maxIdleWatches bounds the watches of a socket that no loop ranges over: those
// whose loop was left, and those that had none yet.
const maxIdleWatches = 64

// watchers are the running WatchCongestion calls.
type watchers struct {
	mu   sync.Mutex
	list []*watcher // guarded by mu
	idle []*watcher // guarded by mu; of these, the ones without a loop, oldest first
}

// watcher gathers the news that its application has not read yet. Later news of a
// destination replace earlier ones.
type watcher struct {
	wake  chan struct{}   // capacity 1
	event CongestionEvent // guarded by watchers.mu
	any   bool            // guarded by watchers.mu; event says something
	over  error           // guarded by watchers.mu
	loops int             // guarded by watchers.mu; that range over it now

	begin func() (stop func() bool) // watches over its context, whose end removes it
	stop  func() bool               // guarded by watchers.mu; while it is in list and the socket is not over
}

// WatchCongestion tells which destinations become congested and clear: those this socket
// has sent to, was refused by or waits for, and with WithCongestionMask also groups of
// ports. It watches from the call on, not only from the first round of the loop, until ctx
// ends or the socket is closed. A loop that is left may be followed by another one, which
// goes on with the news since.
//
//	events := s.WatchCongestion(ctx)
//	for errors.Is(s.TrySend(dst, p), rdserr.ErrCongested) {
//		for ev, err := range events { ... break } // dst clear: send again
//	}
//
// After a reconnection there is one event with all bits of Freed set: ports that cleared
// meanwhile are unknown, so try again. The same comes first in a loop over one of very many
// watches that had no loop for long (64 on a socket go on meanwhile).
func (s *Socket) WatchCongestion(ctx context.Context) iter.Seq2[CongestionEvent, error] {
	// Before anything is registered, which the end of ctx takes out again.
	if err := s.misuse(ctx, "watch", netip.AddrPort{}); err != nil {
		return func(yield func(CongestionEvent, error) bool) { yield(CongestionEvent{}, err) }
	}
	w := &watcher{wake: make(chan struct{}, 1)}
	// The watch is there from the call on, so something has to end it if no loop ever runs.
	w.begin = func() func() bool {
		return context.AfterFunc(ctx, func() { s.changeWatches(func() { s.watch.remove(w) }) })
	}
	s.changeWatches(func() {
		s.watch.add(w, s.over)
		s.watch.park(w)
	})
	return func(yield func(CongestionEvent, error) bool) {
		s.changeWatches(func() { s.watch.enter(w, s.over) })
		defer s.changeWatches(func() { s.watch.leave(w) })
		for {
			// The end of ctx goes before news, or a loop over a busy port would never see it.
			ev, ok, err := s.watch.take(w)
			switch {
			case ctx.Err() != nil:
				s.changeWatches(func() { s.watch.remove(w) }) // enter may have put it back
				yield(CongestionEvent{}, s.opErr("watch", netip.AddrPort{}, ctxError(ctx, nil)))
				return
			case ok:
				if !yield(ev, nil) {
					return
				}
				continue
			case err != nil:
				yield(CongestionEvent{}, s.opErr("watch", netip.AddrPort{}, err))
				return
			}
			_ = s.fe.awaitCongestion(ctx, w) // ctx is looked at above
		}
	}
}

// changeWatches calls change, which adds or removes watchers, and tells the daemon when the
// first came or the last went.
func (s *Socket) changeWatches(change func()) {
	s.mu.Lock()
	before := s.watch.active()
	change()
	if s.watch.active() != before && s.link != nil {
		s.fe.tellLocked(s.monitorMessage())
	}
	s.mu.Unlock()
	s.fe.push()
}

// monitorMessage says what news the watchers want, and the front end itself. mu is held.
func (s *Socket) monitorMessage() *rdsdv1.ClientMessage {
	mon := &rdsdv1.Monitor{}
	active := s.watch.active()
	if active {
		mon.SetMask(s.cfg.mask)
	}
	if active || s.fe.watchesLocked() {
		mon.SetClearEvents(true)
		mon.SetSetEvents(true)
	}
	m := &rdsdv1.ClientMessage{}
	m.SetMonitor(mon)
	return m
}

// add begins with w. over is why there will be no event any more.
func (ws *watchers) add(w *watcher, over error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.over = over
	ws.addLocked(w)
}

func (ws *watchers) addLocked(w *watcher) {
	ws.list = append(ws.list, w)
	if w.over == nil {
		w.stop = w.begin()
	}
}

// restLocked has nothing in the context of w point to it, and to its socket, any more.
func (w *watcher) restLocked() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

func (ws *watchers) remove(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.removeLocked(w)
}

func (ws *watchers) removeLocked(w *watcher) {
	same := func(o *watcher) bool { return o == w }
	ws.list = slices.DeleteFunc(ws.list, same)
	ws.idle = slices.DeleteFunc(ws.idle, same)
	w.restLocked()
}

// park keeps a watcher without a loop. The oldest of too many is given up.
func (ws *watchers) park(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.parkLocked(w)
}

func (ws *watchers) parkLocked(w *watcher) {
	if !slices.Contains(ws.list, w) { // its context has ended
		return
	}
	if len(ws.idle) >= maxIdleWatches {
		ws.removeLocked(ws.idle[0])
	}
	ws.idle = append(ws.idle, w)
}

// enter begins a loop over w. One that was given up meanwhile watches again, and
// is told that it may have missed anything.
func (ws *watchers) enter(w *watcher, over error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.loops++
	ws.idle = slices.DeleteFunc(ws.idle, func(o *watcher) bool { return o == w })
	if !slices.Contains(ws.list, w) {
		w.any, w.event, w.over = true, CongestionEvent{Freed: ^uint64(0)}, over
		ws.addLocked(w)
	}
}

// leave ends a loop over w.
func (ws *watchers) leave(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.loops--; w.loops == 0 {
		ws.parkLocked(w)
	}
}

func (ws *watchers) active() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.list) > 0
}

func (ws *watchers) take(w *watcher) (ev CongestionEvent, ok bool, over error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ev, ok = w.event, w.any
	w.event, w.any = CongestionEvent{}, false
	return ev, ok, w.over
}

// each changes every watcher's unread event and wakes it.
func (ws *watchers) each(f func(w *watcher)) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.list {
		f(w)
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (ws *watchers) event(m *rdsdv1.CongestionEvent) {
	var changes []CongestionChange
	for _, c := range m.GetChange() {
		changes = append(changes, CongestionChange{Addr: endpointFromProto(c.GetDestination()), Congested: c.GetCongested()})
	}
	ws.news(m.GetFreedMask(), changes...)
}

func (ws *watchers) news(freed uint64, changes ...CongestionChange) {
	ws.each(func(w *watcher) {
		w.any = true
		w.event.Freed |= freed
		for _, c := range changes {
			w.note(c)
		}
	})
}

// ready says whether take would return something.
func (ws *watchers) ready(w *watcher) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.any || w.over != nil
}

// note adds one change, in place of an older one of the same destination.
func (w *watcher) note(c CongestionChange) {
	w.event.Changes = slices.DeleteFunc(w.event.Changes, func(o CongestionChange) bool { return o.Addr == c.Addr })
	if len(w.event.Changes) >= maxChanges {
		w.event.Changes = slices.Delete(w.event.Changes, 0, 1)
		w.event.Freed = ^uint64(0)
	}
	w.event.Changes = append(w.event.Changes, c)
}

// lost is for a new stream: events may have been missed.
func (ws *watchers) lost() {
	ws.each(func(w *watcher) {
		w.any = true
		w.event = CongestionEvent{Freed: ^uint64(0)}
	})
}

func (ws *watchers) finish(err error) {
	ws.each(func(w *watcher) {
		w.over = err
		w.restLocked()
	})
}
