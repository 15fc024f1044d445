package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Small datagrams, and a large one now and then that spans many segments.
var mixed = Size{Min: SignedMin, Max: 300, BigEvery: 400, Big: 40000}

// eachPair runs a test against one daemon for both families in both roles.
func eachPair(t *testing.T, limit time.Duration, capture bool, fn func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair)) {
	l := needLab(t)
	d := startDaemon(t, l)
	for i := range *rounds * len(pairs) {
		pr := pairs[i%len(pairs)]
		t.Run(pr.name, func(t *testing.T) {
			if capture {
				watch(t, l, d)
			}
			fn(limited(t, limit), t, l, d, pr)
		})
	}
}

func TestKernelPing(t *testing.T) {
	eachPair(t, 30*time.Second, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		const count = 20
		for i := range count {
			// The first of ours is also what makes the connection.
			r, err := d.Admin().Ping(ctx, rdsd.PingSpec{Local: pr.ours, Remote: pr.kernel})
			if err != nil {
				t.Fatalf("our ping %d of the kernel: %v", i, err)
			}
			if r.RTT == 0 {
				t.Fatalf("our ping %d took no time", i)
			}
		}
		var pong struct {
			RTT []float64 `json:"rtt_us"`
		}
		err := l.vm.Call(ctx, "ping", map[string]any{
			"local": at(pr.kernel, 0), "dst": at(pr.ours, 0), "count": count,
		}, &pong)
		if err != nil || len(pong.RTT) != count {
			t.Fatalf("the kernel's ping of us: %d answers, %v", len(pong.RTT), err)
		}
	})
}

// 100,000 signed datagrams each way, at once.
func TestKernelStreams(t *testing.T) {
	count := 100_000
	if v := os.Getenv("RDSD_INTEROP_COUNT"); v != "" {
		var err error
		if count, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	eachPair(t, 3*time.Minute, false, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		startStreams(ctx, t, l, d, pr, count, mixed).finish(ctx, t)
	})
}

// The longest datagram a kernel sends, and the shortest.
func TestKernelExtremes(t *testing.T) {
	eachPair(t, time.Minute, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		const count = 5
		size := Size{Min: 1 << 20, Max: 1 << 20}
		kernelPort := newPort()
		s := d.bind(ctx, t, pr.ours, newPort(), rdsd.WithSendBuffer(4<<20), rdsd.WithRecvBuffer(4<<20))
		down := kernelRecv(ctx, t, l, map[string]any{
			"local": at(pr.kernel, kernelPort), "want": map[int]int{1: count},
			"rcvbuf": 4 << 20, "timeout": 20, "slot": 1 << 20,
		})
		up := kernelSend(ctx, t, l, map[string]any{
			"local": at(pr.kernel, newPort()), "dst": at(pr.ours, s.LocalAddr().Port()),
			"flow": 2, "count": count, "size": size, "sndbuf": 4 << 20, "empties": true,
		})
		dst := netip.AddrPortFrom(pr.kernel, kernelPort)
		for n := range count {
			if err := s.Send(ctx, dst, nil); err != nil {
				t.Fatal("an empty one:", err)
			}
			if err := s.Send(ctx, dst, Sign(nil, 1, uint64(n), size.Of(n))); err != nil {
				t.Fatal("one of 1 MiB:", err)
			}
		}
		if err := s.Send(ctx, dst, make([]byte, 1<<20+1)); !errors.Is(err, rdserr.ErrTooLarge) {
			t.Errorf("1 MiB and a byte: %v", err)
		}
		c := NewChecker(map[uint32]int{2: count})
		if err := recvSigned(ctx, s, c, nil); err != nil {
			t.Fatal(err)
		}
		release(ctx, t, up)
		var r Report
		if err := down.Wait(ctx, &r); err != nil {
			t.Fatal(err)
		}
		for who, r := range map[string]Report{"from the kernel": c.Report(), "to the kernel": r} {
			if err := r.Err(); err != nil || r.Empty != count {
				t.Errorf("%s: %d empty, %v", who, r.Empty, err)
			}
		}
	})
}

// A reader in the kernel that stops every so often: its port is congested and
// cleared again and again. Ours must be told, wait, and wake each time.
func TestKernelReaderCongested(t *testing.T) {
	eachPair(t, time.Minute, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		const count = 4000
		size := Size{Min: 500, Max: 1000}
		port := newPort()
		down := kernelRecv(ctx, t, l, map[string]any{
			"local": at(pr.kernel, port), "want": map[int]int{1: count, 2: count},
			"rcvbuf": 8192, "timeout": 20, "start_paused": true, "nap_every": 200, "nap_ms": 20, "linger": 0.2,
		})
		dst := netip.AddrPortFrom(pr.kernel, port)
		failed := make(chan error, 2)
		congested := make(chan struct{})
		var refused, waited atomic.Int64
		tries, waits := d.bind(ctx, t, pr.ours, 0), d.bind(ctx, t, pr.ours, 0)
		go func() { // on ENOBUFS it waits by Send
			s := tries
			for n := range count {
				p := Sign(nil, 1, uint64(n), size.Of(n))
				err := s.TrySend(dst, p)
				for errors.Is(err, rdserr.ErrWouldBlock) && refused.Load() == 0 && ctx.Err() == nil {
					// Posting outran the kernel's map; the next refusal is for congestion.
					time.Sleep(time.Millisecond)
					err = s.TrySend(dst, p)
				}
				if errors.Is(err, rdserr.ErrCongested) {
					if refused.Add(1) == 1 {
						close(congested)
					}
				}
				if errors.Is(err, rdserr.ErrCongested) || errors.Is(err, rdserr.ErrWouldBlock) {
					began := time.Now()
					err = s.Send(ctx, dst, p)
					waited.Store(max(waited.Load(), int64(time.Since(began))))
				}
				if err != nil {
					failed <- fmt.Errorf("datagram %d: %w", n, err)
					return
				}
			}
			failed <- s.Flush(ctx)
		}()
		go func() { // leaves the waiting to the daemon
			err := sendSigned(ctx, waits, dst, 2, count, size, nil)
			failed <- errors.Join(err, waits.Flush(ctx))
		}()
		select {
		case <-congested:
		case err := <-failed:
			t.Fatal("before the port was congested:", err)
		case <-ctx.Done():
			t.Fatal("a reader that does not read never became congested")
		}
		if err := down.Tell(ctx); err != nil {
			t.Fatal(err)
		}
		var r Report
		if err := down.Wait(ctx, &r); err != nil {
			t.Fatal(err)
		}
		if err := r.Err(); err != nil {
			t.Error("to the kernel:", err)
		}
		for range 2 {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
		t.Logf("refused %d times, longest wait %v", refused.Load(), time.Duration(waited.Load()))
	})
}

