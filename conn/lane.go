package conn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Never is the time of something that is not due at all, here and in the packages above.
const Never = time.Duration(math.MaxInt64)

// Lane is one of the lanes of a connection (struct rds_conn_path in net/rds/rds.h): a
// sequence of links, one at a time, and the sequenced streams of both directions that
// outlive each of them.
//
// Numbers of a link start afresh with each one (established); the rest lasts until the peer
// is another incarnation (restart). A field is guarded, like the whole Conn, by its owner's
// lock unless its comment says otherwise. The invariants below are tested after each step
// of a script (rules_test.go).
type Lane struct {
	// Data belongs to the shell, which keeps its own state of the lane's link there.
	Data any

	// Identity.
	c *Conn
	// idx is the lane's number, which the peer knows it by. becomeLane0 exchanges it with another
	// lane's when a kernel took our first connection for its lane 0.
	idx int
	// slot is the lane's place in Conn.slots, which never changes: a message remembers its
	// lane by it, for idx may change.
	slot uint8
	// state changes in event alone (state.go; docs/protocol.md, "The life of a lane").
	state State

	// Links and attempts (docs/protocol.md, "Who connects").
	//
	// Invariant: attempt < attempt of waiting[0] < attempt of waiting[1] and so on <= attempts.
	// The shell's reports about a connection attempt, and about the link it led to, name its
	// number; a report that names another number than the current one is late and changes
	// nothing: no byte of an older link enters a newer one.

	// tryErr says that lastErr is of an attempt to connect: become forgets it then.
	tryErr bool
	// wasUp is set once the peer has used a link or asked for one. The side that
	// connects then keeps trying although it has nothing to send: the other side
	// may have something, and cannot connect.
	wasUp bool
	// failures counts the attempts in a row that brought no usable link. It is the exponent
	// of the backoff.
	failures int32
	since    time.Duration // when the state began
	// attempt numbers the attempts to connect and the accepted connections.
	attempt uint64
	// attempts is the highest number that was given out.
	attempts uint64
	// waiting are links that the peer made while an older one of this lane was still being
	// read to its end, the oldest first; at most maxWaiting.
	waiting    []waiting
	failing    time.Duration // when the first of failures was
	reconnects uint64        // attempts after the first, for the administrator
	lastErr    error         // why the last link or attempt ended
	errAt      time.Duration // when that was
	// retryAt is, in state Error, when to try again, and in Connecting, when the
	// attempt has failed for want of an answer. Never in other states.
	retryAt time.Duration

	// Handshake of the current link (hello.go; docs/protocol.md, "Handshake").

	upAt time.Duration // when the link began
	// serial numbers the link among all links of the connection. It tells an older link
	// from a newer one across lanes, which attempt, counted for each lane, cannot.
	serial uint64
	// probedAt is when our handshake ping was queued, if probed: its answer is waited for until ProbeTimeout.
	probedAt time.Duration
	pings    pings // ours of the link that a kernel has not confirmed
	// seqOwner is the lane whose receive sequence counts the frames of this link, if a
	// kernel opened it for another of its lanes than we thought; nil means this lane.
	seqOwner *Lane
	// ready says that datagrams may be sent on this link.
	ready bool
	// probed says that our handshake ping is queued or sent.
	probed bool
	// synced says that a kernel has received something of our present numbers: on
	// its next links datagrams need not wait for a handshake.
	synced bool
	// answer says that an answer to the peer's handshake ping is queued, which is for more pings too.
	answer bool
	// mute says that the kernel's answer is not waited for any more (believe).
	mute bool
	// heard says that a frame came on this link. An rdsd's first is a handshake.
	heard bool
	// dialled is the number the lane had when the current attempt began; notDialled: it waits for lane 0.
	dialled uint8

	// Sending (xmit.go, ack.go; docs/protocol.md, "Sequence", "Acknowledgement").
	//
	// A message without a sequence stands in control or in queue. Fill gives it
	// nextSeq and moves it to inwrite, Wrote to unacked; there it is acknowledged, or
	// the link is lost and it stands in retrans until it is sent again.
	//
	// Invariant: sequences rise from unacked over inwrite to retrans, and stay below
	// nextSeq, but for a batch that was being written when the peer's state was
	// forgotten (forget). They may have gaps: a message that was given up leaves one. Messages
	// that left in one frame have the same one, and stand in the same list (join.go).
	// Invariant: ackSeen < nextSeq, msgOff <= txOff and txAcked <= txOff.

	late    bool  // a hold waits, see moveAt
	vain    uint8 // answers of TCP in a row that told nothing new, see pollEvery
	backlog *backlog
	nextSeq uint64 // the next sequence to assign, from 1 (net/rds/rds.h, cp_next_tx_seq)
	control list   // the protocol's own messages, which go before data
	// retrans holds messages that were sent on an earlier link and not acknowledged
	// (net/rds/rds.h, cp_retrans). They go before any new sequence.
	retrans list
	queue   queue // never sent, or refused and put back without a sequence
	inwrite list  // in the batch that the shell is writing
	unacked list  // written on this link
	// writing says that the shell has a batch: Fill has returned true and Wrote has
	// not been called. The payloads of inwrite are read meanwhile.
	writing bool
	// kicked says that ActKick was given out and no Fill has come back empty since,
	// so that a step of many messages orders one transmit turn.
	kicked bool
	// requeue says that the link was lost while inwrite was being written: Wrote then
	// puts it into retrans.
	requeue bool
	// forget is why the peer's state ended while inwrite was being written: Wrote then
	// completes inwrite as unknown. WhyNone if the state has not ended.
	forget   Why
	pongs    uint8  // answers to pings in control, at most maxPongs
	tells    uint8  // messages of Tell in control, at most maxTells
	pongsOut uint16 // answers to pings that were sent and are not acknowledged
	// through is the last sequence that an rdsd has received, by its handshake answer;
	// messages with a higher sequence that were sent on an earlier link never arrived.
	through uint64
	ackSeen uint64 // the last acknowledgement taken on this link, 0: none
	// lateAck is an acknowledgement of messages in inwrite: the peer was quicker than our own
	// write call. Wrote takes it.
	lateAck uint64
	search  *search // nil: the peer has refused nothing
	// txOff counts the bytes put into batches on this link. Msg.end is such an offset;
	// a kernel peer's TCP acknowledges by it (net/rds/tcp_send.c, rds_tcp_is_acked).
	txOff   uint64
	msgOff  uint64        // txOff after the last batch that had a message with a sequence
	txAcked uint64        // how many of them TCP has acknowledged (kernel peers)
	pollAt  time.Duration // when to ask TCP for that; Never while nothing is unacknowledged
	lastTx  time.Duration // when the last batch was filled
	// tookAt is when the peer's TCP last took a part of a batch that did not fit at
	// once: a large frame that goes out slowly shows that the peer lives.
	tookAt time.Duration
	// sinceAck counts what was sent since an acknowledgement was last asked for
	// (net/rds/rds.h, cp_unacked_packets and cp_unacked_bytes).
	sinceAck struct{ frames, bytes int }
	sentB    uint64 // bytes sent on all links, for the administrator

	// Credits of this link, between two rdsd (docs/protocol.md, "Credits").
	//
	// Ours to spend: 0 <= credits <= window.
	// Ours to give:  granted + owed == window0(), and the peer breaks the protocol
	// when it makes granted negative.

	credits int // credits we may still spend
	window  int // credits the peer's Hello granted; 0 before it
	granted int // credits the peer may still spend
	owed    int // credits the peer has used and we have not given back

	// Holds, between two rdsd: datagrams of ports whose receiver is full (hold.go;
	// docs/protocol.md, "Refusals and holds").

	holds map[uint16]*hold
	// outBy counts by port the datagrams that were sent and are not decided, if there have
	// been more than holdsFew holds; nil else.
	outBy map[uint16]int
	// resume are ports whose hold was put back into queue: the first datagram to each
	// bears FlagResume, without which the receiver would go on refusing.
	resume map[uint16]struct{}
	// moveAt is before when no hold is put back but for a few messages, of which movedFew counts
	// those that were. late (above) says that one waits for it, and moved is the last port that
	// had waited and was.
	moveAt   time.Duration
	moved    uint16
	movedFew int16

	// Cancelled messages, and those of closed sockets (cancel.go; docs/protocol.md,
	// "Cancelling").

	// cancelled counts those that were sent, are cancelled and have no outcome yet.
	cancelled int32
	// sweepAt is when cancelled messages in retrans are given up as unknown, unless a link
	// tells their outcome before.
	sweepAt time.Duration
	// orphanAt is when to look for messages that closed sockets have sent DeadAfter ago.
	orphanAt time.Duration

	// Receiving (recv.go, ack.go; docs/protocol.md, "Sequence").
	//
	// Invariant, between two rdsd: ackedRx <= ackable() < expected once anything was
	// received. ackable is expected-1, or below unsentRef: an acknowledgement of a
	// refused message before its refusal would tell the sender that it was delivered.

	expected uint64 // the sequence after the last received, 0: none (net/rds/rds.h, cp_next_rx_seq)
	// readSerial is the serial of the link that moved expected last. If one kernel lane
	// came over several of ours, it finds the one whose sequence is the newest.
	readSerial uint64
	// ackDue is when an acknowledgement is sent that was not asked for.
	ackDue  time.Duration
	ackedRx uint64 // the last acknowledgement sent on this link
	// refusing are the ports of which a datagram was refused for want of room: later
	// ones must not overtake it, and are refused until one bears FlagResume.
	refusing map[uint16]struct{}
	// refused are refusals that are not in a message yet, and unsentRef is the lowest
	// refused sequence whose refusal has not left on this link, 0: none.
	refused   []wire.Refusal
	unsentRef uint64
	refuses   refuses // the messages that are not acknowledged
	// refusals counts those in refused and in messages that are not acknowledged; they
	// are memory, and refusalsMost bounds them.
	refusals int
	lastRx   time.Duration // when the peer last gave a sign of life, or when the last link ended
	recvB    uint64        // bytes received on all links, for the administrator
	// ackPending has the next batch acknowledge, and askNow has it ask for a sign of life (rdsd).
	ackPending bool
	askNow     bool
	// again says that the peer's last sequenced frame was a retransmission: while it
	// sends again, its acknowledgements of our refusals stand behind that.
	again bool
	// paused says that the link of a kernel is not read because a receiver is full, and shut that
	// it is not for want of memory.
	paused, shut bool
	shook        bool // a kernel has answered a ping of this link (leads)

	// Congestion of our own ports, told on lane 0 alone (xmit.go, fillCongestion;
	// docs/protocol.md, "Congestion").

	congDirty bool          // there may be a newer map than congVer
	congVer   uint64        // version of our map that was told on this link, 0: none
	congAt    time.Duration // when the last whole map was sent

	// Signs of life (tick.go; docs/protocol.md, "Heartbeats").

	askAt time.Duration // when to ask because the peer connected though a link is up; Never
	asked time.Duration // since when one is awaited, 0: none is
}

