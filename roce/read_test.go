package roce

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func readers(t *testing.T, reads uint8) *pair {
	t.Helper()
	return setting{mtu: 256, sends: 32, recvs: 8, peer: Peer{Reads: reads, ReadsOfPeer: reads, Retry: 7, Timeout: 19}}.pair(t)
}

// TestRead reads from the middle of exposed memory into three pieces.
func TestRead(t *testing.T) {
	for _, gso := range []bool{false, true} {
		p := setting{mtu: 256, sends: 4, recvs: 4, cfg: Config{GSO: gso}, peer: Peer{Reads: 2, ReadsOfPeer: 2}}.pair(t)
		key, mem := p.B.expose(400 * 256)
		copy(mem, random(len(mem)))
		for i, n := range []int{0, 1, 255, 256, 257, 1000, 64 * 256, 64*256 + 1, 300*256 + 3} {
			got := make([]byte, n+2)
			w := Work{ID: uint64(i), Op: OpRead, Piece: [3][]byte{got[1 : 1+n/4], got[1+n/4 : 1+n/2], got[1+n/2 : 1+n]}, Key: key, Addr: 0x1000 + uint64(i)}
			if n == 0 {
				w.Key = 0
			}
			p.post(p.a, w)
			p.run()
			p.want(p.a, Completion{ID: w.ID, Op: OpRead})
			if got[0] != 0 || got[n+1] != 0 || !bytes.Equal(got[1:1+n], mem[i:i+n]) {
				t.Errorf("%d bytes were read as others", n)
			}
		}
		p.want(p.b)
		if c := p.a.Counters(); c.CompleterRetryErr != 0 || p.b.Counters().ReadReplays != 0 {
			t.Errorf("a net that loses nothing: %+v", c)
		}
	}
}

// TestReadLoses each packet of a READ in turn, and reads for all that.
func TestReadLoses(t *testing.T) {
	for lost := range 80 {
		p := readers(t, 2)
		key, mem := p.B.expose(150 * 256)
		copy(mem, random(len(mem)))
		got := make([]byte, 70*256+5)
		p.recv(p.b, 0, 8)
		p.post(p.a, Work{ID: 1, Op: OpRead, Piece: piece(got), Key: key, Addr: 0x1003})
		p.post(p.a, Work{ID: 2, Op: OpSend})
		n := 0
		lose := func(from, to *host) (any bool) {
			for len(from.out) > 0 || from.fill(p.now) {
				if n++; n == lost+1 {
					from.out = from.out[1:]
				} else {
					p.carry(from, to)
				}
				any = true
			}
			return any
		}
		for lose(p.A, p.B) || lose(p.B, p.A) {
		}
		p.wait(time.Second)
		p.want(p.a, Completion{ID: 1, Op: OpRead}, Completion{ID: 2, Op: OpSend})
		p.want(p.b, Completion{Op: OpRecv})
		if !bytes.Equal(got, mem[3:3+len(got)]) {
			t.Errorf("packet %d lost: other bytes", lost)
		}
		if p.now > 2*time.Second {
			t.Errorf("packet %d lost: it takes %v", lost, p.now)
		}
	}
}

// TestReadLimit: more READs at a time than the peer takes wait, and a peer that asks for more
// than it was told is refused.
func TestReadLimit(t *testing.T) {
	p := readers(t, 2)
	key, _ := p.B.expose(256)
	for id := range uint64(5) {
		p.post(p.a, Work{ID: id, Op: OpRead, Piece: piece(make([]byte, 200)), Key: key, Addr: 0x1000})
	}
	var pkt Packet
	n := 0
	for p.A.next(0, &pkt) {
		p.B.give(0, p.A.addr, &pkt)
		n++
	}
	if n != 2 {
		t.Errorf("%d READs at a time, want 2", n)
	}
	pkt.PSN = pkt.PSN.Add(1)
	p.B.give(0, p.A.addr, &pkt)
	if !errors.Is(p.B.failed[p.b], ErrProtocol) {
		t.Errorf("a third READ: %v", p.B.failed[p.b])
	}
	// And one that takes none.
	p = newPair(t, 256, 1, 1)
	p.B.give(0, p.A.addr, &Packet{Op: ReadRequest, PKey: DefaultPKey, Dest: p.b.number, PSN: firstA})
	if !errors.Is(p.B.failed[p.b], ErrProtocol) {
		t.Errorf("a READ where none is taken: %v", p.B.failed[p.b])
	}
}

