package netlocal

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
)

// TestOwnerUDP: the socket that is bound to an address is its user's; one that is bound to
// another address, to every address, or closed, is nobody's.
func TestOwnerUDP(t *testing.T) {
	for _, host := range []string{"127.0.0.86", "::1"} {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 0)))
		if err != nil {
			t.Skipf("%s: %v", host, err)
		}
		at := c.LocalAddr().(*net.UDPAddr).AddrPort()
		if uid, err := OwnerUDP(at); err != nil || uid != uint32(os.Geteuid()) {
			t.Errorf("%v is user %d's, %v; it is ours", at, uid, err)
		}
		if host == "127.0.0.86" {
			if uid, err := OwnerUDP(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.87"), at.Port())); !errors.Is(err, ErrGone) {
				t.Errorf("another address: user %d, %v", uid, err)
			}
		}
		c.Close()
		if uid, err := OwnerUDP(at); !errors.Is(err, ErrGone) {
			t.Errorf("closed: user %d, %v", uid, err)
		}
	}
	all, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.86"), all.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	if uid, err := OwnerUDP(at); !errors.Is(err, ErrGone) {
		t.Errorf("bound to every address: user %d, %v", uid, err)
	}
}
