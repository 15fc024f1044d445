package client

import (
	"testing"
	"time"
)

// TestUnusedPairs holds that a flow whose pair was not used is offered another one after twice as long
// each time, up to a bound, and at once after one that was used.
func TestUnusedPairs(t *testing.T) {
	var s socketPairs
	now := time.Hour
	if s.soon(now, 7) {
		t.Error("a flow that had none has to wait")
	}
	for times := 1; times < maxUnused+3; times++ {
		s.used(now, 7, false)
		wait := offerAgain << min(times, maxUnused)
		if !s.soon(now+wait-1, 7) || s.soon(now+wait, 7) || s.soon(now, 8) {
			t.Errorf("after %d times: it does not wait for %v", times, wait)
		}
		now += wait
	}
	if s.used(now, 7, true); s.soon(now, 7) || len(s.unused) != 0 {
		t.Error("a pair that was used counts as one that was not")
	}
	for port := range uint16(maxUnusedFlows + 1) {
		s.used(now, port, false)
	}
	if len(s.unused) != maxUnusedFlows || !s.soon(now, maxUnusedFlows-1) || s.soon(now, maxUnusedFlows) {
		t.Errorf("%d flows are remembered, want %d", len(s.unused), maxUnusedFlows)
	}
}
