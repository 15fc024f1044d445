package client

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
)

// TestSpoiledPairIsNotUnread: what its reader leaves in a pair is dropped, once, and is not told as unread
// from then on, whichever end lets go first.
func TestSpoiledPairIsNotUnread(t *testing.T) {
	for _, order := range [][2]int{{reads, sends}, {sends, reads}} {
		n, cfg := startClients(t)
		local, socks := n.attachRings(t, cfg, 2)
		from, to := socks[sends], socks[reads]
		p, out, in := heldPair(t, 1, from, to)
		p.account = n.deps.User(from.s.id)
		if err := p.account.Take(quota.Regions, p.charge()); err != nil {
			t.Fatal(err)
		}
		for _, datagrams := range []int{4, 6} {
			if b := out.Begin(datagrams); b == nil || !out.Put(len(b), datagrams) {
				t.Fatal("there is no room in the pair")
			}
		}
		rec, ok := in.Peek(0)
		if !ok {
			t.Fatal("nothing is in the pair")
		}
		in.Take(&rec)

		e, now := local.Lock()
		p.id = n.clients.pairs.add(from.front, p)
		from.pairs.add(p, &from.pairs.out, to.sock.Addr().Port())
		to.pairs.add(p, &to.pairs.in, from.sock.Addr().Port())
		dropped := func() uint64 { return e.Counters().RecvDropDeadSock }
		p.hear()
		if got := to.sock.Info(); got.RecvN != 6 || got.RecvQueued != 6 || dropped() != 0 {
			t.Errorf("%d datagrams of %d bytes are unread, %d dropped", got.RecvN, got.RecvQueued, dropped())
		}
		left := uint64(0)
		for _, end := range order {
			p.letGo(now, end)
			want := 6
			if end == reads {
				left = 6
			}
			if left > 0 {
				want = 0
			}
			if got := to.sock.Info(); got.RecvN != want || got.RecvQueued != want || dropped() != left {
				t.Errorf("end %d of %v let go: %d datagrams of %d bytes are unread, %d dropped", end, order, got.RecvN, got.RecvQueued, dropped())
			}
		}
		if p.state != pairGone || len(to.pairs.in)+len(to.pairs.all) != 0 {
			t.Errorf("state %d", p.state)
		}
		local.Unlock()
		await.Until(t, time.Minute, "It is buried.", func() bool {
			n.clients.pairs.mu.Lock()
			defer n.clients.pairs.mu.Unlock()
			return len(n.clients.pairs.all) == 0
		})
	}
}
