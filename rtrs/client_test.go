package rtrs

import (
	"errors"
	"github.com/rdsd/rdsd/transport"
	"math/rand"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

const ms = time.Millisecond

func TestClientConfig(t *testing.T) {
	for bad, c := range map[string]ClientConfig{
		"it is empty":                    {},
		"has '.' in it":                  {Name: "a.b"},
		"1 connections a path":           {Name: "a", Conns: 1},
		"65 connections a path":          {Name: "a", Conns: 65},
		"queue depth -1":                 {Name: "a", QueueDepth: -1},
		"heartbeats every 1ms":           {Name: "a", HeartbeatEvery: ms},
		"limit of 1 missed":              {Name: "a", MissedLimit: 1},
		"shorter than that of the heart": {Name: "a", ConnTimeout: ms},
		"pauses before reconnecting":     {Name: "a", ReconnectMin: time.Minute, ReconnectMax: time.Second},
		"-2 attempts":                    {Name: "a", MaxReconnects: -2},
		"policy 9 is none of":            {Name: "a", Policy: 9},
		"neither wait nor error":         {Name: "a", OnLoss: 9},
		"none can be negative":           {Name: "a", IOTimeout: -1},
	} {
		if _, err := NewClient(c, &fakeClient{}, rand.New(rand.NewSource(1)), 0); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%+v: %v does not say %q", c, err, bad)
		}
	}
}

// TestPermits: as many requests as chunks, the rest waits in order; the last
// chunk used is used next.
func TestPermits(t *testing.T) {
	f, _ := upClient(t, ClientConfig{QueueDepth: 2})
	var rs []*Req
	for range 5 {
		rs = append(rs, f.submit(Write, make([]byte, 100)))
	}
	ps := f.take()
	if len(ps) != 2 || f.c.Depth() != 2 || f.c.Stats().Queued != 3 || f.c.Stats().Inflight != 2 {
		t.Fatalf("%d sent, %+v", len(ps), f.c.Stats())
	}
	for i := range 5 {
		o := ps[0]
		if err := f.answer(o, uint16(i), uint32(1000+i)); err != nil {
			t.Fatal(err)
		}
		if r := f.done[i]; r != rs[i] || (i > 0) != (r.Err == syscall.Errno(i)) {
			t.Fatalf("request %d: %v", i, r.Err)
		}
		more := f.take()
		if i < 3 {
			if n := one(t, more); n.op.Imm != o.op.Imm || n.op.Key != uint32(1000+i) {
				t.Fatalf("then %+v", n)
			}
		}
		ps = append(ps[1:], more...)
	}
	if s := f.c.Stats(); s.Done != 1 || s.Failed != 4 || s.Queued+s.Inflight != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSubmitRefuses(t *testing.T) {
	f := newFakeClient(t, ClientConfig{})
	early := f.submit(Write, make([]byte, 9000)) // the limit is not known yet
	wantErr(t, f.c.Submit(0, &Req{Usr: make([]byte, MaxUsr+1)}), ErrTooLarge)
	f.connect(f.add(1), fourChunks, ours, 7)
	if one(t, f.done) != early || early.Err != ErrTooLarge {
		t.Fatalf("%v", early.Err)
	}
	wantErr(t, f.c.Submit(0, &Req{Data: make([]byte, 8193)}), syscall.EMSGSIZE)
	r := f.submit(Read, nil)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("submitted twice")
			}
		}()
		f.c.Submit(0, r)
	}()
}

