package conn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Never is the time of what is not due at all, here and in the rooms above.
const Never = time.Duration(math.MaxInt64)

// Path is one lane of a connection: a sequence of links, one at a time, and
// the sequenced streams of both directions that outlive each of them.
type Path struct {
	// Data is the shell's: what it knows of this path's link.
	Data any

	c     *Conn
	idx   int
	slot  uint8 // in Conn.slots, for life
	state State
	since time.Duration // when the state began

	// Links. gen counts attempts and accepted connections; an event that
	// names another gen is late and ignored.
	gen        uint64
	dialled    int       // the lane the attempt gen was begun for
	waiting    []waiting // oldest first
	attempts   int       // in a row that brought no usable link
	reconnects uint64
	lastErr    error
	tryErr     bool // lastErr is of an attempt to connect, and gone with the first that succeeds
	wasUp      bool // the peer has used a link: keep reconnecting

	// Handshake of the current link.
	upAt     time.Duration
	born     uint64 // of all links of the connection, which one this is
	ready    bool   // datagrams may be sent
	probed   bool   // our handshake ping is queued or sent, its answer awaited
	synced   bool   // kernel peers: something of this life is known to have arrived
	probedAt time.Duration
	answer   bool  // a handshake answer is owed
	tolds    []int // NPATHS of our pings that were not answered yet
	heard    bool  // a frame came on this link
	of       *Path // kernels: whose sequence the link's frames belong to, when not ours

	// Transmit side.
	nextSeq  uint64 // next to assign, from 1
	control  list   // the protocol's own, ahead of data
	retrans  list   // sent on an earlier link, not acknowledged
	queue    queue  // never sent
	inwrite  list   // in the batch the shell is writing
	unacked  list   // written on this link
	writing  bool
	kicked   bool   // ActKick given out and not yet answered by an empty Fill
	requeue  bool   // the link went while inwrite was being written
	forget   Why    // the peer's state went while inwrite was being written
	through  uint64 // rdsd: highest sequence the peer had received when the link began
	lateAck  uint64
	ackSeen  uint64 // last acknowledgement taken on this link
	lateRef  []wire.Refusal
	txOff    uint64 // bytes put into batches on this link
	txAcked  uint64 // of them acknowledged by TCP (kernel peers)
	lastTx   time.Duration
	sinceAck struct{ frames, bytes int } // sent since an acknowledgement was last asked for
	pongs    int                         // answers in control
	tells    int                         // messages of Tell in control

	// Credits (rdsd).
	credits int // frames we may send
	window  int // what the peer granted at first
	owed    int // credits to give back to the peer
	granted int // credits the peer has

	// Flow holds (rdsd), see hold.go.
	holds  map[uint16]*hold
	resume map[uint16]struct{}
	moveAt time.Duration // not before is a long hold moved again
	late   bool          // a hold waits for that
	moved  uint16        // the last port that was late and had its turn

	// Receive side.
	expected   uint64
	read       uint64 // of all links of the connection, which one moved expected last
	ackPending bool   // an acknowledgement is asked for: send it with the next batch
	ackDue     time.Duration
	ackedRx    uint64              // last acknowledgement sent
	refusing   map[uint16]struct{} // ports whose flow waits for FlagResume
	refused    []wire.Refusal      // not yet put into a message
	refusals   int                 // refused or in a message, and not acknowledged
	again      bool                // the last of the peer's sequenced frames was a retransmission
	unsentRef  uint64              // lowest refused sequence whose refusal has not left on this link; 0 none
	lastRx     time.Duration
	paused     bool

	// Congestion updates to the peer (lane 0 only).
	congVer   uint64 // version told on this link
	congDirty bool
	congAt    time.Duration // last whole map

	askNow  bool          // a sign of life is to be asked for
	askAt   time.Duration // when to ask because the peer poked
	asked   time.Duration // a sign of life is awaited since; 0 not
	retryAt time.Duration // state Error: when to try again; Connecting: when the attempt has failed
	pollAt  time.Duration
	tookAt  time.Duration // when the peer's TCP last took a part of a batch

	orphanAt time.Duration // what closed sockets have sent is given up by then

	sweepAt time.Duration // cancelled messages on a lost link are settled by then
	sentB   uint64
	recvB   uint64
}

func newPath(c *Conn, i int) *Path {
	return &Path{c: c, idx: i, nextSeq: 1, retryAt: Never, pollAt: Never, ackDue: Never, sweepAt: Never, orphanAt: Never, askAt: Never}
}

// Conn is the connection the path belongs to.
func (p *Path) Conn() *Conn { return p.c }

// Index is the lane's number, 0..7.
func (p *Path) Index() int { return p.idx }

// State is where the path stands.
func (p *Path) State() State { return p.state }

// Gen names the current attempt or link.
func (p *Path) Gen() uint64 { return p.gen }

