package stats

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// kernelNames is what rds-info -c of a Linux 6.1 prints, general and TCP, in its order.
var kernelNames = strings.Fields(`
	conn_reset recv_drop_bad_checksum recv_drop_old_seq recv_drop_no_sock recv_drop_dead_sock
	recv_deliver_raced recv_delivered recv_queued recv_immediate_retry recv_delayed_retry
	recv_ack_required recv_rdma_bytes recv_ping send_queue_empty send_queue_full send_lock_contention
	send_lock_queue_raced send_immediate_retry send_delayed_retry send_drop_acked send_ack_required
	send_queued send_rdma send_rdma_bytes send_pong page_remainder_hit page_remainder_miss copy_to_user
	copy_from_user cong_update_queued cong_update_received cong_send_error cong_send_blocked
	recv_bytes_added_to_sock recv_bytes_freed_fromsock send_stuck_rm tcp_data_ready_calls
	tcp_write_space_calls tcp_sndbuf_full tcp_connect_raced tcp_listen_closed_stale`)

// TestFields: names are unique, fit for a metric, explained, and the kernel's
// come first, in the order rds-info -c prints them.
func TestFields(t *testing.T) {
	ok := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := map[string]bool{}
	var kernel []string
	own := false
	for _, f := range Fields {
		if !ok.MatchString(f.Name) || f.Help == "" || seen[f.Name] {
			t.Errorf("field %+v", f)
		}
		seen[f.Name] = true
		if f.Own {
			own = true
		} else {
			if own {
				t.Errorf("%s of the kernel stands behind our own", f.Name)
			}
			kernel = append(kernel, f.Name)
		}
	}
	if !slices.Equal(kernel, kernelNames) {
		t.Errorf("the kernel's counters are\n%v\nwant\n%v", kernel, kernelNames)
	}
}

func TestValuesAndAdd(t *testing.T) {
	var a, b Counters
	a.ConnReset, a.MemoryRefused = 1, 2
	b.ConnReset, b.RecvPing = 10, 20
	a.Add(&b)
	v := a.Values(nil)
	if len(v) != len(Fields) {
		t.Fatalf("%d values of %d fields", len(v), len(Fields))
	}
	sum := uint64(0)
	for i, f := range Fields {
		sum += v[i]
		want := map[string]uint64{"conn_reset": 11, "recv_ping": 20, "memory_refused": 2}[f.Name]
		if v[i] != want {
			t.Errorf("%s is %d, want %d", f.Name, v[i], want)
		}
	}
	if b.ConnReset != 10 {
		t.Error("Add changed what it added")
	}
}
