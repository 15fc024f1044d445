package rtrs

import (
	"bytes"
	"errors"
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// posted is what a core posted, with its bytes.
type posted struct {
	path  any
	conn  int
	op    transport.Op
	bytes []byte
}

func note(p any, conn int, op *transport.Op) posted {
	return posted{p, conn, *op, append(append([]byte(nil), op.Data...), op.Tail...)}
}

// fakeClient is a Client whose surroundings write down what it wants.
type fakeClient struct {
	t      testing.TB
	c      *Client
	now    time.Duration
	dials  []dialled
	posts  []posted
	hung   []*ClientPath
	done   []*Req
	ups    int
	downs  int
	closed int
	events []Event
	keys   map[uint32][]byte
	next   uint32
	how    transport.Revocation // what Take says
	late   bool                 // nothing is sent by itself
	short  int                  // so many bytes of each read have not been written
	onUp   func()
	onDone func(r *Req)
}

type dialled struct {
	p    *ClientPath
	conn int
	attr transport.LinkAttr
	req  []byte
}

func (f *fakeClient) Dial(p *ClientPath, conn int, attr transport.LinkAttr, req []byte) {
	f.dials = append(f.dials, dialled{p, conn, attr, req})
}
func (f *fakeClient) Hang(p *ClientPath) { f.hung = append(f.hung, p) }
func (f *fakeClient) Post(p *ClientPath, conn int, op *transport.Op) {
	f.posts = append(f.posts, note(p, conn, op))
	if !f.late {
		p.Sent(f.now, conn, 1)
	}
}
func (f *fakeClient) Grant(p *ClientPath, conn int, b []byte) (uint32, uint64) {
	f.next++
	f.keys[f.next] = b
	return f.next, 0x1000 * uint64(f.next)
}
func (f *fakeClient) Take(p *ClientPath, key uint32) (int, transport.Revocation) {
	n := len(f.keys[key]) - f.short
	delete(f.keys, key)
	if f.how == transport.Pending {
		n = transport.Unfilled
	}
	return n, f.how
}
func (f *fakeClient) Up() {
	f.ups++
	if f.onUp != nil {
		f.onUp()
	} else {
		f.c.Resume(f.now)
	}
}
func (f *fakeClient) Down() { f.downs++ }
func (f *fakeClient) Done(r *Req) {
	f.done = append(f.done, r)
	if f.onDone != nil {
		f.onDone(r)
	}
}
func (f *fakeClient) Closed()       { f.closed++ }
func (f *fakeClient) Event(e Event) { f.events = append(f.events, e) }

func newFakeClient(t testing.TB, cfg ClientConfig) *fakeClient {
	t.Helper()
	f := &fakeClient{t: t, keys: map[uint32][]byte{}}
	if cfg.Name == "" {
		cfg.Name = "s1"
	}
	c, err := NewClient(cfg, f, rand.New(rand.NewSource(1)), 0)
	if err != nil {
		t.Fatal(err)
	}
	f.c = c
	return f
}

// add adds a path to address 10.0.0.n.
func (f *fakeClient) add(n byte) *ClientPath {
	f.t.Helper()
	p, err := f.c.AddPath(f.now, nil, netip.AddrPort{}, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 16386))
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// tick lets d pass.
func (f *fakeClient) tick(d time.Duration) {
	spins := 0
	for end := f.now + d; ; {
		t := f.c.Next()
		if t > end {
			f.now = end
			return
		}
		if spins++; t > f.now {
			f.now, spins = t, 0
		}
		if spins > 5 {
			f.t.Fatalf("at %v something is due at %v, however often Tick is called", f.now, t)
		}
		f.c.Tick(f.now)
	}
}

// take returns what was posted since, without heartbeats.
func (f *fakeClient) take() (ps []posted) {
	for _, p := range f.posts {
		if i := rtrswire.Imm(p.op.Imm); p.op.Kind != transport.OpWriteImm || i != rtrswire.ImmHeartbeat && i != rtrswire.ImmHeartbeatAck {
			ps = append(ps, p)
		}
	}
	f.posts = nil
	return ps
}

// rsp is what a server of ours answers to a connection.
func rsp(chunks rtrswire.Chunks, flags uint32) []byte {
	r := rtrswire.ConnRsp{QueueDepth: uint16(chunks.Depth), MaxIOSize: chunks.MaxIO, MaxHdrSize: chunks.MaxHdr, Flags: flags}
	return r.Append(nil)
}

func chunksOf(depth, maxIO, maxHdr uint32) rtrswire.Chunks {
	c, err := rtrswire.NewChunks(depth, maxIO, maxHdr)
	if err != nil {
		panic(err)
	}
	return c
}

// info is an INFO_RSP of generation g: chunk i lies at (i+1)<<20 with key 100+i.
func info(chunks rtrswire.Chunks, g uint32) []byte {
	var ds []rtrswire.Desc
	for i := range chunks.Depth {
		ds = append(ds, rtrswire.Desc{Addr: uint64(i+1) << 20, Key: 100 + i, Len: chunks.Size()})
	}
	b := rtrswire.AppendInfoRsp(nil, ds)
	rtrswire.SetGeneration(b, g)
	return b
}

var fourChunks = chunksOf(4, 8192, 512)

const ours = rtrswire.Fences | rtrswire.NewRKey

// connect brings p, which is dialling, up; in session g.
func (f *fakeClient) connect(p *ClientPath, chunks rtrswire.Chunks, flags, g uint32) {
	f.t.Helper()
	for i := range f.c.cfg.Conns {
		d := f.dials[len(f.dials)-1]
		if d.p != p || d.conn != i {
			f.t.Fatalf("dials connection %d of %v, want %d", d.conn, d.p.Remote, i)
		}
		p.Dialed(f.now, i, rsp(chunks, flags))
	}
	if err := p.Received(f.now, 0, info(chunks, g), 0, false); err != nil {
		f.t.Fatal(err)
	}
	if p.State() != Connected {
		f.t.Fatalf("the path is %v", p.State())
	}
}

// up makes a client with one path connected, in session 7.
func upClient(t testing.TB, cfg ClientConfig) (*fakeClient, *ClientPath) {
	f := newFakeClient(t, cfg)
	p := f.add(1)
	f.connect(p, fourChunks, ours, 7)
	f.take()
	return f, p
}

// submit submits a request with an 8-byte user header.
func (f *fakeClient) submit(op Op, data []byte) *Req {
	f.t.Helper()
	r := &Req{Op: op, Usr: []byte("user-hdr"), Data: data}
	if err := f.c.Submit(f.now, r); err != nil {
		f.t.Fatal(err)
	}
	return r
}

// answer answers a request that was posted, with key k for its chunk.
func (f *fakeClient) answer(p posted, errno uint16, k uint32) error {
	f.t.Helper()
	id := p.op.Imm >> f.c.chunks.MemBits()
	return p.path.(*ClientPath).Received(f.now, p.conn, rtrswire.RKeyRsp{BufID: uint16(id), Key: k}.Append(nil), uint32(rtrswire.Done(id, errno, false)), true)
}

// one is the one element of s.
func one[T any](t testing.TB, s []T) T {
	t.Helper()
	if len(s) != 1 {
		t.Fatalf("%d, want one: %+v", len(s), s)
	}
	return s[0]
}

// last of an event kind, and whether there was one.
func lastEvent(es []Event, k EventKind) (Event, bool) {
	for i := len(es) - 1; i >= 0; i-- {
		if es[i].Kind == k {
			return es[i], true
		}
	}
	return Event{}, false
}

// fakeServer is a Server whose surroundings write down what it wants.
type fakeServer struct {
	t        testing.TB
	s        *Server
	now      time.Duration
	accepted []*ServerCon
	rsps     [][]byte
	rejected []uint16
	posts    []posted
	hung     []*ServerPath
	reqs     []*ServerReq
	ups      []*ServerSession
	downs    []*ServerSession
	stales   []*ServerSession
	closed   int
	events   []Event
	regions  map[uint32]fakeRegion
	next     uint32
	how      transport.Revocation // what Revoke says
	noMem    bool
	noAdopt  error
	noRoom   bool // Register has none
	pinned   bool
	attrs    []transport.LinkAttr
	live     int // bytes allocated
	trimmed  int
	late     bool // nothing is sent by itself
	request  func(r *ServerReq)
	onStale  func()
}

type fakeRegion struct {
	b    []byte
	addr uint64
}

func newFakeServer(t testing.TB, cfg ServerConfig) *fakeServer {
	t.Helper()
	f := &fakeServer{t: t, regions: map[uint32]fakeRegion{}}
	s, err := NewServer(cfg, f, 41, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.s = s
	return f
}

func (f *fakeServer) Accept(c *ServerCon, attr transport.LinkAttr, rsp []byte) {
	f.attrs = append(f.attrs, attr)
	f.accepted, f.rsps = append(f.accepted, c), append(f.rsps, rsp)
}
func (f *fakeServer) Reject(c *ServerCon, rsp []byte) {
	r, err := rtrswire.ParseConnRsp(rsp)
	if err != nil || c.Path != nil {
		f.t.Errorf("rejected with %x: %v", rsp, err)
	}
	f.rejected = append(f.rejected, r.Errno())
}
func (f *fakeServer) Hang(p *ServerPath) { f.hung = append(f.hung, p) }
func (f *fakeServer) Post(p *ServerPath, conn int, op *transport.Op) {
	f.posts = append(f.posts, note(p, conn, op))
	if !f.late {
		p.Sent(f.now, conn, 1)
	}
}
func (f *fakeServer) Adopt(*ServerPath, []byte) (bool, error) { return f.pinned, f.noAdopt }
func (f *fakeServer) Register(p *ServerPath, b []byte) (uint32, uint64) {
	if f.noRoom {
		return 0, 0
	}
	return f.Grant(p, 0, b, 0)
}
func (f *fakeServer) Grant(p *ServerPath, conn int, b []byte, at uint64) (uint32, uint64) {
	f.next++
	if at == 0 {
		at = uint64(f.next) << 24
	}
	f.regions[f.next] = fakeRegion{b, at}
	return f.next, at
}
func (f *fakeServer) Revoke(p *ServerPath, key uint32) transport.Revocation {
	delete(f.regions, key)
	return f.how
}
func (f *fakeServer) Alloc(n int) []byte {
	if f.noMem {
		return nil
	}
	f.live += n
	return make([]byte, n)
}
func (f *fakeServer) Free(b []byte)         { f.live -= len(b) }
func (f *fakeServer) Trim(b []byte)         { f.trimmed += len(b) }
func (f *fakeServer) Up(s *ServerSession)   { f.ups = append(f.ups, s) }
func (f *fakeServer) Down(s *ServerSession) { f.downs = append(f.downs, s) }

func (f *fakeServer) Stale(s *ServerSession) {
	f.stales = append(f.stales, s)
	if f.onStale != nil {
		f.onStale()
	}
}
func (f *fakeServer) Closed()       { f.closed++ }
func (f *fakeServer) Event(e Event) { f.events = append(f.events, e) }

// Request checks that the data is given where it lies, in the chunk: nothing is copied.
func (f *fakeServer) Request(r *ServerReq) {
	if chunk := r.Session.chunk(uint32(r.chunk)); len(r.Data) > 0 && &r.Data[0] != &chunk[0] {
		f.t.Errorf("the data of request %d is not in its chunk", r.Seq)
	}
	f.reqs = append(f.reqs, r)
	if f.request != nil {
		f.request(r)
	}
}

func (f *fakeServer) tick(d time.Duration) {
	spins := 0
	for end := f.now + d; ; {
		t := f.s.Next()
		if t > end {
			f.now = end
			return
		}
		if spins++; t > f.now {
			f.now, spins = t, 0
		}
		if spins > 5 {
			f.t.Fatalf("at %v something is due at %v, however often Tick is called", f.now, t)
		}
		f.s.Tick(f.now)
	}
}

func (f *fakeServer) take() (ps []posted) {
	for _, p := range f.posts {
		if i := rtrswire.Imm(p.op.Imm); p.op.Kind != transport.OpWriteImm || i != rtrswire.ImmHeartbeat && i != rtrswire.ImmHeartbeatAck {
			ps = append(ps, p)
		}
	}
	f.posts = nil
	return ps
}

// someone is who connects: session, path, attempt, from address 10.0.1.n.
type someone struct {
	session, path byte
	attempt       uint16
	addr          byte
	name          string
	late          bool // not the first connection of the session
	kernel        bool
}

func (w someone) req(conn, conns uint16) []byte {
	r := rtrswire.ConnReq{Conn: conn, Conns: conns, Attempt: w.attempt, FirstConn: !w.late}
	r.Session[0], r.Path[0] = w.session, w.path
	b := r.Append(nil)
	if !w.kernel {
		rtrswire.SetFences(b)
	}
	return b
}

func (f *fakeServer) dial(w someone, conn, conns uint16) *ServerCon {
	return f.s.Connect(f.now, nil, w.req(conn, conns), netip.MustParseAddrPort("10.0.0.1:16386"),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, w.addr}), 999))
}

