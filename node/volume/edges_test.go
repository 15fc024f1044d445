package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatchFromEveryNumber: a watch begins behind the number it was given, with one gap
// that says how many events are not there any more, and brings every other once, in
// order and whole, however often the ring has gone round.
func TestWatchFromEveryNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []uint64{1, eventsKept - 1, eventsKept, eventsKept + 1, 2 * eventsKept, 3*eventsKept + 5} {
			e := newTestEvents()
			for i := range n {
				e.record(Event{Kind: EventPath, Count: 1000 + i})
			}
			first := uint64(1) // that is kept
			if n > eventsKept {
				first = n - eventsKept + 1
			}
			for _, since := range []uint64{0, 1, first - 2, first - 1, first, first + 1, n - 1, n, n + 1, n + 100} {
				if since > n+100 { // wrapped
					continue
				}
				c, stop := e.watch(since)
				at := since
				if since > n { // of an earlier life
					if ev := <-c; ev.Kind != EventGap || ev.Seq != 0 || ev.Count != 0 || ev.Time.IsZero() {
						t.Errorf("%d events, from %d: %+v, want a gap", n, since, ev)
					}
					at = 0
				}
				if at+1 < first {
					ev := <-c
					if ev.Kind != EventGap || ev.Seq != first-1 || ev.Count != first-1-at || ev.Time.IsZero() {
						t.Errorf("%d events, from %d: %+v, want a gap of %d up to %d", n, since, ev, first-1-at, first-1)
					}
					at = first - 1
				}
				for at++; at <= n; at++ {
					if ev := <-c; ev.Kind != EventPath || ev.Seq != at || ev.Count != 999+at {
						t.Fatalf("%d events, from %d: %+v, want number %d", n, since, ev, at)
					}
				}
				synctest.Wait()
				select {
				case ev := <-c:
					t.Errorf("%d events, from %d: %+v behind the last", n, since, ev)
				default:
				}
				stop()
				if _, ok := <-c; ok {
					t.Errorf("%d events, from %d: one came after stop", n, since)
				}
			}
			e.close()
		}
	})
}

// TestEventsInTheLog: what stands in the log of an event, and with which level.
func TestEventsInTheLog(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		ev   Event
		want string
	}{
		{Event{Kind: EventPath, Text: "a"}, `level=INFO msg="volume: a"`},
		{Event{Kind: EventError, Text: "b"}, `level=WARN msg="volume: b"`},
		{Event{Kind: EventPath, Text: "c", Err: boom}, `level=WARN msg="volume: c" err=boom`},
		{Event{Kind: EventPath, Text: "d", Err: io.EOF}, `level=INFO msg="volume: d" err=EOF`},
		{Event{Kind: EventError, Text: "e", Err: io.EOF}, `level=WARN msg="volume: e" err=EOF`},
		{Event{Kind: EventGap, Text: "f", Session: "s", Mapping: "m", Export: "x", State: "open", Count: 3, Path: PathSpec{Src: "1", Dst: "2"}},
			`level=INFO msg="volume: f" session=s path=1,2 mapping=m export=x state=open count=3`},
		{Event{Kind: EventPath, Text: "g", Path: PathSpec{Src: "1"}}, `level=INFO msg="volume: g"`},
	} {
		var b bytes.Buffer
		h := slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		newEvents(slog.New(h), time.Now).add(c.ev)
		if got := strings.TrimSpace(b.String()); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	var b bytes.Buffer
	quiet := newEvents(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn})), time.Now)
	quiet.add(Event{Kind: EventPath, Text: "a"})
	if b.Len() > 0 {
		t.Errorf("a log of warnings has %s", b.String())
	}
}

// TestWholePagesAreTrimmed: of any range the whole pages in it, all of them and nothing
// else, go back.
func TestWholePagesAreTrimmed(t *testing.T) {
	page := unix.Getpagesize()
	for _, c := range []struct{ from, to, first, n int }{
		{0, page, 0, 1}, {page, 2 * page, 1, 1}, {page / 2, 2 * page, 1, 1}, {page, 2*page + 1, 1, 1},
		{1, 2 * page, 1, 1}, {1, 2*page - 1, 0, 0}, {page, 2*page - 1, 0, 0}, {page - 1, 2 * page, 1, 1},
		{0, 0, 0, 0}, {5, 6, 0, 0}, {page - 1, page + 1, 0, 0}, {0, 4 * page, 0, 4}, {page + 1, 4*page - 1, 2, 1},
	} {
		b := allocChunks(4 * page)
		if b == nil {
			t.Fatal("no memory")
		}
		for i := range b {
			b[i] = 1
		}
		trimChunks(b[c.from:c.to])
		what := fmt.Sprintf("%d to %d of pages of %d", c.from, c.to, page)
		if n := residentBytes(b); n != uint64((4-c.n)*page) {
			t.Errorf("%s: %d bytes are left, want %d pages", what, n, 4-c.n)
		}
		for i, v := range b {
			if gone := i/page >= c.first && i/page < c.first+c.n; (v == 0) != gone {
				t.Fatalf("%s: byte %d is %d", what, i, v)
			}
		}
		freeChunks(b)
	}
}

// TestNobodyReadsAtTheEnd: the end of a Host waits for a watcher that does not read its
// last events for a moment, and no longer.
func TestNobodyReadsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEvents()
		e.add(Event{Kind: EventPath})
		_, stop := e.watch(1) // has read what there was
		defer stop()
		synctest.Wait()
		e.mu.Lock() // before the watcher has seen it, the end is there
		e.last++
		e.closed = true
		e.more.Broadcast()
		e.mu.Unlock()
		begun := time.Now()
		e.close()
		if d := time.Since(begun); d != watchEnd {
			t.Errorf("the end took %v, want %v", d, watchEnd)
		}
	})
}
