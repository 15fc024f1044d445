package conn

import (
	"errors"
	"time"
)

var errUntaken = errors.New("the peer takes nothing")

// Cancel drops the messages of one sender: those that had not begun to leave are completed
// as Cancelled at once; of the others (begun) the true outcome follows, but they will not
// be sent again (D6). It does not look at the messages of other senders.
func (c *Conn) Cancel(now time.Duration, s *Sender, why Why) (cancelled, begun int) {
	var drop list
	most := s.messages // not those accepted while outcomes are told
	for m := s.head; m != nil && most > 0; most-- {
		next := m.aft
		switch m.where {
		case inSent:
			// A part of the message may be on the wire, and the framing has to stay whole: the
			// message is sent to its end and has its true outcome.
			begun += c.slots[m.slot].cancel(m)
			c.orphan(now, m, why)
		case inRetrans:
			c.orphan(now, m, why)
			begun += c.cancelSent(now, m, &drop)
		default:
			c.unqueue(now, m)
			drop.push(m)
		}
		m = next
	}
	for drop.head != nil {
		m := drop.pop()
		n := m.Datagrams()
		c.ctr.SendCancelled += uint64(n)
		cancelled += n
		c.done(nil, m, Cancelled, why)
	}
	c.tryGrow(now)
	return cancelled, begun
}

// cancel marks m as not to be sent again and says of how many datagrams.
func (p *Lane) cancel(m *Msg) int {
	if m.Kind != MsgData {
		return 0
	}
	if !m.cancelled {
		m.cancelled = true
		p.cancelled++
	}
	return m.Datagrams()
}

// cancelSent cancels a message that was sent on a link that is lost, and not acknowledged.
func (c *Conn) cancelSent(now time.Duration, m *Msg, drop *list) (begun int) {
	p := c.slots[m.slot]
	switch {
	case c.kind.kernel():
		// A kernel never says which messages it has received: no later event decides the
		// outcome.
		begun = m.Datagrams()
		p.retrans.remove(m)
		p.c.done(p, m, Unknown, WhyCancelledSent)
		return begun
	case p.ready && m.seq > p.through:
		p.retrans.remove(m)
		p.settled(now, m) // the peer has said that it never arrived
		drop.push(m)
		return 0
	}
	// The next handshake of an rdsd says whether the message has arrived. If none comes in
	// time the outcome is unknown.
	if begun = p.cancel(m); begun > 0 && p.sweepAt == Never {
		p.sweepAt = now + c.cfg.DeadAfter
		c.rearm(p.sweepAt)
	}
	return begun
}

// orphan notes that the socket of m, which was sent, is closed and waits for no outcome. A
// client could keep memory by sending and closing while the peer does not answer, so m is
// given up some time later, with or without a link.
func (c *Conn) orphan(now time.Duration, m *Msg, why Why) {
	if why != WhyClosed || m.orphan {
		return
	}
	m.orphan, m.At = true, now
	if p := c.slots[m.slot]; p.orphanAt == Never {
		p.orphanAt = now + c.cfg.DeadAfter
		c.rearm(p.orphanAt)
	}
}

// giveUp completes as Unknown the messages of closed sockets that the peer has not
// acknowledged for DeadAfter. Each leaves a gap in the sequence, which receivers allow, and
// is not sent again: it is placed once or never (D1), and later messages on the same lane
// stay behind it (D2). Messages that are being written belong to the shell: a link that
// takes nothing of them for as long is given up. giveUp returns when to look again; not for
// each message on its own, because the lists are long.
func (p *Lane) giveUp(now time.Duration) (next time.Duration) {
	after := p.c.cfg.DeadAfter
	next = Never
	for _, l := range []*list{&p.retrans, &p.unacked} {
		l.each(func(m *Msg) bool {
			if !m.orphan || now-m.At < after {
				if m.orphan {
					next = min(next, m.At+after)
				}
				return false
			}
			p.settled(now, m)
			p.c.done(p, m, Unknown, WhyCancelledSent)
			return true
		})
	}
	for m := p.inwrite.head; m != nil; m = m.next {
		if m.orphan {
			next = min(next, m.At+after)
		}
	}
	// The shell's batch cannot be taken away, so the link is: when it is gone, Wrote gives
	// the messages back.
	if m := p.inwrite.head; m != nil && next <= now && now-max(p.lastTx, p.tookAt) >= after {
		p.Drop(now, errUntaken)
	}
	if next != Never {
		next = max(next, now+after/8)
	}
	return next
}

// unqueue takes a message that has not begun to leave out of its list.
func (c *Conn) unqueue(now time.Duration, m *Msg) {
	if m.where == inPending {
		c.pending.remove(m)
		return
	}
	p := c.slots[m.slot]
	if m.where == inQueue {
		first := p.queue.head() == m
		p.queue.remove(m)
		if first && p.ready && p.queue.n > 0 {
			p.kick() // it may have waited for more credits than the messages behind it need
		}
		return
	}
	h := p.holds[m.DPort]
	if m.where == inBack {
		h.back.remove(m)
	} else {
		h.kept.remove(m)
	}
	if h.n() == 0 {
		p.tryResume(now, m.DPort, h)
	}
}

// Abandon completes everything of the connection as the node ends: as Cancelled what never
// left, as Unknown what did.
func (c *Conn) Abandon(why Why) {
	end := func(p *Lane, o Outcome) func(m *Msg) bool {
		return func(m *Msg) bool {
			if m.Owner == nil {
				p.refuses.remove(m)
				c.com.FreeMsg(m)
			} else {
				c.done(nil, m, o, why)
			}
			return true
		}
	}
	c.gather()
	c.pending.each(end(nil, Cancelled))
	c.EachLane(func(p *Lane) {
		p.control.each(end(p, Cancelled))
		p.retrans.each(end(p, Unknown))
		p.unacked.each(end(p, Unknown))
		// Messages that are being written end in Wrote.
		p.forget = why
		if !p.writing {
			p.forget = WhyNone
		}
	})
}
