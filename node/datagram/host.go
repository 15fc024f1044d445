package datagram

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	crand "crypto/rand"
	"encoding/binary"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/transport"
)

// Host is the datagrams of a node: one Local for each local address.
type Host struct {
	deps         *base.Deps
	peers        *peers.Registry
	machine      Machine
	engineConfig rds.Config
	workers      []*Worker          // set by start
	provider     transport.Provider // set by start
	list         []*Local
	byAddr       map[netip.Addr]*Local
	ctx          context.Context // ends with the node: dials give up
	cancel       context.CancelFunc

	partials partials
	full     atomic.Uint64 // writes that met a full socket buffer

	states   stateLog
	ledger   *shm.Ledger    // nil: none
	watching sync.WaitGroup // of watchAddrs

	traces traces

	ports *portBook // nil: none; set by start
	dealt atomic.Uint32
	// graves counts goroutines that let go of the memory of closed sockets with
	// rings, or allocate in the ledger for open ones.
	graves sync.WaitGroup
}

// New makes the datagrams' part of a node. Nothing is opened before Start.
func New(d *base.Deps, r *peers.Registry) *Host {
	c := d.Config
	a := &Host{deps: d, peers: r, byAddr: map[netip.Addr]*Local{}}
	a.machine = a.real()
	a.ctx, a.cancel = context.WithCancel(context.Background())
	e := rds.DefaultConfig()
	e.Conn.Lanes = c.RDS.Lanes
	e.Conn.ReconnectMin, e.Conn.ReconnectMax = c.RDS.ReconnectMin.Duration, c.RDS.ReconnectMax.Duration
	e.Conn.Heartbeat, e.Conn.DeadAfter = c.RDS.HeartbeatInterval.Duration, c.RDS.HeartbeatTimeout.Duration
	e.Conn.Ping = c.RDS.PingEnable
	e.SndBufBytes, e.RcvBufBytes = int(c.RDS.SendBufferBytes), int(c.RDS.RecvBufferBytes)
	e.MaxBufBytes = int(max(c.RDS.SendBufferMax, c.RDS.RecvBufferMax))
	e.HardFactor = c.RDS.HardLimitFactor
	e.MaxPeers, e.MaxSockets = c.Limits.MaxPeers, c.Limits.MaxSockets
	e.Budget = d.Budget
	e.PeerAccount = func(addr netip.Addr) *quota.Account { return d.Memory.Account(quota.Peer(addr)) }
	e.AllowPeer = func(addr netip.Addr) bool { ok, _ := r.MayPeer(addr); return ok }
	e.AllowKernel = func(addr netip.Addr) bool { _, ok := r.MayPeer(addr); return ok }
	a.engineConfig = e
	for _, addr := range c.RDS.Addresses {
		var seed [8]byte
		crand.Read(seed[:])
		h := newLocal(a, addr, int64(binary.LittleEndian.Uint64(seed[:])))
		a.list = append(a.list, h)
		a.byAddr[addr] = h
	}
	return a
}

// Local is the shell of a local address.
func (a *Host) Local(addr netip.Addr) (*Local, error) {
	if h := a.byAddr[addr.Unmap()]; h != nil {
		return h, nil
	}
	return nil, rdserr.With(rdserr.ErrAddrNotAvail, "%v is not an address of this daemon; it has %v", addr, a.deps.Config.RDS.Addresses)
}

func (a *Host) withTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, d)
}

// Start opens the listeners and begins to serve peers.
func (a *Host) Start() error {
	if err := a.startReactors(); err != nil {
		a.Close()
		return err
	}
	a.peers.Open(a.Reactors())
	a.provider = a.peers.Frames()
	for i, h := range a.list {
		h.attach(a.workers[i%len(a.workers)])
	}
	a.states.start(a)
	if err := a.openLedger(); err != nil {
		a.Close()
		return err
	}
	a.watchAddrs()
	was := a.openPorts()
	for _, h := range a.list {
		l, err := a.provider.Listen(netip.AddrPortFrom(h.addr, h.port), h.Accept)
		if err != nil {
			a.Close()
			return a.cannotListen(h, err)
		}
		h.mu.Lock()
		h.listener = l
		h.mu.Unlock()
	}
	a.reconnect(was)
	return nil
}

// cannotListen says why there is no listener for peers, and which key is to blame.
func (a *Host) cannotListen(h *Local, err error) error {
	c := a.deps.Config
	key, hint := "rds.port", ""
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		hint = ": is the kernel's rds_tcp loaded, or another rdsd running?"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		key, hint = "rds.addresses", ": this machine has no such address"
	}
	return c.Failed(key, fmt.Errorf("cannot listen for RDS peers on %v port %d: %w%s", h.addr, h.port, err, hint))
}

