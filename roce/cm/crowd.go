package cm

import "time"

// Whoever can send with a false source address can ask for connections in the names of others, which
// never answer: with nothing else, 1,024 such requests would keep all others out for 69 s. So when
// there is no room for one more, the one that has waited longest makes it: one that was accepted and
// not confirmed by its peer, or that has ended without ever having been one. A peer that is there
// confirms within a round trip, and is kept out only by who asks 1,024 times within that. One whose
// application has not answered, and one whose peer has said that it takes longer, which only somebody
// who reads what is sent to it can, stay for their time.

// queue is a list of connections, oldest first.
type queue struct{ first, last *Conn }

func (q *queue) push(c *Conn) {
	c.queued, c.older, c.newer = true, q.last, nil
	if q.last != nil {
		q.last.newer = c
	} else {
		q.first = c
	}
	q.last = c
}

// remove takes c out, if it is in q.
func (q *queue) remove(c *Conn) {
	if !c.queued {
		return
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		q.first = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		q.last = c.older
	}
	c.queued, c.older, c.newer = false, nil, nil
}

// crowdOut ends the connection that has waited longest, and reports whether there was one.
func (m *Manager) crowdOut(now time.Duration) bool {
	c := m.waiting.first
	if c == nil {
		return false
	}
	m.stats.Crowded++
	if c.state == RepSent {
		c.event(now, evExpire)
	}
	// Its numbers need no time-wait: late packets are for a queue pair that nobody has then.
	c.event(now, evExpire)
	return true
}
