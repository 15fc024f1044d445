package rds

import (
	"math/rand"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// Budget is the memory that received and accepted payloads may take, shared by
// the engines of a node (M1).
//
// Messages accepted for sending may take three quarters of it. A node that cannot receive
// does not acknowledge: two nodes that spent all of their budgets on messages to each other
// would wait for each other for ever.
type Budget struct {
	Limit   int64         // bytes
	Rest    *atomic.Int64 // bytes of the same memory that others hold; nil: none
	sending atomic.Int64  // accepted and undecided
	held    atomic.Int64  // received and unread

	refusedSending, refusedHeld atomic.Uint64
}

// RefusedSending and RefusedHeld count what was refused of the two parts of Datagrams, messages that were to
// be accepted and messages that came; Refused is their sum.
func (b *Budget) RefusedSending() uint64 { return b.refusedSending.Load() }
func (b *Budget) RefusedHeld() uint64    { return b.refusedHeld.Load() }
func (b *Budget) Refused() uint64        { return b.RefusedSending() + b.RefusedHeld() }

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 {
	u := b.Datagrams()
	if b.Rest != nil {
		u += b.Rest.Load()
	}
	return u
}

// Datagrams returns how many bytes the engines have taken.
func (b *Budget) Datagrams() int64 { return b.sending.Load() + b.held.Load() }

// Sending and Held are the two parts of Datagrams: accepted and undecided, and
// received and unread.
func (b *Budget) Sending() int64 { return b.sending.Load() }
func (b *Budget) Held() int64    { return b.held.Load() }

// everSends reports whether n bytes could be accepted if nothing else were held.
func (b *Budget) everSends(n int) bool { return int64(n) <= b.Limit-b.Limit/4 }

// Config of an engine. Zero values are not defaults; see DefaultConfig.
type Config struct {
	Conn         conn.Config
	SndBufBytes  int // default send buffer of a socket
	RcvBufBytes  int // default soft receive limit
	MaxBufBytes  int // most an application may ask for
	HardFactor   int // hard limit = HardFactor × soft limit + 1 MiB
	MaxPeers     int
	MaxSockets   int
	MaxUndecided int // accepted datagrams of one socket without an outcome
	MaxOutcomes  int // outcomes not fetched yet: beyond it nothing more is accepted
	Budget       *Budget
	// PeerAccount finds or makes the account that a peer and its links are charged to; the
	// engine closes it with the peer. If it is nil peers are not charged.
	PeerAccount func(netip.Addr) *quota.Account
	// AllowPeer and AllowKernel say which addresses may be peers, and which of
	// them kernels. They are pure functions; nil allows all.
	AllowPeer   func(netip.Addr) bool
	AllowKernel func(netip.Addr) bool
}

// DefaultConfig returns the configuration that tests begin with. A daemon's defaults are
// those of node/config.
func DefaultConfig() Config {
	return Config{
		Conn: conn.DefaultConfig(), SndBufBytes: 1 << 20, RcvBufBytes: 1 << 20, MaxBufBytes: 64 << 20, HardFactor: 2,
		MaxPeers: 10000, MaxSockets: 10000, MaxUndecided: 1 << 16, MaxOutcomes: 1 << 16,
		Budget: &Budget{Limit: 1 << 30},
	}
}

// Engine is RDS for one local address: its sockets, its peers, its congestion map. It
// starts no goroutine, reads no clock and does no I/O. The caller owns the one lock that
// guards it with everything in it, and calls it, its sockets and the lanes of its peers in
// steps: from Begin, which is told the time, to End. The orders that a step leaves (Take) are
// carried out when the lock is let go.
//
// A socket of one address never meets a connection of another, so engines of
// the same node share nothing but the Budget.
type Engine struct {
	// Lone is the shell's offer for the step under way: a small datagram to an rdsd that finds
	// nothing before it is put into the batch when it is accepted (conn/lone.go), without a turn of
	// its own. If a lane has taken the offer when the step ends, the shell writes the batch and
	// calls Wrote, as after Fill. The shell makes none while somebody traces, whom Fill tells.
	Lone *conn.Offer

	cfg   *Config
	local netip.Addr
	now   time.Duration // of the current step
	// tracer is told of every stage of messages; nil: nobody traces. It stands beside now, which each
	// step writes, so that looking whether there is one reads nothing more (trace.go).
	tracer  Tracer
	leaving bool  // Leave was called: nothing is placed any more
	tally   tally // memory of the node taken by the current step, told to others when it ends

	// Sockets (socket.go).

	socks    map[uint16]*Socket // by port
	bound    []*Socket          // the same, in no order
	lastSock *Socket            // of the last lookup
	nextID   uint64
	rest     recentPorts // closed lately
	held     heldPorts   // of the daemon's former incarnation

	// Peers (peer.go, evict.go).

	conns    conn.Common // of all peers' connections
	peers    map[netip.Addr]*Peer
	order    []*Peer          // in order of creation, so that walks repeat
	loop     *Peer            // this address itself
	here     uint64           // messages placed that stayed at this address
	lastPeer *Peer            // of the last lookup
	named    map[uint32]share // peers that never answered, by the user that named them
	asked    int              // of all peers, see Peer.asked
	evictAt  int              // where in order to look for a place
	noPlace  uint64           // peers for which there was none
	fullAt   time.Duration    // when that was last because nobody rested; 0: never
	looks    int              // that may be taken beyond evictLook, as of lookedAt
	lookedAt time.Duration    // see earned
	evicted  []*conn.Conn     // not taken yet
	idle     flowList         // idle flows, see maxIdleFlows
	// paidFlows counts the flows that are paid for, of all sockets.
	paidFlows int

	// Congestion of our own ports, and the peers to tell (congestion.go).
	//
	// Invariant: clog holds the last congLog changes before cver, and cwhole is the map of
	// version cwholeV.

	cmap    cong.Map
	spare   cong.Spare // of its map and its peers'
	cver    uint64     // of cmap; 1: nothing was ever congested
	clog    [congLog]congChange
	cwhole  []byte // wire form of cmap at cwholeV
	cwholeV uint64
	walk    peerWalk // where telling the peers stands
	walked  int      // peers told so far, for tests that count work
	told    int      // flows and peers told of congestion so far, likewise
	looked  int      // flows and messages looked at for deadlines in vain so far, likewise
	cnotes  []Notice // not taken yet, if watched
	clost   bool     // and some are lost
	watched bool     // the shell wants Notices

	answerAt time.Duration // before when no peer is told who reads a port

	// Monitors of congestion.

	monitors []*Socket
	groups   uint64        // of ports that became clear, not told to monitors yet
	groupsAt time.Duration // when they were told last
	groupsTm timer

	// Sockets that wait for memory of the node (memwait.go).

	recvWaiters     []*Socket // that refused something for want of it
	recvWaitersNext int       // where in recvWaiters to look next
	sendWaiters     []*Socket // whose sends were refused for want of it
	sendWaitersNext int       // where in thirsty to look next
	collect         bool      // clients are to be asked for memory, see Orders
	memoryTm        timer

	// Work that a step has made possible: runDeferred does it, when no list is being
	// walked.

	space       []*Socket // sockets whose send buffer has room again
	cleared     []clearedPort
	clearedMaps []*Peer // whose whole map may have cleared ports
	full        []*Peer // kernel peers that wait for a receiver to have room

	// For the shell, until it takes them (Orders).

	ready   []*Socket          // sockets with news
	states  []conn.StateChange // the first maxStates
	timers  *btree.BTreeG[timer]
	due     time.Duration // no timer is due before
	timerID uint64

	ctr stats.Counters
}

// maxStates bounds the changes that are told after a step: they are for the log.
const maxStates = 1024

type clearedPort struct {
	pe   *Peer
	port uint16
}

// NewEngine makes the engine of one local address. rng seeds backoff and incarnations; only
// the engine may use it.
func NewEngine(cfg *Config, local netip.Addr, rng *rand.Rand) *Engine {
	e := &Engine{cfg: cfg, local: local, socks: map[uint16]*Socket{}, peers: map[netip.Addr]*Peer{}, cver: 1,
		timers: btree.NewG(16, timer.less), due: conn.Never}
	e.named = map[uint32]share{}
	e.loop = &Peer{e: e, addr: local, cmap: &e.cmap, mapTold: -tellEvery}
	e.conns = conn.Common{Config: &cfg.Conn, Local: local, Rng: rng, AllowKernel: e.mayKernel}
	e.groupsAt = -groupsEvery
	return e
}

// mayKernel reports whether the peer of an address may be a kernel.
func (e *Engine) mayKernel(addr netip.Addr) bool {
	return e.cfg.AllowKernel == nil || e.cfg.AllowKernel(addr)
}

// Local is the engine's address.
func (e *Engine) Local() netip.Addr { return e.local }

// --- steps --------------------------------------------------------------------

// Orders is what the shell is to do after a step.
type Orders struct {
	Actions []conn.Action // to links
	Ready   []*Socket     // have news: Socket.Events
	States  []conn.StateChange
	Notices []Notice     // for the shell's watchers; their number is bounded, and in a flood the oldest are lost
	Lost    bool         // some were
	Evicted []*conn.Conn // forgotten: the shell gives up what it holds for their lanes
	// Collect says, once, that sockets or credits wait for memory of the node. The shell then takes the
	// releases of the clients of all its engines (Socket.Freed and Socket.ReadAll), whether
	// or not they rang for them.
	Collect bool
}

// Begin begins a step, whose calls are those of the engine, of its sockets, and of the lanes
// of its peers. It returns the time of the step, which never goes back, whoever has looked
// at which clock.
func (e *Engine) Begin(now time.Duration) time.Duration {
	e.now = max(e.now, now)
	return e.now
}

// End ends a step: what it has made possible is done, and others are told how much memory it
// took and gave back. It reports when to call Tick, or a little before, and whether there are
// orders to be taken.
func (e *Engine) End() (due time.Duration, ordered bool) {
	if len(e.cleared)+len(e.clearedMaps)+len(e.space) > 0 {
		e.runDeferred(e.now)
	}
	e.Lone = nil
	if len(e.conns.Changes) > 0 {
		e.takeChanges()
	}
	e.tell()
	return e.due, len(e.conns.Actions)+len(e.ready)+len(e.states)+len(e.cnotes)+len(e.evicted) > 0 || e.collect
}

// tell tells others what the step has taken and given back.
func (e *Engine) tell() {
	if t := &e.tally; t.sending|t.held|t.noted != 0 {
		b := e.cfg.Budget
		b.sending.Add(t.sending)
		b.held.Add(t.held)
		t.account.Hold(t.noted)
		t.sending, t.held, t.noted = 0, 0, 0
	}
}

// takeChanges looks at the lanes that changed their state in this step.
func (e *Engine) takeChanges() {
	for _, s := range e.conns.Changes {
		if pe := e.peers[s.Lane.Conn().Remote()]; s.Now == conn.Up && pe != nil {
			pe.answer()
		}
		if len(e.states) < maxStates {
			e.states = append(e.states, s)
		}
	}
	clear(e.conns.Changes)
	e.conns.Changes = e.conns.Changes[:0]
}

// Take moves the orders to o, whose former ones are forgotten.
func (e *Engine) Take(o *Orders) {
	c := &e.conns
	o.Actions = append(o.Actions[:0], c.Actions...)
	clear(c.Actions)
	c.Actions = c.Actions[:0]
	for _, s := range e.ready {
		s.listed = false
	}
	o.Ready = append(o.Ready[:0], e.ready...)
	clear(e.ready)
	e.ready = e.ready[:0]
	o.States, e.states = e.states, nil
	o.Notices, e.cnotes = e.cnotes, nil
	o.Lost, e.clost = e.clost, false
	o.Evicted, e.evicted = e.evicted, nil
	o.Collect, e.collect = e.collect, false
}

// Here numbers the messages that stayed at this address: the last one placed. For a Sink it
// is the sequence of messages without a lane.
func (e *Engine) Here() uint64 { return e.here }

// --- links ----------------------------------------------------------------

// Accept judges an incoming connection from a peer's address and source port.
func (e *Engine) Accept(now time.Duration, remote netip.AddrPort) (conn.Accepted, error) {
	if remote.Addr() == e.local {
		return conn.Accepted{}, rdserr.With(rdserr.ErrInvalid, "connection from our own address %v", e.local)
	}
	pe, err := e.peer(now, remote.Addr(), origin{})
	if err != nil {
		return conn.Accepted{}, err
	}
	return pe.c.Accept(now, remote.Port()), nil
}

// Fill is conn.Lane.Fill of p, of which a tracer is told.
func (e *Engine) Fill(now time.Duration, p *conn.Lane, b *transport.Batch) bool {
	ok := p.Fill(now, b)
	if e.tracer != nil && ok {
		e.traceLeft(p)
	}
	return ok
}

// Trim lets go what is kept for traffic to come, of trimPeers peers from number from on, and as many
// idle flows. It returns the number to go on with, 0 at the end. It is called between steps, and
// followed by End.
func (e *Engine) Trim(from int) (next int) {
	e.dropIdle(trimPeers)
	e.tell()
	next = min(from+trimPeers, len(e.order))
	for _, pe := range e.order[min(from, next):next] {
		pe.trim()
	}
	if next < len(e.order) || e.idle.n > 0 {
		return max(next, 1)
	}
	e.conns.Trim()
	e.cwhole, e.cwholeV = nil, 0
	return 0
}

// trimPeers are some ten microseconds' work, for which others wait.
const trimPeers = 64

// AddressLost ends our incarnation towards all peers; see conn.Conn.AddressLost.
func (e *Engine) AddressLost(now time.Duration) {
	for _, pe := range e.order {
		pe.c.AddressLost(now)
	}
}

// runDeferred ends every step: the work that the step made possible is done now, when no
// list of a connection is being walked.
func (e *Engine) runDeferred(now time.Duration) {
	// Each of the three may make work for the others: a send that goes on may find a port
	// congested, and one that ends makes room.
	for len(e.cleared)+len(e.clearedMaps)+len(e.space) > 0 {
		for _, pe := range e.clearedMaps {
			pe.c.PortsClear(now)
		}
		e.clearedMaps = e.clearedMaps[:0]
		for i := 0; i < len(e.cleared); i++ {
			c := e.cleared[i]
			if c.pe.c != nil {
				c.pe.c.PortClear(now, c.port)
			}
			c.pe.wake(c.port)
		}
		e.cleared = e.cleared[:0]
		// Sockets that are listed meanwhile have their turn in the next round.
		space := e.space
		e.space = nil
		for _, s := range space {
			s.spaceListed = false
			s.runWaiting(now)
		}
	}
}

// Shutdown completes everything undecided, as the node ends.
func (e *Engine) Shutdown(now time.Duration) {
	for _, s := range e.Sockets() {
		for _, f := range s.sortedFlows() {
			s.failWaiting(f, rdserr.ErrShutdown, conn.WhyShutdown)
		}
	}
	for _, pe := range e.order {
		pe.c.Abandon(conn.WhyShutdown)
	}
	e.runDeferred(now)
}

// --- timers -----------------------------------------------------------------

type ticker interface{ tick(now time.Duration) }

type timer struct {
	at time.Duration
	id uint64
	t  ticker
}

func (a timer) less(b timer) bool { return a.at < b.at || a.at == b.at && a.id < b.id }

// arm moves t's timer to at when that is earlier than where it is.
func (e *Engine) arm(cur *timer, t ticker, at time.Duration) {
	if cur.t != nil {
		if cur.at <= at {
			return
		}
		e.timers.Delete(*cur)
	}
	// The id tells timers of one time apart, in the order in which they were first armed: a
	// run repeats.
	if cur.id == 0 {
		e.timerID++
		cur.id = e.timerID
	}
	cur.at, cur.t = at, t
	e.due = min(e.due, at)
	e.timers.ReplaceOrInsert(*cur)
}

// Tick does everything that is due.
func (e *Engine) Tick(now time.Duration) {
	for {
		t, ok := e.timers.Min()
		if !ok {
			e.due = conn.Never
			return
		}
		if e.due = t.at; t.at > now {
			return
		}
		e.timers.DeleteMin()
		t.t.tick(now)
	}
}

// OwnCounters are the engine's, without those of its peers.
func (e *Engine) OwnCounters() (c stats.Counters) {
	c = e.ctr
	c.Add(&e.loop.ctr)
	return c
}

// Counters adds up the engine's and all its peers'.
func (e *Engine) Counters() (c stats.Counters) {
	c = e.OwnCounters()
	for _, pe := range e.order {
		c.Add(&pe.ctr)
	}
	return c
}

// QueueNs is how long datagrams waited before their first byte left, RTTNs how long
// handshakes and heartbeats took.
func (e *Engine) QueueNs() *stats.Hist { return &e.conns.QueueNs }
func (e *Engine) RTTNs() *stats.Hist   { return &e.conns.RTTNs }

// A Peer implements the interface that a connection needs.
var _ conn.Owner = (*Peer)(nil)
