package rnbd

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// peerAddr is an address that may use a handle.
type peerAddr = netip.Addr

// sessInfo answers a SESS_INFO: the smaller version of both sides and, to an
// rdsd, the additions.
func (s *Server) sessInfo(now time.Duration, e *session, r *rtrs.ServerReq) {
	ver, err := rnbdwire.ParseSessInfo(r.Usr, rnbdwire.SessInfo)
	if err = answerable(r, err, rnbdwire.SessInfoLen); err != nil {
		s.rt.Reply(now, r, 0, err)
		return
	}
	ver = min(ver, rnbdwire.Version)
	if e.features = rnbdwire.ParseFeatures(r.Usr); e.features != 0 {
		rnbdwire.AppendSessInfoExt(r.Data[:0], rnbdwire.SessInfoRsp, ver, features)
	} else {
		rnbdwire.AppendSessInfo(r.Data[:0], rnbdwire.SessInfoRsp, ver)
	}
	s.rt.Reply(now, r, rnbdwire.SessInfoLen, nil)
}

const features = rnbdwire.FeatInfo | rnbdwire.FeatFlags

// answerable returns err, or else an error for a request that cannot take an answer of n
// bytes.
func answerable(r *rtrs.ServerReq, err error, n int) error {
	switch {
	case err != nil:
		return rdserr.With(rdserr.ErrInvalid, "%v", err)
	case r.Op != rtrs.Read || len(r.Data) < n:
		return rdserr.With(rdserr.ErrInvalid, "%v with %d bytes; want a read with room for %d", r.Op, len(r.Data), n)
	}
	return nil
}

// open answers an OPEN, at once if the name is open in this session already (which is how a
// kernel client opens again after a reconnect); its access mode is then not looked at.
func (s *Server) open(now time.Duration, e *session, r *rtrs.ServerReq) {
	o, err := rnbdwire.ParseOpen(r.Usr)
	if err = answerable(r, err, rnbdwire.OpenRspLen); err != nil {
		s.rt.Reply(now, r, 0, err)
		return
	}
	from := r.Path.Remote.Addr()
	if h := e.named(o.Name); h != nil {
		if err := h.mayUse(from); err != nil {
			s.rt.Reply(now, r, 0, err)
			return
		}
		// Answered together with the one that is being opened.
		if h.state == handleOpening {
			h.wait(r)
			return
		}
		s.describe(now, h, r)
		return
	}
	if len(e.handles) >= s.cfg.MaxOpen {
		s.refuse(now, e, &o, r, rdserr.With(rdserr.ErrTooMany, "the session has %d volumes open; at most %d", len(e.handles), s.cfg.MaxOpen))
		return
	}
	op, err := s.resolve(e, from, &o)
	if err != nil {
		s.refuse(now, e, &o, r, err)
		return
	}
	let, err := s.env.Hold(from)
	if err != nil {
		s.refuse(now, e, &o, r, err)
		return
	}
	h := &handle{sess: e, name: o.Name, access: o.Access, let: let}
	op.h = h
	h.wait(r)
	h.peers[0] = from
	e.handles = append(e.handles, h)
	// A device that is there needs no file system, and no wait.
	if exp := op.tries[0].exp; exp != nil && exp.Device != nil {
		op.found = &op.tries[0]
		s.opened(now, op, exp.Device, exp, nil)
		return
	}
	if x := s.adopt(op); x != nil {
		x.h.settle()
		x.h, h.opening = h, x
		return
	}
	h.opening = op
	// A root that is removed meanwhile is closed after the last Opening that looks there.
	for i := range op.tries {
		if root := op.tries[i].root; root != nil {
			root.used++
		}
	}
	s.env.Open(op)
}

// adopt returns an opening that is under way for nobody and does what op would do, if there is
// one: a session that is lost and comes back while a file system stands still has one, however
// often.
func (s *Server) adopt(op *Opening) *Opening {
	i := slices.IndexFunc(s.orphans, func(x *Opening) bool {
		return x.Name == op.Name && x.Session == op.Session && slices.Equal(x.tries, op.tries)
	})
	if i < 0 {
		return nil
	}
	x := s.orphans[i]
	s.orphans = slices.Delete(s.orphans, i, i+1)
	return x
}

