package conn

import (
	"bytes"
	"math/rand"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/wire"
)

// Config holds the settings that all connections of a node share. Zero values are not
// defaults; see DefaultConfig.
type Config struct {
	Lanes        int           // most paths to agree on, 1..8
	CreditLog2   uint8         // log2 of the credits granted on each link, 7..20
	ReconnectMin time.Duration // backoff: random in [0, d), d doubling from Min to Max
	ReconnectMax time.Duration
	DialTimeout  time.Duration // an attempt that has not connected by then has failed
	ProbeTimeout time.Duration // a handshake not answered by then
	Heartbeat    time.Duration // silence after which an rdsd peer is asked for a sign
	DeadAfter    time.Duration // silence after which its link is given up
	AckDelay     time.Duration // how long an acknowledgement that was not asked for may wait
	AckPoll      time.Duration // how often TCP is asked how much a kernel peer acknowledged
	MapInterval  time.Duration // least time between two whole congestion maps on a link
	Ping         bool          // answer pings
	AckFrames    int           // ask for an acknowledgement after so many frames
	AckBytes     int           // and after so many bytes
	AckStep      int           // after so many bytes if their sender waits
	Trains       bool          // send and take trains (wire.Train)
	LaneLoad     int           // bytes on a path from which on a flow at rest leaves it for another
}

// DefaultConfig returns the configuration that tests begin with. A daemon's defaults are
// those of node/config.
func DefaultConfig() Config {
	return Config{
		Lanes: wire.MaxLanes, CreditLog2: 12,
		ReconnectMin: 100 * time.Millisecond, ReconnectMax: 5 * time.Second,
		DialTimeout: 5 * time.Second, ProbeTimeout: 3 * time.Second,
		Heartbeat: 10 * time.Second, DeadAfter: 30 * time.Second,
		AckDelay: 20 * time.Millisecond, AckPoll: 2 * time.Millisecond, MapInterval: 2 * time.Millisecond,
		Ping: true, AckFrames: 256, AckBytes: 1 << 20, AckStep: 128 << 10, Trains: true, LaneLoad: 64 << 10,
	}
}

// Kind says what sort of peer this is.
type Kind uint8

// Kinds of peer.
const (
	KindUnknown      Kind = iota
	KindRdsd              // explicit acks, credits, checksums, incarnation
	KindKernelLegacy      // Linux that cannot keep paths apart: one path
	KindKernel            // Linux that sends SPORT_IDX: paths by source port
)

func (k Kind) String() string {
	return [...]string{"unknown", "rdsd", "kernel-legacy", "kernel"}[k]
}

func (k Kind) kernel() bool { return k >= KindKernelLegacy }

// Conn is everything between one local and one remote address. Its owner's
// lock guards it and all it contains. net/rds/rds.h calls it struct rds_connection.
type Conn struct {
	cfg    *Config
	owner  Owner
	rng    *rand.Rand
	ctr    *stats.Counters
	local  netip.Addr
	remote netip.Addr
	// active says that ours is the smaller address, so that this side connects
	// (net/rds/tcp_connect.c, rds_tcp_conn_path_connect).
	active bool

	// The peer's identity (hello.go; docs/protocol.md, "Handshake", "Restarts"). These last
	// until the peer shows that it is another incarnation, or another sort of peer.

	inc  uint64 // our incarnation towards this peer, never 0
	kind Kind
	// kernels says whether a kernel is allowed at this address, as of the beginning of
	// the last link: rules change, and a link keeps those it began with.
	kernels bool
	peerInc uint64 // an rdsd's incarnation, 0: unknown
	peerGen uint32 // a kernel's generation number (net/rds, RDS_EXTHDR_GEN_NUM), 0: unknown

	// The number of paths (flows.go; docs/protocol.md, "Lanes").
	//
	// Invariant: 0 <= npaths <= wire.MaxLanes. No message enters a path while npaths is 0 or
	// grow is not, nor before those in pending: a message stays on its path, so that the
	// datagrams of a flow keep their order.

	npaths  int  // agreed on, 0: unknown
	trains  bool // the peer takes trains; known when paths is
	grow    int  // number of a kernel's paths once every message sent is acknowledged, 0: as it is
	pending list // accepted before the paths were known, or while grow is awaited
	// told is the NPATHS of our last handshake message, and known the largest NPATHS that a
	// kernel has answered to. The kernel maps our source ports to its paths by it.
	told  uint16
	known int
	// asked has a bit for each path on which the larger address wants to be connected.
	asked uint8

	// paths are the paths by number, nil until one is needed; slots has the same paths
	// in the order they were made, which never changes, and made counts them.
	paths [wire.MaxLanes]*Path
	slots [wire.MaxLanes]*Path
	made  uint8
	flows *[flowSlots]flowPath // which path a source port uses
	links uint64               // links begun so far, see Path.serial

	// Time (tick.go).

	armed time.Duration // when the next Tick was asked for; Never
	// late is how much later than armed the last Tick came. If that is long this
	// process stood still, and silence says nothing about the peer.
	late time.Duration
	// restartAt is before when another incarnation of the peer is not believed, see
	// moveTime.
	restartAt time.Duration
	rtt       time.Duration // of the last handshake or heartbeat, 0: none
}

