//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

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

// counter is one of a daemon.
func counter(t testing.TB, d *rdsdtest.Daemon, name string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := d.Dial().Admin().Counters(ctx, netip.Addr{})
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
	ctx := within(t, time.Minute)
	n := &numbers{t: t, from: bindRings(t, d), to: bindRings(t, d)}
	n.untilPaired(ctx, d)
	for round := range 200 {
		// More than a pair has room for: the rest goes by the daemon, and what is sent
		// when that is placed goes by the pair again.
		for range 100 + 371*round%4000 {
			n.send(ctx)
		}
		for n.got < n.sent-uint64(round%50) {
			n.recv(ctx)
		}
	}
	for n.got < n.sent {
		n.recv(ctx)
	}
	t.Logf("%d datagrams, of these %d by pairs, %d by the daemon", n.sent, counter(t, d, "pair_datagrams"), counter(t, d, "ring_datagrams"))
}