func (s *Server) refuse(now time.Duration, e *session, o *rnbdwire.Open, r *rtrs.ServerReq, err error) {
	s.env.Event(ServerEvent{Kind: ServerRefused, Name: o.Name, Session: e.rt.Name, Access: o.Access, Err: err})
	s.rt.Reply(now, r, 0, err)
}

// resolve finds the places where a volume may be that this session may open.
func (s *Server) resolve(e *session, from netip.Addr, o *rnbdwire.Open) (*Opening, error) {
	name := cleanName(o.Name)
	if err := blk.CheckName(name); err != nil {
		return nil, err
	}
	op := &Opening{Name: o.Name, Session: e.rt.Name}
	// A name of its own goes before a file found below a root, also when it may not be
	// opened.
	if exp := s.exports[name]; exp != nil {
		op.tries = []try{{exp: exp, rules: &exp.Rules, path: exp.Path, file: exp.File}}
		return op, exp.check(name, e.rt.Name, from, o.Access)
	}
	for _, root := range s.roots {
		err := root.check(name, e.rt.Name, from, o.Access)
		path := ""
		if err == nil {
			path, err = root.below(e.rt.Name, name)
		}
		if err == nil {
			op.tries = append(op.tries, try{root: root, rules: &root.Rules, path: path, file: root.File})
		} else if op.denied == nil {
			// Kept for when no other root has it: why it was refused says more than "not found".
			op.denied = err
		}
	}
	switch {
	case len(op.tries) > 0:
		return op, nil
	case op.denied != nil:
		return nil, op.denied
	}
	return nil, rdserr.With(rdserr.ErrNotFound, "no volume %q is exported", name)
}

// Opened reports that o.Do returned d, or err. The device is the Server's from then on.
func (s *Server) Opened(now time.Duration, o *Opening, d blk.Device, err error) {
	for i := range o.tries {
		if root := o.tries[i].root; root != nil {
			if root.used--; root.used == 0 && root.gone {
				s.env.Close(root, root)
			}
		}
	}
	s.opened(now, o, d, nil, err)
}

func (s *Server) opened(now time.Duration, o *Opening, d blk.Device, owner *Export, err error) {
	h := o.h
	h.opening = nil
	s.orphans = slices.DeleteFunc(s.orphans, func(x *Opening) bool { return x == o })
	if err == nil {
		// The file system took its time, and the lock was released: the volume may have been
		// closed, or is not exported any more.
		h.exp, h.root, h.rules = o.found.exp, o.found.root, o.found.rules
		if h.state != handleOpening {
			err = ErrNotOpen // closed meanwhile
		} else if h.root != nil && h.root.gone || h.exp != nil && s.exports[h.exp.Name] != h.exp {
			err = rdserr.With(rdserr.ErrNotFound, "volume %q is not exported any more", h.name)
		}
		if err != nil {
			if owner == nil {
				s.env.Close(h.place(), d)
			}
		} else {
			err = s.attach(now, o, d, owner)
		}
	}
	if err == nil && o.note {
		s.env.Note(o) // and then Noted
		return
	}
	s.answer(now, h, err)
}

// Noted reports that what Past told when ServerEnv.Note was called is written down, or why
// it cannot be. The session is let in then, and refused otherwise.
func (s *Server) Noted(now time.Duration, o *Opening, err error) {
	h := o.h
	switch {
	case err != nil:
		err = rdserr.With(rdserr.ErrIO, "volume %q: that this session writes now cannot be written down, which would let writes of the last one go over its own: %v", h.name, err)
	case h.state != handleOpening:
		err = ErrNotOpen // closed meanwhile
	}
	if err != nil {
		s.unwrote(o)
		s.detach(h)
		h.store = nil
	}
	s.answer(now, h, err)
}

