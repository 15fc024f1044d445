package rtrs

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Server serves the sessions of one listener, or of several.
type Server struct {
	cfg    ServerConfig
	chunks rtrswire.Chunks // of every session
	env    ServerEnv
	now    time.Duration
	due    time.Duration
	late   lateness
	busy   int // depth of calls

	paths    []*ServerPath          // in the order they came, until nothing of them can happen any more
	sessions []*ServerSession       // those that are down and not empty yet included
	of       map[uuid][]*ServerPath // the same paths by their session's number
	// pathEnded says that a path has ended since resumeWaiting looked at the fences that wait
	// for that, and at the paths that are Fencing.
	pathEnded  bool
	generation uint32 // of the last session
	keep       int    // keepTouched, but for tests
	// replaced are sessions whose client came back under another number: two that live
	// would replace each other for ever, so the older one is refused. The oldest of
	// numReplace is overwritten.
	replaced   [256]uuid
	numReplace int

	closed, told bool
	stats        ServerStats
	op           transport.Op // of the post being made, used again by the next
	tail         [64]byte
}

type uuid = [rtrswire.UUIDLen]byte

// ServerCon is one connection of a path, or a request to make one.
type ServerCon struct {
	Path *ServerPath // nil if it was refused
	Num  int
	Ctx  any // the shell's, as given to Connect
}

// ServerStats are numbers of a server as a whole.
type ServerStats struct {
	Sessions int
	Paths    int // those still connecting or draining included
	Inflight int // requests that Reply was not called for
	Refused  uint64
	Replaced uint64
	Fenced   uint64 // epochs that clients had fenced
	Violated uint64 // paths given up because the peer broke the protocol
}

// NewServer returns a server without a session. generation is a random number.
func NewServer(cfg ServerConfig, env ServerEnv, generation uint32, now time.Duration) (*Server, error) {
	cfg, chunks, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, chunks: chunks, env: env, now: now, due: Never, generation: generation, keep: keepTouched, of: map[uuid][]*ServerPath{}}, nil
}

func (s *Server) enter(now time.Duration) {
	s.now = max(s.now, now)
	s.busy++
}

func (s *Server) leave() {
	if s.busy == 1 {
		for s.pathEnded {
			s.resumeWaiting()
		}
		if s.closed && !s.told && len(s.paths) == 0 {
			s.told, s.due = true, Never
			s.env.Closed()
		}
	}
	s.busy--
}

func (s *Server) arm(t time.Duration) { s.due = min(s.due, max(t, s.now)) }

// Connect is a link's request to be let in, with the private data that it
// showed. ServerEnv.Accept or Reject is called from within, with a ServerCon
// that has ctx; the same is returned.
func (s *Server) Connect(now time.Duration, ctx any, req []byte, local, remote netip.AddrPort) *ServerCon {
	s.enter(now)
	defer s.leave()
	c := &ServerCon{Ctx: ctx}
	r, err := rtrswire.ParseConnReq(req)
	c.Num = int(r.Conn)
	errno := errnoReset
	if err == nil {
		// The mark is one that kernels ignore: only a client that shows it gets messages that a
		// kernel would not understand.
		errno, err = s.admit(c, &r, rtrswire.FencesSet(req), local, remote)
	}
	if err != nil {
		s.stats.Refused++
		s.event(Event{Kind: EventRefused, Err: err})
		rsp := rtrswire.Reject(errno)
		s.env.Reject(c, rsp.Append(nil))
		return c
	}
	rsp := rtrswire.ConnRsp{QueueDepth: uint16(s.chunks.Depth), MaxIOSize: s.chunks.MaxIO, MaxHdrSize: s.chunks.MaxHdr, Flags: rtrswire.Fences}
	if !s.cfg.NoInvalidate {
		rsp.Flags |= rtrswire.NewRKey
	}
	s.env.Accept(c, s.attr(), rsp.Append(nil))
	return c
}

// attr is what a connection is to be made for: a request in each chunk, and an answer of up to
// three operations and a key to each.
func (s *Server) attr() transport.LinkAttr {
	depth := int(s.chunks.Depth)
	return transport.LinkAttr{Sends: 4*depth + spareOps, Recvs: depth + spareOps}
}

// RecvBytes is how long a message on the connection may be.
func (c *ServerCon) RecvBytes() int {
	if c.Num > 0 {
		return 0 // requests are writes
	}
	return rtrswire.InfoReqLen // FENCE and RESTED are shorter
}

