package cm

import (
	"errors"
	"fmt"
	"math"
	"math/rand"
	"net/netip"
	"time"
)

// Never is the time at which nothing happens.
const Never = time.Duration(math.MaxInt64)

// udpPort is RoCEv2's, to which everything is sent.
const udpPort = 4791

// Errors of calls, and of connections that ended.
var (
	ErrConfig = errors.New("cm: a connection manager cannot have this value")
	ErrParam  = errors.New("cm: a connection cannot have this parameter")
	ErrState  = errors.New("cm: the state of the connection does not allow it")
	ErrBusy   = errors.New("cm: it is in use")
	ErrLimit  = errors.New("cm: no more connections are allowed")

	ErrPeer   = errors.New("cm: the peer disconnected")
	ErrStale  = errors.New("cm: the peer has forgotten the connection")
	ErrSilent = errors.New("cm: the peer does not answer")
)

// Stats counts what came, and what became of it.
type Stats struct {
	Received   uint64 `name:"cm_received" help:"messages of the connection manager received"`
	Sent       uint64 `name:"cm_sent" help:"messages of the connection manager sent, repetitions included"`
	Repeated   uint64 `name:"cm_repeated" help:"of these, those that were not answered in time"`
	Garbage    uint64 `name:"cm_garbage" help:"datagrams that are no message of the connection manager, or have fields that mean nothing"`
	Unknown    uint64 `name:"cm_unknown" help:"messages about a connection that is not there"`
	Forged     uint64 `name:"cm_forged" help:"messages that name a connection and come from elsewhere, or contradict it"`
	Illegal    uint64 `name:"cm_illegal" help:"messages that the state of their connection has no place for"`
	Full       uint64 `name:"cm_full" help:"requests to connect for which there was no room: they are not answered, and come again"`
	Crowded    uint64 `name:"cm_crowded" help:"connections that made room for another, because their peers had not confirmed them or they had ended"`
	Stale      uint64 `name:"cm_stale" help:"connections that were ended because a request said that their peer had forgotten them"`
	NoService  uint64 `name:"cm_no_service" help:"requests to connect to ports that nobody listens to"`
	Unanswered uint64 `name:"cm_unanswered" help:"messages to strangers, or to who has not confirmed a connection, that were not sent because there were too many lately"`
}

// askKey names a connection that a peer asked for, and peerKey a queue pair of a peer: of a device,
// which kernels tell by the GUID alone. The address would not do without it: whoever has it can name any
// queue pair, and kernels count theirs up from 17.
type (
	askKey struct {
		peer netip.Addr
		id   uint32
	}
	peerKey struct {
		peer netip.Addr
		guid uint64
		qpn  uint32
	}
)

// Manager connects queue pairs of one address with those of others. Its owner guards it and
// its Conns by one lock.
//
// A Conn is in byID and byQPN (if it has a number already) until it is released, in byAsk
// likewise if the peer dialled, and in byPeer as long as the peer may use that queue pair with
// it: from the message that names it to DreqSent or TimeWait.
type Manager struct {
	cfg   Config
	env   Env
	rnd   *rand.Rand
	stats Stats

	byID   map[uint32]*Conn // our IDs
	byQPN  map[uint32]*Conn // our queue pairs
	byAsk  map[askKey]*Conn
	byPeer map[peerKey]*Conn

	listen  map[uint16]struct{}
	asked   int               // connections that peers asked for and that are not established
	askedBy map[source]*asker // by source; none has none
	waiting queue             // of these, those that make room for others
	ended   queue             // all that have ended, which make room for any other
	timers  timers

	strangers time.Duration // when all that strangers may be sent has come back (mayAnswer)

	in  message
	out [MADLen]byte // answers; what is repeated is kept by its Conn
}

// message is what has been received, while it is worked on.
type message struct {
	tid   uint64
	local uint32 // the sender's ID
	// fromPort says that it was sent from RoCEv2's own port.
	fromPort bool

	rep rep
	rej rej
	mra mra
}

// New makes a Manager. The identifiers that it draws from rnd are all that keeps somebody who
// cannot read its messages from ending its connections: outside of tests the source has to be
// one that cannot be foreseen. It fails with ErrConfig.
func New(cfg Config, env Env, rnd *rand.Rand) (*Manager, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Manager{
		cfg: cfg, env: env, rnd: rnd,
		byID: map[uint32]*Conn{}, byQPN: map[uint32]*Conn{}, byAsk: map[askKey]*Conn{}, byPeer: map[peerKey]*Conn{}, ended: queue{by: ofEnded},
		listen: map[uint16]struct{}{}, askedBy: map[source]*asker{},
	}, nil
}

// Stats is what m has counted since it was made.
func (m *Manager) Stats() Stats { return m.stats }

// SetMTU changes Config.MTU, which is one of its values, for what is asked and dialled from now on.
func (m *Manager) SetMTU(mtu int) { m.cfg.MTU = mtu }

// Conns is how many connections there are, those in time-wait included.
func (m *Manager) Conns() int { return len(m.byID) }

