package rtrs

import (
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// atStore is a server with a path whose request is at the store.
func atStore(t *testing.T, cfg ServerConfig) (*fakeServer, *ServerPath, *ServerReq) {
	t.Helper()
	f := newFakeServer(t, cfg)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	if err := f.put(p, 1, ds, 0, Write, []byte("held")); err != nil {
		t.Fatal(err)
	}
	return f, p, f.reqs[0]
}

func (f *fakeServer) fence(via *ServerPath, path byte, attempt uint16) {
	f.t.Helper()
	m := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: attempt}
	m.Path[0] = path
	if err := via.Received(f.now, 0, m.Append(nil), 0, false); err != nil {
		f.t.Fatal(err)
	}
}

// TestServerFence: the path's links are closed, the store ends what it has of
// it, and then the fence is answered.
func TestServerFence(t *testing.T) {
	f, p, r := atStore(t, smallServer)
	q, ds := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	f.fence(q, 1, 1)
	if one(t, f.hung) != p || !r.Stale() || len(f.take()) != 0 {
		t.Fatal("the path is not ended, or the answer came before that")
	}
	if err := f.put(q, 1, ds, 1, Write, nil); err != nil { // others go on
		t.Fatal(err)
	}
	f.s.Reply(0, f.reqs[1], 0, nil)
	if len(f.take()) != 1 {
		t.Fatal("no answer to another request")
	}
	p.Gone(0)
	if p.State() != Draining || len(f.take()) != 0 {
		t.Fatal("the answer came while the store was at it")
	}
	f.s.Reply(0, r, 0, nil)
	o := one(t, f.take())
	m, err := rtrswire.ParseFence(o.bytes)
	if err != nil || m.Type != rtrswire.FencedType || m.Path[0] != 1 || m.Attempt != 1 || m.Errno != 0 || o.path != q || o.conn != 0 || f.s.Stats().Fenced != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	// What is not there has ended; what is newer is not meant.
	f.up(someone{session: 1, path: 1, attempt: 5, addr: 1, name: "a"})
	f.fence(q, 1, 4)
	f.fence(q, 9, 1)
	if len(f.take()) != 2 || len(f.s.Paths()) != 2 {
		t.Fatal("no answer at once")
	}
	// Another session's path is not reached.
	x, _ := f.up(someone{session: 2, path: 1, attempt: 1, addr: 3, name: "b"})
	f.fence(x, 2, 1)
	if q.State() != Connected || len(f.take()) != 1 {
		t.Fatal("a fence reached into another session")
	}
	// The order is the same before or after the store ends, and the asker may go.
	f, p, r = atStore(t, smallServer)
	q, _ = f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	f.fence(q, 1, 1)
	f.s.Reply(0, r, 0, nil)
	if len(f.take()) != 0 {
		t.Fatal("answered while the links are open")
	}
	q.Lost(0, 0, rdserr.ErrReset)
	p.Gone(0)
	if len(f.take()) != 0 || f.s.waiting() != 0 {
		t.Fatal("answered on a path that is lost")
	}
}

// TestServerReconnect: a newer life of a path is connected when the older one
// has ended.
func TestServerReconnect(t *testing.T) {
	f, p, r := atStore(t, smallServer)
	n := f.join(someone{session: 1, path: 1, attempt: 2, addr: 1, name: "a"})
	if one(t, f.hung) != p || n.State() != Fencing || one(t, f.downs) != r.Session {
		t.Fatalf("the newer is %v", n.State())
	}
	p.Gone(0)
	f.tick(time.Minute)
	if n.State() != Fencing || len(f.take()) != 0 {
		t.Fatalf("the newer is %v while the store is at it", n.State())
	}
	f.s.Reply(0, r, 0, nil)
	if n.State() != Connected || len(f.ups) != 2 || n.Session() == r.Session {
		t.Fatalf("the newer is %v", n.State())
	}
	if o := one(t, f.take()); rtrswire.Generation(o.bytes) != 43 {
		t.Fatalf("generation %d", rtrswire.Generation(o.bytes))
	}
	// The attempts' counter wraps.
	f = newFakeServer(t, smallServer)
	p, _ = f.up(someone{session: 1, path: 1, attempt: 0xffff, addr: 1, name: "a"})
	f.dial(someone{session: 1, path: 1, attempt: 0, addr: 1, name: "a"}, 0, 2)
	if p.State() != Closing {
		t.Error("attempt 0 after 65535 is not newer")
	}
}

