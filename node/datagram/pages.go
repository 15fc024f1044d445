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

// EachCongested calls f for the congested ports, ours first, at most maxCongested, and
// page, when not nil, after each page of them, without the lock: false ends it.
func (h *Local) EachCongested(f func(e *rds.Engine, c *rds.CongestedPort), page func() bool) {
	e := h.Look()
	l := append([]*rds.Peer{e.Self()}, e.Peers()...)
	h.Unlook()
	left := maxCongested
	for peers := range slices.Chunk(l, PageSize) {
		for from := 0; len(peers) > 0 && left > 0; {
			e := h.Look()
			for most := PageSize; len(peers) > 0 && most > 0 && left > 0; {
				var cost int
				cost, from = e.CongestedOf(peers[0], from, min(most, left), func(c *rds.CongestedPort) {
					left--
					f(e, c)
				})
				most -= 1 + cost
				if from < 0 {
					peers, from = peers[1:], 0
				}
			}
			h.Unlook()
			if page != nil && !page() {
				return
			}
		}
	}
}
