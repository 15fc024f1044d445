package roce

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unsafe"
)

// TestStates calls each transition in each state.
func TestStates(t *testing.T) {
	peer := Peer{Number: 99, Addr: netip.MustParseAddr("10.0.0.2"), MTU: 1024}
	h := newHost(t, "10.0.0.1", Config{})
	calls := []struct {
		to   State
		call func(*QP) error
	}{
		{Init, (*QP).Init},
		{RTR, func(q *QP) error { return q.Connect(peer) }},
		{RTS, func(q *QP) error { return q.Start(1) }},
		{Error, func(q *QP) error { q.Fail(); return nil }},
		{Reset, (*QP).Reset},
	}
	allowed := "RESET>INIT RESET>ERROR INIT>RTR INIT>ERROR INIT>RESET RTR>RTS RTR>ERROR RTS>ERROR ERROR>ERROR ERROR>RESET "
	for from := range numStates {
		for _, c := range calls {
			q := h.newQP(1, 1)
			for _, step := range calls { // RESET to ERROR, in their order
				if q.State() != from {
					if err := step.call(q); err != nil {
						t.Fatal(err)
					}
				}
			}
			err := c.call(q)
			ok := strings.Contains(" "+allowed, fmt.Sprintf(" %v>%v ", from, c.to))
			switch {
			case ok != (err == nil):
				t.Errorf("%v to %v: %v", from, c.to, err)
			case ok && q.State() != c.to, !ok && q.State() != from:
				t.Errorf("%v to %v ends in %v", from, c.to, q.State())
			case !ok && (!errors.Is(err, ErrState) || !strings.Contains(err.Error(), fmt.Sprintf("queue pair %d is in %v", q.number, from)) || !strings.Contains(err.Error(), ": call") && c.to != Init):
				t.Errorf("%v to %v says %q", from, c.to, err)
			}
		}
	}
}

