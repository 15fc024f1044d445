package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/unixsock"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/node/service"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/shm"
)

// core is what the front ends know of the assembled protocol engines.
type core interface {
	// Start opens the RDS listeners and begins to serve peers.
	Start() error
	// Drain returns when nothing accepted is undecided, or when ctx ends.
	Drain(ctx context.Context)
	// Close drops every link and socket and releases everything.
	Close()
	// Alive returns once every engine has answered; it may block.
	Alive()
	// Read fills in the counters and budgets.
	Read(*datagram.Snapshot)
	// Engine finds the engine of a local address, nil when there is none.
	Engine(netip.Addr) datagram.Engine
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

func (n *Node) stateName() string { return stateNames[n.state.Load()] }

// Node is one daemon. Make it with New and run it once.
type Node struct {
	deps  *base.Deps
	peers *peers.Registry // whom it speaks with, for datagrams and volumes alike
	level *slog.LevelVar  // of Log; nil: it cannot be changed

	state atomic.Int32
	ready chan struct{} // closed when serving, or when Run has failed

	core    core
	hosts   *datagram.Host                             // core, for administration
	volumes atomic.Pointer[volume.Host]                // set by run
	layer   func(name string, d blk.Device) blk.Device // LayerStores; may be nil
	// tune changes what the volumes are given, for tests; may be nil.
	tune     func(*volume.Deps)
	users    *access.Clients      // their connections
	rdma     atomic.Pointer[rdma] // of volumes.rdma; nil: there are no devices
	limiter  *access.Limiter
	clients  *client.Front
	services *service.Front

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
	n.hosts = datagram.New(n.deps, n.peers)
	n.core = n.hosts
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
	d := base.New(cfg, nil)
	n := &Node{deps: d, peers: peers.New(d), ready: make(chan struct{})}
	if h, ok := logger.Handler().(*levelHandler); ok {
		n.level = h.level
	}
	n.deps.Log = limitLog(logger, cfg.Log.LinesPerS, &n.deps.Count.LogSuppressed)
	n.deps.Guard = &guard.Guard{Log: n.deps.Log, Steps: steps, Locks: n.takeLocks}
	return n, nil
}

// assemble makes the front ends around a core.
func (n *Node) assemble() {
	d, cfg := n.deps, n.deps.Config
	n.limiter = access.NewLimiter(cfg.API.CallsPerSec, cfg.API.CallsBurst)
	n.users = access.NewClients(cfg.Limits.MaxClients, cfg.Limits.MaxClientsPerUID, d.Memory, func(id config.Identity, err error) {
		d.Count.ClientsRefused.Add(1)
		d.Log.Warn("client refused", "uid", id.UID, "pid", id.PID, "error", err)
	})
	n.users.Room = n.clientRoom
	room := client.Deps{Deps: d, Clients: n.users, Limiter: n.limiter, Engine: n.core.Engine}
	if n.hosts != nil {
		room.Collect = n.hosts.Collect
	}
	n.clients = client.New(room)
	n.services = service.New(service.Deps{
		Deps: d, Read: n.core.Read, Host: n.hosts, Clients: n.clients, Users: n.users, Limiter: n.limiter,
		Volumes: n.volumes.Load, RDMA: n.rdmaDevices, State: n.stateName, HTTPAddr: n.HTTPAddr, Errors: n.loggedErrors,
	})
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
	for _, note := range n.deps.Config.Notes() {
		n.deps.Log.Warn(note)
	}
	if n.deps.Config.Lonely() {
		n.deps.Log.Warn("no peer beyond loopback is allowed: add [[peers]] rules to the configuration")
	}
	if self := uint32(os.Geteuid()); base.ForeignUser(self) {
		n.deps.Log.Warn("the daemon's user has the number that stands for all who have none in its user namespace: it cannot be told from them, and neither administers nor is a peer. Run the daemon as another user", "uid", self)
	}
	if err := n.openDescriptors(); err != nil {
		return err
	}
	defer n.deps.FDs.Close()
	local, rings, remote, err := n.listenClients()
	if err != nil {
		return err
	}
	defer closeAll(local, rings, remote)
	page, err := n.listenPage()
	if err != nil {
		return err
	}
	served := n.servePage(page) // probes are answered while the rest starts
	if err := n.start(); err != nil {
		if page != nil {
			page.Close()
			<-served
		}
		return err
	}
	return n.serve(ctx, local, rings, remote, page, served, markReady)
}

// servePage serves the page until it is stopped or closed; the channel has what ended it.
func (n *Node) servePage(page *service.Page) <-chan error {
	served := make(chan error, 1)
	if page != nil {
		go func() { // ends with the page
			defer n.deps.Guard.Recover(guard.Step, nil)
			served <- page.Serve()
		}()
	}
	return served
}

// start starts the core and what stands on it.
func (n *Node) start() error {
	if err := n.core.Start(); err != nil {
		return err
	}
	if err := n.startVolumes(); err != nil {
		n.core.Close()
		return err
	}
	return nil
}

// serve runs until ctx ends or a listener fails. The goroutines it starts are
// its own and end before it returns.
func (n *Node) serve(ctx context.Context, local, rings, remote net.Listener, page *service.Page, served <-chan error, markReady func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	run := func(what string, f func() error) {
		g.Go(func() error {
			defer cancel() // one that fails stops the node
			defer n.deps.Guard.Recover(guard.Step, nil)
			if err := f(); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	localServer := n.services.NewServer(true)
	run("client socket", func() error {
		return localServer.Serve(n.clientAcceptor(local, "client socket", refuseHTTP2, n.services))
	})
	control := n.clientAcceptor(rings, "ring socket", client.RefusePacket, n.clients)
	run("ring socket", func() error { return n.clients.Serve(control) })
	if remote != nil {
		remoteServer := n.services.NewServer(false)
		run("remote clients", func() error {
			return remoteServer.Serve(n.clientAcceptor(remote, "remote clients", refuseHTTP2, n.services))
		})
	}
	if page != nil {
		run("http", func() error { return <-served })
	}
	kept := make(chan struct{})
	var keeping sync.WaitGroup
	keeping.Go(func() { // ends when this returns
		defer n.deps.Guard.Recover(guard.Step, nil)
		n.keep(kept)
	})
	if n.hosts != nil {
		keeping.Go(func() { // ends when this returns
			defer n.deps.Guard.Recover(guard.Step, nil)
			n.hosts.TellStaying(kept)
		})
	}
	keeping.Go(func() { // ends when this returns
		defer n.deps.Guard.Recover(guard.Step, nil)
		n.services.KeepHour(kept)
	})
	defer keeping.Wait()
	defer close(kept)
	g.Go(func() error {
		defer n.deps.Guard.Recover(guard.Step, nil)
		watchdog(ctx, n.deps.Log, n.core.Alive)
		return nil
	})

	n.state.Store(stateServing)
	n.services.SetServing(true)
	if n.hosts != nil {
		n.hosts.Serving()
	}
	markReady()
	g.Go(func() error {
		defer n.deps.Guard.Recover(guard.Step, nil)
		notify(ctx, n.deps.Log, daemon.SdNotifyReady)
		return nil
	})
	n.deps.Log.Info("serving", "version", base.Version(), "socket", n.deps.Config.API.Socket, "local", n.deps.Config.RDS.Addresses, "port", n.deps.Config.RDS.Port, "pid", os.Getpid())

	<-ctx.Done()
	n.drain(ctx, page)
	return g.Wait()
}

// drain stops taking new work, waits for what is under way, and closes. over has ended.
func (n *Node) drain(over context.Context, page *service.Page) {
	n.state.Store(stateDraining)
	notify(over, n.deps.Log, daemon.SdNotifyStopping)
	patience := n.deps.Conf().API.DrainTimeout.Duration
	n.deps.Log.Info("draining", "state", "draining", "timeout", patience)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n.services.SetServing(false)
	n.clients.Refuse(base.ErrDraining)
	if n.hosts != nil {
		n.hosts.Draining()
	}
	n.core.Drain(ctx)
	if n.hosts != nil {
		n.hosts.Quiesce()
	}
	close(n.deps.Stopping)
	n.clients.Finish(base.ErrDraining)
	n.stopVolumes(ctx)
	n.clients.Stop()
	// What is left has a moment to say goodbye: a stream's Closing message, a
	// scrape of the last counters.
	end, cancelEnd := context.WithTimeout(context.Background(), time.Second)
	defer cancelEnd()
	n.services.Stop(end)
	n.core.Close()
	if page != nil {
		page.Stop(end)
	}
	n.deps.Log.Info("stopped", "state", "stopped", "took", time.Since(begun).Round(time.Millisecond))
}

func (n *Node) listenClients() (local, rings, remote net.Listener, err error) {
	a := &n.deps.Config.API
	defer func() {
		if err != nil {
			closeAll(local, rings)
		}
	}()
	if local, err = n.listenUnix("unix", a.Socket); err != nil {
		return nil, nil, nil, n.deps.Config.Failed("api.socket", err)
	}
	if rings, err = n.listenUnix("unixpacket", a.Socket+shm.SocketSuffix); err != nil {
		return local, nil, nil, n.deps.Config.Failed("api.socket", err)
	}
	if a.RemoteListen == "" {
		return local, rings, nil, nil
	}
	if remote, err = listenRemote(a.RemoteListen); err != nil {
		return local, rings, nil, n.deps.Config.Failed("api.remote_listen", fmt.Errorf("api.remote_listen %s: %w", a.RemoteListen, err))
	}
	n.deps.Log.Warn("remote clients are neither encrypted nor identified (api.insecure)", "listen", remote.Addr().String())
	return local, rings, remote, nil
}

// listenUnix makes a socket for clients, with the mode and the group of api.socket.
func (n *Node) listenUnix(network, path string) (net.Listener, error) {
	a := &n.deps.Config.API
	gid := unixsock.KeepGroup
	if a.SocketGroup != "" {
		var err error
		if gid, err = config.LookupGroup(a.SocketGroup); err != nil {
			return nil, fmt.Errorf("socket %s: group: %w", path, err)
		}
	}
	l, err := unixsock.Listen(network, path, a.SocketMode.Perm, gid)
	if errors.Is(err, unixsock.ErrInUse) {
		err = fmt.Errorf("%w; stop it, or give this one its own --socket", err)
	}
	return l, err
}

func (n *Node) listenPage() (*service.Page, error) {
	if n.deps.Config.HTTP.Listen == "" {
		return nil, nil
	}
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(n.deps.Config.HTTP.Listen, "unix:"); ok {
		l, err = n.listenUnix("unix", path)
	} else {
		l, err = net.Listen("tcp", n.deps.Config.HTTP.Listen)
	}
	if err != nil {
		return nil, n.deps.Config.Failed("http.listen", fmt.Errorf("http.listen %s: %w", n.deps.Config.HTTP.Listen, err))
	}
	n.mu.Lock()
	n.httpAddr = l.Addr()
	n.mu.Unlock()
	return n.services.ListenHTTP(n.acceptor(l, "http", refusePage), func() service.NodeStatus {
		s := n.state.Load()
		return service.NodeStatus{State: stateNames[s], Ready: s == stateServing, Starting: s == stateStarting}
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
func (n *Node) Instance() uint64 { return n.deps.Instance }

func closeAll(ls ...net.Listener) {
	for _, l := range ls {
		if l != nil { // never a nil pointer in an interface: unixsock.Listen returns nil
			l.Close()
		}
	}
}
