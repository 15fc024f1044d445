package rtrs

// roundRobin takes each path in its turn.
type roundRobin struct {
	next int // position of the path whose turn it is; paths may have gone since
}

func newRoundRobin() chooser { return &roundRobin{} }

func (r *roundRobin) choose(paths []*ClientPath) *ClientPath {
	for i := range paths {
		at := (r.next + i) % len(paths)
		if p := paths[at]; p.state == Connected {
			r.next = (at + 1) % len(paths)
			return p
		}
	}
	return nil
}
