package cm

import (
	"net/netip"
	"time"
)

// Whoever can send with a false source address can ask for connections in the names of others, which
// never answer: with nothing else, 1,024 such requests would keep all others out for 69 s. So when
// there is no room for one more, the one that has waited longest makes it: one that was accepted and
// not confirmed by its peer, or that has ended without ever having been one. A peer that is there
// confirms within a round trip, and is kept out only by who asks 1,024 times within that. One whose
// application has not answered, and one whose peer has said that it takes longer, which only somebody
// who reads what is sent to it can, stay for their time.
//
// Who sends in one peer's name alone has that one's share, of which the oldest makes room likewise.
//
// A connection that was one, and whose peer does not confirm its end, has its place for 73 s, and a
// peer may have some hundred made a second. So of those that have ended the oldest makes room as well,
// when all places are taken.

// queue is a list of connections, oldest first.
type queue struct {
	first, last *Conn
	by          int // which of a connection's places it goes by
}

// Lists that a connection is in.
const (
	ofAll = iota
	ofSource
	ofEnded
	numQueues
)

// beside is a connection's place in a queue.
type beside struct{ older, newer *Conn }

func (q *queue) push(c *Conn) {
	c.beside[q.by] = beside{older: q.last}
	if q.last != nil {
		q.last.beside[q.by].newer = c
	} else {
		q.first = c
	}
	q.last = c
}

// remove takes c out, which is in q.
func (q *queue) remove(c *Conn) {
	at := c.beside[q.by]
	if at.older != nil {
		at.older.beside[q.by].newer = at.newer
	} else {
		q.first = at.newer
	}
	if at.newer != nil {
		at.newer.beside[q.by].older = at.older
	} else {
		q.last = at.older
	}
	c.beside[q.by] = beside{}
}

// source is whose share of MaxAsked requests are. What comes from RoCEv2's own port has one of its own,
// of which other users of the same address take nothing.
type source struct {
	network  netip.Addr
	fromPort bool
}

func (c *Conn) source() source { return source{sourceOf(c.remote.Addr()), c.fromPort} }

// asker is a source that asks for connections.
type asker struct {
	n       int   // that are not established
	waiting queue // of these, those that make room for others
}

// ask counts c among what peers ask for, until settle.
func (m *Manager) ask(c *Conn) {
	source := c.source()
	a := m.askedBy[source]
	if a == nil {
		a = &asker{waiting: queue{by: ofSource}}
		m.askedBy[source] = a
	}
	c.asker = a
	a.n++
	m.asked++
}

// makeRoom has c make room for others that ask, and unwait has it not, nor as one that has ended.
func (c *Conn) makeRoom() {
	c.queued = true
	c.m.waiting.push(c)
	c.asker.waiting.push(c)
}

func (c *Conn) unwait() {
	if c.queued {
		c.queued = false
		c.m.waiting.remove(c)
		c.asker.waiting.remove(c)
	}
	if c.ended {
		c.ended = false
		c.m.ended.remove(c)
	}
}

// retire has c, which has ended, make room for any other.
func (c *Conn) retire() {
	c.ended = true
	c.m.ended.push(c)
}

// mayAsk reports whether there is room for a further request of a source, and makes it.
func (m *Manager) mayAsk(now time.Duration, source source) bool {
	if a := m.askedBy[source]; a != nil && a.n >= m.cfg.MaxAskedOne {
		return m.crowdOut(now, &a.waiting)
	}
	return m.asked < m.cfg.MaxAsked || m.crowdOut(now, &m.waiting)
}

// crowdOut ends the connection of q that has waited longest, and reports whether there was one.
func (m *Manager) crowdOut(now time.Duration, q *queue) bool {
	c := q.first
	if c == nil {
		return false
	}
	m.stats.Crowded++
	if c.state != TimeWait {
		c.event(now, evExpire)
	}
	// Its numbers need no time-wait: late packets are for a queue pair that nobody has then.
	c.event(now, evExpire)
	return true
}
