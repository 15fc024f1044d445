package stats

import (
	"math"
	"testing"
	"time"
)

// TestHist: bucket i holds what is below 1<<i ns and not below half of that; the last holds
// the rest, and what is negative counts as nothing.
func TestHist(t *testing.T) {
	var h, sum Hist
	for _, x := range []struct {
		d      time.Duration
		bucket int
	}{
		{-1, 0}, {math.MinInt64, 0}, {0, 0}, {1, 1}, {2, 2}, {3, 2}, {4, 3}, {1023, 10}, {1024, 11},
		{1<<46 - 1, 46}, {1 << 46, 47}, {1 << 47, 47}, {1 << 60, 47},
	} {
		one := Hist{}
		one.Add(x.d)
		if one.Bucket[x.bucket] != 1 || one.Count != 1 || one.Sum != max(x.d, 0) {
			t.Errorf("%d ns: %+v, want bucket %d", int64(x.d), one, x.bucket)
		}
		h.Add(x.d)
		sum.Merge(&one)
	}
	if h != sum {
		t.Errorf("merged %+v, added %+v", sum, h)
	}
	n := uint64(0)
	for _, k := range h.Bucket {
		n += k
	}
	if n != h.Count || n != 13 {
		t.Errorf("%d in buckets, %d counted", n, h.Count)
	}
}
