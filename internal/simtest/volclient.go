package simtest

import (
	"errors"
	"math/rand"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
)

// volClient is one session of a node to one server, with the volumes mapped over
// it and their users.
type volClient struct {
	volShell
	name    string
	srv     *volServer
	node    *node
	cfg     rtrs.ClientConfig
	process int // so far
	upLife  int // the last that had a session
	rt      *rtrs.Client
	rn      *rnbd.Client
	maps    []*mapping // one for each disk of srv
	closed  bool
	buf     []*blk.Request
	lives   []*volLife
}

// start begins a process: paths over every pair of addresses of equal number,
// nothing mapped.
func (c *volClient) start(n *node) {
	v := n.w.vol
	w := v.w
	c.begin(v, n, c.finished)
	c.process++
	c.closed, c.lives = false, nil
	c.cfg = rtrs.ClientConfig{Name: c.name, Conns: 2 + w.rng.Intn(2), QueueDepth: pick(w, 0, 0, 2), ConnectTimeout: pick(w, 3*time.Second, 5*time.Second),
		ReconnectMax: pick(w, 500*time.Millisecond, 5*time.Second), Policy: rtrs.Policy(w.rng.Intn(len(rtrs.Policies()))), IOTimeout: pick(w, 500*time.Millisecond, 3*time.Second, 30*time.Second),
		OnLoss: rtrs.OnLoss(w.rng.Intn(2)), LossTimeout: pick(w, 500*time.Millisecond, 3*time.Second), RemoteInval: w.chance(4)}
	var err error
	if c.rt, err = rtrs.NewClient(c.cfg, (*volClientEnv)(c), rand.New(rand.NewSource(w.rng.Int63())), w.Now()); err != nil {
		panic(err)
	}
	c.rn = rnbd.NewClient(rnbd.ClientConfig{OnLoss: c.cfg.OnLoss, LossTimeout: c.cfg.LossTimeout, IOTimeout: c.cfg.IOTimeout, AskEvery: time.Second}, (*volEnv)(c), c.rt)
	c.core = clientCore{c}
	w.trace("%v: session %s starts, process %d, on loss %v, I/O timeout %v, loss timeout %v", n.addr, c.name, c.process, c.cfg.OnLoss, c.cfg.IOTimeout, c.cfg.LossTimeout)
	c.maps = nil
	for _, d := range c.srv.disks {
		m := &mapping{c: c, d: d, depth: pick(w, 1, 3, 8)}
		c.maps = append(c.maps, m)
		m.work()
	}
	c.addPaths()
	c.settle()
}

// clientCore is RTRS and RNBD under one timer.
type clientCore struct{ c *volClient }

func (k clientCore) Next() time.Duration { return min(k.c.rt.Next(), k.c.rn.Next()) }
func (k clientCore) Tick(now time.Duration) time.Duration {
	k.c.rt.Tick(now)
	k.c.rn.Tick(now)
	return k.Next()
}

func (c *volClient) addPaths() {
	for i, h := range c.v.nics[c.node] {
		there := netip.AddrPortFrom(c.v.nics[c.srv.n][i].Addr, volPort)
		if _, err := c.rt.AddPath(c.v.w.Now(), netip.AddrPortFrom(h.Addr, 0), there); err != nil && !errors.Is(err, syscall.EEXIST) && c.rt.Err() == nil {
			c.v.w.fail("%s: path %d: %v", c.name, i, err)
		}
	}
}

// heal undoes what the administrator has done.
func (c *volClient) heal() {
	if c.dead || c.rt.Err() != nil {
		return
	}
	for _, p := range c.rt.Paths() {
		if p.State() == rtrs.Closed {
			c.rt.Reconnect(c.v.w.Now(), p)
		}
	}
	c.addPaths()
	c.settle()
}

// finished hands completed requests to their users.
func (c *volClient) finished() (any bool) {
	if c.buf == nil {
		c.buf = make([]*blk.Request, 0, 8)
	}
	for {
		done := c.rn.Finished(c.buf[:0])
		if len(done) == 0 {
			return any
		}
		any = true
		blk.Complete(done)
	}
}

// volClientEnv is what the RTRS client needs done.
type volClientEnv volClient

