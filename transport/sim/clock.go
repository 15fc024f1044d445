package sim

import "time"

// Clock is the world's time: a heap of events, each run at its time, in the
// order they were asked for when times are equal.
type Clock struct {
	now time.Duration
	seq uint64
	ran uint64
	h   []event
}

type event struct {
	at  time.Duration
	seq uint64
	f   func()
}

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// Now is the virtual time.
func (c *Clock) Now() time.Duration { return c.now }

// Ran counts the events run so far.
func (c *Clock) Ran() uint64 { return c.ran }

// At runs f at time t, or now when t has passed.
func (c *Clock) At(t time.Duration, f func()) {
	c.seq++
	c.h = append(c.h, event{max(t, c.now), c.seq, f})
	i := len(c.h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.h[i].before(&c.h[up]) {
			break
		}
		c.h[i], c.h[up] = c.h[up], c.h[i]
		i = up
	}
}

// After runs f in d.
func (c *Clock) After(d time.Duration, f func()) { c.At(c.now+d, f) }

// Step runs the next event if it is due at or before limit; otherwise the time
// becomes limit and Step returns false.
func (c *Clock) Step(limit time.Duration) bool {
	if len(c.h) == 0 || c.h[0].at > limit {
		c.now = max(c.now, limit)
		return false
	}
	e := c.h[0]
	last := len(c.h) - 1
	c.h[0] = c.h[last]
	c.h[last] = event{}
	c.h = c.h[:last]
	// The last event takes the place of the first, and sinks below its earlier children.
	for i := 0; ; {
		m := i
		for k := 2*i + 1; k <= 2*i+2 && k < last; k++ {
			if c.h[k].before(&c.h[m]) {
				m = k
			}
		}
		if m == i {
			break
		}
		c.h[i], c.h[m] = c.h[m], c.h[i]
		i = m
	}
	c.now = e.at
	c.ran++
	e.f()
	return true
}
