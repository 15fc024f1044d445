package simtest

import (
	"math/rand"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport/sim"
)

// node is one rdsd: an engine and the shell around it, as the daemon has it.
type node struct {
	w     *World
	addr  netip.Addr
	host  *sim.Host
	cfg   rds.Config
	eng   *rds.Engine // nil: crashed
	epoch int         // incarnations so far
	apps  []*app
	links map[linkKey]*link
	views map[*conn.Path]*view

	parked   []*link
	orphans  []*link // gone, with a batch whose writing has not ended
	acts     []conn.Action
	ready    []*rds.Socket
	timerAt  time.Duration
	timerN   int
	inAfter  bool
	offering uint64            // sequence of the frame the engine is given
	posted   map[linkKey]*post // by path and sequence it last left with
	frozen   bool
	deferred []func()
}

type linkKey struct {
	p   *conn.Path
	gen uint64
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
	n.cfg.Budget = &rds.Budget{Limit: n.w.drawBudget()}
	n.epoch++
	n.eng = rds.NewEngine(&n.cfg, n.addr, rand.New(rand.NewSource(n.w.rng.Int63())))
	n.links = map[linkKey]*link{}
	n.views = map[*conn.Path]*view{}
	n.posted = map[linkKey]*post{}
	n.timerAt, n.timerN = -1, n.timerN+1
	n.frozen, n.deferred = false, nil
	ep := n.epoch
	n.host.Accept = func(e *sim.End, from netip.AddrPort) {
		if n.epoch == ep {
			n.guard(func() { n.accepted(e, from) })()
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
	eng, links, apps, orphans := n.eng, n.links, n.apps, n.orphans
	n.eng, n.links, n.apps, n.parked, n.orphans = nil, nil, nil, nil, nil
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
	n.dispose(eng, links, orphans)
}

// dispose gives back the memory a dead engine holds, and uses the occasion to
// see that all of it is accounted for.
func (n *node) dispose(eng *rds.Engine, links map[linkKey]*link, orphans []*link) {
	for _, s := range eng.Sockets() {
		s.Close(n.w.Now())
	}
	eng.Shutdown(n.w.Now())
	for _, l := range links {
		orphans = append(orphans, l)
	}
	for _, l := range orphans {
		l.free()
		if l.writing {
			l.writing = false
			eng.Wrote(n.w.Now(), l.p)
		}
	}
	c := eng.Counters()
	n.w.counters.Add(&c)
	eng.EndStep() // the node is told of memory at the end of a step
	if u := n.cfg.Budget.Used(); u != 0 {
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

// after carries out what the engine ordered, until it orders nothing more.
func (n *node) after() {
	if n.inAfter {
		return
	}
	n.inAfter = true
	for n.unpark(); n.eng.EndStep(); n.unpark() {
		for _, s := range n.eng.States() {
			n.w.mix(1, uint64(s.Path.Index()), uint64(s.Was), uint64(s.Now))
			if n.w.verbose != nil {
				n.w.trace("%v: %v -> %v (%v)", s.Path, s.Was, s.Now, s.Err)
			}
		}
		n.eng.Notices()
		n.eng.Evicted()
		if n.eng.Collect() {
			n.w.After(0, n.guard(n.collect))
		}
		n.ready = n.eng.Ready(n.ready[:0])
		for _, s := range n.ready {
			if a, _ := s.Options().Data.(*app); a != nil {
				a.news(s.Events())
			}
		}
		n.acts = n.eng.Take(n.acts[:0])
		acts := n.acts
		n.acts = nil
		for _, a := range acts {
			n.act(a)
		}
		n.acts = acts
	}
	n.inAfter = false
	n.rearm()
	n.check()
}

// collect looks at what all clients of the node gave back.
func (n *node) collect() {
	for _, a := range slices.Clone(n.apps) {
		if a.m != nil && len(a.m.released) > 0 {
			a.m.collect()
		}
	}
}

func (n *node) rearm() {
	at, ok := n.eng.Next()
	if !ok {
		n.timerAt = -1
		n.timerN++
		return
	}
	if at == n.timerAt {
		return
	}
	n.timerAt = at
	n.timerN++
	my := n.timerN
	n.w.At(at, n.guard(func() {
		if n.timerN == my {
			n.timerAt = -1
			n.eng.Tick(n.w.Now())
			n.after()
		}
	}))
}

// unpark starts reading parked links that have become their path's own.
func (n *node) unpark() {
	for i := 0; i < len(n.parked); i++ {
		l := n.parked[i]
		if l.parked && l.p.Attempt() == l.attempt {
			l.parked = false
			l.wakeUp()
		}
		if !l.parked {
			n.parked = append(n.parked[:i], n.parked[i+1:]...)
			i--
		}
	}
}

func (n *node) act(a conn.Action) {
	w := n.w
	w.mix(2, uint64(a.Kind), uint64(a.Path.Index()), a.Attempt)
	if w.verbose != nil && a.Kind != conn.ActKick && a.Kind != conn.ActPoll {
		w.trace("%v: %v gen %d (%v)", a.Path, a.Kind, a.Attempt, a.Why)
	}
	l := n.links[linkKey{a.Path, a.Attempt}]
	switch a.Kind {
	case conn.ActDial:
		n.host.Dial(n.sourcePort(a.Path), a.Path.Conn().Remote(), n.cfg.Conn.DialTimeout, func(e *sim.End, err error) {
			n.guard(func() { n.dialled(a, e, err) })()
		})
	case conn.ActPoke:
		n.host.Dial(n.sourcePort(a.Path), a.Path.Conn().Remote(), n.cfg.Conn.DialTimeout, func(e *sim.End, err error) {
			if e != nil {
				e.Close()
			}
		})
	case conn.ActClose:
		if l != nil {
			l.close(a.Why)
		}
	case conn.ActAbort:
		if l != nil {
			l.abort()
		}
	case conn.ActKick:
		if l != nil {
			l.transmit()
		}
	case conn.ActPoll:
		if l != nil {
			n.eng.Acked(w.Now(), a.Path, a.Attempt, l.end.Acked())
		}
	case conn.ActResume:
		if l != nil {
			l.resume()
		}
	}
}

// sourcePort tells the lane to peers that go by it: port mod 8.
func (n *node) sourcePort(p *conn.Path) uint16 {
	return uint16(32768 + 8*n.w.rng.Intn(3000) + p.Index())
}

func (n *node) dialled(a conn.Action, e *sim.End, err error) {
	if err != nil {
		n.eng.DialFailed(n.w.Now(), a.Path, a.Attempt, err)
		n.after()
		return
	}
	l := n.newLink(a.Path, a.Attempt, e)
	if !n.eng.Connected(n.w.Now(), a.Path, a.Attempt) {
		l.drop()
		e.Close()
	} else {
		l.wakeUp()
	}
	n.after()
}

func (n *node) accepted(e *sim.End, from netip.AddrPort) {
	acc, err := n.eng.Accept(n.w.Now(), from)
	n.w.mix(3, uint64(from.Port()))
	if n.w.verbose != nil {
		n.w.trace("%v accepts #%d from %v: link %v parked %v gen %d %v", n.addr, e.ID(), from, acc.Link, acc.Parked, acc.Attempt, err)
	}
	if err != nil || !acc.Link {
		e.Close()
		n.after()
		return
	}
	l := n.newLink(acc.Path, acc.Attempt, e)
	if l.parked = acc.Parked; l.parked {
		n.parked = append(n.parked, l)
	} else {
		l.wakeUp()
	}
	n.after()
}
