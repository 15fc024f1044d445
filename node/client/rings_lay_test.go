package client

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// exchange has one datagram go from a new socket to itself.
func exchange(t *testing.T, client *rdsd.Client, local netip.AddrPort) error {
	t.Helper()
	s, err := client.Bind(clienttest.Context(t), local)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Send(clienttest.Context(t), s.LocalAddr(), []byte("to myself")); err != nil {
		return err
	}
	_, err = s.Recv(clienttest.Context(t))
	return err
}

// held is what sockets take of a node; all of it comes back.
type held struct{ fds, maps, goroutines, sockets, clients, ledger int }

func holding(t *testing.T, n *world) held {
	t.Helper()
	return held{clienttest.Descriptors(t), clienttest.RegionsMapped(t), runtime.NumGoroutine(), int(n.clients.Budget().Used), n.users.Len(), n.hosts.Ledger().Regions()}
}

// TestLayFails: each step of a bind with rings fails in turn, and once more, with a
// chosen port and with any. The client is told, nothing is left behind, and the
// next one gets the port.
func TestLayFails(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	fixed := netip.AddrPortFrom(addr, 4711)
	if err := exchange(t, client, fixed); err != nil {
		t.Fatal(err)
	}
	await.Until(t, 5*time.Second, "the first one is gone", func() bool {
		h := holding(t, n)
		return h.sockets+h.clients+h.maps == 0
	})
	before := holding(t, n)
	var mu sync.Mutex
	seen := map[string]bool{}
	fail := func(f func(step string) error) { n.clients.fails.Store(&f) }
	fail(func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if step != "remove" { // of the one before
			seen[step] = true
		}
		return nil
	})
	if err := exchange(t, client, fixed); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	steps := slices.Collect(maps.Keys(seen))
	mu.Unlock()
	if len(steps) < 5 {
		t.Fatalf("only the steps %v are there to fail", steps)
	}
	older := []string{"bell", "alarm"} // steps of a client that wishes for two doorbells
	for i, step := range append(steps, older...) {
		bind := clienttest.OneDoorbell
		if i >= len(steps) {
			bind = clienttest.RingBind
		}
		fail(func(s string) error {
			if s == step {
				return syscall.EMFILE
			}
			return nil
		})
		for _, port := range []uint16{fixed.Port(), 0, fixed.Port()} {
			p := clienttest.DialPackets(t, cfg)
			if m := p.Bind(bind(addr, port)); !m.HasClosing() || m.GetClosing().GetErrno() != int32(syscall.EMFILE) || m.GetClosing().GetMessage() == "" {
				t.Errorf("%s failed, and the client was told %v", step, m)
			}
			p.C.Close()
		}
		n.clients.fails.Store(nil)
		if err := exchange(t, client, fixed); err != nil {
			t.Errorf("after %s failed: %v", step, err)
		}
		await.Until(t, 5*time.Second, "everything is as before", func() bool {
			now := holding(t, n)
			now.goroutines = max(now.goroutines, before.goroutines)
			now.fds = max(now.fds, before.fds)
			if now != before {
				t.Logf("%s: %+v, before %+v", step, now, before)
			}
			return now == before
		})
	}
}

