package datagram

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/rds"
)

// TestReconnect: of the kernels that a former life wrote down, those that may still be
// peers, and may be kernels, are looked for, and those for which it is for this side to
// connect are connected to; nobody else.
func TestReconnect(t *testing.T) {
	noPeer, noKernel := netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.113.5")
	s := newSeam(t, func(c *rds.Config) {
		c.AllowPeer = func(a netip.Addr) bool { return a != noPeer }
		c.AllowKernel = func(a netip.Addr) bool { return a != noKernel }
	})
	s.a.reconnect(bookPages{
		seamLocal:  {kernels: []netip.Addr{noPeer, seamHigher, noKernel, seamLower}},
		seamHigher: {kernels: []netip.Addr{netip.MustParseAddr("203.0.113.6")}}, // no address of this life
	})
	if l := s.dialled(); l.remote.Addr() != seamHigher {
		t.Errorf("%v was dialled", l.remote)
	}
	e, _ := s.h.Lock()
	known := len(e.Peers())
	s.h.Unlock()
	if known != 2 {
		t.Errorf("%d peers are known, want 2", known)
	}
	if n := s.p.dialled(); n != 1 {
		t.Errorf("%d were dialled", n)
	}
}

// TestPortBookEdges: as many addresses as there is room for and as many kernels, and
// not one more; what is past the room touches nobody else's.
func TestPortBookEdges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports")
	var addrs []netip.Addr
	for i := range bookMostAddrs + 1 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
	}
	if _, _, err := openPortBook(file, addrs); err == nil {
		t.Errorf("%d addresses were taken", len(addrs))
	}
	b, _, err := openPortBook(file, addrs[:bookMostAddrs])
	if err != nil {
		t.Fatal(err)
	}
	last, before := addrs[bookMostAddrs-1], addrs[bookMostAddrs-2]
	b.note(last, 65535, 1<<32-2, true)
	b.note(last, 0, 0, true)
	b.close()
	b, held, err := openPortBook(file, addrs[bookMostAddrs-2:bookMostAddrs])
	if err != nil {
		t.Fatal(err)
	}
	if p := held[last].ports; len(p) != 2 || p[65535] != 1<<32-2 || len(held[before].ports)+len(held[before].kernels) > 0 {
		t.Errorf("the last address holds %v, the one before it %v", p, held[before])
	}
	kernel := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}) }
	for i := range bookKernels + 1 {
		b.noteKernel(before, kernel(i), true)
		b.noteKernel(before, kernel(i), true) // known already
	}
	b.noteKernel(netip.MustParseAddr("10.9.9.9"), kernel(0), true) // nobody's
	b.close()
	b.close()
	b, held, err = openPortBook(file, addrs[bookMostAddrs-2:bookMostAddrs])
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if k := held[before].kernels; len(k) != bookKernels || k[0] != kernel(0) || k[bookKernels-1] != kernel(bookKernels-1) {
		t.Errorf("%d kernels are held, from %v", len(k), k[:min(len(k), 1)])
	}
	if len(held[last].ports) != 2 || len(held[last].kernels) > 0 {
		t.Errorf("the one behind it holds %v", held[last])
	}
	// Whoever has none has none: nothing is written down, and nothing fails.
	var none *portBook
	none.freeze()
	none.close()
}

// TestWorkersRings: rings come and go in any order, and a worker has those that are
// there, each where it says that it is.
func TestWorkersRings(t *testing.T) {
	w := &Worker{}
	var l []*Ring
	for range 5 {
		l = append(l, &Ring{})
	}
	check := func(what string, want ...int) {
		t.Helper()
		if len(w.rings) != len(want) {
			t.Fatalf("%s: %d rings, want %d", what, len(w.rings), len(want))
		}
		for i, r := range w.rings {
			if r.at != i+1 {
				t.Errorf("%s: number %d says that it is %d", what, i+1, r.at)
			}
		}
		for _, i := range want {
			if r := l[i]; r.at == 0 || w.rings[r.at-1] != r {
				t.Errorf("%s: %d is not where it says", what, i)
			}
		}
	}
	w.Exit(l[4]) // never there
	check("none")
	for i, r := range l[:4] {
		w.Enter(r)
		check(fmt.Sprint("enter ", i), []int{0, 1, 2, 3}[:i+1]...)
	}
	w.Exit(l[1])
	check("from the middle", 0, 3, 2)
	w.Exit(l[1])
	check("twice", 0, 3, 2)
	w.Exit(l[2])
	check("the last", 0, 3)
	w.Exit(l[0])
	w.Exit(l[3])
	check("all")
	if r := w.rings[:cap(w.rings)]; r[0] != nil || r[1] != nil {
		t.Error("what has gone is still referred to")
	}
}