// answer ends the opening of h, with err if that is not nil.
func (s *Server) answer(now time.Duration, h *handle, err error) {
	waiting := h.waiting()
	if err != nil {
		if h.state == handleOpening {
			s.env.Event(ServerEvent{Kind: ServerRefused, Name: h.name, Session: h.sess.rt.Name, Access: h.access, Err: err})
			h.sess.forget(h)
		}
		h.settle()
		for _, r := range waiting {
			s.rt.Reply(now, r, 0, err)
		}
		return
	}
	h.state, h.id = handleOpen, s.number(h.sess)
	h.sess.open[h.id] = h
	s.env.Event(ServerEvent{Kind: ServerOpened, Name: h.name, Session: h.sess.rt.Name, Access: h.access})
	for _, r := range waiting {
		// It may have come from elsewhere than the first, before it was known where the volume is.
		if err := h.mayUse(r.Path.Remote.Addr()); err != nil {
			s.rt.Reply(now, r, 0, err)
			continue
		}
		s.describe(now, h, r)
	}
}

// number is a device number that was not used for long.
func (s *Server) number(e *session) uint32 {
	for e.open[s.nextID] != nil {
		s.nextID++
	}
	s.nextID++
	return s.nextID - 1
}

// info answers an INFO.
func (s *Server) info(now time.Duration, e *session, r *rtrs.ServerReq) {
	id, err := rnbdwire.ParseInfo(r.Usr)
	if err = answerable(r, err, rnbdwire.OpenRspLen); err != nil {
		s.rt.Reply(now, r, 0, err)
		return
	}
	h := e.open[id]
	if h == nil || h.state != handleOpen {
		s.rt.Reply(now, r, 0, ErrNotOpen)
		return
	}
	s.request(h)
	s.describe(now, h, r)
}

// describe answers with OPEN_RSP.
func (s *Server) describe(now time.Duration, h *handle, r *rtrs.ServerReq) {
	rsp := describe(h.store.dev.Info(), h.id)
	b := rsp.Append(r.Data[:0])
	if h.sess.features&rnbdwire.FeatInfo != 0 {
		st := h.store
		rnbdwire.Store{Verifier: st.verifier, Volatile: st.owner != nil && st.owner.Volatile, Foreign: h.foreign}.Put(b)
	}
	s.rt.Reply(now, r, rnbdwire.OpenRspLen, nil)
}

// maxSectors is the most sectors a request without data can have: its length in
// bytes has 32 bits.
const maxSectors = (1<<32 - 1) / rnbdwire.SectorSize

// describe returns the OPEN_RSP for a device.
func describe(i *blk.Info, id uint32) rnbdwire.OpenRsp {
	sectors := func(n uint64) uint32 {
		return uint32(min(n/rnbdwire.SectorSize, maxSectors)) &^ (i.LogicalBlock/rnbdwire.SectorSize - 1)
	}
	r := rnbdwire.OpenRsp{
		DeviceID:      id,
		Sectors:       i.Size / rnbdwire.SectorSize,
		MaxHWSectors:  sectors(uint64(i.MaxBytes)),
		PhysicalBlock: uint16(min(i.PhysicalBlock, 1<<15)),
		LogicalBlock:  uint16(i.LogicalBlock),
		MaxSegments:   i.MaxSegments,
	}
	if r.MaxSegments == 0 {
		r.MaxSegments = rtrswire.MaxSegments
	}
	// Operations that would fail are not offered: a client that is offered discards sends
	// them.
	if !i.ReadOnly {
		r.MaxWriteZeroes, r.MaxDiscard = sectors(i.MaxWriteZeroes), sectors(i.MaxDiscard)
	}
	if r.MaxDiscard > 0 {
		r.DiscardGranularity, r.DiscardAlignment = i.DiscardGranularity, i.DiscardAlignment
	}
	if i.Rotational {
		r.Rotational = 1
	}
	if i.FUA {
		r.Cache |= rnbdwire.CacheFUA
	}
	if i.WriteCache {
		r.Cache |= rnbdwire.CacheWriteBack
	}
	return r
}

