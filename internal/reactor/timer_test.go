package reactor

import (
	"math/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTimersFireInOrderAndNotEarly(t *testing.T) {
	r := open(t, 0)
	rng := rand.New(rand.NewSource(1))
	var fired []int
	done := make(chan struct{})
	const n = 300
	for i := range rng.Perm(n) {
		d := time.Duration(i) * 100 * time.Microsecond
		begun := time.Now()
		r.After(d, func() {
			if e := time.Since(begun); e < d {
				t.Errorf("fired after %v instead of %v", e, d)
			}
			fired = append(fired, i)
			if len(fired) == n {
				close(done)
			}
		})
	}
	within(t, "the last timer", done)
	if !slices.IsSorted(fired) {
		t.Errorf("fired in the order %v", fired)
	}
}

func TestTimerStop(t *testing.T) {
	r := open(t, 0)
	long := r.After(time.Hour, func() { t.Error("an hour has passed") })
	if !long.Stop() || long.Stop() {
		t.Error("Stop does not say whether it stopped")
	}
	on(r, func() {
		a := r.After(0, func() { t.Error("stopped on the thread, fired all the same") })
		if !a.Stop() {
			t.Error("it would have fired")
		}
	})
	r.Sync()
	r.Sync()
}

// TestTimerReset: one timer used again and again, from its own function and
// from outside, fires once for each; the reactor sleeps in between.
func TestTimerReset(t *testing.T) {
	t.Run("sleeping", func(t *testing.T) { testTimerReset(t, open(t, -1)) })
	t.Run("resting", func(t *testing.T) { testTimerReset(t, open(t, resting)) })
}

func testTimerReset(t *testing.T, r *Reactor) {
	done := make(chan struct{})
	n := 0
	var tm *Timer
	tm = r.NewTimer(func() {
		if n++; n == 20 {
			close(done)
			return
		}
		tm.Reset(100 * time.Microsecond)
	})
	tm.Reset(time.Hour)
	tm.Reset(time.Millisecond)
	within(t, "the twentieth time", done)
	for range 100 {
		again := make(chan struct{})
		on(r, func() { tm.f = func() { close(again) } })
		tm.Reset(time.Hour) // it sleeps for an hour now
		r.Sync()
		tm.Reset(50 * time.Microsecond)
		within(t, "an earlier time set from outside", again)
	}
}

// TestTimersRaced: set and stopped from many goroutines; each fires once or was
// stopped, never both, never neither.
func TestTimersRaced(t *testing.T) {
	r := open(t, 0)
	var fired, stopped atomic.Int64
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(int64(g)))
			var own sync.WaitGroup
			for range 500 {
				own.Add(1)
				tm := r.After(time.Duration(rng.Intn(200))*time.Microsecond, func() { fired.Add(1); own.Done() })
				if rng.Intn(2) == 0 && tm.Stop() {
					stopped.Add(1)
					own.Done()
				}
			}
			own.Wait()
		})
	}
	wg.Wait()
	if n := fired.Load() + stopped.Load(); n != 2000 || stopped.Load() == 0 {
		t.Errorf("%d fired and %d were stopped of 2000", fired.Load(), stopped.Load())
	}
	r.timers.mu.Lock()
	defer r.timers.mu.Unlock()
	if len(r.timers.heap) != 0 {
		t.Errorf("%d timers left", len(r.timers.heap))
	}
}