func TestQueuePairRefusesValues(t *testing.T) {
	h := newHost(t, "10.0.0.1", Config{MTU: 2048})
	good := QPConfig{Sends: 1, Recvs: 1, RNR: RNR(0)}
	for _, change := range []func(*QPConfig){
		func(c *QPConfig) { c.Sends = 0 },
		func(c *QPConfig) { c.Sends = MaxQueue + 1 },
		func(c *QPConfig) { c.Recvs = 0 },
		func(c *QPConfig) { c.Recvs = MaxQueue + 1 },
		func(c *QPConfig) { c.RNR = NAKSequence },
	} {
		c := good
		change(&c)
		if _, err := h.dev.NewQP(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	addr := netip.MustParseAddr("10.0.0.2")
	for _, change := range []func(*Peer){
		func(p *Peer) { p.Number = 1 },
		func(p *Peer) { p.Number = 1 << 24 },
		func(p *Peer) { p.MTU = 128 },
		func(p *Peer) { p.MTU = 4096 }, // more than the device has
		func(p *Peer) { p.MTU = 1500 },
		func(p *Peer) { p.First = 1 << 24 },
		func(p *Peer) { p.Timeout = 32 },
		func(p *Peer) { p.Retry = 8 },
		func(p *Peer) { p.RNRRetry = 8 },
		func(p *Peer) { p.Addr = netip.Addr{} },
		func(p *Peer) { p.Addr = netip.MustParseAddr("fd00::2") },
	} {
		p := Peer{Number: 2, Addr: addr, MTU: 256}
		change(&p)
		q := h.newQP(1, 1)
		if err := q.Init(); err != nil {
			t.Fatal(err)
		}
		if err := q.Connect(p); !errors.Is(err, ErrConfig) || q.State() != Init {
			t.Errorf("%+v: %v, in %v", p, err, q.State())
		}
	}
	q := h.newQP(1, 1)
	for _, err := range []error{q.Init(), q.Connect(Peer{Number: 2, Addr: addr, MTU: 256})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Start(1 << 24); !errors.Is(err, ErrConfig) || q.State() != RTR {
		t.Errorf("a first packet of 25 bits: %v, in %v", err, q.State())
	}
	if err := q.Start(1<<24 - 1); err != nil || q.State() != RTS {
		t.Errorf("the last number as the first: %v, in %v", err, q.State())
	}
	p := newPair(t, 256, 1, 1)
	for _, w := range []Work{{}, {Op: OpRecv}, {Op: OpRecvWrite}, {Op: numOps}, {Op: OpRead}} {
		if err := p.a.Post(w); !errors.Is(err, ErrWork) {
			t.Errorf("%+v: %v", w, err)
		}
	}
}

// TestFlush: what is posted before and after the end completes once, and then the queue pair
// can be used again.
func TestFlush(t *testing.T) {
	s := setting{mtu: 256, sends: 3, recvs: 2}
	p := s.pair(t)
	for id := range uint64(2) {
		p.post(p.a, Work{ID: id, Op: OpSend, Piece: piece(make([]byte, 300))})
	}
	p.recv(p.a, 7, 0)
	p.turn(p.A, p.B) // B owes an answer until it is reset
	p.a.Fail()
	p.a.Fail() // once is enough
	p.post(p.a, Work{ID: 2, Op: OpSend})
	p.recv(p.a, 8, 0)
	if p.A.fill(0) {
		t.Error("something was sent after the end")
	}
	if err := p.a.Reset(); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "5 work requests") {
		t.Errorf("reset before all was polled: %v", err)
	}
	p.want(p.a, Completion{ID: 0, Status: Flushed, Op: OpSend}, Completion{ID: 1, Status: Flushed, Op: OpSend}, Completion{ID: 7, Op: OpRecv, Status: Flushed},
		Completion{ID: 2, Status: Flushed, Op: OpSend}, Completion{ID: 8, Op: OpRecv, Status: Flushed})
	p.b.Fail()
	for _, q := range []*QP{p.a, p.b} {
		p.must(q.Reset())
		if err := q.PostRecv(Recv{}); !errors.Is(err, ErrState) {
			t.Errorf("a receive in RESET: %v", err)
		}
		if err := q.Post(Work{Op: OpSend}); !errors.Is(err, ErrState) {
			t.Errorf("a send in RESET: %v", err)
		}
	}
	if p.A.fill(0) || p.B.fill(0) {
		t.Error("something was sent in RESET")
	}
	s.mtu = 512
	p.connect(s)
	got := p.recv(p.b, 1, 600)
	p.recv(p.b, 2, 0)
	if err := p.b.PostRecv(Recv{}); !errors.Is(err, ErrFull) {
		t.Errorf("a third receive of two: %v", err)
	}
	sent := random(600)
	p.post(p.a, Work{Op: OpSend, Piece: piece(sent)})
	p.run()
	p.want(p.a, Completion{Op: OpSend})
	p.want(p.b, Completion{ID: 1, Op: OpRecv, N: 600})
	if !bytes.Equal(got, sent) {
		t.Error("other bytes came")
	}
	if len(p.A.failed) != 0 {
		t.Errorf("failed by itself: %v", p.A.failed)
	}
}

// TestClose: a closed queue pair is nobody's, its number is not that of the next one, and the
// keys for it are gone.
func TestClose(t *testing.T) {
	p := newPair(t, 256, 4, 1)
	key, err := p.A.dev.Memory().Expose(make([]byte, 8), 0, RemoteWrite, p.a.Number())
	p.must(err)
	p.post(p.a, Work{Op: OpSend})
	var b Burst
	p.A.dev.Fill(0, &b)
	if err := p.a.Close(); !errors.Is(err, ErrState) {
		t.Errorf("closed while its burst is on its way: %v", err)
	}
	p.A.dev.Sent(&b)
	p.post(p.a, Work{Op: OpSend}) // so that it stands in line
	p.must(p.a.Close())
	p.must(p.a.Close())
	if err := p.a.Post(Work{Op: OpSend}); err == nil {
		t.Error("something is posted after the end")
	}
	if err := p.a.PostRecv(Recv{}); err == nil {
		t.Error("a receive is posted after the end")
	}
	if p.A.fill(0) || p.A.dev.Next() != never || p.A.dev.Memory().Revoke(key) {
		t.Error("something of it is left")
	}
	p.B.give(0, p.A.addr, &Packet{Op: SendOnly, PKey: DefaultPKey, Dest: p.b.number, PSN: firstA})
	p.turn(p.B, p.A) // a refusal for want of a receive
	if n := p.A.dev.Drops()[DropQueuePair]; n != 1 {
		t.Errorf("%d packets for no queue pair", n)
	}
	if q := p.A.newQP(1, 1); q.number == p.a.number {
		t.Error("its number is used again at once")
	}
	if c := p.A.dev.Counters(); c.SentPkts != 1 {
		t.Errorf("what it counted is lost: %+v", c)
	}
}

// TestStatusesHaveNames because operators read them.
func TestStatusesHaveNames(t *testing.T) {
	for s := range numStatuses {
		if s.String() == "" {
			t.Errorf("status %d has no name", s)
		}
	}
	for r := range NumDropReasons {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
	for o := OpSend; o < numOps; o++ {
		if o.String() == "" {
			t.Errorf("operation %d has no name", o)
		}
	}
}

// TestQPBytes: a queue pair is charged with what it takes, and hardly more: itself, its rings, and a
// place among those of its device, of which Go's maps may have twice as many as are in use.
func TestQPBytes(t *testing.T) {
	for _, cfg := range []QPConfig{{Sends: 1, Recvs: 1}, {Sends: 256, Recvs: 576}, {Sends: 256, Recvs: 4095}} {
		q := newHost(t, "10.0.0.1", Config{}).newQP(cfg.Sends, cfg.Recvs)
		rings := len(q.req.queue.slots)*int(unsafe.Sizeof(q.req.queue.slots[0])) + len(q.resp.queue.slots)*int(unsafe.Sizeof(q.resp.queue.slots[0])) +
			len(q.done.slots)*int(unsafe.Sizeof(q.done.slots[0]))
		place := 2 * int(unsafe.Sizeof(q.number)+unsafe.Sizeof(q))
		if n := int(unsafe.Sizeof(*q)) + rings + place; n > QPBytes(cfg) || n+n/8 < QPBytes(cfg) {
			t.Errorf("a queue pair of %d and %d takes %d bytes and is charged with %d", cfg.Sends, cfg.Recvs, n, QPBytes(cfg))
		} else {
			t.Logf("%d sends, %d receives: %d bytes", cfg.Sends, cfg.Recvs, n)
		}
	}
}
