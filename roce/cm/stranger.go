package cm

import "time"

// Answers to whoever is not known to be there: refusals of requests for which there is no connection,
// ends of connections that are not known, and what is said again to who never confirmed. Such a
// message may come from an address at which nobody is. What is sent to an address on the link that
// does not answer to ARP stays in the kernel for 3 s, charged to the device's one socket, which some
// 300 messages fill where net.core.wmem_max is what Linux has by itself; then all queue pairs stand.
// So there are few of them, whoever asks: 96 at once, and 50 a second. A source has no pace of its
// own, for who sends under false addresses has as many as he likes. Whoever gets no answer asks again.
const (
	strangerBurst = 96
	strangerEvery = 20 * time.Millisecond
)

// mayAnswer reports whether a stranger may be answered, and counts that.
func (m *Manager) mayAnswer(now time.Duration) bool {
	until := max(m.strangers, now) + strangerEvery
	if until-now > strangerBurst*strangerEvery {
		m.stats.Unanswered++
		return false
	}
	m.strangers = until
	return true
}

// mayAnswerAgain is mayAnswer for c's peer, which is known once it was connected.
func (c *Conn) mayAnswerAgain(now time.Duration) bool { return c.connected || c.m.mayAnswer(now) }
