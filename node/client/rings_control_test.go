package client

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/slowclose"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// TestCancelIsAPoint: a Cancel is about everything posted before it, also what
// the engine has no room for and what the ledger has no memory for yet; nothing
// of that leaves afterwards. Other destinations and what is posted later are
// not touched (D6).
func TestCancelIsAPoint(t *testing.T) {
	for name, c := range map[string]struct{ trains, each int }{
		"more datagrams than the engine takes":     {60, 4096},
		"more Descriptors than the ledger has yet": {1000, 1},
		"as many as the ring has":                  {1023, 100},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := startClients(t)
			r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
			defer r.Close()
			other := netip.AddrPortFrom(clienttest.Nobody.Addr(), clienttest.Nobody.Port()+1)
			var tag uint64
			r.Post(t, other, 1, 1, &tag)
			r.Post(t, clienttest.Nobody, c.trains, c.each, &tag)
			r.Ask(t, clienttest.CancelOf(1, clienttest.Nobody))
			res := r.Answer(t).GetCancelResult()
			n := c.trains * c.each
			if res.GetErrno() != 0 || int(res.GetCancelled()) != n || res.GetInFlight() != 0 {
				t.Errorf("cancelled %d, in flight %d, errno %d; %d were posted", res.GetCancelled(), res.GetInFlight(), res.GetErrno(), n)
			}
			got := 0
			await.Until(t, time.Second, "each is told to be cancelled", func() bool {
				for kind, k := range r.Outcomes(t) {
					if kind != shm.Cancelled {
						t.Fatalf("%d datagrams ended with %d", k, kind)
					}
					got += k
				}
				return got == n
			})
			r.Post(t, clienttest.Nobody, 3, 5, &tag)
			r.Ask(t, clienttest.CancelOf(2, other))
			if res := r.Answer(t).GetCancelResult(); res.GetCancelled() != 1 {
				t.Errorf("of the other destination %d were cancelled", res.GetCancelled())
			}
			r.Ask(t, clienttest.CancelOf(3, clienttest.Nobody))
			if res := r.Answer(t).GetCancelResult(); res.GetCancelled() != 15 {
				t.Errorf("of those posted later %d were cancelled", res.GetCancelled())
			}
		})
	}
}

// TestCancelledNeverLeaves: what a Cancel was about does not arrive when the
// receiver reads again.
func TestCancelledNeverLeaves(t *testing.T) {
	_, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	to, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0), rdsd.WithRecvBuffer(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
	defer r.Close()
	var tag uint64
	r.Post(t, to.LocalAddr(), 60, 4096, &tag)
	r.Ask(t, clienttest.CancelOf(1, to.LocalAddr()))
	res := r.Answer(t).GetCancelResult()
	left := int(tag) - int(res.GetCancelled())
	if res.GetCancelled() < 65536 {
		t.Fatalf("only %d cancelled: nothing was tested", res.GetCancelled())
	}
	r.Post(t, to.LocalAddr(), 1, 1, &tag) // the last one, on which the flow ends
	got, batch := 0, make([]rdsd.Datagram, 256)
	for got < left+1 {
		n, err := to.RecvBatch(clienttest.Context(t), batch)
		if err != nil {
			t.Fatalf("%d of %d: %v", got, left+1, err)
		}
		got += n
	}
	r.Ask(t, clienttest.FlushOf(2, 5*time.Second))
	if f := r.Answer(t).GetFlushResult(); f.GetErrno() != 0 {
		t.Errorf("flush: %v", f)
	}
	ctx := clienttest.Context(t)
	if n, ok, err := to.PeekSize(ctx); ok || err != nil {
		t.Errorf("another datagram of %d bytes, %v", n, err)
	}
	if n := r.Outcomes(t); n[shm.Delivered] != left+1 || n[shm.Cancelled] != int(res.GetCancelled()) {
		t.Errorf("outcomes %v; %d cancelled, %d left", n, res.GetCancelled(), left)
	}
}

