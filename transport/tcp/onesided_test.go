package tcp

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/transport/transporttest"
)

func TestOneSidedConformance(t *testing.T) {
	for _, v := range []struct{ name, a, b string }{{"IPv4", "127.0.0.91", "127.0.0.92"}, {"IPv6", "::1", "::1"}} {
		t.Run(v.name, func(t *testing.T) {
			p := newProvider(t)
			transporttest.RunOneSided(t, transporttest.OneSided{A: p, B: p,
				AddrA: netip.AddrPortFrom(netip.MustParseAddr(v.a), 0), AddrB: netip.AddrPortFrom(netip.MustParseAddr(v.b), 0)})
		})
	}
}
