package roce

import (
	"math/rand"
	"testing"
	"time"
)

// TestLossCostsLittle moves 64 MiB over a round trip of 50 µs, in virtual time, and loses one
// packet of a thousand: it takes at most twice as long, because gaps are told of at once, what is
// lost at the end is sent again soon, and little is sent twice.
func TestLossCostsLittle(t *testing.T) {
	const messages = 1024
	run := func(loss float64) (took time.Duration, c Counters) {
		p := setting{mtu: 4096, sends: messages, recvs: messages, peer: Peer{Timeout: 19, Retry: 7}}.pair(t)
		rnd := rand.New(rand.NewSource(1))
		key, _ := p.B.expose(1 << 16)
		data := make([]byte, 1<<16)
		for range messages {
			p.recv(p.b, 0, 0)
			p.post(p.a, Work{Op: OpWriteImm, Piece: piece(data), Key: key, Addr: 0x1000})
		}
		done := 0
		move := func(from, to *host) (any bool) {
			for len(from.out) > 0 || from.fill(p.now) {
				any = true
				if rnd.Float64() < loss {
					from.out = from.out[1:]
				} else {
					p.carry(from, to)
				}
			}
			return any
		}
		for done < messages {
			moved := move(p.A, p.B)
			if moved = move(p.B, p.A) || moved; moved {
				p.now += 50 * time.Microsecond
			} else {
				p.now = max(p.now, p.A.dev.Next())
			}
			p.A.dev.Tick(p.now)
			for _, ok := p.a.Poll(); ok; _, ok = p.a.Poll() {
				done++
			}
		}
		gaps := p.A.dev.Counters().GapsClosed
		if loss > 0 && gaps == 0 {
			t.Error("no gap was closed")
		}
		c = p.a.Counters()
		if err := p.a.Close(); err != nil {
			t.Fatal(err)
		}
		if all := p.A.dev.Counters().GapsClosed; all != gaps {
			t.Errorf("%d gaps were closed, and %d counted when the queue pair has gone", gaps, all)
		}
		return p.now, c
	}
	good, _ := run(0)
	bad, c := run(0.001)
	t.Logf("%v without loss, %v with; %d packets of %d are needed, %d timeouts", good, bad, messages*16, c.SentPkts, c.AckTimeouts)
	if bad > 2*good || c.SentPkts > messages*16*11/10 {
		t.Errorf("%v without loss, %v with; %d packets of %d are needed: %+v", good, bad, c.SentPkts, messages*16, c)
	}
}
