package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/slowclose"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// pagesPaid is what regions have of memory that is paid for.
func pagesPaid(n *world) int64 { return n.clients.PagesPaid() }

// pagesCharged is what of it users are charged for pages.
func pagesCharged(n *world) (bytes int64) {
	for _, h := range n.deps.Memory.Holders() {
		if h.Holder.User {
			bytes += h.Kinds[quota.Regions]
		}
	}
	return bytes
}

// giveAllBack gives back what no region needs.
func giveAllBack(n *world) {
	for _, r := range n.clients.ringSocks() {
		r.giveBack()
	}
}

// dialRings is a client that attaches by rings, until the test ends.
func dialRings(t *testing.T, cfg *config.Config) *rdsd.Client {
	t.Helper()
	c, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestUntouchedBody: a client that posts memory which it has never touched loses its
// socket; the daemon has not touched it either, and others do not notice.
func TestUntouchedBody(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	evil := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
	defer evil.Close()
	await.Until(t, 5*time.Second, "it is counted", func() bool { return len(n.clients.ringSocks()) == 1 })
	before := allocated(t)
	evil.Region.PutFlow(0, &shm.FlowEntry{Dst: netip.AddrPortFrom(addr, 7), Gen: 1})
	evil.Region.PutSend(0, shm.MakeWord(shm.KindEach, 64<<10, 1), &shm.SendDesc{Gen: 1, Slot: 1 << 20})
	evil.Region.SendTail().Store(1)
	shm.Ring(evil.Bell)
	await.Until(t, 5*time.Second, "it is thrown out", func() bool { return syscall.Errno(evil.Region.Closed().Load()) == syscall.EBADMSG })
	await.Until(t, 5*time.Second, "its socket is gone", func() bool { return n.clients.Budget().Used == 0 })
	if after := allocated(t); after > before+32<<10 { // two pages of rings, and the flow states
		t.Errorf("%d bytes are allocated, %d before", after, before)
	}
	if n.deps.Count.RingsHostile.Load() != 1 {
		t.Errorf("%d hostile clients", n.deps.Count.RingsHostile.Load())
	}
}

// TestPagesOfRegions: what is placed in a region is paid for by its user, given back when memory
// is short and it has been read, and all of it when the client has let go.
func TestPagesOfRegions(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client := dialRings(t, cfg)
	s, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0), rdsd.WithRecvBuffer(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 1<<20)
	for range 6 {
		if err := s.Send(clienttest.Context(t), s.LocalAddr(), body); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, 5*time.Second, "six bodies are paid for", func() bool { return pagesPaid(n) >= 6<<20 })
	if c := pagesCharged(n); c > 2<<20 { // half a page of rings, and what settle leaves
		t.Errorf("%d bytes are charged for pages beside what lies in them", c)
	}
	if giveAllBack(n); pagesPaid(n) < 6<<20 {
		t.Errorf("%d bytes are paid for with 6 MiB unread", pagesPaid(n))
	}
	for i := range 6 {
		d, err := s.Recv(clienttest.Context(t))
		if err != nil || len(d.Payload) != len(body) {
			t.Fatal(i, err)
		}
	}
	n.hosts.Collect()
	await.Until(t, 5*time.Second, "what was read is charged for its pages", func() bool { return pagesCharged(n) >= 5<<20 })
	await.Until(t, 5*time.Second, "nearly all of it is given back", func() bool {
		giveAllBack(n)
		return pagesPaid(n) <= 64<<10
	})
	if n.deps.Count.RegionsGivenBack.Load() < 6<<20 {
		t.Errorf("%d bytes were counted as given back", n.deps.Count.RegionsGivenBack.Load())
	}
	if err := s.Send(clienttest.Context(t), s.LocalAddr(), body); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Recv(clienttest.Context(t)); err != nil || len(d.Payload) != len(body) {
		t.Fatal(err)
	}
	s.Close()
	await.Until(t, 5*time.Second, "nothing is paid for", func() bool { return pagesPaid(n) == 0 && pagesCharged(n) == 0 })
}