// TestReplace: a client of the same node that begins anew takes the place of
// its former session, once that has ended; the former may not come back.
func TestReplace(t *testing.T) {
	f, p, r := atStore(t, smallServer)
	n := f.join(someone{session: 2, path: 7, attempt: 1, addr: 1, name: "a"})
	f.lives(n)
	o := one(t, f.take())
	m, err := rtrswire.ParseNotice(o.bytes)
	if err != nil || m.Type != rtrswire.RefusedType || syscall.Errno(m.Errno) != syscall.ESTALE || o.path != p || len(f.hung) != 0 {
		t.Fatalf("the former was told %+v, %v", m, err)
	}
	if n.State() != Fencing || p.State() != Closing || f.s.Stats().Replaced != 1 {
		t.Fatal(n.State(), p.State())
	}
	f.tick(farewell)
	if one(t, f.hung) != p {
		t.Fatal("not hung up")
	}
	p.Gone(f.now)
	f.s.Reply(f.now, r, 0, nil)
	if n.State() != Connected || len(f.s.Sessions()) != 1 || f.live != len(n.Session().mem) {
		t.Fatalf("the new one is %v, %d bytes", n.State(), f.live)
	}
	f.dial(someone{session: 1, path: 1, attempt: 2, addr: 1, name: "a"}, 0, 2)
	if len(f.rejected) != 1 || syscall.Errno(f.rejected[0]) != syscall.ESTALE {
		t.Fatalf("%v", f.rejected)
	}
}

// TestReplaceWhileConnecting: a path of the former session that is being made is closed without a word, which its client
// takes when its connections stand; its next attempt is refused.
func TestReplaceWhileConnecting(t *testing.T) {
	f := newFakeServer(t, smallServer)
	p, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	half := someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true}
	q := f.dial(half, 0, 2).Path
	f.posts = nil
	f.lives(f.join(someone{session: 2, path: 7, attempt: 1, addr: 1, name: "a"}))
	if o := one(t, f.take()); o.path != p {
		t.Errorf("it is told %+v", o)
	}
	if one(t, f.hung) != q || q.State() != Closing {
		t.Errorf("it is %v", q.State())
	}
	half.attempt = 2
	f.dial(half, 0, 2)
	if len(f.rejected) != 1 || syscall.Errno(f.rejected[0]) != syscall.ESTALE {
		t.Errorf("refused with %v", f.rejected)
	}
}

// lives has the client of p, which has been asked whether it lives and by nothing else, answer.
func (f *fakeServer) lives(p *ServerPath) {
	f.t.Helper()
	f.asked(p)
	f.ack(p)
}

func (f *fakeServer) asked(p *ServerPath) {
	f.t.Helper()
	o := one(f.t, f.posts)
	if o.path != p || o.conn != 0 || o.op.Kind != transport.OpWriteImm || o.op.Imm != uint32(rtrswire.ImmHeartbeat) {
		f.t.Fatalf("not asked: %+v", o)
	}
	f.posts = nil
}

func (f *fakeServer) ack(p *ServerPath) {
	f.t.Helper()
	if err := p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)}); err != nil {
		f.t.Fatal(err)
	}
}

// pass lets time pass in which the clients of ps answer every heartbeat.
func (f *fakeServer) pass(d time.Duration, ps ...*ServerPath) {
	for end := f.now + d; f.now < end; {
		f.tick(min(100*ms, end-f.now))
		for _, p := range ps {
			p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		}
	}
}

