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
	// Path is the one it came by and Seq its sequence there. For what stays at its own
	// address Path is nil, and Seq counts those.
	Path         *Path
	Seq          uint64
	SPort, DPort uint16
	// Train is valid during the call. When Buf is not nil the body lies there, alone, and a
	// reference may be kept.
	Train wire.Train
	Buf   *buf.Buf
}

// Owner is the interface to the layer above a Conn. Its methods are called in the middle of
// a step, under the owner's own lock; they do not block and do not call back into the Conn,
// except Completed, which may Enqueue, and Told, which may Tell.
type Owner interface {
	// Deliver places what has arrived for a local port.
	Deliver(a Arrival) Verdict
	// Congested asks the peer's congestion map.
	Congested(port uint16) bool
	// CongestionMap brings the peer's whole map, 8192 bytes.
	CongestionMap(now time.Duration, m []byte)
	// CongestionDelta brings one change of it.
	CongestionDelta(now time.Duration, s wire.PortState)
	// LocalCongestion returns the news about our ports for the peer: the changes from
	// version since on (delta, at most wire.MaxPortStates), or the whole map when there are
	// more, when wholeOnly is set, or when since is 0. Both are nil when there is no news.
	// With since 0 and wholeOnly there is always a map, even if no port is congested.
	LocalCongestion(since uint64, wholeOnly bool) (version uint64, delta []wire.PortState, whole []byte)
	// Blocked reports whether a send was refused or waits because a port of the peer is
	// congested, as far as its map says: a link is wanted then, because the map may be of a
	// former incarnation of the peer.
	Blocked() bool
	// MayGrant reports whether the node's memory allows more to be received.
	MayGrant() bool
	// Told brings a control message that is the owner's alone (Conn.Tell of the
	// other side): ctl is wire.CtlAskPorts or wire.CtlTellPort. An error resets the
	// link.
	Told(now time.Duration, ctl uint8, payload []byte) error
	// AllowKernel reports whether the peer may be a kernel, which cannot prove its
	// identity.
	AllowKernel() bool
	// Emit gives the shell an order.
	Emit(a Action)
	// Arm asks for Tick at the given time, or earlier.
	Arm(at time.Duration)
	// StateChanged tells of a path's new state.
	StateChanged(p *Path, was State)
	// NewMsg and FreeMsg lend and take back messages of the protocol's own.
	NewMsg() *Msg
	FreeMsg(m *Msg)
	// Refused tells that the peer had no room for m, which still has the sequence it was
	// refused with. It will be sent with another.
	Refused(m *Msg)
	// Measured tells how long a datagram waited before its first byte left.
	Measured(queued time.Duration)
	// MeasuredRTT tells a handshake's or heartbeat's round trip.
	MeasuredRTT(d time.Duration)
}

// ActionKind says what the shell is to do.
type ActionKind uint8

// Actions.
const (
	ActDial   ActionKind = iota // connect Path to the peer; then Connected or DialFailed, with Attempt
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
	Path    *Path
	Attempt uint64
	Lane    int   // ActDial, ActPoke: Path's number, which may have changed when the shell comes to it
	Why     error // ActClose
}
