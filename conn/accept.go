package conn

import (
	"errors"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Accepted is the answer to an incoming connection.
type Accepted struct {
	Path *Path
	Gen  uint64
	// Link: the connection becomes (or, once the old one is closed, will
	// become) the path's link under Gen. Otherwise close it without a byte.
	Link bool
	// Parked: it is not read from before the old link is gone; ActResume with
	// Gen follows.
	Parked bool
}

var errStale = errors.New("the peer connected again: this link is stale")

// Accept judges a TCP connection that came in from the peer's address, from
// source port srcPort (net/rds/tcp_listen.c, rds_tcp_accept_one).
//
// From a larger address it is a poke: a request to connect, never a link.
// From a smaller address it is a link: of the lane its source port names when
// the peer keeps lanes apart, of lane 0 otherwise. A peer connects only when
// it has no link, so one we still believe up is stale; it is read to its end
// first, because what TCP acknowledged the peer has forgotten.
func (c *Conn) Accept(now time.Duration, srcPort uint16) Accepted {
	lane := 0
	switch {
	case c.kind == KindKernel:
		lane = int(srcPort) % max(c.lanes, 1)
	case c.kind == KindRdsd:
		lane = int(srcPort) % wire.MaxLanes
		if lane > 0 && lane >= c.lanes {
			if c.active {
				lane = 0
			} else {
				c.ctr.AcceptRefused++
				return Accepted{}
			}
		}
	}
	p := c.path(lane)
	if c.active {
		c.ctr.PokeReceived++
		p.poked(now)
		return Accepted{Path: p}
	}
	switch p.state {
	case Up, Disconnecting:
		c.ctr.TCPListenStale++
		if p.waiting != 0 {
			c.owner.Emit(Action{Kind: ActAbort, Path: p, Gen: p.waiting})
		}
		p.waiting = p.nextGen()
		p.waitingPort = srcPort
		p.lastErr = errStale
		p.event(now, EvDrop)
		return Accepted{Path: p, Gen: p.waiting, Link: true, Parked: true}
	}
	p.gen = p.nextGen()
	p.port = srcPort
	p.event(now, EvLink)
	return Accepted{Path: p, Gen: p.gen, Link: true}
}

// nextGen is above every generation given out so far.
func (p *Path) nextGen() uint64 { return max(p.gen, p.waiting) + 1 }

// poked: the larger side asks to be connected to.
func (p *Path) poked(now time.Duration) {
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
		// It believes there is no link. Usually its poke crossed our connect; if
		// the link is older than that, find out whether it is alive.
		if now-p.since > time.Second && p.asked == 0 {
			p.ask(now)
		}
	}
}
