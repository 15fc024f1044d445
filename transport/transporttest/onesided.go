package transporttest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// OneSided is a provider of one-sided links under test.
type OneSided struct {
	A, B  transport.OneSidedProvider // A dials, B listens
	AddrA netip.AddrPort             // where A dials from
	AddrB netip.AddrPort             // where B listens
	// Step lets a simulated world go on a little. nil: it is a real one, with
	// threads of its own.
	Step func()
}

// RunOneSided runs the suite of one-sided links.
func RunOneSided(t *testing.T, p OneSided) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, OneSided)
	}{
		{"PrivateDataIsShown", testPrivate},
		{"RejectedWithReason", testReject},
		{"AnsweredOnceAndLater", testAnswer},
		{"DialFails", testOneSidedDialFails},
		{"WritesArePlaced", testWrites},
		{"SendsArrive", testSends},
		{"SentWhenAnswered", testSentWhenAnswered},
		{"SentIsNotReadAnyMore", testSent},
		{"OperationsKeepTheirOrder", testOpsOrder},
		{"AnswersInTheHandler", testPingPong},
		{"NobodyReads", testNobodyReads},
		{"WrongMemoryEndsTheLink", testAccess},
		{"GuardIsAsked", testGuard},
		{"RevokedByThePeer", testInvalidate},
		{"GrantRevokedByThePeer", testInvalidateGrant},
		{"Filled", testFilled},
		{"KeysAreNotGivenAgain", testKeys},
		{"NewKeyForTheSameAddress", testGrantAt},
		{"BeyondTheLimits", testLimits},
		{"HandlerFails", testHandlerFails},
		{"Close", testClose},
		{"CloseUnstarted", testCloseUnstarted},
		{"ManyThreadsPost", testManyPost},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, p) })
	}
}

// until waits for what cond reports.
func (p *OneSided) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(limit) {
			t.Fatalf("%s did not come about in 10 s", what)
		}
		p.step()
	}
}

func (p *OneSided) step() {
	if p.Step != nil {
		p.Step()
	} else {
		time.Sleep(20 * time.Microsecond)
	}
}

// grant has the peer of s know a key for mem.
func (p *OneSided) grant(t *testing.T, s, peer *side, mem []byte, at uint64) (key uint32, addr uint64) {
	t.Helper()
	key, addr = s.l.Grant(mem, at)
	before := peer.count()
	s.post(&transport.Op{Kind: transport.OpSend})
	p.until(t, "a word of the peer", func() bool { return peer.count() == before+1 })
	return key, addr
}

// need skips a test of what B cannot do.
func (p *OneSided) need(t *testing.T, can bool, name string) {
	t.Helper()
	if !can {
		t.Skipf("elsewhere: this provider lacks: %s", name)
	}
}

// caps are those of the side that listens, which most tests look at.
func (p *OneSided) caps() transport.OneSidedCaps { return p.B.OneSidedCaps() }

// written is the event of a write with immediate of n bytes.
func (p *OneSided) written(key uint32, addr uint64, n int, imm uint32) event {
	if !p.caps().Places {
		return event{what: "Written", n: n, imm: imm}
	}
	return event{what: "Written", known: true, key: key, addr: addr, n: n, imm: imm}
}

// denied reports whether err is the end of B's link after op, which is not allowed.
func (p *OneSided) denied(err error, op *transport.Op) bool {
	if !p.caps().Faults {
		return err != nil
	}
	a, ok := errors.AsType[*transport.AccessError](err)
	return ok && a.Key == op.Key && a.Addr == op.Addr
}

// revoke ends key of s, and waits until it is idle. It returns how much was filled.
func (p *OneSided) revoke(t *testing.T, s *side, key uint32) (filled int) {
	t.Helper()
	filled, how := s.d.Take(key)
	switch how {
	case transport.Busy:
		t.Errorf("key %#x is busy, and nobody writes", key)
	case transport.Pending:
		if filled != transport.Unfilled {
			t.Errorf("%d bytes of a key are filled that may still be written", filled)
		}
		p.until(t, "Revoked", func() (told bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			filled, told = s.revoked[key]
			return told
		})
	}
	return filled
}

// event is one call of a handler.
type event struct {
	what   string // Written, Received, Invalidated
	known  bool
	key    uint32
	addr   uint64
	n      int
	imm    uint32
	has    bool
	data   []byte
	filled int
}

// side is one end of a link, and a handler that records.
type side struct {
	l transport.OneSided
	d transport.Domain

	mu     sync.Mutex // guards what follows
	in     bool       // between Begin and End
	events []event
	// revoked is what Revoked has told, by key.
	revoked map[uint32]int
	err     error
	closed  int
	sent    int
	on      func(e event) error // with mu held
	onEnd   func()
}

