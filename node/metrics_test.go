package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdsd/rdsd/internal/counters"
)

func busyStats() stats {
	s := stats{
		kernel:  counters.KernelTable.Read(nil, &counters.Kernel{ConnReset: 2, SendQueued: 7}),
		budgets: []budget{{"memory", 10, 100, 1}},
		peersUp: 1, sockets: 4,
	}
	for i := range 3 {
		s.peers = append(s.peers, peerStats{local: "10.0.0.1", remote: fmt.Sprintf("10.0.0.%d", 2+i), up: i == 0,
			kernel: counters.KernelTable.Read(nil, &counters.Kernel{SendQueued: uint64(i), RecvQueued: 1})})
	}
	return s
}

func TestMetricsLint(t *testing.T) {
	n, _ := newFakeNode(t, testConfig(t), &fakeCore{stats: busyStats()})
	n.hist.roundTrip.Observe(0.001)
	problems, err := testutil.GatherAndLint(n.registry)
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
	n, _ := newFakeNode(t, testConfig(t), &fakeCore{stats: busyStats()})
	n.count.Panics.Add(5)
	want := `
# HELP rds_conn_reset_total Links that went down after they had been up, or were reset on an error.
# TYPE rds_conn_reset_total counter
rds_conn_reset_total 2
# HELP rds_peer_send_queued_total Of one peer: Datagrams accepted and queued for sending.
# TYPE rds_peer_send_queued_total counter
rds_peer_send_queued_total{local="10.0.0.1",peer="10.0.0.3"} 1
rds_peer_send_queued_total{local="10.0.0.1",peer="10.0.0.4"} 2
# HELP rdsd_budget_used How much of a configured limit is used.
# TYPE rdsd_budget_used gauge
rdsd_budget_used{budget="memory"} 10
# HELP rdsd_panics_total Calls that ended in a panic. Any is a bug; the log has the stack.
# TYPE rdsd_panics_total counter
rdsd_panics_total 5
# HELP rdsd_peer_up 1 while a path to the peer is up.
# TYPE rdsd_peer_up gauge
rdsd_peer_up{local="10.0.0.1",peer="10.0.0.2"} 1
rdsd_peer_up{local="10.0.0.1",peer="10.0.0.3"} 0
rdsd_peer_up{local="10.0.0.1",peer="10.0.0.4"} 0
`
	err := testutil.GatherAndCompare(n.registry, strings.NewReader(want), "rds_conn_reset_total", "rds_peer_send_queued_total",
		"rdsd_budget_used", "rdsd_panics_total", "rdsd_peer_up")
	if err != nil {
		t.Error(err)
	}
}

// No label that an outsider can grow without bound.
func TestMetricsPeersAreBounded(t *testing.T) {
	s := stats{kernel: counters.KernelTable.Read(nil, &counters.Kernel{})}
	for i := range maxPeersInMetrics + 100 {
		s.peers = append(s.peers, peerStats{remote: fmt.Sprint(i), kernel: counters.KernelTable.Read(nil, &counters.Kernel{SendQueued: uint64(i)})})
	}
	n, _ := newFakeNode(t, testConfig(t), &fakeCore{stats: s})
	got, err := testutil.GatherAndCount(n.registry, "rdsd_peer_up")
	if err != nil || got != maxPeersInMetrics {
		t.Errorf("%d peers shown (%v), want %d", got, err, maxPeersInMetrics)
	}
	if err := testutil.GatherAndCompare(n.registry, strings.NewReader(`
# HELP rdsd_metrics_peers_omitted Peers left out of this page because there are too many.
# TYPE rdsd_metrics_peers_omitted gauge
rdsd_metrics_peers_omitted 100
`), "rdsd_metrics_peers_omitted"); err != nil {
		t.Error(err)
	}
	if top := busiest(s.peers, 1); top[0].remote != fmt.Sprint(maxPeersInMetrics+99) {
		t.Errorf("busiest peer is %s", top[0].remote)
	}
}

func TestOperationsListsEveryMetric(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(testConfig(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	families, err := n.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		name := f.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "grpc_") {
			continue
		}
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/operations.md does not list %s", name)
		}
	}
}