func newLane(c *Conn, i int) *Lane {
	return &Lane{c: c, idx: i, nextSeq: 1, retryAt: Never, pollAt: Never, ackDue: Never, sweepAt: Never, orphanAt: Never, askAt: Never}
}

// Conn is the connection the lane belongs to.
func (p *Lane) Conn() *Conn { return p.c }

// Index returns the lane's number, 0..7, which the peer knows it by.
func (p *Lane) Index() int { return p.idx }

// State is where the lane stands.
func (p *Lane) State() State { return p.state }

// Attempt returns the number of the current attempt, which also names the link it led to.
func (p *Lane) Attempt() uint64 { return p.attempt }

// Ready reports whether datagrams can be sent.
func (p *Lane) Ready() bool { return p.ready }

// Info describes a lane to an administrator.
type Info struct {
	State             State
	Since             time.Duration
	NextTx, NextRx    uint64
	Reconnects        uint64
	LastErr           error
	SentBytes, RxByte uint64
	Credits           int
	Paused            bool
	ErrAt             time.Duration // of LastErr
	Attempts          int           // in a row that brought no usable link
	Failing           time.Duration // when the first of these failed
	RetryAt           time.Duration // when the lane is tried again; Never: it does not wait for that
}

// Info describes the lane.
func (p *Lane) Info() Info {
	i := Info{State: p.state, Since: p.since, NextTx: p.nextSeq, NextRx: p.expected, Reconnects: p.reconnects, LastErr: p.lastErr,
		SentBytes: p.sentB, RxByte: p.recvB, Credits: p.credits, Paused: p.paused, ErrAt: p.errAt, RetryAt: Never}
	if p.state != Up { // on a link that is up, attempts are kept for the backoff alone
		i.Attempts, i.Failing = int(p.failures), p.failing
	}
	if p.state == Error {
		i.RetryAt = p.retryAt
	}
	return i
}

