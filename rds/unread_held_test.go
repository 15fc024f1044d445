package rds

import (
	"math/rand"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// TestUnreadIsWhatItHolds: what lies unread is charged with the memory that it holds, whatever its length and however
// its frames came.
func TestUnreadIsWhatItHolds(t *testing.T) {
	for _, n := range []int{1, 2048, 2049, 8 << 10, 16<<10 + 1, 64<<10 + 1, 256<<10 + 1, 1 << 19} {
		cfg := DefaultConfig()
		e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
		s, err := e.Bind(4000, SocketOptions{RcvBufBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		pe, err := e.Peer(netip.MustParseAddr("10.0.0.2"))
		if err != nil {
			t.Fatal(err)
		}
		before := buf.InUse()
		const count = 100
		for range count {
			b := buf.Get(n) // as of a frame whose header came first
			if v := s.place(pe, conn.Arrival{SPort: 9, DPort: 4000, Train: wire.One(b.B), Buf: b}); v != conn.Placed {
				t.Fatalf("%d bytes: %v", n, v)
			}
			b.Release()
		}
		if held := buf.InUse() - before; held > int64(s.mem)+buf.SlabSize {
			t.Errorf("%d bytes are charged for %d datagrams of %d, which hold %d", s.mem, count, n, held)
		}
		for range count {
			d, ok := s.Queue().Recv()
			if !ok || len(d.Payload) != n {
				t.Fatalf("a datagram of %d bytes has %d", n, len(d.Payload))
			}
			d.Release()
		}
		if held := buf.InUse() - before; held != 0 || s.mem != 0 {
			t.Errorf("with all of them read %d bytes are held, and %d charged", held, s.mem)
		}
	}
}
