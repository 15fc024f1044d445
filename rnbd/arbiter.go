package rnbd

import (
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// volume is one file, block device or other device that is open, under one name or several.
// Access to it is arbitrated (B6).
type volume struct {
	id      any
	writers int       // handles that may write, those included whose last requests are still at the store
	handles []*handle // in no order
	stores  [2]*store // opened for writing, and not
	below   peerAddr  // who opened it below a root; none: it is an export's
	last    *handle   // whose write came last
	apart   bool      // one that had it for writing beside others may be away: looked at with the next write (overtakes)
}

// store is an opened device with the requests that wait to be submitted to it.
type store struct {
	vol      *volume
	dev      blk.Device
	handles  int
	owner    *Export // whose Device it is
	pending  blk.List
	queued   bool // in Server.ready
	failing  bool // its last request failed
	lost     bool // a sync of it failed
	verifier uint64
}

// handleState says where a handle stands.
type handleState uint8

const (
	handleOpening handleState = iota // Opening.Do
	handleOpen
	handleForced  // taken from the session: its number is known and answers ErrNotOpen
	handleClosing // its requests at the store end
)

// handle is one volume open in one session.
type handle struct {
	sess     *session
	name     string // as the client named it
	id       uint32
	access   rnbdwire.Access
	state    handleState
	exp      *Export // or
	root     *Root
	rules    *Rules
	peers    [2]peerAddr // addresses that may use it
	store    *store
	inflight int // requests not replied to
	since    time.Duration
	foreign  bool     // see rnbdwire.Store
	wrote    bool     // or had the volume before, and may have
	seen     bool     // a request for it has come: its client has the answer to its OPEN
	where    string   // it was found (try.where)
	opening  *Opening // nil: there is none, or it has ended
	at       int      // its place in volume.handles
	let      func()   // of ServerEnv.Hold; nil: it was called
}

func (h *handle) writes() bool { return h.access != rnbdwire.ReadOnly }

// beside tells whether a session of the same name has the volume of h for writing a second time, as
// one that was lost and is back does while it may migrate.
func (h *handle) beside() bool {
	return slices.ContainsFunc(h.store.vol.handles, func(o *handle) bool {
		return o != h && o.writes() && o.sess.rt.Name == h.sess.rt.Name
	})
}

// place is where the volume was found (Opening.Place).
func (h *handle) place() any {
	if h.exp != nil {
		return h.exp
	}
	return h.root
}

// identity returns what tells volumes apart: the file or device number behind a stack of
// layers, or the device itself.
func identity(d blk.Device) any {
	if f, ok := blk.As[interface{ ID() blk.FileID }](d); ok {
		return f.ID()
	}
	return d
}

// admit decides on B6: any number of readers, one writer, or two while one of
// them migrates, or any number where the export is shared, and so are those by which the others have
// it. back says that h was one of two before, and is let in beside the other in any mode.
func (v *volume) admit(h *handle, back bool) error {
	own := func(o *handle) bool { return o.writes() && !o.rules.Shared }
	if !h.writes() || h.rules.Shared && !slices.ContainsFunc(v.handles, own) {
		return nil
	}
	most := 1
	if h.access == rnbdwire.Migration || back {
		most = 2
	}
	if v.writers < most {
		return nil
	}
	for _, o := range v.handles {
		// These are told apart from another writer: they end by themselves, and the client tries
		// again.
		if o.writes() && o.state == handleForced {
			return rdserr.With(ErrBusy, "volume %q: it was taken from session %q, whose requests have not ended yet", h.name, o.sess.rt.Name)
		}
		if o.writes() && o.sess.rt.Name == h.sess.rt.Name && o.sess != h.sess {
			// Writes from before the session was lost are still at the store.
			return rdserr.With(ErrBusy, "volume %q: requests of an earlier session %q have not ended yet", h.name, h.sess.rt.Name)
		}
	}
	return rdserr.With(ErrWriter, "volume %q: %d sessions have it open for writing; access %v allows %d", h.name, v.writers, h.access, most)
}

// attach gives h the device d, or that of its volume if it is open already.
func (s *Server) attach(now time.Duration, o *Opening, d blk.Device, owner *Export) error {
	h := o.h
	id := identity(d)
	s.recall(id, o.found.where())
	v := s.volumes[id]
	if v == nil {
		v = &volume{id: id}
	}
	info := d.Info()
	var err error
	switch {
	case h.writes() && info.ReadOnly:
		err = rdserr.With(blk.ErrReadOnly, "volume %q cannot be written; open it with access ro", h.name)
	case info.LogicalBlock > 1<<15:
		err = rdserr.With(blk.ErrNotSupported, "volume %q has blocks of %d bytes; RNBD can tell of 32768 at most", h.name, info.LogicalBlock)
	default:
		if err = v.admit(h, s.isBack(v, h)); err == nil {
			err = s.room(v, h)
		}
	}
	// One device for writers and one for readers: a file opened read-only stays that.
	which := 0
	if info.ReadOnly {
		which = 1
	}
	st := v.stores[which]
	// Opened for nothing: refused, or the volume has a device already, under another name
	// perhaps.
	if owner == nil && (err != nil || st != nil && st.dev != d) {
		s.env.Close(h.place(), d)
	}
	if err != nil {
		return err
	}
	if st == nil {
		st = &store{vol: v, dev: d, owner: owner, verifier: s.verify(id, owner)}
		v.stores[which] = st
	}
	if s.volumes[id] == nil && h.root != nil {
		v.below = h.peers[0]
		s.below++
		s.belowOf[v.below]++
	}
	s.volumes[id] = v
	st.handles++
	h.at = len(v.handles)
	v.handles = append(v.handles, h)
	h.store, h.since, h.where = st, now, o.found.where()
	// The session that wrote last is remembered, so that a session that comes back learns
	// whether another one has written meanwhile. One that reads learns whether its name leads
	// to another store now.
	if h.writes() {
		v.writers++
		s.wrote(o, id)
	} else if h.foreign = s.holds(o); o.held {
		s.env.Keep()
	}
	return nil
}

// room says why v cannot be opened, if it is not open yet: a store below a root is an export
// more, which keeps a descriptor. Of those each peer has at most three times what is left for all.
func (s *Server) room(v *volume, h *handle) error {
	if h.root == nil || s.volumes[v.id] != nil || s.cfg.MaxVolumes == 0 {
		return nil
	}
	free, mine := s.cfg.MaxVolumes-len(s.exports)-s.below, s.belowOf[h.peers[0]]
	switch {
	case free <= 0:
		return rdserr.With(rdserr.ErrTooMany, "volume %q: there are %d exports and %d volumes open below roots already (volumes.max_exports)", h.name, len(s.exports), s.below)
	case mine >= 3*free:
		return rdserr.With(rdserr.ErrTooMany, "volume %q: %v has opened %d volumes below roots, and %d are left for all (volumes.max_exports)", h.name, h.peers[0], mine, free)
	}
	return nil
}

// settle ends the charge for h, of which nothing is left.
func (h *handle) settle() {
	if h.let != nil {
		h.let()
		h.let = nil
	}
}

// verify makes the verifier of a store that is being opened, which clients are told.
func (s *Server) verify(id any, owner *Export) uint64 {
	if owner != nil && owner.Volatile {
		return owner.verifier
	}
	v := mix(s.cfg.Boot, uint64(s.recollect(id).syncs))
	if f, ok := id.(blk.FileID); ok {
		v = mix(v, f.Ino) // of a file: the number of its device may change when the machine starts
	}
	return v
}

// mix is splitmix64 of both, and never 0.
func mix(a, b uint64) uint64 {
	z := a + 0x9e3779b97f4a7c15*(b+1)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return max(z^z>>31, 1)
}

// remove takes h out of its handles. A peer may have many of one volume, and leave with all.
func (v *volume) remove(h *handle) {
	last := len(v.handles) - 1
	v.handles[h.at] = v.handles[last]
	v.handles[h.at].at = h.at
	v.handles[last] = nil
	v.handles = v.handles[:last]
}

// detach undoes attach, when no request of h is at the store any more.
func (s *Server) detach(h *handle) {
	st := h.store
	v := st.vol
	// From where it came is known to the end now, and is what it is known by when it is back.
	if s.writesFrom(h) {
		s.env.Keep()
	}
	v.remove(h)
	if h.writes() {
		v.writers--
		if v.writers == 0 && len(s.past[v.id].beside) > 0 {
			s.env.Keep() // that both went, see Past
		}
	}
	if st.handles--; st.handles > 0 {
		return
	}
	for i, o := range v.stores {
		if o == st {
			v.stores[i] = nil
		}
	}
	if v.stores == [2]*store{} {
		delete(s.volumes, v.id)
		s.closed(v.id)
		if v.below.IsValid() {
			s.below--
			if s.belowOf[v.below]--; s.belowOf[v.below] == 0 {
				delete(s.belowOf, v.below)
			}
		}
	}
	if st.owner == nil || s.exports[st.owner.Name] != st.owner {
		s.ended(st.owner, v.id)
		s.env.Close(h.place(), st.dev) // an export's Device stays with it
	}
}