// allocated is what this process, which is daemon and client at once, has of regions in memory.
func allocated(t *testing.T) (bytes int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssShmem:")
	if _, err := fmt.Sscanf(rest, "%d kB", &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes << 10
}

// TestOftenRung: a client that has rung more often than its doorbell holds, and each time for
// nothing, is heard when it rings for something.
func TestOftenRung(t *testing.T) {
	_, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	r := clienttest.AttachRing(t, cfg, clienttest.OneDoorbell(addr, 0))
	defer r.Close()
	asleep := func() bool { return r.Region.DaemonSleeps().Load() != 0 }
	var tag uint64
	for n := uint64(1); n <= 3; n++ {
		for range 5000 {
			shm.Ring(r.Bell)
		}
		await.Until(t, 5*time.Second, "the daemon sleeps", asleep)
		r.Post(t, netip.AddrPortFrom(addr, uint16(r.Bound.GetLocal().GetPort())), 1, 1, &tag)
		await.Until(t, 5*time.Second, "it has come", func() bool { return r.Region.RecvTail().Load() == n })
	}
}

// TestRegionsLinger: a client that closes its socket and keeps its region goes on paying for
// what the daemon has put there, and counts as a client, until it lets go: of the region, or of
// its doorbell, after which nothing is left in the region.
func TestRegionsLinger(t *testing.T) {
	for name, bind := range map[string]func(netip.Addr, uint16) *rdsdv1.Bind{"two doorbells": clienttest.RingBind, "one doorbell": clienttest.OneDoorbell} {
		t.Run(name, func(t *testing.T) { testRegionsLinger(t, bind) })
	}
}

func testRegionsLinger(t *testing.T, bind func(netip.Addr, uint16) *rdsdv1.Bind) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	r := clienttest.AttachRing(t, cfg, bind(addr, 0))
	one := bind(addr, 0).GetRing().GetOneDoorbell()
	to := netip.AddrPortFrom(addr, uint16(r.Bound.GetLocal().GetPort()))
	f, err := r.Send.Flow(to)
	if err != nil {
		t.Fatal(err)
	}
	slot, err := r.Send.Grab(f, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	slot.Body[1<<20-1] = 0xaa
	r.Send.Post(&slot, shm.KindEach, 1<<20, 1, 1<<20, 1, false)
	await.Until(t, 5*time.Second, "it has come", func() bool { return r.Region.RecvTail().Load() == 1 })
	paid := pagesPaid(n)
	if paid < 1<<20 {
		t.Fatalf("%d bytes are paid for", paid)
	}
	clients := n.users.Len
	r.C.Close()
	await.Until(t, 5*time.Second, "the socket is closed", func() bool { return n.clients.Budget().Used == 0 && clienttest.RegionsMapped(t) <= 4 })
	time.Sleep(300 * time.Millisecond) // the keeper has looked
	if pagesPaid(n) != paid || pagesCharged(n) != paid || clients() != 1 {
		t.Errorf("%d bytes are paid for, %d charged, %d clients", pagesPaid(n), pagesCharged(n), clients())
	}
	if one {
		body := r.Region.RecvArena()
		if body[1<<20-1] != 0xaa {
			t.Error("what is unread is not there any more")
		}
		clienttest.CloseFDs([]int{r.Bell, r.Ear})
		await.Until(t, 5*time.Second, "it has let go", func() bool { return pagesPaid(n)+pagesCharged(n) == 0 && clients() == 0 })
		if body[1<<20-1] != 0 {
			t.Error("a page is left that nobody pays for")
		}
	}
	unix.Munmap(r.Mem)
	r.Region.Close()
	if !one {
		await.Until(t, 5*time.Second, "it has let go", func() bool { return pagesPaid(n)+pagesCharged(n) == 0 && clients() == 0 })
		clienttest.CloseFDs([]int{r.Bell, r.Ear})
	}
}

// TestSlowDoorbell: a client whose doorbell takes long to be closed, for it has sent a descriptor there,
// has its place until that is over; so has one whose bind has failed.
func TestSlowDoorbell(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	send := func(alarm *shm.Alarm, bell int) (far net.Conn) {
		fd, far := slowclose.Socket(t)
		const soPassRights = 83 // as before Linux 6.16, which may not know it
		_ = unix.SetsockoptInt(alarm.FD(), unix.SOL_SOCKET, soPassRights, 1)
		if err := unix.Sendmsg(bell, []byte{1}, unix.UnixRights(fd), nil, 0); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd) // not the last one: it is under way
		return far
	}
	counts := func(what string, far net.Conn) {
		t.Helper()
		for range 20 { // if it is late, the test sees less
			if n.users.Len() != 1 {
				t.Errorf("%s: %d clients, when a doorbell is being closed", what, n.users.Len())
			}
			time.Sleep(time.Millisecond)
		}
		far.Close()
		await.Until(t, 5*time.Second, what+": nothing is left", func() bool { return n.users.Len() == 0 })
	}

	r := clienttest.AttachRing(t, cfg, clienttest.OneDoorbell(addr, 0))
	var tag uint64
	r.Post(t, netip.AddrPortFrom(addr, uint16(r.Bound.GetLocal().GetPort())), 1, 1, &tag) // unread, it keeps the region
	await.Until(t, 5*time.Second, "it has come", func() bool { return r.Region.RecvTail().Load() == 1 })
	sock := n.clients.ringSocks()[0]
	r.C.Close()
	await.Until(t, 5*time.Second, "the region lingers", func() bool {
		n.clients.pages.mu.Lock()
		defer n.clients.pages.mu.Unlock()
		return len(n.clients.pages.closed) == 1
	})
	far := send(sock.alarm, r.Bell)
	clienttest.CloseFDs([]int{r.Bell, r.Ear})
	await.Until(t, 5*time.Second, "it has let go", func() bool { return pagesPaid(n)+pagesCharged(n) == 0 })
	counts("an end", far)
	unix.Munmap(r.Mem)
	r.Region.Close()

	id := config.Identity{UID: 777}
	var ours *net.UnixConn
	account, err := n.users.Add(id, localConnBytes)
	if err != nil {
		t.Fatal(err)
	}
	c := clienttest.ConnectAs(t, func(c *net.UnixConn, _ config.Identity) error { ours = c; return nil }, id)
	defer c.Close()
	alarm, bell, err := shm.NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	far = send(alarm, bell)
	unix.Close(bell)
	p := &packetStream{conn: shm.NewConn(ours, 0)}
	s := &ringSock{front: n.clients, s: newSockStream(n.clients, p, id), alarm: alarm, bell: -1}
	s.dispose(p)
	n.clients.drop(p, id, account)
	counts("a bind", far)
}