// Ready reports whether datagrams can be sent.
func (p *Path) Ready() bool { return p.ready }

// Info is what an administrator sees of a path.
type Info struct {
	State             State
	Since             time.Duration
	NextTx, NextRx    uint64
	Reconnects        uint64
	LastErr           error
	SentBytes, RxByte uint64
	Credits           int
	Paused            bool
}

// Info describes the path.
func (p *Path) Info() Info {
	return Info{p.state, p.since, p.nextSeq, p.expected, p.reconnects, p.lastErr, p.sentB, p.recvB, p.credits, p.paused}
}

func (p *Path) String() string {
	return fmt.Sprintf("%v>%v/%d", p.c.local, p.c.remote, p.idx)
}

func (p *Path) emit(k ActionKind) {
	p.c.owner.Emit(Action{Kind: k, Path: p, Gen: p.gen, Lane: p.idx})
}

// kick asks the shell for a transmit turn, once.
func (p *Path) kick() {
	if p.state == Up && !p.kicked && !p.writing {
		p.kicked = true
		p.emit(ActKick)
	}
}

// want makes sure that what is queued will be sent.
func (p *Path) want(now time.Duration) {
	switch p.state {
	case Up:
		if p.ready {
			p.kick()
		}
	case Down:
		p.event(now, EvWant)
	}
}

// idle reports whether nothing waits for this path.
func (p *Path) idle() bool {
	return p.queue.n == 0 && p.unacked.n == 0 && p.retrans.n == 0 && p.inwrite.n == 0 && len(p.holds) == 0 && p.hasNoRefusals() &&
		(p.idx != 0 || p.c.pending.n == 0 && !(p.congDirty && p.c.Up()) && !p.c.owner.Blocked())
}

// Blocked tells that the owner's Blocked is true.
func (c *Conn) Blocked(now time.Duration) {
	if p := c.path(0); p.state == Down {
		p.event(now, EvWant)
	}
}

func (p *Path) hasNoRefusals() bool { return len(p.refused) == 0 }

// --- links -------------------------------------------------------------

