package node

import (
	"net/netip"
	"testing"
	"time"
)

// TestStepLetsSocketsGo holds that what a step noted of sockets with rings is forgotten when the step is over: no list of the host keeps a
// socket, and the books of its region with it, until another step happens to write over the entry.
func TestStepLetsSocketsGo(t *testing.T) {
	n, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	h := n.core.(*hosts).list[0]
	r := attachRing(t, cfg, bindTo(addr, 0))
	tag := uint64(0)
	r.post(t, netip.AddrPortFrom(addr, uint16(r.bound.GetLocal().GetPort())), 1, 1, &tag)
	within(t, 5*time.Second, "the datagram is there", func() bool {
		return r.region.RecvTail().Load() == 1
	})
	r.close()

	h.lock() // a step makes visible what it placed before it lets the lock go
	defer h.unlock()
	placed, dirty, hosts := h.rings.placed, h.rings.dirty, h.rings.hosts
	if cap(placed) == 0 || cap(dirty) == 0 || cap(hosts) == 0 {
		t.Fatalf("room for %d, %d and %d sockets: no step noted any", cap(placed), cap(dirty), cap(hosts))
	}
	for i, s := range placed[:cap(placed)] {
		if s != nil {
			t.Errorf("entry %d of those with datagrams placed is kept", i)
		}
	}
	for i, s := range dirty[:cap(dirty)] {
		if s != nil {
			t.Errorf("entry %d of those with news is kept", i)
		}
	}
	for i, s := range hosts[:cap(hosts)] {
		if s != nil {
			t.Errorf("entry %d of the regions that were committed is kept", i)
		}
	}
}