func (s *side) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in || s.closed > 0 {
		panic("Begin inside of Begin, or after Closed")
	}
	s.in = true
}

func (s *side) End() {
	s.mu.Lock()
	if !s.in {
		panic("End without Begin")
	}
	s.in = false
	f := s.onEnd
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

func (s *side) event(e event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.in || s.closed > 0 {
		panic(e.what + " outside of Begin and End, or after Closed")
	}
	s.events = append(s.events, e)
	if s.on != nil {
		return s.on(e)
	}
	return nil
}

func (s *side) Sent(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.in || s.closed > 0 || n <= 0 {
		panic("Sent outside of Begin and End, or of nothing")
	}
	s.sent += n
}

func (s *side) Written(w transport.Placed) error {
	return s.event(event{what: "Written", known: w.Known, key: w.Key, addr: w.Addr, n: w.N, imm: w.Imm})
}

func (s *side) Received(data []byte, imm uint32, hasImm bool) error {
	return s.event(event{what: "Received", n: len(data), imm: imm, has: hasImm, data: bytes.Clone(data)})
}

func (s *side) Invalidated(key uint32, filled int) error {
	return s.event(event{what: "Invalidated", key: key, filled: filled})
}

func (s *side) Revoked(key uint32, filled int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.revoked[key]; twice || !s.in || s.closed > 0 {
		panic("Revoked twice, outside of Begin and End, or after Closed")
	}
	if s.revoked == nil {
		s.revoked = map[uint32]int{}
	}
	s.revoked[key] = filled
	return nil
}

func (s *side) Closed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in {
		panic("Closed between Begin and End")
	}
	s.err = err
	s.closed++
}

func (s *side) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

func (s *side) told() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

func (s *side) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed > 0
}

func (s *side) post(ops ...*transport.Op) {
	for _, op := range ops {
		s.l.Post(op)
	}
	s.l.Flush()
}

