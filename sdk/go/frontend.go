package rdsd

import (
	"context"
	"net/netip"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// frontEnd is one way to the daemon: stream or rings. A socket has one from its
// Bind to its end. Methods whose names end in Locked are called with Socket.mu
// held.
type frontEnd interface {
	kind() FrontEnd
	// connect binds the socket at the daemon. Nothing else knows of the link
	// before startLocked.
	connect(ctx context.Context) (link, error)
	startLocked(l link)
	// dropLocked ends the link in use: calls that wait for an answer fail, and undecided
	// datagrams are Unknown. cause is nil when the daemon went away.
	dropLocked(l link, cause error)
	// finishLocked fails every call, waiting and to come, with err.
	finishLocked(err error)
	// tellLocked queues a control message for the link in use; push, called
	// without the lock, has it written.
	tellLocked(m *rdsdv1.ClientMessage)
	push()
	// withdrawLocked says that the caller of m has gone (ctlQueue.withdraw).
	withdrawLocked(m *rdsdv1.ClientMessage, waits func(id uint64) bool)

	sendOne(ctx context.Context, op string, dst netip.AddrPort, p []byte, wait bool) (tag uint64, err error)
	sendBatch(ctx context.Context, op string, ds []Datagram, wait bool) (accepted int, err error)
	reserve(ctx context.Context, dst netip.AddrPort, n int) (*Slot, error)
	commit(sl *Slot, n int) (tag uint64, err error)
	abort(sl *Slot)
	opErr(op string, remote netip.AddrPort, err error) error

	// receive waits for datagrams, whose payloads come as how says.
	receive(ctx context.Context, into []Datagram, how place) (int, Lease, error)
	// rest and restInto are receive for one datagram, where one is there and is not the last of
	// what came with it: what most calls of a fast receiver meet. ok is false otherwise, and
	// nothing is taken.
	rest() (d Datagram, ok bool)
	restInto(buf []byte) (n int, from netip.AddrPort, ok bool)
	// knows answers Congested from the state kept here.
	knows(dst netip.AddrPort) (congested, ok bool)
	peekSize(ctx context.Context) (n int, ok bool, err error)
	addRequest(w *requestWaiter)
	removeRequest(w *requestWaiter)
	// awaitReply returns when w has its reply or has failed, or with ctx's end.
	awaitReply(ctx context.Context, w *requestWaiter) error

	// awaitOutcome and awaitCongestion return when it is worth looking again,
	// or with ctx's end.
	awaitOutcome(ctx context.Context) error
	awaitCongestion(ctx context.Context, w *watcher) error
	// settle returns when the daemon has seen everything that was accepted before.
	settle(ctx context.Context) error
	// cancelBegins and cancelEnds are around a CancelSentTo; cancelEnds tells how many more
	// to its destination were cancelled than the daemon has counted.
	cancelBegins(dst netip.AddrPort) *cancelCall
	cancelEnds(c *cancelCall) uint64
	// cancelQueuedLocked ends what was accepted and never reached the daemon.
	cancelQueuedLocked()
	// watchesLocked reports whether the front end itself needs news of congestion.
	watchesLocked() bool
	// outcomesRead says that sends, stopped by too many unread outcomes, may go on.
	outcomesRead()
}

// link is a front end's connection to the daemon, from Bind to its end.
type link interface {
	// bound is the socket's address and its largest datagram, 0: not known.
	bound() (netip.AddrPort, int)
	// read takes in the daemon's messages until the link ends, and returns why.
	read() error
	// endLocked asks the daemon to let go of the port, which it answers by ending
	// the link. Socket.mu is held.
	endLocked()
	// abort ends the link at once.
	abort()
	// discard ends a link that was not started, and that nobody reads: with all it has.
	discard()
	// gone is closed once nothing comes any more.
	gone() <-chan struct{}
}
