package memtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

var whole = flag.Bool("memtest.whole", false, "as many peers and sockets as the documents promise, at every limit; minutes")

// crowd is how many addresses the two daemons have at a limit, each of one being a
// peer of each of the other's, how many sockets there are, and how many datagrams
// each of them is offered.
type crowd struct {
	mib, from, to, sockets, each int
}

func (c crowd) peers() int { return c.from * c.to }

// TestManyPeersAndSockets: one daemon has many peers, the other many sockets, and
// the readers of those stop and go on. Whatever was accepted arrives, once, and
// neither daemon takes more memory than it may.
func TestManyPeersAndSockets(t *testing.T) {
	l := []crowd{{256, 8, 64, 1500, 64}}
	if *whole {
		l = []crowd{{128, 16, 32, 500, 160}, {256, 32, 64, 1500, 128}, {512, 32, 64, 5000, 96}}
	}
	for _, c := range l {
		t.Run(fmt.Sprintf("%d MiB, %d peers, %d sockets", c.mib, c.peers(), c.sockets), c.run)
	}
}

func (c crowd) run(t *testing.T) {
	for key, v := range map[string]int{"MEMORY_BYTES": c.mib << 20, "MAX_PEERS": c.peers() + 10, "MAX_SOCKETS": 2 * c.sockets,
		"MAX_SOCKETS_PER_UID": 2 * c.sockets} {
		t.Setenv("RDSD_LIMITS_"+key, strconv.Itoa(v))
	}
	t.Setenv("RDSD_API_CALLS_BURST", "1000000")
	port := rdsdtest.FreePort(t, rdsdtest.AddrA, rdsdtest.AddrB)
	from, fromArgs := addresses(rdsdtest.AddrA, 76, c.from)
	addrs, args := addresses(rdsdtest.AddrB, 77, c.to)
	a := rdsdtest.Start(t, rdsdtest.AddrA, port, fromArgs...)
	b := rdsdtest.Start(t, rdsdtest.AddrB, port, args...)
	watchMemory(t, a, int64(c.mib)<<20)
	watchMemory(t, b, int64(c.mib)<<20)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()

	var to []netip.AddrPort
	var got atomic.Int64
	var readers sync.WaitGroup
	reading, stopReading := context.WithCancel(ctx)
	defer readers.Wait()
	defer stopReading()
	resume := make(chan struct{})
	var client *rdsd.Client
	for i := range c.sockets {
		if i%100 == 0 {
			client = b.Dial(rdsd.WithFrontEnd(rdsd.GRPC))
		}
		s, err := client.Bind(ctx, netip.AddrPortFrom(addrs[i%len(addrs)], 0))
		if err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
		to = append(to, s.LocalAddr())
		readers.Go(func() {
			if i%3 > 0 { // these stop before the first one
				select {
				case <-resume:
				case <-reading.Done():
				}
			}
			for {
				if _, err := s.Recv(reading); err != nil {
					return
				}
				got.Add(1)
			}
		})
	}

	accepted := c.send(ctx, t, a, from, to)
	close(resume)
	for until := time.Now().Add(5 * time.Minute); got.Load() < accepted && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	if n := got.Load(); n != accepted {
		t.Errorf("%d datagrams were accepted and %d arrived", accepted, n)
	}
	t.Logf("REPORT %d datagrams of 4 KiB to %d sockets at %d peers", accepted, c.sockets, c.peers())
	settled(t, a, "memory_sending", 0)
}

// addresses is n addresses of one daemon, first its own, and its arguments for them.
func addresses(first netip.Addr, net byte, n int) (l []netip.Addr, args []string) {
	l = []netip.Addr{first}
	for i := range n - 1 {
		addr := netip.AddrFrom4([4]byte{127, net, 0, byte(1 + i)})
		l, args = append(l, addr), append(args, "--address", addr.String())
	}
	return l, args
}

// send offers each socket a number of datagrams, as often as there is room, and
// returns how many were accepted.
func (c crowd) send(ctx context.Context, t *testing.T, a *rdsdtest.Daemon, from []netip.Addr, to []netip.AddrPort) (accepted int64) {
	senders := len(from)
	var n atomic.Int64
	var wg sync.WaitGroup
	client := a.Dial()
	for k := range senders {
		s, err := client.Bind(ctx, netip.AddrPortFrom(from[k], 0))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			p := make([]byte, 4096)
			for range max(c.each/senders, 1) {
				for i := range to {
					switch err := s.TrySend(to[i], p); {
					case err == nil:
						n.Add(1)
					case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
						time.Sleep(time.Millisecond)
					default:
						t.Errorf("send to %v: %v", to[i], err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return n.Load()
}
