package node

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// ringBind makes a Bind with rings.
func ringBind(addr netip.Addr, port uint16) *rdsdv1.Bind {
	b := bindTo(addr, port)
	w := &rdsdv1.RingWish{}
	w.SetVersion(shm.Version)
	b.SetRing(w)
	return b
}

// exchange has one datagram go from a new socket to itself.
func exchange(t *testing.T, client *rdsd.Client, local netip.AddrPort) error {
	t.Helper()
	s, err := client.Bind(testContext(t), local)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Send(testContext(t), s.LocalAddr(), []byte("to myself")); err != nil {
		return err
	}
	_, err = s.Recv(testContext(t))
	return err
}

// held is what sockets take of a node; all of it comes back.
type held struct{ fds, maps, goroutines, sockets, clients, ledger int }

func holding(t *testing.T, n *Node) held {
	t.Helper()
	a := n.core.(*datagram.Host)
	return held{descriptors(t), regionsMapped(t), runtime.NumGoroutine(), int(n.clients.Budget().Used), n.users.Len(), a.Ledger().Regions()}
}

// TestLayFails: each step of a bind with rings fails in turn, and once more, with a
// chosen port and with any. The client is told, nothing is left behind, and the
// next one gets the port.
func TestLayFails(t *testing.T) {
	n, cfg := startOne(t)
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
		seen[step] = true
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
	for _, step := range steps {
		fail(func(s string) error {
			if s == step {
				return syscall.EMFILE
			}
			return nil
		})
		for _, port := range []uint16{fixed.Port(), 0, fixed.Port()} {
			p := dialPackets(t, cfg)
			if m := p.bind(ringBind(addr, port)); !m.HasClosing() || m.GetClosing().GetErrno() != int32(syscall.EMFILE) || m.GetClosing().GetMessage() == "" {
				t.Errorf("%s failed, and the client was told %v", step, m)
			}
			p.c.Close()
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
// and from then on nobody can punch holes into that or map it once more. Who says
// anything else, or seals the region otherwise, is refused; who says nothing has
// taken no port.
func TestSealedBeforeUse(t *testing.T) {
	n, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	punch := func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 1<<20)
	}
	region := func(port uint16) (*packetClient, int) {
		p := dialPackets(t, cfg)
		m, fds := p.ask(ringBind(addr, port))
		if !m.HasRegion() || len(fds) != 4 {
			t.Fatalf("bind was answered by %v, %d descriptors", m, len(fds))
		}
		t.Cleanup(func() { closeFDs(fds) })
		return p, fds[0]
	}
	silent, theirs := region(4711)
	if err := punch(theirs); err != nil {
		t.Fatalf("no hole to begin with: this shows nothing: %v", err)
	}
	touchRegion(t, theirs)
	p, fd := region(4711) // the silent one has not got the port
	for range 100 {
		if err := punch(fd); err != nil {
			t.Fatal(err)
		}
	}
	if m := p.mapped(); m.GetClosing().GetErrno() != int32(syscall.EINVAL) {
		t.Fatalf("a region that was never touched was answered by %v", m)
	}
	p, fd = region(4711)
	if m := p.mapped(); !m.HasBound() {
		t.Fatalf("a mapped region was answered by %v", m)
	}
	if err := punch(fd); !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole in the region of a bound socket: %v", err)
	}
	if mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("the region of a bound socket can be mapped to write: %v", err)
		unix.Munmap(mem)
	}
	if m := silent.mapped(); m.GetClosing().GetErrno() != int32(syscall.EADDRINUSE) {
		t.Errorf("the second one for a port was told %v", m)
	}
	sealed, fd := region(0)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		t.Fatal(err)
	}
	if m := sealed.mapped(); m.GetClosing().GetErrno() != int32(syscall.EINVAL) {
		t.Errorf("who sealed its region was told %v", m)
	}
	other, _ := region(0)
	if m := other.bind(ringBind(addr, 0)); m.GetClosing().GetErrno() != int32(syscall.EINVAL) {
		t.Errorf("a Bind instead of RingMapped was answered by %v", m)
	}
	p.c.Close()
	await.Until(t, 5*time.Second, "all sockets are gone", func() bool { return n.clients.Budget().Used == 0 })
}

// connectAs is a connection to the control socket by anybody, and past the kernel's
// refusal of descriptors.
func connectAs(t *testing.T, n *Node, id config.Identity) *shm.Conn {
	t.Helper()
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := [2]*net.UnixConn{}
	for i, fd := range s {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	account, err := n.users.Add(id, localConnBytes)
	if err != nil {
		t.Fatal(err)
	}
	go n.clients.handle(shm.NewConn(conns[0], 0), id, account) // ends with the connection
	return shm.NewConn(conns[1], 4)
}

// TestLayOnTheWay: a client that may not have most ports, and asks for any, is
// given one; those tried on the way never had rings.
func TestLayOnTheWay(t *testing.T) {
	n, cfg := startWith(t, func(c *config.Config) {
		root := uint32(0)
		c.Ports = []config.PortGrant{{Range: config.PortRange{First: 1024, Last: 65000}, UID: &root, Exclusive: true}}
	})
	for range 5 {
		r := attachOver(t, connectAs(t, n, config.Identity{UID: 12345}), bindTo(cfg.RDS.Addresses[0], 0))
		if port := r.bound.GetLocal().GetPort(); port <= 65000 {
			t.Errorf("port %d, which is somebody else's", port)
		}
		r.close()
	}
	await.Until(t, 5*time.Second, "all sockets are gone", func() bool { return n.clients.Budget().Used == 0 && regionsMapped(t) == 0 })
}

// TestDeafAndLoud: a client that spoils its doorbells in every way it can and
// then has the daemon ring does not hold the daemon up: it is served on, and so
// are others.
func TestDeafAndLoud(t *testing.T) {
	_, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	good, err := client.Bind(testContext(t), netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	evil := attachRing(t, cfg, bindTo(addr, 0))
	defer evil.close()
	for _, fd := range []int{evil.bell, evil.ear} {
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
		full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // a bell counts no further; the ear cannot be written to
		_, _ = unix.Write(fd, full)
	}
	to := netip.AddrPortFrom(addr, uint16(evil.bound.GetLocal().GetPort()))
	for i := range 2000 {
		*evil.word(5248) = uint64(shm.ClientWaitsRecv | shm.ClientWaitsEvent)
		if err := good.Send(testContext(t), to, signed("ring", uint64(i))); err != nil {
			t.Fatal(i, err)
		}
		if err := good.Send(testContext(t), good.LocalAddr(), signed("good", uint64(i))); err != nil {
			t.Fatal(i, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		d, err := good.Recv(ctx)
		cancel()
		if err != nil || string(d.Payload) != string(signed("good", uint64(i))) {
			t.Fatalf("datagram %d: %x, %v", i, d.Payload, err)
		}
	}
	if rang, _ := shm.Drain(evil.ear); !rang {
		t.Error("the daemon never rang: nothing was tested")
	}
	if !errors.Is(unix.Sendmsg(evil.ear, []byte{1}, nil, nil, unix.MSG_NOSIGNAL), unix.EPIPE) {
		t.Error("a client can write to the daemon's end of its doorbell")
	}
}
