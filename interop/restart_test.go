package interop

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// rdsd is killed, again and again, while a port of ours is congested as the kernel
// knows. The kernel keeps that map: its sender goes on only when the next life
// tells another one.
func TestKilledWhileCongested(t *testing.T) {
	const (
		kills = 5 // for each pair
		count = 300
	)
	eachPair(t, 2*time.Minute, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		longest := time.Duration(0)
		for range kills {
			small := []rdsd.BindOption{rdsd.WithRecvBuffer(8192), rdsd.WithRecvWindow(1, 1000), rdsd.WithReconnect(false)}
			s := d.bind(ctx, t, pr.ours, newPort(), small...)
			port := s.LocalAddr().Port()
			job := kernelSend(ctx, t, l, map[string]any{
				"local": at(pr.kernel, newPort()), "dst": at(pr.ours, port), "flow": 1, "count": count,
				"size": Size{Min: 500, Max: 1000}, "nonblock": true, "until_congested": true,
			})
			if _, err := job.Event(ctx, "congested"); err != nil {
				t.Fatal("a reader that does not read never became congested:", err)
			}
			d.again(t, syscall.SIGKILL)
			_ = s.Close()
			if err := d.ready(); err != nil {
				t.Fatal(err)
			}
			s = d.bind(ctx, t, pr.ours, port, rdsd.WithRecvBuffer(4<<20))
			clock := await.NewClock(t)
			soon, cancel := context.WithTimeout(ctx, 10*time.Second)
			_, err := s.Recv(soon)
			cancel()
			took := clock.Now()
			if longest = max(longest, took); err != nil || took > time.Second {
				t.Fatalf("the first datagram after %v: %v", took, err)
			}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				for {
					if _, err := s.Recv(ctx); err != nil {
						return
					}
				}
			}()
			release(ctx, t, job)
			_ = s.Close()
			<-gone
		}
		t.Logf("the longest wait for the first datagram: %v", longest)
	})
}

