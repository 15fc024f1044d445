package node

import (
	"strings"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
)

// TestLongLivedStream: a stream that has carried many datagrams, each in a message of its
// own, holds no more of its user's account than after the first ones.
func TestLongLivedStream(t *testing.T) {
	n, cfg := startOne(t)
	a, b := mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0)), mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	credit := &rdsdv1.Credit{}
	credit.SetDatagrams(1 << 30)
	credit.SetBytes(1 << 38)
	m := &rdsdv1.ClientMessage{}
	m.SetCredit(credit)
	if err := b.stream.Send(m); err != nil {
		t.Fatal(err)
	}
	const rounds = 6000
	var first int64
	for i := range uint64(rounds) {
		for _, size := range []int{20, 3000} {
			m := &rdsdv1.ClientMessage{}
			m.SetSend(batchOf(i, b.local, strings.Repeat("x", size)))
			if err := a.stream.Send(m); err != nil {
				t.Fatal(err)
			}
			if _, err := a.stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if _, err := b.stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		// What was received is settled when gRPC gives window for it again, each 64 KiB.
		if used := n.deps.Memory.Kinds()[quota.Calls].Used; i < rounds/10 {
			first = max(first, used)
		} else if used > first+64<<10 {
			t.Fatalf("%d bytes are charged after %d rounds, at most %d in the first %d", used, i, first, rounds/10)
		}
	}
}
