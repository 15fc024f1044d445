package volume

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func newTestEvents() *events { return newEvents(slog.New(slog.DiscardHandler), time.Now) }

func TestWatchBringsWhatWasAndWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEvents()
		for range 3 {
			e.add(Event{Kind: EventExport})
		}
		old, stop := e.watch(1)
		defer stop()
		fresh, stop2 := e.watch(FromNow)
		defer stop2()
		for _, want := range []uint64{2, 3} {
			if ev := <-old; ev.Seq != want || ev.Kind != EventExport {
				t.Fatalf("event %d of kind %q, want %d", ev.Seq, ev.Kind, want)
			}
		}
		e.add(Event{Kind: EventPath, State: "connected"})
		for _, c := range []<-chan Event{old, fresh} {
			if ev := <-c; ev.Seq != 4 || ev.State != "connected" || ev.Time.IsZero() {
				t.Fatalf("got %+v, want the fourth event with its time", ev)
			}
		}
	})
}

func TestWatchTellsOfAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEvents()
		c, stop := e.watch(0)
		defer stop()
		const n = eventsKept + 10
		for range n {
			e.add(Event{Kind: EventPath})
		}
		var seen, missing uint64
		for seen+missing < n {
			ev := <-c
			if ev.Kind == EventGap {
				missing += ev.Count
			} else {
				seen++
			}
			if ev.Seq != seen+missing {
				t.Fatalf("number %d after %d seen and %d missing", ev.Seq, seen, missing)
			}
		}
		if missing == 0 || seen < eventsKept {
			t.Fatalf("%d missing, %d seen; want a gap, and all %d that are kept", missing, seen, eventsKept)
		}
		e2, stop2 := e.watch(n + 100)
		defer stop2()
		if ev := <-e2; ev.Kind != EventGap {
			t.Fatalf("a number of an earlier life brought %+v, want a gap", ev)
		}
	})
}

func TestWatchEndsWithTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEvents()
		c, stop := e.watch(0)
		e.add(Event{Kind: EventPath})
		idle, stopIdle := e.watch(0) // nobody reads it
		_ = idle
		go e.close()
		if ev, ok := <-c; !ok || ev.Seq != 1 {
			t.Fatalf("got %+v, %v; want the last event before the end", ev, ok)
		}
		if _, ok := <-c; ok {
			t.Fatal("an event after the end")
		}
		stop()
		stop() // no harm
		stopIdle()
		e.add(Event{Kind: EventPath}) // no harm
	})
}