// TestMarksPass: a Cancel whose point the daemon cannot reach is remembered for what stands before that,
// and not for longer, though no other Cancel follows.
func TestMarksPass(t *testing.T) {
	n, cfg := startClients(t)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	nobody := clienttest.Nobody
	dsts := []netip.AddrPort{nobody, netip.AddrPortFrom(nobody.Addr(), 8), netip.MustParseAddrPort("127.0.99.98:9"), netip.AddrPortFrom(nobody.Addr(), 10)}
	for i, dst := range dsts {
		c.Region.PutFlow(uint32(i), &shm.FlowEntry{Dst: dst, Gen: 1})
	}
	clear(c.Region.SendArena()[:shm.MaxTrain])
	tail := uint64(0)
	post := func(flow uint32, count int) {
		c.Region.PutSend(tail, shm.MakeWord(shm.KindEach, count, count), &shm.SendDesc{Tag: tail * shm.MaxTrain, Flow: flow, Gen: 1, Cookie: uint32(tail)})
		tail++
	}
	for range shm.MaxOutstandingDatagrams / shm.MaxTrain {
		post(0, shm.MaxTrain)
	}
	for i := range dsts { // these are too many
		post(uint32(i), 1)
	}
	c.Region.SendTail().Store(tail)
	shm.Ring(c.Bell)
	await.Until(t, 5*time.Second, "it is counted", func() bool { return len(n.clients.ringSocks()) == 1 })
	r := n.clients.ringSocks()[0]
	marks := func() (m int) {
		done := make(chan struct{})
		r.react.Do(func() { m = len(r.marks); close(done) })
		<-done
		return m
	}
	others := []netip.AddrPort{dsts[1], netip.AddrPortFrom(dsts[2].Addr(), 0), netip.AddrPortFrom(dsts[2].Addr(), 10)}
	for i, dst := range append(others, others...) {
		c.Ask(t, clienttest.CancelOf(uint64(i), dst))
		if res := c.Answer(t).GetCancelResult(); res.GetErrno() != 0 || res.GetCancelled() != 0 {
			t.Fatal(res)
		}
	}
	if got := marks(); got != len(others) {
		t.Fatalf("%d cancels are remembered, want %d: nothing is tested", got, len(others))
	}
	c.Ask(t, clienttest.CancelOf(9, nobody))
	if res := c.Answer(t).GetCancelResult(); res.GetCancelled() != shm.MaxOutstandingDatagrams {
		t.Errorf("%d are cancelled", res.GetCancelled())
	}
	await.Until(t, 5*time.Second, "all is taken", func() bool { return c.Region.SendHead().Load() == tail })
	if got := marks(); got != 0 {
		t.Errorf("%d cancels are remembered for nothing", got)
	}
	post(1, 1) // behind all points
	c.Region.SendTail().Store(tail)
	shm.Ring(c.Bell)
	await.Until(t, 5*time.Second, "one more is taken", func() bool { return c.Region.SendHead().Load() == tail })
	cancelled := 0
	await.Until(t, 5*time.Second, "outcomes are told", func() bool {
		for head := c.Region.EventHead().Load(); head != c.Region.EventTail().Load(); head++ {
			var v shm.Event
			if c.Region.GetEvent(head, &v); v.Kind != shm.EventOutcome || v.Outcome != shm.Cancelled {
				t.Fatalf("event %+v", v)
			}
			cancelled += int(v.Count)
			c.Region.EventHead().Store(head + 1)
		}
		return cancelled >= shm.MaxOutstandingDatagrams+3
	})
	c.Ask(t, clienttest.FlushOf(10, 50*time.Millisecond))
	if f := c.Answer(t).GetFlushResult(); f.GetInFlight() != 2 || cancelled != shm.MaxOutstandingDatagrams+3 {
		t.Errorf("%d are cancelled, %d in flight, want two: one that no Cancel was about, and the last", cancelled, f.GetInFlight())
	}
}

// TestFlushIsAPoint: a Flush speaks of everything posted before it.
func TestFlushIsAPoint(t *testing.T) {
	_, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	var tag uint64
	r.Post(t, clienttest.Nobody, 60, 4096, &tag)
	r.Ask(t, clienttest.FlushOf(1, 50*time.Millisecond))
	if f := r.Answer(t).GetFlushResult(); syscall.Errno(f.GetErrno()) != syscall.ETIMEDOUT || f.GetInFlight() != tag {
		t.Errorf("flush: errno %d, %d in flight of %d", f.GetErrno(), f.GetInFlight(), tag)
	}
	r.Ask(t, clienttest.FlushOf(2, 10*time.Second))
	r.Ask(t, clienttest.CancelOf(3, clienttest.Nobody))
	for range 2 {
		switch m := r.Answer(t); {
		case m.HasFlushResult() && m.GetFlushResult().GetErrno() == 0:
		case m.HasCancelResult() && m.GetCancelResult().GetCancelled() == tag:
		default:
			t.Errorf("answered by %v", m)
		}
	}
}

