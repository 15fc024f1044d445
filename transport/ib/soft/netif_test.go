package soft

import (
	"net/netip"
	"testing"
)

// TestMTUOf has the values that rdma_rxe takes for these interfaces.
func TestMTUOf(t *testing.T) {
	for netdev, want := range map[int]int{65536: 4096, 9000: 4096, 4176: 4096, 4175: 2048, 1500: 1024, 1104: 1024, 1103: 512, 336: 256, 335: 0, 68: 0} {
		if got := mtuOf(netdev); got != want {
			t.Errorf("an interface of MTU %d: %d, want %d", netdev, got, want)
		}
	}
}

func TestPortOf(t *testing.T) {
	for _, a := range []string{local(1), local(77), "::1"} {
		if p, err := portOf(netip.MustParseAddr(a)); err != nil || p != (port{"lo", 4096}) {
			t.Errorf("%s: %v %v, want lo with MTU 4096", a, p, err)
		}
	}
	if p, err := portOf(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Errorf("an address of nobody: %v", p)
	}
	h := newHost(t, "10.9.0.1/24", 1500)
	h.do(func() {
		if p, err := portOf(netip.MustParseAddr("10.9.0.1")); err != nil || p != (port{"net0", 1024}) {
			t.Errorf("%v %v, want net0 with MTU 1024", p, err)
		}
	})
}
