package rtrs

// minInflight takes the path with the fewest requests in flight, of several the
// one that was added first.
type minInflight struct{}

func newMinInflight() chooser { return minInflight{} }

func (minInflight) choose(paths []*ClientPath) (best *ClientPath) {
	for _, p := range paths {
		if p.state == Connected && (best == nil || p.flight.n < best.flight.n) {
			best = p
		}
	}
	return best
}
