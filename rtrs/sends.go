package rtrs

import (
	"fmt"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// sends counts what is posted on a connection. A link keeps all that is posted until its peer
// takes it, and a peer decides how often it is answered: a heartbeat costs it 32 bytes, and the
// answer as much of this side's memory for as long as the peer does not read. So one HB_ACK waits
// at a time, which is all that a peer that keeps to the protocol has a use for, and a peer with
// far more waiting for it than it may ask for is given up.
//
// Invariant: acked <= posted and sent <= posted.
type sends struct {
	// posted counts the operations posted, sent those of which the link says that it does not
	// read their memory any more (transport.OneSidedHandler.Sent).
	posted, sent uint64
	acked        uint64 // posted, as it was with the last HB_ACK
	owed         bool   // a HB_MSG has come while that was not sent: it is answered when it is
}

// mayAck reports whether a HB_MSG that has come is answered now, and not when the HB_ACK before
// is sent.
func (c *sends) mayAck() bool {
	c.owed = c.sent < c.acked
	return !c.owed
}

// wasSent counts n operations as sent, and reports whether an HB_ACK is due for that.
func (c *sends) wasSent(n int) (ack bool) {
	c.sent += uint64(n)
	ack = c.owed && c.sent >= c.acked
	return ack
}

// maxOwn is how many messages of the protocol's own may wait beside a request, its data and its
// answers for each chunk: as many fences as may be asked for, and the rest.
const maxOwn = 4*rtrswire.MaxPaths + spareOps

// taken returns an error for a peer that goes on asking and does not take what it is sent: more
// waits than the answers to as many requests as there are chunks.
func (c *sends) taken(depth uint32) error {
	if c.posted-c.sent > 4*uint64(depth)+maxOwn {
		return fmt.Errorf("%w: it does not take its answers, and %d wait", ErrProtocol, c.posted-c.sent)
	}
	return nil
}
