package roce

import (
	"net/netip"
	"testing"
	"time"
)

// TestBurstsThatDoNotArrive: a peer that has of each burst the first packet alone is sent packets one
// by one, for a minute and then for longer, and others have bursts as before.
func TestBurstsThatDoNotArrive(t *testing.T) {
	p := setting{mtu: 256, sends: 1, recvs: 1, cfg: Config{GSO: true, Patience: time.Hour}}.pair(t)
	C := newHost(t, "10.0.0.3", Config{})
	other := p.A.newQP(1, 1)
	p.must(other.Init())
	p.must(other.Connect(Peer{Number: 7, Addr: C.addr.Addr(), MTU: 256, First: firstB}))
	p.must(other.Start(firstA))
	mem := make([]byte, 60_000)
	// bursts has q's peer refuse the second packet of each burst, and returns how many it has before
	// it has none.
	bursts := func(q *QP, from *host) (n int) {
		for range 100 {
			if _, ok := q.Poll(); ok || q.req.queue.n == 0 {
				p.post(q, Work{Op: OpWrite, Piece: piece(mem), Addr: 0x1000})
			}
			ack := Packet{Op: Acknowledge, PKey: DefaultPKey, Dest: q.number, Syndrome: AckUnlimited}
			cut := false
			var b Burst
			for p.A.dev.Fill(p.now, &b) {
				if cut = cut || b.Cut() && b.N > 1; cut && ack.Syndrome.IsAck() {
					n++
					ack.Syndrome = NAKSequence
				}
				p.A.dev.Sent(&b)
			}
			if !cut { // all arrives
				ack.PSN = q.req.end.Add(-1)
				p.A.give(p.now, from.addr, &ack)
				return n
			}
			ack.PSN = q.req.unacked.Add(1)
			p.A.give(p.now, from.addr, &ack)
		}
		return n
	}
	for i, c := range []struct{ after, most time.Duration }{
		{0, trialBursts}, {restBursts - 1, 0}, {1, againBursts}, {2*restBursts - 1, 0}, {1, againBursts}, {4*restBursts - 1, 0}, {1, againBursts},
	} {
		p.now += c.after
		if n := bursts(p.a, p.B); n > int(c.most) || c.most > 0 && n == 0 {
			t.Errorf("look %d: %d bursts to a peer to which they do not arrive, want %d at most", i, n, c.most)
		}
	}
	if n, to := p.A.dev.LostBursts(); n != 4 || to != p.B.addr.Addr() {
		t.Errorf("given up %d times, last to %v", n, to)
	}
	if !p.A.dev.takesBursts(p.now, other.way) {
		t.Error("another peer has no bursts")
	}
	// Its next queue pair is no reason to begin anew, and a change of the interface is.
	p.must(p.a.Close())
	w := p.A.dev.useWay(p.B.addr.Addr())
	if p.A.dev.takesBursts(p.now, w) {
		t.Error("a peer that connects anew has bursts again")
	}
	p.A.dev.SetGSO(true)
	if !p.A.dev.takesBursts(p.now, w) {
		t.Error("the peer has no bursts when all may be tried again")
	}
}

// TestRefusedBursts: a peer to which the system has not taken a burst has none for a minute, and then for
// longer; what is refused meanwhile was on its way already. Others have them as before.
func TestRefusedBursts(t *testing.T) {
	p := setting{mtu: 256, sends: 1, recvs: 1, cfg: Config{GSO: true}}.pair(t)
	d, w := p.A.dev, p.a.way
	other := d.useWay(netip.MustParseAddr("10.0.0.3"))
	now := time.Duration(0)
	for i, rest := range []time.Duration{restBursts, 2 * restBursts, 4 * restBursts} {
		if !d.takesBursts(now, w) {
			t.Errorf("look %d: no bursts before they are refused", i)
		}
		w.burst()
		if !d.Refused(now, p.B.addr.Addr()) || d.Refused(now, p.B.addr.Addr()) {
			t.Errorf("look %d: it is not new, or new twice", i)
		}
		if now += rest; d.takesBursts(now-1, w) || !d.takesBursts(now, w) {
			t.Errorf("look %d: bursts rest for less than %v, or for more", i, rest)
		}
	}
	if !d.takesBursts(0, other) || d.Refused(0, netip.MustParseAddr("10.0.0.4")) {
		t.Error("others have no bursts, or one that has no queue pair is noted")
	}
}

// TestFewBurstsLost: what a net loses now and then is no reason to send no bursts.
func TestFewBurstsLost(t *testing.T) {
	p := newPair(t, 256, 1, 1)
	w := p.a.way
	for i := range 1000 {
		if !p.A.dev.takesBursts(0, w) {
			t.Fatalf("none after %d, of which every second was lost", i)
		}
		w.burst()
		w.gap(i % 2)
	}
	if w.burst(); w.users != 1 {
		t.Errorf("%d queue pairs on the way of one", w.users)
	}
}

// TestWaysAreBounded: of peers that have gone none is remembered to which bursts arrived, and no more
// than keptWays of the others.
func TestWaysAreBounded(t *testing.T) {
	d := newHost(t, "10.0.0.1", Config{GSO: true}).dev
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}) }
	visit := func(i int, failed int) {
		q := &QP{dev: d, way: d.useWay(addr(i))}
		q.way.failed += failed
		q.leaveWay()
		q.leaveWay()
	}
	for i := range 2 * keptWays {
		visit(i, 0)
	}
	if len(d.ways) > 0 {
		t.Errorf("%d are remembered of those to which bursts arrive", len(d.ways))
	}
	for i := range 2 * keptWays {
		visit(i, 1)
	}
	for i := range keptWays { // they come back
		visit(i, 0)
	}
	if len(d.ways) != keptWays || d.kept != keptWays {
		t.Errorf("%d are remembered, and %d counted, want %d", len(d.ways), d.kept, keptWays)
	}
	w := d.useWay(addr(1))
	if d.SetGSO(true); len(d.ways) != 1 || d.kept != 0 || d.useWay(addr(1)) != w {
		t.Errorf("%d are remembered, and %d counted, when all may be tried again", len(d.ways), d.kept)
	}
}
