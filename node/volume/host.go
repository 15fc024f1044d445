package volume

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// Deps is what a Host is given.
type Deps struct {
	Provider transport.OneSidedProvider // of links over TCP
	Others   []Transport                // what paths can be made of beside TCP
	Reactors []*reactor.Reactor         // run timers; they outlive the Host. None: the runtime's timers
	Log      *slog.Logger               // nil: none
	Guard    *guard.Guard               // contains panics of what goroutines do for one; nil: none is

	// Layer is put between a store and what serves it, with the name of the
	// export: for tests, that let stores fail and stall. nil: nothing is.
	Layer func(name string, d blk.Device) blk.Device

	// Memory is the account that peers' chunks are charged to. nil: nobody counts.
	Memory *quota.Node
	// Evict has somebody that rests give memory back, for a peer that nobody knew, and reports
	// whether there was one. It is called with no lock held. nil: nobody does.
	Evict func() bool
	// Local reports whether Provider can make links from an address; nil: it finds out itself.
	Local func(a netip.Addr) bool
	// Room says why there is no descriptor for a store more; nil: there is always one.
	Room func() error
}

// Host is what a daemon does with volumes.
type Host struct {
	cfg        Config      // with its defaults
	transports []Transport // TCP, and Deps.Others; they do not change
	reactors   []*reactor.Reactor
	turn       atomic.Uint32 // whose timer is next
	log        *slog.Logger
	guard      *guard.Guard
	machine    *Machine
	base       time.Time // when Machine.Clock was 0
	ev         *events
	store      *store
	srv        *server
	drv        driver
	layer      func(name string, d blk.Device) blk.Device // Deps.Layer
	memory     *quota.Node                                // Deps.Memory
	evict      func() bool                                // Deps.Evict
	local      func(a netip.Addr) bool                    // Deps.Local
	room       func() error                               // Deps.Room
	ctx        context.Context                            // of what happens in the background
	cancel     context.CancelFunc
	work       *group // goroutines that end by themselves after cancel and the end of the sessions
	waits      *waits // what waits for file systems on behalf of callers
	started    bool   // New has taken up what an earlier Host has left, and saver runs; set by New
	saver      *saver

	mu         sync.Mutex // before any shell.mu
	closing    bool
	clients    map[string]*client // by name of the session
	lastClient uint64
	mappings   []*mapping // oldest first
	nextID     uint64
	exports    map[string]*export
	leftovers  []leftover
}

// New starts a Host: it listens as the configuration says and, in the
// background, maps again what is persistent. An error is one of the
// configuration, of the state directory, or of a port that is taken.
func New(cfg Config, deps Deps) (*Host, error) { return newHost(cfg, deps, kernelDriver) }

func newHost(cfg Config, deps Deps, drv driver) (*Host, error) {
	return newHostOn(cfg, deps, drv, thisMachine(deps.Guard))
}

func newHostOn(cfg Config, deps Deps, drv driver, m *Machine) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	transports, err := deps.transports()
	if err != nil {
		return nil, err
	}
	cfg.defaults()
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	store, old, err := openStore(m, deps.Guard, cfg.StateDir, cfg.SocketDir)
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, transports: transports, reactors: deps.Reactors, log: deps.Log, guard: deps.Guard, machine: m, base: m.Wall().Add(-m.Clock()), ev: newEvents(deps.Log, m.Wall),
		store: store, drv: drv, layer: deps.Layer, memory: deps.Memory, evict: deps.Evict, local: deps.Local, room: deps.Room, waits: newWaits(m), work: &group{m: m},
		clients: map[string]*client{}, nextID: old.NextID, exports: map[string]*export{}}
	if store.aside != nil {
		h.log.Error("volume: what was persistent is not there", "err", store.aside)
	}
	if cfg.StateDir != "" && m.Boot == "" {
		h.log.Warn("volume: the kernel does not say whether the machine has been started since the last start (is /proc mounted?): both are allowed for, so some flushes fail that need not, and sockets of mappings end with a crash of the daemon")
	}
	h.saver = newSaver(m, h.write, h.wrote)
	h.saver.guard, h.ev.guard = h.guard, h.guard
	h.ctx, h.cancel = context.WithCancel(context.Background())
	ctx, cancel := m.Timeout(h.ctx, startWait)
	defer cancel()
	if h.srv, err = newServer(h, &old); err == nil {
		err = h.startExports(ctx, &old)
	}
	if err != nil {
		end, cancel := m.Timeout(context.Background(), startWait)
		defer cancel()
		h.Close(end)
		return nil, err
	}
	h.startMappings(&old)
	h.started = true
	m.Go(h.saver.run) // ends with Host.await
	h.saveBy(ctx)     // an error is told by the saver, which tries again
	return h, nil
}

