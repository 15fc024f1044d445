package ib

import (
	"net/netip"
	"testing"
	"time"
)

// TestPace: a source has its burst and then a request each paceEvery, whatever others do, and
// what is remembered is bounded.
func TestPace(t *testing.T) {
	var p pace
	now := time.Hour
	greedy, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	taken := func(from netip.Addr, n int) (got int) {
		for range n {
			if p.take(now, from) {
				got++
			}
		}
		return got
	}
	if n := taken(greedy, 3*paceBurst); n != paceBurst {
		t.Errorf("%d at once, want %d", n, paceBurst)
	}
	if n := taken(other, 10); n != 10 {
		t.Errorf("another source: %d of 10", n)
	}
	if now += 100 * paceEvery; taken(greedy, 1000) != 100 {
		t.Error("what comes back is not one each paceEvery")
	}
	if now += time.Hour; taken(greedy, 3*paceBurst) != paceBurst {
		t.Error("an hour later it is not the burst again")
	}
	// All addresses of a network of IPv6 are one source.
	six := netip.MustParseAddr("fd00::1")
	if n := taken(six, paceBurst) + taken(netip.MustParseAddr("fd00::2"), 1); n != paceBurst {
		t.Errorf("two addresses of a network: %d", n)
	}
	many := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 3 * paceSource {
		p.take(now, many(i))
	}
	if len(p.until) > paceSource {
		t.Errorf("%d sources are remembered, want %d at most", len(p.until), paceSource)
	}
	if n := taken(greedy, 10); n != 0 {
		t.Errorf("a source that had its burst was forgotten: %d more", n)
	}
	now += time.Hour
	for i := range paceSource {
		if !p.take(now, many(1<<20+i)) {
			t.Fatalf("new source %d is refused when the others have everything back", i)
		}
	}
}
