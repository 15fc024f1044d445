package rnbd

import (
	"cmp"
	"slices"

	"github.com/rdsd/rdsd/blk"
)

// past is what is remembered of a volume after it was closed: how many syncs of it failed,
// and which sessions may still have writes that must not reach it.
//
// A session that goes without closing the volume may come back with writes that waited. If
// another has written meanwhile they would go over that one's, so it is told (foreign) and
// gives them up. It is told until it has asked something of what was opened with that
// answer: an answer may be lost with the link, the daemon or the machine. All of this
// outlives them, where the environment keeps it (ServerConfig.Notes).
type past struct {
	syncs  uint32   // that failed
	writer Writer   // the session that opened it for writing last
	closed bool     // it has closed the volume: nothing of it waits. Not kept: without it more is told, not less
	behind []Writer // sessions that went without closing it before others wrote, oldest first
	beside []Writer // have it for writing beside writer (migrate.go), or had when they went; nil once closed
	where  string   // it was found then (try.where)
	at     uint64   // of Server.pastAt, when it was used last
}

const (
	// maxPast bounds what is remembered, beyond the volumes that are open (Server.forget).
	maxPast = 4096
	// maxBehind bounds what is remembered of one volume: the last of those that went.
	maxBehind = 32
)

// wrote remembers which session has the volume for writing, and whether that has to be
// written down.
func (s *Server) wrote(o *Opening, id any) {
	h, p := o.h, s.recollect(id)
	me := h.writer()
	o.before = p
	// Who wrote last may be forgotten, and that this session went before.
	if p.writer.Name == "" && s.forgot > 0 && !h.rules.Shared {
		p.behind = append(slices.Clone(p.behind), me)
	}
	another := !me.same(&p.writer)
	if !another {
		me.learn(&p.writer)
	}
	other := another && !me.among(p.beside) // than those that had it
	h.wrote = p.writer.Name != "" && !other
	if !h.rules.Shared {
		s.joins(h, &me, &p, other)
	}
	h.foreign = s.holds(o) || !h.rules.Shared && (p.writer.Name != "" && other || me.among(p.behind))
	_, lasts := id.(blk.FileID) // what does not is not found again
	// Of h.beside the note may not be written yet. Of those beside it Past says other things now.
	unsaid := another || h.beside() || len(p.beside) > 0
	o.note = s.cfg.Notes && lasts && !h.rules.Shared && unsaid
	unsaid = unsaid || !me.equal(&p.writer)
	p.writer, p.closed, p.where = me, false, h.where
	s.remember(id, p)
	if (unsaid || o.held) && !o.note {
		s.env.Keep()
	}
}

// unwrote takes back what wrote did, for a session that is not let in. A sync that failed
// meanwhile stays remembered, and so does all of it beside another opening, whose it is too. It
// may have been written down (ServerEnv.Note).
func (s *Server) unwrote(o *Opening) {
	if o.h.beside() {
		return
	}
	if o.held {
		delete(s.held, o.h.holder())
	}
	id, me := o.h.store.vol.id, o.h.writer()
	if p := s.past[id]; me.same(&p.writer) {
		p.writer, p.closed, p.behind, p.beside = o.before.writer, o.before.closed, o.before.behind, o.before.beside
		s.remember(id, p)
	}
	s.env.Keep()
}

// request is told of each request for h: a client that knows its number has seen the answer
// to OPEN, and with it whether others have written.
func (s *Server) request(h *handle) {
	if h.seen {
		return
	}
	h.seen = true
	if !h.foreign {
		return
	}
	h.foreign = false // its client goes on all the same
	s.hold(h)
	id, me := h.store.vol.id, h.writer()
	if p := s.past[id]; h.writes() && me.among(p.behind) {
		p.behind = me.without(p.behind)
		s.remember(id, p)
	}
	s.env.Keep()
}

// left remembers that the client has closed h itself: nothing of it waits.
func (s *Server) left(h *handle) {
	if h.store == nil {
		return
	}
	if delete(s.held, h.holder()); !h.writes() {
		return
	}
	id, me := h.store.vol.id, h.writer()
	switch p := s.past[id]; {
	case s.parts(h, &me, &p):
		s.remember(id, p)
		s.env.Keep()
	case me.same(&p.writer):
		p.closed = true
		s.remember(id, p)
	}
}

// syncLost notes that a sync of a store failed.
func (s *Server) syncLost(id any) {
	p := s.recollect(id)
	p.syncs++
	s.remember(id, p)
	s.env.Keep()
}