// mayUse tells whether requests for h are taken from an address: each path of a
// session is looked at, not only the one that opened. While h is being opened it may be
// found at several places; what one of them takes waits, and is judged again then (answer).
func (h *handle) mayUse(from netip.Addr) error {
	if from == h.peers[0] || from == h.peers[1] {
		return nil
	}
	if o := h.opening; o != nil && slices.ContainsFunc(o.tries, func(t try) bool { return t.rules.mayPeer(from) }) {
		return nil
	}
	if h.opening != nil || !h.rules.mayPeer(from) {
		return rdserr.With(rdserr.ErrPerm, "volume %q: %v is not among the addresses that may use it", h.name, from)
	}
	h.peers[1] = from
	return nil
}

// closeReq answers a CLOSE when nothing of the volume is at the store any more.
// A number that is not known is no error.
func (s *Server) closeReq(now time.Duration, e *session, r *rtrs.ServerReq) {
	id, err := rnbdwire.ParseClose(r.Usr)
	if err == nil && (r.Op != rtrs.Write || len(r.Data) != 0) {
		err = rnbdwire.ErrDir
	}
	if err != nil {
		s.rt.Reply(now, r, 0, rdserr.With(rdserr.ErrInvalid, "%v", err))
		return
	}
	h := e.open[id]
	switch {
	case h == nil:
		s.rt.Reply(now, r, 0, nil)
	// Taken away before, and its last request has ended: closing it is no error.
	case h.state == handleForced && h.store == nil:
		e.forget(h)
		s.rt.Reply(now, r, 0, nil)
	default:
		s.request(h)
		s.left(h)
		h.wait(r)
		s.close(now, h, nil)
	}
}

// take takes a volume from its session. A volume that is being opened is forgotten.
func (s *Server) take(now time.Duration, h *handle) {
	if h.state == handleOpening {
		s.close(now, h, ErrNotOpen)
		return
	}
	h.state = handleForced
	s.goes(h)
	s.env.Event(ServerEvent{Kind: ServerClosed, Name: h.name, Session: h.sess.rt.Name, Access: h.access, Err: ErrNotOpen})
	s.drained(now, h)
}

// close ends a handle; why is not nil when the client did not ask for it. An OPEN that is
// not answered yet ends at once: the file system may take as long as it likes, and nothing
// that the client does later can be overtaken by it.
func (s *Server) close(now time.Duration, h *handle, why error) {
	if h.state == handleOpen {
		s.env.Event(ServerEvent{Kind: ServerClosed, Name: h.name, Session: h.sess.rt.Name, Access: h.access, Err: why})
	}
	opening := h.state == handleOpening
	h.state = handleClosing
	h.sess.forget(h)
	switch {
	case !opening:
		if h.store != nil {
			s.goes(h)
		}
		s.drained(now, h)
	case h.opening != nil && len(s.orphans) >= maxOrphans: // a client could make ever more
	default: // the device is put back by Opened or Noted
		if h.opening != nil {
			s.orphans = append(s.orphans, h.opening)
		}
		for _, r := range h.waiting() {
			s.rt.Reply(now, r, 0, ErrNotOpen)
		}
	}
}

// forget removes h from its session.
func (e *session) forget(h *handle) {
	e.handles = slices.DeleteFunc(e.handles, func(o *handle) bool { return o == h })
	if e.open[h.id] == h {
		delete(e.open, h.id)
	}
}

// drained gives the device up if h is closed and its last request has ended.
func (s *Server) drained(now time.Duration, h *handle) {
	if h.inflight > 0 || h.state == handleOpen || h.state == handleOpening {
		return
	}
	if h.store != nil {
		s.detach(h)
		h.store = nil
	}
	h.settle()
	for _, r := range h.waiting() {
		s.rt.Reply(now, r, 0, nil)
	}
}
