package simtest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
)

// node is one rdsd: an engine and the daemon's own shell around it (package
// node/datagram), on a machine that is simulated: thread.go is its reactor, link.go its
// connections.
type node struct {
	w     *World
	addr  netip.Addr
	host  *sim.Host
	cfg   rds.Config
	eng   *rds.Engine // nil: crashed
	epoch int         // incarnations so far
	apps  []*app
	views map[*conn.Lane]*view

	shell  *datagram.Local
	worker *datagram.Worker
	thread *thread
	links  []*link // started and not ended
	locked bool    // an application is in the middle of its step
	depth  int     // what is under way will be compared with the model when it is over

	offering uint64              // sequence of the frame the engine is given
	posted   map[linkKey][]*post // by lane and sequence it last left with
	frozen   bool
	deferred []func()
}

type linkKey struct {
	p   *conn.Lane
	seq uint64
}

func (w *World) addNode(a netip.Addr) *node {
	n := &node{w: w, addr: a, host: w.net.AddHost(a)}
	w.nodes = append(w.nodes, n)
	w.byAddr[a] = n
	return n
}

// start begins an incarnation. cfg may differ from the former one's.
func (n *node) start() {
	lanes := n.cfg.Conn.Lanes
	n.cfg = n.w.drawConfig()
	if n.w.newerN > 0 {
		// A kernel never takes lanes back: what it has for them would be
		// stranded by a restart with fewer.
		n.cfg.Conn.Lanes = max(n.cfg.Conn.Lanes, lanes)
	}
	n.cfg.Budget = n.w.drawBudget()
	n.epoch++
	n.views = map[*conn.Lane]*view{}
	n.posted = map[linkKey][]*post{}
	n.frozen, n.deferred = false, nil
	n.boot()
	ep := n.epoch
	n.host.Accept = func(e *sim.End, from netip.AddrPort) {
		if n.epoch == ep {
			n.guard(func() { n.aside(func() { n.accepted(e, from) }) })()
		}
	}
	n.w.trace("%v starts, incarnation %d, lanes %d, budget %d", n.addr, n.epoch, n.cfg.Conn.Lanes, n.cfg.Budget.Limit)
	if n.epoch%2 == 0 {
		n.bindLate()
	} else {
		n.bindAll()
	}
	n.after()
	if n.w.vol != nil {
		n.w.vol.started(n)
	}
}

// crash ends the incarnation; nobody in it learns of it.
func (n *node) crash(power bool) {
	if n.eng == nil {
		return
	}
	n.w.trace("%v crashes, power off %v", n.addr, power)
	eng, links, apps := n.eng, n.links, n.apps
	n.eng, n.links, n.apps = nil, nil, nil
	if power {
		n.host.PowerOff()
	} else {
		n.host.Kill()
	}
	if n.w.vol != nil {
		n.w.vol.crashed(n, power)
	}
	for _, a := range apps {
		a.died()
	}
	n.dispose(eng, links)
}

// dispose gives back the memory a dead engine holds, and uses the occasion to
// see that all of it is accounted for.
func (n *node) dispose(eng *rds.Engine, links []*link) {
	for _, s := range eng.Sockets() {
		s.Close(n.w.Now())
	}
	eng.Shutdown(n.w.Now())
	for _, l := range links {
		l.free()
		if l.batch != nil {
			l.batch.Put()
			l.batch = nil
		}
	}
	for _, pe := range eng.Peers() { // what was being written, or whose turn was left to the next step
		pe.Conn().EachLane(func(p *conn.Lane) { p.Wrote(n.w.Now()) })
	}
	c := eng.Counters()
	n.w.counters.Add(&c)
	eng.End() // the node is told of memory at the end of a step
	if u := n.cfg.Budget.Datagrams(); u != 0 {
		n.w.fail("M1: %v: %d bytes of the budget are taken after everything was closed", n.addr, u)
	}
}

// guard makes an event of this incarnation: it does nothing after a crash and
// waits while the process is frozen.
func (n *node) guard(f func()) func() {
	ep := n.epoch
	return func() {
		switch {
		case n.epoch != ep || n.eng == nil:
		case n.frozen:
			n.deferred = append(n.deferred, f)
		default:
			f()
			if n.locked {
				n.w.fail("a step of %v was begun and not ended", n.addr)
			}
		}
	}
}

