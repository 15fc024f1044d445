package client

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/shm"
)

// TestPairsAreBounded: a user whose clients keep what they have of so many pairs that are over is offered no
// more; another user is, until all of the node's are spent.
func TestPairsAreBounded(t *testing.T) {
	n, cfg := startClients(t)
	local, socks := n.attachRings(t, cfg, 2)
	await.Until(t, time.Minute, "Both are served.", func() bool {
		local.Lock()
		defer local.Unlock()
		return socks[sends].begun && socks[reads].begun
	})
	table, uid := &n.clients.pairs, socks[sends].s.id.UID
	table.mu.Lock()
	table.ticking = true // nobody asks about them
	table.mu.Unlock()
	fake := func(uid uint32, pairs int) (l []*pair) {
		for range pairs {
			p := &pair{uid: uid, mem: shm.NoPair(), account: n.deps.User(socks[sends].s.id)}
			if err := p.account.Take(quota.Regions, p.charge()); err != nil {
				t.Fatal(err)
			}
			table.add(socks[sends].front, p)
			table.mu.Lock()
			delete(table.all, p)
			table.buried[p] = struct{}{}
			table.mu.Unlock()
			l = append(l, p)
		}
		return l
	}
	try := func(want bool, what string) {
		t.Helper()
		local.Lock()
		defer local.Unlock()
		if got := socks[sends].pairReader(socks[reads].sock.Addr().Port()) != nil; got != want {
			t.Errorf("%s: may be offered %v", what, got)
		}
	}
	socks[sends].s.id.ForeignUser = true
	try(false, "the number of both says of neither who it is")
	socks[sends].s.id.ForeignUser = false
	mine := fake(uid, base.MaxPairsPerUID-1)
	try(true, "one less than its bound")
	mine = append(mine, fake(uid, 1)...)
	try(false, "its bound")
	table.forget(mine[0])
	try(true, "one of them is free")
	for _, p := range mine {
		table.forget(p) // the first once more, which is nothing
	}
	var others []*pair
	for i := range base.MaxPairs/base.MaxPairsPerUID - 1 {
		others = append(others, fake(uid+1+uint32(i), base.MaxPairsPerUID)...)
	}
	try(true, "others have theirs")
	others = append(others, fake(uid+99, base.MaxPairsPerUID)...)
	try(false, "all are spent")
	for _, p := range others {
		table.forget(p)
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	if len(table.users) != 0 || len(table.buried) != 0 {
		t.Errorf("%d users are remembered and %d pairs", len(table.users), len(table.buried))
	}
}

// TestBuriedPairsRest: the longer clients keep a pair the less often it is asked about.
func TestBuriedPairsRest(t *testing.T) {
	p := &pair{}
	table := pairTable{buried: map[*pair]struct{}{p: {}}}
	last, gaps := -1, []int(nil)
	for look := range 128 {
		if _, buried := table.due(); len(buried) > 0 {
			gaps = append(gaps, look-last)
			last = look
		}
	}
	for i, gap := range gaps {
		if want := min(1<<i, maxRest+1); gap != want {
			t.Errorf("asked after %d looks, want %d", gap, want)
		}
	}
	if len(gaps) != 8 {
		t.Errorf("asked %d times", len(gaps))
	}
}
