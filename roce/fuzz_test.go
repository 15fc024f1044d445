package roce

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

// FuzzDevice plays packets, calls and time to a device with two queue pairs. Packets are such as a
// peer sends, with any field; nothing must panic, and no memory change that was not exposed.
func FuzzDevice(f *testing.F) {
	for op := range byte(0x18) {
		f.Add([]byte{0, op, 0, 0, 1, 0, 8, 1, op, 1, 0x80, 2, 0, 9, 7, 20, 5, 1})
	}
	f.Add([]byte{4, 4, 5, 1, 0, 6, 0, 0, 1, 1, 255, 0, 7, 1, 0, 255, 0, 8, 0, 0, 200, 5, 9, 7, 255})
	f.Add([]byte{4, 5, 5, 5, 2, 17, 0, 0, 0, 0x1f, 2, 17, 0, 0, 0, 0x60, 7, 255, 7, 255, 2, 17, 0, 0, 0, 0x20, 7, 3})
	f.Fuzz(func(t *testing.T, prog []byte) {
		p := setting{mtu: 256, sends: 8, recvs: 8, peer: Peer{Reads: 2, ReadsOfPeer: 2, Timeout: 14, Retry: 2, RNRRetry: 3}}.pair(t)
		mem := bytes.Repeat([]byte{0xee}, 3000)
		key, err := p.B.dev.Memory().Expose(mem[1000:2000:2000], 0x1000, RemoteRead|RemoteWrite|PeerRevokes, AnyQP)
		p.must(err)
		next := func() (b byte) {
			if len(prog) > 0 {
				b, prog = prog[0], prog[1:]
			}
			return b
		}
		now := time.Duration(0)
		recv := bytes.Repeat([]byte{0xee}, 600)
		polled := 0
		for len(prog) > 0 {
			switch what := next() % 10; what {
			case 0, 1, 2: // a packet of the peer: expected, near, or an answer
				pkt := Packet{Op: Opcode(next()), PKey: DefaultPKey, Dest: p.b.number, AckReq: true, Key: key}
				pkt.PSN = p.b.resp.expected.Add(int(int8(next())))
				if what == 2 {
					pkt.PSN = p.b.req.unacked.Add(int(int8(next())))
				}
				pkt.Addr = 0x1000 + uint64(int64(int8(next())))*64
				pkt.Len = uint32(next()) * 64
				pkt.Syndrome = Syndrome(next())
				pkt.Inval, pkt.Imm = key, 5
				if opcodes[pkt.Op].has&hasPayload != 0 {
					pkt.Payload = make([]byte, min(int(pkt.Len), 256))
				}
				if next()&1 != 0 {
					pkt.Len = 1<<31 + uint32(next())
				}
				if pkt.Op.Valid() {
					p.B.give(now, p.A.addr, &pkt)
				}
			case 3: // any bytes
				n := min(int(next()), len(prog))
				p.B.dev.Receive(now, p.A.addr, prog[:n])
				p.B.dev.Receive(now, netip.AddrPort{}, prog[:n])
				prog = prog[n:]
			case 4:
				w := Work{Op: Op(next() % uint8(numOps)), Piece: piece(make([]byte, 2*int(next()))), Key: 1, Fence: next()&1 != 0, Quiet: next()&1 != 0}
				_ = p.b.Post(w) // which may be refused
			case 5:
				_ = p.b.PostRecv(Recv{Data: recv[100:500:500]})
			case 6:
				p.B.fill(now)
				p.B.out = nil
			case 7:
				now += time.Duration(next()) * time.Millisecond
				p.B.dev.Tick(now)
			case 8:
				for _, ok := p.b.Poll(); ok; _, ok = p.b.Poll() {
					polled++
				}
			case 9:
				switch next() % 16 {
				case 0:
					p.b.Fail()
				case 1:
					_ = p.b.Reset()
				case 2:
					_ = p.b.Init()
				case 3:
					p.B.dev.Memory().Take(key)
				case 4:
					_ = p.b.Connect(Peer{Number: 77, Addr: p.A.addr.Addr(), MTU: 512, ReadsOfPeer: 3})
				case 5:
					_ = p.b.Start(9)
				case 6:
					p.must(p.b.Close())
					return
				}
			}
			if !untouched(mem[:1000]) || !untouched(mem[2000:]) || !untouched(recv[:100]) || !untouched(recv[500:]) {
				t.Fatal("memory was written that was not exposed")
			}
			delete(p.B.failed, p.b)
		}
		// Whatever was done, it ends: with a dead queue pair, or one that is idle for good.
		for i := 0; p.B.dev.Next() != never && i < 10000; i++ {
			now = max(now, p.B.dev.Next())
			p.B.dev.Tick(now)
			p.B.lose(now)
		}
		if p.B.dev.Next() != never {
			t.Errorf("a timer for %v at %v", p.B.dev.Next(), now)
		}
	})
}
