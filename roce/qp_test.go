package roce

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"
)

// pair is two connected queue pairs and a net that loses nothing.
type pair struct {
	t    *testing.T
	a, b *QP
	wire []byte
}

const (
	numberA = 17
	numberB = 0xfffffe
	firstA  = PSN(psnMask - 3) // so that numbers wrap in each test
	firstB  = PSN(5)
)

func newPair(t *testing.T, mtu, sends, recvs int) *pair {
	t.Helper()
	p := &pair{t: t, wire: make([]byte, 0, maxPacket+icrcLen)}
	p.a, p.b = newQP(t, numberA, sends, recvs), newQP(t, numberB, sends, recvs)
	for _, err := range []error{
		p.a.Init(), p.b.Init(),
		p.a.Connect(Peer{Number: numberB, MTU: mtu, First: firstB}),
		p.b.Connect(Peer{Number: numberA, MTU: mtu, First: firstA}),
		p.a.Start(firstA), p.b.Start(firstB),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func newQP(t *testing.T, number uint32, sends, recvs int) *QP {
	t.Helper()
	q, err := NewQP(QPConfig{Number: number, Sends: sends, Recvs: recvs, RNR: RNR(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// carry moves one packet, through its bytes, and reports whether there was one.
func (p *pair) carry(from, to *QP) bool {
	var pkt, got Packet
	if !from.Next(&pkt) {
		return false
	}
	p.wire = AppendICRC(pkt.Append(p.wire[:0]), 0)
	if err := got.Parse(p.wire); err != nil {
		p.t.Fatalf("%v: %v", pkt.Op, err)
	}
	to.Receive(&got)
	return true
}

// run moves packets until there are none.
func (p *pair) run() {
	for p.carry(p.a, p.b) || p.carry(p.b, p.a) {
	}
}

// want polls q and fails unless these come, and no more.
func (p *pair) want(q *QP, want ...Completion) {
	p.t.Helper()
	for i := 0; ; i++ {
		got, ok := q.Poll()
		switch {
		case !ok && i == len(want):
			return
		case !ok:
			p.t.Fatalf("%d completions of %d, want %d", i, q.cfg.Number, len(want))
		case i == len(want) || got != want[i]:
			p.t.Fatalf("completion %d of %d is %+v, want those of %+v", i, q.cfg.Number, got, want)
		}
	}
}

// must fails the test on err.
func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestStates calls each transition in each state.
func TestStates(t *testing.T) {
	peer := Peer{Number: numberB, MTU: 1024}
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
			q := newQP(t, numberA, 1, 1)
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
			case !ok && (!errors.Is(err, ErrState) || !strings.Contains(err.Error(), fmt.Sprintf("queue pair 17 is in %v", from)) || !strings.Contains(err.Error(), ": call") && c.to != Init):
				t.Errorf("%v to %v says %q", from, c.to, err)
			}
		}
	}
}

func TestQueuePairRefusesValues(t *testing.T) {
	good := QPConfig{Number: 2, Sends: 1, Recvs: 1, RNR: RNR(0)}
	for _, change := range []func(*QPConfig){
		func(c *QPConfig) { c.Number = 1 },
		func(c *QPConfig) { c.Number = 1 << 24 },
		func(c *QPConfig) { c.Sends = 0 },
		func(c *QPConfig) { c.Sends = MaxQueue + 1 },
		func(c *QPConfig) { c.Recvs = 0 },
		func(c *QPConfig) { c.Recvs = MaxQueue + 1 },
		func(c *QPConfig) { c.RNR = NAKSequence },
	} {
		c := good
		change(&c)
		if _, err := NewQP(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, p := range []Peer{
		{Number: 1, MTU: 256}, {Number: 1 << 24, MTU: 256}, {Number: 2, MTU: 128}, {Number: 2, MTU: 8192},
		{Number: 2, MTU: 1500}, {Number: 2, MTU: 256, First: 1 << 24},
	} {
		q := newQP(t, numberA, 1, 1)
		if err := q.Init(); err != nil {
			t.Fatal(err)
		}
		if err := q.Connect(p); !errors.Is(err, ErrConfig) || q.State() != Init {
			t.Errorf("%+v: %v, in %v", p, err, q.State())
		}
	}
	q := newQP(t, numberA, 1, 1)
	for _, err := range []error{q.Init(), q.Connect(Peer{Number: 2, MTU: 256})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Start(1 << 24); !errors.Is(err, ErrConfig) || q.State() != RTR {
		t.Errorf("a first packet of 25 bits: %v, in %v", err, q.State())
	}
}

// TestSend sends messages of all sizes about whole packets both ways, with each MTU.
func TestSend(t *testing.T) {
	for mtu := 256; mtu <= MaxPayload; mtu *= 2 {
		p := newPair(t, mtu, 4, 4)
		for i, n := range []int{0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu + 2, 300 * mtu} {
			from, to := p.a, p.b
			if i%2 == 1 {
				from, to = p.b, p.a
			}
			sent, got := make([]byte, n), make([]byte, n+1)
			rand.New(rand.NewSource(int64(n))).Read(sent)
			w := Work{ID: uint64(i), Op: OpSend, Piece: [3][]byte{sent}, Solicited: i%4 == 1}
			if i%3 == 0 {
				w.Op = OpSendImm
				w.Imm = 0x01020304
			}
			p.must(to.PostRecv(Recv{ID: 100, Data: got}))
			p.must(from.Post(w))
			p.run()
			p.want(from, Completion{ID: w.ID, Op: w.Op})
			p.want(to, Completion{ID: 100, Op: OpRecv, N: n, HasImm: w.Op == OpSendImm, Imm: w.Imm, Solicited: w.Solicited})
			if !bytes.Equal(sent, got[:n]) || got[n] != 0 {
				t.Errorf("MTU %d: %d bytes came as others", mtu, n)
			}
		}
		if s := p.a.Stats(); s != (Stats{}) || p.b.Stats() != s {
			t.Errorf("MTU %d: a net that loses nothing: %+v, %+v", mtu, s, p.b.Stats())
		}
	}
}

// TestWindow lets no answer through: a message stops after the window, and the acknowledgement
// in it that was asked for opens it again.
func TestWindow(t *testing.T) {
	p := newPair(t, 256, 2, 2)
	p.must(p.b.PostRecv(Recv{Data: make([]byte, 1000*256)}))
	p.must(p.a.Post(Work{Op: OpSend, Piece: [3][]byte{make([]byte, 1000*256)}}))
	n := 0
	for p.carry(p.a, p.b) {
		n++
	}
	if n != window {
		t.Fatalf("%d packets without an acknowledgement, want %d", n, window)
	}
	if !p.carry(p.b, p.a) || p.carry(p.b, p.a) {
		t.Error("not exactly one acknowledgement for a window")
	}
	p.run()
	p.want(p.a, Completion{Op: OpSend})
	p.want(p.b, Completion{Op: OpRecv, N: 256000})
}

// TestOneAckForMany has one acknowledgement complete all messages before it.
func TestOneAckForMany(t *testing.T) {
	p := newPair(t, 256, 3, 3)
	for i := range 3 {
		p.must(p.b.PostRecv(Recv{ID: uint64(i), Data: make([]byte, 9)}))
		p.must(p.a.Post(Work{ID: uint64(i), Op: OpSend, Piece: [3][]byte{make([]byte, i)}}))
	}
	if err := p.a.Post(Work{Op: OpSend}); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth send of three: %v", err)
	}
	if err := p.b.PostRecv(Recv{}); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth receive of three: %v", err)
	}
	for p.carry(p.a, p.b) {
	}
	var ack Packet
	if !p.b.Next(&ack) || ack.Op != Acknowledge || ack.Syndrome != AckUnlimited || ack.MSN != 3 || ack.PSN != firstA.Add(2) || ack.Dest != numberA {
		t.Fatalf("acknowledged by %+v", ack)
	}
	p.a.Receive(&ack)
	p.want(p.a, Completion{ID: 0, Op: OpSend}, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Op: OpSend})
	p.want(p.b, Completion{ID: 0, Op: OpRecv}, Completion{ID: 1, Op: OpRecv, N: 1}, Completion{ID: 2, Op: OpRecv, N: 2})
	p.a.Receive(&ack) // what is not under way is not acknowledged
	p.want(p.a)
	if p.a.Stats().Dropped != 1 {
		t.Errorf("an old acknowledgement: %+v", p.a.Stats())
	}
}

// TestRefused has each way in which the peer refuses a message. A message before it is done,
// the one behind it is flushed.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		second int // bytes of the receive for the second message, of 600; -1: there is none
		at     int // the packet that is changed: the second message has 1 to 3
		change func(*Packet)
		want   Status
		peer   State
	}{
		{"too long", 599, 0, nil, RemoteInvalid, Error},
		{"no receive", -1, 0, nil, RNRExceeded, RTS},
		{"a packet is missing", 600, 1, func(p *Packet) { p.PSN = p.PSN.Add(1) }, RetryExceeded, RTS},
		{"another opcode", 600, 1, func(p *Packet) { p.Op = SendMiddle }, RemoteInvalid, Error},
		{"not done yet", 600, 1, func(p *Packet) { p.Op = WriteOnly }, RemoteInvalid, Error},
		{"nothing at the end", 600, 3, func(p *Packet) { p.Payload = nil }, RemoteInvalid, Error},
		{"with a key", 600, 1, func(p *Packet) { p.Op = SendOnlyInval }, RemoteInvalid, Error},
		{"short packet", 600, 1, func(p *Packet) { p.Payload = p.Payload[1:] }, RemoteInvalid, Error},
	} {
		p := newPair(t, 256, 3, 3)
		p.must(p.b.PostRecv(Recv{ID: 1, Data: make([]byte, 8)}))
		if c.second >= 0 {
			p.must(p.b.PostRecv(Recv{ID: 2, Data: make([]byte, c.second)}))
		}
		for id := range uint64(3) {
			p.must(p.a.Post(Work{ID: id + 1, Op: OpSend, Piece: [3][]byte{make([]byte, []int{8, 600, 5}[id])}}))
		}
		for i := 0; ; i++ {
			var pkt Packet
			if !p.a.Next(&pkt) {
				break
			}
			if i == c.at && c.change != nil {
				c.change(&pkt)
			}
			p.b.Receive(&pkt)
		}
		p.run()
		p.want(p.a, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Status: c.want, Op: OpSend}, Completion{ID: 3, Status: Flushed, Op: OpSend})
		if p.a.State() != Error || p.b.State() != c.peer {
			t.Errorf("%s: %v and %v, want %v and %v", c.name, p.a.State(), p.b.State(), Error, c.peer)
		}
		recvs := []Completion{{ID: 1, Op: OpRecv, N: 8}}
		switch {
		case c.second == 599:
			recvs = append(recvs, Completion{ID: 2, Op: OpRecv, Status: LocalLength})
		case c.peer == Error:
			recvs = append(recvs, Completion{ID: 2, Op: OpRecv, Status: Flushed})
		}
		p.want(p.b, recvs...)
		if got := p.b.Stats().NotReady; (got == 1) != (c.want == RNRExceeded) {
			t.Errorf("%s: %d messages without a receive", c.name, got)
		}
	}
}