// TestFlows: a flow is a connection; requests with Admin have connection 0.
func TestFlows(t *testing.T) {
	f, _ := upClient(t, ClientConfig{Conns: 4})
	for flow, want := range map[uint32]int{0: 1, 1: 2, 2: 3, 3: 1} {
		r := &Req{Flow: flow}
		f.c.Submit(0, r)
		if o := one(t, f.take()); o.conn != want {
			t.Errorf("flow %d on connection %d", flow, o.conn)
		} else if err := f.answer(o, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	f.c.Submit(0, &Req{Admin: true, Flow: 2})
	if o := one(t, f.take()); o.conn != 0 {
		t.Errorf("on connection %d", o.conn)
	}
}

// TestUpResume: between Up and Resume only requests with Admin are sent, and
// others can be changed or cancelled.
func TestUpResume(t *testing.T) {
	f := newFakeClient(t, ClientConfig{})
	a, b := f.submit(Write, nil), f.submit(Write, nil)
	f.onUp = func() {
		f.c.Submit(0, &Req{Admin: true})
		n := 0
		f.c.Each(func(r *Req) {
			n++
			if r == a {
				copy(r.Usr, "new")
			}
			if r == b {
				if !f.c.Cancel(0, r, syscall.ENODEV) {
					t.Error("not cancelled")
				}
			}
		})
		if n != 3 {
			t.Errorf("%d requests", n)
		}
	}
	f.connect(f.add(1), fourChunks, ours, 7)
	if d := one(t, f.done); d != b || d.Err != syscall.ENODEV {
		t.Fatalf("%+v", d)
	}
	o := f.take()
	if len(o) != 2 || o[1].conn != 0 { // INFO_REQ, admin
		t.Fatalf("%+v", o)
	}
	if f.c.Cancel(0, f.c.slots[0], nil) {
		t.Error("cancelled in flight")
	}
	f.c.Resume(0)
	if o := one(t, f.take()); string(o.bytes[:8]) != "newr-hdr" {
		t.Errorf("%q", o.bytes)
	}
}

// TestHeartbeat: one in each interval unless it is unanswered; silence of four
// intervals is the end, and any sign of life counts.
func TestHeartbeat(t *testing.T) {
	f, p := upClient(t, ClientConfig{ConnTimeout: time.Minute})
	f.tick(200 * ms)
	if o := one(t, f.posts); o.conn != 0 || o.op.Imm != uint32(rtrswire.ImmHeartbeat) {
		t.Fatalf("%+v", o)
	}
	f.tick(500 * ms)
	if len(f.posts) != 1 {
		t.Fatal("asked again")
	}
	p.Written(f.now, 1, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeat)}) // from the other end
	f.tick(799 * ms)
	if p.State() != Connected || f.posts[1].op.Imm != uint32(rtrswire.ImmHeartbeatAck) || f.posts[1].conn != 1 {
		t.Fatalf("%v, %+v", p.State(), f.posts)
	}
	f.tick(ms)
	if p.State() != Closing || p.Info().Err != error(ErrHeartbeat) || one(t, f.hung) != p || f.downs != 1 {
		t.Fatalf("%v %v", p.State(), p.Info().Err)
	}
}

// TestFrozen: a process that was stopped for a minute reads what came meanwhile
// before it takes anybody for silent, or a request for too old.
func TestFrozen(t *testing.T) {
	f, p := upClient(t, ClientConfig{OnLoss: Error})
	r := f.submit(Write, nil)
	o := one(t, f.take())
	f.now += time.Minute
	f.c.Tick(f.now)
	if p.State() != Connected || len(f.done) != 0 {
		t.Fatalf("%v, %d done", p.State(), len(f.done))
	}
	if err := f.answer(o, 0, 1); err != nil || r.Err != nil || len(f.done) != 1 {
		t.Fatal(err, r.Err)
	}
	f.tick(700 * ms)
	if p.State() != Connected {
		t.Fatal(p.State())
	}
	f.now += time.Minute
	f.c.Tick(f.now)
	f.tick(200 * ms)
	if p.State() != Closing {
		t.Fatalf("%v: nothing came, for longer than the freeze", p.State())
	}
}

