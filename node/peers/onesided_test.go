package peers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// newRegistry makes a registry whose transports are open, until the test ends.
func newRegistry(t *testing.T, change func(*config.Config)) *Registry {
	t.Helper()
	c := config.Default()
	change(c)
	d := base.New(c, nil)
	d.Guard = &guard.Guard{Log: d.Log}
	re, err := reactor.New(reactor.Options{Name: "peers", CPU: -1, SpinFor: -1, Guard: d.Guard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { re.Close() })
	r := New(d)
	r.Open([]*reactor.Reactor{re})
	return r
}

// TestVolumesHaveTheSlots: connections for volumes that say nothing have the slots that
// those for datagrams have: their source has a quarter of them in all, and one that means
// it comes through.
func TestVolumesHaveTheSlots(t *testing.T) {
	r := newRegistry(t, func(c *config.Config) { c.Limits.MaxHandshakes = 16 })
	p := r.OneSided()[0].Provider
	ln, err := p.ListenOneSided(netip.MustParseAddrPort("127.0.0.97:0"), func(q transport.ConnRequest) { q.Reject([]byte("seen")) })
	if err != nil {
		t.Fatal(err)
	}
	// Datagrams have taken two of the four.
	user := int64(syscall.Geteuid())
	var shakes []*Handshake
	for range 2 {
		x, err := r.Admit(time.Now(), netip.MustParseAddr("127.0.0.1"), user, func() {})
		if err != nil {
			t.Fatal(err)
		}
		shakes = append(shakes, x)
	}
	const crowd = 40
	var conns []net.Conn
	for range crowd {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	used := func() base.Budget { return r.Budgets()[0] }
	await.Until(t, 10*time.Second, "the crowd has made room for itself", func() bool { return used().Refused == crowd-2 })
	if b := used(); b.Used != 4 {
		t.Errorf("%+v, want 4 used", b)
	}
	ask := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _, err := p.DialOneSided(ctx, netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
		return err
	}
	await.Until(t, 10*time.Second, "one that means it is let in", func() bool { // one in 5 ms is let in
		x, ok := errors.AsType[*transport.Refused](ask())
		return ok && string(x.Private) == "seen"
	})
	for _, c := range conns {
		c.Close()
	}
	for _, x := range shakes {
		x.End()
	}
	await.Until(t, 10*time.Second, "all have ended", func() bool { return used().Used == 0 })
	ln.Close()
	if n := r.deps.Memory.Used(); n != 0 {
		t.Errorf("%d bytes are charged", n)
	}
}

// TestVolumesRefuse: a peer that is not allowed hears so, in the answer to its request, and
// the owner of the listener does not hear of it.
func TestVolumesRefuse(t *testing.T) {
	r := newRegistry(t, func(c *config.Config) {
		c.Volumes.Allow = []config.Prefix{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}
	})
	p := r.OneSided()[0].Provider
	ln, err := p.ListenOneSided(netip.MustParseAddrPort("127.0.0.97:0"), func(q transport.ConnRequest) {
		t.Error("the owner of the listener was asked")
		q.Reject(nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, _, err = p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
	x, ok := errors.AsType[*transport.Refused](err)
	if !ok {
		t.Fatalf("%v", err)
	}
	want := rtrswire.Reject(uint16(syscall.EACCES))
	if string(x.Private) != string(want.Append(nil)) || r.Refused() != 1 {
		t.Errorf("it was told %x, and %d refusals are counted", x.Private, r.Refused())
	}
}

// asks is a request to connect that is refused or not.
type asks struct {
	transport.ConnRequest
	no []byte
}

func (q *asks) Reject(b []byte) { q.no = b }

// TestJudgedWhenItAsks: a peer for volumes that connected while a rule allowed it, and asks when none
// does any more, is refused.
func TestJudgedWhenItAsks(t *testing.T) {
	c := config.Default()
	c.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.MustParsePrefix("203.0.113.0/24")}}}
	deps := base.New(c, nil)
	r := New(deps)
	here, there := netip.MustParseAddrPort("203.0.113.1:1"), netip.MustParseAddrPort("203.0.113.2:2")
	for _, allowed := range []bool{true, false} {
		said, err := r.admitOneSided(here, there, func() {})
		if err != nil {
			t.Fatal(err)
		}
		if !allowed {
			next := *c
			next.Peers = nil
			deps.SetConf(&next)
		}
		q := &asks{}
		if said(q) != allowed || (q.no == nil) != allowed {
			t.Errorf("a rule: %v, refused with %x", allowed, q.no)
		}
	}
}
