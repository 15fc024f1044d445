package volume

import (
	"net/netip"
	"testing"
)

func TestOwnSource(t *testing.T) {
	ip := netip.MustParseAddr
	own := []netip.Addr{ip("127.0.0.5"), ip("10.0.0.1"), ip("10.1.0.1"), ip("fd00::1")}
	for _, c := range []struct{ what, system, remote, want string }{
		{"the system chose one of ours", "10.1.0.1", "10.1.0.7", "10.1.0.1"},
		{"another address of the machine", "10.2.0.9", "10.2.0.7", "10.0.0.1"},
		{"loopback", "127.0.0.1", "127.0.0.9", "127.0.0.5"},
		{"the other family", "fd01::5", "fd01::9", "fd00::1"},
		{"none of ours can be", "::1", "::1", "::1"},
	} {
		if got := ownSource(own, ip(c.system), ip(c.remote)); got != ip(c.want) {
			t.Errorf("%s: %v to %v: %v, want %v", c.what, c.system, c.remote, got, c.want)
		}
	}
}