// start begins an attempt: the smaller address connects, the larger one pokes
// the smaller and waits to be connected to.
func (p *Path) start(now time.Duration) {
	p.gen++
	if p.attempts > 0 || p.reconnects > 0 || p.wasUp {
		p.reconnects++
		p.c.ctr.Reconnects++
	}
	if q := p.c.path(0); p.c.active && p != q && p.c.kind == KindKernel && (!q.ready || p.idx >= p.c.known && p.c.asked&(1<<p.idx) == 0) {
		// A kernel that just began takes the first connection for its path 0,
		// and maps the others by the number of paths it was told.
		q.want(now)
		p.retryAt = now + p.c.cfg.ReconnectMin
	} else if p.c.active {
		p.retryAt = now + p.c.cfg.DialTimeout + time.Second // the shell reports earlier; this is the last resort
		p.dialled = p.idx
		p.emit(ActDial)
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
func (p *Path) backOff(now time.Duration) {
	cfg := p.c.cfg
	d := time.Duration(0)
	if p.attempts > 0 {
		d = min(cfg.ReconnectMin<<min(p.attempts-1, 20), cfg.ReconnectMax)
		d = time.Duration(p.c.rng.Int63n(int64(d) + 1))
	}
	p.attempts++
	p.retryAt = now + d
	p.c.rearm(p.retryAt)
}

// Connect connects to a peer although nothing waits for it, if it is for this side
// to connect: the peer may wait for that.
func (c *Conn) Connect(now time.Duration) {
	if p := c.path(0); c.active && p.state == Down {
		p.wasUp = true
		p.event(now, EvWant)
	}
}

// Connected tells that attempt gen has its link. False: it is late, close it.
func (p *Path) Connected(now time.Duration, gen uint64) bool {
	if gen != p.gen || p.state != Connecting {
		return false
	}
	if p.dialled != p.idx {
		// The lanes were exchanged meanwhile (becomeLane0). Its source port names
		// the former lane, whose place at the kernel is taken: the kernel would
		// keep this one waiting for that place for ever.
		p.lastErr = errWrongLane
		p.event(now, EvFail)
		return false
	}
	return p.event(now, EvLink)
}

// DialFailed tells that attempt gen failed.
func (p *Path) DialFailed(now time.Duration, gen uint64, err error) {
	if gen == p.gen && p.state == Connecting {
		p.c.ctr.DialFailed++
		p.lastErr, p.tryErr = err, true
		p.event(now, EvFail)
	}
}

// Lost tells that link gen is closed and wholly read; acked is what TCP
// acknowledged of it in the end (kernel peers).
func (p *Path) Lost(now time.Duration, gen uint64, acked uint64, err error) {
	if i := slices.IndexFunc(p.waiting, func(w waiting) bool { return w.gen == gen }); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return
	}
	if gen != p.gen || p.state != Up && p.state != Disconnecting {
		return
	}
	if p.state == Up {
		p.lastErr, p.tryErr = err, false
	}
	p.ackTCP(now, acked)
	p.event(now, EvLost)
	if p.c.kind != KindRdsd {
		p.c.Paths((*Path).Resume) // who waited for its end
	}
	p.next(now)
}

// Drop gives the current link up.
func (p *Path) Drop(now time.Duration, why error) bool {
	if p.state != Up {
		// An attempt is not given up: a kernel may have taken the connection,
		// and what it has sent on it is lost when nobody reads it.
		return false
	}
	p.lastErr, p.tryErr = why, false
	return p.event(now, EvDrop)
}

func (p *Path) closeLink(now time.Duration) {
	p.c.owner.Emit(Action{Kind: ActClose, Path: p, Gen: p.gen, Why: p.lastErr})
	p.ready = false
	p.retryAt = Never
}

// established begins life on a new link.
func (p *Path) established(now time.Duration) {
	p.retryAt = Never
	p.kicked = false
	p.txOff, p.txAcked, p.ackSeen = 0, 0, 0
	p.upAt, p.lastTx, p.lastRx = now, now, now
	p.c.links++
	p.born = p.c.links
	p.asked, p.askNow, p.askAt = 0, false, Never
	p.credits, p.window, p.owed = 0, 0, 0
	p.granted = 1 << p.c.cfg.CreditLog2
	p.ackPending, p.ackDue, p.ackedRx = false, Never, 0
	p.congVer, p.congDirty, p.congAt = 0, p.idx == 0, now-time.Hour
	p.paused, p.again = false, false
	p.sinceAck.frames, p.sinceAck.bytes = 0, 0
	p.probed, p.answer, p.heard, p.of, p.tolds = false, false, false, nil, nil
	p.c.allow()
	if p.c.kind.kernel() && !p.c.may().get {
		// A rule has changed. Whoever connects next shows anew what it is.
		p.c.changed(now)
		p.lastErr = errNoKernel
		return
	}
	if p.c.kind.kernel() && p.synced {
		p.become(now)
		p.tellLanes()
	} else {
		p.probe(now)
	}
	p.c.rearm(now + p.c.cfg.Heartbeat)
	p.kick()
}

// lost keeps what the peer may not have, to be sent again.
func (p *Path) lost(now time.Duration) {
	p.c.ctr.ConnReset++
	up := p.ready
	p.ready, p.kicked = false, false
	// A larger kernel that has something for us waits to be connected to, and says
	// so only when somebody sends (net/rds/connection.c, rds_conn_shutdown).
	p.wasUp = p.wasUp || p.heard
	p.pollAt, p.ackDue = Never, Never
	// A link that went at once is no success: without this a peer that accepts
	// and closes would be dialled in a tight loop.
	if up && now-p.upAt > 2*p.c.cfg.ReconnectMin {
		p.attempts = 0
	}
	p.dropControl()
	if p.writing {
		p.requeue = true
	} else {
		p.takeBack(now)
	}
	p.backOff(now)
}

// takeBack moves what was sent to the retransmit list, in sequence. Nothing is being
// written then: Wrote has put that behind what is unacknowledged.
func (p *Path) takeBack(now time.Duration) {
	p.requeue = false
	p.unacked.each(func(m *Msg) bool {
		m.where = inRetrans
		if m.Kind == MsgProbe || m.Kind == MsgAnswer || m.Kind == MsgNull {
			p.c.owner.FreeMsg(m)
			return true
		}
		return false
	})
	p.retrans.front(&p.unacked)
	p.restoreRefusals()
	if p.c.kind.kernel() {
		// The peer cannot say what it has: what was cancelled stays undecided.
		p.retrans.each(func(m *Msg) bool {
			if m.cancelled {
				p.done(m, Unknown, WhyCancelledSent)
				return true
			}
			return false
		})
	} else if p.anyCancelled() {
		p.sweepAt = now + p.c.cfg.DeadAfter
		p.c.rearm(p.sweepAt)
	}
}

func (p *Path) anyCancelled() bool {
	for m := p.retrans.head; m != nil; m = m.next {
		if m.cancelled {
			return true
		}
	}
	return false
}

func (p *Path) done(m *Msg, o Outcome, why Why) {
	if m.Owner != nil {
		p.c.completed(m, o, why)
		return
	}
	if m.Kind == MsgRefuse {
		p.refusals -= wire.Refusals(m.Payload)
	}
	p.c.owner.FreeMsg(m)
}

// dropControl throws away what belongs to one link only.
func (p *Path) dropControl() {
	p.control.each(func(m *Msg) bool {
		switch m.Kind {
		case MsgProbe, MsgAnswer, MsgNull:
			p.c.owner.FreeMsg(m)
			return true
		}
		return false
	})
}
