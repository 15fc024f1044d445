package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

var nobody = netip.MustParseAddrPort("127.0.99.99:7") // no node is there: what is sent there stays queued

func (r *ringClient) ask(t *testing.T, m *rdsdv1.ClientMessage) {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err == nil {
		err = r.c.WriteMessage(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (r *ringClient) answer(t *testing.T) *rdsdv1.ServerMessage {
	t.Helper()
	raw, _, err := r.c.ReadMessage()
	m := &rdsdv1.ServerMessage{}
	if err == nil {
		err = proto.Unmarshal(raw, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// post posts trains of one-byte datagrams, without waiting for anything.
func (r *ringClient) post(t *testing.T, dst netip.AddrPort, trains, each int, tag *uint64) {
	t.Helper()
	f, err := r.send.Flow(dst)
	if err != nil {
		t.Fatal(err)
	}
	for range trains {
		sl, err := r.send.Grab(f, each)
		for tries := 0; errors.Is(err, shm.ErrRing) && tries < 5000; tries++ {
			time.Sleep(time.Millisecond)
			sl, err = r.send.Grab(f, each)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.send.Post(&sl, shm.KindEach, each, each, each, *tag+1, false)
		*tag += uint64(each)
	}
}

// outcomes counts what became of what was posted, by kind.
func (r *ringClient) outcomes(t *testing.T) map[uint8]int {
	t.Helper()
	n := map[uint8]int{}
	var v shm.Event
	for {
		ok, err := r.send.NextEvent(&v)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			r.send.EventsTaken()
			return n
		}
		if v.Kind == shm.EventOutcome {
			n[v.Outcome] += int(v.Count)
		}
	}
}

func cancelOf(id uint64, dst netip.AddrPort) *rdsdv1.ClientMessage {
	c := &rdsdv1.Cancel{}
	c.SetId(id)
	c.SetDestination(endpointPB(dst))
	m := &rdsdv1.ClientMessage{}
	m.SetCancel(c)
	return m
}

func flushOf(id uint64, timeout time.Duration) *rdsdv1.ClientMessage {
	f := &rdsdv1.Flush{}
	f.SetId(id)
	f.SetTimeoutNs(int64(timeout))
	m := &rdsdv1.ClientMessage{}
	m.SetFlush(f)
	return m
}

// TestCancelIsAPoint: a Cancel is about everything posted before it, also what
// the engine has no room for and what the ledger has no memory for yet; nothing
// of that leaves afterwards. Other destinations and what is posted later are
// not touched (D6).
func TestCancelIsAPoint(t *testing.T) {
	for name, c := range map[string]struct{ trains, each int }{
		"more datagrams than the engine takes":     {60, 4096},
		"more descriptors than the ledger has yet": {1000, 1},
		"as many as the ring has":                  {1023, 100},
	} {
		t.Run(name, func(t *testing.T) {
			_, cfg := startOne(t)
			r := attachRing(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
			defer r.close()
			other := netip.AddrPortFrom(nobody.Addr(), nobody.Port()+1)
			var tag uint64
			r.post(t, other, 1, 1, &tag)
			r.post(t, nobody, c.trains, c.each, &tag)
			r.ask(t, cancelOf(1, nobody))
			res := r.answer(t).GetCancelResult()
			n := c.trains * c.each
			if res.GetErrno() != 0 || int(res.GetCancelled()) != n || res.GetInFlight() != 0 {
				t.Errorf("cancelled %d, in flight %d, errno %d; %d were posted", res.GetCancelled(), res.GetInFlight(), res.GetErrno(), n)
			}
			got := 0
			await.Until(t, time.Second, "each is told to be cancelled", func() bool {
				for kind, k := range r.outcomes(t) {
					if kind != shm.Cancelled {
						t.Fatalf("%d datagrams ended with %d", k, kind)
					}
					got += k
				}
				return got == n
			})
			r.post(t, nobody, 3, 5, &tag)
			r.ask(t, cancelOf(2, other))
			if res := r.answer(t).GetCancelResult(); res.GetCancelled() != 1 {
				t.Errorf("of the other destination %d were cancelled", res.GetCancelled())
			}
			r.ask(t, cancelOf(3, nobody))
			if res := r.answer(t).GetCancelResult(); res.GetCancelled() != 15 {
				t.Errorf("of those posted later %d were cancelled", res.GetCancelled())
			}
		})
	}
}

// TestCancelledNeverLeaves: what a Cancel was about does not arrive when the
// receiver reads again.
func TestCancelledNeverLeaves(t *testing.T) {
	_, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	to, err := client.Bind(testContext(t), netip.AddrPortFrom(addr, 0), rdsd.WithRecvBuffer(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	r := attachRing(t, cfg, bindTo(addr, 0))
	defer r.close()
	var tag uint64
	r.post(t, to.LocalAddr(), 60, 4096, &tag)
	r.ask(t, cancelOf(1, to.LocalAddr()))
	res := r.answer(t).GetCancelResult()
	left := int(tag) - int(res.GetCancelled())
	if res.GetCancelled() < 65536 {
		t.Fatalf("only %d cancelled: nothing was tested", res.GetCancelled())
	}
	r.post(t, to.LocalAddr(), 1, 1, &tag) // the last one, on which the flow ends
	got, batch := 0, make([]rdsd.Datagram, 256)
	for got < left+1 {
		n, err := to.RecvBatch(testContext(t), batch)
		if err != nil {
			t.Fatalf("%d of %d: %v", got, left+1, err)
		}
		got += n
	}
	r.ask(t, flushOf(2, 5*time.Second))
	if f := r.answer(t).GetFlushResult(); f.GetErrno() != 0 {
		t.Errorf("flush: %v", f)
	}
	ctx := testContext(t)
	if n, ok, err := to.PeekSize(ctx); ok || err != nil {
		t.Errorf("another datagram of %d bytes, %v", n, err)
	}
	if n := r.outcomes(t); n[shm.Delivered] != left+1 || n[shm.Cancelled] != int(res.GetCancelled()) {
		t.Errorf("outcomes %v; %d cancelled, %d left", n, res.GetCancelled(), left)
	}
}

// TestFlushIsAPoint: a Flush speaks of everything posted before it.
func TestFlushIsAPoint(t *testing.T) {
	_, cfg := startOne(t)
	r := attachRing(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	defer r.close()
	var tag uint64
	r.post(t, nobody, 60, 4096, &tag)
	r.ask(t, flushOf(1, 50*time.Millisecond))
	if f := r.answer(t).GetFlushResult(); syscall.Errno(f.GetErrno()) != syscall.ETIMEDOUT || f.GetInFlight() != tag {
		t.Errorf("flush: errno %d, %d in flight of %d", f.GetErrno(), f.GetInFlight(), tag)
	}
	r.ask(t, flushOf(2, 10*time.Second))
	r.ask(t, cancelOf(3, nobody))
	for range 2 {
		switch m := r.answer(t); {
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
	_, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := attachRing(t, cfg, bindTo(addr, 0))
	defer r.close()
	const questions = 20_000
	asked := make(chan error, 1)
	go func() { // ends when all is asked
		for id := range uint64(questions) {
			q := &rdsdv1.CongestedQuery{}
			q.SetId(id)
			q.SetDestination(endpointPB(nobody))
			m := &rdsdv1.ClientMessage{}
			m.SetCongested(q)
			raw, err := proto.Marshal(m)
			if err == nil {
				err = r.c.WriteMessage(raw)
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
		if m := r.answer(t); m.GetCongestedResult().GetId() != id || m.GetCongestedResult().GetErrno() != 0 {
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
	n, cfg := startOne(t)
	r := attachRing(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	r.c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	var err error
	for id := uint64(0); err == nil; id++ {
		raw, _ := proto.Marshal(cancelOf(id, nobody))
		err = r.c.WriteMessage(raw)
	}
	if !errors.Is(err, syscall.EAGAIN) && !isTimeout(err) {
		t.Fatal(err)
	}
	r.close()
	await.Until(t, time.Second, "the socket is gone", func() bool { return n.clients.Budget().Used == 0 && regionsMapped(t) <= 1 })
}

// TestRightsEndOne: descriptors sent to the daemon, whose last close takes as long as
// their sender likes, end that connection and hold up nobody, be it with rings, plain or
// before any bind.
func TestRightsEndOne(t *testing.T) {
	n, cfg := startOne(t)
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
			p := &packetClient{t, c}
			if m := p.bind(bindTo(addr, 0)); !m.HasBound() {
				t.Fatal(m)
			}
		},
		"rings": func(c *shm.Conn) {
			r := attachOver(t, c, bindTo(addr, 0))
			t.Cleanup(func() { closeFDs([]int{r.bell, r.ear}) })
			unix.Munmap(r.mem) // it counts until it has let go of its region
			r.region.Close()
		},
	} {
		c := connectAs(t, n, config.Identity{UID: 777})
		c.SetDeadline(time.Now().Add(10 * time.Second))
		bind(c)
		fd, far := lingering(t)
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

// lingering is a TCP socket whose last close takes until its other end is closed.
func lingering(t *testing.T) (fd int, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})
	}
	if err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 1<<20); ; {
		if _, err := unix.Write(fd, full); err != nil {
			return fd, far
		}
	}
}

// TestControlFlood: many clients of a user flood the daemon with messages. Each
// message is answered, in order, and what another socket sends goes on meanwhile.
func TestControlFlood(t *testing.T) {
	_, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	const clients, each = 20, 200
	done := make(chan error, clients)
	for range clients {
		r := attachRing(t, cfg, bindTo(addr, 0))
		defer r.close()
		go func() {
			for i := range uint64(each) {
				raw, err := proto.Marshal(flushOf(i, 0))
				if err == nil {
					err = r.c.WriteMessage(raw)
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
		go func() {
			for i := range uint64(each) {
				raw, _, err := r.c.ReadMessage()
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