// rdsd is restarted, killed and in order, under the kernel's traffic. Its clients
// come back a moment later than its links; nothing is dropped meanwhile because
// nobody has bound the port yet.
func TestRestartsUnderTraffic(t *testing.T) {
	const count = 10_000
	l := needLab(t)
	for i := range *rounds * 2 {
		pr := pairs[i%2]
		t.Run(pr.name, func(t *testing.T) {
			ctx := limited(t, 2*time.Minute)
			d := startDaemon(t, l)
			watch(t, l, d)
			s := d.bind(ctx, t, pr.ours, newPort(), rdsd.WithRecvBuffer(4<<20))
			c := NewChecker(map[uint32]int{1: count})
			received, ended := make(chan struct{}, 1), make(chan struct{})
			halt, stop := context.WithCancel(ctx)
			go func() {
				defer close(ended)
				for {
					m, err := s.Recv(halt)
					switch {
					case halt.Err() != nil:
						return
					case err != nil: // the daemon is away
						time.Sleep(time.Millisecond)
						continue
					}
					c.Add(m.Payload)
					select {
					case received <- struct{}{}:
					default:
					}
				}
			}()
			job := kernelSend(ctx, t, l, map[string]any{
				"local": at(pr.kernel, newPort()), "dst": at(pr.ours, s.LocalAddr().Port()), "flow": 1, "count": count,
				"size": Size{Min: SignedMin, Max: 300}, "pause_every": 10, "pause_ms": 4, "tick": count / 8,
			})
			dropped := uint64(0)
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
				if _, err := job.Event(ctx, "progress"); err != nil {
					t.Fatal(err)
				}
				dropped += noSock(ctx, t, d)
				d.again(t, sig)
				if err := d.ready(); err != nil {
					t.Fatal(err)
				}
				select { // what came before does not count
				case <-received:
				default:
				}
				select {
				case <-received:
				case <-time.After(10 * time.Second):
					t.Fatalf("nothing comes for 10 s after %v", sig)
				}
			}
			release(ctx, t, job)
			time.Sleep(200 * time.Millisecond) // what is under way
			stop()
			<-ended
			dropped += noSock(ctx, t, d)
			r := c.Report()
			t.Logf("%d of %d lost in 6 restarts, %d for want of a socket", r.Missing, count, dropped)
			if dropped != 0 {
				t.Errorf("%d datagrams were dropped because nobody had bound the port", dropped)
			}
			// What was placed, and not acknowledged by our TCP when the daemon was
			// killed, comes again to its next life.
			if r.Bad+r.Strange != 0 || r.Back > 3 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// noSock is rdsd's count of datagrams that it dropped for want of a socket.
func noSock(ctx context.Context, t *testing.T, d *daemon) uint64 {
	t.Helper()
	var err error
	for range 100 { // gRPC dials again at its own pace
		var counters []rdsd.Counter
		if counters, err = d.Admin().Counters(ctx, netip.Addr{}); err == nil {
			for _, c := range counters {
				if c.Name == "recv_drop_no_sock" {
					return c.Value
				}
			}
			err = errors.New("no such counter")
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal(err)
	return 0
}

// Our address is taken from the machine while datagrams to the kernel are
// unacknowledged, and comes back to the same daemon. Somebody else may have used it
// in between: what was under way is unknown, and not sent again with old numbers.
func TestAddressLost(t *testing.T) {
	const count = 50
	l := needLab(t)
	d := startDaemon(t, l)
	// With the first address of a subnet the others would go, too.
	if _, err := l.ns.Run("sh", "-c", "for i in all "+l.ns.Host+"; do echo 1 > /proc/sys/net/ipv4/conf/$i/promote_secondaries; done"); err != nil {
		t.Fatal(err)
	}
	for i, pr := range pairs[:2] {
		t.Run(pr.name, func(t *testing.T) {
			ctx := limited(t, time.Minute)
			t.Cleanup(func() { // for the tests that follow; usually it is there
				_, _ = l.ns.Run("ip", "addr", "add", ourPrefixes[i].String(), "dev", l.ns.Host)
				_ = l.vm.Netem(context.Background())
			})
			watch(t, l, d)
			startStreams(ctx, t, l, d, pr, 300, mixed).finish(ctx, t)
			port := newPort()
			down := kernelRecv(ctx, t, l, map[string]any{
				"local": at(pr.kernel, port), "want": map[int]int{1: count}, "rcvbuf": 4 << 20, "timeout": 20, "linger": 3,
			})
			// The kernel hears us; what it answers is lost.
			if err := l.vm.Netem(ctx, "loss", "100%"); err != nil {
				t.Fatal(err)
			}
			s := d.bind(ctx, t, pr.ours, 0, rdsd.WithOutcomes())
			if err := sendSigned(ctx, s, netip.AddrPortFrom(pr.kernel, port), 1, count, mixed, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond) // for them to leave; nothing depends on it
			if _, err := l.ns.Run("ip", "addr", "del", ourPrefixes[i].String(), "dev", l.ns.Host); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			unknown := 0
			for o, err := range s.Outcomes(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				if o.Kind != rdsd.Unknown || o.Reason != "the address was taken from this node" {
					t.Fatalf("%+v", o)
				}
				if unknown++; unknown == count {
					break
				}
			}
			t.Logf("%d unknown after %v", unknown, time.Since(begun))
			if err := l.vm.Netem(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := l.ns.Run("ip", "addr", "add", ourPrefixes[i].String(), "dev", l.ns.Host); err != nil {
				t.Fatal(err)
			}
			startStreams(ctx, t, l, d, pr, 300, mixed).finish(ctx, t)
			var r Report
			if err := down.Wait(ctx, &r); err != nil {
				t.Fatal(err)
			}
			if r.Back+r.Bad+r.Strange != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}
