package tcp

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, v := range []struct{ name, a, b string }{{"IPv4", "127.0.0.81", "127.0.0.82"}, {"IPv6", "::1", "::1"}} {
		t.Run(v.name, func(t *testing.T) {
			transporttest.Run(t, transporttest.Provider{Provider: Provider{}, A: netip.MustParseAddr(v.a), B: netip.MustParseAddr(v.b),
				Caps: transporttest.Caps{Acked: true, Lane: true}})
		})
	}
}