// Drain waits until nothing accepted is undecided. It looks; at the end of a
// daemon's life a few milliseconds do not matter.
func (a *Host) Drain(ctx context.Context) {
	for {
		busy := 0
		for _, h := range a.list {
			h.EachSocket(func(_ *rds.Engine, s *rds.Socket) { busy += s.Info().Undecided })
		}
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			a.deps.Log.Warn("datagrams undecided at the end", "undecided", busy)
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Close drops every link and socket and releases everything.
func (a *Host) Close() {
	a.cancel()
	a.watching.Wait()
	var g errgroup.Group
	for _, h := range a.list {
		g.Go(func() error {
			defer a.deps.Guard.Recover(guard.Step, nil) // its links would never be over
			h.stop()
			return nil
		})
	}
	g.Wait()
	a.stopReactors()
	a.states.stop()
	a.graves.Wait() // they write to the ledger
	a.closeLedger()
	a.ports.close()
}

// Evict forgets an idle peer of one of the addresses, and reports whether there was one: its
// memory is wanted by a peer of volumes that nobody knew. It takes the locks of the engines.
func (a *Host) Evict() bool {
	for _, h := range a.list {
		e, now := h.Lock()
		gone := e.Evict(now)
		h.Unlock()
		if gone {
			return true
		}
	}
	return false
}

// Alive returns once every engine has answered; it may block.
func (a *Host) Alive() {
	for _, h := range a.list {
		h.Lock()
		h.Unlock()
	}
}

// Engine finds the engine of a local address, nil when there is none.
func (a *Host) Engine(addr netip.Addr) Engine {
	if h := a.byAddr[addr.Unmap()]; h != nil {
		return h
	}
	return nil
}

// Read fills in counters, peers and budgets.
func (a *Host) Read(s *Snapshot) {
	l := a.deps.Conf().Limits
	peers := base.Budget{Name: "peers", Limit: uint64(l.MaxPeers * len(a.list))} // each address has a table
	for _, h := range a.list {
		e := h.Look()
		// A peer that is forgotten from here on is in the list, with what it counted, and one that was
		// before is in the engine's own: no counter goes back.
		c, list := e.OwnCounters(), slices.Clone(e.Peers())
		n, full := e.NoPlace()
		peers.Refused += n
		if ago := max(h.StepTime()-full, 1); full != 0 && (peers.RefusedAgo == 0 || ago < peers.RefusedAgo) {
			peers.RefusedAgo = ago
		}
		s.Queueing.Merge(e.QueueNs())
		s.Rtt.Merge(e.RTTNs())
		h.Unlook()
		byPages(h, list, func(_ *rds.Engine, pe *rds.Peer) {
			q, k := pe.Conn().Queued(), pe.Counters()
			c.Add(&k)
			s.Peers = append(s.Peers, PeerSnapshot{Local: h.addr, Remote: pe.Addr(), Up: pe.Conn().Up(),
				Counters: k, QueuedBytes: uint64(q.QueuedBytes + q.UnackedBytes), Waiting: uint64(pe.Owed())})
		})
		s.Counters.Add(&c)
	}
	s.Counters.TCPSndbufFull += a.full.Load()
	s.RefusedLinks = a.peers.Refused()
	b := a.engineConfig.Budget
	peers.Used = uint64(len(s.Peers))
	s.Budgets = append(s.Budgets,
		base.Budget{Name: "memory", Used: uint64(max(b.Used(), 0)), Limit: uint64(b.Limit), Refused: b.Refused()}, peers)
	s.Budgets = append(s.Budgets, a.peers.Budgets()...)
}

// --- administration -------------------------------------------------------------------

// Pinger is the user in whose name a node is pinged: the peer that it names is one of the
// user's, and the port is one of those that the user may have, as long as one is free.
type Pinger struct {
	UID uint32
	May []config.PortRange // in order
}

// bindPing binds the socket of a ping.
func (h *Local) bindPing(by Pinger, woken wakeup) (*rds.Socket, error) {
	o := rds.SocketOptions{RcvBufBytes: 4096, SndBufBytes: 4096, UID: by.UID, Label: "ping", Data: woken}
	if s, err := BindFree(h, by.May, o, nil); s != nil || err != nil {
		return s, err
	}
	e, _ := h.Lock()
	s, err := e.Bind(0, o)
	h.Unlock()
	return s, err
}

// Ping measures a round trip to a node, from one of our addresses.
func (a *Host) Ping(ctx context.Context, by Pinger, local, remote netip.Addr) (netip.Addr, time.Duration, error) {
	h, err := a.hostFor(local, remote)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	woken := make(wakeup, 1)
	s, err := h.bindPing(by, woken)
	if err != nil {
		return h.addr, 0, err
	}
	defer func() {
		_, now := h.Lock()
		s.Close(now)
		h.Unlock()
	}()
	begun := time.Now()
	_, now := h.Lock()
	err = s.Send(now, netip.AddrPortFrom(remote, 0), nil, 0, rds.Quiet)
	h.Unlock()
	if err != nil {
		return h.addr, 0, err
	}
	for {
		select {
		case <-woken:
		case <-ctx.Done():
			return h.addr, 0, rdserr.With(rdserr.ErrTimeout, "no answer from %v%s", remote, h.whyDown(remote))
		}
		_, now := h.Lock()
		s.Events()
		d, ok := s.Queue().Recv()
		s.ReadAll(now)
		h.Unlock()
		if ok {
			d.Release()
			return h.addr, time.Since(begun), nil
		}
	}
}

// whyDown says why there is no link to remote, if that is known.
func (h *Local) whyDown(remote netip.Addr) string {
	var last error
	e, _ := h.Lock()
	if pe := e.Known(remote); pe != nil && !pe.Conn().Up() { // else it has made room for others meanwhile
		pe.Conn().EachLane(func(p *conn.Lane) {
			if err := p.Info().LastErr; err != nil {
				last = err
			}
		})
	}
	h.Unlock()
	if last == nil {
		return ""
	}
	return ": " + last.Error()
}

// wakeup is a socket's Data that wakes one goroutine.
type wakeup chan struct{}

func (w wakeup) News() (goroutine bool) {
	select {
	case w <- struct{}{}:
	default:
	}
	return true
}

// hostFor picks the host for local, or any of remote's family.
func (a *Host) hostFor(local, remote netip.Addr) (*Local, error) {
	if local.IsValid() {
		return a.Local(local)
	}
	for _, h := range a.list {
		if h.addr.Is4() == remote.Unmap().Is4() {
			return h, nil
		}
	}
	return nil, rdserr.With(rdserr.ErrAddrNotAvail, "this daemon has no address of the family of %v; it has %v", remote, a.deps.Config.RDS.Addresses)
}

var errDropped = errors.New("dropped by an administrator")

// DropLane gives up the links to remote; lane < 0: all lanes.
func (a *Host) DropLane(local, remote netip.Addr, lane int) (dropped int) {
	for _, h := range a.list {
		if local.IsValid() && h.addr != local {
			continue
		}
		_, now := h.Lock()
		if pe := h.e.Known(remote); pe != nil {
			pe.Conn().EachLane(func(p *conn.Lane) {
				if (lane < 0 || p.Index() == lane) && p.Drop(now, errDropped) {
					dropped++
				}
			})
		}
		h.Unlock()
	}
	return dropped
}

// Watch is one listener to congestion. C has what it was told since it took the last list, in one. What it is too
// slow to hear it is not told, but that there was something: Lost.
type Watch struct {
	C    chan []rds.Notice
	Lost atomic.Bool

	mu sync.Mutex // one address at a time
}

const (
	// watchMost bounds the notices that are kept for a listener. No engine tells more at once.
	watchMost = 4096
	// WatchBytes is what those take, with what append adds to a list, and as many that the listener has
	// taken and is not done with.
	WatchBytes = 2 * watchMost * 52
)

// tell adds n to what is kept for w. Others are told n as well, so it has no room to append to.
func (w *Watch) tell(n []rds.Notice, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case kept := <-w.C:
		if len(kept)+len(n) <= watchMost {
			n = append(kept, n...)
		} else {
			lost = true // it is slow: what it misses it sees in ListCongestion
		}
	default:
	}
	if lost {
		w.Lost.Store(true)
	}
	w.C <- n // nobody else fills it
}

// WatchCongestion reports changes on all hosts until stop is called.
func (a *Host) WatchCongestion() (w *Watch, stop func()) {
	w = &Watch{C: make(chan []rds.Notice, 1)}
	for _, h := range a.list {
		h.Lock()
		h.watch = append(append([]*Watch(nil), h.watch...), w)
		h.e.Watch(true)
		h.Unlock()
	}
	return w, func() {
		for _, h := range a.list {
			h.Lock()
			var l []*Watch
			for _, o := range h.watch {
				if o != w {
					l = append(l, o)
				}
			}
			h.watch = l
			h.e.Watch(len(l) > 0)
			h.Unlock()
		}
	}
}

// --- for the other rooms of a node ---------------------------------------------------

// Locals lists the shells of the local addresses, in the order of the configuration.
func (a *Host) Locals() []*Local { return a.list }

// Reactors lists the threads that move bytes, once start has returned.
func (a *Host) Reactors() (l []*reactor.Reactor) {
	for _, w := range a.workers {
		l = append(l, w.Reactor)
	}
	return l
}

// Peers is the registry that says who may be a peer.
func (a *Host) Peers() *peers.Registry { return a.peers }

// Sweep closes links on which a payload does not go on: silent is how long nothing
// more of it may come.
func (a *Host) Sweep(now time.Time, silent time.Duration) { a.partials.sweep(now, silent) }

// TakeLocks takes each lock that a step is made under and gives it back: it returns
// when all of them can be had, which is all its caller wants to know.
func (a *Host) TakeLocks() {
	for _, h := range a.list {
		h.canLock()
	}
}

// books is the ledger of this life of the daemon; nil without one.
func (a *Host) Ledger() *shm.Ledger { return a.ledger }

// Aside runs f, which makes system calls that take their time, in a goroutine that
// close waits for. end, unless nil, is told of a panic in it.
func (a *Host) Aside(f func(), end func(error)) {
	a.graves.Go(func() {
		defer a.deps.Guard.Recover(guard.Socket, end)
		f()
	})
}

// canLock returns when the lock can be had, which is all its caller wants to know.
func (h *Local) canLock() {
	h.mu.Lock()
	defer h.mu.Unlock()
}
