package rdsd

import (
	"fmt"
	"net/netip"
	"testing"
)

func manyDests(n int) []netip.AddrPort {
	dests := make([]netip.AddrPort, n)
	for i := range dests {
		dests[i] = netip.AddrPortFrom(peerAddr.Addr(), uint16(1000+i))
	}
	return dests
}

// A batch lists each destination once, however many there are and in whatever way it is made:
// the daemon keeps the order of a flow by the entries of the list.
func TestBatchListsADestinationOnce(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 66, 129, 1000} {
		dests := manyDests(n)
		cycle := func(b *batch) {
			for range 3 {
				for _, d := range dests {
					b.add(d, nil, 0)
				}
			}
		}
		check := func(what string, b *batch, rounds int) {
			t.Helper()
			if len(b.dests) != n || len(b.index) != rounds*n {
				t.Fatalf("%s of %d: %d are listed for %d datagrams", what, n, len(b.dests), len(b.index))
			}
			for i, k := range b.index {
				if b.dests[k] != dests[i%n] {
					t.Fatalf("%s of %d: datagram %d goes to %v", what, n, i, b.dests[k])
				}
			}
		}
		b, o := newBatch(), newBatch()
		cycle(b)
		check("a cycle", b, 3)
		cycle(o)
		b.merge(o)
		check("two", b, 6)
		// What it is used for again knows nothing of it.
		b.recycle()
		b = newBatch()
		for i := range dests {
			dests[i] = netip.AddrPortFrom(otherAddr.Addr(), uint16(60000-i))
		}
		cycle(b)
		check("another cycle", b, 3)
		b.recycle()
		o.recycle()
	}
}

// Nothing is allocated for the list, once a batch had as many.
func TestBatchDestsWithoutAllocation(t *testing.T) {
	for _, n := range []int{1, 64, 65, 1000} {
		dests := manyDests(n)
		b := new(batch)
		if got := testing.AllocsPerRun(20, func() {
			b.lengths, b.dests, b.index = b.lengths[:0], b.dests[:0], b.index[:0]
			clear(b.many)
			for range 2 {
				for _, d := range dests {
					b.add(d, nil, 0)
				}
			}
		}); got != 0 {
			t.Errorf("%d destinations: %v allocations", n, got)
		}
		if (b.many != nil) != (n > fewDests) {
			t.Errorf("%d destinations: %d in the map", n, len(b.many))
		}
	}
}

func BenchmarkBatchDests(b *testing.B) {
	for _, n := range []int{1, 2, 16, 64, 65, 256, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dests := manyDests(n)
			b.ReportAllocs()
			for b.Loop() {
				x := newBatch()
				for i := range maxBatchDatagrams {
					x.addDest(dests[i%n])
				}
				x.recycle()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*maxBatchDatagrams), "ns/datagram")
		})
	}
}
