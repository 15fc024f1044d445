package volume

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
)

// TestEndStopsTheTimer holds that an ended session or server has no timer any more, of whichever kind it was: it would hold on to all of it
// for as long as it was set to, and then step what has ended.
func TestEndStopsTheTimer(t *testing.T) {
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, home := range map[string]*reactor.Reactor{"without a reactor": nil, "on a reactor": r} {
		s := shell{timer: thisMachine(nil).NewTimer(home, func() { t.Error("an hour has passed") })}
		s.arm(0, time.Hour)
		s.arm(0, 2*time.Hour) // the same timer once more
		s.end()
		if s.timer.Stop() || !s.closed {
			t.Errorf("%s: the timer of what has ended was still set", name)
		}
		s = shell{timer: thisMachine(nil).NewTimer(home, nil)}
		s.end()
		if !s.closed {
			t.Errorf("%s: one that was never set is not ended", name)
		}
	}
}
