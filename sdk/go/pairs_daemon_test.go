//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// startPaired starts a daemon that makes pairs.
func startPaired(t testing.TB, args ...string) *rdsdtest.Daemon {
	t.Helper()
	return rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA), append([]string{"--pairs", "auto"}, args...)...)
}

func bindRings(t testing.TB, d *rdsdtest.Daemon, opts ...rdsd.BindOption) *rdsd.Socket {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := d.Dial(rdsd.WithFrontEnd(rdsd.Rings)).Bind(ctx, d.AddrPort(0), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// admins has one for each daemon: a connection for each question would soon be too many.
var admins sync.Map

func admin(d *rdsdtest.Daemon) *rdsd.Admin {
	a, ok := admins.Load(d)
	if !ok {
		a, _ = admins.LoadOrStore(d, d.Dial().Admin())
	}
	return a.(*rdsd.Admin)
}

// counter is one of a daemon.
func counter(t testing.TB, d *rdsdtest.Daemon, name string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := admin(d).Counters(ctx, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range l {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}

// numbers sends and receives numbered datagrams.
type numbers struct {
	t        testing.TB
	from, to *rdsd.Socket
	sent     uint64
	got      uint64
}

func (n *numbers) send(ctx context.Context) {
	n.t.Helper()
	var p [8]byte
	binary.LittleEndian.PutUint64(p[:], n.sent)
	if err := n.from.Send(ctx, n.to.LocalAddr(), p[:]); err != nil {
		n.t.Fatalf("datagram %d: %v", n.sent, err)
	}
	n.sent++
}

func (n *numbers) recv(ctx context.Context) {
	n.t.Helper()
	d, err := n.to.Recv(ctx)
	if err != nil {
		n.t.Fatalf("datagram %d: %v", n.got, err)
	}
	if d.Addr != n.from.LocalAddr() || len(d.Payload) != 8 || binary.LittleEndian.Uint64(d.Payload) != n.got {
		n.t.Fatalf("%x from %v, where number %d was to come from %v", d.Payload, d.Addr, n.got, n.from.LocalAddr())
	}
	n.got++
}

// untilPaired sends until the flow goes by a pair.
func (n *numbers) untilPaired(ctx context.Context, d *rdsdtest.Daemon) {
	n.t.Helper()
	was := counter(n.t, d, "pair_datagrams")
	for begun := time.Now(); counter(n.t, d, "pair_datagrams") == was; {
		if time.Since(begun) > 20*time.Second {
			n.t.Fatalf("no pair in 20 s: %d offered, %d opened, %d sent", counter(n.t, d, "pairs_offered"), counter(n.t, d, "pairs_opened"), n.sent)
		}
		for range 2000 {
			n.send(ctx)
			n.recv(ctx)
		}
	}
}

// TestPairsChangeOver has a flow go over to a pair and back many times, with datagrams unread
// at each change: each comes once, in order.
func TestPairsChangeOver(t *testing.T) {
	d := startPaired(t)
	ctx := within(t, 2*time.Minute)
	n := &numbers{t: t, from: bindRings(t, d), to: bindRings(t, d, rdsd.WithRecvBuffer(192<<10))}
	n.untilPaired(ctx, d)
	for round := range 80 {
		// More than a pair has room for: the rest goes by the daemon, and what is sent
		// when that is placed goes by the pair again.
		for range 100 + 371*round%6000 {
			n.send(ctx)
		}
		for n.got < n.sent-uint64(round%50) {
			n.recv(ctx)
		}
	}
	for n.got < n.sent {
		n.recv(ctx)
	}
	t.Logf("%d datagrams, of these %d by pairs, %d by the daemon", n.sent, counter(t, d, "pair_datagrams"), counter(t, d, "ring_refused"))
}

// info is what the daemon says of a socket.
func info(t testing.TB, d *rdsdtest.Daemon, s *rdsd.Socket) rdsd.SocketInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := admin(d).Sockets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range l {
		if i.Local == s.LocalAddr() {
			return i
		}
	}
	t.Fatalf("the daemon has no socket %v", s.LocalAddr())
	return rdsd.SocketInfo{}
}

// until waits for what a daemon does by itself.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}

// regionsCharged is what the users of a daemon are charged for memory shared with clients.
func regionsCharged(t testing.TB, d *rdsdtest.Daemon) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	st, err := admin(d).Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range st.Budgets {
		if b.Name == "memory_regions" {
			return b.Used
		}
	}
	t.Fatal("no budget memory_regions")
	return 0
}

// pairFiles counts what a daemon has of pairs: mappings, and descriptors that it keeps until
// no client has the memory, which is charged as long.
func pairFiles(t testing.TB, d *rdsdtest.Daemon) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", d.Pid())
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		if to, err := os.Readlink(dir + "/" + f.Name()); err == nil && strings.Contains(to, "rdsd-pair") {
			n++
		}
	}
	return n + strings.Count(string(maps), "rdsd-pair")
}

