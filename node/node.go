package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/shm"
)

// core is what the front ends know of the assembled protocol engines.
type core interface {
	// start opens the RDS listeners and begins to serve peers.
	start() error
	// drain returns when nothing accepted is undecided, or when ctx ends.
	drain(ctx context.Context)
	// close drops every link and socket and releases everything.
	close()
	// alive returns once every engine has answered; it may block.
	alive()
	// read fills in the counters and budgets.
	read(*snapshot)
	// engine finds the engine of a local address, nil when there is none.
	engine(netip.Addr) engineLock
}

// Node states, in the order they are gone through.
const (
	stateNew int32 = iota
	stateStarting
	stateServing
	stateDraining
	stateStopped
)

var stateNames = [...]string{"new", "starting", "serving", "draining", "stopped"}

// Node is one daemon. Make it with New and run it once.
type Node struct {
	cfg      *config.Config                // as it was at the start
	live     atomic.Pointer[config.Config] // as it is now: see conf
	log      *slog.Logger
	level    *slog.LevelVar // of log; nil: it cannot be changed
	instance uint64         // random; changes with every start
	started  time.Time

	state    atomic.Int32
	stopping chan struct{} // closed when the node begins to end what is left
	ready    chan struct{} // closed when serving, or when Run has failed

	count    *nodeCounters
	guard    *guard.Guard
	core     core
	hosts    *hosts                      // core, for administration
	volumes  atomic.Pointer[volume.Host] // set by run
	full     volumesFull
	layer    func(name string, d blk.Device) blk.Device // LayerStores; may be nil
	sockets  *socketTable
	budget   *rds.Budget // datagrams' part of memory
	memory   *quota.Node // the one account of all that is held for somebody
	fds      fdLimit
	grpc     *grpcFront
	local    *localFront // set by serve
	registry *prometheus.Registry

	reloading sync.Mutex // held by Reload

	mu       sync.Mutex
	httpAddr net.Addr // guarded by mu
}

// New makes a node of a valid configuration. Nothing is opened before Run.
// logger may be nil: then nothing is logged.
func New(cfg *config.Config, logger *slog.Logger) (*Node, error) {
	n, err := newNode(cfg, logger)
	if err != nil {
		return nil, err
	}
	if n.core, err = newCore(n); err != nil {
		return nil, err
	}
	n.hosts = n.core.(*hosts)
	n.assemble()
	return n, nil
}

// LayerStores puts layer between the store of each export and what serves it.
// It is for programs that test what becomes of volumes whose stores fail or
// stall, and is called before Run.
func (n *Node) LayerStores(layer func(export string, store blk.Device) blk.Device) { n.layer = layer }

func newNode(cfg *config.Config, logger *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{
		cfg:      cfg,
		instance: rand.Uint64() | 1, // 0 means unknown
		started:  time.Now(),
		ready:    make(chan struct{}),
		stopping: make(chan struct{}),
		count:    &nodeCounters{},
		budget:   &rds.Budget{Limit: int64(cfg.Limits.MemoryBytes)},
	}
	n.live.Store(cfg)
	if h, ok := logger.Handler().(*levelHandler); ok {
		n.level = h.level
	}
	n.memory = quota.New(n.budget.Limit, n.budget.Datagrams)
	n.budget.Rest = n.memory.Rest()
	n.sockets = newSocketTable(cfg.Limits.MaxSockets, cfg.Limits.MaxSocketsPerUID, n.memory)
	n.log = limitLog(logger, cfg.Log.LinesPerS, &n.count.LogSuppressed)
	n.guard = &guard.Guard{Log: n.log, Steps: steps, Locks: n.takeLocks}
	return n, nil
}

// assemble makes the front ends around a core.
func (n *Node) assemble() {
	n.grpc = newGRPCFront(n.cfg, n.log, n.count, n.memory, n.guard)
	n.grpc.clients.room = n.clientRoom
	n.registry = newRegistry(newCollector(n.snapshot, n.count, n.guard), newVolumeCollector(n.readVolumes), n.grpc.metrics)
}