// TestPagesLacked: a socket whose user cannot pay for a page is congested and loses nothing, and it
// goes on when there is memory again, whoever gives it back.
func TestPagesLacked(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client := dialRings(t, cfg)
	bind := func() *rdsd.Socket {
		s, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0), rdsd.WithOutcomes())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	a, b := bind(), bind()
	await.Until(t, 5*time.Second, "both are counted", func() bool { return len(n.clients.ringSocks()) == 2 })
	pay := func(with *quota.Account) {
		for _, r := range n.clients.ringSocks() {
			r.host.Lock()
			r.purse.account = with
			r.host.Unlock()
		}
	}
	real := n.clients.ringSocks()[0].purse.account
	poor := quota.New(100, nil)
	pay(poor.Account(quota.User(1)))
	const count = 64
	number := map[uint64]uint64{} // by tag
	lacked := func() uint64 { return poor.Kinds()[quota.Regions].Refused }
	for i := uint64(0); i < count; {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		tag, err := a.SendTag(ctx, b.LocalAddr(), clienttest.Signed("page", i))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if lacked() > 0 {
				break // the port is congested
			}
			continue // the machine is busy
		} else if err != nil {
			t.Fatal(i, err)
		}
		number[tag] = i
		i++
	}
	await.Until(t, 5*time.Second, "somebody lacks a page, again and again", func() bool { return lacked() > 4 })
	e, _ := n.hosts.Locals()[0].Lock()
	queued := e.Counters().RecvQueued
	n.hosts.Locals()[0].Unlock()
	if queued > 0 {
		t.Error("something was placed on a page that nobody paid for")
	}
	pay(real)
	// At the same address what finds no memory may fail; the rest arrives.
	arrives := map[uint64]bool{}
	for left := len(number); left > 0; {
		for o, err := range a.Outcomes(clienttest.Context(t)) {
			if err != nil || o.Kind != rdsd.Delivered && o.Kind != rdsd.Failed {
				t.Fatal(o, err)
			}
			if o.Kind == rdsd.Delivered {
				arrives[number[o.Tag]] = true
			}
			if left--; left == 0 {
				break
			}
		}
	}
	if err := a.Send(clienttest.Context(t), b.LocalAddr(), clienttest.Signed("page", count)); err != nil {
		t.Fatal(err)
	}
	arrives[count] = true
	for i := range uint64(count + 1) {
		if !arrives[i] {
			continue
		}
		d, err := b.Recv(clienttest.Context(t))
		if err != nil || string(d.Payload) != string(clienttest.Signed("page", i)) {
			t.Fatalf("datagram %d: %q %v", i, d.Payload, err)
		}
	}
}