func (e *volClientEnv) nic(p *rtrs.ClientPath) *sim.Host {
	for _, h := range e.v.nics[e.node] {
		if h.Addr == p.Local.Addr() {
			return h
		}
	}
	panic("simtest: no such address")
}

func (e *volClientEnv) life(p *rtrs.ClientPath) *volLife {
	f, _ := p.Ctx.(*volLife)
	if f == nil || f.told {
		f = newVolLife(&e.volShell, p, e.nic(p))
		e.lives = append(slices.DeleteFunc(e.lives, func(f *volLife) bool { return f.told && f.open == 0 }), f)
		p.Ctx = f
	}
	return f
}

func (e *volClientEnv) Dial(p *rtrs.ClientPath, conn int, req []byte) {
	f, w := e.life(p), e.v.w
	src := uint16(40000 + w.rng.Intn(20000))
	sim.NewOneSided(e.nic(p)).Dial(src, p.Remote.Addr(), 5*time.Second, f.dom, req, func(l transport.OneSided, rsp []byte, err error) {
		e.guard(func() {
			refused, _ := errors.AsType[*transport.Refused](err)
			switch {
			case f.hung:
				if err == nil {
					l.Close()
				}
				return
			case refused != nil:
				p.Refused(w.Now(), conn, refused.Private, err)
			case err != nil:
				p.Refused(w.Now(), conn, nil, err)
			default:
				f.take(conn, l)
				p.Dialed(w.Now(), conn, rsp)
			}
			e.settle()
		})()
	})
}

func (e *volClientEnv) Hang(p *rtrs.ClientPath) { e.life(p).hang() }
func (e *volClientEnv) Post(p *rtrs.ClientPath, conn int, op *transport.Op) {
	e.life(p).post(conn, op)
}
func (e *volClientEnv) Register(p *rtrs.ClientPath, b []byte) (uint32, uint64) {
	return e.life(p).register(b)
}
func (e *volClientEnv) Take(p *rtrs.ClientPath, key uint32) (int, bool) {
	return e.life(p).takeKey(key)
}

func (e *volClientEnv) Up() {
	c := (*volClient)(e)
	e.v.replaced(c)
	e.rn.Up(e.v.w.Now())
}
func (e *volClientEnv) Down()            { e.rn.Down(e.v.w.Now()) }
func (e *volClientEnv) Done(r *rtrs.Req) { e.rn.Done(e.v.w.Now(), r) }
func (e *volClientEnv) Closed()          { e.closed = true }
func (e *volClientEnv) Event(x rtrs.Event) {
	w := e.v.w
	w.mix(25, uint64(x.Kind), uint64(x.From), uint64(x.To), uint64(x.N))
	if w.verbose != nil {
		at := ""
		if x.Client != nil {
			at = x.Client.Local.Addr().String()
		}
		w.trace("%s %s: %v %v->%v n=%d (%v)", e.name, at, x.Kind, x.From, x.To, x.N, x.Err)
	}
	switch x.Kind {
	case rtrs.EventViolation:
		w.fail("B5: %s finds that the server broke the protocol: %v", e.name, x.Err)
	case rtrs.EventFailover:
		e.v.total.Failovers += x.N
	}
}

// volEnv is what the RNBD client tells.
type volEnv volClient

func (e *volEnv) mapping(v *rnbd.Volume) *mapping {
	m, _ := v.Ctx.(*mapping)
	return m
}

func (e *volEnv) Mapped(v *rnbd.Volume, err error) {
	if m := e.mapping(v); m != nil {
		m.asked = false
		if e.v.w.verbose != nil {
			e.v.w.trace("%s: %s is mapped: %v", e.name, m.d.name, err)
		}
		if err != nil {
			m.vol = nil
		}
	}
}

func (e *volEnv) Unmapped(v *rnbd.Volume) {
	if m := e.mapping(v); m != nil {
		m.vol, m.asked = nil, false
	}
}

func (e *volEnv) Changed(*rnbd.Volume, *blk.Info) {}

func (e *volEnv) Event(x rnbd.ClientEvent) {
	w := e.v.w
	w.mix(26, uint64(x.Kind), uint64(x.From), uint64(x.To))
	if w.verbose != nil {
		w.trace("%s: %s: %v %v->%v (%v)", e.name, x.Volume.Name(), x.Kind, x.From, x.To, x.Err)
	}
}
