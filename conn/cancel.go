package conn

import (
	"time"

	"github.com/rdsd/rdsd/internal/mutant"
)

// Cancel drops the owner's messages to port (0: every port): those that had
// not begun to leave are completed as Cancelled at once; of the others (begun)
// the true outcome follows, but they will not be sent again (D6).
func (c *Conn) Cancel(now time.Duration, owner Completer, port uint16, why Why) (cancelled, begun int) {
	match := func(m *Msg) bool { return m.Owner == owner && (port == 0 || m.DPort == port) }
	var drop list
	take := func(m *Msg) bool {
		if match(m) {
			drop.push(m)
			return true
		}
		return false
	}
	c.pending.each(take)
	c.Paths(func(p *Path) {
		if !mutant.On(mutant.CancelQueued) {
			p.queue.each(take)
		}
		for _, q := range p.heldPorts() {
			h := p.holds[q]
			h.back.each(take)
			h.kept.each(take)
		}
		mark := func(m *Msg) bool {
			if match(m) && m.Kind == MsgData {
				m.cancelled = true
				begun += m.Datagrams()
			}
			return false
		}
		p.inwrite.each(mark)
		p.unacked.each(mark)
		if c.kind.kernel() {
			p.retrans.each(func(m *Msg) bool {
				if match(m) {
					begun += m.Datagrams()
					p.done(m, Unknown, WhyCancelledSent)
					return true
				}
				return false
			})
		} else {
			n := begun
			p.retrans.each(func(m *Msg) bool {
				if p.ready && m.seq > p.through && match(m) {
					p.settled(m) // the peer has said that it never arrived
					return take(m)
				}
				return mark(m)
			})
			if begun > n && p.sweepAt == never {
				p.sweepAt = now + c.cfg.DeadAfter
				c.rearm(p.sweepAt)
			}
		}
		for _, q := range p.heldPorts() {
			if h := p.holds[q]; h.n() == 0 {
				p.tryResume(q, h)
			}
		}
	})
	for drop.head != nil {
		m := drop.pop()
		n := m.Datagrams()
		c.ctr.SendCancelled += uint64(n)
		cancelled += n
		c.completed(m, Cancelled, why)
	}
	return cancelled, begun
}

// Abandon completes everything of the connection as the node ends: Cancelled
// what never left, Unknown what did.
func (c *Conn) Abandon(why Why) {
	end := func(o Outcome) func(m *Msg) bool {
		return func(m *Msg) bool {
			if m.Owner == nil {
				c.owner.FreeMsg(m)
			} else {
				c.completed(m, o, why)
			}
			return true
		}
	}
	c.gather()
	c.pending.each(end(Cancelled))
	c.Paths(func(p *Path) {
		p.control.each(end(Cancelled))
		p.retrans.each(end(Unknown))
		p.unacked.each(end(Unknown))
		p.forget = why
		if !p.writing {
			p.forget = WhyNone
		}
	})
}
