package rtrs

import (
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// twoPaths is a client with two paths and n writes on the first.
func twoPaths(t *testing.T, cfg ClientConfig, n int) (f *fakeClient, p, q *ClientPath, rs []*Req) {
	t.Helper()
	f, p = upClient(t, cfg)
	for range n {
		rs = append(rs, f.submit(Write, []byte("data")))
	}
	q = f.add(2)
	f.connect(q, fourChunks, ours, 7)
	f.take()
	return f, p, q, rs
}

func fenced(f rtrswire.Fence) []byte {
	f.Type = rtrswire.FencedType
	return f.Append(nil)
}

// fenceOf reads the FENCE that o is.
func fenceOf(t *testing.T, o posted) rtrswire.Fence {
	t.Helper()
	f, err := rtrswire.ParseFence(o.bytes)
	if err != nil || f.Type != rtrswire.FenceType || o.op.Kind != transport.OpSend || o.conn != 0 {
		t.Fatalf("no fence but %+v: %v", o, err)
	}
	return f
}

// TestFailover: what was in flight on a path that is lost goes on elsewhere,
// but only when its links are closed and the server has ended that epoch;
// meanwhile other requests run.
func TestFailover(t *testing.T) {
	f, p, q, rs := twoPaths(t, ClientConfig{}, 2)
	p.Lost(0, 1, rdserr.ErrReset)
	if ps := f.take(); len(ps) != 0 || one(t, f.hung) != p || f.downs != 0 {
		t.Fatalf("before the links are closed: %+v", ps)
	}
	p.Gone(0)
	fence := fenceOf(t, one(t, f.take()))
	if fence.Path != p.uuid || fence.Attempt != 1 || f.c.Stats().Stranded != 2 {
		t.Fatalf("%+v", fence)
	}
	other := f.submit(Write, nil)
	o := one(t, f.take())
	if err := f.answer(o, 0, 9); err != nil || other.Err != nil || o.path != q {
		t.Fatal(err)
	}
	if err := q.Received(0, 0, fenced(fence), 0, false); err != nil {
		t.Fatal(err)
	}
	ps := f.take()
	if len(ps) != 2 || ps[0].path != q || string(ps[0].bytes[:4]) != "data" {
		t.Fatalf("%+v", ps)
	}
	for i, o := range ps {
		if err := f.answer(o, 0, 9); err != nil || f.done[i+1] != rs[i] || rs[i].Err != nil {
			t.Fatal(err, rs[i].Err)
		}
	}
	if s := f.c.Stats(); s.Retried != 2 || s.Fences != 1 || q.Info().Stats.Failovers != 2 || s.Stranded != 0 {
		t.Errorf("%+v", s)
	}
	if e, ok := lastEvent(f.events, EventFailover); !ok || e.N != 2 || e.Client != p {
		t.Errorf("%+v", e)
	}
	// An answer that comes again is to nothing.
	if err := q.Received(0, 0, fenced(fence), 0, false); err != nil {
		t.Error(err)
	}
}

// TestFenceAnotherWay: the path that a fence was sent on is lost too: it is sent
// on the next.
func TestFenceAnotherWay(t *testing.T) {
	f, p, q, _ := twoPaths(t, ClientConfig{}, 1)
	r := f.add(3)
	f.connect(r, fourChunks, ours, 7)
	f.take()
	p.Lost(0, 1, rdserr.ErrReset)
	p.Gone(0)
	o := one(t, f.take())
	if o.path != q {
		t.Fatal("not on the second path")
	}
	q.Lost(0, 1, rdserr.ErrReset)
	o2 := one(t, f.take())
	if o2.path != r || fenceOf(t, o2) != fenceOf(t, o) {
		t.Fatalf("%+v", o2)
	}
}

// TestReconnectFences: the same path comes back first; the server connects it
// only when its older life has ended.
func TestReconnectFences(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	r := f.submit(Write, nil)
	f.take()
	p.Lost(0, 0, rdserr.ErrReset)
	p.Gone(0)
	for p.State() != Connecting {
		f.tick(ms)
	}
	f.connect(p, fourChunks, ours, 7)
	ps := f.take()
	if o := ps[len(ps)-1]; o.op.Kind != transport.OpWriteImm || len(f.c.epochs) != 0 {
		t.Fatalf("%+v", ps)
	} else if err := f.answer(o, 0, 1); err != nil || r.Err != nil || p.Info().Stats.Failovers != 0 || f.c.Stats().Retried != 1 {
		t.Fatal(err, r.Err)
	}
}

// TestGhostHoldsEverything: a write that failed by its limit may still happen,
// so nothing is sent until its epoch is fenced; a read may not harm.
func TestGhostHoldsEverything(t *testing.T) {
	for _, op := range []Op{Write, Read} {
		f, p := upClient(t, ClientConfig{OnLoss: Error, IOTimeout: time.Second, LossTimeout: time.Second, ConnTimeout: time.Minute})
		a := f.submit(op, make([]byte, 64))
		f.take()
		alive := func(d time.Duration) {
			for end := f.now + d; f.now < end; f.tick(100 * ms) {
				p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
			}
		}
		alive(1100 * ms)
		if p.State() != Connected || f.c.Stats().Timeouts != 1 {
			t.Fatalf("%v after the I/O timeout, %d passed", p.State(), f.c.Stats().Timeouts)
		}
		alive(1000 * ms)
		if p.State() != Closing || f.c.Stats().Timeouts != 2 || len(f.done) != 0 {
			t.Fatalf("%v after both limits, %d passed", p.State(), f.c.Stats().Timeouts)
		}
		p.Gone(f.now)
		if one(t, f.done) != a || a.Err != ErrTimeout {
			t.Fatalf("%d done: %v", len(f.done), a.Err)
		}
		q := f.add(2)
		f.connect(q, fourChunks, ours, 7)
		for _, o := range f.take() {
			if o.op.Kind == transport.OpSend && o.bytes[0] == 1 && o.bytes[1] == 0x80 {
				if fenceOf(t, o).Path != p.uuid {
					t.Fatal("another path is fenced")
				}
			}
		}
		p, q = q, p
		b := f.submit(Write, nil)
		sent := f.take()
		if op == Write && (len(sent) != 0 || f.c.ghosts != 1) || op == Read && len(sent) != 1 {
			t.Fatalf("%v failed, and then %+v was sent", op, sent)
		}
		if len(f.c.free) != 4-len(sent)-1 {
			t.Errorf("%d permits are free", len(f.c.free))
		}
		if err := p.Received(f.now, 0, fenced(rtrswire.Fence{Path: q.uuid, Attempt: 1}), 0, false); err != nil {
			t.Fatal(err)
		}
		if sent = append(sent, f.take()...); len(sent) != 1 || f.c.ghosts != 0 || len(f.c.free) != 3 {
			t.Fatalf("%+v, %d ghosts, %d permits free", sent, f.c.ghosts, len(f.c.free))
		}
		if err := f.answer(sent[0], 0, 1); err != nil || b.Err != nil {
			t.Fatal(err, b.Err)
		}
	}
}

// TestSlowStore: a request that passes its limit on a path that lives is at the
// store, and the path is kept for what is at others: of a server of our own kind,
// whose every connection answers. A kernel's may have stopped without a word.
func TestSlowStore(t *testing.T) {
	for _, flags := range []uint32{ours, 0} {
		f := newFakeClient(t, ClientConfig{IOTimeout: time.Second, ConnTimeout: time.Minute})
		p := f.add(1)
		f.connect(p, fourChunks, flags, 7)
		f.take()
		first, second := f.submit(Write, nil), f.submit(Write, nil)
		sent := f.take()
		alive := func(d time.Duration) {
			for end := f.now + d; f.now < end; f.tick(100 * ms) {
				p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
				asked := f.posts
				f.posts = nil
				for _, o := range asked {
					if o.conn > 0 && o.op.Imm == uint32(rtrswire.ImmHeartbeat) {
						p.Written(f.now, o.conn, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
					}
				}
			}
		}
		alive(1100 * ms)
		if flags == 0 {
			if p.State() != Closing || f.c.Stats().Timeouts != 1 {
				t.Errorf("a kernel's path is %v after the limit", p.State())
			}
			continue
		}
		alive(time.Minute)
		if p.State() != Connected || f.c.Stats().Timeouts != 1 || len(f.done) != 0 {
			t.Fatalf("%v (%v), %d limits passed, %d done", p.State(), p.err, f.c.Stats().Timeouts, len(f.done))
		}
		// It is told of once, and of the next one too.
		if err := f.answer(sent[0], 0, 1); err != nil || one(t, f.done) != first || first.Err != nil {
			t.Fatal(err, first.Err)
		}
		alive(200 * ms)
		if n := f.c.Stats().Timeouts; n != 2 {
			t.Errorf("%d limits passed", n)
		}
		if err := f.answer(sent[1], 0, 2); err != nil || second.Err != nil {
			t.Fatal(err, second.Err)
		}
		// One that comes after those has its own time, to the tick.
		f.submit(Write, nil)
		alive(900 * ms)
		if n := f.c.Stats().Timeouts; n != 2 {
			t.Errorf("%d limits passed before that of the third", n)
		}
		alive(200 * ms)
		if n := f.c.Stats().Timeouts; n != 3 {
			t.Errorf("%d limits passed", n)
		}
	}
}

// TestLossTimeout: with no path requests wait so long, then fail, and later ones
// at once; with Wait they do not.
func TestLossTimeout(t *testing.T) {
	for _, on := range []OnLoss{Error, Wait} {
		f := newFakeClient(t, ClientConfig{OnLoss: on, LossTimeout: 3 * time.Second})
		a := f.submit(Write, nil)
		f.tick(2999 * ms)
		if len(f.done) != 0 {
			t.Fatal("too early")
		}
		f.tick(ms)
		if on == Wait {
			if f.tick(time.Hour); len(f.done) != 0 {
				t.Fatal("it did not wait")
			}
			continue
		}
		if one(t, f.done) != a || a.Err != ErrNoPath {
			t.Fatal(a.Err)
		}
		b := f.submit(Write, nil)
		f.tick(0)
		if len(f.done) != 2 || b.Err != ErrNoPath {
			t.Fatal("a later one waits")
		}
		// Done may submit again; that must not spin.
		n := 0
		f.onDone = func(r *Req) {
			if n++; n < 100 {
				if err := f.c.Submit(f.now, r); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.submit(Write, nil)
		f.c.Tick(f.now)
		if n > 2 {
			t.Fatalf("failed %d times in one call", n)
		}
		// A path that comes back ends it.
		f.onDone, f.done = nil, nil
		f.connect(f.add(1), fourChunks, ours, 7)
		if ps := f.take(); len(ps) != 2 {
			t.Fatalf("%+v", ps)
		}
	}
}

// TestAdminFailsWithTheSession: requests about a session that is gone are not
// sent to the next.
func TestAdminFailsWithTheSession(t *testing.T) {
	f, p := upClient(t, ClientConfig{QueueDepth: 1})
	f.onUp = func() {}
	a, b := &Req{Admin: true}, &Req{Admin: true}
	f.c.Submit(0, a)
	f.c.Submit(0, b)
	p.Lost(0, 0, rdserr.ErrReset)
	if one(t, f.done) != b || b.Err != ErrNoPath {
		t.Fatalf("%d done", len(f.done))
	}
	p.Gone(0)
	if len(f.done) != 2 || a.Err != ErrNoPath {
		t.Fatalf("%d done, %v", len(f.done), a.Err)
	}
}

// TestNewGeneration: the server has another session than before: what is
// connected to the old one is given up, and the user begins anew.
func TestNewGeneration(t *testing.T) {
	f, p, q, rs := twoPaths(t, ClientConfig{}, 1)
	r := f.add(3)
	small := chunksOf(2, 4096, 512)
	f.connect(r, small, ours, 8)
	if len(f.hung) != 2 || f.downs != 1 || f.ups != 2 || f.c.MaxIO() != 4096 || f.c.Depth() != 2 || p.State() != Closing || q.State() != Closing {
		t.Fatalf("%d hung, %d downs, %d ups", len(f.hung), f.downs, f.ups)
	}
	f.take()
	q.Gone(0)
	p.Gone(0)
	fence := fenceOf(t, one(t, f.take()))
	if fence.Path != p.uuid {
		t.Fatal("the fence is not about the path with a request")
	}
	r.Received(0, 0, fenced(fence), 0, false)
	if o := one(t, f.take()); o.op.Imm>>f.c.chunks.MemBits() > 1 || f.answer(o, 0, 4) != nil || rs[0].Err != nil || len(f.c.free) != 2 {
		t.Fatalf("%+v, %d permits free", o, len(f.c.free))
	}
}

// TestRest: a client without a request promises to send nothing, until it is
// woken; one with a request says so.
func TestRest(t *testing.T) {
	rest, wake := rtrswire.Notice{Type: rtrswire.RestType}.Append(nil), rtrswire.Notice{Type: rtrswire.WakeType}.Append(nil)
	answer := func(o posted) syscall.Errno {
		t.Helper()
		n, err := rtrswire.ParseNotice(o.bytes)
		if err != nil || n.Type != rtrswire.RestedType {
			t.Fatalf("%+v, %v", n, err)
		}
		return syscall.Errno(n.Errno)
	}
	f, p, _, _ := twoPaths(t, ClientConfig{}, 1)
	p.Received(0, 0, rest, 0, false)
	if e := answer(one(t, f.take())); e != syscall.EBUSY {
		t.Fatal(e)
	}
	f, p, _, _ = twoPaths(t, ClientConfig{}, 0)
	p.Received(0, 0, rest, 0, false)
	if e := answer(one(t, f.take())); e != 0 {
		t.Fatal(e)
	}
	f.submit(Write, nil)
	if ps := f.take(); len(ps) != 0 {
		t.Fatalf("sent %+v", ps)
	}
	p.Received(0, 0, wake, 0, false)
	one(t, f.take())

	// The promise binds until the epoch is fenced if the path is lost.
	f, p, q, _ := twoPaths(t, ClientConfig{}, 0)
	p.Received(0, 0, rest, 0, false)
	f.submit(Write, nil)
	f.take()
	p.Lost(0, 0, rdserr.ErrReset)
	p.Gone(0)
	fence := fenceOf(t, one(t, f.take()))
	q.Received(0, 0, fenced(fence), 0, false)
	if o := one(t, f.take()); o.path != q || o.op.Kind != transport.OpWriteImm {
		t.Fatalf("%+v", o)
	}

	// One that does wake us, a moment before it would be too late, does not, however
	// old the session is.
	f, p, _, _ = twoPaths(t, ClientConfig{}, 0)
	alive := func(d time.Duration) {
		for end := f.now + d; f.now < end; {
			f.tick(100 * ms)
			p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		}
	}
	alive(time.Minute)
	for range 3 {
		p.Received(f.now, 0, rest, 0, false)
		alive(700 * ms) // of 800
		if p.Received(f.now, 0, wake, 0, false); p.State() != Connected {
			t.Fatalf("the path is %v after a short rest", p.State())
		}
		alive(300 * ms)
	}

	// A server that does not wake us loses the path.
	f, p, _, _ = twoPaths(t, ClientConfig{}, 0)
	p.Received(0, 0, rest, 0, false)
	for range 30 {
		f.tick(100 * ms)
		p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
	}
	if p.State() != Closing {
		t.Fatal(p.State())
	}
}