// TestLedgerIsPaid: what the ledger grows by for the datagrams that a socket has under way, and the
// daemon's tables with it, is charged to its user until the socket is gone.
func TestLedgerIsPaid(t *testing.T) {
	n, cfg := startClients(t)
	client := dialRings(t, cfg)
	s, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(cfg.RDS.Addresses[0], 0))
	if err != nil {
		t.Fatal(err)
	}
	sockets := func() int64 { return n.deps.Memory.Kinds()[quota.Sockets].Used }
	before := sockets()
	for range 300 { // Nobody listens there: they stay; what is reserved has a descriptor of its own
		slot, err := s.Reserve(clienttest.Context(t), netip.MustParseAddrPort("127.0.99.99:7"), 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := slot.Commit(1); err != nil {
			t.Fatal(err)
		}
	}
	if n := unsafe.Sizeof(ringPost{}); n != postBytes {
		t.Errorf("a descriptor under way has %d bytes, want %d", n, postBytes)
	}
	const each = 204 // in the ledger, and what is kept of it here
	await.Until(t, 5*time.Second, "it has grown for 300 descriptors, and is paid for", func() bool { return sockets() >= before+(300-64)*each })
	if got := sockets() - before; got != (512-64)*each {
		t.Errorf("%d bytes are paid for", got)
	}
	s.Close()
	await.Until(t, 5*time.Second, "nothing is paid for", func() bool { return sockets() == 0 })
}

