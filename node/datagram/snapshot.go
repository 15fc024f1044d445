package datagram

import (
	"net/netip"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
)

// Snapshot is what the datagrams of a node are doing.
type Snapshot struct {
	Counters     stats.Counters // of all engines
	Queueing     stats.Hist     // time in the daemon before the first byte left
	Rtt          stats.Hist
	Budgets      []base.Budget
	Peers        []PeerSnapshot
	RefusedLinks uint64 // connections of peers refused, for any reason
}

// PeerSnapshot is one peer of one local address.
type PeerSnapshot struct {
	Local, Remote netip.Addr
	Up            bool
	Counters      stats.Counters
	QueuedBytes   uint64 // not yet sent, and sent but not acknowledged
	Waiting       uint64 // datagrams of sockets here: the same, and those before a congested port or not accepted yet
}
