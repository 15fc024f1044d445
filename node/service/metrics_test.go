package service

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/datagram"
)

func busySnapshot() datagram.Snapshot {
	s := datagram.Snapshot{
		Counters: stats.Counters{ConnReset: 2, SendQueued: 7},
		Budgets:  []base.Budget{{Name: "memory", Used: 10, Limit: 100, Refused: 1}},
	}
	for i := range 3 {
		p := datagram.PeerSnapshot{Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}), Up: i == 0}
		p.Counters.SendQueued = uint64(i)
		p.Counters.SentFrames = uint64(i)
		s.Peers = append(s.Peers, p)
	}
	for _, d := range []time.Duration{0, 1, 500, 1000, 1500 * time.Microsecond, time.Second, time.Hour} {
		s.Queueing.Add(d)
	}
	return s
}

func TestMetricsLint(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), world{snap: busySnapshot()})
	problems, err := testutil.GatherAndLint(n.services.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "go_") { // the Go collector's names are not ours
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestMetricsValues(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), world{snap: busySnapshot()})
	for range 5 {
		n.deps.Guard.Do(guard.Call, func() { panic("a test") })
	}
	want := `
# HELP rds_conn_reset_total links lost or dropped
# TYPE rds_conn_reset_total counter
rds_conn_reset_total 2
# HELP rds_peer_send_queued_total of one peer: datagrams accepted
# TYPE rds_peer_send_queued_total counter
rds_peer_send_queued_total{local="10.0.0.1",peer="10.0.0.3"} 1
rds_peer_send_queued_total{local="10.0.0.1",peer="10.0.0.4"} 2
# HELP rdsd_budget_used How much of a configured limit is used.
# TYPE rdsd_budget_used gauge
rdsd_budget_used{budget="clients"} 0
rdsd_budget_used{budget="descriptors"} 0
rdsd_budget_used{budget="memory"} 10
rdsd_budget_used{budget="memory_calls"} 0
rdsd_budget_used{budget="memory_chunks"} 0
rdsd_budget_used{budget="memory_clients"} 0
rdsd_budget_used{budget="memory_control"} 0
rdsd_budget_used{budget="memory_handshakes"} 0
rdsd_budget_used{budget="memory_partial"} 0
rdsd_budget_used{budget="memory_page"} 0
rdsd_budget_used{budget="memory_peers"} 0
rdsd_budget_used{budget="memory_received"} 0
rdsd_budget_used{budget="memory_regions"} 0
rdsd_budget_used{budget="memory_requests"} 0
rdsd_budget_used{budget="memory_sending"} 0
rdsd_budget_used{budget="memory_sockets"} 0
rdsd_budget_used{budget="memory_stores"} 0
rdsd_budget_used{budget="memory_traces"} 0
rdsd_budget_used{budget="memory_waiting"} 0
rdsd_budget_used{budget="sockets"} 0
# HELP rdsd_panics_total Panics that ended one call, socket, link, ... alone. Any is a bug; the log has the stack.
# TYPE rdsd_panics_total counter
rdsd_panics_total{what="accept"} 0
rdsd_panics_total{what="call"} 5
rdsd_panics_total{what="dial"} 0
rdsd_panics_total{what="link"} 0
rdsd_panics_total{what="page"} 0
rdsd_panics_total{what="socket"} 0
rdsd_panics_total{what="task"} 0
rdsd_panics_total{what="volume"} 0
# HELP rdsd_peer_up 1 while a lane to the peer is up.
# TYPE rdsd_peer_up gauge
rdsd_peer_up{local="10.0.0.1",peer="10.0.0.2"} 1
rdsd_peer_up{local="10.0.0.1",peer="10.0.0.3"} 0
rdsd_peer_up{local="10.0.0.1",peer="10.0.0.4"} 0
`
	err := testutil.GatherAndCompare(n.services.registry, strings.NewReader(want), "rds_conn_reset_total", "rds_peer_send_queued_total",
		"rdsd_budget_used", "rdsd_panics_total", "rdsd_peer_up")
	if err != nil {
		t.Error(err)
	}
}