// TestAccountsOfARegionAreCharged: what is kept of blocks of receive memory is charged to the user, until they are free
// and the daemon looks, or the socket is gone.
func TestAccountsOfARegionAreCharged(t *testing.T) {
	n, cfg := startClients(t)
	s, err := dialRings(t, cfg).Bind(clienttest.Context(t), netip.AddrPortFrom(cfg.RDS.Addresses[0], 0))
	if err != nil {
		t.Fatal(err)
	}
	sockets := func() int64 { return n.deps.Memory.Kinds()[quota.Sockets].Used }
	before := sockets()
	for range 2 {
		body := make([]byte, 40<<10) // each has a block of its own
		const blocks = 20
		for range blocks {
			if err := s.Send(clienttest.Context(t), s.LocalAddr(), body); err != nil {
				t.Fatal(err)
			}
		}
		await.Until(t, time.Minute, "They are charged.", func() bool { return sockets() >= before+blocks*500 })
		for range blocks {
			if _, err := s.Recv(clienttest.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
		n.hosts.Collect()
		await.Until(t, time.Minute, "They are given back.", func() bool { giveAllBack(n); return sockets() == before })
	}
	if err := s.Send(clienttest.Context(t), s.LocalAddr(), make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	await.Until(t, time.Minute, "One is charged.", func() bool { return sockets() > before })
	s.Close()
	await.Until(t, time.Minute, "Nothing is charged.", func() bool { return sockets() == 0 })
}

// TestStopWaitsForNoRegion: a daemon that stops in order keeps no descriptor of a region that its
// client goes on using, be it closed before or by the stop.
func TestStopWaitsForNoRegion(t *testing.T) {
	fds := clienttest.Descriptors(t)
	cfg := clienttest.Config(t)
	n := newWorld(t, cfg, nil)
	stop := n.start(t)
	bind := func() *clienttest.RingClient {
		return clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	}
	before, during := bind(), bind()
	before.C.Close()
	lingers := func() bool {
		n.clients.pages.mu.Lock()
		defer n.clients.pages.mu.Unlock()
		return len(n.clients.pages.closed) == 1
	}
	await.Until(t, 5*time.Second, "one region lingers", lingers)
	stop()
	for _, r := range []*clienttest.RingClient{before, during} {
		defer r.Region.Close()
		clienttest.CloseFDs([]int{r.Bell, r.Ear})
		unix.Munmap(r.Mem)
		r.C.Close()
	}
	await.Until(t, 5*time.Second, "no descriptor is left", func() bool { return clienttest.Descriptors(t) <= fds })
}

// TestPurse: of what is paid for and what lies in it unread the larger one is charged, as far as
// settle is exact; at the end nothing is.
func TestPurse(t *testing.T) {
	q := quota.New(1<<30, nil)
	p := &purse{account: q.Account(quota.User(1)), total: new(atomic.Int64)}
	check := func(what string, charged, total int64) {
		t.Helper()
		if got := p.account.Used(); got != charged || p.total.Load() != total || int64(p.charged) != charged {
			t.Errorf("%s: %d (%d) charged and %d in all, not %d and %d", what, got, p.charged, p.total.Load(), charged, total)
		}
	}
	if !p.Take(1<<20) || p.Take(1<<30) {
		t.Error("taken is what there is")
	}
	check("taken", 1<<20, 1<<20)
	p.settle(1<<20, purseStep-1)
	check("a little unread", 1<<20, 1<<20)
	p.settle(1<<20, purseStep)
	check("a step unread", 1<<20-purseStep, 1<<20)
	p.settle(1<<20, 2<<20)
	check("more unread than there are pages", 0, 1<<20)
	p.settle(1<<20, 1<<20-purseStep+1)
	check("nearly all unread", 0, 1<<20)
	p.settle(1<<20, 1<<20-purseStep)
	check("a step is read", purseStep, 1<<20)
	p.settle(1<<20, 0)
	check("all read", 1<<20, 1<<20)
	p.Give(1 << 19)
	check("half is given back", 1<<19, 1<<19)
	p.Give(1 << 19)
	check("all is given back", 0, 0)
}

// TestPagesAreLookedAtInTime: Nobody looks without a reason; after a look that found much soon
// again, after one that found little later, and sooner where somebody lacks pages.
func TestPagesAreLookedAtInTime(t *testing.T) {
	at := time.Now()
	var p regionPages
	look := func(after time.Duration, short, lacks, give, feed bool) {
		t.Helper()
		at = at.Add(after)
		if g, f := p.due(at, short, lacks); g != give || f != feed {
			t.Errorf("after %v, short %v, lacking %v: give back %v, feed %v", after, short, lacks, g, f)
		}
	}
	look(0, false, false, false, false)
	look(0, true, false, true, false)
	look(idleGiveBack-1, true, false, false, false)
	look(1, true, false, true, false)
	p.found.Store(foundMuch)
	look(giveBackEvery-1, true, false, false, false)
	look(1, true, false, true, false)
	p.found.Store(foundMuch - 1)
	look(giveBackEvery, false, true, false, true)
	look(FeedEvery-1, false, true, false, false)
	look(1, false, true, false, true)
	look(lackGiveBack-giveBackEvery-FeedEvery-1, false, true, false, true)
	look(1, false, true, true, false)
	look(time.Hour, false, false, false, false)
}

// TestGiveBackBesideTheEnd: while sockets come and go, somebody gives back pages of all
// regions again and again, and never looks at one that is not mapped any more.
func TestGiveBackBesideTheEnd(t *testing.T) {
	n, cfg := startClients(t)
	done := make(chan struct{})
	var keepers sync.WaitGroup
	for range 3 {
		keepers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				giveAllBack(n)
			}
		})
	}
	for range 150 {
		r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
		tag := uint64(0)
		r.Post(t, netip.AddrPortFrom(cfg.RDS.Addresses[0], uint16(r.Bound.GetLocal().GetPort())), 1, 1, &tag)
		r.Close()
	}
	close(done)
	keepers.Wait()
	await.Until(t, 5*time.Second, "the regions are gone", func() bool { return n.clients.Budget().Used == 0 })
}