// TestStale: an INFO_REQ that comes when its session has ended, and the next one of its name is
// up, takes nobody's place: only who is seen to live while the other one does may.
func TestStale(t *testing.T) {
	type world struct {
		*fakeServer
		up, late *ServerPath
	}
	for name, c := range map[string]struct {
		kernel bool
		do     func(w world)
		late   State
		up     State
	}{
		"its end comes behind it": {do: func(w world) { w.late.Lost(w.now, 0, rdserr.ErrReset) }, late: Closing, up: Connected},
		"it is silent":            {do: func(w world) { w.pass(5*time.Second, w.up) }, late: Closing, up: Connected},
		"it is waited for":        {do: func(w world) { w.pass(5*time.Second-ms, w.up) }, late: Fencing, up: Connected},
		"it lives":                {do: func(w world) { w.ack(w.late) }, late: Fencing, up: Closing},
		"an answer on another connection": {do: func(w world) {
			w.late.Written(w.now, 1, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		}, late: Fencing, up: Connected},
		"the other ends": {do: func(w world) {
			w.up.Lost(w.now, 0, rdserr.ErrReset)
			w.up.Gone(w.now)
		}, late: Connected, up: Dead},
		"the other is silent": {do: func(w world) {
			w.tick(time.Second)
			w.up.Gone(w.now)
		}, late: Connected, up: Dead},
		"a kernel":           {kernel: true, do: func(w world) { w.pass(30*time.Second-ms, w.up) }, late: Fencing, up: Connected},
		"a kernel, for long": {kernel: true, do: func(w world) { w.pass(30*time.Second, w.up) }, late: Closing, up: Connected},
		"a kernel, and the other is silent": {kernel: true, do: func(w world) {
			w.tick(time.Second)
			w.up.Gone(w.now)
		}, late: Connected, up: Dead},
		"a kernel that says it lives": {kernel: true, do: func(w world) { w.ack(w.late) }, late: Fencing, up: Connected},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t, smallServer)
			up, _ := f.up(someone{session: 2, path: 2, attempt: 1, addr: 1, name: "a"})
			f.posts = nil
			late := f.join(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: c.kernel})
			if c.kernel {
				if len(f.posts) != 0 {
					t.Fatalf("a kernel is asked: %+v", f.posts)
				}
			} else {
				f.asked(late)
			}
			if late.State() != Fencing || up.State() != Connected || f.s.Stats().Replaced != 0 {
				t.Fatalf("the late one is %v, the other %v", late.State(), up.State())
			}
			c.do(world{f, up, late})
			if late.State() != c.late || up.State() != c.up || (f.s.Stats().Replaced != 0) != (c.up == Closing) {
				t.Errorf("the late one is %v, the other %v, %d replaced; want %v, %v", late.State(), up.State(), f.s.Stats().Replaced, c.late, c.up)
			}
			if e, ok := lastEvent(f.events, EventRefused); c.kernel && c.late == Closing && (!ok || rdserr.Errno(e.Err) != rdserr.ErrPerm.Errno) {
				t.Errorf("it was closed without a word: %+v", e)
			}
		})
	}
}

