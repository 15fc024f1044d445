package memtest

import (
	"bytes"
	"context"
	"encoding/binary"
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

// ringEvery is the number of sockets of which one is attached by rings.
const ringEvery = 8

// TestManyPeersAndSockets: one daemon has many peers, the other many sockets, of which
// some are attached by rings, and the readers of those stop and go on. Whatever was
// accepted arrives, once, whole and in order, and neither daemon takes more memory than
// it may.
func TestManyPeersAndSockets(t *testing.T) {
	l := []crowd{{256, 8, 64, 1500, 64}}
	if *whole {
		l = []crowd{{128, 16, 32, 500, 160}, {256, 32, 64, 1500, 128}, {512, 32, 64, 5000, 96}}
	}
	for _, c := range l {
		t.Run(c.String(), c.run)
	}
}

// TestCrowdInACgroup: so it is where the kernel kills whoever takes more: a cgroup of
// limits.memory_bytes and 64 MiB for each daemon, which counts what the kernel holds for
// it as well.
func TestCrowdInACgroup(t *testing.T) {
	l := []crowd{{128, 8, 32, 300, 64}}
	if *whole {
		l = []crowd{{128, 16, 32, 500, 160}, {256, 32, 64, 1500, 128}, {512, 32, 64, 5000, 96}}
	}
	for _, c := range l {
		t.Run(c.String(), func(t *testing.T) {
			limitDaemons(t, int64(c.mib)<<20)
			c.mib -= slack >> 20
			c.run(t)
		})
	}
}

func (c crowd) String() string {
	return fmt.Sprintf("%d MiB, %d peers, %d sockets", c.mib, c.peers(), c.sockets)
}

func (c crowd) run(t *testing.T) {
	for key, v := range map[string]int{"MEMORY_BYTES": c.mib << 20, "MAX_PEERS": c.peers() + 10, "MAX_SOCKETS": 2 * c.sockets,
		"MAX_SOCKETS_PER_UID": 2 * c.sockets, "MAX_CLIENTS": 2 * c.sockets, "MAX_CLIENTS_PER_UID": 2 * c.sockets} {
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

	var list []*listener
	var got atomic.Int64
	var readers sync.WaitGroup
	reading, stopReading := context.WithCancel(ctx)
	defer readers.Wait()
	defer stopReading()
	resume := make(chan struct{})
	var client *rdsd.Client
	rings := b.Dial(rdsd.WithFrontEnd(rdsd.Rings))
	for i := range c.sockets {
		if i%100 == 0 {
			client = b.Dial(rdsd.WithFrontEnd(rdsd.GRPC))
		}
		use := client
		if i%ringEvery == 0 {
			use = rings
		}
		s, err := use.Bind(ctx, netip.AddrPortFrom(addrs[i%len(addrs)], 0))
		if err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
		l := &listener{id: uint64(i), sock: s, next: map[netip.AddrPort]uint64{}}
		list = append(list, l)
		readers.Go(func() {
			if i%3 > 0 { // these stop before the first one
				select {
				case <-resume:
				case <-reading.Done():
				}
			}
			if err := l.listen(reading, &got); err != nil {
				t.Errorf("socket %d at %v: %v", i, l.sock.LocalAddr(), err)
			}
		})
	}

	accepted, leave := c.send(ctx, t, a, from, list)
	close(resume)
	for until := time.Now().Add(5 * time.Minute); got.Load() < accepted && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	if n := got.Load(); n != accepted {
		t.Errorf("%d datagrams were accepted and %d arrived", accepted, n)
	}
	t.Logf("REPORT %d datagrams of 4 KiB to %d sockets at %d peers", accepted, c.sockets, c.peers())
	leave() // what the daemon knows of their destinations is charged while they are there
	settled(t, a, "memory_sending", 0)
}

// listener is a socket that checks what it gets.
type listener struct {
	id   uint64
	sock *rdsd.Socket
	next map[netip.AddrPort]uint64 // number of the next datagram, by source
}

// crowdBytes is how long a datagram is.
const crowdBytes = 4096

// number writes the payload of the n-th datagram to a listener.
func number(p []byte, id, n uint64) {
	binary.LittleEndian.PutUint64(p, id)
	binary.LittleEndian.PutUint64(p[8:], n)
	fill := byte(id*7 + n)
	for i := range p[16:] {
		p[16+i] = fill
	}
}

// listen reads until ctx ends. Each source's datagrams come whole and in order, none
// of them twice.
func (l *listener) listen(ctx context.Context, got *atomic.Int64) error {
	want := make([]byte, crowdBytes)
	for {
		d, err := l.sock.Recv(ctx)
		if err != nil {
			return nil
		}
		n := l.next[d.Addr]
		if l.next[d.Addr]++; len(d.Payload) != crowdBytes {
			return fmt.Errorf("%d bytes from %v, want %d", len(d.Payload), d.Addr, crowdBytes)
		}
		if number(want, l.id, n); !bytes.Equal(d.Payload, want) {
			return fmt.Errorf("from %v came number %d for socket %d, want number %d for %d, each byte of it", d.Addr,
				binary.LittleEndian.Uint64(d.Payload[8:]), binary.LittleEndian.Uint64(d.Payload), n, l.id)
		}
		got.Add(1)
	}
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
// returns how many were accepted. Every other sender is attached by rings.
func (c crowd) send(ctx context.Context, t *testing.T, a *rdsdtest.Daemon, from []netip.Addr, to []*listener) (accepted int64, leave func()) {
	senders := len(from)
	var n atomic.Int64
	var wg sync.WaitGroup
	clients := []*rdsd.Client{a.Dial(rdsd.WithFrontEnd(rdsd.GRPC)), a.Dial(rdsd.WithFrontEnd(rdsd.Rings))}
	for k := range senders {
		s, err := clients[k%2].Bind(ctx, netip.AddrPortFrom(from[k], 0))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			p := make([]byte, crowdBytes)
			next := make([]uint64, len(to))
			for range max(c.each/senders, 1) {
				for i, l := range to {
					number(p, l.id, next[i])
					switch err := s.TrySend(l.sock.LocalAddr(), p); {
					case err == nil:
						next[i]++
						n.Add(1)
					case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
						time.Sleep(time.Millisecond)
					default:
						t.Errorf("send to %v: %v", l.sock.LocalAddr(), err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return n.Load(), func() {
		for _, c := range clients {
			c.Close()
		}
	}
}
