package roce

import (
	"errors"
	"testing"
	"time"
)

// lose takes what h sends and gives it to nobody.
func (h *host) lose(now time.Duration) (n int) {
	for h.fill(now) {
	}
	n = len(h.out)
	h.out = nil
	return n
}

// TestRefusals has all that a negative acknowledgement may say for good. A message before it
// is done, the one behind it is flushed.
func TestRefusals(t *testing.T) {
	for s, want := range map[Syndrome]Status{
		NAKInvalidRequest: RemoteInvalid, NAKRemoteAccess: RemoteAccess, NAKRemoteOperation: RemoteOperation,
	} {
		p := newPair(t, 256, 3, 1)
		for id := range uint64(3) {
			p.post(p.a, Work{ID: id, Op: OpSend})
		}
		p.A.lose(0)
		p.A.give(0, p.B.addr, &Packet{Op: Acknowledge, PKey: DefaultPKey, Dest: p.a.number, PSN: firstA.Add(1), Syndrome: s})
		p.want(p.a, Completion{Op: OpSend}, Completion{ID: 1, Status: want, Op: OpSend}, Completion{ID: 2, Status: Flushed, Op: OpSend})
		var e *StatusError
		if !errors.As(p.A.failed[p.a], &e) || *e != (StatusError{OpSend, want}) {
			t.Errorf("%v: told %v", s, p.A.failed[p.a])
		}
	}
	p := newPair(t, 256, 1, 1)
	p.post(p.a, Work{Op: OpSend})
	p.A.lose(0)
	p.A.give(0, p.B.addr, &Packet{Op: Acknowledge, PKey: DefaultPKey, Dest: p.a.number, PSN: firstA, Syndrome: 0x64})
	p.want(p.a)
	if c := p.a.Counters(); c.BadSyndrome != 1 || p.a.State() != RTS {
		t.Errorf("a syndrome that nobody knows: %v, %+v", p.a.State(), c)
	}
}

// TestRefusedBehindARead: a READ whose answer was lost was not refused, but what was posted
// behind it; nobody knows whether the peer did the READ.
func TestRefusedBehindARead(t *testing.T) {
	p := readers(t, 2)
	key, _ := p.B.expose(256)
	p.post(p.a, Work{ID: 1, Op: OpRead, Piece: piece(make([]byte, 8)), Key: key, Addr: 0x1000})
	p.post(p.a, Work{ID: 2, Op: OpSend})
	p.A.lose(0)
	p.A.give(0, p.B.addr, &Packet{Op: Acknowledge, PKey: DefaultPKey, Dest: p.a.number, PSN: firstA.Add(1), Syndrome: NAKRemoteOperation})
	p.want(p.a, Completion{ID: 1, Op: OpRead, Status: Flushed}, Completion{ID: 2, Op: OpSend, Status: RemoteOperation})
	var e *StatusError
	if !errors.As(p.A.failed[p.a], &e) || e.Op != OpSend {
		t.Errorf("told %v", p.A.failed[p.a])
	}
}

// TestRoundTripMeasured: by the packet that asked, once the peer has received that one, and not
// by what it says of those before.
func TestRoundTripMeasured(t *testing.T) {
	var r retrier
	r.ask(0, 5)
	if r.progress(time.Millisecond, 5); r.trip != 0 || !r.timing {
		t.Errorf("a round trip of %v before packet 5 was received", r.trip)
	}
	if r.progress(3*time.Millisecond, 6); r.trip != 3*time.Millisecond || r.timing {
		t.Errorf("a round trip of %v, want 3ms", r.trip)
	}
}

