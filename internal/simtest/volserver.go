package simtest

import (
	"cmp"
	"math/rand"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// volServer is the process of a node that exports disks.
type volServer struct {
	volShell
	rt     *rtrs.Server
	rn     *rnbd.Server
	disks  []*disk
	mem    int // sessions' chunks not given back
	closed bool
	buf    []*blk.Request
}

const volPort = 16386

// start begins a process. Its disks are opened anew.
func (s *volServer) start(n *node) {
	v := n.w.vol
	s.begin(v, n, s.next)
	s.closed, s.mem = false, 0
	rnd := rand.New(rand.NewSource(v.w.rng.Int63()))
	rt, err := rtrs.NewServer(v.serverConfig, (*volServerEnv)(s), rnd.Uint32(), v.w.Now())
	if err != nil {
		panic(err)
	}
	s.rt, s.core = rt, rt
	s.rn = rnbd.NewServer(rnbd.ServerConfig{Boot: v.boots[n], Past: v.past[n], Notes: true}, (*volExportEnv)(s), rt, rnd)
	for _, d := range s.disks {
		if err := s.rn.Export(&rnbd.Export{Name: d.name, Device: &store{d: d, srv: s}, Rules: rnbd.Rules{Shared: d.shared}}); err != nil {
			panic(err)
		}
	}
	for _, h := range v.nics[n] {
		sim.NewOneSided(h).Listen(func(r transport.ConnRequest) {
			s.guard(func() {
				s.rt.Connect(v.w.Now(), r, r.Private(), netip.AddrPortFrom(h.Addr, volPort), r.RemoteAddr())
				s.settle()
			})()
		})
	}
	s.settle()
}

// next hands what the server has for its disks to them.
func (s *volServer) next() (any bool) {
	if s.buf == nil {
		s.buf = make([]*blk.Request, 0, 8)
	}
	for {
		d, batch := s.rn.Next(s.v.w.Now(), s.buf[:0])
		if d == nil {
			return any
		}
		for _, r := range batch {
			r.Queue = s
		}
		d.Submit(batch)
		any = true
	}
}

// Complete is called by stores.
func (s *volServer) Complete(batch []*blk.Request) {
	s.rn.Complete(s.v.w.Now(), batch)
	s.settle()
}

// volServerEnv is what the RTRS server needs done.
type volServerEnv volServer

func (e *volServerEnv) life(p *rtrs.ServerPath) *volLife { return p.Ctx.(*volLife) }

func (e *volServerEnv) Accept(c *rtrs.ServerCon, rsp []byte) {
	f, _ := c.Path.Ctx.(*volLife)
	if f == nil {
		f = newVolLife(&e.volShell, c.Path, e.v.nics[e.n][0])
		c.Path.Ctx = f
	}
	l, err := c.Ctx.(transport.ConnRequest).Accept(f.dom, rsp)
	if err != nil {
		p, num := c.Path, c.Num
		e.tell = append(e.tell, func() {
			if !f.hung {
				p.Lost(e.v.w.Now(), num, err)
			}
		})
		return
	}
	f.take(c.Num, l)
}

func (e *volServerEnv) Reject(c *rtrs.ServerCon, rsp []byte) {
	c.Ctx.(transport.ConnRequest).Reject(rsp)
}
func (e *volServerEnv) Hang(p *rtrs.ServerPath) { e.life(p).hang() }
func (e *volServerEnv) Post(p *rtrs.ServerPath, conn int, op *transport.Op) {
	e.life(p).post(conn, op)
}
func (e *volServerEnv) Register(p *rtrs.ServerPath, b []byte) (uint32, uint64) {
	return e.life(p).register(b)
}
func (e *volServerEnv) Renew(p *rtrs.ServerPath, b []byte, addr uint64) uint32 {
	return e.life(p).renew(b, addr)
}
func (e *volServerEnv) Revoke(p *rtrs.ServerPath, key uint32) bool { return e.life(p).revoke(key) }

func (e *volServerEnv) Alloc(n int) []byte {
	e.mem++
	return make([]byte, n)
}

func (e *volServerEnv) Free(b []byte) {
	e.mem--
	scramble(b)
}

func (e *volServerEnv) Trim(b []byte) { scramble(b) }

func (e *volServerEnv) Up(s *rtrs.ServerSession)   { e.rn.Up(s) }
func (e *volServerEnv) Down(s *rtrs.ServerSession) { e.rn.Down(e.v.w.Now(), s) }
func (e *volServerEnv) Request(r *rtrs.ServerReq) {
	if !e.v.serverConfig.NoInvalidate && r.Data != nil && e.life(r.Path).writable(r.Data) {
		e.v.w.fail("B3: the client may write to a chunk of %s while it is used", r.Session.Name)
	}
	e.rn.Request(e.v.w.Now(), r)
}
func (e *volServerEnv) Closed() { e.closed = true }
func (e *volServerEnv) Event(x rtrs.Event) {
	w := e.v.w
	w.mix(23, uint64(x.Kind), uint64(x.From), uint64(x.To), uint64(x.N))
	if w.verbose != nil {
		w.trace("%v serves %s: %v %v->%v n=%d (%v)", e.n.addr, x.Name, x.Kind, x.From, x.To, x.N, x.Err)
	}
	if x.Kind == rtrs.EventViolation {
		w.fail("B5: %v finds that its client broke the protocol: %v", e.n.addr, x.Err)
	}
}

// volExportEnv is what the RNBD server needs done.
type volExportEnv volServer

func (e *volExportEnv) Open(*rnbd.Opening)     { panic("simtest: all exports are devices") }
func (e *volExportEnv) Close(any, rnbd.Closer) {}

// Keep writes the state down a moment later, Note at once: both take the disk's time, and
// what is written down then is there when the machine starts again.
func (e *volExportEnv) Keep() {
	s := (*volServer)(e)
	s.v.w.After(s.v.w.upTo(60*time.Millisecond), s.guard(s.save))
}

func (e *volExportEnv) Note(o *rnbd.Opening) {
	s := (*volServer)(e)
	w := s.v.w
	w.After(w.upTo(5*time.Millisecond), s.guard(func() {
		s.save()
		w.After(w.upTo(time.Millisecond), s.guard(func() {
			s.rn.Noted(w.Now(), o, nil)
			s.settle()
		}))
	}))
}

// save writes down what the next process of this node is to know.
func (s *volServer) save() {
	l := s.rn.Past()
	slices.SortFunc(l, func(a, b rnbd.Past) int { return cmp.Compare(a.Where, b.Where) })
	s.v.past[s.n] = l
}

func (e *volExportEnv) Event(x rnbd.ServerEvent) {
	v := e.v
	v.w.mix(24, uint64(x.Kind), uint64(x.Access))
	if v.w.verbose != nil {
		v.w.trace("%v serves %s: %s %v, access %v (%v)", e.n.addr, x.Session, x.Name, x.Kind, x.Access, x.Err)
	}
	switch d := v.disk(x.Name); x.Kind {
	case rnbd.ServerOpened:
		if x.Access == rnbdwire.ReadWrite {
			v.owned(d, v.client(x.Session))
		}
	case rnbd.ServerSyncLost:
		v.boots[e.n]++ // kept by the shell over restarts
	}
}

func scramble(b []byte) {
	for i := range b {
		b[i] = 0xdd
	}
}

// crash ends the process.
func (s *volShell) crash() {
	s.dead = true
	for _, k := range s.links {
		k.l.(interface{ Die() }).Die()
	}
}

var _ rtrs.ServerEnv = (*volServerEnv)(nil)
var _ rtrs.ClientEnv = (*volClientEnv)(nil)

// pick draws one of several.
func pick[T any](w *World, of ...T) T { return of[w.rng.Intn(len(of))] }

// drawServer draws what all servers of a world are like.
func (v *volumes) drawServer() {
	w := v.w
	v.serverConfig = rtrs.ServerConfig{QueueDepth: pick(w, 1, 4, 16), MaxIO: sectorLen * pick(w, 2, 8), MaxHdr: 1024, NoInvalidate: w.chance(5),
		TrimAfter: pick(w, 20*time.Millisecond, 200*time.Millisecond, time.Hour), ConnectTimeout: pick(w, 3*time.Second, 5*time.Second)}
}