// join makes both connections of a path and says the session's name.
func (f *fakeServer) join(w someone) *ServerPath {
	f.t.Helper()
	c := f.dial(w, 0, 2)
	if c.Path == nil {
		f.t.Fatalf("refused with %v", f.rejected)
	}
	f.dial(w, 1, 2)
	b, _ := rtrswire.AppendInfoReq(nil, w.name)
	if err := c.Path.Received(f.now, 0, b, 0, false); err != nil {
		f.t.Fatal(err)
	}
	return c.Path
}

// up makes a path that is connected, and returns its chunks.
func (f *fakeServer) up(w someone) (*ServerPath, []rtrswire.Desc) {
	f.t.Helper()
	p := f.join(w)
	if p.State() != Connected {
		f.t.Fatalf("the path is %v", p.State())
	}
	for _, o := range f.take() {
		if o.path == p && o.op.Kind == transport.OpSend {
			ds, err := rtrswire.ParseInfoRsp(o.bytes, f.s.chunks)
			if err != nil {
				f.t.Fatal(err)
			}
			return p, f.s.chunks.Spread(nil, ds)
		}
	}
	f.t.Fatal("no INFO_RSP")
	return nil, nil
}

// write does what the link does with a request: b into chunk id from byte at
// on, the message at byte off.
func (f *fakeServer) write(p *ServerPath, conn int, ds []rtrswire.Desc, id, at, off uint32, b []byte) error {
	f.t.Helper()
	r, ok := f.regions[ds[id].Key]
	if !ok {
		f.t.Fatalf("chunk %d has no key %d", id, ds[id].Key)
	}
	addr := ds[id].Addr + uint64(at)
	copy(r.b[addr-r.addr:], b)
	return p.Written(f.now, conn, transport.Placed{Known: true, Key: ds[id].Key, Addr: addr, N: len(b), Imm: uint32(f.s.chunks.Req(id, off))})
}

// put writes a whole request: user header "user-hdr".
func (f *fakeServer) put(p *ServerPath, conn int, ds []rtrswire.Desc, id uint32, op Op, data []byte) error {
	f.t.Helper()
	m := rtrswire.Req{Type: rtrswire.Write, UsrLen: 8}
	n := uint32(len(data))
	if op == Read {
		m.Type = rtrswire.Read
		if n > 0 {
			m.SGCnt, m.Desc = 1, rtrswire.Desc{Addr: 0xabc000, Key: 0x77, Len: n}
		}
		return f.write(p, conn, ds, id, n, n+8, m.Append([]byte("user-hdr")))
	}
	return f.write(p, conn, ds, id, 0, n+8, m.Append(append(bytes.Clone(data), "user-hdr"...)))
}

// disconnectAll is what an administrator does who disconnects every path of e.
func (s *Server) disconnectAll(now time.Duration, e *ServerSession) {
	for _, p := range e.Paths() {
		s.Disconnect(now, p)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// waiting is how many fences wait.
func (s *Server) waiting() (n int) {
	for _, e := range s.sessions {
		n += len(e.fences)
	}
	return n
}
