package datagram

import (
	"net/netip"
	"testing"
	"time"
)

// TestStayingIsBounded: a port is told once it has stayed congested, again after a long
// time, anew when it is congested anew, and of many some in each look.
func TestStayingIsBounded(t *testing.T) {
	s := NewStaying(stayingAfter)
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i))
	}
	look := func(lasts, since time.Duration) bool {
		defer s.looked()
		return s.wants(at(1), since, lasts, 0)
	}
	for _, c := range []struct {
		lasts, since time.Duration
		want         bool
	}{
		{stayingAfter - 1, 5, false}, {stayingAfter, 5, true}, {stayingAfter + stayingLook, 5, false}, {stayingAfter + stayingAgain - 1, 5, false},
		{stayingAfter + stayingAgain, 5, true}, {2 * stayingAgain, 5, false}, {stayingAfter, 6, true}, // it was clear in between
	} {
		if got := look(c.lasts, c.since); got != c.want {
			t.Errorf("congested for %v since %v: told %v", c.lasts, c.since, got)
		}
	}
	s.looked() // not seen: it is clear
	if len(s.told) != 0 {
		t.Errorf("%d are remembered", len(s.told))
	}
	if !look(stayingAfter, 6) {
		t.Error("what was clear and is congested again is not told")
	}
	for range 1000 {
		lines := 0
		for i := range 5000 {
			if s.wants(at(i), 7, time.Minute, lines) {
				lines++
			}
		}
		s.looked()
		if lines > stayingLines || len(s.told) > stayingPorts {
			t.Fatalf("%d lines in a look, %d remembered", lines, len(s.told))
		}
	}
	if len(s.told) != stayingPorts {
		t.Errorf("after many looks %d are remembered", len(s.told))
	}
}