// snapshot looks at the whole node: the core and the front ends' own limits.
func (n *Node) snapshot(s *snapshot) {
	n.core.read(s)
	s.budgets = append(s.budgets, n.sockets.budget(), n.grpc.clients.budget())
	s.budgets = append(s.budgets, n.memoryBudgets()...)
	s.holders = n.memoryHolders()
	s.budgets = append(s.budgets, n.volumeBudgets()...)
	if n.local != nil {
		s.rings, s.ringB = n.local.memory()
		t := n.local.felt()
		s.counters.CongSendError += t.refused
		s.counters.CongSendBlocked += t.waited
		s.counters.SendQueueFull += t.full
	}
	s.sockets, s.clients = int(n.sockets.budget().used), n.grpc.clients.len()
}

// Run serves until ctx ends, then drains for at most api.drain_timeout. It
// returns nil after an orderly stop, and an error when the node could not
// start or one of its listeners failed.
func (n *Node) Run(ctx context.Context) error {
	if !n.state.CompareAndSwap(stateNew, stateStarting) {
		return errors.New("node: Run was called before")
	}
	defer n.state.Store(stateStopped)
	return n.run(ctx)
}

func (n *Node) run(ctx context.Context) error {
	var once sync.Once
	markReady := func() { once.Do(func() { close(n.ready) }) }
	defer markReady()
	for _, note := range n.cfg.Notes() {
		n.log.Warn(note)
	}
	if n.cfg.Lonely() {
		n.log.Warn("no peer beyond loopback is allowed: add [[peers]] rules to the configuration")
	}
	if err := n.openDescriptors(); err != nil {
		return err
	}
	defer n.fds.close()
	local, rings, remote, err := n.listenClients()
	if err != nil {
		return err
	}
	defer closeAll(local, rings, remote)
	page, err := n.listenPage()
	if err != nil {
		return err
	}
	if err := n.core.start(); err != nil {
		if page != nil {
			page.listener.Close()
		}
		return err
	}
	if err := n.startVolumes(); err != nil {
		n.core.close()
		if page != nil {
			page.listener.Close()
		}
		return err
	}
	return n.serve(ctx, local, rings, remote, page, markReady)
}

