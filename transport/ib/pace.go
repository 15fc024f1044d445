package ib

import (
	"net/netip"
	"time"
)

// Requests to connect of one source that are answered: a few at once, and after that one each
// paceEvery, for which so many wait. Each that is answered costs a connection with its memory and
// keys, some 0.2 ms of a processor, which a peer may ask for and let go as fast as it can send; all
// others of this node wait meanwhile. Whoever means it asks for the next connection of a path when
// it has the last, as kernels do with one for each of their processors, and has few requests under
// way: they come later by some milliseconds, and none is refused, which would cost a kernel the path.
// What one source wants beyond this is as good as lost, and asked for again by whoever means it.
const (
	paceBurst  = 16
	paceQueue  = 32
	paceEvery  = 5 * time.Millisecond
	paceSource = 4096 // sources that are remembered; those beyond share one pace
)

// pace remembers of each source how much it has asked for. The zero value is ready. It has one
// user at a time.
type pace struct {
	until map[source]time.Duration // when all that a source has taken has come back
	rest  time.Duration            // the same of those that there is no room for
}

// take says how long a request of a source waits for its turn, and false if it has none.
func (p *pace) take(now time.Duration, from netip.Addr, fromPort bool) (wait time.Duration, ok bool) {
	of := source{networkOf(from), fromPort}
	until, known := p.until[of]
	if !known && len(p.until) == paceSource {
		p.forget(now)
	}
	room := known || len(p.until) < paceSource
	if !room {
		until = p.rest
	}
	until = max(until, now) + paceEvery
	wait = until - now - paceBurst*paceEvery
	if wait > paceQueue*paceEvery {
		return 0, false
	}
	switch {
	case !room:
		p.rest = until
	case p.until == nil:
		p.until = map[source]time.Duration{of: until}
	default:
		p.until[of] = until
	}
	return max(wait, 0), true
}

// forget drops the sources that have everything back. It looks at all of them, which happens as
// often as their number is full of others.
func (p *pace) forget(now time.Duration) {
	for s, until := range p.until {
		if until <= now {
			delete(p.until, s)
		}
	}
}

// source is whose requests have a pace. All users of a host have its addresses, but one program alone
// has RoCEv2's port there, and what is sent from it is kept apart: no other user takes its turns.
type source struct {
	network  netip.Prefix
	fromPort bool
}

// networkOf is an IPv4 address, or the network of 64 bits of an IPv6 one, whose owner has all of
// its addresses.
func networkOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // of an address that is none, no prefix: one source
	return p
}
