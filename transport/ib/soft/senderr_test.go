package soft

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/transport/ib"
)

// failing has some of a device's calls that send meet an error.
type failing struct {
	left atomic.Int64 // calls that fail yet
	err  error
	met  atomic.Int64
}

func (f *failing) fault() error {
	if f.left.Add(-1) < 0 {
		return nil
	}
	f.met.Add(1)
	return f.err
}

// TestErrorsOfSending: whatever the system answers for a while to who sends, it is counted under its
// name, and all that was posted arrives, once and whole, as if packets had been lost.
func TestErrorsOfSending(t *testing.T) {
	next := 10
	for err, counter := range map[syscall.Errno]string{
		unix.EAGAIN: "send_full", unix.EPERM: "send_refused", unix.EACCES: "send_refused", unix.EMSGSIZE: "send_too_long",
		unix.ENETUNREACH: "send_unreachable", unix.EHOSTUNREACH: "send_unreachable", unix.ENETDOWN: "send_unreachable",
		unix.ENOBUFS: "send_no_memory", unix.ENOMEM: "send_no_memory", unix.EINVAL: "send_other", unix.EIO: "send_other",
	} {
		next += 2
		near, far := local(next), local(next+1)
		t.Run(err.Error(), func(t *testing.T) {
			t.Parallel()
			a, b := open(t, near, nil, nil), open(t, far, nil, nil)
			f := &failing{err: err}
			a.sock.mu.Lock() // no call is under way
			a.sock.fault = f.fault
			a.sock.mu.Unlock()
			x, y := newEnd(t, a, depths), newEnd(t, b, depths)
			connect(t, x, y)
			f.left.Store(5)
			exchange(t, x, y, int64(err), 100, 40<<10)
			await.Until(t, patience, "Every call that was to fail has.", func() bool { return f.met.Load() == 5 })
			s := a.State()
			if n := s.Counter(counter); n != 5 {
				t.Errorf("%s is %d after 5 errors: %+v", counter, n, s.Counters)
			}
			// What only the firewall or a route has against packets says nothing about bursts.
			if cut := err == unix.EINVAL || err == unix.EIO; !cut && s.Counter("gso_ended") > 0 || s.Counter("gso_ended") > 1 || !s.Bursts {
				t.Errorf("bursts were given up: %+v", s)
			}
		})
	}
}

// TestBurstsRefusedToOne: a peer to which the system takes no bursts, as by a route of its own, has none for
// a while, and others have them as before.
func TestBurstsRefusedToOne(t *testing.T) {
	a, b, c := open(t, local(40), nil, nil), open(t, local(41), nil, nil), open(t, local(42), nil, nil)
	if !a.sock.canSegment() {
		t.Skip("this kernel cuts no bursts")
	}
	var met, passed atomic.Int64 // bursts to b, and messages of others
	a.sock.mu.Lock()
	a.sock.fault = func() error { // of the first message that is left
		if o := &a.out.box; o.isBurst() && get(&o.to[o.first]).Addr() == b.cfg.Addr {
			met.Add(1)
			return unix.EIO
		}
		passed.Add(1)
		return nil
	}
	a.sock.mu.Unlock()
	x, y, u, v := newEnd(t, a, depths), newEnd(t, b, depths), newEnd(t, a, depths), newEnd(t, c, depths)
	connect(t, x, y)
	connect(t, u, v)
	for i := range 3 {
		exchange(t, x, y, int64(i), 50, 40<<10)
		before := counter(a, "sent_bursts")
		if exchange(t, u, v, int64(i), 50, 40<<10); counter(a, "sent_bursts") == before {
			t.Error("the other peer has no bursts")
		}
	}
	if s := a.State(); met.Load() != 1 || !s.Bursts || s.Counter("gso_ended") != 1 {
		t.Errorf("%d bursts to the peer that takes none, want 1, beside %d: %+v", met.Load(), passed.Load(), s)
	}
}

// TestErrnoOfConnectRefused: an error that the socket has kept of an earlier packet (ICMP) is taken
// for nothing once: the message is sent.
func TestErrnoOfConnectRefused(t *testing.T) {
	a, b := devices(t, nil)
	f := &failing{err: unix.ECONNREFUSED}
	a.sock.mu.Lock()
	a.sock.fault = f.fault
	a.sock.mu.Unlock()
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	y.slots(1, 8)
	f.left.Store(1)
	x.post(ib.WR{ID: 1, Op: ib.Send, Piece: [3][]byte{{1}}, Flags: ib.Signal})
	if c := x.next(); c.Status != ib.OK {
		t.Errorf("%+v", c)
	}
	if n := counter(a, "send_unreachable"); n != 0 || f.met.Load() != 1 {
		t.Errorf("%d counted, %d met", n, f.met.Load())
	}
}