// Tick does what is due: repetitions, and ends of what has lasted long enough.
func (m *Manager) Tick(now time.Duration) {
	for m.Next() <= now {
		c := m.timers[0]
		if c.deadline <= now {
			c.event(now, evExpire)
		} else {
			c.event(now, evRepeat)
		}
	}
}

// Next is when Tick has something to do: Never if nothing runs.
func (m *Manager) Next() time.Duration {
	if len(m.timers) == 0 {
		return Never
	}
	return m.timers[0].at
}

// Listen lets peers dial port, which Env.Asked then tells of. It fails with ErrBusy if it is
// listened to.
func (m *Manager) Listen(port uint16) error {
	if _, ok := m.listen[port]; ok {
		return fmt.Errorf("%w: port %d", ErrBusy, port)
	}
	m.listen[port] = struct{}{}
	return nil
}

// Unlisten ends Listen. What was asked for before can still be accepted.
func (m *Manager) Unlisten(port uint16) { delete(m.listen, port) }

// Ports that are taken for dials that name none: Linux's range of ephemeral ports.
const (
	firstPort = 32768
	lastPort  = 60999
)

// Dial asks the listener at the port and address of remote for a connection. The address of
// local is that of the Manager; its port may be 0 for any, and may be used by several.
// Connected or Refused follow, not within this call, at the latest after MaxDial. It fails
// with ErrParam; with ErrBusy while the queue pair has a connection or is in its time-wait;
// with ErrLimit.
func (m *Manager) Dial(now time.Duration, local, remote netip.AddrPort, p Param) (*Conn, error) {
	peer := remote.Addr().Unmap()
	switch {
	case local.Addr().Unmap() != m.cfg.Local:
		return nil, fmt.Errorf("%w: from %v, want %v", ErrParam, local.Addr(), m.cfg.Local)
	case !peer.IsValid() || peer.IsUnspecified() || peer.IsMulticast() || peer.Is4() != m.cfg.Local.Is4() || remote.Port() == 0:
		return nil, fmt.Errorf("%w: to %v from %v", ErrParam, remote, m.cfg.Local)
	case mtuCode(p.MTU) == 0 || p.MTU > m.cfg.MTU:
		return nil, fmt.Errorf("%w: MTU %d, want 256, 512, 1024, 2048 or 4096 and %d at most", ErrParam, p.MTU, m.cfg.MTU)
	}
	if err := p.check(MaxDialPrivate); err != nil {
		return nil, err
	}
	if m.byQPN[p.QPN] != nil {
		return nil, fmt.Errorf("%w: queue pair %d", ErrBusy, p.QPN)
	}
	if !m.room(now, peer) {
		return nil, ErrLimit
	}
	port := local.Port()
	if port == 0 {
		port = firstPort + uint16(m.rnd.Intn(lastPort-firstPort+1))
	}
	c := m.add(now, peer)
	c.dials = true
	c.local, c.remote = netip.AddrPortFrom(m.cfg.Local, port), netip.AddrPortFrom(peer, remote.Port())
	c.setParam(p)
	c.ask(now, p.Private)
	return c, nil
}

// room reports whether there may be one connection more with peer, which is then charged.
func (m *Manager) room(now time.Duration, peer netip.Addr) bool {
	return (len(m.byID) < m.cfg.MaxConns || m.crowdOut(now, &m.ended)) && m.env.Charge(peer)
}

// add makes a Conn, for which there is room.
func (m *Manager) add(now time.Duration, peer netip.Addr) *Conn {
	c := &Conn{m: m, since: now, begun: now, slot: noSlot, again: Never, deadline: Never}
	c.remote = netip.AddrPortFrom(peer, 0)
	for c.id == 0 || m.byID[c.id] != nil {
		c.id = m.rnd.Uint32()
	}
	m.byID[c.id] = c
	return c
}

// send sends m.out.
func (m *Manager) send(to netip.Addr, mad *[MADLen]byte) {
	m.stats.Sent++
	m.env.Send(netip.AddrPortFrom(to, udpPort), mad[:])
}

// peerParam is what a REP says of its sender's queue pair. What only the side that dials says
// is taken from c.
func (c *Conn) peerParam(p *rep) Param {
	return Param{
		QPN: p.qpn, RecvPSN: p.recvPSN, Reads: p.reads, ReadsIn: p.readsIn, RNRRetry: p.rnrRetry, SRQ: p.srq,
		MTU: c.param.MTU, Retry: c.param.Retry, Ack: c.param.Ack,
		Private: c.private[:copy(c.private[:], p.private)],
	}
}

// keepREQ makes c what a peer asked for.
func (c *Conn) keepREQ(p *req, tid uint64) {
	c.remoteID, c.tid, c.knows = p.local, tid, true
	c.guid, c.fromPort = p.guid, c.m.in.fromPort
	c.answerIn = min(max(codeTime(p.localTimeout), c.m.cfg.Repeat), response)
	c.peer = Param{
		QPN: p.qpn, RecvPSN: p.recvPSN, Reads: p.reads, ReadsIn: p.readsIn, RNRRetry: p.rnrRetry, SRQ: p.srq,
		MTU: mtuBytes(p.mtu), Retry: p.retry, Ack: p.ackTimeout,
		Private: c.private[:copy(c.private[:], p.private)],
	}
}