// TestStaleAnswer: an answer counts for the session that was up when the question was asked, not for
// the next one, which may have come since the client gave the answer.
func TestStaleAnswer(t *testing.T) {
	f := newFakeServer(t, smallServer)
	first, _ := f.up(someone{session: 3, path: 3, attempt: 1, addr: 1, name: "a"})
	f.posts = nil
	// Two of a session that waits: the one that comes first is let in, and the other one has
	// that for a rival.
	next := f.join(someone{session: 2, path: 2, attempt: 1, addr: 1, name: "a"})
	f.asked(next)
	late := f.join(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	f.asked(late)
	first.Lost(f.now, 0, rdserr.ErrReset)
	first.Gone(f.now)
	if next.State() != Connected || late.State() != Fencing {
		t.Fatalf("the next is %v, the late one %v", next.State(), late.State())
	}
	f.ack(late)
	if next.State() != Connected {
		t.Fatal("an answer to an earlier question replaced it")
	}
	f.ack(late)
	if next.State() != Closing || late.State() != Fencing {
		t.Fatalf("the next is %v, the late one %v", next.State(), late.State())
	}
}

// TestNoLimitAtTheStore: who waits for the store, and no longer for a session that lives, waits as
// long as it takes.
func TestNoLimitAtTheStore(t *testing.T) {
	f, p, r := atStore(t, smallServer)
	n := f.join(someone{session: 2, path: 2, attempt: 1, addr: 1, name: "a"})
	p.Lost(f.now, 0, rdserr.ErrReset)
	p.Gone(f.now)
	f.tick(time.Minute)
	if n.State() != Fencing {
		t.Fatalf("it is %v while the store is at it", n.State())
	}
	f.s.Reply(f.now, r, 0, nil)
	if n.State() != Connected {
		t.Fatal(n.State())
	}
}

// TestFull: a place that is taken by a session that ends is waited for.
func TestFull(t *testing.T) {
	cfg := smallServer
	cfg.MaxSessions = 1
	f, p, r := atStore(t, cfg)
	p.Lost(0, 0, rdserr.ErrReset)
	p.Gone(0)
	n := f.join(someone{session: 2, path: 2, attempt: 1, addr: 2, name: "b"})
	if n.State() != Fencing {
		t.Fatal(n.State())
	}
	f.s.Reply(0, r, 0, nil)
	if n.State() != Connected {
		t.Fatal(n.State())
	}
}

// TestFullOfOneAddress: half of the places are one address's, those of its sessions that end included: until one has, its next
// session waits, and another address does not.
func TestFullOfOneAddress(t *testing.T) {
	cfg := smallServer
	cfg.MaxSessions = 4
	f, p, r := atStore(t, cfg) // of address 1
	f.up(someone{session: 2, path: 2, attempt: 1, addr: 1, name: "b"})
	p.Lost(0, 0, rdserr.ErrReset)
	p.Gone(0)
	n := f.join(someone{session: 3, path: 3, attempt: 1, addr: 1, name: "c"})
	if n.State() != Fencing {
		t.Fatalf("the third of an address that may have two is %v", n.State())
	}
	if o := f.join(someone{session: 4, path: 4, attempt: 1, addr: 2, name: "d"}); o.State() != Connected {
		t.Errorf("another's is %v", o.State())
	}
	f.s.Reply(0, r, 0, nil)
	if n.State() != Connected {
		t.Error(n.State())
	}
}

// TestServerHeartbeat: asked in each interval, dead after four.
func TestServerHeartbeat(t *testing.T) {
	f := newFakeServer(t, smallServer)
	p, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	f.tick(200 * ms)
	if o := one(t, f.posts); o.conn != 0 || o.op.Imm != uint32(rtrswire.ImmHeartbeat) {
		t.Fatalf("%+v", o)
	}
	p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
	f.tick(799 * ms)
	if p.State() != Connected {
		t.Fatal(p.State())
	}
	f.tick(ms)
	if p.State() != Closing || p.Info().Err != error(ErrHeartbeat) || len(f.downs) != 1 {
		t.Fatal(p.State(), p.Info().Err)
	}
}

// TestTrim: an idle session gives its pages back, after its client has promised
// to leave the chunks alone.
func TestTrim(t *testing.T) {
	f := newFakeServer(t, ServerConfig{QueueDepth: 4, MaxIO: 128 << 10})
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	alive := func(d time.Duration) {
		for end := f.now + d; f.now < end; f.tick(100 * ms) {
			p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		}
	}
	use := func(n uint32, size int) {
		for id := range n {
			f.put(p, 1, ds, id, Write, make([]byte, size))
			f.s.Reply(f.now, f.reqs[len(f.reqs)-1], 0, nil)
		}
		for _, o := range f.take() {
			if k, err := rtrswire.ParseRKeyRsp(o.bytes); err == nil {
				ds[k.BufID].Key = k.Key
			}
		}
	}
	use(2, 128<<10) // 256 KiB and some
	alive(9900 * ms)
	if len(f.take()) != 0 {
		t.Fatal("too early")
	}
	alive(500 * ms)
	o := one(t, f.take())
	if m, err := rtrswire.ParseNotice(o.bytes); err != nil || m.Type != rtrswire.RestType || f.trimmed != 0 {
		t.Fatalf("%+v, %v, %d bytes trimmed", m, err, f.trimmed)
	}
	rested := func(errno syscall.Errno) {
		t.Helper()
		if err := p.Received(f.now, 0, rtrswire.Notice{Type: rtrswire.RestedType, Errno: uint16(errno)}.Append(nil), 0, false); err != nil {
			t.Fatal(err)
		}
	}
	rested(syscall.EBUSY)
	if len(f.take()) != 0 || f.trimmed != 0 {
		t.Fatal("trimmed against its word")
	}
	alive(10100 * ms)
	one(t, f.take())
	rested(0)
	o = one(t, f.take())
	if m, err := rtrswire.ParseNotice(o.bytes); err != nil || m.Type != rtrswire.WakeType || f.trimmed != 2*(128<<10+8+4) || f.ups[0].touched != 0 {
		t.Fatalf("%+v, %v, %d bytes trimmed", m, err, f.trimmed)
	}
	use(4, 4096) // little enough to be kept
	alive(time.Minute)
	if len(f.take()) != 0 {
		t.Fatal("asked for nothing")
	}
	use(4, 128<<10)
	alive(10100 * ms)
	f.take()
	f.put(p, 1, ds, 0, Write, nil) // the promise was broken, or is a lie
	rested(0)
	if f.trimmed != 2*(128<<10+8+4) {
		t.Fatal("trimmed with a request at the store")
	}
}

// TestNoInvalidate: one key for all chunks, which stays.
func TestNoInvalidate(t *testing.T) {
	cfg := smallServer
	cfg.NoInvalidate = true
	f := newFakeServer(t, cfg)
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	if len(ds) != 4 || ds[0].Key != ds[3].Key || len(f.regions) != 1 {
		t.Fatalf("%+v", ds)
	}
	for id := range uint32(4) {
		if err := f.put(p, 1, ds, id, Write, []byte{byte(id)}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint32(4) {
		if f.reqs[id].Data[0] != byte(id) {
			t.Fatal("another chunk's data")
		}
		f.s.Reply(0, f.reqs[id], 0, nil)
		if o := one(t, f.take()); o.op.Kind != transport.OpWriteImm || len(o.bytes) != 0 || o.op.Key != 0 || rtrswire.Imm(o.op.Imm) != rtrswire.Done(id, 0, false) {
			t.Fatalf("%+v", o)
		}
	}
	p.Lost(0, 0, rdserr.ErrReset)
	p.Gone(0)
	if len(f.regions) != 0 {
		t.Error("the key is left")
	}
}

// TestNoTrimBesideAClosingPath: what a client sent on a path that is closing may still be
// on its way into a chunk, whatever the client has promised on another one: the pages
// stay until that path is gone.
func TestNoTrimBesideAClosingPath(t *testing.T) {
	f := newFakeServer(t, ServerConfig{QueueDepth: 4, MaxIO: 128 << 10})
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	q, _ := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a"})
	for id := range uint32(2) {
		f.put(p, 1, ds, id, Write, make([]byte, 128<<10))
		f.s.Reply(f.now, f.reqs[len(f.reqs)-1], 0, nil)
	}
	f.take()
	// ask passes the time until the client is asked to rest, and has it promise.
	ask := func() {
		t.Helper()
		for end := f.now + 11*time.Second; f.now < end; {
			f.tick(100 * ms)
			for _, path := range []*ServerPath{p, q} {
				if path != nil {
					path.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
				}
			}
			for _, o := range f.take() {
				if m, err := rtrswire.ParseNotice(o.bytes); err == nil && m.Type == rtrswire.RestType {
					return
				}
			}
		}
		t.Fatal("the client is not asked to rest")
	}
	promise := func() {
		t.Helper()
		if err := p.Received(f.now, 0, rtrswire.Notice{Type: rtrswire.RestedType}.Append(nil), 0, false); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	q.Lost(f.now, 0, rdserr.ErrReset)
	if promise(); f.trimmed != 0 {
		t.Fatal("trimmed beside a path that is closing")
	}
	q.Gone(f.now)
	q = nil
	ask()
	if promise(); f.trimmed == 0 {
		t.Error("nothing was trimmed when it was gone")
	}
}

// TestAddressesOfASession: a session remembers where its paths came from, gone ones
// included, and forgets the first of them for the one that is too many.
func TestAddressesOfASession(t *testing.T) {
	f := newFakeServer(t, ServerConfig{QueueDepth: 2, MaxIO: 512})
	stays, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	e := stays.ses
	for n := byte(2); n <= 140; n++ {
		p, _ := f.up(someone{session: 1, path: 2, attempt: uint16(n), addr: n, name: "a", late: true})
		p.Lost(f.now, 0, rdserr.ErrReset)
		p.Gone(f.now)
		f.take()
		if want := min(int(n), 128); len(e.addrs) != want {
			t.Fatalf("%d addresses of %d are known, want %d", len(e.addrs), n, want)
		}
	}
	if first, last := e.addrs[0].As4()[3], e.addrs[127].As4()[3]; first != 13 || last != 140 {
		t.Errorf("addresses %d to %d are known, want 13 to 140", first, last)
	}
}