// TestRoutesThatRefuse: the same from the system itself. A route forbids the peer, then says that it
// cannot be reached, then is gone: the connection goes on where it was.
func TestRoutesThatRefuse(t *testing.T) {
	ha, hb := newHost(t, "10.9.0.1/24", 1500), newHost(t, "10.9.0.2/24", 1500)
	newNetwork(t, 7, ha, hb)
	a, b := open(t, "10.9.0.1", ha, nil), open(t, "10.9.0.2", hb, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	y.slots(2, 8)
	for id, c := range []struct{ route, counter string }{{"prohibit", "send_refused"}, {"unreachable", "send_unreachable"}} {
		ip := func(what string) {
			var err error
			ha.do(func() { err = ha.ip("route " + what + " " + c.route + " 10.9.0.2/32 metric 1") })
			if err != nil {
				t.Fatal(err)
			}
		}
		ip("add")
		x.post(ib.WR{ID: uint64(id), Op: ib.Send, Piece: [3][]byte{{1}}, Flags: ib.Signal})
		await.Until(t, patience, c.counter, func() bool { return counter(a, c.counter) > 0 })
		select {
		case got := <-x.done:
			t.Fatalf("%s: %+v", c.route, got)
		default:
		}
		ip("del")
		if got := x.next(); got.ID != uint64(id) || got.Status != ib.OK {
			t.Errorf("after %s: %+v", c.route, got)
		}
		y.next()
	}
}

// TestLinkLocal: a device of an address of one link reaches the nodes there, by its interface, and a
// device of another address says why it cannot.
func TestLinkLocal(t *testing.T) {
	ha, hb := newHost(t, "fe80::1/64", 1500), newHost(t, "fe80::2/64", 1500)
	newNetwork(t, 7, ha, hb)
	a, b := open(t, "fe80::1%net0", ha, nil), open(t, "fe80::2%net0", hb, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	exchange(t, x, y, 1, 50, 20<<10)
	lo := open(t, "::1", ha, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := lo.Dial(ctx, netip.AddrPort{}, netip.MustParseAddrPort("[fe80::2]:1234"), newEnd(t, lo, depths).q, ib.Param{})
	if err == nil || !strings.Contains(err.Error(), "link-local") {
		t.Errorf("from ::1: %v", err)
	}
}

// TestMemoryOfQueuePairs: a device says what a queue pair takes: its rings, and this package's part.
func TestMemoryOfQueuePairs(t *testing.T) {
	d := open(t, local(2), nil, nil)
	core := roce.QPBytes(roce.QPConfig{Sends: 256, Recvs: 576})
	if n := d.Info().QPBytes(ib.QPConfig{Sends: 256, Recvs: 576}); n <= core || n > core+1024 {
		t.Errorf("%d bytes, of which the core has %d", n, core)
	}
}

// TestOwnMemoryIsCharged: what a device keeps for itself is asked for, and given back.
func TestOwnMemoryIsCharged(t *testing.T) {
	var held int
	charge := func(peer netip.Addr, n int) error {
		if peer.IsValid() {
			t.Errorf("%d bytes for %v", n, peer)
		}
		held += n
		return nil
	}
	d := open(t, local(2), nil, func(c *Config) { c.Charge = charge })
	if held < len(d.in.stage)+len(d.out.copied) {
		t.Errorf("%d bytes are charged", held)
	}
	d.Close()
	if held != 0 {
		t.Errorf("%d bytes are charged after the end", held)
	}
	full := errors.New("full")
	_, err := Open(Config{Addr: netip.MustParseAddr(local(2)), Reactor: newReactor(t), Charge: func(netip.Addr, int) error { return full }})
	if !errors.Is(err, full) {
		t.Errorf("without memory: %v", err)
	}
	_, err = Open(Config{Addr: netip.MustParseAddr("192.0.2.1"), Reactor: newReactor(t), Charge: charge})
	if err == nil || held != 0 {
		t.Errorf("an address of another machine: %v, %d bytes are charged", err, held)
	}
}