// TestRefused has each way in which a message is refused by its receiver.
func TestRefused(t *testing.T) {
	send := Work{ID: 2, Op: OpSend, Piece: piece(make([]byte, 600))}
	write := Work{ID: 2, Op: OpWrite, Piece: piece(make([]byte, 600)), Addr: 0x1000}
	for _, c := range []struct {
		name   string
		w      Work
		recv   int           // bytes of the receive for it
		at     int           // the packet that is changed, from 0 on
		change func(*Packet) // likewise
		rights Rights        // of the key; 0: all
		want   Status        // at the sender
		why    error         // at the receiver
	}{
		{"too long", send, 599, -1, nil, 0, RemoteInvalid, nil},
		{"another opcode", send, 600, 0, func(p *Packet) { p.Op = SendMiddle }, 0, RemoteInvalid, ErrProtocol},
		{"another kind", send, 600, 1, func(p *Packet) { p.Op = WriteMiddle }, 0, RemoteInvalid, ErrProtocol},
		{"a new one before the end", send, 600, 1, func(p *Packet) { p.Op = SendFirst }, 0, RemoteInvalid, ErrProtocol},
		{"atomic", send, 600, 0, func(p *Packet) { p.Op, p.Payload = FetchAdd, nil }, 0, RemoteInvalid, ErrProtocol},
		{"nothing at the end", send, 600, 2, func(p *Packet) { p.Payload = nil }, 0, RemoteInvalid, ErrProtocol},
		{"short packet", send, 600, 0, func(p *Packet) { p.Payload = p.Payload[1:] }, 0, RemoteInvalid, ErrProtocol},
		{"long packet", send, 2600, 0, func(p *Packet) { p.Payload = make([]byte, 257) }, 0, RemoteInvalid, ErrProtocol},
		{"a key that is none", send, 600, 2, func(p *Packet) { p.Op = SendLastInval }, 0, RemoteAccess, ErrKey},
		{"a write's length is short", write, 0, 0, func(p *Packet) { p.Len = 256 }, 0, RemoteInvalid, ErrProtocol},
		{"a write's length is long", write, 0, 0, func(p *Packet) { p.Len++ }, 0, RemoteInvalid, ErrProtocol},
		{"a write's length is absurd", write, 0, 0, func(p *Packet) { p.Len = MaxMessage + 1 }, 0, RemoteInvalid, ErrProtocol},
		{"a write's length is too long for its memory", write, 0, 0, func(p *Packet) { p.Len = MaxMessage }, 0, RemoteAccess, ErrRange},
		{"a write without length", write, 0, 0, func(p *Packet) { p.Len = 0 }, 0, RemoteInvalid, ErrProtocol},
		{"a write ends early", write, 0, 1, func(p *Packet) { p.Op = WriteLast }, 0, RemoteInvalid, ErrProtocol},
		{"a write does not end", write, 0, 2, func(p *Packet) { p.Op, p.Payload = WriteMiddle, make([]byte, 256) }, 0, RemoteInvalid, ErrProtocol},
		{"before the region", write, 0, 0, func(p *Packet) { p.Addr-- }, 0, RemoteAccess, ErrRange},
		{"behind the region", write, 0, 0, func(p *Packet) { p.Addr += 41 }, 0, RemoteAccess, ErrRange},
		{"at the end of all addresses", write, 0, 0, func(p *Packet) { p.Addr = 1<<64 - 300 }, 0, RemoteAccess, ErrRange},
		{"another key", write, 0, 0, func(p *Packet) { p.Key++ }, 0, RemoteAccess, ErrKey},
		{"key 0", write, 0, 0, func(p *Packet) { p.Key = 0 }, 0, RemoteAccess, ErrKey},
		{"only to be read", write, 0, -1, nil, RemoteRead, RemoteAccess, ErrRights},
	} {
		p := newPair(t, 256, 3, 3)
		if c.rights == 0 {
			c.rights = RemoteWrite
		}
		mem := make([]byte, 800)
		key, err := p.B.dev.Memory().Expose(mem[100:740], 0x1000, c.rights, AnyQP)
		p.must(err)
		c.w.Key = key
		p.recv(p.b, 1, 8)
		p.post(p.a, Work{ID: 1, Op: OpSend, Piece: piece(make([]byte, 8))})
		p.run()
		p.want(p.b, Completion{ID: 1, Op: OpRecv, N: 8})
		p.recv(p.b, 2, c.recv)
		for i := range c.w.Piece[0] {
			c.w.Piece[0][i] = 1
		}
		p.post(p.a, c.w)
		p.post(p.a, Work{ID: 3, Op: OpSend})
		var pkt Packet
		for i := 0; p.A.next(0, &pkt); i++ {
			if i == c.at {
				c.change(&pkt)
			}
			p.B.give(0, p.A.addr, &pkt)
		}
		p.run()
		p.want(p.a, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Status: c.want, Op: c.w.Op}, Completion{ID: 3, Status: Flushed, Op: OpSend})
		if p.a.State() != Error || p.b.State() != Error || c.why != nil && !errors.Is(p.B.failed[p.b], c.why) {
			t.Errorf("%s: %v and %v, told %v, want %v", c.name, p.a.State(), p.b.State(), p.B.failed[p.b], c.why)
		}
		want := Completion{ID: 2, Op: OpRecv, Status: Flushed}
		if c.name == "too long" {
			want.Status = LocalLength
		}
		p.want(p.b, want)
		for i, v := range mem {
			// A write that is refused at its first packet writes nothing, and none writes around.
			if v != 0 && (i < 100 || i >= 700 || c.at <= 0 && c.name != "a write's length is long") {
				t.Errorf("%s: byte %d was written", c.name, i)
				break
			}
		}
	}
}