// TestOneConnHangs: con 0 is alive, another with requests on it is not.
func TestOneConnHangs(t *testing.T) {
	f, p := upClient(t, ClientConfig{Conns: 3})
	f.c.Submit(0, &Req{Flow: 1})
	for f.now < 10*time.Second && p.State() == Connected {
		f.tick(100 * ms)
		p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		p.Written(f.now, 1, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
	}
	if p.State() != Closing || f.now < 800*ms || f.now > 1200*ms {
		t.Fatalf("%v after %v", p.State(), f.now)
	}
}

// TestReconnect: pauses are drawn from a bound that doubles; success begins
// anew; the attempts are counted and told to the server.
func TestReconnect(t *testing.T) {
	f, p := upClient(t, ClientConfig{ReconnectMin: 100 * ms, ReconnectMax: 800 * ms})
	p.Lost(f.now, 1, rdserr.ErrReset)
	p.Gone(f.now)
	bound, longest := 100*ms, time.Duration(0)
	lost := p.Info().Down
	for i := 1; i <= 40; i++ {
		at := f.now
		for p.State() == Reconnecting {
			f.tick(ms)
		}
		pause := f.now - at
		if longest = max(longest, pause); pause > bound+ms {
			t.Fatalf("attempt %d after %v, at most %v", i, pause, bound)
		}
		if r, err := rtrswire.ParseConnReq(f.dials[len(f.dials)-1].req); err != nil || int(r.Attempt) != i+1 || !r.FirstConn {
			t.Fatalf("%+v, %v", r, err)
		}
		p.Refused(f.now, 0, nil, rdserr.ErrRefused)
		if p.State() != Closing || p.Info().Attempts != i || p.Info().Down != lost {
			t.Fatalf("%+v, lost at %v", p.Info(), lost)
		}
		p.Gone(f.now)
		bound = min(2*bound, 800*ms)
	}
	if longest < 400*ms {
		t.Errorf("the longest pause was %v", longest)
	}
	for p.State() == Reconnecting {
		f.tick(ms)
	}
	f.connect(p, fourChunks, ours, 7)
	if i := p.Info(); i.Attempts != 0 || i.Stats.Reconnects != 1 || i.Stats.ReconnectsFailed != 40 || f.ups != 2 {
		t.Errorf("%+v", i)
	}
	p.ResetStats()
	if i := p.Info().Stats; i != (PathStats{}) {
		t.Errorf("%+v", i)
	}
}

func TestMaxReconnects(t *testing.T) {
	f := newFakeClient(t, ClientConfig{MaxReconnects: 2})
	p := f.add(1)
	for p.State() != Closed {
		switch p.State() {
		case Connecting:
			p.Refused(f.now, 0, nil, rdserr.ErrRefused)
		case Closing:
			p.Gone(f.now)
		}
		f.tick(10 * ms)
	}
	if len(f.dials) != 2 || !p.GivenUp() {
		t.Fatalf("%d attempts: %+v", len(f.dials), p.Info())
	}
	if err := f.c.Reconnect(f.now, p); err != nil || p.State() != Connecting || p.GivenUp() {
		t.Fatal(err, p.State())
	}
	if err := f.c.Disconnect(f.now, p); err != nil {
		t.Fatal(err)
	}
	p.Gone(f.now)
	if p.State() != Closed || p.GivenUp() {
		t.Errorf("disconnected: %+v", p.Info())
	}
	if err := f.c.Reconnect(f.now, p); err != nil {
		t.Fatal(err)
	}
	f.connect(p, fourChunks, ours, 7)
}

// TestConnectTimeout: neither an answer nor an INFO_RSP comes.
func TestConnectTimeout(t *testing.T) {
	f := newFakeClient(t, ClientConfig{ConnectTimeout: time.Second})
	p := f.add(1)
	f.tick(999 * ms)
	if p.State() != Connecting {
		t.Fatal(p.State())
	}
	f.tick(ms)
	if p.State() != Closing || p.Info().Err != error(ErrTimeout) || len(f.hung) != 1 {
		t.Fatal(p.State(), p.Info().Err)
	}
	p.Dialed(f.now, 0, rsp(fourChunks, ours)) // too late, ignored
	p.Gone(f.now)
	f.tick(200 * ms)
	if p.State() != Connecting {
		t.Fatal(p.State())
	}
}

// TestAdmin: what an administrator may do to a path in each state, and what is
// refused.
func TestAdmin(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	wantErr(t, func() error { _, err := f.c.AddPath(0, nil, p.Local, p.Remote); return err }(), syscall.EEXIST)
	wantErr(t, func() error { _, err := f.c.AddPath(0, nil, netip.AddrPort{}, netip.AddrPort{}); return err }(), rdserr.ErrInvalid)
	noPort := netip.AddrPortFrom(p.Remote.Addr(), 0)
	wantErr(t, func() error { _, err := f.c.AddPath(0, nil, netip.AddrPort{}, noPort); return err }(), rdserr.ErrInvalid)
	if err := f.c.Disconnect(0, p); err != nil || p.State() != Closing || p.Info().Err != nil {
		t.Fatal(err, p.State())
	}
	wantErr(t, f.c.Disconnect(0, p), syscall.EALREADY)
	p.Gone(0)
	f.tick(time.Minute)
	if p.State() != Closed {
		t.Fatalf("%v: it came back by itself", p.State())
	}
	if err := f.c.Reconnect(f.now, p); err != nil || p.State() != Connecting {
		t.Fatal(err, p.State())
	}
	wantErr(t, f.c.Reconnect(f.now, p), ErrState)
	f.connect(p, fourChunks, ours, 7)
	if err := f.c.Reconnect(f.now, p); err != nil || p.State() != Closing {
		t.Fatal(err, p.State())
	}
	p.Gone(f.now)
	f.c.Tick(f.now)
	if p.State() != Connecting {
		t.Fatalf("%v: not at once", p.State())
	}
	if err := f.c.Remove(f.now, p); err != nil || p.State() != Closing {
		t.Fatal(err, p.State())
	}
	wantErr(t, f.c.Reconnect(f.now, p), ErrState)
	p.Gone(f.now)
	if p.State() != Dead || len(f.c.Paths()) != 0 {
		t.Fatal(p.State())
	}
	wantErr(t, f.c.Remove(f.now, p), ErrState)
	for i := range rtrswire.MaxPaths {
		f.add(byte(i))
	}
	wantErr(t, func() error {
		_, err := f.c.AddPath(0, nil, netip.AddrPort{}, netip.MustParseAddrPort("10.1.1.1:1"))
		return err
	}(), ErrTooMany)
}

// TestOneCreates: of several new paths one may create the session at a time.
func TestOneCreates(t *testing.T) {
	f := newFakeClient(t, ClientConfig{})
	p, q := f.add(1), f.add(2)
	first := func(i int) bool {
		r, err := rtrswire.ParseConnReq(f.dials[i].req)
		if err != nil {
			t.Fatal(err)
		}
		return r.FirstConn
	}
	f.tick(time.Second)
	if len(f.dials) != 1 || f.dials[0].p != p || !first(0) {
		t.Fatalf("%+v", f.dials)
	}
	p.Refused(f.now, 0, nil, rdserr.ErrRefused)
	f.tick(ms)
	if len(f.dials) != 2 || f.dials[1].p != q || !first(1) {
		t.Fatalf("the other did not get its turn: %d", len(f.dials))
	}
	p.Gone(f.now)
	f.tick(time.Second)
	if len(f.dials) != 2 {
		t.Fatal("both create")
	}
	f.connect(q, fourChunks, ours, 7)
	f.tick(0)
	if d := f.dials[len(f.dials)-1]; d.p != p || first(len(f.dials)-1) {
		t.Fatal("the first does not join at once, or would create another session")
	}
}

// TestNoOtherSessionBesideOne: a kernel that was started again tells nothing by which one sees
// it: a path that it lets begin a session there would be taken for one of the session that
// others still have, whose volumes have other numbers. So none begins one beside another.
func TestNoOtherSessionBesideOne(t *testing.T) {
	for _, c := range []struct {
		what       string
		flags, gen uint32
		beside     bool
	}{{"a kernel", rtrswire.NewRKey, 0, false}, {"an rdsd, whose sessions have numbers", ours, 7, true}} {
		f := newFakeClient(t, ClientConfig{Kernel: KernelTimes{HeartbeatEvery: time.Minute}, HeartbeatEvery: time.Minute})
		p := f.add(1)
		f.connect(p, fourChunks, c.flags, c.gen)
		q := f.add(2)
		f.connect(q, fourChunks, c.flags, c.gen)
		again := func(x *ClientPath) (first bool) {
			x.Lost(f.now, 0, syscall.ECONNRESET)
			x.Gone(f.now)
			for i := 0; x.State() != Connecting; i++ {
				if f.tick(10 * ms); i > 1000 {
					t.Fatal("not connected anew")
				}
			}
			r, err := rtrswire.ParseConnReq(f.dials[len(f.dials)-1].req)
			if err != nil {
				t.Fatal(err)
			}
			return r.FirstConn
		}
		if first := again(q); first != c.beside {
			t.Errorf("%s: beside a path that is connected one may begin a session: %v", c.what, first)
		}
		// It does not know the session any more.
		no := rtrswire.Reject(uint16(syscall.ENXIO))
		q.Refused(f.now, 0, no.Append(nil), syscall.ECONNREFUSED)
		q.Gone(f.now)
		if first := again(p); !first {
			t.Errorf("%s: with no path left none may begin the session", c.what)
		}
		f.connect(p, fourChunks, c.flags, c.gen)
		if f.ups != 2 || f.downs != 1 {
			t.Errorf("%s: %d times up, %d down", c.what, f.ups, f.downs)
		}
	}
}

func TestRefused(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{syscall.EPERM: "another node", syscall.ENXIO: "does not know the session", syscall.EEXIST: "between these addresses",
		syscall.EMFILE: "as many", syscall.ENOMEM: "no memory", syscall.ESHUTDOWN: "shutting down", syscall.EAGAIN: "is starting", syscall.ECONNRESET: "another version", syscall.EBUSY: "refused the path"} {
		f := newFakeClient(t, ClientConfig{})
		p := f.add(1)
		r := rtrswire.Reject(uint16(errno))
		p.Refused(0, 0, r.Append(nil), nil)
		if err := p.Info().Err; !errors.Is(err, errno) || !strings.Contains(err.Error(), want) || p.State() != Closing {
			t.Errorf("%v: %v", errno, err)
		}
		if e, ok := lastEvent(f.events, EventRefused); !ok || e.Client != p {
			t.Errorf("%v: no event", errno)
		}
		p.Gone(0)
		if p.State() != Reconnecting || f.c.Err() != nil {
			t.Errorf("%v: %v, %v", errno, p.State(), f.c.Err())
		}
	}
	// By a message in the place of the INFO_RSP.
	f := newFakeClient(t, ClientConfig{})
	p := f.add(1)
	p.Dialed(0, 0, rsp(fourChunks, ours))
	p.Dialed(0, 1, rsp(fourChunks, ours))
	p.Received(0, 0, rtrswire.Notice{Type: rtrswire.RefusedType, Errno: uint16(syscall.EPERM)}.Append(nil), 0, false)
	if err := p.Info().Err; !errors.Is(err, syscall.EPERM) || p.State() != Closing {
		t.Error(err)
	}
}

// TestReplaced: another session took our name; this one ends.
func TestReplaced(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	q := f.add(2)
	f.connect(q, fourChunks, ours, 7)
	a, b := f.submit(Write, nil), f.submit(Write, nil)
	p.Received(0, 0, rtrswire.Notice{Type: rtrswire.RefusedType, Errno: uint16(syscall.ESTALE)}.Append(nil), 0, false)
	if len(f.hung) != 2 || f.downs != 1 || len(f.done) != 0 {
		t.Fatalf("%d hung, %d done", len(f.hung), len(f.done))
	}
	p.Gone(0)
	q.Gone(0)
	if len(f.done) != 2 || a.Err != ErrReplaced || b.Err != ErrReplaced || p.State() != Closed {
		t.Fatalf("%d done, %v, %v", len(f.done), a.Err, p.State())
	}
	wantErr(t, f.c.Submit(0, &Req{}), syscall.ESTALE)
	wantErr(t, f.c.Reconnect(0, p), ErrReplaced)
	wantErr(t, f.c.Err(), ErrReplaced)
	f.c.Close(0)
	if f.closed != 1 || f.c.Next() != Never {
		t.Fatal("not closed")
	}
}

func TestClose(t *testing.T) {
	f, p := upClient(t, ClientConfig{QueueDepth: 1})
	a, b := f.submit(Read, make([]byte, 10)), f.submit(Write, nil)
	f.c.Close(0)
	if one(t, f.done) != b || b.Err != ErrClosed || f.closed != 0 {
		t.Fatalf("%+v", f.done)
	}
	wantErr(t, f.c.Submit(0, &Req{}), syscall.ESHUTDOWN)
	if len(f.keys) != 1 {
		t.Fatal("the memory of a request in flight has no key")
	}
	p.Gone(0)
	if len(f.done) != 2 || a.Err != ErrClosed || f.closed != 1 || len(f.keys) != 0 {
		t.Fatalf("%d done, %d closed, %d keys", len(f.done), f.closed, len(f.keys))
	}
	f.c.Close(0)
	if f.closed != 1 {
		t.Fatal("closed twice")
	}
	g := newFakeClient(t, ClientConfig{})
	g.c.Close(0)
	if g.closed != 1 {
		t.Fatal("without a path it is not closed at once")
	}
}

// TestViolations: what a server can do wrong gives its path up.
func TestViolations(t *testing.T) {
	imm := func(i rtrswire.Imm) func(*ClientPath) error {
		return func(p *ClientPath) error { return p.Written(0, 1, transport.Placed{Known: true, Imm: uint32(i)}) }
	}
	rkey := func(conn int, b []byte, i rtrswire.Imm) func(*ClientPath) error {
		return func(p *ClientPath) error { return p.Received(0, conn, b, uint32(i), true) }
	}
	send := func(conn int, b []byte) func(*ClientPath) error {
		return func(p *ClientPath) error { return p.Received(0, conn, b, 0, false) }
	}
	k := func(id uint16) []byte { return rtrswire.RKeyRsp{BufID: id, Key: 1}.Append(nil) }
	fenced := rtrswire.Fence{Type: rtrswire.FencedType, Errno: 5}
	for name, do := range map[string]func(*ClientPath) error{
		"answer beyond the depth":        imm(rtrswire.Done(4, 0, false)),
		"answer to an idle chunk":        imm(rtrswire.Done(2, 0, false)),
		"answer on another connection":   rkey(0, k(0), rtrswire.Done(0, 0, false)),
		"new key for another chunk":      rkey(1, k(1), rtrswire.Done(0, 0, false)),
		"new key with another immediate": rkey(1, k(0), rtrswire.ImmHeartbeat),
		"new key cut off":                rkey(1, k(0)[:7], rtrswire.Done(0, 0, false)),
		"a second INFO_RSP":              send(0, info(fourChunks, 7)),
		"message on connection 1":        send(1, fenced.Append(nil)),
		"fence refused":                  send(0, fenced.Append(nil)),
		"unknown message":                send(0, []byte{0x99, 0x80, 0, 0, 0, 0, 0, 0}),
		"message of one byte":            send(0, []byte{1}),
		"refusal without a reason":       send(0, rtrswire.Notice{Type: rtrswire.RefusedType}.Append(nil)),
	} {
		f, p := upClient(t, ClientConfig{})
		f.submit(Read, make([]byte, 100))
		if err := do(p); err == nil || p.State() != Closing || p.Info().Err != err {
			t.Errorf("%s: %v, the path is %v", name, err, p.State())
		}
		if e, ok := lastEvent(f.events, EventViolation); !ok || e.Client != p {
			t.Errorf("%s: no event", name)
		}
		if len(f.done) != 0 {
			t.Errorf("%s: done", name)
		}
	}
	// Memory is being written after the answer.
	f, p := upClient(t, ClientConfig{})
	f.submit(Read, make([]byte, 100))
	f.how = transport.Busy
	if err := rkey(1, k(0), rtrswire.Done(0, 0, false))(p); err == nil || len(f.done) != 0 || p.State() != Closing {
		t.Errorf("%v, %d done", err, len(f.done))
	}
	// While connecting.
	small := chunksOf(2, 4096, 512)
	for name, do := range map[string]func(*ClientPath) error{
		"answer": func(p *ClientPath) error {
			return p.Written(0, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.Done(0, 0, false))})
		},
		"other chunks":   send(0, info(small, 7)),
		"cut off":        send(0, info(fourChunks, 7)[:20]),
		"fenced already": send(0, fenced.Append(nil)),
	} {
		f := newFakeClient(t, ClientConfig{})
		p := f.add(1)
		p.Dialed(0, 0, rsp(fourChunks, ours))
		p.Dialed(0, 1, rsp(fourChunks, ours))
		if err := do(p); err == nil || p.State() != Closing {
			t.Errorf("connecting, %s: %v, %v", name, err, p.State())
		}
	}
	reject := rtrswire.Reject(5)
	for name, b := range map[string][]byte{"short": make([]byte, 55), "magic": make([]byte, 56), "status": reject.Append(nil), "depth": rsp(rtrswire.Chunks{}, 0)} {
		f := newFakeClient(t, ClientConfig{})
		p := f.add(1)
		p.Dialed(0, 0, b)
		if p.State() != Closing || p.Info().Err == nil {
			t.Errorf("CON_RSP, %s: %v", name, p.State())
		}
	}
}
