package roce

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// TestSend sends messages of all sizes about whole packets both ways, with each MTU, of one
// piece and of three, cut by the kernel and by itself.
func TestSend(t *testing.T) {
	for _, gso := range []bool{false, true} {
		for mtu := 256; mtu <= MaxPayload; mtu *= 2 {
			p := setting{mtu: mtu, sends: 4, recvs: 4, cfg: Config{GSO: gso}}.pair(t)
			for i, n := range []int{0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu + 2, 300 * mtu} {
				from, to := p.a, p.b
				if i%2 == 1 {
					from, to = p.b, p.a
				}
				sent := random(n)
				w := Work{ID: uint64(i), Op: OpSend, Piece: [3][]byte{sent[:n/3], sent[n/3 : n/2], sent[n/2:]}, Solicited: i%4 == 1}
				if i%3 == 0 {
					w.Op = OpSendImm
					w.Imm = 0x01020304
				}
				got := p.recv(to, 100, n+1)
				p.post(from, w)
				p.run()
				p.want(from, Completion{ID: w.ID, Op: w.Op})
				p.want(to, Completion{ID: 100, Op: OpRecv, N: n, HasImm: w.Op == OpSendImm, Imm: w.Imm, Solicited: w.Solicited})
				if !bytes.Equal(sent, got[:n]) || got[n] != 0 {
					t.Errorf("MTU %d: %d bytes came as others", mtu, n)
				}
			}
			for _, c := range []Counters{p.a.Counters(), p.b.Counters()} {
				if c.DuplicateRequest+c.OutOfSeqRequest+c.CompleterRetryErr+c.AckTimeouts != 0 {
					t.Errorf("MTU %d: a net that loses nothing: %+v", mtu, c)
				}
			}
			if len(p.A.drops)+len(p.B.drops) > 0 {
				t.Errorf("MTU %d: dropped %v and %v", mtu, p.A.drops, p.B.drops)
			}
		}
	}
}

// TestWrite writes into the middle of exposed memory, and nothing around it changes.
func TestWrite(t *testing.T) {
	for _, op := range []Op{OpWrite, OpWriteImm} {
		const mtu = 512
		p := newPair(t, mtu, 4, 4)
		key, mem := p.B.expose(100 * mtu)
		want := make([]byte, len(mem))
		for i, n := range []int{0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 20*mtu + 5} {
			off := 3 * i
			data := random(n)
			copy(want[off:], data)
			w := Work{ID: uint64(i), Op: op, Imm: 7, Piece: [3][]byte{nil, data[:n/2], data[n/2:]}, Key: key, Addr: 0x1000 + uint64(off), Solicited: true}
			if n == 0 {
				w.Key, w.Addr = 0, 0 // as kernels do it
			}
			if op == OpWriteImm {
				p.recv(p.b, 50, 0)
			}
			p.post(p.a, w)
			p.run()
			p.want(p.a, Completion{ID: w.ID, Op: op})
			if op == OpWriteImm {
				p.want(p.b, Completion{ID: 50, Op: OpRecvWrite, N: n, HasImm: true, Imm: 7, Key: w.Key, Addr: w.Addr, Solicited: true})
			}
			p.want(p.b)
			if !bytes.Equal(mem, want) {
				t.Fatalf("%v of %d bytes: other memory", op, n)
			}
		}
	}
}

