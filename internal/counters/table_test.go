package counters

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// kernelNames is what `rds-info -c` prints on Linux 6.1 with rds_tcp loaded.
const kernelNames = `conn_reset recv_drop_bad_checksum recv_drop_old_seq recv_drop_no_sock
recv_drop_dead_sock recv_deliver_raced recv_delivered recv_queued recv_immediate_retry
recv_delayed_retry recv_ack_required recv_rdma_bytes recv_ping send_queue_empty send_queue_full
send_lock_contention send_lock_queue_raced send_immediate_retry send_delayed_retry
send_drop_acked send_ack_required send_queued send_rdma send_rdma_bytes send_pong
page_remainder_hit page_remainder_miss copy_to_user copy_from_user cong_update_queued
cong_update_received cong_send_error cong_send_blocked recv_bytes_added_to_sock
recv_bytes_freed_fromsock send_stuck_rm
tcp_data_ready_calls tcp_write_space_calls tcp_sndbuf_full tcp_connect_raced
tcp_listen_closed_stale`

func TestKernelNamesAndOrder(t *testing.T) {
	want := strings.Fields(kernelNames)
	got := KernelTable.Descs()
	if len(got) != len(want) {
		t.Fatalf("%d counters, want %d", len(got), len(want))
	}
	for i, w := range want {
		if got[i].Name != w {
			t.Errorf("counter %d is %s, want %s", i, got[i].Name, w)
		}
		if !strings.HasSuffix(got[i].Help, ".") {
			t.Errorf("%s: help %q is not a sentence", w, got[i].Help)
		}
	}
}

func TestKernelCountersAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range KernelTable.Descs() {
		if !strings.Contains(string(page), "`rds_"+d.Name+"_total`") {
			t.Errorf("docs/operations.md does not list rds_%s_total", d.Name)
		}
	}
}

func TestReadAndAdd(t *testing.T) {
	type two struct {
		A uint64        `counter:"a" help:"Plain."`
		B atomic.Uint64 `counter:"b" help:"Atomic."`
	}
	tab := NewTable[two]()
	var x two
	x.A++
	x.B.Add(7)
	if got := tab.Read(nil, &x); len(got) != 2 || got[0] != 1 || got[1] != 7 {
		t.Errorf("Read = %v, want [1 7]", got)
	}
	sum := []uint64{10, 10}
	tab.Add(sum, &x)
	if sum[0] != 11 || sum[1] != 17 {
		t.Errorf("Add = %v, want [11 17]", sum)
	}
}

func TestNewTableRefusesBadFields(t *testing.T) {
	mustPanic := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		f()
	}
	mustPanic("type", func() {
		NewTable[struct {
			A int `counter:"a" help:"A."`
		}]()
	})
	mustPanic("no help", func() {
		NewTable[struct {
			A uint64 `counter:"a"`
		}]()
	})
	mustPanic("twice", func() {
		NewTable[struct {
			A uint64 `counter:"a" help:"A."`
			B uint64 `counter:"a" help:"B."`
		}]()
	})
}

func BenchmarkIncrement(b *testing.B) {
	var k Kernel
	for b.Loop() {
		k.RecvDelivered++
	}
	if k.RecvDelivered == 0 {
		b.Fatal("nothing counted")
	}
}
