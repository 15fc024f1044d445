package rtrs

import (
	"testing"
	"time"
)

// TestLossIsToldByNumber: requests that are given up are one event with their number,
// one of them as well as many; without any there is none.
func TestLossIsToldByNumber(t *testing.T) {
	for n := range 4 {
		f := newFakeClient(t, ClientConfig{Name: "who"})
		f.c.lost(n, ErrTimeout)
		if n == 0 {
			if len(f.events) != 0 {
				t.Errorf("nothing was lost, and told is %+v", f.events)
			}
			continue
		}
		if len(f.events) != 1 || f.events[0].Kind != EventLost || f.events[0].N != n || f.events[0].Err != ErrTimeout || f.events[0].Name != "who" {
			t.Errorf("%d were lost, told is %+v", n, f.events)
		}
	}
}

// TestPausesOfOneLength: pauses before reconnecting may all be of one length, and no
// longer at first than at last.
func TestPausesOfOneLength(t *testing.T) {
	for _, c := range []struct {
		min, max time.Duration
		ok       bool
	}{{time.Second, time.Second, true}, {time.Second, time.Second - 1, false}, {time.Second, time.Second + 1, true}, {0, 0, true}, {-1, 0, false}} {
		if _, err := (ClientConfig{Name: "a", ReconnectMin: c.min, ReconnectMax: c.max}).withDefaults(); (err == nil) != c.ok {
			t.Errorf("from %v to %v: %v", c.min, c.max, err)
		}
	}
}
