package roce

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkWrite moves messages of 64 KiB and of 4 KiB from one device to another, with the CRC
// at both ends and the copy into place, and no network: what the rules cost, and the bytes.
func BenchmarkWrite(b *testing.B) {
	for _, mtu := range []int{1024, 4096} {
		for _, n := range []int{4096 + 36, 65536} {
			b.Run(fmt.Sprintf("mtu=%d/bytes=%d", mtu, n), func(b *testing.B) {
				p := setting{mtu: mtu, sends: 8, recvs: 8, cfg: Config{GSO: true}}.pair(b)
				key, _ := p.B.expose(1 << 16)
				data := make([]byte, n)
				wire := make([]byte, 0, maxPacket+icrcLen)
				move := func(from, to *host) (any bool) {
					for from.dev.Fill(p.now, &from.burst) {
						for i := range from.burst.N {
							wire = from.burst.Packet(i).Append(wire[:0])
							to.dev.Receive(p.now, from.addr, wire)
						}
						from.dev.Sent(&from.burst)
						any = true
					}
					return any
				}
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					p.now += time.Microsecond
					p.A.told, p.B.told = p.A.told[:0], p.B.told[:0]
					if p.b.PostRecv(Recv{}) != nil || p.a.Post(Work{Op: OpWriteImm, Piece: piece(data), Key: key, Addr: 0x1000}) != nil {
						b.Fatal("full")
					}
					for move(p.A, p.B) || move(p.B, p.A) {
					}
					p.a.Poll()
					p.b.Poll()
				}
				b.ReportMetric(float64(p.a.stats.SentPkts)/float64(b.N), "packets/op")
			})
		}
	}
}
