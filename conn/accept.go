package conn

import (
	"errors"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Accepted is the answer to an incoming connection.
type Accepted struct {
	Lane    *Lane
	Attempt uint64
	// Link is set if the connection becomes the lane's link of Attempt, at once or when the
	// old link is closed. Otherwise the shell closes it without a byte.
	Link bool
	// Parked is set if the shell must not read from the connection before the old link is
	// gone; ActResume with Attempt follows then.
	Parked bool
}

var errStale = errors.New("the peer connected again: this link is stale")

// Accept judges a TCP connection that came in from the peer's address, from
// source port srcPort (net/rds/tcp_listen.c, rds_tcp_accept_one).
//
// From a larger address it is a poke: a request to connect, never a link. From a smaller
// address it is a link: of the lane that its source port names, for peers that keep lanes
// apart and for those not known yet; of lane 0 for the others (see legacy). A kernel may
// keep more lanes than we now want: it never reduces them.
//
// A peer connects only when it has no link, so a link that we still believe up is stale. It
// is read to its end first, because a kernel has forgotten the messages that TCP
// acknowledged. For the same reason links of a kernel that wait behind it are taken one
// after the other.
func (c *Conn) Accept(now time.Duration, srcPort uint16) Accepted {
	// An rdsd, and a kernel that keeps lanes apart, connects from a port that is the lane
	// modulo 8 (net/rds/tcp_connect.c).
	lane := int(srcPort) % wire.MaxLanes
	if c.active {
		// The larger address wants to be connected on this lane; a kernel may have messages
		// for us there, which we cannot know.
		c.asked |= 1 << lane
	}
	switch {
	// The first link shows what kind of peer it is, and is lane 0.
	case c.active && c.kind == KindUnknown:
		lane = 0
	case c.kind == KindKernelLegacy:
		lane = 0
	// There is no such lane. A poke for it asks for any link. A link of it may be a kernel's that has
	// the address by now, from any port: closed, it would lose what it has sent. Its first frame tells,
	// and an rdsd's ends it (onHello).
	case c.kind == KindRdsd && lane > 0 && lane >= c.nlanes:
		if c.active {
			lane = 0
		} else if c.allow(); !c.kernels {
			c.ctr.AcceptRefused++
			return Accepted{}
		}
	}
	p := c.lane(lane)
	if c.active {
		c.ctr.PokeReceived++
		p.poked(now)
		return Accepted{Lane: p}
	}
	attempt := p.nextAttempt()
	switch p.state {
	case Up, Disconnecting:
		c.ctr.TCPListenStale++
		// An rdsd resends what we have not acknowledged, so the links before its newest one
		// hold nothing that would be missed. A kernel has forgotten the messages that TCP
		// acknowledged on each of them, so all are read, as many as there is room for.
		if c.kind == KindRdsd || len(p.waiting) >= maxWaiting {
			for _, w := range p.waiting {
				c.order(Action{Kind: ActAbort, Lane: p, Attempt: w.attempt})
			}
			p.waiting = p.waiting[:0]
		}
		c.links++
		p.waiting = append(p.waiting, waiting{attempt: attempt, serial: c.links})
		p.blame(now, errStale)
		// Closing half of the old link lets the peer's remaining bytes come, then its end.
		p.event(now, EvDrop)
		return Accepted{Lane: p, Attempt: attempt, Link: true, Parked: true}
	}
	p.attempt = attempt
	p.event(now, EvLink)
	return Accepted{Lane: p, Attempt: attempt, Link: true}
}

// waiting is a link accepted while an older one of its lane still closes.
type waiting struct {
	attempt, serial uint64
	behind          bool // another lane has brought a map since, see backlog
}

// maxWaiting bounds the links that wait for their predecessors' end. A daemon that
// was stopped for seconds finds every connection a kernel has made since.
const maxWaiting = 64

// next begins the oldest link that waits. If others wait behind it, it is stale already and
// is only read to its end.
func (p *Lane) next(now time.Duration) {
	if len(p.waiting) == 0 {
		return
	}
	w := p.waiting[0]
	p.waiting = p.waiting[1:]
	p.attempt = w.attempt
	p.event(now, EvLink)
	p.serial = w.serial
	if w.behind {
		p.mark()
		p.backlog.begin(now)
	}
	// The link was parked: nothing was read from it while the former one could still bring
	// bytes.
	p.emit(ActResume)
	switch {
	case len(p.waiting) > 0:
		p.blame(now, errStale)
		p.event(now, EvDrop)
	// Accepted before it was known that the kernel has one lane. It says nothing on this link
	// that would bring it to lane 0: it sends its ping on its first links alone.
	case p.c.kind == KindKernelLegacy && p.idx != 0:
		p.blame(now, errWrongLane)
		p.event(now, EvDrop)
	}
}

// legacy deals with a peer that turned out to be a kernel that does not keep lanes apart.
// Its link stands where its source port happened to point and becomes lane 0, unless lane 0
// has a link; what the kernel sent on several links before that was known is one sequence.
// legacy reports whether p's link is of use.
func (p *Lane) legacy(now time.Duration) bool {
	c := p.c
	if c.kind == KindUnknown {
		c.kind = KindKernelLegacy
		// Without lanes there is one sequence: the lane whose expected was moved last knows how
		// far the sequence has come.
		last := p
		c.EachLane(func(x *Lane) {
			if x.expected > 0 && x.readSerial > last.readSerial {
				last = x
			}
		})
		e := last.expected
		if q := c.lane(0); q.state != Up && q.state != Disconnecting {
			p.becomeLane0()
		}
		c.lane(0).expected = e
		c.EachLane(func(x *Lane) {
			// Such a kernel has one connection at a time: of several links it uses the
			// newest.
			if x.state == Up && x.succeeded() {
				x.Drop(now, errStale)
			}
		})
		// The newest may stand on another lane, and need not send a ping, which would bring us
		// here for it: given up, it is connected again, to lane 0.
		c.EachLane(func(x *Lane) {
			if x != p && x.idx != 0 {
				x.Drop(now, errWrongLane)
			}
		})
	}
	return p.idx == 0 && p.state == Up
}

// succeeded reports whether a later link of the connection is up.
func (p *Lane) succeeded() (yes bool) {
	p.c.EachLane(func(x *Lane) {
		yes = yes || x.state == Up && x.serial > p.serial
	})
	return yes
}

// mustWait reports whether an earlier link of the peer has to be read to its end before
// this one. That is so for a kernel without lanes, and an unknown peer may be one. Of an rdsd that
// was there before nothing is taken any more.
func (p *Lane) mustWait() (yes bool) {
	if p.c.kind == KindUnknown || p.c.kind == KindKernelLegacy {
		p.c.EachLane(func(x *Lane) {
			yes = yes || x != p && x.window == 0 && (x.state == Up || x.state == Disconnecting) && x.serial < p.serial ||
				len(x.waiting) > 0 && x.waiting[0].serial < p.serial
		})
	}
	return yes
}

// inherit takes over the receive sequence of the lane that an earlier link of the peer moved
// last, whether or not that lane has a link again. As long as the peer is unknown, that link
// was most likely this one's predecessor, of a kernel without lanes: links of such a peer are
// read one after the other (mustWait).
func (p *Lane) inherit() {
	last := p
	p.c.EachLane(func(x *Lane) {
		if x.expected > 0 && x.readSerial < p.serial && x.readSerial > last.readSerial {
			last = x
		}
	})
	p.expected = last.expected
}

// rx returns the lane to whose sequence a received frame belongs. To a kernel without lanes
// every link is lane 0's.
func (p *Lane) rx() *Lane {
	switch {
	case p.c.kind == KindKernelLegacy:
		return p.c.lanes[0]
	case p.seqOwner != nil:
		return p.seqOwner
	}
	return p
}

// becomeLane0 exchanges p with lane 0. A kernel that just began takes the first connection
// for its lane 0, whichever it is: the numbers it uses there, and the messages of ours that
// it has, are p's.
func (p *Lane) becomeLane0() {
	if p.idx == 0 {
		return
	}
	c := p.c
	q := c.lane(0)
	c.lanes[0], c.lanes[p.idx] = p, q
	q.idx, p.idx = p.idx, 0
	p.congDirty = true
	p.kick()
}

// nextAttempt is above every number given out so far, also those of links that ended before
// their turn: the shell may hold one of them for a while yet.
func (p *Lane) nextAttempt() uint64 {
	p.attempts++
	return p.attempts
}

// poked deals with a connection by which the node with the larger address asks to be
// connected to.
func (p *Lane) poked(now time.Duration) {
	// The peer wants a link, whatever this lane is about to do: one failed attempt, or a link
	// that brings nothing, is not the end. A kernel asks but once for what it has queued.
	p.wasUp = true
	switch p.state {
	case Down:
		p.event(now, EvWant)
	case Error:
		// The peer is alive: do not sit out a long backoff, but keep some of it,
		// so that a flood of pokes is no flood of connects.
		if at := now + p.c.cfg.ReconnectMin/8; at < p.retryAt {
			p.retryAt = at
			p.c.rearm(at)
		}
	case Up:
		// It believes there is no link. Usually its poke crossed our connect; once
		// the link is older than that, find out whether it is alive.
		if at := p.since + time.Second; at > now {
			p.askAt = at
			p.c.rearm(at)
		} else if p.asked == 0 {
			p.ask(now)
		}
	}
}
