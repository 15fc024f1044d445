package await

import (
	"sync/atomic"
	"testing"
	"time"
)

// Clock tells how much time a process had: what passes while the machine pauses, or gives
// its processors to others, is mostly not in it. A test that bounds what its own process
// does, or one beside it, measures with this, so that a wait of the product is seen and a
// pause of the machine is not. On a machine that is idle it goes as every clock does.
//
// A goroutine sleeps for a tick again and again. What passes between two of its looks is
// time that the process had, up to longestTick: whoever sleeps for a millisecond and wakes
// after a hundred had no processor.
type Clock struct {
	had  atomic.Int64 // nanoseconds; set by the goroutine
	from time.Time
}

const (
	tick        = time.Millisecond
	longestTick = 4 * time.Millisecond
)

// NewClock returns a clock that goes until the test ends.
func NewClock(t testing.TB) *Clock {
	c := &Clock{from: time.Now()}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with the test
		defer close(ended)
		c.run(end)
	}()
	t.Cleanup(func() { close(end); <-ended })
	return c
}

func (c *Clock) run(end chan struct{}) {
	last := time.Now()
	for {
		select {
		case <-end:
			return
		case <-time.After(tick):
		}
		now := time.Now()
		c.passed(now.Sub(last))
		last = now
	}
}

// passed takes what has passed from one look to the next.
func (c *Clock) passed(d time.Duration) { c.had.Add(int64(min(d, longestTick))) }

// Now is how much time the process had since the clock was made.
func (c *Clock) Now() time.Duration { return time.Duration(c.had.Load()) }

// Lost is how much it did not have since then: what to take off a time that somebody
// else's clock has measured.
func (c *Clock) Lost() time.Duration { return max(0, time.Since(c.from)-c.Now()-longestTick) }
