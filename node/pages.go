package node

import (
	"slices"

	"github.com/rdsd/rdsd/rds"
)

// Lists of everything are made by pages: the lock of an address is held for one page,
// and whoever waits for it, the reactors above all, has it in between. A list is
// therefore not of one moment. What to list is copied as pointers first, which takes
// some ten microseconds for ten thousand.

// pageSize is how many peers, sockets, ports or datagrams are described before the
// lock is let go.
const pageSize = 128

// look and unlook are lock and unlock for lists. Whoever looks waits for others that look
// first: however many they are, one of them at a time is in a reactor's way.
func (h *host) look() *rds.Engine {
	h.looking.Lock()
	e, _ := h.lock()
	return e
}

func (h *host) unlook() {
	h.unlock()
	h.looking.Unlock()
}

// eachPeer calls f for every peer of h, with the lock held for a page at a time.
func (h *host) eachPeer(f func(e *rds.Engine, pe *rds.Peer)) {
	e := h.look()
	l := slices.Clone(e.Peers())
	h.unlook()
	byPages(h, l, f)
}

// eachSocket does the same for sockets, by port; those closed meanwhile are left out.
func (h *host) eachSocket(f func(e *rds.Engine, s *rds.Socket)) {
	e := h.look()
	l := e.Bound()
	h.unlook()
	slices.SortFunc(l, func(a, b *rds.Socket) int { return int(a.Addr().Port()) - int(b.Addr().Port()) })
	byPages(h, l, func(e *rds.Engine, s *rds.Socket) {
		if !s.Closed() {
			f(e, s)
		}
	})
}

func byPages[T any](h *host, l []T, f func(*rds.Engine, T)) {
	for page := range slices.Chunk(l, pageSize) {
		e := h.look()
		for _, x := range page {
			f(e, x)
		}
		h.unlook()
	}
}

// maxCongested bounds a list of congested ports, of which a peer may have 65,536.
const maxCongested = 10000

// eachCongested calls f for the congested ports, ours first, at most maxCongested, and
// page, when not nil, after each page of them, without the lock: false ends it.
func (h *host) eachCongested(f func(e *rds.Engine, c *rds.CongestedPort), page func() bool) {
	e := h.look()
	l := append([]*rds.Peer{e.Self()}, e.Peers()...)
	h.unlook()
	left := maxCongested
	for peers := range slices.Chunk(l, pageSize) {
		for from := 0; len(peers) > 0 && left > 0; {
			e := h.look()
			for most := pageSize; len(peers) > 0 && most > 0 && left > 0; {
				var n int
				n, from = e.CongestedOf(peers[0], from, min(most, left), func(c *rds.CongestedPort) { f(e, c) })
				most, left = most-1-n, left-n
				if from < 0 {
					peers, from = peers[1:], 0
				}
			}
			h.unlook()
			if page != nil && !page() {
				return
			}
		}
	}
}
