package rnbd

import "github.com/rdsd/rdsd/blk"

// Held is what a Server remembers of a name under which a session has a store open, or had it
// when it went without closing it, for the next Server. Writes of that session may wait, which
// are for this store and no other, and who reads goes on with what it has read: a name can lead
// to another one when the session is back, because its file was replaced or another one
// exported.
type Held struct {
	Session, Name string
	ID            blk.FileID
	Born          int64  // blk.File.Born
	Where         string // the place where it was found then (try.where)
	Earlier       bool   // ID is of an earlier start of the machine
	Reads         bool   // it was opened to be read alone
}

// holder is a name as a session has it. One that reads is beside one that writes: neither takes
// the place of the other, or has it forgotten.
type holder struct {
	session, name string
	reads         bool
}

// holding is the store behind it.
type holding struct {
	store   any // see storeOf
	born    int64
	where   string
	earlier bool
	at      uint64 // which of all it is, by the time when it was last opened
}

// maxHeld bounds the names that are remembered of those that write, and as many of those that
// read, beyond those that are open (Server.hold).
const maxHeld = 4096

// storeOf is what a store is known by when it is opened again: a file or block device by its
// numbers, memory by the number of its export, another device by its place. An identity would
// not do, which is that of one opening where it is no number.
func (h *handle) storeOf() any {
	id, owner := h.store.vol.id, h.store.owner
	switch _, numbered := id.(blk.FileID); {
	case numbered:
		return id
	case owner != nil && owner.Volatile:
		return owner.verifier
	}
	return h.where
}

// same tells whether a name that led to g leads to the same store with n. The number of a
// file's device is another one when its file system was mounted anew, that of a block device
// when the machine was started: by its place it is known all the same. A file that was removed may have
// left its number to another one, and one of a file system that is mounted in place of another may have it as well; a block
// device that has gone leaves its number, and its path, likewise.
func (g *holding) same(n *holding) bool {
	if g.born != n.born && g.born != 0 && n.born != 0 {
		return false
	}
	was, ok := g.store.(blk.FileID)
	is, too := n.store.(blk.FileID)
	switch {
	case g.store == n.store:
		return true
	case !ok || !too || was.Block != is.Block || g.where != n.where:
		return false
	case is.Block:
		return g.earlier
	}
	return was.Ino == is.Ino
}

// holds tells whether the name of h, which is being opened, led its session to another store,
// which it has not closed. Otherwise it is remembered.
func (s *Server) holds(o *Opening) (another bool) {
	h := o.h
	n := h.holding()
	was, known := s.held[h.holder()]
	if known && !was.same(&n) {
		return true
	}
	o.held = !known
	s.hold(h)
	if known && (was.store != n.store || was.born != n.born || was.where != n.where || was.earlier) {
		s.env.Keep() // by what was known of it another may be taken for it later
	}
	return false
}

// hold remembers that the name of h leads to its store. When there is too much of it the one opened first is
// forgotten of those that nobody has open; after one that writes any store without a known writer may be
// another one than its session had (wrote).
func (s *Server) hold(h *handle) {
	k := h.holder()
	if _, known := s.held[k]; !known && len(s.held) >= maxHeld {
		open := map[holder]bool{}
		for _, v := range s.volumes {
			for _, o := range v.handles {
				open[o.holder()] = true
			}
		}
		var first holder
		n, at := 0, ^uint64(0)
		for o, g := range s.held {
			if o.reads != k.reads {
				continue
			}
			if n++; g.at < at && !open[o] {
				first, at = o, g.at
			}
		}
		if n >= maxHeld && at != ^uint64(0) {
			delete(s.held, first)
			if !first.reads {
				s.forgot = max(s.forgot, 1)
			}
		}
	}
	s.heldAt++
	g := h.holding()
	g.at = s.heldAt
	s.held[k] = g
}

func (h *handle) holding() holding {
	g := holding{store: h.storeOf(), where: h.where}
	if f, ok := blk.As[interface{ Born() int64 }](h.store.dev); ok {
		g.born = f.Born()
	}
	return g
}

func (h *handle) holder() holder { return holder{h.sess.rt.Name, h.name, !h.writes()} }

// Held lists them, in no order, but for those that end with the daemon.
func (s *Server) Held() (list []Held) {
	for k, g := range s.held {
		if f, ok := g.store.(blk.FileID); ok {
			list = append(list, Held{Session: k.session, Name: k.name, ID: f, Born: g.born, Where: g.where, Earlier: g.earlier, Reads: k.reads})
		}
	}
	return list
}
