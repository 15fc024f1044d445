package peers

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
	"github.com/rdsd/rdsd/transport/transporttest"
)

// refusing is a provider that adopts nothing, and counts what is released of what it had.
type refusing struct {
	transport.OneSidedProvider
	no       error
	released int
}

func (r *refusing) Adopt([]byte) (func(), error) {
	if r.no != nil {
		return nil, r.no
	}
	return func() { r.released++ }, nil
}

func byTwo(t *testing.T, a, b transport.OneSidedProvider) transport.OneSidedProvider {
	return ByAddress(map[netip.Addr]transport.OneSidedProvider{
		netip.MustParseAddr("127.0.0.95"): a, netip.MustParseAddr("127.0.0.96"): b})
}

// newLinks makes a provider of TCP, on a reactor of its own.
func newLinks(t *testing.T) *tcp.Provider {
	re, err := reactor.New(reactor.Options{Name: "links", CPU: -1, SpinFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { re.Close() })
	return tcp.New(re)
}

// linked is a provider whose domains register nothing before they have a link: the suite looks
// at keys without one.
type linked struct{ transport.OneSidedProvider }

func (l linked) OneSidedCaps() transport.OneSidedCaps {
	c := l.OneSidedProvider.OneSidedCaps()
	c.SecretKeys = false
	return c
}

// TestByAddressConforms: providers of two addresses are one that conforms.
func TestByAddressConforms(t *testing.T) {
	p := linked{byTwo(t, newLinks(t), newLinks(t))}
	transporttest.RunOneSided(t, transporttest.OneSided{A: p, B: p,
		AddrA: netip.MustParseAddrPort("127.0.0.95:0"), AddrB: netip.MustParseAddrPort("127.0.0.96:0")})
}

// TestByAddressKeepsApart: a domain is one address's, and an address without a device has no
// links.
func TestByAddressKeepsApart(t *testing.T) {
	p := byTwo(t, newLinks(t), newLinks(t))
	ctx := context.Background()
	to := netip.MustParseAddrPort("127.0.0.95:1")
	d := p.NewDomain()
	if key, _ := d.Register(make([]byte, 1)); key != 0 || d.Revoke(7) != transport.Idle {
		t.Errorf("key %d of a domain of no address", key)
	}
	for name, c := range map[string]struct {
		local string
		d     transport.Domain
		want  error
	}{
		"no such device":          {"127.0.0.94:0", d, syscall.EADDRNOTAVAIL},
		"the first":               {"127.0.0.95:0", d, syscall.ECONNREFUSED},
		"a domain of the first":   {"127.0.0.96:0", nil, syscall.EINVAL},
		"another provider's":      {"127.0.0.96:0", newLinks(t).NewDomain(), syscall.EINVAL},
		"another one of its kind": {"127.0.0.96:0", byTwo(t, newLinks(t), newLinks(t)).NewDomain(), syscall.EINVAL},
	} {
		if c.d == nil {
			c.d = p.NewDomain()
			p.DialOneSided(ctx, netip.MustParseAddrPort("127.0.0.95:0"), to, c.d, transport.LinkAttr{}, nil)
		}
		if l, _, err := p.DialOneSided(ctx, netip.MustParseAddrPort(c.local), to, c.d, transport.LinkAttr{}, nil); l != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.Close()
	if _, _, err := p.DialOneSided(ctx, netip.MustParseAddrPort("127.0.0.95:0"), to, d, transport.LinkAttr{}, nil); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a link in a closed domain: %v", err)
	}
	if _, err := p.ListenOneSided(netip.MustParseAddrPort("127.0.0.94:0"), nil); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("listening where no device is: %v", err)
	}
}

// TestByAddressAdopts: memory is adopted by every device or by none.
func TestByAddressAdopts(t *testing.T) {
	a, b := &refusing{OneSidedProvider: newLinks(t)}, &refusing{OneSidedProvider: newLinks(t)}
	p := byTwo(t, a, b)
	release, err := p.Adopt(make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	if release(); a.released != 1 || b.released != 1 {
		t.Errorf("released %d and %d", a.released, b.released)
	}
	b.no = syscall.ENOMEM
	if _, err := p.Adopt(make([]byte, 10)); !errors.Is(err, syscall.ENOMEM) || a.released != 2 {
		t.Errorf("%v, released %d", err, a.released)
	}
	if _, err := p.Memory(10); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("memory that one cannot have: %v", err)
	}
}