// TestPairsFullAndCongested stops a reader: its sender meets the end of the receive buffer as
// it does without a pair, nothing is lost, and who fills the port is shown (D8).
func TestPairsFullAndCongested(t *testing.T) {
	d := startPaired(t)
	ctx := within(t, 2*time.Minute)
	begun := time.Now()
	const buffer, sendBuffer = 256 << 10, 32 << 10
	n := &numbers{t: t, from: bindRings(t, d, rdsd.WithSendBuffer(sendBuffer)), to: bindRings(t, d, rdsd.WithRecvBuffer(buffer))}
	n.untilPaired(ctx, d)
	for range 5 {
		payload := make([]byte, 1000)
		put := 0
		for {
			binary.LittleEndian.PutUint64(payload, n.sent)
			err := n.from.TrySend(n.to.LocalAddr(), payload)
			if errors.Is(err, rdserr.ErrWouldBlock) {
				time.Sleep(time.Millisecond) // the daemon is at what went by it
				continue
			}
			if errors.Is(err, rdserr.ErrCongested) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n.sent++
			put += len(payload)
		}
		// A send buffer more is accepted before the sender sees the port's state.
		if put < buffer*9/10 || put > buffer+sendBuffer+10*len(payload) {
			t.Fatalf("%d bytes were sent to a reader with a buffer of %d that does not read", put, buffer)
		}
		until(t, "the port is shown with who fills it", func() bool {
			l, _, err := admin(d).Congestion(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return len(l) == 1 && l[0].Endpoint == n.to.LocalAddr() && len(l[0].Culprits) == 1 && l[0].Culprits[0].Source == n.from.LocalAddr() &&
				l[0].Culprits[0].QueuedBytes >= buffer*9/10
		})
		// What was accepted last may wait in the daemon until the port is clear.
		until(t, "what lies in the pair is shown as queued", func() bool {
			i := info(t, d, n.to)
			return i.RecvQueued <= n.sent-n.got && i.RecvQueuedBytes >= buffer*9/10
		})
		t.Logf("%v: full", time.Since(begun))
		waiting := make(chan error, 1)
		go func() { waiting <- n.from.Send(ctx, n.to.LocalAddr(), binary.LittleEndian.AppendUint64(nil, n.sent)) }()
		for n.got < n.sent {
			b, err := n.to.Recv(ctx)
			if err != nil || binary.LittleEndian.Uint64(b.Payload) != n.got {
				t.Fatalf("%v, %d where %d was to come", err, binary.LittleEndian.Uint64(b.Payload), n.got)
			}
			n.got++
		}
		if err := <-waiting; err != nil {
			t.Fatalf("a send that waited for the port: %v", err)
		}
		n.sent++
		n.recv(ctx)
		t.Logf("%v: read", time.Since(begun))
		n.untilPaired(ctx, d)
		t.Logf("%v: paired", time.Since(begun))
	}
	until(t, "the figures of the sockets add up", func() bool {
		from, to := info(t, d, n.from), info(t, d, n.to)
		return from.Accepted == n.sent && from.Delivered == n.sent && to.Received == n.got && to.RecvQueued == 0
	})
}

// TestPairsOutcomes sends to a reader that does not read: outcomes and Flush do not wait for
// it, and a cancel finds nothing to cancel (D3, D6).
func TestPairsOutcomes(t *testing.T) {
	d := startPaired(t)
	ctx := within(t, 2*time.Minute)
	from, to := bindRings(t, d, rdsd.WithOutcomes()), bindRings(t, d)
	read := make(chan struct{})
	go func() {
		for range 1_000_000 {
			if b, err := to.Recv(ctx); err != nil || string(b.Payload) == "last" {
				break
			}
		}
		close(read)
	}()
	sent := map[uint64]bool{}
	send := func(p string) {
		tag, err := from.SendTag(ctx, to.LocalAddr(), []byte(p))
		if err != nil {
			t.Fatal(err)
		}
		sent[tag] = true
	}
	decide := func() {
		for o, err := range from.Outcomes(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if !sent[o.Tag] || o.Kind != rdsd.Delivered {
				t.Fatalf("datagram %d: %v, of those without outcome: %v", o.Tag, o.Kind, sent[o.Tag])
			}
			if delete(sent, o.Tag); len(sent) == 0 {
				return
			}
		}
	}
	for counter(t, d, "pair_datagrams") == 0 {
		for range 1000 {
			send("busy")
		}
		decide()
	}
	send("last")
	<-read
	// Nobody reads from here on.
	for range 500 {
		send("unread")
	}
	if err := from.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	decide()
	if c, err := from.CancelSentTo(ctx, to.LocalAddr()); err != nil || c.Cancelled != 0 || c.InFlight != 0 {
		t.Errorf("a cancel of what is delivered: %+v, %v", c, err)
	}
	for range 500 {
		if b, err := to.Recv(ctx); err != nil || string(b.Payload) != "unread" {
			t.Fatalf("%q, %v", b.Payload, err)
		}
	}
}

// TestPairsEnd tells what becomes of a pair whose flow stops, or is traced, or whose end is
// closed: its memory and its part of the receive buffer are free again, and the flow goes on
// by the daemon.
func TestPairsEnd(t *testing.T) {
	d := startPaired(t)
	ctx := within(t, 2*time.Minute)
	charged := regionsCharged(t, d)
	n := &numbers{t: t, from: bindRings(t, d), to: bindRings(t, d)}
	free := func() bool {
		return pairFiles(t, d) == 0 && counter(t, d, "pairs_closed") == counter(t, d, "pairs_offered")
	}
	n.untilPaired(ctx, d)
	if paired := regionsCharged(t, d); paired < charged+512<<10 {
		t.Errorf("%d bytes are charged with a pair of 512 KiB, %d without", paired, charged)
	}
	until(t, "a pair that is idle is closed", free)
	n.send(ctx)
	n.recv(ctx)

	n.untilPaired(ctx, d)
	tctx, cancel := context.WithCancel(ctx)
	begun := false
	for r, err := range admin(d).Trace(tctx, rdsd.TraceFilter{Source: n.from.LocalAddr(), Every: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Events) > 0 {
			break // it has left by the daemon
		}
		// The first report says that it has begun.
		if !begun {
			begun = true
			until(t, "a pair that is traced is closed", free)
			n.send(ctx)
		}
	}
	cancel()
	for n.got < n.sent {
		n.recv(ctx)
	}

	// The sender goes, with datagrams unread: they are read.
	n.untilPaired(ctx, d)
	for range 100 {
		n.send(ctx)
	}
	n.from.Close()
	for n.got < n.sent {
		b, err := n.to.Recv(ctx)
		if err != nil || binary.LittleEndian.Uint64(b.Payload) != n.got {
			t.Fatalf("%v: %x, where %d of a sender that is gone was to come", err, b.Payload, n.got)
		}
		n.got++
	}
	until(t, "the memory of a sender that is gone is free", free)

	// The reader goes: what is sent then fails, as it does by the daemon.
	dropped := counter(t, d, "recv_drop_dead_sock")
	n = &numbers{t: t, from: bindRings(t, d, rdsd.WithOutcomes()), to: n.to}
	go func() {
		for o, err := range n.from.Outcomes(ctx) {
			if err != nil || o.Kind != rdsd.Delivered && o.Kind != rdsd.Failed {
				return
			}
		}
	}()
	n.untilPaired(ctx, d)
	for range 100 {
		n.send(ctx)
	}
	n.to.Close()
	until(t, "what the reader left is counted", func() bool { return counter(t, d, "recv_drop_dead_sock") >= dropped+100 })
	until(t, "later datagrams fail", func() bool {
		n.send(ctx)
		return counter(t, d, "outcome_failed") > 0
	})
	until(t, "the memory of a reader that is gone is free", free)
}

// pairWords maps the words of the pairs that this process has once more: they stay when the
// SDK lets go of a pair.
func pairWords(t testing.TB) (l [][]uint64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 10
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "rdsd-pair-words") {
			continue
		}
		var from, to uintptr
		fmt.Sscanf(line, "%x-%x", &from, &to)
		// With an old size of 0 a shared mapping is doubled.
		at, _, e := unix.Syscall6(unix.SYS_MREMAP, from, 0, size, unix.MREMAP_MAYMOVE, 0, 0)
		if e != 0 {
			t.Fatal(e)
		}
		p := *(*unsafe.Pointer)(unsafe.Pointer(&at))
		t.Cleanup(func() { unix.MunmapPtr(p, size) })
		l = append(l, unsafe.Slice((*uint64)(p), 1280/8))
	}
	return l
}

