package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/shm"
)

// TestNothingIsAppendedBeforeAPoint: what is posted after a Cancel was answered, or a Flush was read, is no matter of
// theirs, though a descriptor stands before the point that the daemon has not taken, for want of memory, and that
// the client would append to.
func TestNothingIsAppendedBeforeAPoint(t *testing.T) {
	for what, flush := range map[string]bool{"cancel": false, "flush": true} {
		t.Run(what, func(t *testing.T) {
			n, cfg := startClients(t)
			r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
			defer r.Close()
			first, to := netip.AddrPortFrom(clienttest.Nobody.Addr(), 8), clienttest.Nobody
			var tag uint64
			r.Post(t, first, 1, 1, &tag) // it knows the peer
			if got := undecided(t, r, 1); got != 1 {
				t.Errorf("%d are undecided of the first", got)
			}
			hog := n.deps.Memory.Account(quota.User(4711))
			all := n.deps.Memory.Limit()
			hog.Grow(quota.Waiting, all)
			before := n.deps.Budget.RefusedSending()
			r.Post(t, first, 1, 1, &tag)
			await.Until(t, 5*time.Second, "somebody asks for memory", func() bool { return n.deps.Budget.RefusedSending() > before })
			r.Post(t, to, 1, 1, &tag)
			if flush {
				r.Ask(t, clienttest.FlushOf(2, 0))
			}
			r.Ask(t, clienttest.CancelOf(3, map[bool]netip.AddrPort{false: to, true: netip.MustParseAddrPort("127.0.99.98:1")}[flush]))
			if res := r.Answer(t).GetCancelResult(); res.GetId() != 3 || res.GetErrno() != 0 || res.GetCancelled() != 0 {
				t.Fatalf("it is answered by %v", res)
			}
			if tag++; r.Send.Append(r.Send.Known(to), []byte{1}, tag) {
				t.Error("a datagram is posted before a point that was told")
			} else {
				tag--
				r.Post(t, to, 1, 1, &tag)
			}
			hog.Give(quota.Waiting, all)
			await.Until(t, 5*time.Second, "there is memory, and all are taken", func() bool {
				return r.Region.SendHead().Load() == r.Region.SendTail().Load()
			})
			want := 1
			if flush {
				want = 0
			}
			if got := undecided(t, r, 4); got != 4-want {
				t.Errorf("%d are undecided, want %d", got, 4-want)
			}
			if got := r.Outcomes(t)[shm.Cancelled]; got != want {
				t.Errorf("%d are cancelled, want %d", got, want)
			}
		})
	}
}