// TestNotReady: a message without a receive waits as long as the receiver said, as often as
// the sender was told.
func TestNotReady(t *testing.T) {
	for _, retries := range []uint8{0, 2, 7} {
		p := setting{mtu: 256, sends: 4, recvs: 4, peer: Peer{RNRRetry: retries}}.pair(t)
		p.post(p.a, Work{ID: 1, Op: OpSend})
		p.post(p.a, Work{ID: 2, Op: OpSend})
		p.run()
		if retries == 7 {
			for range 1000 {
				p.wait(RNR(time.Millisecond).RNRDelay())
			}
			if c := p.b.Counters(); p.a.State() != RTS || c.SendRNRErr < 900 || p.a.Counters().AckTimeouts != 0 {
				t.Errorf("for ever: %v, %+v", p.a.State(), c)
			}
			p.recv(p.b, 1, 0)
			p.recv(p.b, 2, 0)
			p.wait(RNR(time.Millisecond).RNRDelay())
			p.want(p.a, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Op: OpSend})
			continue
		}
		for range retries {
			p.wait(RNR(time.Millisecond).RNRDelay() - 1)
			p.want(p.a)
			p.wait(1)
		}
		p.want(p.a, Completion{ID: 1, Op: OpSend, Status: RNRExceeded}, Completion{ID: 2, Op: OpSend, Status: Flushed})
		if c := p.a.Counters(); c.RcvdRNRErr != uint64(retries)+1 || c.RetryRNRExceededErr != 1 || p.b.Counters().SendRNRErr != uint64(retries)+1 {
			t.Errorf("%d retries: %+v", retries, c)
		}
	}
	// A write with immediate waits at its last packet, of which nothing is done before.
	p := setting{mtu: 256, sends: 4, recvs: 4, peer: Peer{RNRRetry: 7}}.pair(t)
	key, mem := p.B.expose(600)
	p.post(p.a, Work{Op: OpWriteImm, Piece: piece([]byte{512: 1, 599: 1}), Key: key, Addr: 0x1000})
	p.run()
	if mem[512] != 0 {
		t.Error("written before there was a receive")
	}
	p.recv(p.b, 1, 0)
	p.wait(5 * time.Millisecond)
	p.want(p.a, Completion{Op: OpWriteImm})
	if mem[512] != 1 || p.a.Counters().SentPkts != 4 {
		t.Errorf("byte 512 is %d, %d packets were sent", mem[512], p.a.Counters().SentPkts)
	}
}

// TestNeverReady: a receiver that is ready in a moment, and never is, is asked less and less often,
// and again after a moment when it was ready once.
func TestNeverReady(t *testing.T) {
	p := setting{mtu: 256, sends: 4, recvs: 4, peer: Peer{RNRRetry: 7}}.pair(t)
	p.b.cfg.RNR = RNR(time.Microsecond) // the shortest there is
	p.post(p.a, Work{ID: 1, Op: OpSend})
	p.run()
	p.wait(time.Second)
	if n := p.b.Counters().SendRNRErr; n < 900 || n > 1010 {
		t.Errorf("asked %d times within a second, want each millisecond", n)
	}
	p.recv(p.b, 1, 0)
	p.wait(time.Millisecond)
	p.want(p.a, Completion{ID: 1, Op: OpSend})
	p.post(p.a, Work{ID: 2, Op: OpSend})
	p.run()
	p.recv(p.b, 2, 0)
	p.wait(20 * time.Microsecond)
	p.want(p.a, Completion{ID: 2, Op: OpSend})
}

