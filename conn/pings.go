package conn

import (
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Pings of a kernel beyond the first of a link, and what is believed of its answers.

// maxLate bounds the answers that are taken to be late, for each costs the time of another ping: a kernel
// that has had more pings on links that were lost before an answer was read is not looked for.
const maxLate = 8

// pingAgain queues a further ping, for which this link has not had an answer.
func (p *Lane) pingAgain() {
	if p.state != Up || p.idx != 0 || p.ready && (p.c.kind != KindKernel || p.c.known >= p.c.kernelLanes() && (p.shook || !p.c.active)) {
		return
	}
	p.askAgain()
}

// askAgain queues a ping unless one waits.
func (p *Lane) askAgain() {
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
	for _, n := range p.toldPending {
		if n >= c.kernelLanes() {
			return // on its way
		}
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