// blame notes why a link or an attempt ends.
func (p *Lane) blame(now time.Duration, why error) { p.lastErr, p.errAt = why, now }

func (p *Lane) String() string {
	return fmt.Sprintf("%v>%v/%d", p.c.com.Local, p.c.remote, p.idx)
}

func (p *Lane) emit(k ActionKind) {
	p.c.order(Action{Kind: k, Lane: p, Attempt: p.attempt, Index: p.idx})
}

// kick asks the shell for a transmit turn, once.
func (p *Lane) kick() {
	if p.state == Up && !p.kicked && !p.writing {
		p.kicked = true
		p.emit(ActKick)
	}
}

// want makes sure that queued messages will be sent.
func (p *Lane) want(now time.Duration) {
	switch p.state {
	case Up:
		if p.ready {
			p.kick()
		}
	case Down:
		p.event(now, EvWant)
	}
}

// idle reports whether nothing waits for this lane.
func (p *Lane) idle(now time.Duration) bool {
	return p.queue.n == 0 && p.unacked.n == 0 && p.inwrite.n == 0 && len(p.holds) == 0 &&
		(p.retrans.n == 0 && p.hasNoRefusals() || p.inVain(now)) &&
		(p.idx != 0 || p.c.pending.n == 0 && !(p.congDirty && p.c.Up()) && !p.c.blocked)
}