// TestTimeout: what is lost is sent again, within 20 ms, then later and later with jitter, and
// given up when the peer was silent for as long as it said, and as often.
func TestTimeout(t *testing.T) {
	for _, c := range []struct {
		timeout, retry uint8
		patience       time.Duration
		min, max       time.Duration
	}{
		{19, 7, 0, 17 * time.Second, 18 * time.Second}, // as a kernel
		{19, 0, 0, 2100 * time.Millisecond, 2200 * time.Millisecond},
		{14, 3, 0, 260 * time.Millisecond, 350 * time.Millisecond},
		{1, 7, 0, 2 * time.Second, 6 * time.Second}, // seven timeouts of ours
		{0, 7, 0, 30 * time.Second, 31 * time.Second},
		{31, 7, 0, 30 * time.Second, 31 * time.Second},
		{19, 7, 5 * time.Second, 5 * time.Second, 6 * time.Second},
	} {
		p := setting{mtu: 256, sends: 4, recvs: 4, cfg: Config{Patience: c.patience}, peer: Peer{Timeout: c.timeout, Retry: c.retry}}.pair(t)
		p.post(p.a, Work{ID: 1, Op: OpSend, Piece: piece(make([]byte, 300))})
		p.post(p.a, Work{ID: 2, Op: OpSend})
		if n := p.A.lose(0); n != 3 {
			t.Fatalf("%d packets", n)
		}
		var gaps []time.Duration
		last, now := time.Duration(0), time.Duration(0)
		for p.a.State() == RTS && now < time.Minute {
			now = p.A.dev.Next()
			p.A.dev.Tick(now)
			if p.A.lose(now) > 0 {
				gaps = append(gaps, now-last)
				last = now
			}
		}
		if gaps[0] < firstTimeout || gaps[0] > 20*time.Millisecond || len(gaps) < int(c.retry) {
			t.Errorf("%+v: sent again after %v", c, gaps)
		}
		for i := 1; i < len(gaps); i++ {
			if g := gaps[i]; g > maxTimeout*5/4 || g < min(gaps[i-1]*3/2, maxTimeout*3/4) && i < len(gaps)-1 {
				t.Errorf("%+v: sent again after %v", c, gaps)
				break
			}
		}
		if now < c.min || now > c.max {
			t.Errorf("%+v: given up after %v", c, now)
		}
		p.want(p.a, Completion{ID: 1, Op: OpSend, Status: RetryExceeded}, Completion{ID: 2, Op: OpSend, Status: Flushed})
		if p.a.Counters().RetryExceededErr != 1 {
			t.Errorf("%+v: counted %+v", c, p.a.Counters())
		}
	}
}

// TestTimeoutFollowsTheRoundTrip: near peers are asked again soon, far ones are waited for.
func TestTimeoutFollowsTheRoundTrip(t *testing.T) {
	for _, trip := range []time.Duration{10 * time.Microsecond, 900 * time.Microsecond, 30 * time.Millisecond, 300 * time.Millisecond} {
		p := setting{mtu: 256, sends: 4, recvs: 64, peer: Peer{Timeout: 19, Retry: 7}}.pair(t)
		round := func() {
			p.recv(p.b, 0, 0)
			p.post(p.a, Work{Op: OpSend, Quiet: true})
			p.turn(p.A, p.B)
			// Half of it there and half of it back; what is sent again in between is a duplicate.
			for end := p.now + trip; p.now < end; {
				p.now = min(end, p.A.dev.Next())
				p.A.dev.Tick(p.now)
				p.turn(p.A, p.B)
			}
			p.turn(p.B, p.A)
			p.b.Poll()
		}
		for range 30 {
			round()
		}
		before := p.a.Counters().AckTimeouts
		if trip < 5*time.Millisecond && before > 0 {
			t.Errorf("round trip %v: %d timeouts", trip, before)
		}
		for range 10 {
			round()
		}
		if n := p.a.Counters().AckTimeouts - before; n > 0 {
			t.Errorf("round trip %v: %d timeouts when it is known", trip, n)
		}
		p.post(p.a, Work{Op: OpSend})
		p.A.lose(p.now)
		wait := p.A.dev.Next() - p.now
		for p.A.dev.Tick(p.A.dev.Next()); p.a.Counters().AckTimeouts == before; p.A.dev.Tick(p.A.dev.Next()) {
			wait = p.A.dev.Next() - p.now
		}
		if wait < trip || trip < time.Millisecond && wait > 20*time.Millisecond || wait > 4*trip+20*time.Millisecond {
			t.Errorf("round trip %v: sent again after %v", trip, wait)
		}
	}
}

