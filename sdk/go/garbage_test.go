package rdsd

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlackWhileFast: there is slack while payloads get memory of their own fast, not before,
// and not for long after.
func TestSlackWhileFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g garbageRate
		has := func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.slack.Cap() >= slackBytes
		}
		step := func(pause time.Duration) {
			time.Sleep(pause)
			synctest.Wait()
			for range 4 {
				g.add(fastBytes / 4)
			}
		}
		for range 100 {
			step(fastTime + time.Millisecond)
		}
		if has() {
			t.Error("slack, though nothing was fast")
		}
		step(fastTime)
		if !has() {
			t.Error("no slack when it was fast")
		}
		for range 10 * slackTime / fastTime {
			step(fastTime)
			if !has() {
				t.Fatal("slack ended while it was fast")
			}
		}
		time.Sleep(slackTime - time.Millisecond)
		synctest.Wait()
		if !has() {
			t.Error("slack ended early")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if has() {
			t.Error("slack was kept")
		}
		step(fastTime)
		step(fastTime)
		if !has() {
			t.Error("no slack the second time")
		}
		time.Sleep(2 * slackTime)
		synctest.Wait()
	})
}

// TestSlackHeedsTheLimit: a program with a small limit of memory gets none.
func TestSlackHeedsTheLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(slackBytes))
	var g garbageRate
	g.looked = time.Now()
	g.add(fastBytes)
	if g.slack.Cap() != 0 || g.end != nil {
		t.Error("slack beyond what the limit has room for")
	}
}