// inVain reports whether all that could still be sent are answers and refusals, which nobody has
// come for since DeadAfter.
func (p *Lane) inVain(now time.Duration) bool {
	return p.failures > 0 && now-p.failing >= p.c.cfg.DeadAfter && !p.c.owes()
}

// SetBlocked notes whether sends were refused or wait because ports of the peer are
// congested, as far as its map says: a link is wanted then, because the map may be of a
// former incarnation of the peer.
func (c *Conn) SetBlocked(on bool) { c.blocked = on }

// Blocked tells that a send was refused or has to wait because of the peer's map just now,
// which wants a link.
func (c *Conn) Blocked(now time.Duration) {
	if p := c.lane(0); p.state == Down {
		p.event(now, EvWant)
	}
}

func (p *Lane) hasNoRefusals() bool { return len(p.refused) == 0 }

// --- links -------------------------------------------------------------

// start begins an attempt: the smaller address connects, the larger one pokes
// the smaller and waits to be connected to.
func (p *Lane) start(now time.Duration) {
	p.attempt = p.nextAttempt()
	if p.failures > 0 || p.reconnects > 0 || p.wasUp {
		p.reconnects++
		p.c.ctr.Reconnects++
	}
	if q := p.c.lane(0); p.c.active && p != q && p.c.kind == KindKernel && (!q.leads() || p.idx >= p.c.known && p.c.asked&(1<<p.idx) == 0) {
		// A kernel that just began takes the first connection for its lane 0,
		// and maps the others by the number of lanes it was told.
		q.want(now)
		p.dialled = notDialled
		p.retryAt = now + p.c.cfg.ReconnectMin
	} else if p.c.active {
		p.dial(now)
	} else {
		p.retryAt = now + pokePatience
		p.c.ctr.PokeSent++
		p.emit(ActPoke)
	}
	p.c.rearm(p.retryAt)
}