// wantClosed waits for the end and returns why.
func (p *OneSided) wantClosed(t *testing.T, s *side) error {
	t.Helper()
	p.until(t, "Closed", s.over)
	for range 20 {
		p.step() // a second one would be seen
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != 1 || s.err == nil {
		t.Errorf("Closed %d times, with %v", s.closed, s.err)
	}
	return s.err
}

// listen makes a listener whose requests answer takes.
func (p *OneSided) listen(t *testing.T, answer func(q transport.ConnRequest)) transport.Listener {
	t.Helper()
	l, err := p.B.ListenOneSided(p.AddrB, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func (p *OneSided) dial(to netip.AddrPort, d transport.Domain, private []byte) (transport.OneSided, []byte, error) {
	return p.A.DialOneSided(context.Background(), p.AddrA, to, d, attr, private)
}

// link makes a link that is not started.
func (p *OneSided) link(t *testing.T) (x, y *side) {
	t.Helper()
	x, y = &side{d: p.A.NewDomain()}, &side{d: p.B.NewDomain()}
	accepted := make(chan transport.OneSided, 1)
	ln := p.listen(t, func(q transport.ConnRequest) {
		l, err := q.Accept(y.d, attr, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- l
	})
	var err error
	if x.l, _, err = p.dial(ln.Addr(), x.d, nil); err != nil {
		t.Fatal(err)
	}
	y.l = <-accepted
	t.Cleanup(func() {
		for _, s := range []*side{x, y} {
			s.l.Close()
			s.d.Close()
		}
	})
	return x, y
}

func (p *OneSided) started(t *testing.T) (x, y *side) {
	t.Helper()
	x, y = p.link(t)
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	return x, y
}

// attr is enough for every test: what is more has to wait.
var attr = transport.LinkAttr{Sends: 64, Recvs: 64}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*7) + byte(i>>8)
	}
	return b
}

// shows reports whether got is what the other end has shown: zeros may stand behind it.
func shows(got, want []byte) bool {
	return bytes.HasPrefix(got, want) && len(bytes.Trim(got[len(want):], "\x00")) == 0
}

func testPrivate(t *testing.T, p OneSided) {
	for _, n := range []int{0, 1, transport.MaxConnect, transport.MaxAccept} {
		show, answer := pattern(min(n, transport.MaxConnect), 1), pattern(n, 2)
		var from, at netip.AddrPort
		var shown []byte
		accepted := make(chan transport.OneSided, 1)
		ln := p.listen(t, func(q transport.ConnRequest) {
			shown, from, at = q.Private(), q.RemoteAddr(), q.LocalAddr()
			if _, err := q.Accept(p.B.NewDomain(), attr, make([]byte, transport.MaxAccept+1)); err == nil {
				t.Error("more than can be shown was accepted")
			}
			l, err := q.Accept(p.B.NewDomain(), attr, answer)
			if err != nil {
				t.Error(err)
			}
			accepted <- l
		})
		l, rsp, err := p.dial(ln.Addr(), p.A.NewDomain(), show)
		if err != nil {
			t.Fatal(err)
		}
		k := <-accepted
		if !shows(shown, show) || !shows(rsp, answer) {
			t.Errorf("%d bytes: %x was shown as %x, %x answered as %x", n, show, shown, answer, rsp)
		}
		if k.RemoteAddr() != from || k.LocalAddr() != at || from.Addr() != p.AddrA.Addr() || at.Addr() != p.AddrB.Addr() {
			t.Errorf("the request came from %v at %v, its link is from %v at %v", from, at, k.RemoteAddr(), k.LocalAddr())
		}
		if l.LocalAddr().Addr() != p.AddrA.Addr() || l.RemoteAddr().Addr() != p.AddrB.Addr() {
			t.Errorf("the link is from %v to %v", l.LocalAddr(), l.RemoteAddr())
		}
		l.Close()
		k.Close()
		ln.Close()
	}
	if _, _, err := p.dial(p.AddrB, p.A.NewDomain(), make([]byte, transport.MaxConnect+1)); err == nil {
		t.Error("a dial that shows more than can be shown")
	}
}

func testReject(t *testing.T, p OneSided) {
	for _, n := range []int{0, 56, transport.MaxReject, transport.MaxReject + 1} {
		why := pattern(n, 3)
		ln := p.listen(t, func(q transport.ConnRequest) { q.Reject(why) })
		_, _, err := p.dial(ln.Addr(), p.A.NewDomain(), []byte{1})
		var r *transport.Refused
		if !errors.As(err, &r) || !shows(r.Private, why[:min(n, transport.MaxReject)]) || r.Remote.Addr() != p.AddrB.Addr() {
			t.Errorf("rejected with %d bytes: %v", n, err)
		}
		ln.Close()
	}
}

func testAnswer(t *testing.T, p OneSided) {
	var q transport.ConnRequest
	asked := make(chan transport.ConnRequest, 1)
	ln := p.listen(t, func(r transport.ConnRequest) { asked <- r })
	d := p.B.NewDomain()
	var l transport.OneSided
	answer := func() {
		q = <-asked
		var err error
		if l, err = q.Accept(d, attr, []byte{7}); err != nil {
			t.Error(err)
		}
		q.Reject([]byte{8})
		if _, err := q.Accept(d, attr, nil); err == nil {
			t.Error("accepted twice")
		}
	}
	done := make(chan struct{})
	if p.Step == nil {
		go func() { answer(); close(done) }() // ends when the request has come
	} else {
		ln.Close()
		ln = p.listen(t, func(r transport.ConnRequest) { asked <- r; answer(); close(done) })
	}
	k, rsp, err := p.dial(ln.Addr(), p.A.NewDomain(), nil)
	if err != nil || !shows(rsp, []byte{7}) {
		t.Fatalf("answered %x, %v", rsp, err)
	}
	<-done
	x, y := &side{l: k}, &side{l: l}
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	x.post(&transport.Op{Kind: transport.OpSend, Data: []byte("still here")})
	p.until(t, "a send", func() bool { return y.count() == 1 })
	k.Close()
	l.Close()
	p.wantClosed(t, y)
}

func testOneSidedDialFails(t *testing.T, p OneSided) {
	ln := p.listen(t, func(q transport.ConnRequest) { q.Reject(nil) })
	ln.Close()
	if _, _, err := p.dial(ln.Addr(), p.A.NewDomain(), nil); err == nil {
		t.Error("connected to nobody")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := p.A.DialOneSided(ctx, p.AddrA, ln.Addr(), p.A.NewDomain(), attr, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("dialled with a context that is over: %v", err)
	}
	if _, _, err := p.A.DialOneSided(context.Background(), p.AddrA, ln.Addr(), foreign{}, attr, nil); err == nil {
		t.Error("dialled in a domain of another provider")
	}
}

type foreign struct{}

func (foreign) Register([]byte) (uint32, uint64)        { return 1, 1 }
func (foreign) Revoke(uint32) transport.Revocation      { return transport.Idle }
func (foreign) Take(uint32) (int, transport.Revocation) { return 0, transport.Idle }
func (foreign) Close()                                  {}
