package conn

import (
	"slices"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Pings of a kernel beyond the first of a link, and what is believed of its answers.

// pings are those of a link that a kernel has not confirmed: the NPATHS of the first n of told, the oldest first. TCP has
// acknowledged arrived of them, and as many answers as replies have come.
type pings struct {
	n, arrived, replies uint8
	told                [5]uint8 // a link has some three
}

func (g *pings) sent(npaths uint16) {
	if int(g.n) < len(g.told) { // askAgain sees to that
		g.told[g.n] = uint8(npaths)
		g.n++
	}
}

// pop takes the oldest out when it has arrived and was answered, and returns its NPATHS.
func (g *pings) pop() (npaths int, ok bool) {
	if g.n == 0 || g.arrived == 0 || g.replies == 0 {
		return 0, false
	}
	npaths = int(g.told[0])
	copy(g.told[:], g.told[1:])
	g.n, g.arrived, g.replies = g.n-1, g.arrived-1, g.replies-1
	return npaths, true
}

// onAnswer takes a kernel's answer to a handshake ping. It may be late, about a ping of a link that was lost, or of this
// node's former life: a kernel sends on the next link what it had no time to send. Then it does not know yet what this
// link has said, neither how many lanes there are, nor where our numbers begin. So an answer counts when
// TCP has acknowledged a ping of this link. One to that very ping brings the
// acknowledgement along: to ask TCP is all that is to be done.
func (p *Lane) onAnswer(now time.Duration) {
	if p.state != Up || p.pings.n == 0 { // a kernel's link is read on while it closes
		return
	}
	if p.pings.replies = min(p.pings.replies+1, p.pings.n); p.pings.replies > p.pings.arrived {
		p.emit(ActPoll)
	}
	p.believe(now)
}

// believe goes on with the handshake of a kernel when TCP has acknowledged a ping of ours and the kernel has answered
// one, or is not waited for any more.
func (p *Lane) believe(now time.Duration) {
	if p.state != Up || p.pings.arrived == 0 || p.pings.replies == 0 && !p.mute {
		return
	}
	for n, ok := p.pings.pop(); ok; n, ok = p.pings.pop() {
		// By the NPATHS of that one the kernel now maps our source ports, and further lanes can be connected.
		p.c.known = max(p.c.known, n)
		p.led(now)
	}
	if !p.ready {
		if !p.mute {
			p.c.measured(now - p.probedAt)
		}
		p.become(now)
	}
}

// askAgain queues a ping unless one waits, or more than a link needs are not confirmed.
func (p *Lane) askAgain() {
	if int(p.pings.n) == len(p.pings.told) {
		return
	}
	for m := p.control.head; m != nil; m = m.next {
		if m.Kind == MsgProbe {
			return
		}
	}
	m := p.c.com.NewMsg()
	m.Kind = MsgProbe
	p.control.push(m)
	p.kick()
}

// tellLanes makes sure that a kernel learns how many lanes we want: so far it may have been
// told one, or the number from before a restart.
func (p *Lane) tellLanes() {
	c := p.c
	if c.kind != KindKernel || p.idx != 0 || c.known >= c.kernelLanes() {
		return
	}
	if slices.ContainsFunc(p.pings.told[:p.pings.n], func(n uint8) bool { return int(n) >= c.kernelLanes() }) {
		return // on its way
	}
	p.askAgain()
}

// leads reports whether further lanes of a kernel may be connected, as p, its lane 0, shows. A kernel that booted
// again since the last link of lane 0, or since the dials that led to it, takes the first connection
// for its lane 0 and does not know of others: what it sent again on one of ours was placed a second time.
// That it knows of them it says with its answer to a ping of this link; one that answers none in ProbeTimeout is believed.
func (p *Lane) leads() bool { return p.ready && p.shook }

// tickLead has a kernel that answers no ping have its lanes, and returns when to come again.
func (p *Lane) tickLead(now time.Duration) time.Duration {
	if p.shook || !p.ready || p.idx != 0 || !p.c.active || p.c.kind != KindKernel {
		return Never
	}
	if due := p.upAt + p.c.cfg.ProbeTimeout; now < due {
		return due
	}
	p.led(now)
	return Never
}

// askToLead queues the ping for that on a link that needs no other, but to tell the kernel how many lanes there are.
func (p *Lane) askToLead(now time.Duration) {
	p.tellLanes()
	if p.c.active && p.c.kind == KindKernel && p.idx == 0 && p.c.kernelLanes() > 1 {
		p.askAgain()
		p.c.rearm(now + p.c.cfg.ProbeTimeout)
	}
}

// dial has the shell connect.
func (p *Lane) dial(now time.Duration) {
	p.retryAt = now + lastResort(p.c.cfg)
	p.dialled = uint8(p.idx)
	p.emit(ActDial)
}

// led has further lanes connected that have waited for the answer.
func (p *Lane) led(now time.Duration) {
	if p.shook = true; p.ready {
		p.c.openLanes(now)
		p.c.hurry(now)
	}
}

// hurry has lanes connected that pause: the peer answers.
func (c *Conn) hurry(now time.Duration) {
	c.EachLane(func(q *Lane) {
		if q.state == Error && q.retryAt != Never && q.retryAt > now {
			q.retryAt = now
			c.rearm(now)
		}
	})
}

// notDialled is no lane's number, see Lane.dialled.
const notDialled = wire.MaxLanes