// No label that an outsider can grow without bound, and what is down, which may never have had
// traffic, is shown first, in half of the places for sure and in no more.
func TestMetricsPeersAreBounded(t *testing.T) {
	shown := func(down int) string {
		var s datagram.Snapshot
		for i := range maxPeersInMetrics + 100 + down {
			p := datagram.PeerSnapshot{Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Up: true}
			if p.Counters.ReceivedFrames = uint64(i + 1); i >= maxPeersInMetrics+100 {
				p.Counters.ReceivedFrames, p.Up, p.Waiting = 0, false, 1
			}
			s.Peers = append(s.Peers, p)
		}
		n := newWorld(t, clienttest.Config(t), world{snap: s})
		got, err := testutil.GatherAndCount(n.services.registry, "rdsd_peer_up")
		if err != nil || got != maxPeersInMetrics {
			t.Errorf("%d peers shown (%v), want %d", got, err, maxPeersInMetrics)
		}
		if err := testutil.GatherAndCompare(n.services.registry, strings.NewReader(fmt.Sprintf(`
# HELP rdsd_metrics_peers_omitted Peers left out of this page because there are too many.
# TYPE rdsd_metrics_peers_omitted gauge
rdsd_metrics_peers_omitted %d
`, 100+down)), "rdsd_metrics_peers_omitted"); err != nil {
			t.Error(err)
		}
		w := httptest.NewRecorder()
		promhttp.HandlerFor(n.services.registry, metricsOptions).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	for down, want := range map[int]int{0: 0, 3: 3, 1000: maxPeersInMetrics / 2} {
		page, got := shown(down), 0
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "rdsd_peer_up{") && strings.HasSuffix(line, " 0\n") {
				got++
			}
		}
		if got != want {
			t.Errorf("%d of %d peers that are down are shown, want %d", got, down, want)
		}
		if busiest := `rdsd_peer_up{local="10.0.0.1",peer="10.0.1.99"} 1`; !strings.Contains(page, busiest) {
			t.Errorf("beside %d that are down the busiest peer is not shown", down)
		}
	}
}

// The native form must hold the same observations as the classic one.
func TestHistogramForms(t *testing.T) {
	snap := busySnapshot()
	var out dto.Metric
	c := newCollector(nil, nil, nil)
	if err := (&histMetric{c.queueing, &snap.Queueing, nil}).Write(&out); err != nil {
		t.Fatal(err)
	}
	h := out.GetHistogram()
	if h.GetSampleCount() != 7 {
		t.Errorf("%d samples, want 7", h.GetSampleCount())
	}
	var before uint64
	for _, b := range h.GetBucket() {
		want := uint64(0)
		for _, d := range []float64{0, 1e-9, 500e-9, 1000e-9, 1500e-6, 1, 3600} {
			if d <= b.GetUpperBound() {
				want++
			}
		}
		if b.GetCumulativeCount() != want || b.GetCumulativeCount() < before {
			t.Errorf("up to %g s: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
		before = b.GetCumulativeCount()
	}
	total, value, n := int64(h.GetZeroCount()), int64(0), 0
	for _, span := range h.GetPositiveSpan() {
		for range span.GetLength() {
			value += h.GetPositiveDelta()[n]
			total += value
			n++
		}
	}
	if total != 7 || n != len(h.GetPositiveDelta()) {
		t.Errorf("native buckets hold %d of 7 in %d of %d deltas", total, n, len(h.GetPositiveDelta()))
	}
}

// TestOneWrongSeries: it does not cost the page all the others.
func TestOneWrongSeries(t *testing.T) {
	d := prometheus.NewDesc("rdsd_twice", "Twice.", nil, nil)
	r := newRegistry(prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		for range 2 {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1)
		}
	}))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, metricsOptions).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), "\nrdsd_build_info{") {
		t.Errorf("%d %.200s", w.Code, w.Body)
	}
}
