package rtrs

// minLatency takes the path whose last heartbeat was answered soonest, of
// several the one that was added first. A path that was not measured yet counts
// as the fastest, so that it is measured.
type minLatency struct{}

func newMinLatency() chooser { return minLatency{} }

func (minLatency) choose(paths []*ClientPath) (best *ClientPath) {
	for _, p := range paths {
		if p.state == Connected && (best == nil || p.stats.Latency < best.stats.Latency) {
			best = p
		}
	}
	return best
}
