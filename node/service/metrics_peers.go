package service

import (
	"cmp"
	"slices"

	"github.com/rdsd/rdsd/node/datagram"
)

// busiest returns the n peers with the most traffic, all of them when they are
// no more than n.
func busiest(peers []datagram.PeerSnapshot, n int) []datagram.PeerSnapshot {
	if len(peers) <= n {
		return peers
	}
	sorted := slices.Clone(peers)
	slices.SortStableFunc(sorted, func(a, b datagram.PeerSnapshot) int { return cmp.Compare(traffic(&b), traffic(&a)) })
	return sorted[:n]
}

// traffic orders peers: how many frames went to and came from one.
func traffic(p *datagram.PeerSnapshot) uint64 {
	return p.Counters.SentFrames + p.Counters.ReceivedFrames
}