// TestPairsScribbled writes into the words of pairs while they are used, as a hostile partner may: nobody
// but this flow notices. Another one goes on in order, and this one goes on by the daemon when
// the pair is closed.
func TestPairsScribbled(t *testing.T) {
	d := startPaired(t)
	ctx := within(t, 2*time.Minute)
	other := &numbers{t: t, from: bindRings(t, d), to: bindRings(t, d)}
	rng := rand.New(rand.NewSource(1))
	for range 10 {
		n := &numbers{t: t, from: bindRings(t, d), to: bindRings(t, d)}
		n.untilPaired(ctx, d)
		words := pairWords(t)
		if len(words) == 0 {
			t.Fatal("no words of pairs are mapped")
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, w := range words {
					v := rng.Uint64() >> rng.Intn(64)
					atomic.StoreUint64(&w[16*(1+rng.Intn(9))], v)
				}
				runtime.Gosched()
			}
		})
		var sends sync.WaitGroup
		sends.Go(func() {
			for range 3000 {
				_ = n.from.TrySend(n.to.LocalAddr(), []byte("scribbled over")) // it may be lost: it is this flow's
			}
		})
		sends.Go(func() {
			rctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			for {
				if _, err := n.to.Recv(rctx); err != nil {
					return
				}
			}
		})
		for range 100 {
			other.send(ctx)
			other.recv(ctx)
		}
		sends.Wait()
		close(stop)
		wg.Wait()
		// Not before the daemon has seen it, which it does ten times a second.
		until(t, "the flow goes on", func() bool {
			if err := n.from.TrySend(n.to.LocalAddr(), []byte("after")); err != nil {
				return false
			}
			rctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			for {
				b, err := n.to.Recv(rctx)
				if err != nil {
					return false
				}
				if string(b.Payload) == "after" {
					return true
				}
			}
		})
		n.from.Close()
		n.to.Close()
	}
}
