package reactor

import (
	"testing"
	"time"
)

// TestLaterTimerWakesNobody: a timer that another thread sets wakes the reactor if it is
// the next one to fire, and not if the reactor is up before it anyway.
func TestLaterTimerWakesNobody(t *testing.T) {
	r := open(t, 0)
	near, far := r.NewTimer(func() {}), r.NewTimer(func() {})
	asleep := func() uint64 {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !r.asleep.Load(); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatal("the reactor does not sleep")
			}
		}
		_, _, wakes, _ := r.Stats()
		return wakes
	}
	near.Reset(time.Hour)
	before := asleep()
	for n := range 10 {
		far.Reset(2*time.Hour + time.Duration(n))
	}
	if n := asleep() - before; n != 0 {
		t.Errorf("later timers woke the reactor %d times", n)
	}
	far.Reset(time.Minute)
	if n := asleep() - before; n != 1 {
		t.Errorf("a timer that is the next one woke the reactor %d times, want 1", n)
	}
	near.Stop()
	far.Stop()
}
