package rtrs

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// simServer is one process that serves the store.
type simServer struct {
	w       *world
	cfg     ServerConfig
	st      *store
	s       *Server
	inc     int // life of the process
	alive   bool
	closed  bool
	armed   time.Duration
	seed    uint32
	mem     map[*byte]bool
	ends    []*end // of this life
	running map[*ServerReq]bool
}

// userSession is what the user of a session knows.
type userSession struct {
	device uint32
	down   bool
}

func newSimServer(w *world, cfg ServerConfig, st *store) *simServer {
	n := &simServer{w: w, cfg: cfg, st: st, seed: w.rnd.Uint32()}
	n.start()
	return n
}

func (n *simServer) start() {
	n.seed += 1000
	s, err := NewServer(n.cfg, n, n.seed, n.w.now)
	if err != nil {
		panic(err)
	}
	s.keep = 0
	n.inc++
	n.s, n.alive, n.armed, n.mem, n.ends, n.running = s, true, Never, map[*byte]bool{}, nil, map[*ServerReq]bool{}
	n.w.note("server starts (life %d)", n.inc)
}

// crash kills the process; silent: its machine goes too.
func (n *simServer) crash(silent bool) {
	n.w.note("server dies, silently: %v", silent)
	n.alive = false
	for _, e := range n.ends {
		e.die(silent)
	}
	for _, m := range n.st.byID {
		m.copies = 0
	}
}

// settle is called after each call into the core.
func (n *simServer) settle() {
	if !n.alive {
		return
	}
	if what := n.s.broken(); what != "" {
		n.w.fail("%s", what)
	}
	n.w.note("server: next %v", n.s.Next())
	if t := n.s.Next(); t < n.armed {
		n.armed = t
		s := n.s
		n.w.at(t+n.w.upTo(time.Millisecond), func() {
			if n.alive && n.s == s && n.armed == t {
				n.armed = Never
				s.Tick(n.w.now)
				n.settle()
			}
		})
	}
}

// connect is what the listener does.
func (n *simServer) connect(d *dialling) {
	n.s.Connect(n.w.now, d, d.req, netip.AddrPortFrom(d.wire.serverAddr(), 16386), netip.AddrPortFrom(d.wire.clientAddr(d.n), 40000))
	n.settle()
}

func (n *simServer) Accept(c *ServerCon, _ transport.LinkAttr, rsp []byte) {
	d := c.Ctx.(*dialling)
	n.w.note("server accepts %d of %s: %#x", c.Num, d.n.name, digest(rsp))
	l, _ := c.Path.Ctx.(*life)
	if l == nil {
		s := n.s
		l = &life{w: n.w, path: c.Path, after: n.settle, dom: newDomain(n.w, d.wire.dev), alive: func() bool { return n.alive && n.s == s }}
		l.dom.life = l
		c.Path.Ctx = l
	}
	ce, se := newPair(d.wire, d.life.dom, l.dom)
	n.ends = append(n.ends, se)
	l.take(c.Num, se)
	d.accepted(ce, rsp)
}

func (n *simServer) Reject(c *ServerCon, rsp []byte) {
	n.w.note("server rejects: %#x", digest(rsp))
	c.Ctx.(*dialling).rejected(rsp)
}

func (n *simServer) Hang(p *ServerPath) { p.Ctx.(*life).hang() }
func (n *simServer) Post(p *ServerPath, conn int, op *transport.Op) {
	p.Ctx.(*life).post(conn, op)
}
func (n *simServer) Register(p *ServerPath, b []byte) (uint32, uint64) {
	return p.Ctx.(*life).dom.register(b, 0)
}
func (n *simServer) Adopt(p *ServerPath, mem []byte) (bool, error) { return false, nil }
func (n *simServer) Grant(p *ServerPath, conn int, b []byte, at uint64) (uint32, uint64) {
	return p.Ctx.(*life).dom.register(b, at)
}
func (n *simServer) Revoke(p *ServerPath, key uint32) transport.Revocation {
	_, how := p.Ctx.(*life).dom.take(key)
	return how
}

func (n *simServer) Alloc(size int) []byte {
	b := make([]byte, size)
	n.mem[&b[0]] = true
	return b
}

