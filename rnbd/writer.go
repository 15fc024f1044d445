package rnbd

import (
	"net/netip"
	"slices"

	"github.com/rdsd/rdsd/rtrs"
)

// Writer is a session as it is known again. Its name is not enough: two nodes can have one, as
// copies of a machine do, and be let in one after the other.
type Writer struct {
	Name string
	UUID [16]byte     // its number, which is the client's for as long as its process lives; 0: not known
	From []netip.Addr // where its paths came from, the last maxFrom of them; none: not known
}

// maxFrom bounds what is remembered of one session: as many addresses as it may have paths.
const maxFrom = 32

func (w Writer) String() string { return w.Name }

// same tells whether both are one client's: it has its number still, or was started again and
// comes from one of its addresses. Of one of which neither is known, because an earlier version has
// written it down, the name decides.
func (w *Writer) same(o *Writer) bool {
	switch {
	case w.Name != o.Name:
		return false
	case w.UUID == o.UUID && w.UUID != [16]byte{}, len(w.From) == 0, len(o.From) == 0:
		return true
	}
	return slices.ContainsFunc(w.From, func(a netip.Addr) bool { return slices.Contains(o.From, a) })
}

func (w *Writer) equal(o *Writer) bool {
	return w.Name == o.Name && w.UUID == o.UUID && slices.Equal(w.From, o.From)
}

// learn adds where o, which is the same client, came from before: of several paths one is the first to be
// there, after a start of either side another one than before.
func (w *Writer) learn(o *Writer) {
	was := slices.DeleteFunc(slices.Clone(o.From), func(a netip.Addr) bool { return slices.Contains(w.From, a) })
	w.From = append(was, w.From...)
	w.From = w.From[max(0, len(w.From)-maxFrom):]
}

// among finds w in list.
func (w *Writer) among(list []Writer) bool {
	return slices.ContainsFunc(list, func(o Writer) bool { return w.same(&o) })
}

// without is a new list without w.
func (w *Writer) without(list []Writer) []Writer {
	return slices.DeleteFunc(slices.Clone(list), func(o Writer) bool { return w.same(&o) })
}

// writer is the session of h as it is known by now.
func (h *handle) writer() Writer {
	e := h.sess.rt
	w := Writer{Name: e.Name, UUID: e.UUID()}
	for _, a := range append(h.peers[:], e.Addrs()...) {
		a = a.Unmap().WithZone("")
		if a.IsValid() && !slices.Contains(w.From, a) {
			w.From = append(w.From, a)
		}
	}
	// After a start it may come from any that it has now: those of paths that have gone go first.
	if over := len(w.From) - maxFrom; over > 0 {
		paths := e.Paths()
		w.From = slices.DeleteFunc(w.From, func(a netip.Addr) bool {
			has := func(p *rtrs.ServerPath) bool { return p.Remote.Addr().Unmap().WithZone("") == a }
			if over == 0 || slices.ContainsFunc(paths, has) {
				return false
			}
			over--
			return true
		})
		w.From = w.From[over:]
	}
	return w
}

// writesFrom takes over from where the session of h, which is open for writing, comes by now, and
// reports whether that is new.
func (s *Server) writesFrom(h *handle) bool {
	id := h.store.vol.id
	p, known := s.past[id]
	w := h.writer()
	if !known || !h.writes() || w.Name != p.writer.Name || w.UUID != p.writer.UUID {
		return false
	}
	if w.learn(&p.writer); w.equal(&p.writer) {
		return false
	}
	p.writer = w
	s.past[id] = p
	return true
}
