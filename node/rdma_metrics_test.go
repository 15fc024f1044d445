package node

import "testing"

// TestRDMADevices: metrics are told of each device, with rxe's names of counters, and of none
// when there are none any more.
func TestRDMADevices(t *testing.T) {
	n := rdmaNode(t, freePort(t), freePort(t))
	if l := n.rdmaDevices(); len(l) != 0 {
		t.Errorf("%d devices before the daemon runs", len(l))
	}
	stop := startNode(t, n)
	l := n.rdmaDevices()
	if len(l) != 1 || l[0].Addr != n.deps.Config.RDS.Addresses[0] || l[0].MTU != 4096 {
		t.Fatalf("devices are %+v", l)
	}
	names := map[string]bool{}
	for _, c := range l[0].Counters {
		names[c.Name] = true
	}
	for _, want := range []string{"sent_pkts", "duplicate_request", "out_of_seq_request", "link_downed", "drop_icrc", "send_full"} {
		if !names[want] {
			t.Errorf("no counter %s", want)
		}
	}
	stop()
	if l := n.rdmaDevices(); len(l) != 0 {
		t.Errorf("%d devices after the daemon has ended", len(l))
	}
}