func (n *simServer) Free(b []byte) {
	if !n.mem[&b[0]] {
		n.w.fail("memory given back that is not there")
	}
	delete(n.mem, &b[0])
	scramble(b)
}

func (n *simServer) Trim(b []byte) {
	n.w.note("trims %d bytes", len(b))
	scramble(b)
}

func scramble(b []byte) {
	for i := range b {
		b[i] = 0xdd
	}
}

func (n *simServer) Up(s *ServerSession) {
	s.Ctx = &userSession{device: n.w.rnd.Uint32() | 1}
	n.w.note("server: session %s up", s.Name)
}

func (n *simServer) Down(s *ServerSession) {
	s.Ctx.(*userSession).down = true
	n.w.note("server: session %s down", s.Name)
}

func (n *simServer) Stale(*ServerSession) {}

func (n *simServer) Closed() { n.closed = true }

func (n *simServer) Event(e Event) {
	n.w.note("server: %v %s %v->%v n=%d %v", e.Kind, e.Name, e.From, e.To, e.N, e.Err)
	if e.Kind == EventPath {
		n.w.moves[move{false, e.From, e.To}] = true
	}
	if e.Kind == EventViolation {
		n.w.fail("the server finds that a client broke the protocol: %v", e.Err)
	}
}

// Request runs r on the store.
func (n *simServer) Request(r *ServerReq) {
	s, w := n.s, n.w
	us := r.Session.Ctx.(*userSession)
	u := parseUsr(r.Usr)
	if us.down {
		w.fail("a request of a session that is down")
	}
	if !n.cfg.NoInvalidate && r.Path.Ctx.(*life).dom.covered(r.Session.chunk(r.chunk)) {
		w.fail("the client can write into a chunk while it is used")
	}
	n.running[r] = true
	reply := func(k int, err error) {
		delete(n.running, r)
		s.Reply(w.now, r, k, err)
	}
	later := func(d time.Duration, f func()) {
		w.after(d, func() {
			if n.alive && n.s == s {
				f()
				n.settle()
			}
		})
	}
	if u.kind != usrOpen && u.device != us.device {
		w.fail("a request for device %d, which is %d in this life of the session", u.device, us.device)
	}
	switch u.kind {
	case usrOpen:
		binary.LittleEndian.PutUint32(r.Data, us.device)
		if w.chance(0.5) {
			reply(8, nil) // from within
		} else {
			later(w.upTo(n.st.latency), func() { reply(8, nil) })
		}
		return
	case usrBad:
		reply(0, syscall.ENOTCONN)
		return
	case usrFlush:
		later(w.upTo(n.st.latency), func() { reply(0, nil) })
		return
	}
	var m *modelWrite
	if u.kind == usrWrite {
		m = n.st.byID[u.id]
		if m.copies++; m.copies > 1 {
			w.fail("B3: two copies of write %d are at the store", u.id)
		}
	}
	life, name := n.inc, r.Session.Name
	i := uint32(0)
	var next func()
	next = func() {
		if n.inc != life {
			return
		}
		if d := n.st.stalled - w.now; d > 0 || n.st.hold != nil && m != nil && n.st.hold(u.id) {
			later(max(d, 10*time.Millisecond), next)
			return
		}
		if r.Stale() && i == 0 && w.chance(0.5) {
			if m != nil {
				m.copies--
			}
			reply(0, syscall.ECANCELED)
			return
		}
		if i == u.count {
			if m != nil {
				m.copies--
			}
			k := len(r.Data)
			if u.kind == usrShort {
				k = sectorLen
			}
			reply(k, nil)
			return
		}
		b := r.Data[i*sectorLen:][:sectorLen]
		switch at := u.sector + i; u.kind {
		case usrWrite:
			n.st.touch(name, u.id, at, b)
		case usrRead:
			copy(b, n.st.sectors[at].bytes[:])
		case usrShort:
			if i == 0 {
				copy(b, n.st.sectors[at].bytes[:])
			}
		}
		i++
		later(w.upTo(n.st.latency/4), next)
	}
	later(w.upTo(n.st.latency), next)
}
