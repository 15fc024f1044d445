package stats

import (
	"math/bits"
	"time"
)

// Hist counts durations by powers of two of nanoseconds: bucket i holds
// durations below 1<<i ns and not below half of that.
type Hist struct {
	Bucket [48]uint64
	Sum    time.Duration
	Count  uint64
}

// Add counts one duration; negative ones count as zero.
func (h *Hist) Add(d time.Duration) {
	d = max(d, 0)
	h.Bucket[min(bits.Len64(uint64(d)), len(h.Bucket)-1)]++
	h.Sum += d
	h.Count++
}

// Merge adds the counts of o.
func (h *Hist) Merge(o *Hist) {
	for i, n := range o.Bucket {
		h.Bucket[i] += n
	}
	h.Sum += o.Sum
	h.Count += o.Count
}