// TestRefusals has all that a negative acknowledgement may say.
func TestRefusals(t *testing.T) {
	for s, want := range map[Syndrome]Status{
		NAKSequence: RetryExceeded, NAKInvalidRequest: RemoteInvalid, NAKRemoteAccess: RemoteAccess,
		NAKRemoteOperation: RemoteOperation, RNR(0): RNRExceeded, 0x64: RemoteInvalid,
	} {
		p := newPair(t, 256, 1, 1)
		p.must(p.a.Post(Work{Op: OpSend}))
		var pkt Packet
		p.a.Next(&pkt)
		p.a.Receive(&Packet{Op: Acknowledge, PKey: DefaultPKey, Dest: numberA, PSN: pkt.PSN, Syndrome: s})
		p.want(p.a, Completion{Status: want, Op: OpSend})
	}
}

// TestDuplicates: what comes again is acknowledged again and not received again, and a gap is
// reported once.
func TestDuplicates(t *testing.T) {
	p := newPair(t, 256, 2, 2)
	p.must(p.b.PostRecv(Recv{Data: make([]byte, 8)}))
	p.must(p.b.PostRecv(Recv{Data: make([]byte, 8)}))
	p.must(p.a.Post(Work{Op: OpSend, Piece: [3][]byte{[]byte("once")}}))
	var pkt, ack, none Packet
	p.a.Next(&pkt)
	for range 2 {
		p.b.Receive(&pkt)
		if !p.b.Next(&ack) || ack.Syndrome != AckUnlimited || ack.PSN != pkt.PSN || ack.MSN != 1 {
			t.Fatalf("answered by %+v", ack)
		}
	}
	p.want(p.b, Completion{Op: OpRecv, N: 4})
	missing := pkt.PSN.Add(1)
	for ahead := 2; ahead < 4; ahead++ {
		pkt.PSN = firstA.Add(ahead)
		p.b.Receive(&pkt)
	}
	if !p.b.Next(&ack) || ack.Syndrome != NAKSequence || ack.PSN != missing || p.b.Next(&none) {
		t.Errorf("a gap is answered by %+v, or twice", ack)
	}
	pkt.PSN = missing
	p.b.Receive(&pkt)
	p.b.Next(&ack)
	pkt.PSN = missing.Add(2)
	p.b.Receive(&pkt)
	if !p.b.Next(&ack) || ack.Syndrome != NAKSequence || ack.PSN != missing.Add(1) {
		t.Errorf("the next gap is answered by %+v", ack)
	}
	if s := p.b.Stats(); s.Duplicates != 1 || s.Gaps != 3 {
		t.Errorf("counted %+v", s)
	}
}

