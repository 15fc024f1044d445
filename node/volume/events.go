package volume

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
)

// eventsKept is how many events can still be asked for.
const eventsKept = 1024

// watchEnd is how long a watcher has to take the next of the last events.
const watchEnd = 100 * time.Millisecond

// FromNow, given to Watch, asks for no event of the past.
const FromNow = ^uint64(0)

// FromBefore is likewise the number of any event of an earlier start: a gap comes, and all that is
// kept.
const FromBefore = FromNow - 1

// events is the log of what happened, and who watches it.
type events struct {
	log   *slog.Logger
	wall  func() time.Time
	guard *guard.Guard

	mu     sync.Mutex
	more   sync.Cond
	ring   [eventsKept]Event // guarded by mu; number n at (n-1) % eventsKept
	last   uint64            // guarded by mu; 0: none yet
	closed bool              // guarded by mu
	pumps  sync.WaitGroup
}

func newEvents(log *slog.Logger, wall func() time.Time) *events {
	e := &events{log: log, wall: wall}
	e.more.L = &e.mu
	return e
}

// add notes an event, and logs it.
func (e *events) add(ev Event) {
	ev = e.record(ev)
	e.write(&ev)
}

// record notes an event. It may be called with any lock held: watchers are
// woken, never waited for.
func (e *events) record(ev Event) Event {
	ev.Time = e.wall()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.last++
		ev.Seq = e.last
		e.ring[(ev.Seq-1)%eventsKept] = ev
		e.more.Broadcast()
	}
	return ev
}

// write logs an event.
func (e *events) write(ev *Event) {
	level := slog.LevelInfo
	if ev.Kind == EventError || ev.Err != nil && !errors.Is(ev.Err, io.EOF) { // EOF: the other end closed
		level = slog.LevelWarn
	}
	if !e.log.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	str := func(k, v string) {
		if v != "" {
			attrs = append(attrs, slog.String(k, v))
		}
	}
	str("session", ev.Session)
	if ev.Path.Dst != "" {
		str("path", ev.Path.Src+","+ev.Path.Dst)
	}
	str("mapping", ev.Mapping)
	str("export", ev.Export)
	str("state", ev.State)
	if ev.Count != 0 {
		attrs = append(attrs, slog.Uint64("count", ev.Count))
	}
	if ev.Err != nil {
		attrs = append(attrs, slog.Any("err", ev.Err))
	}
	e.log.LogAttrs(context.Background(), level, "volume: "+ev.Text, attrs...)
}

// watch is Host.Watch.
func (e *events) watch(since uint64) (<-chan Event, func()) {
	out := make(chan Event)
	done := make(chan struct{})
	var once sync.Once
	e.mu.Lock()
	stopped := false // guarded by mu
	var gap *Event
	switch {
	case since == FromNow:
		since = e.last
	case since > e.last: // of an earlier life
		gap, since = &Event{Kind: EventGap, Text: "events of an earlier start of the daemon are not kept"}, 0
	}
	e.pumps.Add(1)
	e.mu.Unlock()

	stop := func() {
		once.Do(func() {
			e.mu.Lock()
			stopped = true
			e.more.Broadcast()
			e.mu.Unlock()
			close(done)
		})
	}
	go func() { // ends with stop, or when the Host is closed and all was read
		defer e.pumps.Done()
		defer close(out)
		defer e.guard.Recover(guard.Call, nil)
		for {
			var ev Event
			e.mu.Lock()
			for since == e.last && gap == nil && !stopped && !e.closed {
				e.more.Wait()
			}
			switch oldest := max(e.last, eventsKept) - eventsKept + 1; {
			case stopped || gap == nil && since == e.last:
				e.mu.Unlock()
				return
			case gap != nil:
				ev, gap = *gap, nil
			case since+1 < oldest:
				ev = Event{Seq: oldest - 1, Kind: EventGap, Count: oldest - 1 - since, Text: "events are missing here: they came faster than they were read"}
				since = oldest - 1
			default:
				since++
				ev = e.ring[(since-1)%eventsKept]
			}
			closed := e.closed
			e.mu.Unlock()
			if ev.Kind == EventGap { // found now; what is missing had times of its own
				ev.Time = e.wall()
			}
			if closed {
				select { // nobody may be reading any more
				case out <- ev:
				case <-done:
					return
				case <-time.After(watchEnd):
					return
				}
				continue
			}
			select {
			case out <- ev:
			case <-done:
				return
			}
		}
	}()
	return out, stop
}

// close ends all watches.
func (e *events) close() {
	e.mu.Lock()
	e.closed = true
	e.more.Broadcast()
	e.mu.Unlock()
	e.pumps.Wait()
}
