package tcp

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
)

// BenchmarkOneSided: a client keeps depth operations under way, each of which
// writes so many bytes one way and is answered by so many. The client posts from
// a goroutine of its own at first and then in its handler; both ends are on
// reactors of this process.
func BenchmarkOneSided(b *testing.B) {
	for _, c := range []struct{ depth, there, back int }{
		{1, 0, 0}, {1, 4096, 0}, {32, 0, 0}, {32, 4096, 0}, {32, 64, 4096}, {32, 16 << 10, 0}, {8, 128 << 10, 0}, {8, 64, 128 << 10}, {8, 1 << 20, 0},
	} {
		b.Run(fmt.Sprintf("depth=%d/there=%d/back=%d", c.depth, c.there, c.back), func(b *testing.B) {
			x, y := onePair(b, newProvider(b), netip.MustParseAddr("127.0.0.93"))
			var mu sync.Mutex
			left, under := b.N, 0
			done := make(chan struct{})
			xmem, ymem := lockedMem(b, c.depth*c.back), lockedMem(b, c.depth*c.there)
			xkey, xaddr := x.d.Register(xmem)
			ykey, yaddr := y.d.Register(ymem)
			there, back := lockedMem(b, c.there), lockedMem(b, c.back)
			var tail [64]byte
			post := func(slot uint32) {
				left--
				under++
				x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: ykey, Addr: yaddr + uint64(slot)*uint64(c.there), Imm: slot, Data: there[:max(0, c.there-len(tail))], Tail: tail[:min(c.there, len(tail))]})
			}
			x.written = func(slot uint32) {
				mu.Lock()
				defer mu.Unlock()
				if under--; left > 0 {
					post(slot)
				} else if under == 0 {
					close(done)
				}
			}
			y.written = func(slot uint32) {
				if c.back > 0 {
					y.l.Post(&transport.Op{Kind: transport.OpWrite, Key: xkey, Addr: xaddr + uint64(slot)*uint64(c.back), Data: back})
				}
				y.l.Post(&transport.Op{Kind: transport.OpWriteImm, Imm: slot})
			}
			x.l.Start(x, transport.MaxSend)
			y.l.Start(y, transport.MaxSend)
			b.SetBytes(int64(c.there + c.back))
			b.ReportAllocs()
			b.ResetTimer()
			mu.Lock()
			for slot := range uint32(c.depth) {
				if left > 0 {
					post(slot)
				}
			}
			x.l.Flush()
			mu.Unlock()
			<-done
			b.StopTimer()
			b.ReportMetric(float64(b.N)/float64(b.Elapsed().Microseconds()+1)*1e3, "kIO/s")
		})
	}
}

func lockedMem(t testing.TB, n int) []byte {
	p, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(p) })
	for i := range p {
		p[i] = 1
	}
	return p[:n]
}
