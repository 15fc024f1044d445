package service

import (
	"cmp"
	"slices"

	"github.com/rdsd/rdsd/node/datagram"
)

// foremost returns the n of a list that are shown, all of them when they are no more: first what
// is down, which alerts are about and which may never have had traffic, then the busiest. Half of
// them go by traffic alone: who sends to many addresses that nobody has does not hide the peers
// there are. What is sorted is where they are: to move peers themselves, of 700 bytes each, took a
// tenth of a second for 4,096 and seconds for as many as there may be.
func foremost[T any](list []T, n int, down func(*T) bool, traffic func(*T) uint64) []*T {
	sorted := make([]*T, len(list))
	for i := range list {
		sorted[i] = &list[i]
	}
	if len(list) <= n {
		return sorted
	}
	busiest := func(a, b *T) int { return cmp.Compare(traffic(b), traffic(a)) }
	slices.SortStableFunc(sorted, func(a, b *T) int {
		return cmp.Or(cmp.Compare(boolean(down(b)), boolean(down(a))), busiest(a, b))
	})
	slices.SortStableFunc(sorted[n/2:], busiest) // what is down too, if it is more than half
	return sorted[:n]
}

// unreached reports whether datagrams wait for a peer to which no lane is up, which is what
// RdsdPeerUnreachable says.
func unreached(p *datagram.PeerSnapshot) bool { return !p.Up && p.Waiting > 0 }

// traffic orders peers: how many frames went to and came from one.
func traffic(p *datagram.PeerSnapshot) uint64 {
	return p.Counters.SentFrames + p.Counters.ReceivedFrames
}
