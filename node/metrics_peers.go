package node

import (
	"slices"

	"github.com/rdsd/rdsd/internal/counters"
)

// busiest returns the n peers with the most traffic, all of them when they are
// no more than n.
func busiest(peers []peerStats, n int) []peerStats {
	if len(peers) <= n {
		return peers
	}
	sorted := slices.Clone(peers)
	slices.SortStableFunc(sorted, func(a, b peerStats) int {
		switch x, y := a.traffic(), b.traffic(); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return sorted[:n]
}

// traffic orders peers: how many datagrams were queued to and from one.
func (p *peerStats) traffic() uint64 {
	var sum uint64
	for _, i := range trafficCounters {
		if i < len(p.kernel) {
			sum += p.kernel[i]
		}
	}
	return sum
}

// trafficCounters are the positions of send_queued and recv_queued.
var trafficCounters = func() (at []int) {
	for i, d := range counters.KernelTable.Descs() {
		if d.Name == "send_queued" || d.Name == "recv_queued" {
			at = append(at, i)
		}
	}
	return at
}()
