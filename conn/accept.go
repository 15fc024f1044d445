package conn

import (
	"errors"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Accepted is the answer to an incoming connection.
type Accepted struct {
	Path    *Path
	Attempt uint64
	// Link is set if the connection becomes the path's link of Attempt, at once or when the
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
// address it is a link: of the path that its source port names, for peers that keep paths
// apart and for those not known yet; of path 0 for the others (see legacy). A kernel may
// keep more paths than we now want: it never reduces them.
//
// A peer connects only when it has no link, so a link that we still believe up is stale. It
// is read to its end first, because a kernel has forgotten the messages that TCP
// acknowledged. For the same reason links of a kernel that wait behind it are taken one
// after the other.
func (c *Conn) Accept(now time.Duration, srcPort uint16) Accepted {
	// An rdsd, and a kernel that keeps paths apart, connects from a port that is the path
	// modulo 8 (net/rds/tcp_connect.c).
	lane := int(srcPort) % wire.MaxLanes
	if c.active {
		// The larger address wants to be connected on this path; a kernel may have messages
		// for us there, which we cannot know.
		c.asked |= 1 << lane
	}
	switch {
	// The first link shows what kind of peer it is, and is path 0.
	case c.active && c.kind == KindUnknown:
		lane = 0
	case c.kind == KindKernelLegacy:
		lane = 0
	// There is no such path. A link of it is refused; a poke for it asks for any link.
	case c.kind == KindRdsd && lane > 0 && lane >= c.npaths:
		if !c.active {
			c.ctr.AcceptRefused++
			return Accepted{}
		}
		lane = 0
	}
	p := c.path(lane)
	if c.active {
		c.ctr.PokeReceived++
		p.poked(now)
		return Accepted{Path: p}
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
				c.owner.Emit(Action{Kind: ActAbort, Path: p, Attempt: w.attempt})
			}
			p.waiting = p.waiting[:0]
		}
		c.links++
		p.waiting = append(p.waiting, waiting{attempt, c.links})
		p.blame(now, errStale)
		// Closing half of the old link lets the peer's remaining bytes come, then its end.
		p.event(now, EvDrop)
		return Accepted{Path: p, Attempt: attempt, Link: true, Parked: true}
	}
	p.attempt = attempt
	p.event(now, EvLink)
	return Accepted{Path: p, Attempt: attempt, Link: true}
}

// waiting is a link accepted while an older one of its path still closes.
type waiting struct{ attempt, serial uint64 }

// maxWaiting bounds the links that wait for their predecessors' end. A daemon that
// was stopped for seconds finds every connection a kernel has made since.
const maxWaiting = 64

// next begins the oldest link that waits. If others wait behind it, it is stale already and
// is only read to its end.
func (p *Path) next(now time.Duration) {
	if len(p.waiting) == 0 {
		return
	}
	w := p.waiting[0]
	p.waiting = p.waiting[1:]
	p.attempt = w.attempt
	p.event(now, EvLink)
	p.serial = w.serial
	// The link was parked: nothing was read from it while the former one could still bring
	// bytes.
	p.emit(ActResume)
	if len(p.waiting) > 0 {
		p.blame(now, errStale)
		p.event(now, EvDrop)
	}
}

// legacy deals with a peer that turned out to be a kernel that does not keep paths apart.
// Its link stands where its source port happened to point and becomes path 0, unless path 0
// has a link; what the kernel sent on several links before that was known is one sequence.
// legacy reports whether p's link is of use.
func (p *Path) legacy(now time.Duration) bool {
	c := p.c
	if c.kind == KindUnknown {
		c.kind = KindKernelLegacy
		// Without paths there is one sequence: the path whose expected was moved last knows how
		// far the sequence has come.
		last := p
		c.Paths(func(x *Path) {
			if x.expected > 0 && x.readSerial > last.readSerial {
				last = x
			}
		})
		e := last.expected
		if q := c.path(0); q.state != Up && q.state != Disconnecting {
			p.becomePath0()
		}
		c.path(0).expected = e
		c.Paths(func(x *Path) {
			// Such a kernel has one connection at a time: of several links it uses the
			// newest.
			if x.state == Up && x.succeeded() {
				x.Drop(now, errStale)
			}
		})
	}
	return p.idx == 0 && p.state == Up
}

// succeeded reports whether a later link of the connection is up.
func (p *Path) succeeded() (yes bool) {
	p.c.Paths(func(x *Path) {
		yes = yes || x.state == Up && x.serial > p.serial
	})
	return yes
}

// mustWait reports whether an earlier link of the peer has to be read to its end before
// this one. That is so for a kernel without paths, and an unknown peer may be one.
func (p *Path) mustWait() (yes bool) {
	if p.c.kind == KindUnknown || p.c.kind == KindKernelLegacy {
		p.c.Paths(func(x *Path) {
			yes = yes || x != p && (x.state == Up || x.state == Disconnecting) && x.serial < p.serial ||
				len(x.waiting) > 0 && x.waiting[0].serial < p.serial
		})
	}
	return yes
}

// inherit takes over the receive sequence of another path whose link is gone. As long as
// the peer is unknown, that link was most likely this one's predecessor, of a kernel
// without paths.
func (p *Path) inherit() {
	var last *Path
	p.c.Paths(func(x *Path) {
		if x != p && x.expected > 0 && x.state != Up && (last == nil || x.readSerial > last.readSerial) {
			last = x
		}
	})
	if last != nil {
		p.expected = last.expected
	}
}

// rx returns the path to whose sequence a received frame belongs. To a kernel without paths
// every link is path 0's.
func (p *Path) rx() *Path {
	switch {
	case p.c.kind == KindKernelLegacy:
		return p.c.paths[0]
	case p.seqOwner != nil:
		return p.seqOwner
	}
	return p
}

// becomePath0 exchanges p with path 0. A kernel that just began takes the first connection
// for its path 0, whichever it is: the numbers it uses there, and the messages of ours that
// it has, are p's.
func (p *Path) becomePath0() {
	if p.idx == 0 {
		return
	}
	c := p.c
	q := c.path(0)
	c.paths[0], c.paths[p.idx] = p, q
	q.idx, p.idx = p.idx, 0
	p.congDirty = true
}

// nextGen is above every generation given out so far.
func (p *Path) nextAttempt() uint64 {
	if n := len(p.waiting); n > 0 {
		return p.waiting[n-1].attempt + 1
	}
	return p.attempt + 1
}

// poked deals with a connection by which the node with the larger address asks to be
// connected to.
func (p *Path) poked(now time.Duration) {
	switch p.state {
	case Down:
		p.wasUp = true // the peer wants a link: one failed attempt is not the end
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
