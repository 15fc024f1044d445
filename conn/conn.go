package conn

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/wire"
)

// Config holds the settings that all connections of a node share. Zero values are not
// defaults; see DefaultConfig.
type Config struct {
	Lanes        int           // most lanes to agree on, 1..8
	CreditLog2   uint8         // log2 of the credits granted on each link, 7..20
	ReconnectMin time.Duration // backoff: random in [0, d), d doubling from Min to Max
	ReconnectMax time.Duration
	DialTimeout  time.Duration // an attempt that has not connected by then has failed
	ProbeTimeout time.Duration // a handshake not answered by then
	Heartbeat    time.Duration // silence after which an rdsd peer is asked for a sign
	DeadAfter    time.Duration // silence after which its link is given up
	AckDelay     time.Duration // how long an acknowledgement that was not asked for may wait
	AckPoll      time.Duration // how often TCP is asked how much a kernel peer acknowledged, at first (pollEvery)
	MapInterval  time.Duration // least time between two whole congestion maps on a link, of few (mapInterval)
	Ping         bool          // answer pings, and handshakes of kernels
	AckFrames    int           // ask for an acknowledgement after so many frames
	AckBytes     int           // and after so many bytes
	AckStep      int           // after so many bytes if their sender waits
	Trains       bool          // send and take trains (wire.Train)
	LaneLoad     int           // bytes on a lane from which on a flow at rest leaves it for another
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
	KindKernelLegacy      // Linux that cannot keep lanes apart: one lane
	KindKernel            // Linux that sends SPORT_IDX: lanes by source port
)

func (k Kind) String() string {
	return [...]string{"unknown", "rdsd", "kernel-legacy", "kernel"}[k]
}

func (k Kind) kernel() bool { return k >= KindKernelLegacy }

// Conn is everything between one local and one remote address. Its owner's
// lock guards it and all it contains. net/rds/rds.h calls it struct rds_connection.
type Conn struct {
	com    *Common
	cfg    *Config // of com
	owner  Owner
	ctr    *stats.Counters
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
	// blocked is as SetBlocked said.
	blocked bool
	peerInc uint64 // an rdsd's incarnation, 0: unknown
	peerGen uint32 // a kernel's generation number (net/rds, RDS_EXTHDR_GEN_NUM), 0: unknown

	// The number of lanes (flows.go; docs/protocol.md, "Lanes").
	//
	// Invariant: 0 <= nlanes <= wire.MaxLanes. No message enters a lane while nlanes is 0 or
	// grow is not, nor before those in pending: a message stays on its lane, so that the
	// datagrams of a flow keep their order.

	nlanes  int  // agreed on, 0: unknown
	trains  bool // the peer takes trains; known when nlanes is
	grow    int  // number of a kernel's lanes once every message sent is acknowledged, 0: as it is
	pending list // accepted before the lanes were known, or while grow is awaited
	// told is the NPATHS of our last handshake message, and known the largest NPATHS that a
	// kernel has answered to. The kernel maps our source ports to its lanes by it.
	told  uint16
	known int
	// asked has a bit for each lane on which the larger address wants to be connected.
	asked uint8

	// lanes are the lanes by number, nil until one is needed; slots has the same lanes
	// in the order they were made, which never changes, and made counts them.
	lanes [wire.MaxLanes]*Lane
	slots [wire.MaxLanes]*Lane
	made  uint8
	flows *[flowSlots]flowLane // which lane a source port uses
	// chosen says that one of flows has chosen its lane.
	chosen bool
	links  uint64 // links begun so far, see Lane.serial
	kept   int    // refusals that memory was asked for (keep.go)

	// Time (tick.go).

	armed time.Duration // when the next Tick was asked for; Never
	// grace is until when silence says nothing about the peer: the last Tick came so late that
	// this process stood still, and what came meanwhile is read first.
	grace time.Duration
	// restartAt is before when another incarnation of the peer, or another sort of peer, is
	// not believed, see moveTime.
	restartAt time.Duration
	rtt       time.Duration // of the last handshake or heartbeat, 0: none
}

// New makes the connection with a remote address, which must differ from com's and be of
// its family. Nothing happens until something is sent or a link arrives.
func New(com *Common, owner Owner, ctr *stats.Counters, remote netip.Addr) *Conn {
	l, r := com.Local.As16(), remote.As16()
	c := &Conn{com: com, cfg: com.Config, owner: owner, ctr: ctr, remote: remote, armed: Never,
		active: bytes.Compare(l[:], r[:]) < 0}
	for c.inc == 0 {
		c.inc = com.Rng.Uint64()
	}
	return c
}

// Active reports whether this side connects: the numerically smaller address
// does (net/rds/tcp_connect.c).
func (c *Conn) Active() bool { return c.active }

// Local is our address.
func (c *Conn) Local() netip.Addr { return c.com.Local }

// Remote is the peer's address.
func (c *Conn) Remote() netip.Addr { return c.remote }

// Kind returns what sort of peer this is, as far as known.
func (c *Conn) Kind() Kind { return c.kind }

// Lanes returns the agreed number of lanes, 0 while unknown.
func (c *Conn) Lanes() int { return c.nlanes }

// PeerIncarnation is 0 while unknown.
func (c *Conn) PeerIncarnation() uint64 { return c.peerInc }

// Incarnation is ours towards this peer.
func (c *Conn) Incarnation() uint64 { return c.inc }

