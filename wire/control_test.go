package wire

import (
	"errors"
	"testing"
)

// TestControlLimits: the most a receiver takes in one message, and one more.
func TestControlLimits(t *testing.T) {
	var states []PortState
	for i := range MaxPortStates + 1 {
		states = append(states, PortState{Port: uint16(i), Congested: i%2 == 0})
	}
	n := 0
	if err := ParsePortStates(AppendPortStates(nil, states[:MaxPortStates]), func(s PortState) {
		if s != states[n] {
			t.Errorf("entry %d: %v", n, s)
		}
		n++
	}); err != nil || n != MaxPortStates {
		t.Errorf("%v after %d", err, n)
	}
	if err := ParsePortStates(AppendPortStates(nil, states), func(PortState) { t.Error("called") }); !errors.Is(err, ErrControl) {
		t.Error(err)
	}

	var b []byte
	for i := range MaxRefusals {
		b = AppendRefusal(b, Refusal{uint64(i) + 1, ReasonNoRoom})
	}
	n = 0
	if err := ParseRefusals(b, func(r Refusal) error { n++; return nil }); err != nil || n != MaxRefusals {
		t.Errorf("%v after %d", err, n)
	}
	if err := ParseRefusals(AppendRefusal(b, Refusal{1, 1}), func(Refusal) error { t.Error("called"); return nil }); !errors.Is(err, ErrControl) {
		t.Error(err)
	}
}

func TestParseRefusalsStops(t *testing.T) {
	b := AppendRefusal(AppendRefusal(nil, Refusal{1, ReasonNoPort}), Refusal{2, ReasonNoPort})
	stop, n := errors.New("stop"), 0
	if err := ParseRefusals(b, func(Refusal) error { n++; return stop }); err != stop || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
	// A later entry that is malformed spoils the earlier ones too.
	b[len(b)-4] = 0
	if err := ParseRefusals(b, func(Refusal) error { n++; return nil }); err != ErrControl || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
}
