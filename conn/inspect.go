package conn

// Cursor is a place in the queues of a connection, for a reader that takes them page by
// page and releases the owner's lock in between. The zero Cursor is before the first.
type Cursor struct {
	list  int  // which, in the order of lists
	last  *Msg // shown last of it; nil: none
	owner *Sender
	tag   uint64
	where where
}

// Which of the queues to look at.
const (
	NotSent = 1 << iota // those that wait
	Sent                // and is not acknowledged
)

// PageQueued calls f for datagrams that wait (sent false) or are unacknowledged (sent
// true), with the message they travel in, their size and the number of their lane, until f
// returns false or about most of them were shown. more is true if there may be others: the
// next call goes on behind them. A message that moved meanwhile may be shown twice or
// missed; one that left took everything before it along, so that the list is shown from its
// beginning again.
func (c *Conn) PageQueued(at *Cursor, which, most int, f func(m *Msg, bytes, lane int, sent bool) bool) (more bool) {
	lists := c.lists(which)
	for ; at.list < len(lists); at.list, at.last = at.list+1, nil {
		l := &lists[at.list]
		m := l.head
		// The message shown last may be gone, or its memory may hold another one by now: the
		// owner, the tag and the list have to be the same.
		if k := at.last; k != nil && k.Owner == at.owner && k.Tag == at.tag && k.where == at.where {
			m = k.next
		}
		for ; m != nil; m = m.next {
			if most <= 0 {
				return true
			}
			at.last, at.owner, at.tag, at.where = m, m.Owner, m.Tag, m.where
			most--
			for cut := m.Train().Cut(); cut.Left() > 0; most-- {
				p, _ := cut.Next()
				if !f(m, len(p), l.lane, l.sent) {
					return true
				}
			}
		}
	}
	return false
}

type queueView struct {
	head *Msg
	lane int
	sent bool
}

func (c *Conn) lists(which int) (l []queueView) {
	if which&NotSent != 0 {
		l = append(l, queueView{c.pending.head, 0, false})
	}
	c.EachLane(func(p *Lane) {
		if which&NotSent != 0 {
			for i := range p.queue.all() {
				l = append(l, queueView{p.queue.lists[i].head, p.idx, false})
			}
			for _, port := range p.heldPorts() {
				h := p.holds[port]
				l = append(l, queueView{h.back.head, p.idx, false}, queueView{h.kept.head, p.idx, false})
			}
		}
		if which&Sent != 0 {
			for _, k := range []*list{&p.retrans, &p.unacked, &p.inwrite} {
				l = append(l, queueView{k.head, p.idx, true})
			}
		}
	})
	return l
}

// Writing calls f for each message of a socket in the batch of the last Fill, until Wrote.
func (p *Lane) Writing(f func(m *Msg)) {
	for m := p.inwrite.head; m != nil; m = m.next {
		if m.Owner != nil {
			f(m)
		}
	}
}

// Among is about the frame by which m has left: how many datagrams it has, and how many of them
// stand before those of m. of is 0 if m is alone in it, or has not left.
func (c *Conn) Among(m *Msg) (before, of int) {
	if m.seq == 0 || c.kind != KindRdsd {
		return 0, 0
	}
	return int(m.end & 0xffff), int(m.end >> 16)
}

// Lane is the number of the lane that m has a sequence of; ok is false if it has none.
func (c *Conn) Lane(m *Msg) (lane int, ok bool) {
	if m.seq == 0 {
		return 0, false
	}
	return c.slots[m.slot].idx, true
}