// pokePatience is how long the larger side waits for the other to connect back.
const pokePatience = time.Second

var errPoke = errors.New("poked, but the peer did not connect")

// backOff waits before the next attempt: at once after the first loss, then at
// random in [0, d), d doubling from ReconnectMin to ReconnectMax (full jitter).
func (p *Lane) backOff(now time.Duration) {
	cfg := p.c.cfg
	d := time.Duration(0)
	if p.failures > 0 {
		d = min(cfg.ReconnectMin<<min(p.failures-1, 20), cfg.ReconnectMax)
		d = time.Duration(p.c.com.Rng.Int63n(int64(d) + 1))
	}
	if p.failures++; p.failures == 1 {
		p.failing = now
	}
	p.retryAt = now + d
	p.c.rearm(p.retryAt)
}

// Connect connects to a peer although nothing waits for it, if it is for this side
// to connect: the peer may wait for that.
func (c *Conn) Connect(now time.Duration) {
	if p := c.lane(0); c.active && p.state == Down {
		p.wasUp = true
		p.event(now, EvWant)
	}
}

// Connected reports that the attempt produced a link. It returns false if the attempt was
// superseded; the caller then closes the link.
func (p *Lane) Connected(now time.Duration, attempt uint64) bool {
	if attempt != p.attempt || p.state != Connecting {
		return false
	}
	if int(p.dialled) != p.idx {
		// The lanes were exchanged meanwhile (becomeLane0). The link's source port names
		// the former number, whose place at the kernel is taken: the kernel would keep this
		// link waiting for that place for ever.
		p.blame(now, errWrongLane)
		p.event(now, EvFail)
		return false
	}
	return p.event(now, EvLink)
}

// DialFailed tells that the attempt failed.
func (p *Lane) DialFailed(now time.Duration, attempt uint64, err error) {
	if attempt == p.attempt && p.state == Connecting {
		p.c.ctr.DialFailed++
		p.blame(now, err)
		p.tryErr = true
		p.event(now, EvFail)
	}
}

// Lost tells that the link of attempt is closed and wholly read; acked is the number of its
// bytes that TCP had acknowledged in the end (kernel peers).
func (p *Lane) Lost(now time.Duration, attempt uint64, acked uint64, err error) {
	// One that waited behind an older link ended before it ever began: nothing was sent on it.
	if i := slices.IndexFunc(p.waiting, func(w waiting) bool { return w.attempt == attempt }); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return
	}
	if attempt != p.attempt || p.state != Up && p.state != Disconnecting {
		return
	}
	if p.state == Up {
		p.blame(now, err)
		p.tryErr = false
	}
	// Before the state changes: messages that TCP had acknowledged in the end are delivered,
	// and only the rest is sent again. Of a kernel with one lane that never said a word on the link
	// nothing is believed, however late this is looked at (ackTCP).
	if p.heard || p.c.kind != KindKernelLegacy {
		p.ackTCP(now, acked)
	}
	p.event(now, EvLost)
	if p.c.kind != KindRdsd {
		// Links that were not read because of this link's unread bytes (mustWait) go on.
		p.c.EachLane((*Lane).Resume)
	}
	p.next(now)
}

// Drop gives the current link up.
func (p *Lane) Drop(now time.Duration, why error) bool {
	if p.state != Up {
		// An attempt is not given up: a kernel may have taken the connection, and what it
		// has sent there is lost if it is not read.
		return false
	}
	p.blame(now, why)
	p.tryErr = false
	return p.event(now, EvDrop)
}

func (p *Lane) closeLink(now time.Duration) {
	p.c.order(Action{Kind: ActClose, Lane: p, Attempt: p.attempt, Why: p.lastErr})
	p.ready = false
	p.retryAt = Never
}

