package rnbd

import (
	"math/rand"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// Server serves volumes to the sessions of an RTRS server.
type Server struct {
	cfg ServerConfig
	env ServerEnv
	rt  Replier
	rnd *rand.Rand

	exports  map[string]*Export
	roots    []*Root
	sessions []*session       // in the order they came up
	volumes  map[any]*volume  // open volumes, by identity
	below    int              // of them: stores below roots
	belowOf  map[peerAddr]int // these by who opened them
	past     map[any]past     // closed volumes, by identity
	earlier  map[string]aged  // closed before the machine was started, by Past.Where
	pastAt   uint64           // of the last use of a volume
	forgot   uint32           // how many failed syncs of a volume may be forgotten, at least 1 if who wrote it may be
	held     map[holder]holding
	heldAt   uint64     // of the last
	nextID   uint32     // of a device
	ready    []*store   // have requests for Next
	orphans  []*Opening // are under way, and nobody waits for them; at most maxOrphans
}

// session holds the volumes that a session of RTRS has open.
type session struct {
	srv      *Server
	rt       *rtrs.ServerSession
	features rnbdwire.Features
	handles  []*handle          // in the order they were asked for, forced ones too
	open     map[uint32]*handle // those that have a number
	waits    []waiting
	down     bool
}

// waiting is a request that waits for its volume: an OPEN while it is opening, a CLOSE while
// its requests end.
type waiting struct {
	h *handle
	r *rtrs.ServerReq
}

// maxOrphans bounds the openings that go on for nobody.
const maxOrphans = 1024

// NewServer returns a server without exports.
func NewServer(cfg ServerConfig, env ServerEnv, rt Replier, rnd *rand.Rand) *Server {
	s := &Server{cfg: cfg, env: env, rt: rt, rnd: rnd,
		exports: map[string]*Export{}, volumes: map[any]*volume{}, belowOf: map[peerAddr]int{}, past: map[any]past{}, earlier: map[string]aged{}, held: map[holder]holding{}, forgot: cfg.Forgot}
	for _, p := range cfg.Past {
		s.pastAt++
		if p.Earlier {
			s.earlier[p.Where] = aged{p, s.pastAt}
		} else {
			s.past[p.ID] = past{syncs: p.Syncs, writer: p.Writer, behind: p.Behind, beside: p.Beside, where: p.Where, at: s.pastAt}
		}
	}
	// Of each kind so many: names of readers keep out none of a writer, of which more has to be told.
	have := map[bool]int{}
	for _, g := range cfg.Held {
		if have[g.Reads]++; have[g.Reads] > maxHeld {
			if !g.Reads {
				s.forgot = max(s.forgot, 1)
			}
			continue
		}
		s.heldAt++
		s.held[holder{g.Session, g.Name, g.Reads}] = holding{store: g.ID, born: g.Born, where: g.Where, earlier: g.Earlier, at: s.heldAt}
	}
	s.cfg.Past, s.cfg.Held = nil, nil
	if s.cfg.Boot == 0 {
		s.cfg.Boot = rnd.Uint64()
	}
	if s.cfg.MaxOpen == 0 {
		s.cfg.MaxOpen = 1024
	}
	if s.nextID = s.cfg.FirstID; s.nextID == RandomID {
		s.nextID = rnd.Uint32()
	}
	return s
}

// Export offers e, which has been validated and does not change any more.
func (s *Server) Export(e *Export) error {
	if err := e.Validate(); err != nil {
		return err
	}
	if s.exports[e.Name] != nil {
		return rdserr.With(ErrExists, "there is an export %q already", e.Name)
	}
	for _, o := range s.exports {
		if e.Device != nil && o.Device == e.Device {
			return rdserr.With(ErrExists, "export %q has this device already", o.Name)
		}
	}
	e.verifier = max(s.rnd.Uint64(), 1)
	s.exports[e.Name] = e
	return nil
}

// Unexport removes an export, or is ErrBusy while sessions have it open, or requests of those that had it are at its store.
// It is ErrNotFound if e is not offered any more, also where another one has its name.
func (s *Server) Unexport(now time.Duration, e *Export) error {
	if s.exports[e.Name] != e {
		return noExport(e.Name)
	}
	if err := s.inUse(e.Name, e.uses); err != nil {
		return err
	}
	s.unexport(e)
	return nil
}

// ForceUnexport removes an export, and takes it from the sessions that have it open.
func (s *Server) ForceUnexport(now time.Duration, e *Export) error {
	if s.exports[e.Name] != e {
		return noExport(e.Name)
	}
	s.takeAll(now, s.using(e.uses))
	s.unexport(e)
	return nil
}

// ForceClose takes a volume from one session that has it open, or is opening it, and reports
// whether there was one. The session may open it again; until then what it asks is ErrNotOpen.
func (s *Server) ForceClose(now time.Duration, e *rtrs.ServerSession, name string) bool {
	list := s.using(func(h *handle) bool { return h.sess.rt == e && cleanName(h.name) == cleanName(name) })
	s.takeAll(now, list)
	return len(list) > 0
}

func (s *Server) unexport(e *Export) {
	delete(s.exports, e.Name)
	if e.Device == nil {
		return
	}
	if id := identity(e.Device); s.volumes[id] == nil {
		s.ended(e, id)
		s.env.Close(e, e.Device) // else with the last that uses it
	}
}

func (e *Export) uses(h *handle) bool { return h.exp == e }
func (r *Root) uses(h *handle) bool   { return h.root == r }

func noExport(name string) error { return rdserr.With(rdserr.ErrNotFound, "no export %q", name) }

// inUse says why what handles that match have cannot be removed; nil: it can.
func (s *Server) inUse(what string, match func(*handle) bool) error {
	if n := len(s.using(match)); n > 0 {
		return rdserr.With(ErrBusy, "%q is open in %d sessions; unmap it there, or force it (--force)", what, n)
	}
	n := 0
	for _, v := range s.volumes {
		for _, h := range v.handles {
			if match(h) {
				n += h.inflight
			}
		}
	}
	if n > 0 {
		return rdserr.With(ErrBusy, "%q: %d requests of sessions that have it no more are at its store, and may still write there; wait for their end, or force it (--force)", what, n)
	}
	return nil
}

// AddRoot offers the files below r, which is open. Names that are exports of their own come
// first, then roots in the order they were added.
func (s *Server) AddRoot(r *Root) { s.roots = append(s.roots, r) }

// RemoveRoot undoes AddRoot, as Unexport does for exports; r is closed by the environment.
func (s *Server) RemoveRoot(now time.Duration, r *Root) error {
	if !slices.Contains(s.roots, r) {
		return noRoot(r)
	}
	if err := s.inUse(r.Path, r.uses); err != nil {
		return err
	}
	s.removeRoot(r)
	return nil
}

// ForceRemoveRoot is to RemoveRoot what ForceUnexport is to Unexport.
func (s *Server) ForceRemoveRoot(now time.Duration, r *Root) error {
	if !slices.Contains(s.roots, r) {
		return noRoot(r)
	}
	s.takeAll(now, s.using(r.uses))
	s.removeRoot(r)
	return nil
}

func (s *Server) removeRoot(r *Root) {
	s.roots = slices.DeleteFunc(s.roots, func(o *Root) bool { return o == r })
	r.gone = true
	if r.used == 0 {
		s.env.Close(r, r)
	}
}

func noRoot(r *Root) error { return rdserr.With(rdserr.ErrNotFound, "no export root %q", r.Path) }

// using lists the handles that match and were not taken from their sessions.
func (s *Server) using(match func(*handle) bool) (list []*handle) {
	for _, e := range s.sessions {
		for _, h := range e.handles {
			if h.state != handleForced && match(h) {
				list = append(list, h)
			}
		}
	}
	return list
}

func (s *Server) takeAll(now time.Duration, list []*handle) {
	for _, h := range list {
		s.take(now, h)
	}
}

// Up reports that e can make requests (rtrs.ServerEnv.Up).
func (s *Server) Up(e *rtrs.ServerSession) {
	sess := &session{srv: s, rt: e, open: map[uint32]*handle{}}
	e.Ctx = sess
	s.sessions = append(s.sessions, sess)
}

// Down reports that e cannot make requests any more (rtrs.ServerEnv.Down). Its open volumes
// are closed; requests at the store end first. What waits for a volume ends now: it does
// nothing to a store, and the client's next session may wait for it.
func (s *Server) Down(now time.Duration, e *rtrs.ServerSession) {
	sess, _ := e.Ctx.(*session)
	if sess == nil || sess.down {
		return
	}
	sess.down = true
	s.sessions = slices.DeleteFunc(s.sessions, func(o *session) bool { return o == sess })
	for len(sess.handles) > 0 {
		s.close(now, sess.handles[0], nil)
	}
	s.giveUp(now, sess, func(w *waiting) bool { return !w.h.keeps() })
}

// Stale ends what waits for volumes and came on paths of e that have gone
// (rtrs.ServerEnv.Stale). The volumes are opened and closed all the same.
func (s *Server) Stale(now time.Duration, e *rtrs.ServerSession) {
	if sess, _ := e.Ctx.(*session); sess != nil {
		s.giveUp(now, sess, func(w *waiting) bool { return w.r.Stale() && !w.h.keeps() })
		// It may come back over another of its paths than that by which it has come.
		for _, h := range sess.handles {
			if h.store != nil && s.writesFrom(h) {
				s.env.Keep()
			}
		}
	}
}

// giveUp ends requests that wait for volumes.
func (s *Server) giveUp(now time.Duration, e *session, which func(w *waiting) bool) {
	for _, r := range e.take(which) {
		s.rt.Reply(now, r, 0, ErrNotOpen)
	}
}

// take takes the requests that match from those that wait for volumes.
func (e *session) take(which func(w *waiting) bool) (list []*rtrs.ServerReq) {
	e.waits = slices.DeleteFunc(e.waits, func(w waiting) bool {
		match := which(&w)
		if match {
			list = append(list, w.r)
		}
		return match
	})
	return list
}

// waiting takes the requests that wait for h.
func (h *handle) waiting() []*rtrs.ServerReq {
	return h.sess.take(func(w *waiting) bool { return w.h == h })
}

// keeps tells whether what waits for h, which is closed, waits for its opening all the same,
// because of too many nobody waits for the end. (Of one of those nothing waits.)
func (h *handle) keeps() bool { return h.state == handleClosing && h.opening != nil }

// wait has r answered with the end of h's opening or closing.
func (h *handle) wait(r *rtrs.ServerReq) { h.sess.waits = append(h.sess.waits, waiting{h, r}) }

// named finds the handle that the session has open, or is opening, under a name.
func (e *session) named(name string) *handle {
	for _, h := range e.handles {
		if h.name == name && h.state != handleForced {
			return h
		}
	}
	return nil
}

// Open lists the volumes that sessions have open.
func (s *Server) Open() []OpenInfo {
	var list []OpenInfo
	for _, sess := range s.sessions {
		for _, h := range sess.handles {
			if h.state == handleOpening {
				continue
			}
			list = append(list, h.info())
		}
	}
	return list
}

func (h *handle) info() OpenInfo {
	i := OpenInfo{Session: h.sess.rt, Name: h.name, Export: h.exp, Root: h.root, Access: h.access,
		DeviceID: h.id, Inflight: h.inflight, Since: h.since, Forced: h.state == handleForced}
	if h.store != nil {
		i.Device = h.store.dev
	}
	return i
}

// HasOpen reports whether a session has a volume open.
func (s *Server) HasOpen(e *rtrs.ServerSession) bool {
	for _, sess := range s.sessions {
		if sess.rt == e {
			return slices.ContainsFunc(sess.handles, func(h *handle) bool { return h.state != handleOpening })
		}
	}
	return false
}

// Exports lists the exports by name, in no particular order.
func (s *Server) Exports() []*Export {
	list := make([]*Export, 0, len(s.exports))
	for _, e := range s.exports {
		list = append(list, e)
	}
	return list
}

// Roots lists the export roots.
func (s *Server) Roots() []*Root { return slices.Clone(s.roots) }
