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

// eachPeer calls f for every peer of h, with the lock held for a page at a time.
func (h *host) eachPeer(f func(e *rds.Engine, pe *rds.Peer)) {
	e, _ := h.lock()
	l := slices.Clone(e.Peers())
	h.unlock()
	byPages(h, l, f)
}

// eachSocket does the same for sockets, by port; those closed meanwhile are left out.
func (h *host) eachSocket(f func(e *rds.Engine, s *rds.Socket)) {
	e, _ := h.lock()
	l := e.Bound()
	h.unlock()
	slices.SortFunc(l, func(a, b *rds.Socket) int { return int(a.Addr().Port()) - int(b.Addr().Port()) })
	byPages(h, l, func(e *rds.Engine, s *rds.Socket) {
		if !s.Closed() {
			f(e, s)
		}
	})
}

func byPages[T any](h *host, l []T, f func(*rds.Engine, T)) {
	for page := range slices.Chunk(l, pageSize) {
		e, _ := h.lock()
		for _, x := range page {
			f(e, x)
		}
		h.unlock()
	}
}

// maxCongested bounds a list of congested ports, of which a peer may have 65,536.
const maxCongested = 10000

// eachCongested calls f for the congested ports, ours first, at most maxCongested.
func (h *host) eachCongested(f func(e *rds.Engine, c *rds.CongestedPort)) {
	e, _ := h.lock()
	l := append([]*rds.Peer{e.Self()}, e.Peers()...)
	h.unlock()
	left := maxCongested
	for page := range slices.Chunk(l, pageSize) {
		for from := 0; len(page) > 0 && left > 0; {
			e, _ := h.lock()
			for most := pageSize; len(page) > 0 && most > 0 && left > 0; {
				var n int
				n, from = e.CongestedOf(page[0], from, min(most, left), func(c *rds.CongestedPort) { f(e, c) })
				most, left = most-1-n, left-n
				if from < 0 {
					page, from = page[1:], 0
				}
			}
			h.unlock()
		}
	}
}
