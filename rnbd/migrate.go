package rnbd

import "slices"

// Design notes.
//
// While a volume migrates two sessions have it for writing, and agree which of them writes. One
// that goes without closing it and comes back is let in beside the other, in any mode, and
// its waiting writes go on unless the other was the last to write when it went, or has written
// meanwhile: only then it is behind.
// So it is also where both go and come back, as they do when this daemon is started again. Who
// closes it leaves it to the other.
//
// What is written down (Past) says that others than the last one to come are behind as long as
// one of them is there, for it may write at any time and the disk follows later.

// company lists the sessions that have the volume for writing, or had and may have writes
// that wait, which are not to be taken for those of one that came before.
func (p *past) company() []Writer {
	if p.writer.Name == "" || p.closed {
		return nil
	}
	return append(slices.Clone(p.beside), p.writer)
}

// overtaken notes that another session writes, and w is not there.
func (p *past) overtaken(w *Writer) {
	p.behind = w.without(p.behind)
	p.behind = append(p.behind[max(0, len(p.behind)-maxBehind+1):], *w)
}

// there tells whether w has v for writing now, by another handle than h.
func (v *volume) there(w *Writer, h *handle) bool {
	return slices.ContainsFunc(v.handles, func(o *handle) bool {
		if o == h || !o.writes() || o.state != handleOpen && o.state != handleOpening {
			return false
		}
		is := o.writer()
		return is.same(w)
	})
}

// isBack tells whether the session of h went without closing v, and another that had it for
// writing beside it is there and has not written since.
func (s *Server) isBack(v *volume, h *handle) bool {
	if !h.writes() {
		return false
	}
	p, me := s.past[v.id], h.writer()
	list := p.company()
	return me.among(list) && !v.there(&me, h) &&
		slices.ContainsFunc(list, func(w Writer) bool { return !me.same(&w) && v.there(&w, h) })
}

// joins has me beside those that have the volume for writing. If it is another than they
// were, those of them that are not there are behind.
func (s *Server) joins(h *handle, me *Writer, p *past, other bool) {
	v := h.store.vol
	var beside []Writer
	for _, w := range p.company() {
		switch {
		case me.same(&w):
			me.learn(&w)
		case !other || v.there(&w, h):
			beside = append(beside, w)
			v.apart = true
		default:
			p.overtaken(&w)
		}
	}
	p.beside = beside
}

// goes is told that h, which was open, is not any more. If another that has the volume for
// writing beside it wrote after it, what h has waiting is older than that: h is behind. What one
// that has not written yet has waiting is its first, from after it was given the volume.
func (s *Server) goes(h *handle) {
	v := h.store.vol
	v.apart = true
	if v.last == nil || !h.wrote || h.rules.Shared {
		return
	}
	p, me, last := s.past[v.id], h.writer(), v.last.writer()
	list := p.company()
	if me.same(&last) || !me.among(list) || !last.among(list) || v.there(&me, h) {
		return // CLOSE has left it to others, who may have gone likewise, or it is there by another handle
	}
	p.overtaken(&me)
	p.writer, p.beside = last, last.without(me.without(list))
	s.remember(v.id, p)
	s.env.Keep()
}

// overtakes is told of the first write by h after a session may have gone that had the volume
// for writing beside it: it is behind then.
func (s *Server) overtakes(h *handle) {
	v := h.store.vol
	v.apart = false
	if h.rules.Shared {
		return
	}
	p, me := s.past[v.id], h.writer()
	var beside []Writer
	gone := false
	for _, w := range p.company() {
		switch {
		case me.same(&w):
		case v.there(&w, h):
			beside = append(beside, w)
		default:
			p.overtaken(&w)
			gone = true
		}
	}
	if gone {
		p.writer, p.beside = me, beside
		s.remember(v.id, p)
		s.env.Keep()
	}
}

// parts leaves the volume, which the session of h closes, to those that had it for writing
// beside it, and reports whether there is any.
func (s *Server) parts(h *handle, me *Writer, p *past) bool {
	v, list := h.store.vol, p.company()
	rest := me.without(list)
	if !me.among(list) || len(rest) == 0 {
		return false
	}
	if v.there(me, h) { // under another name
		return true
	}
	// One that is there goes before one that may come back.
	i := max(0, slices.IndexFunc(rest, func(w Writer) bool { return v.there(&w, h) }))
	p.writer = rest[i]
	p.beside = slices.Delete(rest, i, i+1)
	return true
}

// apart is what p says of others than its writer, to be written down.
func (s *Server) apart(id any, p *past) (behind, beside []Writer) {
	if v := s.volumes[id]; v == nil || v.writers == 0 {
		return p.behind, p.beside
	}
	q := *p
	for i := range p.beside {
		q.overtaken(&p.beside[i])
	}
	return q.behind, nil
}
