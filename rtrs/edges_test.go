package rtrs

import (
	"errors"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

const (
	beatAsk = uint32(rtrswire.ImmHeartbeat)
	beatAck = uint32(rtrswire.ImmHeartbeatAck)
)

// TestNoFaultNoLoss: where every heartbeat is answered no path is ever lost, each
// interval has one heartbeat and no more, on connection 0 and on those with requests
// alone, and nothing is told.
func TestNoFaultNoLoss(t *testing.T) {
	const (
		late   = 30 * ms
		rounds = 300
	)
	f, p := upClient(t, ClientConfig{Conns: 3, IOTimeout: time.Hour})
	f.events = nil
	f.c.Submit(0, &Req{Flow: 1}) // on connection 2, for as long as it takes
	held := one(t, f.take())
	asked := map[int]int{}
	round := func() {
		f.tick(200*ms - late)
		posts := f.posts
		f.posts = nil
		f.tick(late)
		for _, o := range append(posts, f.posts...) {
			if o.op.Imm != beatAsk || o.op.Kind != transport.OpWriteImm {
				t.Fatalf("at %v: %+v", f.now, o)
			}
			asked[o.conn]++
			p.Written(f.now+late, o.conn, transport.Placed{Known: true, Imm: beatAck})
		}
		f.posts = nil
	}
	for range rounds {
		round()
	}
	if asked[0] != rounds || asked[1] != 0 || asked[2] != rounds || len(asked) > 3 {
		t.Errorf("heartbeats by connection: %v; want %d on 0 and 2", asked, rounds)
	}
	if p.State() != Connected || len(f.hung) != 0 || f.downs != 0 || len(f.events) != 0 || p.Info().Stats.Latency != late {
		t.Errorf("%v, %d hung, %d downs, %+v, latency %v", p.State(), len(f.hung), f.downs, f.events, p.Info().Stats.Latency)
	}
	if err := f.answer(held, 0, 9); err != nil {
		t.Fatal(err)
	}
	clear(asked)
	for range rounds {
		round()
	}
	if asked[0] != rounds || asked[1]+asked[2] != 0 || p.Info().Stats.Reconnects != 0 {
		t.Errorf("without requests, heartbeats by connection: %v; want %d on 0", asked, rounds)
	}

	s := newFakeServer(t, smallServer)
	sp, ds := s.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	s.put(sp, 1, ds, 0, Write, nil) // which stays at the store
	s.events, s.posts = nil, nil
	for i := range rounds {
		s.tick(200 * ms)
		o := one(t, s.posts)
		if o.op.Imm != beatAsk || o.conn != 0 {
			t.Fatalf("in interval %d: %+v", i, o)
		}
		s.posts = nil
		sp.Written(s.now+late, 0, transport.Placed{Known: true, Imm: beatAck})
	}
	if sp.State() != Connected || len(s.hung) != 0 || len(s.downs) != 0 || len(s.events) != 0 {
		t.Errorf("the server's path is %v: %+v", sp.State(), s.events)
	}
}

// wantIdle checks that a client at rest has all its permits, keys and counters back.
func (f *fakeClient) wantIdle() {
	f.t.Helper()
	c := f.c
	if len(c.free) != c.Depth() || len(f.keys) != 0 || c.ghosts != 0 || len(c.epochs) != 0 || c.all.n+c.queue.n+c.admin.n != 0 {
		f.t.Errorf("%d of %d permits, %d keys, %d ghosts, %d epochs, %d+%d+%d requests are left",
			len(c.free), c.Depth(), len(f.keys), c.ghosts, len(c.epochs), c.all.n, c.queue.n, c.admin.n)
	}
	seen := map[uint32]bool{}
	for _, id := range c.free {
		if seen[id] || id >= c.chunks.Depth {
			f.t.Errorf("permit %d is free twice, or is none", id)
		}
		seen[id] = true
	}
	for i, r := range c.slots {
		if r != nil {
			f.t.Errorf("chunk %d has a request", i)
		}
	}
	for _, p := range c.paths {
		for i := range p.cons {
			if p.state == Connected && p.cons[i].flight != 0 || p.flight.n != 0 {
				f.t.Errorf("path %v, connection %d: %d requests, %d on the path", p.Remote, i, p.cons[i].flight, p.flight.n)
			}
		}
	}
}

// TestAllComesBack: permits, keys of memory, counters by connection: whatever way
// requests end.
func TestAllComesBack(t *testing.T) {
	f, p, q, _ := twoPaths(t, ClientConfig{Conns: 3, OnLoss: Error, IOTimeout: time.Second, LossTimeout: time.Second, ConnTimeout: time.Minute}, 0)
	fill := func() (rs []*Req) {
		for i := range 6 {
			r := &Req{Op: Op(i % 2), Flow: uint32(i), Usr: []byte("user-hdr"), Data: make([]byte, 512), Admin: i == 5}
			if err := f.c.Submit(f.now, r); err != nil {
				t.Fatal(err)
			}
			rs = append(rs, r)
		}
		return rs
	}
	answerAll := func() {
		for ps := f.take(); len(ps) > 0; ps = f.take() {
			for i, o := range ps {
				if o.op.Kind != transport.OpWriteImm {
					t.Fatalf("%+v", o)
				}
				if err := f.answer(o, uint16(i%2), 50); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	fill()
	answerAll()
	f.wantIdle()

	// A path is lost with requests on it, some of which fail by their limit before
	// it is fenced.
	rs := fill()
	f.take()
	p.Lost(f.now, 1, rdserr.ErrReset)
	for end := f.now + 3*time.Second; f.now < end; f.tick(100 * ms) {
		for _, conn := range []int{0, 1, 2} {
			q.Written(f.now, conn, transport.Placed{Known: true, Imm: beatAck})
		}
		if f.now > end-2500*ms && p.State() == Closing {
			p.Gone(f.now)
		}
	}
	for _, r := range rs {
		if r.at == stranded {
			t.Errorf("a request is %v after its limit", r.at)
		}
	}
	if q.State() == Closing {
		q.Gone(f.now)
	}
	for f.c.connected == 0 {
		f.tick(10 * ms)
		for _, x := range f.c.paths {
			if x.State() == Connecting {
				f.connect(x, fourChunks, ours, 7)
			}
		}
	}
	for len(f.c.epochs) > 0 {
		asked := 0
		for _, o := range f.take() {
			if m, err := rtrswire.ParseFence(o.bytes); err == nil && m.Type == rtrswire.FenceType {
				asked++
				if err := o.path.(*ClientPath).Received(f.now, 0, fenced(m), 0, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		if asked == 0 {
			t.Fatalf("%d epochs are left, and nobody is asked", len(f.c.epochs))
		}
	}
	f.take()
	f.wantIdle()
	fill()
	answerAll()
	f.wantIdle()
}

// TestServerGivesBack: after its last path a session leaves no region and no memory.
func TestServerGivesBack(t *testing.T) {
	f, p, r := atStore(t, smallServer)
	q, ds := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	e := r.Session
	for _, op := range []Op{Read, Write} {
		for id := range uint32(3) {
			if err := f.put(q, 1, ds, id+1, op, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range f.reqs[len(f.reqs)-3:] {
			f.s.Reply(f.now, r, 0, rdserr.ErrIO)
		}
		for _, o := range f.take() {
			if k, err := rtrswire.ParseRKeyRsp(o.bytes); err == nil {
				ds[k.BufID].Key = k.Key
			}
		}
	}
	if e.active != 1 || p.inflight != 1 || q.inflight != 0 || q.Info().Stats.Inflight != 0 {
		t.Errorf("%d requests of the session, %d and %d of the paths", e.active, p.inflight, q.inflight)
	}
	p.Lost(f.now, 0, rdserr.ErrReset)
	p.Gone(f.now)
	q.Lost(f.now, 0, rdserr.ErrReset)
	q.Gone(f.now)
	if p.State() != Draining || q.State() != Dead || f.live == 0 {
		t.Fatalf("%v, %v, %d bytes, while a request is at the store", p.State(), q.State(), f.live)
	}
	f.take()
	f.s.Reply(f.now, r, 0, nil)
	if len(f.take()) != 0 {
		t.Error("an answer on a path that is gone")
	}
	if f.live != 0 || len(f.regions) != 0 || e.active != 0 || p.State() != Dead || len(f.s.paths)+len(f.s.sessions) != 0 {
		t.Errorf("%d bytes and %d regions are left, %d requests, the path is %v, %d paths, %d sessions", f.live, len(f.regions), e.active, p.State(), len(f.s.paths), len(f.s.sessions))
	}
}

// TestOnlyTheirOwnAnswers: an answer on another connection than the request's is
// to nothing, and one to a request that was answered too.
func TestOnlyTheirOwnAnswers(t *testing.T) {
	for what, do := range map[string]func(f *fakeClient, o posted) error{
		"another connection": func(f *fakeClient, o posted) error { o.conn = 1; return f.answer(o, 0, 5) },
		"twice": func(f *fakeClient, o posted) error {
			if err := f.answer(o, 0, 5); err != nil {
				f.t.Fatal(err)
			}
			return f.answer(o, 0, 5)
		},
		"a chunk too many": func(f *fakeClient, o posted) error {
			o.op.Imm = 4 << f.c.chunks.MemBits()
			return f.answer(o, 0, 5)
		},
	} {
		f, p := upClient(t, ClientConfig{Conns: 3})
		f.c.Submit(0, &Req{Flow: 1})
		o := one(t, f.take())
		if err := do(f, o); !errors.Is(err, ErrProtocol) || p.State() != Closing {
			t.Errorf("%s: %v, the path is %v", what, err, p.State())
		}
	}
	// A read whose last byte is missing.
	f, _ := upClient(t, ClientConfig{})
	r := f.submit(Read, make([]byte, 64))
	f.short = 1
	if err := f.answer(one(t, f.take()), 0, 5); err != nil || !errors.Is(r.Err, ErrShortRead) {
		t.Errorf("%v; %v", err, r.Err)
	}
}

// TestLimitsWithNothingElseDue: heartbeats are far away, so each limit has to be
// armed for itself, and is kept to the tick.
func TestLimitsWithNothingElseDue(t *testing.T) {
	slow := ClientConfig{OnLoss: Error, IOTimeout: time.Second, LossTimeout: time.Second, HeartbeatEvery: time.Minute, QueueDepth: 1}
	f, p := upClient(t, slow)
	f.tick(5 * time.Second)
	f.submit(Write, nil)
	waits := f.submit(Write, nil) // for a permit
	f.tick(1999 * ms)
	if len(f.done) != 0 || p.State() != Connected {
		t.Fatalf("%d done, %v, before the limit", len(f.done), p.State())
	}
	f.tick(ms)
	if one(t, f.done) != waits || waits.Err != ErrTimeout || p.State() != Closing {
		t.Fatalf("%v, the path is %v", waits.Err, p.State())
	}

	// The session is lost, and there is nothing that would connect it.
	f, p = upClient(t, slow)
	r := f.submit(Write, nil)
	f.c.Disconnect(0, p)
	p.Gone(0)
	f.tick(999 * ms)
	if len(f.done) != 0 {
		t.Fatalf("too early: %v", r.Err)
	}
	f.tick(ms)
	if one(t, f.done) != r || r.Err != ErrNoPath {
		t.Fatalf("%d done", len(f.done))
	}

	// Time that was spent elsewhere counts.
	f, _ = upClient(t, slow)
	f.tick(1500 * ms)
	r = &Req{Since: 500 * ms}
	f.c.Submit(f.now, r)
	f.tick(1000 * ms)
	if r.Err != ErrTimeout && !r.expired {
		t.Error("a request that was held elsewhere for a second has all its time here")
	}
}

// TestFencesByAttempt: two lives of a path are two epochs; the answer about one is
// not about the other, nor is one that nobody asked for on that path.
func TestFencesByAttempt(t *testing.T) {
	f, p, q, _ := twoPaths(t, ClientConfig{}, 1)
	p.Lost(f.now, 0, rdserr.ErrReset)
	p.Gone(f.now)
	fence := fenceOf(t, one(t, f.take()))
	wrong := fence
	wrong.Attempt++
	if err := q.Received(f.now, 0, fenced(wrong), 0, false); err != nil {
		t.Fatal(err)
	}
	if len(f.take()) != 0 || len(f.c.epochs) != 1 {
		t.Fatal("sent again after the answer about another life")
	}
	r := f.add(3)
	f.connect(r, fourChunks, ours, 7)
	f.take()
	if err := r.Received(f.now, 0, fenced(fence), 0, false); err != nil {
		t.Fatal(err)
	}
	if len(f.take()) != 0 || len(f.c.epochs) != 1 {
		t.Fatal("sent again after an answer on a path that was not asked")
	}
	bad := rtrswire.Fence{Type: rtrswire.FencedType, Path: fence.Path, Attempt: fence.Attempt, Errno: 5}
	if err := q.Received(f.now, 0, bad.Append(nil), 0, false); err == nil || q.State() != Closing {
		t.Fatalf("%v to a fence that failed; the path is %v", err, q.State())
	}
	for _, o := range f.take() {
		if o.op.Kind == transport.OpWriteImm {
			t.Fatal("sent again after a fence that failed")
		}
	}
}

// TestRestedOnlyAtRest: the promise is not given with anything that might still be
// sent, nor a second time.
func TestRestedOnlyAtRest(t *testing.T) {
	rest := rtrswire.Notice{Type: rtrswire.RestType}.Append(nil)
	asks := func(f *fakeClient, p *ClientPath) uint16 {
		t.Helper()
		f.take()
		if err := p.Received(f.now, 0, rest, 0, false); err != nil {
			t.Fatal(err)
		}
		n, err := rtrswire.ParseNotice(one(t, f.take()).bytes)
		if err != nil || n.Type != rtrswire.RestedType {
			t.Fatalf("%+v, %v", n, err)
		}
		return n.Errno
	}
	// What was submitted before Resume is in no chunk yet, but will be.
	f := newFakeClient(t, ClientConfig{})
	f.onUp = func() {}
	p := f.add(1)
	f.connect(p, fourChunks, ours, 7)
	f.submit(Write, nil)
	if asks(f, p) == 0 {
		t.Error("rests with a request that waits for Resume")
	}
	// One path promised, and another is asked.
	f, p, q, _ := twoPaths(t, ClientConfig{}, 0)
	if asks(f, p) != 0 || asks(f, q) == 0 {
		t.Error("promised twice, or not at all")
	}
	// The first is lost with its promise, which binds until it is fenced.
	p.Lost(f.now, 0, rdserr.ErrReset)
	p.Gone(f.now)
	if asks(f, q) == 0 {
		t.Error("promised while an epoch is not fenced")
	}
}

// TestServerEdges: the largest request there can be, and one byte more.
func TestServerEdges(t *testing.T) {
	f := newFakeServer(t, ServerConfig{QueueDepth: 4, MaxIO: 4096, MaxHdr: 1024})
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	size := f.s.chunks.Size()
	usr := make([]byte, MaxUsr)
	m := rtrswire.Req{Type: rtrswire.Write, UsrLen: MaxUsr}
	b := m.Append(append(make([]byte, int(size)-len(m.Append(usr))), usr...))
	data := len(b) - len(m.Append(usr))
	if data > 4096 {
		b, data = b[data-4096:], 4096
	}
	if err := f.write(p, 1, ds, 0, 0, uint32(data+MaxUsr), b); err != nil {
		t.Fatal(err)
	}
	if r := one(t, f.reqs); len(r.Data) != data || len(r.Usr) != MaxUsr {
		t.Fatalf("%d bytes of data, %d of header", len(r.Data), len(r.Usr))
	}
	// To the last byte of the chunk.
	m = rtrswire.Req{Type: rtrswire.Read, SGCnt: 1, Desc: rtrswire.Desc{Addr: 1, Key: 2, Len: 64}}
	tail := m.Append(nil)
	at := size - uint32(len(tail))
	err := f.write(p, 1, ds, 1, at, at, tail)
	if err != nil || p.State() != Connected {
		t.Fatalf("a request that ends with its chunk: %v", err)
	}
	if err := p.Written(f.now, 1, transport.Placed{Known: true, Key: ds[2].Key, Addr: ds[2].Addr + uint64(at) + 1, N: len(tail), Imm: uint32(f.s.chunks.Req(2, at))}); err == nil || p.State() != Closing {
		t.Errorf("a byte beyond the chunk: %v, the path is %v", err, p.State())
	}
}

// TestAsManyFences: so many may wait, and no more; one that is asked for again is no other.
func TestAsManyFences(t *testing.T) {
	f, _, _ := atStore(t, smallServer)
	q, _ := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	m := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: 1}
	m.Path[0] = 1
	most := 4 * f.s.cfg.MaxPaths
	for i := range most {
		m.Attempt = uint16(1 + i)
		for range 2 {
			if err := q.Received(f.now, 0, m.Append(nil), 0, false); err != nil {
				t.Fatalf("fence %d: %v", i, err)
			}
		}
	}
	if n := f.s.waiting(); n != most {
		t.Errorf("%d fences wait; want %d", n, most)
	}
	m.Attempt++
	if err := q.Received(f.now, 0, m.Append(nil), 0, false); err == nil || q.State() != Closing {
		t.Errorf("%d fences wait: %v, the path is %v", most+1, err, q.State())
	}
}

// TestAttemptsWrap: attempt 0 comes after 65535, for fences and for lives that
// wait for older ones; a path does not fence its own life.
func TestAttemptsWrap(t *testing.T) {
	f := newFakeServer(t, smallServer)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 0xffff, addr: 1, name: "a"})
	f.put(p, 1, ds, 0, Write, nil)
	q, _ := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	n := f.join(someone{session: 1, path: 1, attempt: 0, addr: 1, name: "a", late: true})
	p.Gone(f.now)
	if n.State() != Fencing || p.State() != Draining {
		t.Fatalf("the newer life is %v, the older %v", n.State(), p.State())
	}
	f.fence(q, 1, 0xffff)
	if len(f.take()) != 0 || n.State() != Fencing {
		t.Fatalf("answered while the store is at it, or the newer life (%v) was taken for the older", n.State())
	}
	f.s.Reply(f.now, f.reqs[0], 0, nil)
	if n.State() != Connected {
		t.Fatalf("the newer life is %v", n.State())
	}
	f.take()
	f.fence(q, 1, 0) // it covers the life 0, whose links are closed
	if n.State() != Closing || len(f.take()) != 0 {
		t.Fatalf("attempt 0 is %v", n.State())
	}
	n.Gone(f.now)
	one(t, f.take())
	m := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: 1}
	m.Path[0] = 2
	if err := q.Received(f.now, 0, m.Append(nil), 0, false); err == nil {
		t.Error("a path fenced itself")
	}
}

// TestTrimWithNothingElseDue: heartbeats are far away, so each attempt has to be
// armed for itself; and chunks that are used again are given back again, as much as
// before.
func TestTrimWithNothingElseDue(t *testing.T) {
	f := newFakeServer(t, ServerConfig{QueueDepth: 4, MaxIO: 128 << 10, HeartbeatEvery: time.Minute, MissedLimit: 100})
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	asked := func() bool {
		for _, o := range f.take() {
			if m, err := rtrswire.ParseNotice(o.bytes); err == nil && m.Type == rtrswire.RestType {
				return true
			}
		}
		return false
	}
	within := func(what string, wait time.Duration) {
		t.Helper()
		if f.tick(wait - ms); asked() {
			t.Fatalf("%s: asked too early", what)
		}
		if f.tick(ms); !asked() {
			t.Fatalf("%s: not asked after %v", what, wait)
		}
	}
	answer := func(errno uint16) {
		t.Helper()
		if err := p.Received(f.now, 0, rtrswire.Notice{Type: rtrswire.RestedType, Errno: errno}.Append(nil), 0, false); err != nil {
			t.Fatal(err)
		}
	}
	for round := 1; round <= 3; round++ {
		for id := range uint32(4) {
			f.put(p, 1, ds, id, Write, make([]byte, 128<<10))
			f.s.Reply(f.now, f.reqs[len(f.reqs)-1], 0, nil)
			for _, o := range f.take() {
				if k, err := rtrswire.ParseRKeyRsp(o.bytes); err == nil {
					ds[k.BufID].Key = k.Key
				}
			}
		}
		within("used", 10*time.Second)
		answer(errnoBusy)
		within("the client was busy", 10*time.Second)
		answer(0)
		if want := round * 4 * (128<<10 + 8 + 4); f.trimmed != want {
			t.Fatalf("round %d: %d bytes were given back, want %d", round, f.trimmed, want)
		}
		if f.tick(30 * time.Second); asked() {
			t.Fatal("asked for nothing")
		}
	}
}

// TestAlwaysLate: a process that is late each time does what is due each second
// time, rather than never.
func TestAlwaysLate(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	s := newFakeServer(t, smallServer)
	sp, _ := s.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	for range 2 {
		f.now += time.Minute
		f.c.Tick(f.now)
		s.now += time.Minute
		s.s.Tick(s.now)
	}
	if p.State() != Closing || sp.State() != Closing {
		t.Errorf("after two minutes of silence, and two looks, the paths are %v and %v", p.State(), sp.State())
	}
	// An interval too late to the tick is late; a little less is not.
	for d, want := range map[time.Duration]int{399 * ms: 1, 400 * ms: 0} {
		f, _ := upClient(t, ClientConfig{})
		f.tick(0)
		f.now += d
		if f.c.Tick(f.now); len(f.posts) != want {
			t.Errorf("looked at after %v: %d heartbeats, want %d", d, len(f.posts), want)
		}
	}
}