// admit finds or makes the path of c. Older attempts of it are given up: the client would
// not connect it if it had not lost them.
func (s *Server) admit(c *ServerCon, r *rtrswire.ConnReq, fences bool, local, remote netip.AddrPort) (errno uint16, err error) {
	if s.closed {
		return errnoShutdown, ErrClosed
	}
	// Its name was taken over by another one. Let in, it would take it back, and so on.
	if slices.Contains(s.replaced[:min(s.numReplace, len(s.replaced))], r.Session) {
		return errnoReplaced, ErrReplaced
	}
	// One walk: is the session known, how many other paths has it, and is one of them between the
	// same addresses; how many are there that have not said whose they are; and is the attempt under
	// way that this is another connection of.
	var mine *ServerPath
	known, others, same, unnamed, from := false, 0, false, 0, 0
	for _, p := range s.paths {
		switch {
		case p.session != r.Session:
			if p.ses == nil {
				unnamed++
				if p.Remote.Addr() == remote.Addr() {
					from++
				}
			}
		case p.uuid != r.Path:
			others++
			known = known || p.state == Connected
			same = same || p.state < Closing && p.Local.Addr() == local.Addr() && p.Remote.Addr() == remote.Addr()
		case p.attempt == r.Attempt:
			// Its connections have to be of the same shape, from the same address, and not made yet.
			if p.state != Connecting || int(r.Conn) >= len(p.cons) || len(p.cons) != int(r.Conns) || p.cons[r.Conn].ServerCon != nil || p.Remote.Addr() != remote.Addr() {
				return errnoReset, fmt.Errorf("%w: connection %d of %d of a path that is %v and has %d", ErrProtocol, r.Conn, r.Conns, p.state, len(p.cons))
			}
			mine = p
		// Attempts wrap around at 16 bits, so the sign of the difference says which is the
		// newer.
		case int16(r.Attempt-p.attempt) < 0:
			return errnoReset, rdserr.With(rdserr.ErrReset, "attempt %d to connect a path came late, it is at %d", r.Attempt, p.attempt)
		default:
			known = known || p.state == Connected
		}
	}
	load := s.load(remote.Addr())
	if mine != nil {
		if !s.makeRoom(load, remote.Addr(), mine) {
			return errnoTooMany, rdserr.With(ErrTooMany, "connection %d of a path of %d, %v: too many", r.Conn, r.Conns, load)
		}
		mine.add(c)
		if !mine.fences {
			// A kernel takes its time for each of them. The Tick of the time before arms this one.
			mine.at = s.now + mine.patience()
		}
		return 0, nil
	}
	// A path that has not yet named its session costs its sender nothing: one address may have at
	// most half of the places, and of the connections.
	most, n := max(64, s.cfg.MaxSessions), int(r.Conns)
	switch {
	case others >= s.cfg.MaxPaths || from >= most/2:
		return errnoTooMany, rdserr.With(ErrTooMany, "%d other paths, and %d from %v that are not of any session yet: too many", others, from, remote.Addr())
	case load.sure+n > load.most || load.sureFrom+n > load.mostFrom:
		return errnoTooMany, rdserr.With(ErrTooMany, "a path of %d connections, %v: too many", n, load)
	case r.Conn != 0:
		return errnoReset, rdserr.With(rdserr.ErrReset, "connection %d of a path whose connection 0 was lost, or never made", r.Conn)
	// A path that leads to the wrong server by mistake must not begin a session here.
	case !r.FirstConn && !known:
		return errnoUnknown, rdserr.With(rdserr.ErrNotFound, "another path of a session that is not here")
	// As a kernel's server does, which a kernel's administrator is told: a second path between
	// the same addresses shares the fate of the first. An rdsd may have one for each transport.
	case same && !fences:
		return errnoExists, rdserr.With(ErrExists, "a second path of a session from %v to %v", remote.Addr(), local.Addr())
	// Last: who is refused anyway costs nobody a place.
	case unnamed >= most && !s.crowdOut(from):
		return errnoTooMany, rdserr.With(ErrTooMany, "%d paths are not of any session yet: too many", unnamed)
	}
	// Who was crowded out has made room for connections, too.
	if load = s.load(remote.Addr()); !s.makeRoom(load, remote.Addr(), nil) {
		return errnoTooMany, rdserr.With(ErrTooMany, "%v: too many", load)
	}
	for _, p := range s.paths {
		if p.session == r.Session && p.uuid == r.Path && p.state < Closing {
			p.lose(nil)
		}
	}
	p := &ServerPath{Local: local, Remote: remote, s: s, session: r.Session, uuid: r.Path, attempt: r.Attempt, fences: fences,
		state: Connecting, since: s.now, cons: make([]serverCon, r.Conns)}
	p.at = s.now + p.patience()
	p.add(c)
	s.paths = append(s.paths, p)
	s.of[p.session] = append(s.of[p.session], p)
	s.arm(p.at)
	return 0, nil
}

// crowdOut gives up the oldest path that is of no session yet, of the address that has most of them,
// and reports whether it did. Over a device nobody tells of a client that is no more, so that its
// paths stay for as long as a slow one may take. The address of the newcomer has from of them: who has
// as many is not made room for. Where nobody has more than one, as with requests in many false
// names, the oldest makes room for a first one that has shown nothing yet but the wish to be made.
func (s *Server) crowdOut(from int) bool {
	of := map[netip.Addr]int{}
	for _, p := range s.paths {
		if p.ses == nil && p.state < Closing {
			of[p.Remote.Addr()]++
		}
	}
	var oldest *ServerPath
	for _, p := range s.paths { // the oldest first
		if p.ses == nil && p.state < Closing && (oldest == nil || of[p.Remote.Addr()] > of[oldest.Remote.Addr()]) {
			oldest = p
		}
	}
	if oldest != nil && from == 0 && of[oldest.Remote.Addr()] == 1 {
		oldest = s.unproven(netip.Addr{}, nil)
	} else if oldest != nil && of[oldest.Remote.Addr()] <= from+1 {
		oldest = nil
	}
	if oldest == nil {
		return false
	}
	oldest.lose(rdserr.With(ErrTooMany, "made room: %v has %d paths that are of no session yet", oldest.Remote.Addr(), of[oldest.Remote.Addr()]))
	return true
}

