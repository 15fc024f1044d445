package roce

import (
	"slices"
	"testing"
	"time"
)

// rxePeer is a pair whose end b is played by the test, as rxe is: it sends a message and is silent.
type rxePeer struct {
	*pair
	psn PSN
}

func newRxePeer(t *testing.T) *rxePeer {
	p := setting{mtu: 256, sends: 4, recvs: 8, peer: Peer{Reads: 2, ReadsOfPeer: 2}}.pair(t)
	for id := range uint64(8) {
		p.recv(p.a, id, 8)
	}
	return &rxePeer{pair: p, psn: firstB}
}

// send has the peer send a message.
func (p *rxePeer) send(at time.Duration) {
	p.A.give(at, p.B.addr, &Packet{Op: SendOnly, PKey: DefaultPKey, Dest: p.a.number, PSN: p.psn, AckReq: true})
	p.psn = p.psn.Add(1)
}

// acks lets time pass from one moment to another and returns when acknowledgements left, of all that has come.
func (p *rxePeer) acks(from, to time.Duration) (at []time.Duration) {
	p.t.Helper()
	for now := from; now <= to; now = p.A.dev.Next() {
		p.A.dev.Tick(now)
		var pkt Packet
		for p.A.next(now, &pkt) {
			if pkt.Op != Acknowledge || pkt.Syndrome != AckUnlimited || pkt.PSN != p.psn.Add(-1) || int(pkt.MSN) != p.psn.Sub(firstB) {
				p.t.Fatalf("at %v: %v %v %06x, want an acknowledgement of %06x", now, pkt.Op, pkt.Syndrome, pkt.PSN, p.psn.Add(-1))
			}
			at = append(at, now)
		}
	}
	return at
}

func (p *rxePeer) want(got []time.Duration, want ...time.Duration) {
	p.t.Helper()
	if !slices.Equal(got, want) {
		p.t.Errorf("acknowledged at %v, want %v", got, want)
	}
}

const ms = time.Millisecond

// TestAckRepeated: what asked is acknowledged at once, and three times more while nothing comes, all
// within the 2.1 s of a kernel.
func TestAckRepeated(t *testing.T) {
	p := newRxePeer(t)
	p.send(0)
	p.want(p.acks(0, time.Hour), 0, 20*ms, 180*ms, 1460*ms)
	if p.A.dev.Next() != never {
		t.Errorf("something is due at %v", p.A.dev.Next())
	}
	if c := p.a.Counters(); c.AckRepeats != 3 || c.SentAcks != 4 {
		t.Errorf("%d of %d acknowledgements are repeats, want 3 of 4", c.AckRepeats, c.SentAcks)
	}
}

// TestAckRepeatedFromTheLast: what asks is another acknowledgement, with repeats of its own, and so is
// what comes once more.
func TestAckRepeatedFromTheLast(t *testing.T) {
	p := newRxePeer(t)
	p.send(0)
	p.want(p.acks(0, 100*ms), 0, 20*ms)
	p.send(101 * ms)
	p.want(p.acks(101*ms, 300*ms), 101*ms, 121*ms, 281*ms)
	p.psn = p.psn.Add(-1)
	p.send(301 * ms)
	p.want(p.acks(301*ms, time.Hour), 301*ms, 321*ms, 481*ms, 1761*ms)
}

// TestReadIsNotAcknowledged: rxe takes an acknowledgement of a READ for its answer. What comes once more
// before a READ is acknowledged up to the READ, and so are repeats.
func TestReadIsNotAcknowledged(t *testing.T) {
	p := newRxePeer(t)
	p.send(0)
	key, _ := p.A.expose(256)
	p.A.give(0, p.B.addr, &Packet{Op: ReadRequest, PKey: DefaultPKey, Dest: p.a.number, PSN: p.psn, AckReq: true, Key: key, Addr: 0x1000, Len: 8})
	if n := p.A.lose(0); n != 2 {
		t.Fatalf("%d packets, want an acknowledgement and an answer", n)
	}
	p.psn = p.psn.Add(-1)
	p.send(ms)
	p.want(p.acks(ms, time.Hour), ms, 21*ms, 181*ms, 1461*ms)
}

// TestNoAckRepeated: a refusal is not repeated, nor anything by a queue pair that has ended.
func TestNoAckRepeated(t *testing.T) {
	packet := func(p *rxePeer, change func(*Packet)) {
		pkt := Packet{Op: SendOnly, PKey: DefaultPKey, Dest: p.a.number, PSN: p.psn, AckReq: true}
		change(&pkt)
		p.A.give(0, p.B.addr, &pkt)
	}
	for name, then := range map[string]func(p *rxePeer){
		"a gap":   func(p *rxePeer) { packet(p, func(pkt *Packet) { pkt.PSN = p.psn.Add(1) }) },
		"the end": func(p *rxePeer) { p.a.Fail() },
		"close":   func(p *rxePeer) { p.must(p.a.Close()) },
	} {
		p := newRxePeer(t)
		p.send(0)
		if n := p.A.lose(0); n != 1 {
			t.Fatalf("%s: %d packets, want an acknowledgement", name, n)
		}
		then(p)
		p.A.lose(0) // what it is answered with
		for now := p.A.dev.Next(); now != never; now = p.A.dev.Next() {
			p.A.dev.Tick(now)
			if n := p.A.lose(now); n > 0 {
				t.Errorf("%s: %d packets at %v", name, n, now)
			}
		}
	}
}