// New makes the connection of a pair of addresses, which must differ and be of
// one family. Nothing happens until something is sent or a link arrives.
func New(cfg *Config, owner Owner, rng *rand.Rand, ctr *stats.Counters, local, remote netip.Addr) *Conn {
	l, r := local.As16(), remote.As16()
	c := &Conn{cfg: cfg, owner: owner, rng: rng, ctr: ctr, local: local, remote: remote, armed: Never,
		active: bytes.Compare(l[:], r[:]) < 0}
	for c.inc == 0 {
		c.inc = rng.Uint64()
	}
	return c
}

// Active reports whether this side connects: the numerically smaller address
// does (net/rds/tcp_connect.c).
func (c *Conn) Active() bool { return c.active }

// Local is our address.
func (c *Conn) Local() netip.Addr { return c.local }

// Remote is the peer's address.
func (c *Conn) Remote() netip.Addr { return c.remote }

// Kind returns what sort of peer this is, as far as known.
func (c *Conn) Kind() Kind { return c.kind }

// Paths returns the agreed number of paths, 0 while unknown.
func (c *Conn) Lanes() int { return c.npaths }

// PeerIncarnation is 0 while unknown.
func (c *Conn) PeerIncarnation() uint64 { return c.peerInc }

// Incarnation is ours towards this peer.
func (c *Conn) Incarnation() uint64 { return c.inc }

// NextTx is the sequence the next message will get.
func (p *Path) NextTx() uint64 { return p.nextSeq }

// RTT is the last handshake's or heartbeat's round trip, 0 before the first.
func (c *Conn) RTT() time.Duration { return c.rtt }

// Paths calls f for every path there is.
func (c *Conn) Paths(f func(*Path)) {
	for _, p := range c.paths {
		if p != nil {
			f(p)
		}
	}
}

// PathAt returns path i, nil when it was never needed.
func (c *Conn) PathAt(i int) *Path { return c.paths[i] }

// Up reports whether any path is up.
func (c *Conn) Up() (up bool) {
	c.Paths(func(p *Path) { up = up || p.state == Up })
	return up
}

func (c *Conn) path(i int) *Path {
	if c.paths[i] == nil {
		c.paths[i] = newPath(c, i)
		c.paths[i].slot = c.made
		c.slots[c.made] = c.paths[i]
		c.made++
	}
	return c.paths[i]
}

// Enqueue takes a message over. Its Completer is called exactly once.
func (c *Conn) Enqueue(now time.Duration, m *Msg) {
	m.At = now
	// The number of paths is known from the peer's probe on, and the first of them is
	// usable from its answer to ours: until then all messages wait in one line (D2).
	if c.npaths == 0 || c.grow != 0 || c.pending.head != nil {
		c.accepted(m)
		c.pending.push(m)
		m.where = inPending
		c.path(0).want(now)
		return
	}
	p := c.pathFor(now, m.SPort)
	c.accepted(m)
	p.enqueue(m)
	p.want(now)
}