// load is how many connections were made, in all and from one address, how many of those are of
// paths that nobody makes room with, and how many there may be.
type load struct{ all, from, sure, sureFrom, most, mostFrom int }

func (l load) String() string {
	return fmt.Sprintf("beside %d connections, of them %d from its address, where %d and %d are allowed", l.all, l.from, l.most, l.mostFrom)
}

// load counts those that were made, not those that were announced: to announce 4,096 costs one
// packet, and over a device that one may come in anybody's name. What is being closed of a path
// that never was of a session is as good as gone.
func (s *Server) load(from netip.Addr) load {
	l := load{most: s.cfg.MaxConns, mostFrom: (s.cfg.MaxConns + 1) / 2}
	for _, p := range s.paths {
		if p.ses == nil && p.state >= Closing {
			continue
		}
		sure, his := p.state != Connecting, p.Remote.Addr() == from
		l.all += p.made
		if sure {
			l.sure += p.made
		}
		if his {
			l.from += p.made
		}
		if sure && his {
			l.sureFrom += p.made
		}
	}
	return l
}

// makeRoom reports whether there is room for one more connection from an address, of path p, or of
// a new one. Where there is none, the oldest path that has shown nothing yet is given up: of that
// address if it has its share.
func (s *Server) makeRoom(l load, from netip.Addr, p *ServerPath) bool {
	var oldest *ServerPath
	switch {
	case l.from >= l.mostFrom:
		oldest = s.unproven(from, p)
	case l.all >= l.most:
		oldest = s.unproven(netip.Addr{}, p)
	default:
		return true
	}
	if oldest == nil {
		return false
	}
	oldest.lose(rdserr.With(ErrTooMany, "made room with %d connections: %v", oldest.made, l))
	return true
}

// unproven is the oldest path, but one, that has not brought an INFO_REQ, which takes a client that
// hears what is answered: of an address, or of any. nil: there is none.
func (s *Server) unproven(of netip.Addr, but *ServerPath) *ServerPath {
	for _, p := range s.paths {
		if p.state == Connecting && p != but && (!of.IsValid() || p.Remote.Addr() == of) {
			return p
		}
	}
	return nil
}

// Sessions and Paths are those there are. The slices are new.
func (s *Server) Sessions() (live []*ServerSession) {
	for _, e := range s.sessions {
		if !e.down {
			live = append(live, e)
		}
	}
	return live
}

// Each calls f for every request that has its chunk and was not replied to, those of lost sessions too.
func (s *Server) Each(f func(r *ServerReq)) {
	for _, e := range s.sessions {
		for i := 0; e.active > 0 && i < len(e.chunks); i++ {
			if r := e.chunks[i].req; r != nil {
				f(r)
			}
		}
	}
}

// Paths returns the paths there are; see Sessions.
func (s *Server) Paths() []*ServerPath { return slices.Clone(s.paths) }

// Stats are the numbers of the server.
func (s *Server) Stats() ServerStats {
	t := s.stats
	t.Sessions, t.Paths = len(s.sessions), len(s.paths)
	for _, p := range s.paths {
		t.Inflight += p.inflight
	}
	return t
}

// Disconnect gives p up; the client may connect it again.
func (s *Server) Disconnect(now time.Duration, p *ServerPath) {
	s.enter(now)
	if p.state < Closing {
		p.lose(nil)
	}
	s.leave()
}

// Close gives everything up; then ServerEnv.Closed, when all links are closed
// and every request was replied to. Connect refuses from now on.
func (s *Server) Close(now time.Duration) {
	if s.closed {
		return
	}
	s.enter(now)
	s.closed = true
	for _, p := range s.paths {
		if p.state < Closing {
			p.lose(nil)
		}
	}
	s.leave()
}

// Tick carries out everything that is due; see Client.Tick.
func (s *Server) Tick(now time.Duration) (next time.Duration) {
	s.enter(now)
	if s.late.tick(&s.due, s.now, s.cfg.HeartbeatEvery) {
		s.leave()
		return s.due
	}
	s.due = Never
	for _, p := range s.paths {
		p.tick(s.now)
	}
	for _, e := range s.sessions {
		e.tick(s.now)
	}
	s.leave()
	return s.due
}

// Next is when Tick is to be called; it may be earlier than the last Tick said.
func (s *Server) Next() time.Duration { return s.due }

func (s *Server) event(e Event) {
	if e.Server != nil {
		e.Name = e.Server.name
	}
	s.env.Event(e)
}
