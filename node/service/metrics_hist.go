package service

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rdsd/rdsd/internal/stats"
)

// histMetric shows a histogram of the core to Prometheus, with classic and
// native buckets. The core counts by powers of two of nanoseconds; native
// buckets of schema 0 are powers of two of seconds. 2^30 ns is 7 % more than a
// second, which is little against buckets that double, so bucket i (up to 2^i
// ns) becomes native bucket i-30 (up to 2^(i-30) s).
type histMetric struct {
	desc   *prometheus.Desc
	h      *stats.Hist
	labels []string // values, in the order of desc
}

const (
	firstClassic = 10 // bounds of the classic buckets: 2^10 ns (about 1 us)
	lastClassic  = 34 // to 2^34 ns (about 17 s)
	stepClassic  = 2  // each four times the one before
)

// Desc implements prometheus.Metric.
func (m *histMetric) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m *histMetric) Write(out *dto.Metric) error {
	h := &dto.Histogram{SampleCount: &m.h.Count}
	sum := m.h.Sum.Seconds()
	h.SampleSum = &sum
	var below uint64
	next := firstClassic
	for i, n := range m.h.Bucket {
		below += n
		if i == next && i <= lastClassic {
			bound, cumulative := math.Ldexp(1, i)/1e9, below
			h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: &cumulative})
			next += stepClassic
		}
	}
	m.native(h)
	out.Histogram = h
	out.Label = prometheus.MakeLabelPairs(m.desc, m.labels)
	return nil
}

// native adds the sparse form: runs of buckets that are not empty, each bucket
// as the difference to the one before.
func (m *histMetric) native(h *dto.Histogram) {
	schema, threshold, zero := int32(0), 1e-9, m.h.Bucket[0]
	h.Schema, h.ZeroThreshold, h.ZeroCount = &schema, &threshold, &zero
	var before int64
	end := int32(math.MinInt32) // index behind the last bucket of the last span
	for i := 1; i < len(m.h.Bucket); i++ {
		if m.h.Bucket[i] == 0 {
			continue
		}
		index := int32(i - 30)
		if index != end || len(h.PositiveSpan) == 0 {
			offset := index
			if len(h.PositiveSpan) > 0 {
				offset = index - end
			}
			length := uint32(0)
			h.PositiveSpan = append(h.PositiveSpan, &dto.BucketSpan{Offset: &offset, Length: &length})
		}
		*h.PositiveSpan[len(h.PositiveSpan)-1].Length++
		end = index + 1
		h.PositiveDelta = append(h.PositiveDelta, int64(m.h.Bucket[i])-before)
		before = int64(m.h.Bucket[i])
	}
	if len(h.PositiveSpan) == 0 && zero == 0 { // tells an empty native histogram from none
		offset, length := int32(0), uint32(0)
		h.PositiveSpan = []*dto.BucketSpan{{Offset: &offset, Length: &length}}
	}
}
