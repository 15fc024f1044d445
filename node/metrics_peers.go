package node

import (
	"cmp"
	"slices"
)

// busiest returns the n peers with the most traffic, all of them when they are
// no more than n.
func busiest(peers []peerSnapshot, n int) []peerSnapshot {
	if len(peers) <= n {
		return peers
	}
	sorted := slices.Clone(peers)
	slices.SortStableFunc(sorted, func(a, b peerSnapshot) int { return cmp.Compare(b.traffic(), a.traffic()) })
	return sorted[:n]
}

// traffic orders peers: how many frames went to and came from one.
func (p *peerSnapshot) traffic() uint64 { return p.counters.SentFrames + p.counters.ReceivedFrames }
