package conn

import (
	"time"

	"github.com/rdsd/rdsd/transport"
)

// The short way of a lone datagram. What comes by itself, to an rdsd, on a lane where nothing
// waits, would pass the queue only to be the one message that the next Fill finds there. So
// where the owner offers a batch (Offer) it leaves in the step that accepts it: no
// queue, no order to the shell, no second step. What is done is done by the functions that
// Fill uses, to the same state; this file decides only when.

// sendLone puts m, which was just accepted, into the batch that is offered, and ends its filling,
// if it may leave at once: nothing that Fill would put before it is there, and nothing that Fill
// would ask keeps it back. If it returns false nothing has changed, and m goes into the queue.
func (p *Lane) sendLone(now time.Duration, m *Msg, offer *Offer) bool {
	switch {
	// A kernel's lanes have rules of their own, and a link that shakes hands sends nothing else. While a
	// batch is being written, or a turn is ordered, what comes later leaves later.
	case p.c.kind != KindRdsd || p.state != Up || !p.ready || p.writing || p.kicked:
		return false
	// Everything that Fill puts before a datagram: what is sent again and what waits were accepted
	// before m (D2), refusals hold up acknowledgements.
	case p.retrans.head != nil || p.queue.nonEmpty > 0 || p.control.head != nil || len(p.refused) > 0 || p.askNow || p.congDirty && p.idx == 0:
		return false
	// A hold may be that of m's port (keepBack), and m no datagram of an application.
	case len(p.holds) > 0 || m.Kind != MsgData:
		return false
	// Copied, the payload is its sender's again with the outcome, whatever becomes of the batch. One
	// credit pays for so little (creditCost).
	case m.Count > 1 || len(m.Payload) > transport.InlineBytes || p.credits < 1:
		return false
	}
	offer.Lane, m.slot = p, p.slot
	o := frameOut{now: now, rdsd: true, ack: p.ackable()}
	if p.owed > 0 {
		o.credit = p.creditsToGrant(now)
	}
	p.sendData(now, offer.Batch, &o, m)
	p.filled(now, offer.Batch, &o)
	return true
}
