package rtrs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// simClient is one process that uses the store: the shell of a Client, and an
// application.
type simClient struct {
	w      *world
	name   string
	num    int
	cfg    ClientConfig
	srv    *simServer
	wires  []*cable
	first  uint32 // its sectors
	count  uint32
	depth  int // requests it has under way
	limit  int // requests in all
	c      *Client
	inc    int
	alive  bool
	closed bool
	armed  time.Duration
	up     bool
	open   bool // the device is known
	device uint32
	opener *simReq
	ends   []*end

	running   int
	submitted int
	done      int
	failed    int
	ids       *uint64
	spare     []*simReq
	reqs      map[*simReq]bool // submitted
	thinking  bool
	poked     bool
	onDone    func(q *simReq)
}

// simReq is one request of the application.
type simReq struct {
	Req
	u     usr
	buf   []byte
	start int
	when  time.Duration
	live  bool
}

// dialling is an attempt to make one connection.
type dialling struct {
	n    *simClient
	life *life
	wire *cable
	conn int
	req  []byte
}

func (x *cable) index() int {
	for i, y := range x.w.wires {
		if x == y {
			return i
		}
	}
	panic("no such wire")
}

func (x *cable) serverAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(x.index()), 0, 100})
}

func (x *cable) clientAddr(n *simClient) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(x.index()), 0, byte(1 + n.num)})
}

func newSimClient(w *world, num int, cfg ClientConfig, srv *simServer, wires []*cable) *simClient {
	n := &simClient{w: w, num: num, name: fmt.Sprintf("client%d", num), cfg: cfg, srv: srv, wires: wires, ids: new(uint64), reqs: map[*simReq]bool{}}
	n.cfg.Name = n.name
	n.begin()
	return n
}

// begin starts the process.
func (n *simClient) begin() {
	c, err := NewClient(n.cfg, n, rand.New(rand.NewSource(n.w.rnd.Int63())), n.w.now)
	if err != nil {
		panic(err)
	}
	n.inc++
	n.c, n.alive, n.up, n.open, n.opener, n.running, n.ends, n.armed, n.closed = c, true, false, false, nil, 0, nil, Never, false
	n.reqs = map[*simReq]bool{}
	n.w.note("client %s starts (life %d)", n.name, n.inc)
	for _, x := range n.wires {
		n.addPath(x)
	}
	n.settle()
}

func (n *simClient) addPath(x *cable) {
	if _, err := n.c.AddPath(n.w.now, nil, netip.AddrPortFrom(x.clientAddr(n), 0), netip.AddrPortFrom(x.serverAddr(), 16386)); err != nil && !errors.Is(err, syscall.EEXIST) && !errors.Is(err, syscall.ESTALE) {
		panic(err)
	}
}

func (n *simClient) crash(silent bool) {
	n.w.note("client %s dies, silently: %v", n.name, silent)
	n.alive = false
	for _, e := range n.ends {
		e.die(silent)
	}
}

func (n *simClient) settle() {
	if !n.alive {
		return
	}
	if what := n.c.broken(); what != "" {
		n.w.fail("%s", what)
	}
	n.w.note("client %s: next %v", n.name, n.c.Next())
	if t := n.c.Next(); t < n.armed {
		n.armed = t
		c := n.c
		n.w.at(t+n.w.upTo(time.Millisecond), func() {
			if n.alive && n.c == c && n.armed == t {
				n.armed = Never
				c.Tick(n.w.now)
				n.settle()
			}
		})
	}
	if n.c.restPath != nil && !n.poked && n.submitted < n.limit && n.w.chance(0.5) { // it is asked to rest, and has work
		n.poked = true
		n.w.after(n.w.upTo(time.Millisecond), func() {
			n.poked = false
			if n.alive && n.c.Err() == nil {
				n.submit(usr{kind: usrWrite, sector: n.first, count: min(8, n.count)})
				n.settle()
			}
		})
	}
	n.work()
}

func (n *simClient) wireOf(p *ClientPath) *cable {
	for _, x := range n.wires {
		if x.serverAddr() == p.Remote.Addr() {
			return x
		}
	}
	panic("no wire")
}

func (n *simClient) Dial(p *ClientPath, conn int, _ transport.LinkAttr, req []byte) {
	l, _ := p.Ctx.(*life)
	if conn == 0 {
		c := n.c
		l = &life{w: n.w, path: p, after: n.settle, dom: newDomain(n.w, n.wireOf(p).dev), alive: func() bool { return n.alive && n.c == c }}
		l.dom.life = l
		p.Ctx = l
	}
	l.dials++
	n.w.note("client %s: dials %v, %d: %#x", n.name, p.Remote, conn, digest(req))
	d := &dialling{n: n, life: l, wire: n.wireOf(p), conn: conn, req: req}
	d.travel(0)
}

