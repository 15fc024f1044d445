package peers

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// TestMayPeer: who may be a peer, a kernel, and a peer for volumes is one decision: by
// the rule for the address as it is now; our own addresses may be peers without one, and
// volumes.allow takes away and gives nothing.
func TestMayPeer(t *testing.T) {
	prefix := func(s string) config.Prefix { return config.Prefix{Prefix: netip.MustParsePrefix(s)} }
	c := config.Default()
	c.RDS.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	c.Peers = []config.PeerRule{{Address: prefix("10.1.0.0/16"), Kernel: true}, {Address: prefix("10.1.9.0/24"), Deny: true}, {Address: prefix("10.2.0.0/16")}, {Address: prefix("fe80::/10")}}
	c.Volumes.Allow = []config.Prefix{prefix("10.0.0.0/15"), prefix("10.3.0.0/16"), prefix("fe80::/10")}
	deps := base.New(c, nil)
	d := New(deps)
	type may struct{ peer, kernel, volumes bool }
	check := func(addr string, want may) {
		t.Helper()
		a := netip.MustParseAddr(addr)
		got := may{volumes: d.MayPeerVolumes(a)}
		got.peer, got.kernel = d.MayPeer(a)
		if got != want {
			t.Errorf("%s: %+v, want %+v", addr, got, want)
		}
	}
	check("10.0.0.1", may{peer: true, volumes: true})
	check("::ffff:10.0.0.1", may{peer: true, volumes: true})
	check("fd00::1", may{peer: true})
	check("10.1.0.7", may{peer: true, kernel: true, volumes: true})
	check("10.1.9.7", may{})
	check("10.2.0.7", may{peer: true})
	check("10.3.0.7", may{})
	check("fe80::7%eth0", may{peer: true, volumes: true})
	check("127.0.0.9", may{peer: true, kernel: true})
	next := *c
	next.Peers = []config.PeerRule{{Address: prefix("10.3.0.0/16")}}
	deps.SetConf(&next) // as a reload does
	check("10.3.0.7", may{peer: true, volumes: true})
	check("10.1.0.7", may{})
	c.Volumes.Allow = nil // no list
	check("fd00::1", may{peer: true, volumes: true})
	check("10.1.0.7", may{})
}