// TestInvalidate ends a key of the receiver, who learns how much of its memory was written.
func TestInvalidate(t *testing.T) {
	p := newPair(t, 256, 8, 8)
	key, mem := p.B.expose(2000)
	data := random(600)
	p.recv(p.b, 1, 300)
	for _, w := range []Work{
		{Op: OpWrite, Piece: piece(data[:300]), Key: key, Addr: 0x1000},
		{Op: OpWrite, Piece: piece(data[500:]), Key: key, Addr: 0x1000 + 500}, // leaves a gap
		{Op: OpWrite, Piece: piece(data[200:400]), Key: key, Addr: 0x1000 + 200},
		{Op: OpSendInval, Piece: piece(data[:300]), Inval: key},
	} {
		p.post(p.a, w)
	}
	p.run()
	p.want(p.b, Completion{ID: 1, Op: OpRecv, N: 300, HasInval: true, Key: key, Filled: 400})
	if !bytes.Equal(mem[:400], data[:400]) || !bytes.Equal(mem[500:600], data[500:]) {
		t.Error("other memory")
	}
	if p.B.dev.Memory().Len() != 0 {
		t.Error("the key is still there")
	}
	// The next write with it is refused.
	p.recv(p.b, 2, 0)
	p.post(p.a, Work{ID: 9, Op: OpWrite, Piece: piece(data[:1]), Key: key, Addr: 0x1000})
	p.run()
	for range 4 {
		p.a.Poll()
	}
	p.want(p.a, Completion{ID: 9, Op: OpWrite, Status: RemoteAccess})
	p.want(p.b, Completion{ID: 2, Op: OpRecv, Status: Flushed})
	var e *AccessError
	if !errors.As(p.B.failed[p.b], &e) || e.Op != OpWrite || e.Key != key || e.Addr != 0x1000 || e.N != 1 || !errors.Is(e, ErrKey) {
		t.Errorf("the receiver is told %v", p.B.failed[p.b])
	}
	var s *StatusError
	if !errors.As(p.A.failed[p.a], &s) || *s != (StatusError{OpWrite, RemoteAccess}) {
		t.Errorf("the sender is told %v", p.A.failed[p.a])
	}
}

// TestTake tells how much was written, as the end of a key by its owner.
func TestTake(t *testing.T) {
	p := newPair(t, 256, 8, 8)
	key, _ := p.B.expose(2000)
	p.post(p.a, Work{Op: OpWrite, Piece: piece(random(700)), Key: key, Addr: 0x1000})
	p.run()
	if filled, idle := p.B.dev.Memory().Take(key); filled != 700 || !idle {
		t.Errorf("filled %d, idle %v", filled, idle)
	}
	if filled, idle := p.B.dev.Memory().Take(key); filled != 0 || !idle {
		t.Errorf("again: filled %d, idle %v", filled, idle)
	}
}

// TestGuard: memory that its owner does not give is not written, and both ends fail.
func TestGuard(t *testing.T) {
	p := newPair(t, 256, 8, 8)
	key, mem := p.B.expose(2000)
	spent := errors.New("spent")
	left := 2
	p.B.dev.Memory().Guard(func(b []byte) error {
		if left--; left < 0 {
			return spent
		}
		return nil
	})
	data := bytes.Repeat([]byte{1}, 700)
	p.post(p.a, Work{Op: OpWrite, Piece: piece(data), Key: key, Addr: 0x1000})
	p.run()
	p.want(p.a, Completion{Op: OpWrite, Status: RemoteOperation})
	if p.B.failed[p.b] != spent || mem[511] != 1 || mem[512] != 0 {
		t.Errorf("told %v; bytes 511 and 512 are %d and %d", p.B.failed[p.b], mem[511], mem[512])
	}
}

// TestGuardNotNow: a guard that cannot give memory at the moment is asked again, and no packet
// is lost or placed twice.
func TestGuardNotNow(t *testing.T) {
	p := setting{mtu: 256, sends: 8, recvs: 8, peer: Peer{RNRRetry: 7}}.pair(t)
	key, mem := p.B.expose(2000)
	asked := 0
	p.B.dev.Memory().Guard(func(b []byte) error {
		if asked++; asked%3 != 0 {
			return ErrNotNow
		}
		return nil
	})
	data := random(700)
	p.post(p.a, Work{Op: OpWrite, Piece: piece(data), Key: key, Addr: 0x1000})
	p.wait(time.Second)
	p.want(p.a, Completion{Op: OpWrite})
	if !bytes.Equal(mem[:700], data) || asked != 9 || p.b.Counters().SendRNRErr != 6 || len(p.B.failed) > 0 {
		t.Errorf("asked %d times, counted %+v, failed %v", asked, p.b.Counters(), p.B.failed)
	}
}