// recollect is what is remembered of a volume. What is not known may have been forgotten.
func (s *Server) recollect(id any) past {
	p, known := s.past[id]
	if !known {
		p.syncs = s.forgot
	}
	return p
}

// remember keeps p. When there is too much of it something is forgotten.
func (s *Server) remember(id any, p past) {
	if _, known := s.past[id]; !known && len(s.past)+len(s.earlier) >= maxPast {
		s.forget()
	}
	s.pastAt++
	p.at = s.pastAt
	s.past[id] = p
}

// forget forgets the volume that was used first of those that nobody has open; those go before
// that nobody can miss. Otherwise any volume that is not known may be that one: as many syncs of
// it have failed then (recollect), and each session is told that others have written (wrote).
func (s *Server) forget() {
	var id any
	var where string
	first := past{at: ^uint64(0)}
	for k, p := range s.past {
		if s.volumes[k] == nil && s.goesBefore(&p, &first) {
			id, first = k, p
		}
	}
	for k, e := range s.earlier {
		if p := (past{writer: e.Writer, at: e.at}); s.goesBefore(&p, &first) {
			id, where, first = nil, k, p
		}
	}
	switch {
	case id != nil:
		delete(s.past, id)
	case where != "":
		delete(s.earlier, where)
	default: // all are open
		return
	}
	if s.missed(&first) {
		s.forgot = max(s.forgot, first.syncs, 1)
	}
}

func (s *Server) goesBefore(p, o *past) bool {
	if m := s.missed(p); m != s.missed(o) {
		return !m
	}
	return p.at < o.at
}

// missed tells whether a session may be one that has to be told what p says.
func (s *Server) missed(p *past) bool {
	return !p.closed || len(p.behind) > 0 || p.syncs > s.forgot
}

// closed notes that nobody has a volume open any more.
func (s *Server) closed(id any) {
	if p, known := s.past[id]; known {
		s.remember(id, p)
	}
}

// ended forgets a volume whose content ends with the device of owner, which is closed: nobody can open it
// again. What is remembered of it would keep the device, and be in the way of what can be missed.
func (s *Server) ended(owner *Export, id any) {
	if owner != nil && owner.Volatile && s.volumes[id] == nil {
		delete(s.past, id)
	}
}

// recall takes up what an earlier start of the machine knew of a volume, which it finds by
// where it is: the number of its device may be another one now. Of the syncs that failed then
// nothing is left to tell: the machine's start says more (Boot).
func (s *Server) recall(id any, where string) {
	now, ok := id.(blk.FileID)
	e, was := s.earlier[where]
	if _, known := s.past[id]; !ok || !was || known || e.ID.Block != now.Block || !now.Block && e.ID.Ino != now.Ino {
		return
	}
	delete(s.earlier, where)
	s.remember(id, past{writer: e.Writer, behind: e.Behind, beside: e.Beside, where: where})
}

// Past is what a Server remembers of a file or block device after it was closed,
// for the next Server.
type Past struct {
	ID      blk.FileID
	Syncs   uint32   // that failed
	Writer  Writer   // the session that opened it for writing last
	Behind  []Writer // sessions that went before another wrote, and have not been told
	Beside  []Writer // sessions that had it for writing beside Writer when all of them went
	Where   string   // the place where it was found then
	Earlier bool     // ID is of an earlier start of the machine, and Syncs say nothing
}

// aged is a Past and past.at.
type aged struct {
	Past
	at uint64
}

// Past lists it, what was used first first. ServerEnv.Keep says that there is something new.
func (s *Server) Past() []Past {
	for _, v := range s.volumes {
		for _, h := range v.handles {
			s.writesFrom(h)
		}
	}
	var all []aged
	for id, p := range s.past {
		if f, ok := id.(blk.FileID); ok {
			behind, beside := s.apart(id, &p)
			all = append(all, aged{Past{ID: f, Syncs: p.syncs, Writer: p.writer, Behind: behind, Beside: beside, Where: p.where}, p.at})
		}
	}
	for _, p := range s.earlier { // nobody has opened it since
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b aged) int { return cmp.Compare(a.at, b.at) })
	list := make([]Past, len(all))
	for i := range all {
		list[i] = all[i].Past
	}
	return list
}

// Forgot says what is not in Past any more, for the next Server: 0: nothing that matters.
func (s *Server) Forgot() uint32 { return s.forgot }
