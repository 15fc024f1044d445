package cli

import (
	"math"
	"testing"
)

// TestRisen: a counter rises from what it was, or from zero with a new life of the daemon.
func TestRisen(t *testing.T) {
	for _, c := range []struct{ was, is, want uint64 }{{0, 0, 0}, {5, 5, 0}, {5, 7, 2}, {7, 5, 5}, {7, 0, 0}, {0, math.MaxUint64, math.MaxUint64}} {
		if got := risen(c.was, c.is); got != c.want {
			t.Errorf("from %d to %d: %d, want %d", c.was, c.is, got, c.want)
		}
	}
}