// travel is the connection's set-up, which waits while the wire is cut.
func (d *dialling) travel(tries int) {
	w := d.n.w
	w.after(w.upTo(d.wire.delay)+10*time.Microsecond, func() {
		switch {
		case !d.life.alive():
		case d.life.hung:
			d.over()
		case d.wire.cut[0] || d.wire.cut[1]:
			w.after(20*time.Millisecond, func() { d.travel(tries + 1) })
		case !d.n.srv.alive:
			d.answer(func(p *ClientPath) { p.Refused(w.now, d.conn, nil, rdserr.ErrRefused) })
		default:
			d.n.srv.connect(d)
		}
	})
}

func (d *dialling) over() {
	d.life.dials--
	d.life.check()
}

func (d *dialling) answer(f func(p *ClientPath)) {
	w := d.n.w
	w.after(w.upTo(d.wire.delay), func() {
		if !d.life.alive() {
			return
		}
		hung := d.life.hung
		if !hung {
			f(d.life.path.(*ClientPath))
		}
		d.over()
		d.n.settle()
	})
}

func (d *dialling) accepted(e *end, rsp []byte) {
	n := d.n
	alive := d.life.alive()
	n.ends = append(n.ends, e)
	d.life.take(d.conn, e)
	if !alive {
		e.die(false)
		return
	}
	d.answer(func(p *ClientPath) { p.Dialed(n.w.now, d.conn, rsp) })
}

func (d *dialling) rejected(rsp []byte) {
	d.answer(func(p *ClientPath) { p.Refused(d.n.w.now, d.conn, rsp, nil) })
}

func (n *simClient) Hang(p *ClientPath) { p.Ctx.(*life).hang() }
func (n *simClient) Post(p *ClientPath, conn int, op *transport.Op) {
	p.Ctx.(*life).post(conn, op)
}
func (n *simClient) Grant(p *ClientPath, conn int, b []byte) (uint32, uint64) {
	return p.Ctx.(*life).dom.register(b, 0)
}
func (n *simClient) Take(p *ClientPath, key uint32) (int, transport.Revocation) {
	return p.Ctx.(*life).dom.take(key)
}

func (n *simClient) Up() {
	if n.up {
		n.w.fail("up twice")
	}
	n.up = true
	n.w.note("client %s: up", n.name)
	if n.srv.st.inc[n.name] < n.inc { // what its former life wrote has ended
		n.srv.st.inc[n.name] = n.inc
		for i := range *n.ids {
			id := uint64(n.num+1)<<32 | (i + 1)
			if m := n.srv.st.byID[id]; m.end == 0 && m.inc < n.inc {
				n.srv.st.ended(id, syscall.ESHUTDOWN)
			}
		}
	}
	n.openDevice()
}

func (n *simClient) openDevice() {
	q := &simReq{u: usr{kind: usrOpen}, buf: make([]byte, 8)}
	n.opener = q
	q.Op, q.Admin, q.Data = Read, true, q.buf
	q.Usr = q.u.append(nil)
	if err := n.c.Submit(n.w.now, &q.Req); err != nil {
		n.w.fail("open: %v", err)
	}
}

func (n *simClient) Down() {
	if !n.up {
		n.w.fail("down twice")
	}
	n.up, n.open, n.opener = false, false, nil
	n.w.note("client %s: down", n.name)
}

func (n *simClient) Closed() { n.closed = true }

func (n *simClient) Event(e Event) {
	n.w.note("client %s: %v %v->%v n=%d %v", n.name, e.Kind, e.From, e.To, e.N, e.Err)
	if e.Kind == EventPath {
		n.w.moves[move{true, e.From, e.To}] = true
	}
	if e.Kind == EventViolation {
		n.w.fail("client %s finds that the server broke the protocol: %v", n.name, e.Err)
	}
}