// TestNotForThisQueuePair drops what belongs to another, or came too early or too late.
func TestNotForThisQueuePair(t *testing.T) {
	p := newPair(t, 256, 1, 1)
	for _, pkt := range []Packet{
		{Op: SendOnly, PKey: DefaultPKey, Dest: numberA, PSN: firstA},
		{Op: SendOnly, PKey: 0x8001, Dest: numberB, PSN: firstA},
		{Op: ReadOnly, PKey: DefaultPKey, Dest: numberB, PSN: firstA},
		{Op: DatagramSendOnly, PKey: DefaultPKey, Dest: numberB, PSN: firstA},
		{Op: Acknowledge, PKey: DefaultPKey, Dest: numberB, PSN: firstB},
	} {
		p.b.Receive(&pkt)
	}
	p.b.Fail()
	p.b.Receive(&Packet{Op: SendOnly, PKey: DefaultPKey, Dest: numberB, PSN: firstA})
	var pkt Packet
	if s := p.b.Stats(); s != (Stats{Dropped: 6}) || p.b.Next(&pkt) {
		t.Errorf("counted %+v, or answered", s)
	}
}

// TestFlush: what is posted before and after the end completes once, and then the queue pair
// can be used again.
func TestFlush(t *testing.T) {
	p := newPair(t, 256, 3, 2)
	for id := range uint64(2) {
		p.must(p.a.Post(Work{ID: id, Op: OpSend, Piece: [3][]byte{make([]byte, 300)}}))
	}
	p.must(p.a.PostRecv(Recv{ID: 7}))
	var pkt Packet
	p.a.Next(&pkt)
	p.b.Receive(&pkt) // which owes an answer until it is reset
	p.a.Fail()
	p.a.Fail() // once is enough
	p.must(p.a.Post(Work{ID: 2, Op: OpSend}))
	p.must(p.a.PostRecv(Recv{ID: 8}))
	if p.a.Next(&pkt) {
		t.Errorf("%v was sent after the end", pkt.Op)
	}
	if err := p.a.Reset(); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "5 work requests") {
		t.Errorf("reset before all was polled: %v", err)
	}
	p.want(p.a, Completion{ID: 0, Status: Flushed, Op: OpSend}, Completion{ID: 1, Status: Flushed, Op: OpSend}, Completion{ID: 7, Op: OpRecv, Status: Flushed},
		Completion{ID: 2, Status: Flushed, Op: OpSend}, Completion{ID: 8, Op: OpRecv, Status: Flushed})
	p.b.Fail()
	for _, q := range []*QP{p.a, p.b} {
		p.must(q.Reset())
		if q.Next(&pkt) {
			t.Errorf("%v was sent in RESET", pkt.Op)
		}
		if err := q.PostRecv(Recv{}); !errors.Is(err, ErrState) {
			t.Errorf("a receive in RESET: %v", err)
		}
		p.must(q.Init())
		if err := q.Post(Work{Op: OpSend}); !errors.Is(err, ErrState) {
			t.Errorf("a send in INIT: %v", err)
		}
	}
	p.must(p.b.PostRecv(Recv{ID: 1, Data: make([]byte, 600)}))
	p.must(p.a.Connect(Peer{Number: numberB, MTU: 512, First: 9}))
	p.must(p.b.Connect(Peer{Number: numberA, MTU: 512, First: 8}))
	p.must(p.a.Start(8))
	p.must(p.b.PostRecv(Recv{ID: 2}))
	if err := p.b.PostRecv(Recv{}); !errors.Is(err, ErrFull) {
		t.Errorf("a third receive of two, the first of them in INIT: %v", err)
	}
	p.must(p.a.Post(Work{Op: OpSend, Piece: [3][]byte{make([]byte, 600)}}))
	p.run()
	p.want(p.a, Completion{Op: OpSend})
	p.want(p.b, Completion{ID: 1, Op: OpRecv, N: 600})
}

// TestQueuePairDoesNotAllocate covers both ends of a message of several packets.
func TestQueuePairDoesNotAllocate(t *testing.T) {
	p := newPair(t, 1024, 2, 2)
	sent, got := make([]byte, 5000), make([]byte, 5000)
	var pkt Packet
	n := testing.AllocsPerRun(100, func() {
		if p.b.PostRecv(Recv{Data: got}) != nil || p.a.Post(Work{Op: OpSend, Piece: [3][]byte{sent}}) != nil {
			t.Fatal("full")
		}
		for p.a.Next(&pkt) {
			p.b.Receive(&pkt)
		}
		for p.b.Next(&pkt) {
			p.a.Receive(&pkt)
		}
		_, okA := p.a.Poll()
		_, okB := p.b.Poll()
		if !okA || !okB {
			t.Fatal("not complete")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a message", n)
	}
}

// TestStatusesHaveNames because operators read them.
func TestStatusesHaveNames(t *testing.T) {
	for s := range numStatuses {
		if s.String() == "" {
			t.Errorf("status %d has no name", s)
		}
	}
}