// TestQuiet: a work request without a completion gives its place back, and one that fails has
// one for all that.
func TestQuiet(t *testing.T) {
	p := newPair(t, 256, 2, 8)
	for range 5 {
		p.recv(p.b, 0, 0)
		p.recv(p.b, 0, 0)
		p.post(p.a, Work{ID: 1, Op: OpSend, Quiet: true})
		p.post(p.a, Work{ID: 2, Op: OpSend})
		if err := p.a.Post(Work{Op: OpSend}); err != ErrFull {
			t.Errorf("a third of two: %v", err)
		}
		p.run()
		p.want(p.a, Completion{ID: 2, Op: OpSend})
		for range 2 {
			p.b.Poll()
		}
	}
	p.post(p.a, Work{ID: 1, Op: OpSend, Quiet: true})
	p.a.Fail()
	p.want(p.a, Completion{ID: 1, Op: OpSend, Status: Flushed})
}

// TestWindow lets no answer through: sending stops at the window, of which the last packet asks
// for an acknowledgement. Each one lets more through, up to the largest window.
func TestWindow(t *testing.T) {
	p := newPair(t, 256, 2, 2)
	const packets = 2000
	p.recv(p.b, 0, packets*256)
	p.post(p.a, Work{Op: OpSend, Piece: piece(make([]byte, packets*256))})
	want, sent := firstWindow, 0
	for sent < packets {
		n, acks := 0, 0
		for p.carry(p.A, p.B) {
			n++
		}
		if n != min(want, packets-sent) {
			t.Fatalf("%d packets without an acknowledgement, want %d", n, want)
		}
		sent += n
		for p.carry(p.B, p.A) {
			acks++
		}
		if acks != 1 {
			t.Fatalf("%d acknowledgements for a window", acks)
		}
		want = min(2*want, window)
	}
	p.want(p.a, Completion{Op: OpSend})
	p.want(p.b, Completion{Op: OpRecv, N: packets * 256})
}

// TestOneAckForMany has one acknowledgement complete all messages before it.
func TestOneAckForMany(t *testing.T) {
	p := newPair(t, 256, 3, 3)
	for i := range 3 {
		p.recv(p.b, uint64(i), 9)
		p.post(p.a, Work{ID: uint64(i), Op: OpSend, Piece: piece(make([]byte, i))})
	}
	if err := p.a.Post(Work{Op: OpSend}); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth send of three: %v", err)
	}
	if err := p.b.PostRecv(Recv{}); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth receive of three: %v", err)
	}
	p.turn(p.A, p.B)
	var ack Packet
	if !p.B.next(0, &ack) || ack.Op != Acknowledge || ack.Syndrome != AckUnlimited || ack.MSN != 3 || ack.PSN != firstA.Add(2) || ack.Dest != p.a.number {
		t.Fatalf("acknowledged by %+v", ack)
	}
	if p.B.next(0, &ack) {
		t.Errorf("and by %+v", ack)
	}
	p.A.give(0, p.B.addr, &ack)
	p.want(p.a, Completion{ID: 0, Op: OpSend}, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Op: OpSend})
	p.want(p.b, Completion{ID: 0, Op: OpRecv}, Completion{ID: 1, Op: OpRecv, N: 1}, Completion{ID: 2, Op: OpRecv, N: 2})
	p.A.give(0, p.B.addr, &ack) // it comes twice: nothing to be said about
	p.want(p.a)
	for _, far := range []PSN{firstA.Add(3), firstA.Add(3 + reach), firstA.Add(-reach - 1)} {
		ack.PSN = far // what is not under way is not acknowledged
		p.A.give(0, p.B.addr, &ack)
	}
	if n := p.A.dev.Drops()[DropWindow]; n != 3 {
		t.Errorf("%d acknowledgements dropped, want 3", n)
	}
}

