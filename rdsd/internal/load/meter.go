package load

import (
	"maps"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is what happened in an interval, or in all (with Final). Times are
// nanoseconds.
type Report struct {
	Final     bool    `json:"final"`
	Elapsed   float64 `json:"t"` // seconds since the start
	Sent      uint64  `json:"sent"`
	Done      uint64  `json:"done"`    // delivered, or acknowledged by the responder
	Failed    uint64  `json:"failed"`  // failed, cancelled or unknown
	Damaged   uint64  `json:"damaged"` // wrong contents or wrong order
	Missing   uint64  `json:"missing"` // Final: neither done nor failed at the end
	Bytes     uint64  `json:"bytes"`   // of what was done
	PerSecond float64 `json:"done_per_s"`
	MiBps     float64 `json:"mib_per_s"`
	Mean      int64   `json:"mean_ns"`
	P50       int64   `json:"p50_ns"`
	P90       int64   `json:"p90_ns"`
	P99       int64   `json:"p99_ns"`
	P999      int64   `json:"p999_ns"`
	Max       int64   `json:"max_ns"`

	Reasons map[string]uint64 `json:"-"` // Final: of how many that failed which was the outcome's reason
}

// meter collects the results of all tasks.
type meter struct {
	start time.Time

	mu         sync.Mutex
	now, all   Report                  // guarded by mu; now: this interval
	hNow, hAll *hdrhistogram.Histogram // guarded by mu
	reasons    map[string]uint64       // guarded by mu; of all that failed
	last, end  time.Time               // guarded by mu; end: when it was frozen
}

func newMeter(start time.Time) *meter {
	h := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }
	return &meter{start: start, last: start, hNow: h(), hAll: h(), reasons: map[string]uint64{}}
}

func (m *meter) sent(n int) {
	m.mu.Lock()
	m.now.Sent += uint64(n)
	m.mu.Unlock()
}

// done records one datagram that reached its end well.
func (m *meter) done(bytes int, latency time.Duration) {
	v := min(max(int64(latency), 1), int64(time.Minute))
	m.mu.Lock()
	m.now.Done++
	m.now.Bytes += uint64(bytes)
	m.hNow.RecordValue(v)
	m.mu.Unlock()
}

func (m *meter) failed(reason string) {
	m.mu.Lock()
	m.now.Failed++
	m.reasons[reason]++
	m.mu.Unlock()
}

func (m *meter) damaged() {
	m.mu.Lock()
	m.now.Damaged++
	m.mu.Unlock()
}

// fold moves the interval into the totals. Called with mu held.
func (m *meter) fold() {
	m.all.Sent += m.now.Sent
	m.all.Done += m.now.Done
	m.all.Failed += m.now.Failed
	m.all.Damaged += m.now.Damaged
	m.all.Bytes += m.now.Bytes
	m.hAll.Merge(m.hNow)
	m.now = Report{}
	m.hNow.Reset()
}

// interval returns what happened since it was last called.
func (m *meter) interval() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.now
	r.finish(m.hNow, now.Sub(m.start), now.Sub(m.last))
	m.last = now
	m.fold()
	return r
}

// freeze fixes the time the totals are averaged over.
func (m *meter) freeze() {
	m.mu.Lock()
	m.end = time.Now()
	m.mu.Unlock()
}

func (m *meter) total() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fold()
	if m.end.IsZero() {
		m.end = time.Now()
	}
	r := m.all
	r.Final = true
	r.Reasons = maps.Clone(m.reasons)
	if r.Sent > r.Done+r.Failed {
		r.Missing = r.Sent - r.Done - r.Failed
	}
	r.finish(m.hAll, m.end.Sub(m.start), m.end.Sub(m.start))
	return r
}

func (r *Report) finish(h *hdrhistogram.Histogram, elapsed, over time.Duration) {
	r.Elapsed = elapsed.Seconds()
	if s := over.Seconds(); s > 0 {
		r.PerSecond = float64(r.Done) / s
		r.MiBps = float64(r.Bytes) / s / (1 << 20)
	}
	r.Mean, r.Max = int64(h.Mean()), h.Max()
	r.P50, r.P90, r.P99, r.P999 = h.ValueAtQuantile(50), h.ValueAtQuantile(90), h.ValueAtQuantile(99), h.ValueAtQuantile(99.9)
}
