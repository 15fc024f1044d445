package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	crand "crypto/rand"
	"encoding/binary"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// hosts is the core of a node: one host for each local address.
type hosts struct {
	node         *Node
	epoch        time.Duration // the engines' time zero, by reactor.Clock
	engineConfig rds.Config
	workers      []*worker          // set by start
	provider     transport.Provider // set by start
	list         []*host
	byAddr       map[netip.Addr]*host
	ctx          context.Context // ends with the node: dials give up
	cancel       context.CancelFunc

	handshakes handshakes
	partials   partials
	refused    atomic.Uint64 // connections refused, for any reason
	full       atomic.Uint64 // writes that met a full socket buffer

	states   stateLog
	ledger   *shm.Ledger         // nil: none
	addrs    *netlocal.AddrWatch // nil: nobody watches; set by start
	watching sync.WaitGroup      // of addrs

	ports *portBook // nil: none; set by start
	dealt atomic.Uint32
	// graves counts goroutines that let go of the memory of closed sockets with
	// rings, or allocate in the ledger for open ones.
	graves sync.WaitGroup
}

func newCore(n *Node) (core, error) {
	c := n.cfg
	a := &hosts{node: n, epoch: reactor.Clock() - time.Hour, byAddr: map[netip.Addr]*host{}}
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
	e.Budget = n.budget
	e.PeerAccount = func(addr netip.Addr) *quota.Account { return n.memory.Account(quota.Peer(addr)) }
	e.AllowPeer = func(addr netip.Addr) bool { ok, _ := n.conf().PeerPolicy(addr); return ok || a.byAddr[addr] != nil }
	e.AllowKernel = func(addr netip.Addr) bool { _, ok := n.conf().PeerPolicy(addr); return ok }
	a.engineConfig = e
	for _, addr := range c.RDS.Addresses {
		var seed [8]byte
		crand.Read(seed[:])
		h := newHost(a, addr, int64(binary.LittleEndian.Uint64(seed[:])))
		a.list = append(a.list, h)
		a.byAddr[addr] = h
	}
	return a, nil
}

// host finds the host of a local address.
func (a *hosts) host(addr netip.Addr) (*host, error) {
	if h := a.byAddr[addr.Unmap()]; h != nil {
		return h, nil
	}
	return nil, rdserr.With(rdserr.ErrAddrNotAvail, "%v is not an address of this daemon; it has %v", addr, a.node.cfg.RDS.Addresses)
}

func (a *hosts) withTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, d)
}