func (n *simClient) Done(r *Req) {
	for _, l := range n.lives() {
		if r.Op == Read && l.dom.covered(r.Data) {
			n.w.fail("memory of a request is writable after it")
		}
	}
	if r.Admin {
		if n.opener == nil || r != &n.opener.Req {
			return // of before
		}
		n.opener = nil
		if r.Err != nil {
			n.w.note("client %s: open: %v", n.name, r.Err)
			if n.up && n.c.Err() == nil {
				n.openDevice()
			}
			return
		}
		n.device, n.open = binary.LittleEndian.Uint32(r.Data), true
		n.c.Each(func(r *Req) {
			if r.Admin {
				return
			}
			binary.LittleEndian.PutUint32(r.Usr[4:], n.device)
			if n.w.chance(0.05) {
				n.c.Cancel(n.w.now, r, syscall.ECANCELED)
			}
		})
		n.c.Resume(n.w.now)
		return
	}
	q := r.Ctx.(*simReq)
	if !q.live {
		n.w.fail("B4: a request done twice")
	}
	q.live = false
	delete(n.reqs, q)
	n.running--
	n.done++
	n.w.note("client %s: %d of sector %d+%d (write %d) done: %v", n.name, q.u.kind, q.u.sector, q.u.count, q.u.id, r.Err)
	if n.cfg.OnLoss == Error {
		if took, most := n.w.now-q.when, n.c.cfg.IOTimeout+n.c.cfg.LossTimeout+20*time.Millisecond; took > most && n.c.Err() == nil {
			n.w.fail("B4: a request took %v, %v are allowed", took, most)
		}
	}
	if r.Err != nil {
		n.failed++
	}
	switch q.u.kind {
	case usrWrite:
		n.srv.st.ended(q.u.id, r.Err)
	case usrRead, usrShort:
		for i := uint32(0); i < q.u.count && r.Err == nil; i++ {
			b := q.buf[i*sectorLen:][:sectorLen]
			if q.u.kind == usrShort && i > 0 {
				if [sectorLen]byte(b) != [sectorLen]byte{} {
					n.w.fail("B8: a read brings bytes that nobody put there: %x", b[:16])
				}
				continue
			}
			n.srv.st.saw(q.start, q.u.sector+i, b)
		}
	case usrBad:
		if r.Err == nil {
			n.w.fail("a bad request succeeded")
		}
	case usrFlush:
	}
	scramble(q.buf)
	n.spare = append(n.spare, q)
	if n.onDone != nil {
		n.onDone(q)
	}
}

func (n *simClient) lives() (ls []*life) {
	for _, p := range n.c.Paths() {
		if l, _ := p.Ctx.(*life); l != nil {
			ls = append(ls, l)
		}
	}
	return ls
}

// work submits requests, now and then with pauses.
func (n *simClient) work() {
	if n.thinking || !n.alive || n.c.Err() != nil || n.running >= n.depth || n.submitted >= n.limit {
		return
	}
	n.thinking = true
	pause := n.w.upTo(2 * time.Millisecond)
	if n.w.chance(0.005) {
		pause = n.w.upTo(2 * time.Second)
	}
	n.w.after(pause, func() {
		n.thinking = false
		if !n.alive || n.c.Err() != nil {
			return
		}
		for k := n.w.rnd.Intn(n.depth) + 1; k > 0 && n.running < n.depth && n.submitted < n.limit; k-- {
			u := usr{sector: n.first + uint32(n.w.rnd.Intn(int(n.count)))}
			u.count = min(uint32(1+n.w.rnd.Intn(8)), n.first+n.count-u.sector)
			switch x := n.w.rnd.Float64(); {
			case x < 0.45:
				u.kind = usrRead
			case x < 0.9:
				u.kind = usrWrite
			case x < 0.94:
				u.kind, u.count = usrFlush, 0
			case x < 0.97:
				u.kind = usrShort
			default:
				u.kind, u.count = usrBad, 0
			}
			n.submit(u)
		}
		n.settle()
	})
}

func (n *simClient) submit(u usr) *simReq {
	var q *simReq
	if k := len(n.spare); k > 0 && n.w.chance(0.9) {
		q, n.spare = n.spare[k-1], n.spare[:k-1]
	} else {
		q = &simReq{buf: make([]byte, 8*sectorLen)}
		q.Ctx = q
	}
	q.Op, q.Flow, q.Data = Read, n.w.rnd.Uint32(), nil
	u.device = n.device
	if u.count > 0 {
		q.Data = q.buf[:u.count*sectorLen]
	}
	if u.kind == usrWrite {
		q.Op = Write
		*n.ids++
		u.id = uint64(n.num+1)<<32 | *n.ids
		for i := range u.count {
			fill(q.Data[i*sectorLen:], u.id, u.sector+i)
		}
		n.srv.st.begin(u.id, n.inc, u.sector, u.count)
	}
	q.u = u
	q.Usr = u.append(q.Usr[:0])
	n.w.order++
	q.start, q.when, q.live = n.w.order, n.w.now, true
	n.running++
	n.submitted++
	n.reqs[q] = true
	n.w.note("client %s: submits %d of sector %d+%d (write %d)", n.name, u.kind, u.sector, u.count, u.id)
	if err := n.c.Submit(n.w.now, &q.Req); err != nil {
		n.w.fail("submit: %v", err)
	}
	return q
}
