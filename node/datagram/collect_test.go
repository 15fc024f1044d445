package datagram

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/rds"
)

// TestCollectDropsIdleFlows: who lacks memory at one address has that of destinations that nobody
// needs any more at the others.
func TestCollectDropsIdleFlows(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	_, now := s.h.Lock()
	for port := range uint16(100) {
		if err := k.Send(now, netip.AddrPortFrom(seamLower, 1000+port), nil, 0, rds.Quiet); err != nil {
			t.Fatal(err)
		}
	}
	if n, _, err := k.Cancel(now, netip.AddrPortFrom(seamLower, 0)); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	s.h.Unlock()
	used := s.a.engineConfig.Budget.Datagrams
	if used() == 0 {
		t.Fatal("idle flows cost nothing")
	}
	s.a.Collect()
	s.until("they are dropped", func() bool { return used() == 0 })
}