// EnqueueChain takes over messages of one source port, chained by SetLink.
func (c *Conn) EnqueueChain(now time.Duration, head *Msg) {
	if c.npaths == 0 || c.grow != 0 || c.pending.head != nil {
		// The path is looked up once for all: their flow keeps to it while a message of it
		// is undecided.
		for m := head; m != nil; {
			next := m.next
			c.Enqueue(now, m)
			m = next
		}
		return
	}
	p := c.pathFor(now, head.SPort)
	for m := head; m != nil; {
		next := m.next
		m.At = now
		c.accepted(m)
		p.enqueue(m)
		m = next
	}
	p.want(now)
}

// spread gives the messages that waited for the number of paths to their paths. The number
// is still unknown when a kernel's further path comes back first after our address was
// lost.
func (c *Conn) spread(now time.Duration) {
	if c.grow != 0 || c.npaths == 0 {
		return
	}
	for c.pending.head != nil {
		m := c.pending.pop()
		p := c.pathFor(now, m.SPort)
		p.enqueue(m)
		p.want(now)
	}
}

// gather takes back everything that was certainly not delivered, in the order of each flow,
// because the number of paths will be agreed on again. It returns the number of messages.
func (c *Conn) gather() int {
	var all list
	c.Paths(func(p *Path) {
		// Refused, then kept behind those, then queued: the order in which each flow was
		// accepted.
		for _, port := range p.heldPorts() {
			all.splice(&p.holds[port].back)
			all.splice(&p.holds[port].kept)
		}
		p.holds, p.resume, p.late = nil, nil, false
		// FlagResume answers refusals of a path's state that ends here.
		p.queue.each(func(m *Msg) bool { m.flags &^= wire.FlagResume; return false })
		p.queue.moveTo(&all)
	})
	for m := all.head; m != nil; m = m.next {
		m.where = inPending
	}
	n := all.n
	// They go before the messages that have waited since, which were accepted later.
	c.pending.front(&all)
	return n
}

// Idle reports whether the connection has no link and nothing to do: nothing queued, sent,
// held or refused. since is when the last link or attempt ended.
func (c *Conn) Idle() (since time.Duration, ok bool) {
	ok = c.pending.head == nil
	c.Paths(func(p *Path) {
		ok = ok && p.state != Up && p.state != Disconnecting && len(p.waiting) == 0 && !p.writing &&
			p.queue.n == 0 && p.retrans.head == nil && p.unacked.head == nil && p.inwrite.head == nil && p.control.head == nil &&
			len(p.holds) == 0 && len(p.refused) == 0
		since = max(since, p.since)
	})
	return since, ok
}

// Known reports whether there is a history with the peer: it has identified itself, or sent
// something.
func (c *Conn) Known() (yes bool) {
	yes = c.kind != KindUnknown
	c.Paths(func(p *Path) { yes = yes || p.expected > 0 })
	return yes
}

// End ends an idle connection: a report of the shell about it that comes later is ignored.
func (c *Conn) End() {
	c.Paths(func(p *Path) { p.attempt = p.nextAttempt() })
}

// Queue sizes, for the administrator and for budgets.
type Queued struct {
	Queued, QueuedBytes   int
	Unacked, UnackedBytes int
	Held                  int
}

// Queued counts the messages on their way.
func (c *Conn) Queued() (q Queued) {
	q.Queued, q.QueuedBytes = c.pending.n, c.pending.bytes
	c.Paths(func(p *Path) {
		q.Queued += p.queue.n
		q.QueuedBytes += p.queue.bytes
		for _, l := range []*list{&p.inwrite, &p.unacked, &p.retrans} {
			q.Unacked += l.n
			q.UnackedBytes += l.bytes
		}
		for _, h := range p.holds {
			q.Held += h.n()
			q.QueuedBytes += h.back.bytes + h.kept.bytes
		}
	})
	return q
}