// serve runs until ctx ends or a listener fails. The goroutines it starts are
// its own and end before it returns.
func (n *Node) serve(ctx context.Context, local, rings, remote net.Listener, page *httpFront, markReady func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	run := func(what string, f func() error) {
		g.Go(func() error {
			defer cancel() // one that fails stops the node
			defer n.guard.Recover(guard.Step, nil)
			if err := f(); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	// Before the first call is served: calls look at it.
	n.local = &localFront{node: n, listener: n.acceptor(rings, "ring socket", refusePacket), conns: map[*shm.Conn]struct{}{}, rings: map[*ringSock]struct{}{}}
	localServer := n.grpc.newServer(n.register, true)
	run("client socket", func() error { return localServer.Serve(n.acceptor(local, "client socket", refuseHTTP2)) })
	run("ring socket", n.local.serve)
	if remote != nil {
		remoteServer := n.grpc.newServer(n.register, false)
		run("remote clients", func() error { return remoteServer.Serve(n.acceptor(remote, "remote clients", refuseHTTP2)) })
	}
	if page != nil {
		run("http", page.serve)
	}
	kept := make(chan struct{})
	var keeping sync.WaitGroup
	keeping.Go(func() { // ends when this returns
		defer n.guard.Recover(guard.Step, nil)
		n.keep(kept)
	})
	defer keeping.Wait()
	defer close(kept)
	g.Go(func() error {
		defer n.guard.Recover(guard.Step, nil)
		watchdog(ctx, n.log, n.core.alive)
		return nil
	})

	n.state.Store(stateServing)
	n.grpc.setServing(true)
	markReady()
	notify(n.log, daemon.SdNotifyReady)
	n.log.Info("serving", "version", Version(), "socket", n.cfg.API.Socket, "local", n.cfg.RDS.Addresses, "port", n.cfg.RDS.Port, "pid", os.Getpid())

	<-ctx.Done()
	n.drain(page)
	return g.Wait()
}

// drain stops taking new work, waits for what is under way, and closes.
func (n *Node) drain(page *httpFront) {
	n.state.Store(stateDraining)
	notify(n.log, daemon.SdNotifyStopping)
	patience := n.conf().API.DrainTimeout.Duration
	n.log.Info("draining", "state", "draining", "timeout", patience)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n.grpc.setServing(false)
	n.sockets.refuse(errDraining)
	n.core.drain(ctx)
	// What is left has a moment to say goodbye: a stream's Closing message, a
	// scrape of the last counters.
	end, cancelEnd := context.WithTimeout(context.Background(), time.Second)
	defer cancelEnd()
	if n.hosts != nil {
		n.hosts.quiesce(ctx)
		n.hosts.ports.freeze() // what is closed from here on is bound again in the next life
	}
	close(n.stopping)
	n.sockets.finishAll(errDraining)
	n.stopVolumes(ctx)
	n.local.stop()
	n.grpc.stop(end)
	n.core.close()
	if page != nil {
		page.stop(end)
	}
	n.log.Info("stopped", "state", "stopped", "took", time.Since(begun).Round(time.Millisecond))
}

// register adds this node's services to a gRPC server.
func (n *Node) register(s grpc.ServiceRegistrar) {
	rdsdv1.RegisterDatagramsServer(s, &datagramsServer{node: n})
	rdsdv1.RegisterAdminServer(s, &adminServer{node: n})
	rdsdv1.RegisterVolumeServiceServer(s, &volumeServer{node: n})
}

func (n *Node) listenClients() (local, rings, remote net.Listener, err error) {
	a := &n.cfg.API
	defer func() {
		if err != nil {
			closeAll(local, rings)
		}
	}()
	if local, err = listenUnix("unix", a.Socket, a.SocketMode.Perm, a.SocketGroup); err != nil {
		return nil, nil, nil, n.cfg.Failed("api.socket", err)
	}
	if rings, err = listenUnix("unixpacket", a.Socket+shm.SocketSuffix, a.SocketMode.Perm, a.SocketGroup); err != nil {
		return local, nil, nil, n.cfg.Failed("api.socket", err)
	}
	if a.RemoteListen == "" {
		return local, rings, nil, nil
	}
	if remote, err = net.Listen("tcp", a.RemoteListen); err != nil {
		return local, rings, nil, n.cfg.Failed("api.remote_listen", fmt.Errorf("api.remote_listen %s: %w", a.RemoteListen, err))
	}
	n.log.Warn("remote clients are neither encrypted nor identified (api.insecure)", "listen", remote.Addr().String())
	return local, rings, remote, nil
}

func (n *Node) listenPage() (*httpFront, error) {
	if n.cfg.HTTP.Listen == "" {
		return nil, nil
	}
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(n.cfg.HTTP.Listen, "unix:"); ok {
		l, err = listenUnix("unix", path, n.cfg.API.SocketMode.Perm, n.cfg.API.SocketGroup)
	} else {
		l, err = net.Listen("tcp", n.cfg.HTTP.Listen)
	}
	if err != nil {
		return nil, n.cfg.Failed("http.listen", fmt.Errorf("http.listen %s: %w", n.cfg.HTTP.Listen, err))
	}
	n.mu.Lock()
	n.httpAddr = l.Addr()
	n.mu.Unlock()
	return listenHTTP(&n.cfg.HTTP, n.acceptor(l, "http", refusePage), n.registry, n.guard, func() nodeStatus {
		s := n.state.Load()
		return nodeStatus{Version: Version(), State: stateNames[s], Ready: s == stateServing}
	}), nil
}

// Ready is closed when the node serves, or when Run returned without.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// HTTPAddr is where the monitoring page is, nil when it is off or not open yet.
func (n *Node) HTTPAddr() net.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.httpAddr
}

// Instance is the random number of this life of the daemon, never 0.
func (n *Node) Instance() uint64 { return n.instance }

func closeAll(ls ...net.Listener) {
	for _, l := range ls {
		if l != nil { // never a nil pointer in an interface: listenUnix returns nil
			l.Close()
		}
	}
}
