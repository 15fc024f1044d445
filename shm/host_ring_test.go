package shm

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// TestRingGrowsWithTheUnread: what the daemon keeps of each entry of the receive ring has room
// for those that are unread and no more than twice that, knows each of them, and is nothing for
// a socket to which nothing has come.
func TestRingGrowsWithTheUnread(t *testing.T) {
	h, m := newPair(t, testSpec(), nil)
	if len(h.ring) != 0 {
		t.Errorf("%d entries for nothing", len(h.ring))
	}
	read, placed, most := uint64(0), uint64(0), uint64(0)
	for round, unread := range []uint64{1, 3, 16, 17, 5, 100, 0, 250, 2} {
		for placed-read < unread {
			body := make([]byte, 1+placed%7) // none is appended to the one before
			if _, ok := h.PlaceCopy(testDst, wire.One(body), NoLane, 0); !ok {
				t.Fatalf("round %d: no room for %d", round, placed)
			}
			placed++
		}
		h.Publish()
		most = max(most, placed-read)
		if n := uint64(len(h.ring)); n > max(2*most, firstRing) {
			t.Errorf("round %d: %d entries for at most %d unread", round, n, most)
		}
		at := read
		h.EachUnread(func(_ netip.AddrPort, bytes int) bool {
			if want := 1 + int(at%7); bytes != want {
				t.Errorf("round %d: %d has %d bytes, want %d", round, at, bytes, want)
			}
			at++
			return true
		})
		if at != placed {
			t.Errorf("round %d: %d are unread, want %d", round, at-read, placed-read)
		}
		for half := placed - (placed-read)/2; read < half; read++ {
			var d RecvDesc
			m.r.GetRecv(read, &d)
			m.r.PutRelease(read, d.Slot)
		}
		m.r.RecvHead().Store(read)
		m.r.ReleaseTail().Store(read)
		if _, _, _, err := h.Releases(); err != nil {
			t.Fatal(err)
		}
	}
	m.r.RecvHead().Store(read - 100) // it has read them again, it says
	n := 0
	h.EachUnread(func(netip.AddrPort, int) bool { n++; return true })
	if n != int(placed-read) {
		t.Errorf("%d are unread, want %d", n, placed-read)
	}
}
