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

// watchers are the running WatchCongestion calls.
type watchers struct {
	mu   sync.Mutex
	list []*watcher // guarded by mu
}

// watcher gathers what its application has not read yet. Later news of a
// destination replace earlier ones.
type watcher struct {
	wake  chan struct{}   // capacity 1
	event CongestionEvent // guarded by watchers.mu
	any   bool            // guarded by watchers.mu; event says something
	over  error           // guarded by watchers.mu
}

// WatchCongestion tells which destinations become congested and clear: those
// this socket has sent to, was refused by or waits for, and with
// WithCongestionMask also groups of ports. It watches from the call on, not
// only from the first round of the loop, until ctx ends, the loop is left or
// the socket is closed.
//
//	events := s.WatchCongestion(ctx)
//	if errors.Is(s.TrySend(dst, p), rdserr.ErrCongested) {
//		for ev, err := range events { ... } // dst clear: send again
//	}
//
// After a reconnection there is one event with all bits of Freed set: what
// cleared meanwhile nobody noted, so try again.
func (s *Socket) WatchCongestion(ctx context.Context) iter.Seq2[CongestionEvent, error] {
	w := &watcher{wake: make(chan struct{}, 1)}
	s.mu.Lock()
	over := s.over
	if over == nil && s.watch.add(w) {
		s.monitorLocked()
	}
	s.mu.Unlock()
	s.fe.push()
	stop := context.AfterFunc(ctx, func() { s.unwatch(w) })
	return func(yield func(CongestionEvent, error) bool) {
		defer stop()
		defer s.unwatch(w)
		if over != nil {
			yield(CongestionEvent{}, s.opErr("watch", netip.AddrPort{}, over))
			return
		}
		for {
			ev, ok, err := s.watch.take(w)
			switch {
			case ctx.Err() != nil:
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

func (s *Socket) unwatch(w *watcher) {
	s.mu.Lock()
	if s.watch.remove(w) {
		s.monitorLocked()
	}
	s.mu.Unlock()
	s.fe.push()
}

// monitorLocked has the daemon told whether anybody watches.
func (s *Socket) monitorLocked() {
	if s.link != nil {
		s.fe.tellLocked(s.monitorMessage())
	}
}

func (s *Socket) monitorMessage() *rdsdv1.ClientMessage {
	mon := &rdsdv1.Monitor{}
	if s.watch.active() {
		mon.SetMask(s.cfg.mask)
		mon.SetClearEvents(true)
		mon.SetSetEvents(true)
	}
	m := &rdsdv1.ClientMessage{}
	m.SetMonitor(mon)
	return m
}

// add returns true for the first watcher.
func (ws *watchers) add(w *watcher) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.list = append(ws.list, w)
	return len(ws.list) == 1
}

// remove returns true for the last watcher.
func (ws *watchers) remove(w *watcher) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	i := slices.Index(ws.list, w)
	if i < 0 {
		return false
	}
	ws.list = slices.Delete(ws.list, i, i+1)
	return len(ws.list) == 0
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
	ws.each(func(w *watcher) { w.over = err })
}