// TestAnswersWait: a client that asks and asks and reads no answers is not read
// from for a while, and loses nothing; others do not notice.
func TestAnswersWait(t *testing.T) {
	_, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
	defer r.Close()
	const questions = 20_000
	asked := make(chan error, 1)
	go func() { // ends when all is asked
		for id := range uint64(questions) {
			q := &rdsdv1.CongestedQuery{}
			q.SetId(id)
			q.SetDestination(clienttest.EndpointMsg(clienttest.Nobody))
			m := &rdsdv1.ClientMessage{}
			m.SetCongested(q)
			raw, err := proto.Marshal(m)
			if err == nil {
				err = r.C.WriteMessage(raw)
			}
			if err != nil {
				asked <- err
				return
			}
		}
		asked <- nil
	}()
	select {
	case err := <-asked:
		t.Fatalf("all questions were taken though no answer was read: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := exchange(t, client, netip.AddrPortFrom(addr, 0)); err != nil {
		t.Errorf("another client: %v", err)
	}
	for id := range uint64(questions) {
		if id%100 == 0 { // the limit is of the next ones, not of all
			r.C.SetDeadline(time.Now().Add(20 * time.Second))
		}
		if m := r.Answer(t); m.GetCongestedResult().GetId() != id || m.GetCongestedResult().GetErrno() != 0 {
			t.Fatalf("answer %d is %v", id, m)
		}
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// TestGoneWhileStopped: a client that dies while nothing is read from it is
// noticed like any other.
func TestGoneWhileStopped(t *testing.T) {
	n, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	r.C.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	var err error
	for id := uint64(0); err == nil; id++ {
		raw, _ := proto.Marshal(clienttest.CancelOf(id, clienttest.Nobody))
		err = r.C.WriteMessage(raw)
	}
	if !errors.Is(err, syscall.EAGAIN) && !isTimeout(err) {
		t.Fatal(err)
	}
	r.Close()
	await.Until(t, time.Second, "the socket is gone", func() bool { return n.clients.Budget().Used == 0 && clienttest.RegionsMapped(t) <= 1 })
}

// TestRightsEndOne: Descriptors sent to the daemon, whose last close takes as long as
// their sender likes, end that connection and hold up Nobody, be it with rings, plain or
// before any bind.
func TestRightsEndOne(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := exchange(t, client, netip.AddrPortFrom(addr, 0)); err != nil {
		t.Fatal(err)
	}
	used := n.users.Len // with those of the client that reads and writes, which go as well
	for name, bind := range map[string]func(c *shm.Conn){
		"nothing yet": func(*shm.Conn) {},
		"plain": func(c *shm.Conn) {
			p := clienttest.PacketsOver(t, c)
			if m := p.Bind(clienttest.BindTo(addr, 0)); !m.HasBound() {
				t.Fatal(m)
			}
		},
		"rings": func(c *shm.Conn) {
			r := clienttest.AttachOver(t, c, clienttest.BindTo(addr, 0))
			t.Cleanup(func() { clienttest.CloseFDs([]int{r.Bell, r.Ear}) })
			unix.Munmap(r.Mem) // it counts until it has let go of its region
			r.Region.Close()
		},
	} {
		c := clienttest.ConnectAs(t, n.clients.Accept, config.Identity{UID: 777})
		c.SetDeadline(time.Now().Add(10 * time.Second))
		bind(c)
		fd, far := slowclose.Socket(t)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(sock uintptr) {
			err = unix.Sendmsg(int(sock), []byte{1, 0, 0, 0, 0x1a, 0}, unix.UnixRights(fd), nil, 0)
		})
		go unix.Close(fd) // whoever closes last, it or the daemon, waits for far
		if err != nil {
			t.Fatal(err)
		}
		for {
			raw, _, err := c.ReadMessage()
			if errors.Is(err, io.EOF) { // at once, perhaps: what the daemon has not read resets the connection
				break
			}
			m := &rdsdv1.ServerMessage{}
			if err != nil || proto.Unmarshal(raw, m) != nil || syscall.Errno(m.GetClosing().GetErrno()) != syscall.EBADMSG {
				t.Errorf("%s: answered by %v, %v", name, m, err)
				break
			}
		}
		await.Until(t, time.Second, "the socket is gone", func() bool { return n.clients.Budget().Used == 0 })
		for range 20 {
			if err := exchange(t, client, netip.AddrPortFrom(addr, 0)); err != nil {
				t.Fatal(name, err)
			}
		}
		far.Close()
		await.Until(t, 5*time.Second, "the connection is closed", func() bool { return used() == 0 })
		c.Close()
	}
}

// TestControlFlood: many clients of a user flood the daemon with messages. Each
// message is answered, in order, and what another socket sends goes on meanwhile.
func TestControlFlood(t *testing.T) {
	_, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	const clients, each = 20, 200
	done := make(chan error, clients)
	for range clients {
		r := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
		defer r.Close()
		go func() {
			for i := range uint64(each) {
				raw, err := proto.Marshal(clienttest.FlushOf(i, 0))
				if err == nil {
					err = r.C.WriteMessage(raw)
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
		go func() {
			for i := range uint64(each) {
				raw, _, err := r.C.ReadMessage()
				m := &rdsdv1.ServerMessage{}
				if err == nil {
					err = proto.Unmarshal(raw, m)
				}
				if err == nil && m.GetFlushResult().GetId() != i {
					err = fmt.Errorf("answer %d is %v", i, m)
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for left := clients; left > 0; {
		if err := exchange(t, client, netip.AddrPortFrom(addr, 0)); err != nil {
			t.Fatal(err)
		}
		for len(done) > 0 {
			if err := <-done; err != nil {
				t.Error(err)
			}
			left--
		}
	}
}

// TestHeldUntilItCannotGrow: a Cancel that waits for memory of the ledger is answered when there is none, though
// its reactor has gone to sleep over it.
func TestHeldUntilItCannotGrow(t *testing.T) {
	n, cfg := startClients(t)
	grows := make(chan error)
	defer close(grows)
	step := func(what string) error {
		if what == "grow" {
			return <-grows
		}
		return nil
	}
	n.clients.fails.Store(&step)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	c.C.SetDeadline(time.Now().Add(time.Minute))
	var tag uint64
	c.Post(t, clienttest.Nobody, 164, 1, &tag)
	c.Ask(t, clienttest.CancelOf(1, clienttest.Nobody))
	asleep(t, n, "The message is held, and the reactor asleep.")
	grows <- errors.New("nothing grows")
	if res := c.Answer(t).GetCancelResult(); res.GetErrno() != 0 || res.GetCancelled() != 64 {
		t.Errorf("it is answered by %v", res)
	}
}

// TestBlockedIsHeard: a socket for whose sends the engine has no room sleeps so that its client is heard, also
// when what had been left was taken for a Cancel and more was posted behind that.
func TestBlockedIsHeard(t *testing.T) {
	n, cfg := startClients(t)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	var tag uint64
	c.Post(t, clienttest.Nobody, 60, 4096, &tag)
	c.Ask(t, clienttest.CancelOf(1, netip.AddrPortFrom(clienttest.Nobody.Addr(), 8)))
	c.Answer(t)
	if n := n.deps.Count.RingPosts.Load(); n != 60 {
		t.Fatalf("%d of 60 descriptors are taken", n)
	}
	c.Post(t, clienttest.Nobody, 1, 1, &tag)
	await.Until(t, time.Minute, "the daemon says that it sleeps", func() bool { return c.Region.DaemonSleeps().Load() != 0 })
}

// asleep waits until a message of the only socket is held and its rings are not looked at any more.
func asleep(t *testing.T, n *world, what string) {
	t.Helper()
	await.Until(t, time.Minute, what, func() bool {
		is := false
		for _, r := range n.clients.ringSocks() {
			done := make(chan struct{})
			r.react.Do(func() { is = r.ctl.held && r.End.Asleep(); close(done) })
			<-done
		}
		return is
	})
}

// TestHeldUntilItIsFound: a Cancel waits while it is being found out whether the client has touched a body that it
// posted before, and is about that.
func TestHeldUntilItIsFound(t *testing.T) {
	n, cfg := startClients(t)
	look := make(chan struct{})
	found := sync.OnceFunc(func() { close(look) })
	defer found()
	step := func(what string) error {
		if what == "look" {
			<-look
		}
		return nil
	}
	n.clients.fails.Store(&step)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	c.C.SetDeadline(time.Now().Add(time.Minute))
	const slot = 1 << 20
	c.Region.PutFlow(0, &shm.FlowEntry{Dst: clienttest.Nobody, Gen: 1})
	c.Region.PutSend(0, shm.MakeWord(shm.KindEach, 1, 1), &shm.SendDesc{Gen: 1, Slot: slot})
	c.Region.SendTail().Store(1)
	c.Ask(t, clienttest.CancelOf(1, clienttest.Nobody))
	asleep(t, n, "The message is held, and the reactor asleep.")
	c.Region.SendArena()[slot] = 1 // as if it had been elsewhere
	found()
	if res := c.Answer(t).GetCancelResult(); res.GetErrno() != 0 || res.GetCancelled() != 1 {
		t.Errorf("it is answered by %v", res)
	}
}
