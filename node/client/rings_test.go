package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// TestHostileRing: a client that scribbles random words all over its region, at
// any moment, is thrown out or ignored; the daemon and another client's traffic
// do not notice.
func TestHostileRing(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(clienttest.Context(t))
	a, err := client.Bind(ctx, netip.AddrPortFrom(addr, 0), rdsd.WithOutcomes())
	if err != nil {
		t.Fatal(err)
	}
	b, err := client.Bind(ctx, netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	good := make(chan error, 1)
	var exchanged uint64
	go func() { // ends when the scribbling has
		good <- func() error {
			for i := uint64(0); ; i++ {
				if ctx.Err() != nil {
					exchanged = i
					return nil
				}
				c, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				err := a.Send(c, b.LocalAddr(), clienttest.Signed("good", i))
				var d rdsd.Datagram
				if err == nil {
					d, err = b.Recv(c)
				}
				cancel()
				if err != nil {
					return fmt.Errorf("datagram %d: %w", i, err)
				}
				if string(d.Payload) != string(clienttest.Signed("good", i)) || d.Addr != a.LocalAddr() {
					return fmt.Errorf("datagram %d came as %x from %v", i, d.Payload, d.Addr)
				}
				if i%1000 == 0 {
					for o, err := range a.Outcomes(context.Background()) {
						if err != nil || o.Kind != rdsd.Delivered {
							return fmt.Errorf("outcome %+v, %v", o, err)
						}
						if o.Tag%1000 == 999 || i == 0 {
							break
						}
					}
				}
			}
		}()
	}()

	words := 1_000_000
	rng := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	attached, thrown := 0, uint64(0)
	for written := 0; written < words; {
		evil := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
		attached++
		h := &evil.Region.Header
		// What the daemon reads: everything before the arena, the words above all.
		rings := int(h.SendArenaOff)
		for k := range 20_000 {
			off := rng.IntN(rings/8) * 8
			switch rng.IntN(4) {
			case 0:
				off = 4096 + 128*rng.IntN(12)
			case 1:
				off = int(h.SendOff) + rng.IntN(int(h.Sends)*64/8)*8
			}
			v := rng.Uint64()
			switch rng.IntN(4) {
			case 0:
				v = uint64(rng.IntN(8))
			case 1:
				v = uint64(shm.MakeWord(1+rng.IntN(3), rng.IntN(70000), 1+rng.IntN(70)))
			case 2:
				v = *evil.Word(off) + uint64(rng.IntN(5))
			}
			*evil.Word(off) = v
			written++
			if k%64 == 0 {
				shm.Ring(evil.Bell)
			}
			if k%512 == 0 && *evil.Word(5376)&0xffffffff != 0 && rng.IntN(4) == 0 {
				break // it was thrown out; another
			}
		}
		evil.Close()
	}
	thrown = n.deps.Count.RingsHostile.Load()
	cancel()
	if err := <-good; err != nil {
		t.Error(err)
	}
	t.Logf("%d words in %d regions, %d thrown out; %d datagrams of the other client passed", words, attached, thrown, exchanged)
	if thrown == 0 || exchanged < 100 {
		t.Error("nobody was thrown out, or the other client hardly got on: the test has tested little")
	}
	a.Close()
	b.Close()
	await.Until(t, 5*time.Second, "all sockets are gone", func() bool { return n.clients.Budget().Used == 0 })
}

// TestRingGone: the region of a client that ends is gone within a second,
// also while its datagrams are on their way to a peer that does not answer.
func TestRingGone(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	before := clienttest.RegionsMapped(t)
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // Nobody listens there: they stay queued
		if err := s.Send(clienttest.Context(t), netip.MustParseAddrPort("127.0.99.99:7"), clienttest.Signed("lost", uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if clienttest.RegionsMapped(t) <= before {
		t.Fatal("no region is mapped: the test looks at the wrong thing")
	}
	client.Close()
	await.Until(t, time.Second, "the region is unmapped", func() bool { return clienttest.RegionsMapped(t) == before })
	await.Until(t, time.Second, "the socket is gone", func() bool { return n.clients.Budget().Used == 0 })
}

// TestAttachDetach: a thousand clients come and go; no descriptor, mapping,
// thread or memory of theirs stays.
func TestAttachDetach(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	once := func() {
		a, err := client.Bind(clienttest.Context(t), netip.AddrPortFrom(addr, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Send(clienttest.Context(t), a.LocalAddr(), []byte("to myself")); err != nil {
			t.Fatal(err)
		}
		if d, err := a.Recv(clienttest.Context(t)); err != nil || string(d.Payload) != "to myself" {
			t.Fatal(d, err)
		}
		a.Close()
	}
	maps := clienttest.RegionsMapped(t)
	gone := func() bool { return n.clients.Budget().Used == 0 && clienttest.RegionsMapped(t) <= maps } // unmapped after the socket is gone
	for range 50 {
		once()
	}
	await.Until(t, 5*time.Second, "the first are gone", gone)
	fds, threads, rss := clienttest.Descriptors(t), statusKiB(t, "Threads:"), statusKiB(t, "VmRSS:")
	for range 1000 {
		once()
	}
	await.Until(t, 5*time.Second, "all are gone", gone)
	await.Until(t, 5*time.Second, fmt.Sprintf("no more than %d Descriptors", fds), func() bool { return clienttest.Descriptors(t) <= fds })
	if now := statusKiB(t, "Threads:"); now > threads+3 {
		t.Errorf("%d threads, %d before", now, threads)
	}
	if now := statusKiB(t, "VmRSS:"); now > rss+rss/2+32<<10 {
		t.Errorf("%d KiB resident, %d before", now, rss)
	}
}

// statusKiB reads a number of /proc/self/status.
func statusKiB(t testing.TB, key string) (v int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+len(key) < len(b); i++ {
		if string(b[i:i+len(key)]) == key {
			fmt.Sscan(string(b[i+len(key):i+len(key)+20]), &v)
			return v
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// TestRingRefusals: what cannot be is refused with its errno.
func TestRingRefusals(t *testing.T) {
	_, cfg := startClients(t)
	for _, version := range []uint32{0, shm.Version - 1, shm.Version + 1} {
		p := clienttest.DialPackets(t, cfg)
		b := clienttest.BindTo(cfg.RDS.Addresses[0], 0)
		w := &rdsdv1.RingWish{}
		w.SetVersion(version)
		b.SetRing(w)
		if m := p.Bind(b); syscall.Errno(m.GetClosing().GetErrno()) != syscall.ENOSYS {
			t.Errorf("layout version %d: %v", version, m)
		}
	}
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	m := &rdsdv1.ClientMessage{}
	m.SetSend(clienttest.BatchOf(1, netip.MustParseAddrPort("127.0.0.1:7"), "x"))
	raw, _ := proto.Marshal(m)
	if err := r.C.WriteMessage(raw); err != nil {
		t.Fatal(err)
	}
	raw, _, err := r.C.ReadMessage()
	s := &rdsdv1.ServerMessage{}
	if err != nil || proto.Unmarshal(raw, s) != nil || syscall.Errno(s.GetClosing().GetErrno()) != syscall.EINVAL {
		t.Errorf("a batch beside the rings: %v, %v", s, err)
	}
	if _, _, err := r.C.ReadMessage(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
}
