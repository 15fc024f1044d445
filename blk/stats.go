package blk

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latencyBuckets is the number of buckets: one below 256 ns, then four for each power of
// two; the last one begins at 120 s and has no end.
const latencyBuckets = 1 + 4*29

const latencyShift = 8 // 256 ns

// Stats counts the requests that pass to a device. Reading it costs the data path nothing
// but the counters themselves.
type Stats struct {
	Device
	clock  func() int64 // ns, monotonic
	failed atomic.Int64 // when a request failed last, 0: none did
	ops    [numOps]opStats
}

type opStats struct {
	submitted, completed, errors, bytes atomic.Uint64
	nanos                               atomic.Uint64
	latency                             [latencyBuckets]atomic.Uint64
}

// NewStats puts counters over a device.
func NewStats(d Device) *Stats {
	start := time.Now()
	return &Stats{Device: d, clock: func() int64 { return int64(time.Since(start)) }}
}

// Submit stamps the batch once and hands it on.
func (s *Stats) Submit(batch []*Request) {
	now := s.clock()
	for _, r := range batch {
		if r.Op < numOps {
			s.ops[r.Op].submitted.Add(1)
		}
		setHook(r, s, now)
	}
	s.Device.Submit(batch)
}

// Complete is called by the device below.
func (s *Stats) Complete(batch []*Request) {
	now := s.clock()
	for _, r := range batch {
		since := unhook(r)
		if r.Op >= numOps {
			continue
		}
		o := &s.ops[r.Op]
		o.completed.Add(1)
		if r.Err != nil {
			o.errors.Add(1)
			s.failed.Store(max(now, 1))
		} else {
			o.bytes.Add(r.Len)
		}
		took := uint64(max(now-since, 0))
		o.nanos.Add(took)
		o.latency[bucket(took)].Add(1)
	}
	Complete(batch)
}

// FailedAgo is how long ago a request failed last; 0: none did.
func (s *Stats) FailedAgo() time.Duration {
	at := s.failed.Load()
	if at == 0 {
		return 0
	}
	return time.Duration(max(s.clock()-at, 1))
}

// bucket is the number of the bucket a latency falls into.
func bucket(ns uint64) int {
	v := ns >> latencyShift
	if v == 0 {
		return 0
	}
	e := bits.Len64(v) - 1
	// Of the latency itself: below 1 µs v has no bits left that say which quarter it is.
	quarter := ns >> (latencyShift + e - 2) & 3
	return min(1+4*e+int(quarter), latencyBuckets-1)
}

// bucketEnd is the first latency beyond a bucket.
func bucketEnd(i int) time.Duration {
	if i == 0 {
		return 1 << latencyShift
	}
	e, quarter := (i-1)/4, (i-1)%4
	return time.Duration(4+quarter+1) << (latencyShift + e) / 4
}

// OpCounts counts the requests of one operation since the layer was made.
type OpCounts struct {
	Submitted, Completed uint64
	Errors               uint64 // of the completed
	Bytes                uint64 // of those without error
	Time                 time.Duration
	Latency              [latencyBuckets]uint64 // completed requests by duration; LatencyBound
}

// InFlight is how many requests have not completed. Between the two counters a
// request may slip through, so it is a picture, not an account.
func (c *OpCounts) InFlight() uint64 { return max(c.Submitted, c.Completed) - c.Completed }

// Add adds what another device counted.
func (c *OpCounts) Add(n *OpCounts) {
	c.Submitted += n.Submitted
	c.Completed += n.Completed
	c.Errors += n.Errors
	c.Bytes += n.Bytes
	c.Time += n.Time
	for i := range n.Latency {
		c.Latency[i] += n.Latency[i]
	}
}

// LatencyBound is the upper bound of bucket i of OpCounts.Latency; the last
// bucket has none and gives 0.
func LatencyBound(i int) time.Duration {
	if i >= latencyBuckets-1 {
		return 0
	}
	return bucketEnd(i)
}

// Quantile is the latency that the share q of the requests did not exceed, at
// most a quarter too high; 0 when there were none.
func (c *OpCounts) Quantile(q float64) time.Duration {
	var total uint64
	for _, n := range c.Latency {
		total += n
	}
	rank, seen := uint64(q*float64(total)), uint64(0)
	for i, n := range c.Latency {
		if seen += n; n > 0 && seen >= max(rank, 1) {
			return bucketEnd(min(i, latencyBuckets-2))
		}
	}
	return 0
}

// Counts is the present state, by operation.
func (s *Stats) Counts() (c [NumOps]OpCounts) {
	for i := range s.ops {
		o := &s.ops[i]
		c[i] = OpCounts{
			Completed: o.completed.Load(), // first, so that InFlight is not negative
			Errors:    o.errors.Load(),
			Bytes:     o.bytes.Load(),
			Time:      time.Duration(o.nanos.Load()),
		}
		c[i].Submitted = o.submitted.Load()
		for b := range o.latency {
			c[i].Latency[b] = o.latency[b].Load()
		}
	}
	return c
}

// Unwrap is the device below.
func (s *Stats) Unwrap() Device { return s.Device }
