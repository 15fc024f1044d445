package rtrs

import "fmt"

// What must hold after every call, whatever happened; the programs of the fuzzers and
// the worlds look at it.

// broken says what is counted wrongly in c, "": nothing.
func (c *Client) broken() string {
	connected, ghosts, taken := 0, 0, map[uint32]string{}
	twice := ""
	take := func(permit uint32, by string) {
		if was, ok := taken[permit]; ok {
			twice = fmt.Sprintf("permit %d is with %s and with %s", permit, was, by)
		}
		taken[permit] = by
	}
	for _, permit := range c.free {
		take(permit, "nobody")
	}
	for permit, r := range c.slots {
		if r != nil {
			take(uint32(permit), "a request in flight")
		}
	}
	for _, e := range c.epochs {
		ghosts += e.ghosts
		for r := e.reqs.first; r != nil; r = r.next(byState) {
			if r.session == c.session {
				take(r.permit, "a stranded request")
			}
		}
		if e.session == c.session {
			for _, permit := range e.permits {
				take(permit, "a failed request")
			}
		}
	}
	for _, p := range c.paths {
		if p.state != Connected {
			continue
		}
		connected++
		flight := 0
		for i := range p.cons {
			flight += p.cons[i].flight
		}
		if len(p.cons) != c.cfg.Conns || flight != p.flight.n {
			return fmt.Sprintf("a path with %d connections of %d has %d requests in flight, they have %d", len(p.cons), c.cfg.Conns, p.flight.n, flight)
		}
	}
	switch {
	case twice != "":
		return twice
	case len(taken) != c.Depth():
		return fmt.Sprintf("%d permits of %d are anywhere", len(taken), c.Depth())
	case connected != c.connected:
		return fmt.Sprintf("%d paths are connected, counted are %d", connected, c.connected)
	case ghosts != c.ghosts:
		return fmt.Sprintf("%d writes may still happen, counted are %d", ghosts, c.ghosts)
	}
	return ""
}

// broken says what is counted wrongly in s, "": nothing.
func (s *Server) broken() string {
	for _, e := range s.sessions {
		up, active, touched := 0, 0, 0
		for _, p := range e.paths {
			if p.state == Connected {
				up++
			}
		}
		for i := range e.chunks {
			if e.chunks[i].req != nil {
				active++
			}
			if c := &e.chunks[i]; c.next != nil && (c.req == nil || c.req.Path.state == Connected || c.next.Path.state != Connected) {
				return fmt.Sprintf("session %q: what waits for chunk %d is not the failover of a path that is lost", e.Name, i)
			}
			touched += int(e.chunks[i].touched)
		}
		if up != e.up || e.down != (up == 0) || active != e.active || touched != e.touched {
			return fmt.Sprintf("session %q (down %v) counts %d paths, %d requests and %d bytes used; there are %d, %d and %d",
				e.Name, e.down, e.up, e.active, e.touched, up, active, touched)
		}
	}
	return ""
}
