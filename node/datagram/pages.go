package datagram

import (
	"slices"

	"github.com/rdsd/rdsd/rds"
)

// Lists of everything are made by pages: the lock of an address is held for one page,
// and whoever waits for it, the reactors above all, has it in between. A list is
// therefore not of one moment. What to list is copied as pointers first, which takes
// some ten microseconds for ten thousand.

// PageSize is how many peers, sockets, ports or datagrams are described before the
// lock is let go. A port counts as one more for each destination that is open to it.
const PageSize = 128

// Look and Unlook are Lock and Unlock for lists. Whoever looks waits for others that look
// first: however many they are, one of them at a time is in a reactor's way.
func (h *Local) Look() *rds.Engine {
	h.looking.Lock()
	e, _ := h.Lock()
	return e
}

// Unlook is for each Look.
func (h *Local) Unlook() {
	h.Unlock()
	h.looking.Unlock()
}

// EachPeer calls f for every peer of h, with the lock held for a page at a time.
func (h *Local) EachPeer(f func(e *rds.Engine, pe *rds.Peer)) {
	e := h.Look()
	l := slices.Clone(e.Peers())
	h.Unlook()
	byPages(h, l, f)
}

// EachSocket does the same for sockets, by port; those closed meanwhile are left out.
func (h *Local) EachSocket(f func(e *rds.Engine, s *rds.Socket)) {
	e := h.Look()
	l := e.Bound()
	h.Unlook()
	slices.SortFunc(l, func(a, b *rds.Socket) int { return int(a.Addr().Port()) - int(b.Addr().Port()) })
	byPages(h, l, func(e *rds.Engine, s *rds.Socket) {
		if !s.Closed() {
			f(e, s)
		}
	})
}

func byPages[T any](h *Local, l []T, f func(*rds.Engine, T)) {
	for page := range slices.Chunk(l, PageSize) {
		e := h.Look()
		for _, x := range page {
			f(e, x)
		}
		h.Unlook()
	}
}

// maxCongested bounds a list of congested ports, of which a peer may have 65,536.
const maxCongested = 10000

// listedPeer is a peer whose congested ports are to be listed.
type listedPeer struct {
	pe     *rds.Peer
	n      int // its congested ports
	share  int // how many more may be listed
	listed int
	which  rds.Ports
}

// shareCongested shares maxCongested places among the peers of l, of which the first is this address
// itself: it has half of them if it needs as many. The others have what they need, or as many as each
// other that needs more: one that says all of its ports are congested hides nobody's. Of one that has
// less than it needs those come first that concern sockets here.
func shareCongested(l []listedPeer) {
	of := make([]int, len(l)) // peers, those that need least first
	all := 0
	for i := range l {
		of[i] = i
		all += l[i].n
	}
	own := min(l[0].n, max(maxCongested/2, maxCongested-(all-l[0].n)))
	slices.SortStableFunc(of[1:], func(a, b int) int { return l[a].n - l[b].n })
	left := maxCongested - own
	for k, i := range of {
		p := &l[i]
		if i == 0 {
			p.share = max(own, 1)
		} else {
			p.share = max(left/(len(l)-k), 1)
			left -= min(p.n, p.share)
		}
		if p.n > p.share {
			p.which = rds.ConcernedPorts
		}
	}
}

// EachCongested calls f for the congested ports, ours first, at most maxCongested, and
// page, when not nil, after each page of them, without the lock: false ends it. It returns about
// how many there are beyond those.
func (h *Local) EachCongested(f func(e *rds.Engine, c *rds.CongestedPort), page func() bool) (more int) {
	e := h.Look()
	l := []listedPeer{{pe: e.Self(), n: e.Self().CongestedPorts()}}
	h.Unlook()
	h.EachPeer(func(_ *rds.Engine, pe *rds.Peer) {
		if n := pe.CongestedPorts(); n > 0 {
			l = append(l, listedPeer{pe: pe, n: n})
		}
	})
	shareCongested(l)
	left := maxCongested
	for from := 0; len(l) > 0 && left > 0; {
		e := h.Look()
		for most := PageSize; len(l) > 0 && most > 0 && left > 0; {
			p := &l[0]
			var cost int
			cost, from = e.CongestedOf(p.pe, p.which, from, min(most, left, p.share), func(c *rds.CongestedPort) {
				left--
				p.share--
				p.listed++
				f(e, c)
			})
			most -= 1 + cost
			switch {
			case from >= 0 && p.share > 0:
			case from < 0 && p.which == rds.ConcernedPorts && p.share > 0:
				p.which, from = rds.OtherPorts, 0
			default:
				if from >= 0 || p.which == rds.ConcernedPorts {
					more += max(p.pe.CongestedPorts()-p.listed, 0)
				}
				l, from = l[1:], 0
			}
		}
		h.Unlook()
		if page != nil && !page() {
			return more
		}
	}
	for i := range l {
		more += max(l[i].n-l[i].listed, 0)
	}
	return more
}
