package cm

import "time"

// Messages to whoever is not known to be there: refusals, ends of connections that are not known,
// and all that is said to a peer that dialled and has not confirmed its connection. Such a
// message may go to an address at which nobody is. What is sent to an address on the link that
// does not answer to ARP stays in the kernel for 3 s, charged to the device's one socket, which some
// 300 messages fill where net.core.wmem_max is what Linux has by itself; then all queue pairs stand.
// So there are few of them, whoever asks: there 96 at once, and 50 a second, and with a larger socket
// more (Config.Strangers). A source has no pace of its
// own, for who sends under false addresses has as many as he likes. Whoever gets no answer asks again.
//
// The first REP to a peer, which the application has let in, comes before all others: it may be one of
// a third more. A peer that is there confirms it, and it is as if it had not been sent: however many
// dial at once, only those count that have not confirmed.
const (
	strangerBurst = 96
	strangerEvery = 20 * time.Millisecond
)

// mayAnswer reports whether a stranger may be answered, and counts that.
func (m *Manager) mayAnswer(now time.Duration) bool { return m.take(now, m.cfg.Strangers) }

// take is mayAnswer where so many may be at once.
func (m *Manager) take(now time.Duration, most int) bool {
	every := m.strangerEvery()
	until := max(m.strangers, now) + every
	if until-now > time.Duration(most)*every {
		m.stats.Unanswered++
		return false
	}
	m.strangers = until
	return true
}

// strangerEvery is how long it takes until one more may be sent. All come back in the same time, however
// many they are.
func (m *Manager) strangerEvery() time.Duration {
	return strangerBurst * strangerEvery / time.Duration(m.cfg.Strangers)
}

// mayTell is mayAnswer for c's peer, which is known once it was connected, and chosen here if this
// side dials.
func (c *Conn) mayTell(now time.Duration) bool { return c.connected || c.dials || c.m.mayAnswer(now) }

// mayAccept is mayTell for the first REP.
func (c *Conn) mayAccept(now time.Duration) bool {
	c.lent = c.m.take(now, c.m.cfg.Strangers*4/3)
	return c.lent
}

// giveBack undoes mayAccept, for a peer that has answered before it was sent the REP again. For one
// that waits until that has come back by itself nothing is given back twice.
func (c *Conn) giveBack() {
	if c.lent {
		c.lent = false
		c.m.strangers -= c.m.strangerEvery()
	}
}
