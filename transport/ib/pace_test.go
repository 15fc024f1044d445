package ib

import (
	"net/netip"
	"testing"
	"time"
)

// TestPace: a source has its burst and then a request each paceEvery, for which some wait,
// whatever others do, and what is remembered is bounded.
func TestPace(t *testing.T) {
	var p pace
	now := time.Hour
	greedy, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	taken := func(from netip.Addr, n int) (got int) {
		for range n {
			if _, ok := p.take(now, from, false); ok {
				got++
			}
		}
		return got
	}
	const most = paceBurst + paceQueue
	for i := range most {
		if wait, ok := p.take(now, greedy, false); !ok || wait != max(0, time.Duration(i+1-paceBurst)*paceEvery) {
			t.Errorf("request %d waits %v, %v", i, wait, ok)
		}
	}
	if n := taken(greedy, 3*most); n != 0 {
		t.Errorf("%d more than %d at once", n, most)
	}
	// Whoever has the address has no place of the program that has RoCEv2's port there.
	if wait, ok := p.take(now, greedy, true); !ok || wait != 0 {
		t.Errorf("a request from RoCEv2's own port waits %v, %v", wait, ok)
	}
	if n := taken(other, 10); n != 10 {
		t.Errorf("another source: %d of 10", n)
	}
	if now += 30 * paceEvery; taken(greedy, 1000) != 30 {
		t.Error("what comes back is not one each paceEvery")
	}
	if now += time.Hour; taken(greedy, 3*most) != most {
		t.Error("an hour later it is not all of it again")
	}
	// All addresses of a network of IPv6 are one source.
	six := netip.MustParseAddr("fd00::1")
	if n := taken(six, most) + taken(netip.MustParseAddr("fd00::2"), 1); n != most {
		t.Errorf("two addresses of a network: %d", n)
	}
	many := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 3 * paceSource {
		taken(many(i), 1)
	}
	if len(p.until) > paceSource {
		t.Errorf("%d sources are remembered, want %d at most", len(p.until), paceSource)
	}
	if n := taken(greedy, 10); n != 0 {
		t.Errorf("a source that had its burst was forgotten: %d more", n)
	}
	now += time.Hour
	for i := range paceSource {
		if taken(many(1<<20+i), 1) == 0 {
			t.Fatalf("new source %d is refused when the others have everything back", i)
		}
	}
}
