package service

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
)

var rewrite = flag.Bool("update", false, "rewrite the table of docs/monitoring.md")

// TestMonitoringListsEveryMetric: the table in docs/monitoring.md is what a node with
// something of everything shows; -update rewrites it.
func TestMonitoringListsEveryMetric(t *testing.T) {
	doctable.Check(t, "../../docs/monitoring.md", "./node/service -run TestMonitoringListsEveryMetric -update", *rewrite, doctable.Table{Name: "metrics", Text: metricTable(t)})
}

func metricTable(t *testing.T) string {
	t.Helper()
	n := newWorld(t, clienttest.Config(t), world{})
	r := newRegistry(newCollector(func(s *snapshot) {
		s.Snapshot = busySnapshot()
		c := reflect.ValueOf(&s.Peers[0].Counters).Elem()
		for f := range c.NumField() {
			c.Field(f).SetUint(1)
		}
		s.holders = []base.Budget{{Name: "memory of uid 7", Used: 1}}
	}, n.deps.Count, n.deps.Guard), newQueueCollector(busyFigures, nil), newProblemCollector(busyProblems, nil), newVolumeCollector(busyVolumes, nil), newRDMACollector(busyRDMA))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, f := range families {
		name := f.GetName()
		ofPeer := strings.HasPrefix(f.GetHelp(), "of one peer: ") // told of as a group
		if !ofPeer && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, "`"+l.GetName()+"`")
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), strings.TrimSuffix(f.GetHelp(), "."))
		}
	}
	return b.String()
}

// Every metric of a fresh node is on the page, and every one has a help text.
func TestOperationsListsEveryMetric(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile(filepath.Join("..", "..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := newWorld(t, clienttest.Config(t), world{snap: busySnapshot()})
	families, err := n.services.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		name := f.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "grpc_") {
			continue
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		if strings.HasPrefix(name, "rds_peer_") {
			continue // told of as a group
		}
		if strings.HasPrefix(name, "rdsd_peer_") && strings.HasSuffix(name, "_total") && strings.HasPrefix(f.GetHelp(), "of one peer: ") {
			continue
		}
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(more), "`"+name+"`") {
			t.Errorf("neither docs/operations.md nor docs/monitoring.md lists %s", name)
		}
	}
}

// busyRDMA is a node with a device.
func busyRDMA() []RDMADevice {
	return []RDMADevice{{Addr: netip.MustParseAddr("10.0.0.1"), MTU: 4096, QueuePairs: 3, Keys: 40, Counters: []RDMACounter{{"sent_pkts", 7}}}}
}
