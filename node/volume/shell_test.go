package volume

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
)

// TestEndStopsTheTimer holds that an ended session or server has no timer any more, of whichever kind it was: it would hold on to all of it
// for as long as it was set to, and then step what has ended.
func TestEndStopsTheTimer(t *testing.T) {
	t.Run("without a reactor", func(t *testing.T) {
		var s shell
		s.arm(0, time.Hour)
		s.arm(0, 2*time.Hour) // the same timer once more
		s.end()
		if s.after.Stop() || !s.closed {
			t.Error("the timer of what has ended was still set")
		}
	})
	t.Run("on a reactor", func(t *testing.T) {
		r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1, Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := shell{timer: r.NewTimer(func() { t.Error("an hour has passed") })}
		s.arm(0, time.Hour)
		s.end()
		if s.timer.Stop() || s.after != nil {
			t.Error("the timer of what has ended was still set")
		}
	})
	t.Run("that was never set", func(t *testing.T) {
		var s shell
		s.end()
		if !s.closed {
			t.Error("not ended")
		}
	})
}
