package rds

import (
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/transport"
)

// TestMapsToManyKernels: a port of ours that flips has no more whole maps sent than 2,000 a second, to
// however many kernels, and each of them is told how it stands in the end. Few get them as they come.
func TestMapsToManyKernels(t *testing.T) {
	const mapBytes = 48 + 8192
	for _, kernels := range []int{3, 300} {
		cfg := DefaultConfig()
		e := NewEngine(&cfg, netip.MustParseAddr("10.10.0.1"), rand.New(rand.NewSource(1)))
		now, bytes := time.Second, 0
		told := map[*conn.Lane]time.Duration{}
		b := transport.GetBatch()
		defer b.Put()
		fill := func() {
			for _, o := range takeActions(e, nil) {
				for o.Kind == conn.ActKick && o.Lane.Fill(now, b) {
					if bytes += b.Bytes; b.Bytes >= mapBytes {
						told[o.Lane] = now
					}
					b.Reset()
					o.Lane.Wrote(now)
				}
			}
		}
		for i := range kernels {
			if a, err := e.Accept(now, netip.AddrPortFrom(peerAddr(i), 40000)); err != nil || !a.Link {
				t.Fatalf("%+v %v", a, err)
			}
			fill()
		}
		if len(told) != kernels || bytes < kernels*mapBytes {
			t.Fatalf("%d of %d were told the first map, %d bytes", len(told), kernels, bytes)
		}
		bytes = 0
		pass := func(d time.Duration) {
			for end := now + d; ; {
				at, ok := e.Next()
				if !ok || at > end {
					now = end
					return
				}
				now = max(now, at)
				e.Tick(now)
				fill()
			}
		}
		last := now
		for range 1000 {
			last = now
			e.setCongested(now, 4000, !e.cmap.Congested(4000))
			fill()
			pass(time.Millisecond)
		}
		most := 1500 // the first change to each, and one in two milliseconds to each
		if kernels > 3 {
			most = 2000 + 2*kernels
		}
		if n := bytes / mapBytes; n > most || n < 1000 {
			t.Errorf("%d maps in a second to %d kernels, want %d at the most", n, kernels, most)
		}
		pass(time.Second)
		for p, at := range told {
			if at < last {
				t.Errorf("%v was told last at %v, the last change was at %v", p, at, last)
			}
		}
	}
}

// TestWatchersMissNothingUnsaid: of a map with more changes than are told, and of a peer that is forgotten with
// so many congested ports, watchers learn that they have lost some; of fewer they are told each.
func TestWatchersMissNothingUnsaid(t *testing.T) {
	for _, n := range []int{1, noteMost, noteMost + 1, 65536} {
		e, now := lone(t, nil)
		e.Watch(true)
		pe, err := e.Peer(peerAddr(1))
		if err != nil {
			t.Fatal(err)
		}
		m := make([]byte, cong.Bytes)
		for i := range n {
			m[i/8] |= 1 << (i % 8)
		}
		told := func(what string, on bool) {
			t.Helper()
			o := taken(e)
			if len(o.Notices) != min(n, noteMost) || o.Lost != (n > noteMost) {
				t.Errorf("%s with %d congested ports: %d notices, lost some: %v", what, n, len(o.Notices), o.Lost)
			}
			for i, x := range o.Notices {
				if x != (Notice{Endpoint: pe.AddrPort(uint16(i)), Congested: on}) {
					t.Fatalf("%s with %d congested ports: notice %d is %+v", what, n, i, x)
				}
			}
		}
		pe.CongestionMap(now, m)
		told("a map", true)
		if !e.Evict(now) {
			t.Fatal("the peer is not forgotten")
		}
		told("a peer that is forgotten", false)
	}
}