// TestAcksOfAStream counts the acknowledgements of many messages that are posted as fast as
// they are sent: at most one for 16 packets.
func TestAcksOfAStream(t *testing.T) {
	const n = 4096
	p := newPair(t, 1024, n, n)
	key, _ := p.B.expose(1 << 16)
	for range n {
		p.recv(p.b, 0, 0)
		p.post(p.a, Work{Op: OpWriteImm, Piece: piece(make([]byte, 1500)), Key: key, Addr: 0x1000, Quiet: true})
	}
	// The worst of receivers takes one packet a turn.
	for p.carry(p.A, p.B) {
		p.turn(p.B, p.A)
	}
	a, b := p.a.Counters(), p.b.Counters()
	if a.RDMASends != n || b.SentAcks > a.SentPkts/16 {
		t.Errorf("%d of %d messages, %d acknowledgements of %d packets", a.RDMASends, n, b.SentAcks, a.SentPkts)
	}
	// A receiver that answers has its acknowledgement behind the answer, in the same burst.
	p = newPair(t, 1024, n, n)
	for range 16 {
		p.recv(p.b, 0, 8)
		p.recv(p.a, 0, 8)
		p.post(p.a, Work{Op: OpSend, Piece: piece(make([]byte, 8))})
	}
	p.turn(p.A, p.B)
	for range 16 {
		p.post(p.b, Work{Op: OpSend, Piece: piece(make([]byte, 8))})
	}
	p.B.bursts = 0
	p.B.dev.SetGSO(true)
	var pkt Packet
	for i := range 17 {
		if !p.B.next(0, &pkt) || (pkt.Op == Acknowledge) != (i == 16) {
			t.Fatalf("packet %d is a %v", i, pkt.Op)
		}
	}
	if p.B.next(0, &pkt) || p.B.bursts != 1 {
		t.Errorf("in %d bursts, or more follows", p.B.bursts)
	}
}

// TestDuplicates: what comes again is acknowledged again and not received again, and a gap is
// reported once.
func TestDuplicates(t *testing.T) {
	p := newPair(t, 256, 2, 2)
	p.recv(p.b, 0, 8)
	p.recv(p.b, 0, 8)
	p.post(p.a, Work{Op: OpSend, Piece: piece([]byte("once"))})
	var pkt, ack, none Packet
	p.A.next(0, &pkt)
	once := pkt
	for range 2 {
		p.B.give(0, p.A.addr, &once)
		if !p.B.next(0, &ack) || ack.Syndrome != AckUnlimited || ack.PSN != once.PSN || ack.MSN != 1 {
			t.Fatalf("answered by %+v", ack)
		}
	}
	p.want(p.b, Completion{Op: OpRecv, N: 4})
	missing := once.PSN.Add(1)
	for ahead := 2; ahead < 4; ahead++ {
		once.PSN = firstA.Add(ahead)
		p.B.give(0, p.A.addr, &once)
	}
	if !p.B.next(0, &ack) || ack.Syndrome != NAKSequence || ack.PSN != missing || p.B.next(0, &none) {
		t.Errorf("a gap is answered by %+v, or twice", ack)
	}
	once.PSN = missing
	p.B.give(0, p.A.addr, &once)
	p.B.next(0, &ack)
	once.PSN = missing.Add(2)
	p.B.give(0, p.A.addr, &once)
	if !p.B.next(0, &ack) || ack.Syndrome != NAKSequence || ack.PSN != missing.Add(1) {
		t.Errorf("the next gap is answered by %+v", ack)
	}
	if c := p.b.Counters(); c.DuplicateRequest != 1 || c.OutOfSeqRequest != 3 {
		t.Errorf("counted %+v", c)
	}
	for _, far := range []int{reach + 1, -reach - 1} {
		once.PSN = missing.Add(1 + far)
		p.B.give(0, p.A.addr, &once)
	}
	if n := p.B.dev.Drops()[DropWindow]; n != 2 || p.B.next(0, &none) {
		t.Errorf("%d packets are far away, want 2, or one was answered", n)
	}
}

