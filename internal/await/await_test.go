package await

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that notes how it was failed.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}
func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// until is Until in a goroutine of its own, and returns how it failed.
func until(limit time.Duration, is func() bool) string {
	f := &failing{}
	done := make(chan struct{})
	go func() { // ends with Until
		defer close(done)
		Until(f, limit, "It is there.", is)
	}()
	<-done
	return f.said
}

// TestUntil: what does not come fails when the limit has passed, and no sooner; what a
// machine takes from one look to the next is not the fault of what is waited for.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		said := until(time.Second, func() bool { return false })
		if passed := time.Since(begun); said == "" || passed < time.Second || passed > time.Second+10*time.Millisecond {
			t.Errorf("what never comes: %q after %v", said, passed)
		}
		begun = time.Now()
		if said := until(time.Second, func() bool { return time.Since(begun) > 900*time.Millisecond }); said != "" {
			t.Errorf("what comes in time: %q", said)
		}
		looks := 0
		if said := until(time.Second, func() bool { // a pause of a minute in the middle
			if looks++; looks == 50 {
				time.Sleep(time.Minute)
			}
			return looks == 100
		}); said != "" {
			t.Errorf("a machine that paused: %q", said)
		}
	})
}

// TestClock: the clock goes with the time, and stands while its process does not run.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock(t)
		time.Sleep(time.Second + tick/2) // between two ticks
		if c.Now() != time.Second || c.Lost() != 0 {
			t.Errorf("after a second the process had %v and lost %v", c.Now(), c.Lost())
		}
		c.from = c.from.Add(-time.Minute) // it stands for a minute, and looks once
		c.passed(time.Minute)
		if had, lost := c.Now(), c.Lost(); had != time.Second+longestTick || lost != time.Minute-2*longestTick+tick/2 {
			t.Errorf("of a second and a minute without a processor it had %v and lost %v", had, lost)
		}
	})
}