// established begins a new link.
func (p *Lane) established(now time.Duration) {
	p.retryAt = Never
	p.kicked = false
	// Offsets and acknowledgements are of one link; sequences go on.
	p.txOff, p.msgOff, p.txAcked, p.ackSeen = 0, 0, 0, 0
	p.vain, p.backlog, p.shut = 0, nil, false
	p.upAt, p.lastTx, p.lastRx = now, now, now
	p.c.links++
	p.serial = p.c.links
	p.asked, p.askNow, p.askAt = 0, false, Never
	p.credits, p.window, p.owed = 0, 0, 0
	// Our Hello grants this. The peer has granted nothing until its own Hello comes.
	p.granted = 1 << p.c.cfg.CreditLog2
	p.ackPending, p.ackDue, p.ackedRx = false, Never, 0
	// A kernel keeps the map of former links, and an rdsd may be another incarnation by
	// now: lane 0 sends the map again, at once.
	p.congVer, p.congDirty, p.congAt = 0, p.idx == 0, now-time.Hour
	p.paused, p.again = false, false
	p.sinceAck.frames, p.sinceAck.bytes = 0, 0
	p.probed, p.answer, p.mute, p.heard, p.shook = false, false, false, false, false
	p.seqOwner, p.pings = nil, pings{}
	p.c.allow()
	if p.c.kind.kernel() && !p.c.may().get {
		// A rule has changed: the next peer that connects shows its kind again.
		p.c.changed(now)
		p.blame(now, errNoKernel)
		return
	}
	// A kernel needs the handshake only once: datagrams go at once on later links.
	// The number of lanes it was told may have changed since, or the kernel.
	if p.c.kind.kernel() && p.synced {
		p.become(now)
		p.askToLead(now)
	} else {
		p.probe(now)
	}
	p.c.rearm(now + p.c.cfg.Heartbeat)
	p.kick()
}

// lost keeps the messages that the peer may not have, to be sent again.
func (p *Lane) lost(now time.Duration) {
	p.c.ctr.ConnReset++
	p.lastRx = now
	up := p.ready
	p.ready, p.kicked = false, false
	// A kernel with the larger address that has something for us waits to be connected to,
	// and pokes only when one of its sockets sends (net/rds/connection.c,
	// rds_conn_shutdown).
	p.wasUp = p.wasUp || p.heard
	p.pollAt, p.ackDue = Never, Never
	// A link that went at once is no success: without this a peer that accepts
	// and closes would be dialled in a tight loop.
	if up && now-p.upAt > 2*p.c.cfg.ReconnectMin {
		p.failures = 0
	}
	p.dropControl()
	// The shell still reads the messages it is writing: Wrote calls takeBack.
	if p.writing {
		p.requeue = true
	} else {
		p.takeBack(now)
	}
	p.backOff(now)
}

// takeBack moves the sent messages to the retransmit list, in sequence. Nothing is being
// written then: Wrote has put its messages behind the unacknowledged ones.
func (p *Lane) takeBack(now time.Duration) {
	p.requeue = false
	p.unacked.each(func(m *Msg) bool {
		m.where = inRetrans
		// These were about the link that is gone; the next one has its own.
		if m.Kind == MsgProbe || m.Kind == MsgAnswer || m.Kind == MsgNull {
			p.c.com.FreeMsg(m)
			return true
		}
		return false
	})
	// The messages that this link has sent again stood before those it had not come to yet.
	p.retrans.front(&p.unacked)
	p.restoreRefusals()
	switch {
	case p.cancelled == 0:
	case p.c.kind.kernel():
		// The peer cannot say which messages it has: cancelled ones stay undecided.
		p.retrans.each(func(m *Msg) bool {
			if m.cancelled {
				p.c.done(p, m, Unknown, WhyCancelledSent)
				return true
			}
			return false
		})
	case p.sweepAt == Never: // A peer whose links all end before its answer does not put it off.
		p.sweepAt = now + p.c.cfg.DeadAfter
		p.c.rearm(p.sweepAt)
	}
	// What the lanes become more for may have been the handshake of this link alone.
	p.c.tryGrow(now)
}

// dropControl throws away control messages that belong to one link only.
func (p *Lane) dropControl() {
	p.control.each(func(m *Msg) bool {
		switch m.Kind {
		case MsgProbe, MsgAnswer, MsgNull:
			p.c.com.FreeMsg(m)
			return true
		}
		return false
	})
}