// TestFence holds a message back until what was read before it is there.
func TestFence(t *testing.T) {
	for _, fence := range []bool{false, true} {
		p := setting{mtu: 256, sends: 4, recvs: 4, peer: Peer{Reads: 4, ReadsOfPeer: 4}}.pair(t)
		key, _ := p.B.expose(1000)
		p.recv(p.b, 0, 0)
		p.post(p.a, Work{Op: OpRead, Piece: piece(make([]byte, 1000)), Key: key, Addr: 0x1000})
		p.post(p.a, Work{Op: OpSend, Fence: fence})
		var pkt Packet
		n := 0
		for p.A.next(0, &pkt) {
			n++
			p.B.give(0, p.A.addr, &pkt)
		}
		if want := map[bool]int{false: 2, true: 1}[fence]; n != want {
			t.Errorf("fence %v: %d packets before the answer, want %d", fence, n, want)
		}
		p.run()
		p.want(p.a, Completion{Op: OpRead}, Completion{Op: OpSend})
	}
}

// TestQueuePairsDoNotAllocate covers a message of each kind, of several packets, with all that
// it needs at both ends.
func TestQueuePairsDoNotAllocate(t *testing.T) {
	p := setting{mtu: 1024, sends: 8, recvs: 8, cfg: Config{GSO: true}, peer: Peer{Reads: 4, ReadsOfPeer: 4}}.pair(t)
	key, _ := p.B.expose(1 << 16)
	sent, got, read := make([]byte, 5000), make([]byte, 5000), make([]byte, 5000)
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
	n := testing.AllocsPerRun(200, func() {
		p.A.told, p.B.told = p.A.told[:0], p.B.told[:0]
		for _, w := range []Work{
			{Op: OpSend, Piece: piece(sent)}, {Op: OpWriteImm, Piece: piece(sent), Key: key, Addr: 0x1000},
			{Op: OpRead, Piece: piece(read), Key: key, Addr: 0x1000}, {Op: OpSendImm, Piece: [3][]byte{sent[:5], sent[:7], sent[:9]}},
		} {
			if w.Op != OpRead && p.b.PostRecv(Recv{Data: got}) != nil || p.a.Post(w) != nil {
				t.Fatal("full")
			}
		}
		mad := [MADLen]byte{}
		if p.A.dev.SendMAD(p.B.addr, mad[:]) != nil {
			t.Fatal("no place for a management datagram")
		}
		p.B.mads = p.B.mads[:0]
		for move(p.A, p.B) || move(p.B, p.A) {
		}
		p.now += 1000
		p.A.dev.Tick(p.now)
		for range 4 {
			if c, ok := p.a.Poll(); !ok || c.Status != OK {
				t.Fatalf("not complete: %+v", c)
			}
		}
		for range 3 {
			if _, ok := p.b.Poll(); !ok {
				t.Fatal("not received")
			}
		}
		p.a.Poll()
		p.b.Poll()
	})
	if n > 1 { // the copy of the management datagram that the test's host keeps
		t.Errorf("%v allocations for four messages", n)
	}
}

// TestPacketsCounted: each packet that is taken counts once, on either side.
func TestPacketsCounted(t *testing.T) {
	p := newPair(t, 256, 4, 4)
	for id := range uint64(3) {
		p.recv(p.b, id, 256)
		p.post(p.a, Work{ID: id, Op: OpSend, Piece: piece(make([]byte, 100)), Quiet: id < 2})
	}
	p.run()
	there, back := p.b.Counters(), p.a.Counters()
	if there.RcvdPkts != 3 || back.SentPkts != 3 || back.RcvdPkts == 0 || back.RcvdPkts != there.SentPkts {
		t.Errorf("three messages of a packet each: sent %d, received %d; acknowledged by %d, of which %d came",
			back.SentPkts, there.RcvdPkts, there.SentPkts, back.RcvdPkts)
	}
}
