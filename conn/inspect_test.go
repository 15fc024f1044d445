package conn

import (
	"errors"
	"testing"
	"time"
)

// Pages show everything once, each no more than it may, also when what was shown last
// has left meanwhile: what stood before it has left too.
func TestPageQueued(t *testing.T) {
	for _, leaves := range []int{0, 1, 40, 64} {
		w := newWorld(t, "10.0.0.1", "10.0.0.2", nil)
		const n, page = 1000, 64
		for i := range n {
			w.send(5000, uint16(4000+i%3), i, false)
		}
		seen := make([]int, n)
		var at Cursor
		gone, pages := 0, 0
		for more := true; more; pages++ {
			shown := 0
			more = w.c.PageQueued(&at, NotSent, page, func(m *Msg, bytes, lane int, sent bool) bool {
				if seen[bytes]++; seen[bytes] > 1 || sent {
					t.Fatalf("datagram %d is shown %d times, sent %v", bytes, seen[bytes], sent)
				}
				shown++
				return true
			})
			if shown > page {
				t.Fatalf("a page of %d", shown)
			}
			for k := 0; k < leaves && w.c.pending.head != nil && seen[len(w.c.pending.head.Payload)] == 1; k++ {
				m := w.c.pending.pop()
				m.where = nowhere
				w.c.done(nil, m, Cancelled, WhyApp)
				gone++
			}
		}
		for i, k := range seen {
			if k != 1 {
				t.Errorf("%d leave after each page: datagram %d was shown %d times", leaves, i, k)
			}
		}
		if leaves > 0 && gone == 0 || pages < n/page {
			t.Errorf("%d pages, %d left", pages, gone)
		}
		if w.c.PageQueued(&Cursor{}, Sent, page, func(*Msg, int, int, bool) bool { t.Error("nothing was sent"); return true }) {
			t.Error("there is more of nothing")
		}
	}
}

// What an administrator is told of a lane that cannot be made: how old the error is,
// how often in a row it was tried, since when, and when it is tried again. Of one that
// is up there are no attempts, although the backoff remembers them.
func TestInfoOfAttempts(t *testing.T) {
	w, p := inState(t, Connecting)
	w.now += time.Second
	first := w.now
	if i := p.Info(); i.Attempts != 0 || i.LastErr != nil || i.RetryAt != Never {
		t.Errorf("connecting for the first time: %+v", i)
	}
	p.DialFailed(w.now, p.attempt, errors.New("refused"))
	for n := 1; n < 6; n++ {
		at := w.now
		if i := p.Info(); i.State != Error || i.Attempts != n || i.Failing != first || i.ErrAt != at || i.RetryAt != p.retryAt || i.RetryAt < at || i.LastErr == nil {
			t.Errorf("after %d attempts, at %v: %+v", n, at, i)
		}
		w.now = max(w.now, p.retryAt)
		p.event(w.now, EvWant)
		w.now += time.Millisecond
		if i := p.Info(); i.State != Connecting || i.Attempts != n || i.RetryAt != Never || i.ErrAt != at {
			t.Errorf("attempt %d is under way: %+v", n+1, i)
		}
		p.DialFailed(w.now, p.attempt, errors.New("refused"))
	}
	w.now = max(w.now, p.retryAt)
	p.event(w.now, EvWant)
	p.Connected(w.now, p.attempt)
	if i := p.Info(); i.State != Up || i.Attempts != 0 || i.RetryAt != Never {
		t.Errorf("up: %+v", i)
	}
	w.take()
}
