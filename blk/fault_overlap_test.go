package blk

import (
	"math"
	"testing"
)

// TestOverlap: a rule with a range harms what has a byte in it, and nothing that only touches it.
func TestOverlap(t *testing.T) {
	const end = math.MaxUint64
	for _, c := range []struct {
		a, an, b, bn uint64
		want         bool
	}{
		{8, 4, 8, 4, true},
		{8, 4, 4, 4, false}, // before it
		{8, 4, 4, 5, true},
		{8, 4, 12, 4, false}, // behind it
		{8, 4, 11, 1, true},
		{8, 4, 9, 1, true}, // within
		{8, 4, 0, 100, true},
		{8, 0, 0, 100, false}, // a flush has no bytes
		{0, 4, 100, 4, false},
		{end - 1, 1, 0, 1, false},
		{0, end, end - 1, 1, true}, // the sum would be too large
		{end - 8, 16, end - 1, 4, true},
	} {
		if overlap(c.a, c.an, c.b, c.bn) != c.want || overlap(c.b, c.bn, c.a, c.an) != c.want {
			t.Errorf("%d bytes at %d and %d at %d: want %v", c.an, c.a, c.bn, c.b, c.want)
		}
	}
}