func (n *node) freeze(d time.Duration) {
	if n.eng == nil || n.frozen {
		return
	}
	n.w.trace("%v freezes for %v", n.addr, d)
	n.frozen = true
	if n.w.vol != nil {
		n.w.vol.frozen[n] += d + 210*time.Millisecond // and then others are given a heartbeat's time
	}
	ep := n.epoch
	n.w.After(d, func() {
		if n.epoch != ep || n.eng == nil {
			return
		}
		n.frozen = false
		l := n.deferred
		n.deferred = nil
		for _, f := range l {
			if n.epoch == ep && n.eng != nil {
				f()
			}
		}
	})
}

// --- the machine ------------------------------------------------------------------

// boot makes the daemon's shell of this incarnation.
func (n *node) boot() {
	w := n.w
	c := config.Default()
	c.RDS.Addresses = []netip.Addr{n.addr}
	n.cfg.AllowPeer = func(netip.Addr) bool { return true }
	n.thread = &thread{n: n}
	h := datagram.NewOn(base.New(c, nil), n.cfg, datagram.Machine{
		Clock:   w.Now,
		Wall:    func() time.Time { return time.Unix(0, 0).Add(w.Now()) },
		Aside:   func(f func()) { w.After(0, n.guard(func() { n.aside(f) })) },
		Dial:    n.dial,
		From:    func(_, _ netip.AddrPort) (int64, error) { return peers.NoUser, nil },
		Changed: n.changed,
	}, w.rng.Int63(), n.thread)
	n.shell, n.worker = h.Locals()[0], h.NextWorker()
	n.eng, _ = n.shell.Lock()
	n.locked = true
}

// dial is Machine.Dial.
func (n *node) dial(_ *datagram.Local, a conn.Action, done func(transport.Link, error)) {
	from := netip.AddrPortFrom(n.addr, n.sourcePort(a.Lane))
	remote := a.Lane.Conn().Remote()
	n.host.Dial(from.Port(), remote, n.cfg.Conn.DialTimeout, func(e *sim.End, err error) {
		n.guard(func() {
			n.aside(func() {
				if err != nil {
					done(nil, err)
				} else {
					done(n.newLink(e, from, netip.AddrPortFrom(remote, rdsPort)), nil)
				}
			})
		})()
	})
}

// rdsPort is where everybody listens.
const rdsPort = 16385

// sourcePort tells the lane to peers that go by it: port mod 8.
func (n *node) sourcePort(p *conn.Lane) uint16 {
	return uint16(32768 + 8*n.w.rng.Intn(3000) + p.Index())
}

func (n *node) accepted(e *sim.End, from netip.AddrPort) {
	n.w.mix(3, uint64(from.Port()))
	n.w.trace("%v accepts #%d from %v", n.addr, e.ID(), from)
	n.shell.Accept(n.newLink(e, netip.AddrPortFrom(n.addr, rdsPort), from))
}

// changed is Machine.Changed.
func (n *node) changed(_ *datagram.Local, s conn.StateChange) {
	n.w.mix(1, uint64(s.Lane.Index()), uint64(s.Was), uint64(s.Now))
	if n.w.verbose != nil {
		n.w.trace("%v: %v -> %v (%v)", s.Lane, s.Was, s.Now, s.Err)
	}
}

func (n *node) forget(l *link) {
	n.links = slices.DeleteFunc(n.links, func(o *link) bool { return o == l })
}

// --- steps ------------------------------------------------------------------------

// aside runs f, an event of a goroutine of the daemon.
func (n *node) aside(f func()) {
	n.depth++
	f()
	n.depth--
	n.check()
}

// lock begins an application's step, unless it has begun. after must follow.
func (n *node) lock() {
	if !n.locked {
		n.shell.Lock()
		n.locked = true
	}
}

// after ends an application's step: the shell carries out what the engine ordered.
func (n *node) after() {
	if n.locked {
		n.locked = false
		n.depth++
		n.shell.Unlock()
		n.depth--
	}
	n.check()
}
