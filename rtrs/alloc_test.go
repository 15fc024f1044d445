package rtrs

import (
	"math/rand"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// loop is both ends and links between them that do at once what is asked, with
// no memory of their own in steady state.
type loop struct {
	c        *Client
	s        *Server
	cp       *ClientPath
	sp       *ServerPath
	con      *ServerCon
	toServer ring
	toClient ring
	regions  [2][4096]fakeRegion // by key, client's and server's
	next     uint32
	trimmed  int
	done     int
	bad      int
	stuck    bool // the store keeps what it gets
	held     []*ServerReq
}

type ring struct {
	e    [2048]hop
	r, w int
}

type hop struct {
	conn int
	op   transport.Op
	tail [transport.MaxTail]byte
}

func (q *ring) put(conn int, op *transport.Op) {
	h := &q.e[q.w%len(q.e)]
	h.conn, h.op = conn, *op
	h.op.Tail = h.tail[:copy(h.tail[:], op.Tail)]
	q.w++
}

type loopClient struct{ *loop }
type loopServer struct{ *loop }

func (l *loop) register(side int, b []byte, addr uint64) (uint32, uint64) {
	l.next++
	if addr == 0 {
		addr = uint64(l.next) << 24
	}
	l.regions[side][l.next%4096] = fakeRegion{b, addr}
	return l.next, addr
}

func (l loopClient) Dial(*ClientPath, int, transport.LinkAttr, []byte) {}
func (l loopClient) Hang(p *ClientPath)                                {}
func (l loopClient) Post(p *ClientPath, conn int, op *transport.Op)    { l.toServer.put(conn, op) }
func (l loopClient) Grant(_ *ClientPath, _ int, b []byte) (uint32, uint64) {
	return l.register(0, b, 0)
}
func (l loopClient) Take(*ClientPath, uint32) (int, transport.Revocation) {
	return 1 << 30, transport.Idle
}
func (l loopClient) Up()                                                   { l.c.Resume(0) }
func (l loopClient) Down()                                                 {}
func (l loopClient) Done(r *Req)                                           { l.loop.done++; l.loop.bad += btoi(r.Err != nil) }
func (l loopClient) Closed()                                               {}
func (l loopClient) Event(Event)                                           {}
func (l loopServer) Accept(c *ServerCon, _ transport.LinkAttr, rsp []byte) { l.loop.con = c }
func (l loopServer) Reject(c *ServerCon, rsp []byte)                       { panic("rejected") }
func (l loopServer) Hang(p *ServerPath)                                    {}
func (l loopServer) Post(p *ServerPath, conn int, op *transport.Op)        { l.toClient.put(conn, op) }
func (l loopServer) Register(p *ServerPath, b []byte) (uint32, uint64)     { return l.register(1, b, 0) }
func (l loopServer) Revoke(*ServerPath, uint32) transport.Revocation       { return transport.Idle }
func (l loopServer) Adopt(*ServerPath, []byte) (bool, error)               { return false, nil }
func (l loopServer) Alloc(n int) []byte                                    { return make([]byte, n) }
func (l loopServer) Free(b []byte)                                         {}
func (l loopServer) Trim(b []byte)                                         { l.loop.trimmed += len(b) }
func (l loopServer) Up(*ServerSession)                                     {}
func (l loopServer) Down(*ServerSession)                                   {}
func (l loopServer) Stale(*ServerSession)                                  {}
func (l loopServer) Closed()                                               {}
func (l loopServer) Event(Event)                                           {}
func (l loopServer) Grant(_ *ServerPath, _ int, b []byte, at uint64) (key uint32, addr uint64) {
	return l.register(1, b, at)
}
func (l loopServer) Request(r *ServerReq) {
	if l.stuck {
		l.loop.held = append(l.loop.held, r)
		return
	}
	l.s.Reply(0, r, len(r.Data), nil)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// move does what is posted, both ways, until nothing is.
func (l *loop) move() {
	for l.toServer.r < l.toServer.w || l.toClient.r < l.toClient.w {
		for ; l.toServer.r < l.toServer.w; l.toServer.r++ {
			l.hop(&l.toServer.e[l.toServer.r%len(l.toServer.e)], 1)
		}
		for ; l.toClient.r < l.toClient.w; l.toClient.r++ {
			l.hop(&l.toClient.e[l.toClient.r%len(l.toClient.e)], 0)
		}
	}
}

func (l *loop) hop(h *hop, side int) {
	n := len(h.op.Data) + len(h.op.Tail)
	if k := h.op.Kind; (k == transport.OpWrite || k == transport.OpWriteImm) && n > 0 {
		r := &l.regions[side][h.op.Key%4096]
		dst := r.b[h.op.Addr-r.addr:][:n]
		copy(dst[copy(dst, h.op.Data):], h.op.Tail)
	}
	b := h.op.Tail
	if len(h.op.Data) > 0 {
		b = h.op.Data
	}
	if side == 1 {
		l.cp.Sent(0, h.conn, 1)
	} else {
		l.sp.Sent(0, h.conn, 1)
	}
	var err error
	switch {
	case h.op.Kind == transport.OpWriteImm && side == 1:
		err = l.sp.Written(0, h.conn, transport.Placed{Known: true, Key: h.op.Key, Addr: h.op.Addr, N: n, Imm: h.op.Imm})
	case h.op.Kind == transport.OpWriteImm:
		err = l.cp.Written(0, h.conn, transport.Placed{Known: true, Key: h.op.Key, Addr: h.op.Addr, N: n, Imm: h.op.Imm})
	case h.op.Kind == transport.OpSend && side == 1:
		err = l.sp.Received(0, h.conn, b, 0, false)
	case h.op.Kind == transport.OpSend || h.op.Kind == transport.OpSendImm:
		err = l.cp.Received(0, h.conn, b, h.op.Imm, h.op.Kind == transport.OpSendImm)
	case h.op.Kind == transport.OpSendInval:
		err = l.cp.Invalidated(0, h.conn, h.op.Key, 1<<30)
	}
	if err != nil {
		panic(err)
	}
}

// newLoop makes a session that is up.
func newLoop(t testing.TB, ccfg ClientConfig, scfg ServerConfig) *loop {
	t.Helper()
	l := &loop{}
	var err error
	ccfg.Name = "loop"
	if l.c, err = NewClient(ccfg, loopClient{l}, rand.New(rand.NewSource(1)), 0); err != nil {
		t.Fatal(err)
	}
	if l.s, err = NewServer(scfg, loopServer{l}, 1, 0); err != nil {
		t.Fatal(err)
	}
	if l.cp, err = l.c.AddPath(0, nil, netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	flags := uint32(ours)
	if scfg.NoInvalidate {
		flags = rtrswire.Fences
	}
	for i := range 2 {
		r := rtrswire.ConnReq{Conn: uint16(i), Conns: 2, Attempt: 1, FirstConn: true}
		b := r.Append(nil)
		rtrswire.SetFences(b)
		l.s.Connect(0, nil, b, netip.AddrPort{}, netip.AddrPort{})
		l.sp = l.con.Path
		l.cp.Dialed(0, i, rsp(l.s.chunks, flags))
	}
	l.move()
	if l.cp.State() != Connected || l.sp.State() != Connected {
		t.Fatal("not connected")
	}
	return l
}

// io runs one batch of the requests.
func (l *loop) io(rs []Req) {
	for i := range rs {
		if err := l.c.Submit(0, &rs[i]); err != nil {
			panic(err)
		}
	}
	l.move()
}

func batch(n, size int) []Req {
	rs := make([]Req, n)
	for i := range rs {
		rs[i] = Req{Op: Op(i % 2), Usr: make([]byte, 32), Data: make([]byte, size), Flow: uint32(i)}
	}
	return rs
}

// TestNoAllocations: none for an I/O in steady state, at either end.
func TestNoAllocations(t *testing.T) {
	for name, c := range map[string]struct {
		c ClientConfig
		s ServerConfig
		n int
	}{
		"as is":            {n: 16},
		"more than chunks": {s: ServerConfig{QueueDepth: 4}, n: 16},
		"remote inval":     {c: ClientConfig{RemoteInval: true, Policy: MinLatency}, n: 8},
		"no invalidate":    {c: ClientConfig{Policy: RoundRobin, OnLoss: Error}, s: ServerConfig{NoInvalidate: true}, n: 8},
	} {
		l := newLoop(t, c.c, c.s)
		rs := batch(c.n, 4096)
		l.io(rs)
		allocs := testing.AllocsPerRun(200, func() {
			l.io(rs)
			l.c.Tick(0)
			l.s.Tick(0)
		})
		if l.bad != 0 || l.done != 202*c.n {
			t.Fatalf("%s: %d done, %d failed", name, l.done, l.bad)
		}
		if allocs != 0 && !raceDetector {
			t.Errorf("%s: %v allocations in a batch of %d", name, allocs, c.n)
		}
	}
}

// TestIdleSession: what a session keeps at the server, once its queue was full
// and it has rested: below a MiB, but for pages of the chunks.
func TestIdleSession(t *testing.T) {
	if raceDetector {
		t.Skip("elsewhere: under the race detector; the phase without it runs this")
	}
	l := newLoop(t, ClientConfig{}, ServerConfig{})
	before := heapBytes()
	rs := batch(512, 0)
	l.stuck = true
	for i := range rs { // all chunks in use at once
		l.io(rs[i : i+1])
	}
	if len(l.held) != 512 {
		t.Fatalf("%d at the store", len(l.held))
	}
	for _, r := range l.held {
		l.s.Reply(0, r, 0, nil)
	}
	l.held = nil
	l.move()
	if grown := heapBytes() - before; grown > 600<<10 || l.done != 512 {
		t.Errorf("a session that had 512 requests in flight keeps %d KiB of the heap", grown>>10)
	}
	l.stuck = false
	big := batch(8, 256<<10)
	for range 8 {
		l.io(big)
	}
	l.sp.beat.heard = 15 * time.Second
	l.s.Tick(15 * time.Second) // late
	l.s.Tick(15 * time.Second)
	l.move()
	if l.trimmed < 1<<20 || l.c.restPath != nil || l.s.sessions[0].touched != 0 {
		t.Errorf("%d bytes trimmed", l.trimmed)
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkIO is both ends' cost for one I/O of 4 KiB without links and store,
// but with the two copies that placing it needs.
func BenchmarkIO(b *testing.B) {
	l := newLoop(b, ClientConfig{}, ServerConfig{})
	rs := batch(32, 4096)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(rs) {
		l.io(rs)
	}
}