// TestReadRefused: what must not be read is not, also when the key ends in between.
func TestReadRefused(t *testing.T) {
	p := readers(t, 2)
	p.post(p.a, Work{Op: OpRead, Piece: piece(make([]byte, 8)), Key: 77})
	p.run()
	p.want(p.a, Completion{Op: OpRead, Status: RemoteAccess})

	p = readers(t, 2)
	key, _ := p.B.expose(40 * 256)
	p.recv(p.b, 0, 0)
	got := make([]byte, 20*256)
	p.post(p.a, Work{ID: 1, Op: OpSend})
	p.post(p.a, Work{ID: 2, Op: OpRead, Piece: piece(got), Key: key, Addr: 0x1000})
	p.post(p.a, Work{ID: 3, Op: OpSend})
	p.turn(p.A, p.B)
	p.B.dev.Memory().Revoke(key)
	p.run()
	p.want(p.a, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Op: OpRead, Status: RemoteAccess}, Completion{ID: 3, Op: OpSend, Status: Flushed})
	var e *AccessError
	if !errors.As(p.B.failed[p.b], &e) || e.Op != OpRead || !errors.Is(e, ErrKey) {
		t.Errorf("told %v", p.B.failed[p.b])
	}
}

// TestLentMemory: memory that a burst refers to is in use until Sent.
func TestLentMemory(t *testing.T) {
	p := readers(t, 2)
	key, _ := p.B.expose(4 * 256)
	p.post(p.a, Work{Op: OpRead, Piece: piece(make([]byte, 4*256)), Key: key, Addr: 0x1000})
	p.turn(p.A, p.B)
	var b Burst
	if !p.B.dev.Fill(0, &b) || p.B.dev.Fill(0, &b) {
		t.Fatal("no burst, or two")
	}
	list := burstOf(t, p.B.addr, &b)
	if _, idle := p.B.dev.Memory().Take(key); idle {
		t.Error("idle while a burst refers to it")
	}
	p.B.dev.Sent(&b)
	for _, d := range list {
		p.A.dev.Receive(0, p.B.addr, d.pkt)
	}
	p.want(p.a, Completion{Op: OpRead})

	// A work request completes after the burst that refers to it.
	p.recv(p.b, 0, 8)
	p.A.told = nil
	p.post(p.a, Work{ID: 5, Op: OpSend, Piece: piece(make([]byte, 8))})
	p.A.dev.Fill(0, &b)
	p.B.dev.Receive(0, p.A.addr, burstOf(t, p.A.addr, &b)[0].pkt)
	p.carry(p.B, p.A)
	if _, ok := p.a.Poll(); ok || len(p.A.told) > 0 {
		t.Error("complete while its memory is being sent")
	}
	p.A.dev.Sent(&b)
	if len(p.A.told) != 1 {
		t.Error("not told after that")
	}
	p.want(p.a, Completion{ID: 5, Op: OpSend})
}

// TestOldReadAgain: a READ that comes twice is answered again; the answers are not taken
// again. When its key has ended it is forgotten.
func TestOldReadAgain(t *testing.T) {
	p := readers(t, 2)
	key, _ := p.B.expose(4 * 256)
	p.post(p.a, Work{Op: OpRead, Piece: piece(make([]byte, 3*256)), Key: key, Addr: 0x1000})
	var req Packet
	p.A.next(0, &req)
	p.B.give(0, p.A.addr, &req)
	p.run()
	p.want(p.a, Completion{Op: OpRead})
	p.B.give(0, p.A.addr, &req)
	p.run()
	if p.b.Counters().ReadReplays != 1 || p.b.Counters().SentPkts != 6 {
		t.Errorf("counted %+v", p.b.Counters())
	}
	other := req
	other.Addr++
	p.B.give(0, p.A.addr, &other) // which never came before
	p.B.dev.Memory().Revoke(key)
	p.B.give(0, p.A.addr, &req)
	p.run()
	if p.b.State() != RTS || p.a.State() != RTS || p.b.Counters().SentPkts != 6 || p.B.dev.Drops()[DropWindow] != 1 {
		t.Errorf("in %v and %v, counted %+v", p.a.State(), p.b.State(), p.b.Counters())
	}
}
