package datagram

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
)

// Machine is what a Host takes from where it runs, beside its threads and its links:
// clocks, connections, and somebody to do things meanwhile. The daemon's is this machine
// (real, below). A simulated world brings its own, so that the same shell runs there, in
// one thread, from a seed. All fields are set.
type Machine struct {
	Clock func() time.Duration // monotonic, the engines' time; never 0, which is none
	Wall  func() time.Time     // for what lasts long and is reported in such times

	// Aside runs f beside the caller, who may hold locks: never before it has returned.
	Aside func(f func())
	// Dial makes a link for a dial or a poke of h, and tells done what came of it, without a
	// lock and never before Dial has returned.
	Dial func(h *Local, a conn.Action, done func(transport.Link, error))
	// From says whose connection an accepted link is (peers.NoUser: nobody's of this
	// machine), or why there may be no peer behind it.
	From func(local, remote netip.AddrPort) (user int64, err error)
	// Changed is told of each change of a lane's state, without a lock.
	Changed func(h *Local, s conn.StateChange)
}

// Thread is what the shell asks of the thread that a Worker is: a reactor, or a world's
// stand-in for one.
type Thread interface {
	// OnThread reports whether the caller runs on it.
	OnThread() bool
	// Now is when its turn began, by Machine.Clock. On the thread.
	Now() time.Duration
	// Do runs f there, in a later turn. From anywhere.
	Do(f func())
	// AtEnd has f called at the end of every turn; it reports whether it left something for
	// another one, which then comes at once. It is called once, before anything else.
	AtEnd(f func() (more bool))
	// NewTimer makes a timer that is not set; f runs there when it is due.
	NewTimer(f func()) Timer
}

// Timer is a thread's; Reset sets it anew, whether it was set or not. From anywhere.
type Timer interface {
	Reset(d time.Duration)
	Stop() bool
}

// reactorThread is a reactor as a Thread.
type reactorThread struct{ *reactor.Reactor }

func (r reactorThread) NewTimer(f func()) Timer { return r.Reactor.NewTimer(f) }

// real is the machine that the daemon runs on.
func (a *Host) real() Machine {
	return Machine{
		Clock: reactor.Clock,
		Wall:  time.Now,
		Aside: func(f func()) {
			go func() { // ends with f, which is short or gives up when the node ends
				defer a.deps.Guard.Recover(guard.Link, nil)
				f()
			}()
		},
		Dial:    a.dialAside,
		From:    a.peers.AcceptedFrom,
		Changed: a.states.put,
	}
}

// dialAside connects in a goroutine: that waits for the network, and for whoever accepts
// when the kernel is asked whose socket the other end is.
func (a *Host) dialAside(h *Local, act conn.Action, done func(transport.Link, error)) {
	h.background(func() {
		ctx, cancel := a.withTimeout(a.engineConfig.Conn.DialTimeout)
		defer cancel()
		link, err := h.connect(ctx, act)
		if err == nil && act.Kind == conn.ActDial { // a poke says and takes nothing
			if err = a.peers.CheckDialled(ctx, link.LocalAddr(), link.RemoteAddr()); err != nil {
				link.Abort()
			}
		}
		done(link, err)
	})
}

// NewOn makes a Host whose engines have configuration c and run on m, from seed, with the
// addresses of d and the given threads. It is begun: what the daemon's Start opens, m and
// its callers bring (Local.Accept), and there is no ledger and no book of ports.
func NewOn(d *base.Deps, c rds.Config, m Machine, seed int64, threads ...Thread) *Host {
	a := &Host{deps: d, peers: peers.New(d), engineConfig: c, machine: m, byAddr: map[netip.Addr]*Local{}}
	for _, t := range threads {
		a.addWorker(&Worker{thread: t})
	}
	for i, addr := range d.Config.RDS.Addresses {
		h := newLocal(a, addr, seed+int64(i))
		a.list = append(a.list, h)
		a.byAddr[addr] = h
		h.attach(a.workers[i%len(a.workers)])
	}
	return a
}
