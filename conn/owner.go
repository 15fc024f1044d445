package conn

import (
	"time"

	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// Verdict is what the owner did with a datagram.
type Verdict uint8

// Verdicts.
const (
	Placed Verdict = iota
	NoPort         // no socket has the port
	NoRoom         // the receiver is at its hard limit, or the node's memory is spent
)

// Arrival is a datagram, or a train of them, for a local port.
type Arrival struct {
	// Lane is the one it came by and Seq its sequence there. For what stays at its own
	// address Lane is nil, and Seq counts those.
	Lane         *Lane
	Seq          uint64
	SPort, DPort uint16
	// Train is valid during the call. When Buf is not nil the body lies there, alone, and a
	// reference may be kept.
	Train wire.Train
	Buf   *buf.Buf
	// Skipped is not 0 if the body, of so many bytes, was not kept for want of memory: the
	// message is refused, and Train has its Count alone. Only an rdsd's is skipped.
	Skipped int
}

// Owner is the interface to the layer above a Conn: what the Conn cannot go on without in
// the middle of a step, because the answer decides about the very frame at hand. What needs
// no answer is not here: it is left in Common for the owner to take when the step ends.
//
// The methods are called under the owner's own lock; they do not block and do not call back
// into the Conn, except Told, which may Tell. (Completer is called under the same rules, and
// may Enqueue.)
type Owner interface {
	// Deliver places what has arrived for a local port. Its verdict decides whether the
	// frame is acknowledged, refused or left unread.
	Deliver(a Arrival) Verdict
	// Told brings what the peer says that is the owner's alone. An error resets the link, so
	// it cannot wait for the end of the step: frames behind the bad one must not be taken.
	Told(now time.Duration, topic Topic, payload []byte) error
	// Congested asks the peer's congestion map whether the next datagram is to wait. The map
	// is the owner's, whose sockets are refused by it, and this package does not know maps.
	Congested(port uint16) bool
	// LocalCongestion returns the news about our ports for the peer: the changes from
	// version since on (delta, at most wire.MaxPortStates), or the whole map when there are
	// more, when wholeOnly is set, or when since is 0. Both are nil when there is no news.
	// With since 0 and wholeOnly there is always a map, even if no port is congested. It is
	// asked when there is room in a batch and not told before: a port that changed often
	// meanwhile is sent once, as it is now.
	LocalCongestion(since uint64, wholeOnly bool) (version uint64, delta []wire.PortState, whole []byte)
	// MayGrant reports whether the node's memory allows more to be received. Others take of
	// that memory at the same time, so it is asked with each acknowledgement.
	MayGrant() bool
	// Keep asks whether n bytes more may be kept for the peer, or gives back -n of them: then the
	// answer says nothing. It is asked before a datagram is refused, which otherwise ends the link.
	// What is sure is within the credits that it was granted: it has that as long as there is memory, of the part that all peers may have.
	Keep(n int, sure bool) bool
	// Arm asks for Tick at the given time, or earlier. What is due now has to be done in the
	// same Tick of the owner as what armed it.
	Arm(at time.Duration)
	// Refused tells that the peer had no room for m, which still has the sequence it was
	// refused with; when the step ends it has lost it, for it will be sent with another.
	Refused(m *Msg)
}

// Topic is what Told tells of.
type Topic uint8

// Topics.
const (
	ToldMap    Topic = iota // the whole congestion map of the peer, 8192 bytes; never an error
	ToldOldMap              // the same, which may be older than one that was told: it only clears ports
	ToldPorts               // changes of it, see wire.ParsePortStates
	ToldAsk                 // Conn.Tell of the other side with wire.CtlAskPorts
	ToldReader              // the same with wire.CtlTellPort
)

// ActionKind says what the shell is to do.
type ActionKind uint8

// Actions.
const (
	ActDial   ActionKind = iota // connect Lane to the peer; then Connected or DialFailed, with Attempt
	ActPoke                     // connect to the peer and close at once; nothing to report
	ActClose                    // close the link of Attempt: half-close, read what is there, then Lost
	ActAbort                    // forget Attempt, close its link if there is one; nothing to report
	ActKick                     // there is something to send: call Fill
	ActPoll                     // ask TCP how much was acknowledged: call Acked
	ActResume                   // the receiver has room again: go on reading the link of Attempt
)

func (k ActionKind) String() string {
	return [...]string{"dial", "poke", "close", "abort", "kick", "poll", "resume"}[k]
}

// Action is one order to the shell.
type Action struct {
	Kind    ActionKind
	Lane    *Lane
	Attempt uint64
	Index   int   // ActDial, ActPoke: Lane's number, which may have changed when the shell comes to it
	Why     error // ActClose
}
