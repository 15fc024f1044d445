package tcp

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newProvider has two reactors, which end with the test.
func newProvider(t testing.TB) *Provider {
	var l []*reactor.Reactor
	for range 2 {
		r, err := reactor.New(reactor.Options{CPU: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		l = append(l, r)
	}
	return New(l...)
}

func TestConformance(t *testing.T) {
	for _, v := range []struct{ name, a, b string }{{"IPv4", "127.0.0.81", "127.0.0.82"}, {"IPv6", "::1", "::1"}} {
		t.Run(v.name, func(t *testing.T) {
			transporttest.Run(t, transporttest.Provider{Provider: newProvider(t), A: netip.MustParseAddr(v.a), B: netip.MustParseAddr(v.b),
				Caps: transporttest.Caps{Acked: true, Lane: true, Place: true}})
		})
	}
}