// Close ends everything in order: NBD clients get their answers, sessions are
// closed, stores too. What is still under way when ctx ends is left to end by
// itself, and ctx's error returned. What is persistent stays so; kernel devices
// stay attached and wait for the next Host for their dead-connection timeout.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	if h.closing {
		h.mu.Unlock()
		return rdserr.ErrShutdown
	}
	h.closing = true
	mappings := slices.Clone(h.mappings)
	h.mu.Unlock()
	h.cancel()
	if h.srv == nil { // New failed
		h.store.close()
		return nil
	}

	saved := &asking{} // it does not end
	if h.started {     // what is written says at once that this is a stop, and ends need no disk
		saved = h.saver.ask(true)
	} // else what an earlier Host has left stays as it is
	all := &group{m: h.machine}
	for _, m := range mappings {
		all.Go(func() {
			defer h.guard.Recover(guard.Volume, nil)
			m.leave(ctx)
		})
	}
	h.machine.Wait(Forever, all.ended(), ctx.Done())
	h.srv.close()
	err := h.await(ctx)
	return errors.Join(saved.outcome(), err)
}

// await waits for everything that ends by itself.
func (h *Host) await(ctx context.Context) error {
	done := make(chan struct{})
	h.machine.Go(func() { // ends when the last session and the last store have
		defer h.guard.Recover(guard.Step, nil)
		h.machine.Wait(Forever, h.work.ended())
		if h.started {
			h.saver.end()
		}
		h.store.close()
		h.ev.close()
		close(done)
	})
	if h.machine.Wait(Forever, done, ctx.Done()) == 0 {
		return nil
	}
	return ctx.Err()
}

// call begins a call that may wait for another node: it ends with the Host, and
// after mapTimeout. The Host waits for its end.
func (h *Host) call(ctx context.Context) (_ context.Context, end func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, nil, rdserr.ErrShutdown
	}
	h.work.Add(1)
	ctx, cancel := h.machine.Timeout(ctx, mapTimeout)
	ctx, stop := h.machine.Either(ctx, h.ctx)
	return ctx, func() {
		stop()
		cancel()
		h.work.Done()
	}, nil
}

// TakeLocks takes each lock that a step of a core is made under and gives it back.
func (h *Host) TakeLocks() {
	h.mu.Lock()
	shells := []*shell{&h.srv.shell}
	for _, c := range h.clients {
		shells = append(shells, &c.shell)
	}
	h.mu.Unlock()
	for _, s := range shells {
		s.look()()
	}
}

// now is the time of the cores.
func (h *Host) now() time.Duration { return h.machine.Clock() }

// reactor is the one that runs the next timer; nil: there is none.
func (h *Host) reactor() *reactor.Reactor {
	if len(h.reactors) == 0 {
		return nil
	}
	return h.reactors[int(h.turn.Add(1))%len(h.reactors)]
}

// layers puts counters over a store, and the layer of tests.
func (h *Host) layers(k storeKey, d blk.Device) blk.Device {
	if h.layer != nil {
		d = h.layer(k.name, d)
	}
	return &counted{blk.NewStats(d), k}
}

// endpoints are the addresses of a path, and its transport.
type endpoints struct {
	local, remote netip.AddrPort
	via           *Transport
}

func (h *Host) resolve(ctx context.Context, p PathSpec) (e endpoints, err error) {
	if e.via, err = h.transport(p.Transport); err != nil {
		return e, err
	}
	e.local, e.remote, err = p.resolve(ctx, h.port(e.via))
	if err == nil && p.Src == "" {
		e.local = netip.AddrPortFrom(ownSource(h.cfg.Addresses, e.local.Addr(), e.remote.Addr()), 0)
	}
	if err == nil {
		err = e.via.checkDevice(e.local.Addr())
	}
	return e, err
}

// ownSource is where a path to remote leaves from if nobody said: who the other
// node takes us for decides what we may map there. The system's choice is right
// if it is one of ours, else the first of ours that can be, if there is one.
func ownSource(own []netip.Addr, system, remote netip.Addr) netip.Addr {
	if slices.Contains(own, system) {
		return system
	}
	for _, a := range own {
		if a.Is4() == remote.Is4() && a.IsLoopback() == remote.IsLoopback() {
			return a
		}
	}
	return system
}

// Watch brings the events after number since, as far as they are kept, and those
// to come, until stop is called or the Host has ended, which closes the channel.
// A reader that is too slow finds an EventGap. FromNow: only what is to come.
func (h *Host) Watch(since uint64) (events <-chan Event, stop func()) { return h.ev.watch(since) }
