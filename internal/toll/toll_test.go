package toll

import (
	"testing"
	"time"
)

// TestTollJudges: who is long by the clock is measured, and ended only when the thread
// itself was busy for long, several times in a row or once for very long.
func TestTollJudges(t *testing.T) {
	const short, very = time.Microsecond, veryLong
	type call struct {
		took     time.Duration
		measured bool // and so the client is a suspect before it
	}
	for _, c := range []struct {
		name  string
		calls []call
		ended bool // by the last of them
	}{
		{"short ones", []call{{short, false}, {long - 1, false}}, false},
		{"long by the clock alone", []call{{very, false}, {short, true}, {very, true}}, false},
		{"interrupted now and then", []call{{long, false}, {long, true}, {long, true}, {short, true}, {long, true}, {long, true}, {short, true}}, false},
		{"three long ones", []call{{long, false}, {long, true}, {long, true}, {long, true}}, true},
		{"two very long ones", []call{{long, false}, {very, true}, {very, true}}, true},
		{"a long one and a very long one", []call{{long, false}, {long, true}, {very, true}}, true},
		{"just not very long", []call{{long, false}, {very - 1, true}, {very - 1, true}}, false},
	} {
		var u Toll
		for i, k := range c.calls {
			if got := u.suspect.Load() > 0; got != k.measured {
				t.Errorf("%s: call %d: a suspect: %v", c.name, i, got)
			}
			err := u.judge(k.took, k.measured)
			if want := c.ended && i == len(c.calls)-1; (err != nil) != want || Costly(err) != want {
				t.Errorf("%s: call %d: %v", c.name, i, err)
			}
		}
	}
	var u Toll
	u.judge(long, false)
	for range look {
		if u.suspect.Load() <= 0 {
			t.Fatal("a suspect is not looked at long enough")
		}
		u.judge(short, true)
	}
	if u.suspect.Load() != 0 {
		t.Error("a suspect stays one for ever")
	}
}