func (a *hosts) start() error {
	if err := a.startReactors(); err != nil {
		a.close()
		return err
	}
	var loops []*reactor.Reactor
	for _, w := range a.workers {
		loops = append(loops, w.Reactor)
	}
	links := tcp.New(loops...)
	links.BufferBytes = int(a.node.cfg.RDS.TCPBufferBytes)
	links.Log, links.AcceptFailed, links.Reserve = a.node.log, &a.node.count.AcceptErrors, a.node.fds.reserve
	links.Guard = a.node.guard
	links.Room = func() error { return a.node.fds.room(linkFDs, keepOfLinks) }
	if name := a.node.cfg.RDS.TCPCongestion; name != "" {
		if err := tcp.CheckCongestion(name); err != nil {
			a.node.log.Warn("rds.tcp_congestion cannot be had, TCP keeps the kernel's default", "name", name, "err", err)
		} else {
			links.Congestion = name
		}
	}
	links.Check = a.node.checkDialled
	a.provider = links
	for i, h := range a.list {
		h.attach(a.workers[i%len(a.workers)])
	}
	a.states.start(a)
	if err := a.openLedger(); err != nil {
		a.close()
		return err
	}
	a.watchAddrs()
	was := a.openPorts()
	for _, h := range a.list {
		l, err := a.provider.Listen(netip.AddrPortFrom(h.addr, h.port), h.accept)
		if err != nil {
			a.close()
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
func (a *hosts) cannotListen(h *host, err error) error {
	c := a.node.cfg
	key, hint := "rds.port", ""
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		hint = ": is the kernel's rds_tcp loaded, or another rdsd running?"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		key, hint = "rds.addresses", ": this machine has no such address"
	}
	return c.Failed(key, fmt.Errorf("cannot listen for RDS peers on %v port %d: %w%s", h.addr, h.port, err, hint))
}

// drain waits until nothing accepted is undecided. It looks; at the end of a
// daemon's life a few milliseconds do not matter.
func (a *hosts) drain(ctx context.Context) {
	for {
		busy := 0
		for _, h := range a.list {
			h.eachSocket(func(_ *rds.Engine, s *rds.Socket) { busy += s.Info().Undecided })
		}
		if busy == 0 {
			return
		}
		select {
		case <-ctx.Done():
			a.node.log.Warn("datagrams undecided at the end", "undecided", busy)
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (a *hosts) close() {
	a.cancel()
	a.unwatch()
	var g errgroup.Group
	for _, h := range a.list {
		g.Go(func() error {
			defer a.node.guard.Recover(guard.Step, nil) // its links would never be over
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

func (a *hosts) alive() {
	for _, h := range a.list {
		h.lock()
		h.unlock()
	}
}

func (a *hosts) engine(addr netip.Addr) engineLock {
	if h := a.byAddr[addr.Unmap()]; h != nil {
		return h
	}
	return nil
}

func (a *hosts) read(s *snapshot) {
	for _, h := range a.list {
		h.lock()
		c := h.e.OwnCounters()
		s.queueing.Merge(&h.e.QueueNs)
		s.rtt.Merge(&h.e.RTTNs)
		h.unlock()
		h.eachPeer(func(_ *rds.Engine, pe *rds.Peer) {
			q, k := pe.Conn().Queued(), pe.Counters()
			c.Add(&k)
			s.peers = append(s.peers, peerSnapshot{local: h.addr, remote: pe.Addr(), up: pe.Conn().Up(),
				counters: k, queuedBytes: uint64(q.QueuedBytes + q.UnackedBytes)})
		})
		s.counters.Add(&c)
	}
	s.counters.TCPSndbufFull += a.full.Load()
	s.refusedLinks = a.refused.Load()
	b := a.engineConfig.Budget
	l := a.node.conf().Limits
	s.budgets = append(s.budgets,
		budget{"memory", uint64(max(b.Used(), 0)), uint64(b.Limit), b.Refused.Load()},
		budget{"peers", uint64(len(s.peers)), uint64(l.MaxPeers), 0},
		a.handshakes.budget(l.MaxHandshakes))
}

// --- administration -------------------------------------------------------------------

// ping measures a round trip to a node, from one of our addresses.
func (a *hosts) ping(ctx context.Context, local, remote netip.Addr) (netip.Addr, time.Duration, error) {
	h, err := a.hostFor(local, remote)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	woken := make(wakeup, 1)
	h.lock()
	s, err := h.e.Bind(0, rds.SocketOptions{RcvBufBytes: 4096, SndBufBytes: 4096, Label: "ping", Data: woken})
	h.unlock()
	if err != nil {
		return h.addr, 0, err
	}
	defer func() {
		_, now := h.lock()
		s.Close(now)
		h.unlock()
	}()
	begun := time.Now()
	_, now := h.lock()
	err = s.Send(now, netip.AddrPortFrom(remote, 0), nil, 0, false)
	h.unlock()
	if err != nil {
		return h.addr, 0, err
	}
	for {
		select {
		case <-woken:
		case <-ctx.Done():
			return h.addr, 0, rdserr.With(rdserr.ErrTimeout, "no answer from %v%s", remote, h.whyDown(remote))
		}
		_, now := h.lock()
		s.Events()
		d, ok := s.Recv()
		s.ReadAll(now)
		h.unlock()
		if ok {
			d.Release()
			return h.addr, time.Since(begun), nil
		}
	}
}

// whyDown says why there is no link to remote, if that is known.
func (h *host) whyDown(remote netip.Addr) string {
	var last error
	e, _ := h.lock()
	if pe, err := e.Peer(remote); err == nil && pe.Conn() != nil && !pe.Conn().Up() {
		pe.Conn().Paths(func(p *conn.Path) {
			if err := p.Info().LastErr; err != nil {
				last = err
			}
		})
	}
	h.unlock()
	if last == nil {
		return ""
	}
	return ": " + last.Error()
}

// wakeup is a socket's Data that wakes one goroutine.
type wakeup chan struct{}

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// hostFor picks the host for local, or any of remote's family.
func (a *hosts) hostFor(local, remote netip.Addr) (*host, error) {
	if local.IsValid() {
		return a.host(local)
	}
	for _, h := range a.list {
		if h.addr.Is4() == remote.Unmap().Is4() {
			return h, nil
		}
	}
	return nil, rdserr.With(rdserr.ErrAddrNotAvail, "this daemon has no address of the family of %v; it has %v", remote, a.node.cfg.RDS.Addresses)
}

var errDropped = errors.New("dropped by an administrator")

// dropPath gives up the links to remote; lane < 0: all lanes.
func (a *hosts) dropPath(local, remote netip.Addr, lane int) (dropped int) {
	for _, h := range a.list {
		if local.IsValid() && h.addr != local {
			continue
		}
		_, now := h.lock()
		if pe := h.e.Known(remote); pe != nil {
			pe.Conn().Paths(func(p *conn.Path) {
				if (lane < 0 || p.Index() == lane) && h.e.Drop(now, p, errDropped) {
					dropped++
				}
			})
		}
		h.unlock()
	}
	return dropped
}

// congestionWatch is one listener to congestion; C is closed when it falls behind.
type congestionWatch struct {
	c chan []rds.Notice
}

func (w *congestionWatch) tell(n []rds.Notice) {
	select {
	case w.c <- n:
	default: // it is slow: what it misses it sees in ListCongestion
	}
}

// watchCongestion reports changes on all hosts until stop is called.
func (a *hosts) watchCongestion() (w *congestionWatch, stop func()) {
	w = &congestionWatch{c: make(chan []rds.Notice, 64)}
	for _, h := range a.list {
		h.lock()
		h.watch = append(append([]*congestionWatch(nil), h.watch...), w)
		h.e.Watch(true)
		h.unlock()
	}
	return w, func() {
		for _, h := range a.list {
			h.lock()
			var l []*congestionWatch
			for _, o := range h.watch {
				if o != w {
					l = append(l, o)
				}
			}
			h.watch = l
			h.e.Watch(len(l) > 0)
			h.unlock()
		}
	}
}