// TestNotReadySendsLittle: whoever is not ready, again and again, has a packet each time and no
// window, whether it takes something in between or not; and when it is ready all goes as before in
// a few round trips.
func TestNotReadySendsLittle(t *testing.T) {
	for _, takes := range []int{0, 1} {
		p := setting{mtu: 4096, sends: 1, recvs: 1, peer: Peer{RNRRetry: retryForEver}}.pair(t)
		p.post(p.a, Work{Op: OpWrite, Piece: piece(make([]byte, 1<<20)), Addr: 0x1000})
		now, at := time.Duration(0), firstA
		p.A.lose(now)
		sent := 0
		say := func(psn PSN, s Syndrome) {
			p.A.give(now, p.B.addr, &Packet{Op: Acknowledge, PKey: DefaultPKey, Dest: p.a.number, PSN: psn, Syndrome: s})
			sent += p.A.lose(now)
		}
		const rounds = 10
		for range rounds {
			for range takes {
				say(at, AckUnlimited)
				at = at.Add(1)
			}
			say(at, RNR(1))
			now = p.A.dev.Next()
			p.A.dev.Tick(now)
			sent += p.A.lose(now)
		}
		if most := rounds * (1 + 2*takes); sent > most {
			t.Errorf("%d packets taken between refusals: %d were sent for %d refusals, want %d at most", takes, sent, rounds, most)
		}
		for turn := range 9 {
			now += 50 * time.Microsecond
			at = p.a.req.next
			if say(at.Add(-1), AckUnlimited); p.a.req.next.Sub(at) == firstWindow {
				break
			} else if turn == 8 {
				t.Errorf("%d packets are under way after %d round trips", p.a.req.next.Sub(at), turn)
			}
		}
	}
}

// TestGoBack: a lost packet is sent again at once when the receiver says so, with all behind
// it, and once, whatever else is said about it.
func TestGoBack(t *testing.T) {
	p := newPair(t, 256, 4, 4)
	got := p.recv(p.b, 0, 20*256)
	sent := random(20 * 256)
	p.post(p.a, Work{Op: OpSend, Piece: piece(sent)})
	var nak Packet
	var pkt Packet
	for i := 0; p.A.next(0, &pkt); i++ {
		if i != 3 {
			p.B.give(0, p.A.addr, &pkt)
		}
	}
	if !p.B.next(0, &nak) || nak.Syndrome != NAKSequence || nak.PSN != firstA.Add(3) {
		t.Fatalf("answered by %+v", nak)
	}
	p.A.give(0, p.B.addr, &nak)
	n := 0
	for p.A.next(0, &pkt) {
		if pkt.PSN != firstA.Add(3+n) {
			t.Fatalf("packet %#x is sent again, want %#x", pkt.PSN, firstA.Add(3+n))
		}
		n++
		p.A.give(0, p.B.addr, &nak) // it comes again and again
		if n == 1 {
			continue // and is lost again
		}
		p.B.give(0, p.A.addr, &pkt)
	}
	if n != 17 || p.a.Counters().CompleterRetryErr != 1 {
		t.Errorf("%d packets are sent again, counted %+v", n, p.a.Counters())
	}
	p.wait(100 * time.Millisecond)
	p.want(p.a, Completion{Op: OpSend})
	p.want(p.b, Completion{Op: OpRecv, N: len(got)})
	if string(got) != string(sent) {
		t.Error("other bytes")
	}
}

// TestLateAck: an acknowledgement of what is about to be sent again spares it.
func TestLateAck(t *testing.T) {
	p := newPair(t, 256, 8, 8)
	for id := range uint64(5) {
		p.recv(p.b, id, 300)
		p.post(p.a, Work{ID: id, Op: OpSend, Piece: piece(make([]byte, 300))})
	}
	p.turn(p.A, p.B)
	var ack Packet
	p.B.next(0, &ack)
	p.now = p.A.dev.Next()
	p.A.dev.Tick(p.now)
	ack.PSN = ack.PSN.Add(-3) // of the first three and a half
	p.A.give(p.now, p.B.addr, &ack)
	var pkt Packet
	for i := 0; p.A.next(p.now, &pkt); i++ {
		if want := firstA.Add(7 + i); pkt.PSN != want || pkt.Op != []Opcode{SendLast, SendFirst, SendLast}[i] {
			t.Fatalf("%v %#x is sent again, want %#x", pkt.Op, pkt.PSN, want)
		}
		p.B.give(p.now, p.A.addr, &pkt)
	}
	p.run()
	p.want(p.a, Completion{ID: 0, Op: OpSend}, Completion{ID: 1, Op: OpSend}, Completion{ID: 2, Op: OpSend}, Completion{ID: 3, Op: OpSend}, Completion{ID: 4, Op: OpSend})
}
