package rdsd

import "net/netip"

// Datagram is one message: where it goes (or came from) and its bytes.
type Datagram struct {
	// Addr is the destination when sending, the source when receiving.
	Addr netip.AddrPort
	// Payload is at most 1 MiB and may be empty. A received payload may be kept and
	// changed, but a small one shares up to 16 KiB of memory with others, a stream's the
	// message that brought it: clone what is kept for long. (Borrow and Messages lend.)
	Payload []byte
	// Tag names the datagram in Outcomes. SendBatch sets it.
	Tag uint64

	lent bool // Payload is memory that Borrow has lent: RecvBatch does not write to it
}

// CancelResult counts the datagrams that a CancelSentTo found, by how they ended.
type CancelResult struct {
	Cancelled uint64 `json:"cancelled"` // will never leave this node
	InFlight  uint64 `json:"in_flight"` // had begun to leave; their true outcome follows
}

// OutcomeKind says how an accepted datagram ended.
type OutcomeKind uint8

// The four ends of a datagram.
const (
	// Delivered means placed where the receiver reads it (or, towards a kernel peer,
	// acknowledged by its TCP).
	Delivered OutcomeKind = iota + 1
	// Cancelled means that it never left this node.
	Cancelled
	// Failed means refused by the peer and not delivered.
	Failed
	// Unknown means that it left this node, and whether it was delivered cannot be known.
	Unknown
)

// String returns "delivered", "cancelled", "failed" or "unknown".
func (k OutcomeKind) String() string {
	switch k {
	case Delivered:
		return "delivered"
	case Cancelled:
		return "cancelled"
	case Failed:
		return "failed"
	case Unknown:
		return "unknown"
	}
	return "unspecified"
}

// Outcome is the end of one accepted datagram.
type Outcome struct {
	Tag    uint64 // Datagram.Tag, or the result of SendTag
	Kind   OutcomeKind
	Reason string // for all but Delivered: "no such port", "daemon restarted", ...
}

// CongestionChange says that a destination became congested or clear.
type CongestionChange struct {
	Addr      netip.AddrPort
	Congested bool
}

// CongestionEvent is one report of WatchCongestion.
type CongestionEvent struct {
	// Freed has bit (port mod 64) set for every group of ports in which one
	// was freed. All bits are set after a reconnection and when events were
	// merged away: look at every destination again.
	Freed   uint64
	Changes []CongestionChange
}
