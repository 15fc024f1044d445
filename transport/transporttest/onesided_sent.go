package transporttest

import (
	"bytes"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

// testSentWhenAnswered checks that operations which were answered count as sent, all of
// them, at the latest soon after the last answer.
func testSentWhenAnswered(t *testing.T, p OneSided) {
	x, y := p.link(t)
	y.on = func(e event) error {
		y.l.Post(&transport.Op{Kind: transport.OpWriteImm, Imm: e.imm})
		return nil
	}
	y.onEnd = y.l.Flush
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	const n = 500
	for i := range uint32(n) {
		x.l.Post(&transport.Op{Kind: transport.OpSendImm, Imm: i, Data: pattern(int(i)*7, byte(i))})
		x.l.Flush()
		if i%10 == 0 {
			p.until(t, "an answer", func() bool { return x.count() == int(i)+1 })
			p.until(t, "what was answered is sent", func() bool { return x.told() == int(i)+1 })
		}
	}
	p.until(t, "all answers", func() bool { return x.count() == n })
	p.until(t, "all is sent", func() bool { return x.told() == n })
	for range 20 {
		p.step()
	}
	if x.told() != n {
		t.Errorf("%d operations are sent, and %d were posted", x.told(), n)
	}
}

// testSent checks that memory may be used again when its operation was sent, and that this
// is told when it was not so at the last event: the peer has said something before it read.
func testSent(t *testing.T, p OneSided) {
	x, y := p.link(t)
	x.l.Start(x, transport.MaxSend)
	const n, size = 100, 128 << 10
	mem := make([]byte, n*size)
	key, addr := y.d.Register(mem)
	var data [n][]byte
	for i := range data {
		data[i] = pattern(size, byte(i))
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr + uint64(i)*size, Data: data[i], Imm: uint32(i)})
	}
	x.l.Flush()
	y.post(&transport.Op{Kind: transport.OpSend})
	p.until(t, "the peer's word", func() bool { return x.count() == 1 })
	used := 0
	reuse := func() bool {
		for k := x.told(); used < k; used++ {
			clear(data[used])
		}
		return used == n
	}
	if reuse() {
		t.Fatalf("%d bytes are sent, though nobody reads", len(mem))
	}
	y.l.Start(y, transport.MaxSend)
	p.until(t, "all is sent", reuse)
	p.until(t, "all has come", func() bool { return y.count() == n })
	for i := range n {
		if !bytes.Equal(mem[i*size:][:size], pattern(size, byte(i))) {
			t.Fatalf("write %d has bytes that its memory got after it was sent", i)
		}
	}
}