// A reader of ours that stops: the kernel's senders get ENOBUFS or wait, and
// each is woken, the one by poll with congestion monitoring, the other inside
// the kernel.
func TestOurReaderCongested(t *testing.T) {
	eachPair(t, time.Minute, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		const count = 4000
		s := d.bind(ctx, t, pr.ours, newPort(), rdsd.WithRecvBuffer(8192), rdsd.WithRecvWindow(8, 8192))
		send := func(flow int, nonblock bool) *Job {
			return kernelSend(ctx, t, l, map[string]any{
				"local": at(pr.kernel, newPort()), "dst": at(pr.ours, s.LocalAddr().Port()),
				"flow": flow, "count": count, "size": Size{Min: 500, Max: 1000}, "nonblock": nonblock,
			})
		}
		polls := send(1, true)
		blocks := send(2, false)
		if _, err := polls.Event(ctx, "congested"); err != nil {
			t.Fatal("a reader that does not read never became congested:", err)
		}
		c := NewChecker(map[uint32]int{1: count, 2: count})
		for got := 0; c.Left() > 0; got++ {
			quiet, cancel := context.WithTimeout(ctx, 25*time.Second)
			p, err := s.Recv(quiet)
			cancel()
			if err != nil {
				t.Fatalf("after %d: %v; %v", got, err, c.Report().Err())
			}
			c.Add(p.Payload)
			if got%200 == 199 {
				time.Sleep(20 * time.Millisecond) // the slow reader itself
			}
		}
		if err := c.Report().Err(); err != nil {
			t.Error("from the kernel:", err)
		}
		a, b := release(ctx, t, polls), release(ctx, t, blocks)
		if a.ENOBUFS == 0 {
			t.Error("the kernel was never refused")
		}
		t.Logf("ENOBUFS %d times, longest wait %.2f s; the blocking one took %.2f s", a.ENOBUFS, a.LongestWait, b.Seconds)
	})
}

// What the network does to frames must not be seen by applications.
func TestKernelNetem(t *testing.T) {
	out := func(vm *VM, ctx context.Context, a ...string) error { return vm.Netem(ctx, a...) }
	in := func(vm *VM, ctx context.Context, a ...string) error { return vm.NetemIn(ctx, a...) }
	harm := []struct {
		name  string
		shape func(*VM, context.Context, ...string) error
		args  []string
	}{
		{"loss out", out, []string{"loss", "2%"}},
		{"corrupt out", out, []string{"corrupt", "2%"}},
		{"duplicate out", out, []string{"duplicate", "5%"}},
		{"reorder out", out, []string{"delay", "3ms", "reorder", "70%"}},
		{"loss in", in, []string{"loss", "2%"}},
		{"duplicate in", in, []string{"duplicate", "5%"}},
	}
	eachPair(t, 2*time.Minute, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		for _, h := range harm {
			before := csumErrors(t, l)
			if err := h.shape(l.vm, ctx, h.args...); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			startStreams(ctx, t, l, d, pr, 1000, mixed).finish(ctx, t)
			if err := h.shape(l.vm, ctx); err != nil {
				t.Fatal(err)
			}
			if t.Failed() {
				t.Fatalf("with %s %v", h.name, h.args)
			}
			t.Logf("%s %v: %.1f s", h.name, h.args, time.Since(began).Seconds())
			if strings.HasPrefix(h.name, "corrupt") && csumErrors(t, l) == before {
				t.Error("no frame was corrupted: the test proves nothing")
			}
		}
	})
}

// csumErrors is how many segments our side of the link has found damaged.
func csumErrors(t *testing.T, l *lab) (n uint64) {
	t.Helper()
	err := l.ns.Do(func() error {
		raw, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		n, err = snmpCounter(string(raw), "Tcp:", "InCsumErrors")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// snmpCounter finds a counter in /proc/net/snmp or netstat: a line of names
// and a line of values for each group.
func snmpCounter(raw, group, name string) (uint64, error) {
	var names []string
	for line := range strings.Lines(raw) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != group {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if i := slices.Index(names, name); i >= 0 && i < len(f) {
			return strconv.ParseUint(f[i], 10, 64)
		}
	}
	return 0, fmt.Errorf("no counter %s %s", group, name)
}
