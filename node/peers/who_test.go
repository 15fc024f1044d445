package peers

import (
	"context"
	"net/netip"
	"os"
	"syscall"
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

// TestNobodysConnection: an address of this machine whose connection the kernel knows
// nothing of may not be a peer, whoever accepted or dialled it: who is not known has no rights.
func TestNobodysConnection(t *testing.T) {
	d := New(base.New(config.Default(), nil))
	one, two := netip.MustParseAddrPort("127.0.0.93:1"), netip.MustParseAddrPort("127.0.0.94:1")
	if user, err := d.AcceptedFrom(one, two); err == nil || user != NoUser {
		t.Errorf("accepted from user %d: %v", user, err)
	}
	if err := d.CheckAccepted(one, two); err == nil {
		t.Error("it was accepted")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.CheckDialled(ctx, one, two); err == nil {
		t.Error("it may be dialled")
	}
}

// TestStillOneSided: a link for volumes that was let in is judged by the rules as they are
// now; whom this node connects to needs none.
func TestStillOneSided(t *testing.T) {
	c := config.Default()
	c.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.MustParsePrefix("203.0.113.0/24")}}}
	deps := base.New(c, nil)
	d := New(deps)
	stranger, fails := uint32(0), error(nil)
	d.Use(OneSidedTransport{Name: "ib", Owner: func(_, _ netip.AddrPort) (uint32, error) { return stranger, fails }})
	here, there := netip.MustParseAddrPort("203.0.113.1:1"), netip.MustParseAddrPort("203.0.113.2:2")
	if !d.StillOneSided("tcp", true, here, there) {
		t.Error("a peer may not go on")
	}
	next := *c
	next.Peers = nil
	deps.SetConf(&next)
	if d.StillOneSided("tcp", true, here, there) {
		t.Error("without a rule it goes on")
	}
	if !d.StillOneSided("tcp", false, here, there) {
		t.Error("whom this node maps from may not go on")
	}
	one, two := netip.MustParseAddrPort("127.0.0.93:1"), netip.MustParseAddrPort("127.0.0.94:1")
	if !d.StillOneSided("tcp", true, one, two) {
		t.Error("a link that nobody holds is cut off")
	}
	stranger = 12345
	if d.StillOneSided("ib", true, one, two) || d.StillOneSided("ib", false, one, two) {
		t.Error("a user who is no peer goes on")
	}
	fails = os.NewSyscallError("socket", syscall.EMFILE)
	if !d.StillOneSided("ib", true, one, two) || !d.StillOneSided("ib", false, one, two) {
		t.Error("a link that was not judged is cut off")
	}
}