// TestSealedBeforeUse: a socket is bound only when its client has mapped the region,
// and from then on Nobody can punch holes into that or map it once more. Who says
// anything else, or seals the region otherwise, is refused; who says nothing has
// taken no port.
func TestSealedBeforeUse(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	punch := func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 1<<20)
	}
	region := func(port uint16) (*clienttest.PacketClient, int) {
		p := clienttest.DialPackets(t, cfg)
		m, fds := p.Ask(clienttest.RingBind(addr, port))
		if !m.HasRegion() || len(fds) != 4 {
			t.Fatalf("bind was answered by %v, %d Descriptors", m, len(fds))
		}
		t.Cleanup(func() { clienttest.CloseFDs(fds) })
		return p, fds[0]
	}
	silent, theirs := region(4711)
	if err := punch(theirs); err != nil {
		t.Fatalf("no hole to begin with: this shows nothing: %v", err)
	}
	clienttest.TouchRegion(t, theirs)
	p, fd := region(4711) // the silent one has not got the port
	for range 100 {
		if err := punch(fd); err != nil {
			t.Fatal(err)
		}
	}
	if m := p.Mapped(); m.GetClosing().GetErrno() != int32(syscall.EINVAL) {
		t.Fatalf("a region that was never touched was answered by %v", m)
	}
	p, fd = region(4711)
	if m := p.Mapped(); !m.HasBound() {
		t.Fatalf("a mapped region was answered by %v", m)
	}
	if err := punch(fd); !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole in the region of a bound socket: %v", err)
	}
	if mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("the region of a bound socket can be mapped to write: %v", err)
		unix.Munmap(mem)
	}
	if m := silent.Mapped(); m.GetClosing().GetErrno() != int32(syscall.EADDRINUSE) {
		t.Errorf("the second one for a port was told %v", m)
	}
	sealed, fd := region(0)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		t.Fatal(err)
	}
	if m := sealed.Mapped(); m.GetClosing().GetErrno() != int32(syscall.EINVAL) {
		t.Errorf("who sealed its region was told %v", m)
	}
	other, _ := region(0)
	if m := other.Bind(clienttest.RingBind(addr, 0)); m.GetClosing().GetErrno() != int32(syscall.EINVAL) {
		t.Errorf("a Bind instead of RingMapped was answered by %v", m)
	}
	p.C.Close()
	await.Until(t, 5*time.Second, "all sockets are gone", func() bool { return n.clients.Budget().Used == 0 })
}

// TestLayOnTheWay: a client that may not have most ports, and asks for any, is
// given one; those tried on the way never had rings.
func TestLayOnTheWay(t *testing.T) {
	n, cfg := startClientsWith(t, func(c *config.Config) {
		root := uint32(0)
		c.Ports = []config.PortGrant{{Range: config.PortRange{First: 1024, Last: 65000}, UID: &root, Exclusive: true}}
	})
	for range 5 {
		r := clienttest.AttachOver(t, clienttest.ConnectAs(t, n.clients.Accept, config.Identity{UID: 12345}), clienttest.BindTo(cfg.RDS.Addresses[0], 0))
		if port := r.Bound.GetLocal().GetPort(); port <= 65000 {
			t.Errorf("port %d, which is somebody else's", port)
		}
		r.Close()
	}
	await.Until(t, 5*time.Second, "all sockets are gone", func() bool { return n.clients.Budget().Used == 0 && clienttest.RegionsMapped(t) == 0 })
}

// TestDeafAndLoud: a client that spoils its doorbells in every way it can and
// then has the daemon ring does not hold the daemon up: it is served on, and so
// are others.
func TestDeafAndLoud(t *testing.T) {
	_, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	good, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	evil := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
	defer evil.Close()
	for _, fd := range []int{evil.Bell, evil.Ear} {
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
		full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // a bell counts no further; the ear cannot be written to
		_, _ = unix.Write(fd, full)
	}
	to := netip.AddrPortFrom(addr, uint16(evil.Bound.GetLocal().GetPort()))
	for i := range 2000 {
		*evil.Word(5248) = uint64(shm.ClientWaitsRecv | shm.ClientWaitsEvent)
		if err := good.Send(clienttest.Context(t), to, clienttest.Signed("ring", uint64(i))); err != nil {
			t.Fatal(i, err)
		}
		if err := good.Send(clienttest.Context(t), good.LocalAddr(), clienttest.Signed("good", uint64(i))); err != nil {
			t.Fatal(i, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		d, err := good.Recv(ctx)
		cancel()
		if err != nil || string(d.Payload) != string(clienttest.Signed("good", uint64(i))) {
			t.Fatalf("datagram %d: %x, %v", i, d.Payload, err)
		}
	}
	if rang, _ := shm.Drain(evil.Ear); !rang {
		t.Error("the daemon never rang: nothing was tested")
	}
	if !errors.Is(unix.Sendmsg(evil.Ear, []byte{1}, nil, nil, unix.MSG_NOSIGNAL), unix.EPIPE) {
		t.Error("a client can write to the daemon's end of its doorbell")
	}
}
