package soft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/transport/ib"
)

// TestUnsureInterface: that the kernel could not be asked for the interfaces, or for the addresses of
// one, does not say that an address has gone.
func TestUnsureInterface(t *testing.T) {
	list := []net.Interface{{Index: 1, MTU: 1500, Name: "one"}, {Index: 2, MTU: 9000, Name: "two"}}
	all := func() ([]net.Interface, error) { return list, nil }
	addrs := func(bad string) func(*net.Interface) ([]net.Addr, error) {
		return func(i *net.Interface) ([]net.Addr, error) {
			if i.Name == bad {
				return nil, syscall.ENOBUFS
			}
			return []net.Addr{&net.IPNet{IP: net.IPv4(192, 0, 2, byte(i.Index))}}, nil
		}
	}
	if _, err := portAmong(netip.MustParseAddr("192.0.2.1"), func() ([]net.Interface, error) { return nil, syscall.ENFILE }, addrs(""), nil); !errors.Is(err, errUnsure) || !errors.Is(err, syscall.ENFILE) {
		t.Errorf("without a list: %v", err)
	}
	for _, c := range []struct {
		addr, bad, netdev string
		local             bool
		failed            error
		unsure            bool
	}{
		{"192.0.2.2", "", "two", true, nil, false},
		{"192.0.2.2", "one", "two", true, nil, false},
		{"192.0.2.1", "one", "", true, nil, true}, // the machine's own, with the MTU of its interface
		{"192.0.2.1", "one", "", false, nil, true},
		{"192.0.2.3", "", "", false, nil, false},
		{"192.0.2.3", "", "lo", true, nil, false}, // by a route
		{"192.0.2.3", "", "", false, syscall.ENFILE, true},
	} {
		local := func(netip.Addr) (bool, error) { return c.local, c.failed }
		p, err := portAmong(netip.MustParseAddr(c.addr), all, addrs(c.bad), local)
		if p.netdev != c.netdev || (err != nil) != (c.netdev == "") || errors.Is(err, errUnsure) != c.unsure {
			t.Errorf("%s, where %q does not tell: %v, %v", c.addr, c.bad, p, err)
		}
	}
}

// TestNotKnownIsNotGone: connections stay while nobody knows, and end when the address has gone. A
// peer that dials then is refused at once.
func TestNotKnownIsNotGone(t *testing.T) {
	x, y := connected(t, nil)
	d := x.d
	d.watch.close() // the test tells of changes
	var err error
	d.mu.Lock()
	m := *d.m
	name, mtu := d.port.netdev, d.port.mtu
	m.Interface = func() (string, int, error) { return name, mtu, err }
	d.m = &m
	d.mu.Unlock()
	err = fmt.Errorf("%w: %w", errUnsure, syscall.ENOBUFS)
	if d.look() {
		t.Error("it is known")
	}
	if s := d.State(); s.Gone || s.Counter("link_downed") != 0 || s.Interface != name {
		t.Errorf("the address has gone: %+v", s)
	}
	err = errors.New("no interface has it")
	if !d.look() || !d.State().Gone {
		t.Error("the address has not gone")
	}
	if why := x.end(); !errors.Is(why, ErrGone) {
		t.Errorf("the connection ended with %v", why)
	}
	y.end()
	asked := make(chan ib.Asked, 1)
	l, e := d.Listen(netip.AddrPort{}, func(a ib.Asked) {
		if err := a.Accept(newEnd(t, d, depths).q, ib.Param{}); !errors.Is(err, ErrGone) {
			t.Errorf("accepted: %v", err)
		}
		asked <- a
	})
	if e != nil {
		t.Fatal(e)
	}
	defer l.Close()
	_, e = y.d.Dial(t.Context(), netip.AddrPort{}, l.Addr(), newEnd(t, y.d, depths).q, ib.Param{})
	if r, ok := errors.AsType[*ib.Rejected](e); !ok || r.Reason == 0 {
		t.Errorf("dialling a device whose address has gone: %v", e)
	}
	<-asked
}

// TestChangeBeforeNews: what changes between the first look at an interface and the first news is seen.
func TestChangeBeforeNews(t *testing.T) {
	var asked atomic.Int32
	d := open(t, local(43), nil, func(c *Config) {
		m := (&Device{cfg: *c}).real()
		m.Interface = func() (string, int, error) {
			if asked.Add(1) == 1 {
				return "one", 4096, nil
			}
			return "one", 1024, nil
		}
		c.On = m
	})
	await.Until(t, patience, "The device has the MTU of now.", func() bool { return d.Info().MTU == 1024 })
}

// heard is news that a test makes.
type heard struct {
	told   chan error
	closed atomic.Bool
}

func (h *heard) Next() error { return <-h.told }
func (h *heard) Close() error {
	if !h.closed.Swap(true) {
		close(h.told)
	}
	return nil
}

// TestWatchGoesOn: a device follows its interface also after an error of who tells of changes, and
// after the kernel could not be asked.
func TestWatchGoesOn(t *testing.T) {
	d := open(t, local(4), nil, nil)
	d.watch.close() // the test's takes its place
	looks, answer := make(chan struct{}), make(chan error)
	d.mu.Lock()
	m := *d.m
	name, mtu := d.port.netdev, d.port.mtu
	m.Interface = func() (string, int, error) {
		looks <- struct{}{}
		return name, mtu, <-answer
	}
	d.m = &m
	d.mu.Unlock()
	look := func(err error) {
		<-looks
		answer <- err
	}
	first, second := &heard{told: make(chan error)}, &heard{told: make(chan error)}
	next := make(chan news, 2)
	next <- first
	var rests atomic.Int32
	failures := 0
	o := newWatcher(func() (news, error) {
		if failures > 0 {
			failures--
			return nil, syscall.EMFILE
		}
		return <-next, nil
	}, func(<-chan struct{}) { rests.Add(1) })
	o.done.Add(1)
	go o.run(d)
	look(nil) // what was before
	look(nil) // and before there were news
	first.told <- nil
	look(fmt.Errorf("%w", errUnsure))
	look(fmt.Errorf("%w", errUnsure)) // without further news
	look(nil)
	if n := rests.Load(); n != 2 {
		t.Errorf("%d rests for two questions without an answer", n)
	}
	failures = 1
	first.told <- syscall.ENOMEM
	look(nil) // it may have missed something
	next <- second
	look(nil) // another attempt: this one opens
	look(nil)
	second.told <- nil
	look(nil)
	if !first.closed.Load() || rests.Load() != 4 {
		t.Errorf("the first is closed: %v, after %d rests, want 4", first.closed.Load(), rests.Load())
	}
	o.close()
	if !second.closed.Load() {
		t.Error("the last is open still")
	}
}