// NextTx is the sequence the next message will get.
func (p *Lane) NextTx() uint64 { return p.nextSeq }

// RTT is the last handshake's or heartbeat's round trip, 0 before the first.
func (c *Conn) RTT() time.Duration { return c.rtt }

// EachLane calls f for every lane there is.
func (c *Conn) EachLane(f func(*Lane)) {
	for _, p := range c.lanes {
		if p != nil {
			f(p)
		}
	}
}

// LaneAt returns lane i, nil when it was never needed.
func (c *Conn) LaneAt(i int) *Lane { return c.lanes[i] }

// Up reports whether any lane is up.
func (c *Conn) Up() (up bool) {
	c.EachLane(func(p *Lane) { up = up || p.state == Up })
	return up
}

func (c *Conn) lane(i int) *Lane {
	if c.lanes[i] == nil {
		c.lanes[i] = newLane(c, i)
		c.lanes[i].slot = c.made
		c.slots[c.made] = c.lanes[i]
		c.made++
	}
	return c.lanes[i]
}

// Enqueue takes a message over. Its Completer is called exactly once. o, when not nil, is an
// offer to a message whose port the caller has found clear.
func (c *Conn) Enqueue(now time.Duration, m *Msg, o *Offer) {
	m.At = now
	// The number of lanes is known from the peer's probe on, and the first of them is
	// usable from its answer to ours: until then all messages wait in one line (D2).
	if c.nlanes == 0 || c.grow != 0 || c.pending.head != nil {
		m.Owner.add(c.flow(m.SPort), m, nil)
		c.pending.push(m)
		m.where = inPending
		c.lane(0).want(now)
		return
	}
	p, f := c.laneFor(now, m.SPort)
	m.Owner.add(f, m, nil)
	if o != nil && o.Lane == nil && p.sendLone(now, m, o) {
		return
	}
	p.enqueue(m)
	p.want(now)
}

// EnqueueChain takes over messages of one source port, chained by SetLink.
func (c *Conn) EnqueueChain(now time.Duration, head *Msg) {
	if c.nlanes == 0 || c.grow != 0 || c.pending.head != nil {
		// The lane is looked up once for all: their flow keeps to it while a message of it
		// is undecided.
		for m := head; m != nil; {
			next := m.next
			c.Enqueue(now, m, nil)
			m = next
		}
		return
	}
	p, f := c.laneFor(now, head.SPort)
	for m := head; m != nil; {
		next := m.next
		m.At = now
		m.Owner.add(f, m, nil)
		p.enqueue(m)
		m = next
	}
	p.want(now)
}

// spread gives the messages that waited for the number of lanes to their lanes. The number
// is still unknown when a kernel's further lane comes back first after our address was
// lost.
func (c *Conn) spread(now time.Duration) {
	if c.grow != 0 || c.nlanes == 0 {
		return
	}
	for c.pending.head != nil {
		m := c.pending.pop()
		p, _ := c.laneFor(now, m.SPort)
		p.enqueue(m)
		p.want(now)
	}
}

// gather takes back everything that was certainly not delivered, in the order of each flow,
// because the number of lanes will be agreed on again. It returns the number of messages.
func (c *Conn) gather() int {
	var all list
	c.EachLane(func(p *Lane) {
		// Refused, then kept behind those, then queued: the order in which each flow was
		// accepted.
		for _, port := range p.heldPorts() {
			all.splice(&p.holds[port].back)
			all.splice(&p.holds[port].kept)
		}
		p.holds, p.outBy, p.resume, p.late = nil, nil, nil, false
		// FlagResume answers refusals of a lane's state that ends here.
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

// Idle reports whether the connection has no link and nothing to do: no message of a sender is
// undecided. Messages of the protocol's own do not count: they answer a peer that is gone, and
// mean nothing to it when this connection is forgotten. since is when the last link ended; of a
// peer that is not Known, when the last attempt did.
func (c *Conn) Idle() (since time.Duration, ok bool) {
	ok = !c.owes()
	known := c.Known()
	c.EachLane(func(p *Lane) {
		ok = ok && p.state != Up && p.state != Disconnecting && len(p.waiting) == 0 && !p.writing &&
			// A kernel that takes the connection sends on it, and forgets that (Drop).
			!(p.state == Connecting && c.active && c.kind.kernel())
		at := p.since
		if known { // whoever connects to a peer that is gone tries without an end
			at = p.lastRx
		}
		since = max(since, at)
	})
	return since, ok
}

// owes reports whether a message of a sender is undecided.
func (c *Conn) owes() bool {
	if c.flows != nil {
		for i := range c.flows {
			if c.flows[i].out > 0 {
				return true
			}
		}
	}
	return false
}

// Known reports whether there is a history with the peer: it has identified itself, or sent
// something.
func (c *Conn) Known() (yes bool) {
	yes = c.kind != KindUnknown
	c.EachLane(func(p *Lane) { yes = yes || p.expected > 0 })
	return yes
}

// End ends an idle connection: a report of the shell about it that comes later is ignored. Memory that was
// asked for is given back.
func (c *Conn) End() {
	c.EachLane(func(p *Lane) { p.attempt = p.nextAttempt() })
	c.giveBack()
}

// Trim lets go what is kept for messages to come and nothing needs now.
func (c *Conn) Trim() {
	c.EachLane(func(p *Lane) { p.queue.trim() })
	c.trimFlows()
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
	c.EachLane(func(p *Lane) {
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
