package volume

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// server is the shell of all sessions that come from other nodes: one lock for
// them, because what is exported is theirs in common.
type server struct {
	shell
	h  *Host
	rt *rtrs.Server
	rn *rnbd.Server

	// Guarded by mu.
	opened   map[netip.Addr]int // volumes that peers have open, or are opening
	places   map[any]*place     // where volumes are being opened and closed, by Opening.Place
	free     [][]*blk.Request   // room for batches
	sessions map[*rtrs.ServerSession]*serverSession
	lastID   uint64
	chunks   []byte                        // made by the last Alloc, until a session is Up
	pages    atomic.Pointer[[]*chunkPages] // of all sessions; replaced with mu held
	rationed []rationedReq                 // read requests that wait for memory
	adopted  []adoption                    // chunks of sessions, with what ends their use by links
	// lostKernels are sessions of kernels that will come back, by name, and when they were lost.
	lostKernels map[string]time.Time
	// counting are the stores that count, closedStores what others have counted (tally.go).
	counting     map[*counted]bool
	closedStores map[storeKey]*closedStores
	lastClosed   uint64

	pathBytes int64    // pathMemory of each path; set by newServer
	geo       geometry // of every session; set by newServer
	wanted    geometry // what is configured, if geo is what kernels know instead; set by newServer

	ready atomic.Bool // the start has entered all that is exported

	lmu       sync.Mutex
	listeners []transport.Listener // guarded by lmu
	listening bool                 // guarded by lmu
}

// serverSession is what is kept of a session beside the cores.
type serverSession struct {
	id     string
	peer   netip.AddrPort
	since  time.Time
	chunks []byte
	opened bool // a kernel's: it has opened a volume
}

const batchSize = 64 // requests submitted to a device at once

func newServer(h *Host, old *state) (*server, error) {
	s := &server{h: h, sessions: map[*rtrs.ServerSession]*serverSession{}, places: map[any]*place{}, opened: map[netip.Addr]int{}, lostKernels: map[string]time.Time{},
		counting: map[*counted]bool{}, closedStores: map[storeKey]*closedStores{}}
	s.takeGeometry(old.Kernels)
	c := &h.cfg
	rnd := h.random()
	var err error
	rc := rtrs.ServerConfig{
		QueueDepth: s.geo.QueueDepth, MaxIO: s.geo.MaxIO, MaxHdr: headerRoom, NoInvalidate: !*c.AlwaysInvalidate,
		HeartbeatEvery: c.Heartbeat, MissedLimit: c.MissedLimit, MaxSessions: c.MaxSessions, MaxPaths: maxPaths, MaxConns: c.MaxConnections,
	}
	if h.machine.Tune != nil {
		h.machine.Tune(nil, &rc)
	}
	s.pathBytes = pathMemory(rc.QueueDepth, rc.NoInvalidate)
	s.rt, err = rtrs.NewServer(rc, (*serverEnv)(s), rnd.Uint32(), h.now())
	if err != nil {
		return nil, err
	}
	s.rn = rnbd.NewServer(rnbd.ServerConfig{Boot: h.store.bootNumber(), Past: h.store.past(old), Forgot: old.Forgot, Held: h.store.held(old), Notes: h.cfg.StateDir != "", MaxVolumes: c.MaxExports}, (*exportEnv)(s), s.rt, rnd)
	s.init(h, func(now time.Duration) { s.rt.Tick(now) }, s.rt.Next, func() {
		now := s.lock(s.clock())
		s.due(now)
		s.finish(now)
	})
	h.work.Add(1) // until rt has ended
	return s, nil
}

// past is what a next Host must know of what this one serves.
func (s *server) past() (list []pastState, forgot uint32) {
	done := s.look()
	past := s.rn.Past()
	forgot = s.rn.Forgot()
	done()
	for i := range past {
		list = append(list, stateOfPast(&past[i]))
	}
	return list, forgot
}

// held is likewise what sessions have open, or have not closed.
func (s *server) held() (list []heldState) {
	done := s.look()
	held := s.rn.Held()
	done()
	for _, g := range held {
		list = append(list, heldState{g.Session, g.Name, g.ID.Dev, g.ID.Ino, g.ID.Block, g.Born, g.Where, g.Earlier, g.Reads})
	}
	slices.SortFunc(list, func(a, b heldState) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Name, b.Name), cmp.Compare(strconv.FormatBool(a.Reads), strconv.FormatBool(b.Reads)))
	})
	return list
}

// bootNumber is a number for this start of the machine; 0: for this start of the
// daemon, because nobody knows what it did before.
func (s *store) bootNumber() uint64 {
	if s.boot == "" || s.aside != nil {
		return 0
	}
	f := fnv.New64a()
	f.Write([]byte(s.boot))
	return f.Sum64()
}

// finish ends a step, with mu held, and hands what the step brought to the
// devices. What they complete at once is a step of its own, in Complete.
func (s *server) finish(now time.Duration) {
	for {
		var buf []*blk.Request
		if n := len(s.free); n > 0 {
			buf, s.free = s.free[n-1], s.free[:n-1]
		} else {
			buf = make([]*blk.Request, 0, batchSize)
		}
		s.tellCore()
		d, batch := s.rn.Next(now, buf) // it answers what it drops
		s.tellCore()
		if d == nil {
			s.free = append(s.free, buf)
		}
		var f flushes
		s.settle(now, &f)
		s.mu.Unlock()
		f.run()
		if d == nil {
			return
		}
		for _, r := range batch {
			r.Queue = s
		}
		d.Submit(batch)
		now = s.lock(s.clock())
		clear(batch)
		s.free = append(s.free, batch[:0])
	}
}

// Complete is called by devices.
func (s *server) Complete(batch []*blk.Request) {
	now := s.lock(s.clock())
	s.rn.Complete(now, batch)
	s.finish(now)
}

// listen offers the exports at the addresses of the configuration, once.
func (s *server) listen() error {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	if s.listening || s.h.cfg.Listen == ListenNever {
		return nil
	}
	for i := range s.h.transports {
		if err := s.listenOver(&s.h.transports[i]); err != nil {
			for _, l := range s.listeners {
				l.Close()
			}
			s.listeners = nil
			return err
		}
	}
	s.listening = true
	return nil
}

// listenOver offers them over one transport. lmu is held.
func (s *server) listenOver(via *Transport) error {
	for _, a := range s.h.cfg.Addresses {
		l, err := via.Provider.ListenOneSided(netip.AddrPortFrom(a, s.h.port(via)), func(r transport.ConnRequest) { s.accept(via, r) })
		switch {
		case err != nil && via.Port == 0:
			return fmt.Errorf("volumes.port: %w", err)
		case err != nil:
			return fmt.Errorf("volumes: over %s: %w", via.Name, err)
		}
		s.listeners = append(s.listeners, l)
	}
	return nil
}

// accept is called by the listener's goroutines.
func (s *server) accept(via *Transport, r transport.ConnRequest) {
	from := r.RemoteAddr().Addr().Unmap()
	if allow := s.h.cfg.Allow; len(allow) > 0 {
		ok := false
		for _, p := range allow {
			ok = ok || p.Contains(from)
		}
		if !ok {
			r.Reject(nil)
			s.h.ev.add(Event{Kind: EventSession, Role: RoleServer, State: "refused", Text: fmt.Sprintf("%v is not among the addresses of volumes.allow", from)})
			return
		}
	}
	if !s.ready.Load() {
		no := rtrswire.Reject(uint16(syscall.EAGAIN))
		r.Reject(no.Append(nil))
		return
	}
	a := &arrival{ConnRequest: r, via: via}
	if s.h.memory != nil {
		account := s.h.memory.Account(quota.Peer(from))
		var path int64
		if c, err := rtrswire.ParseConnReq(r.Private()); err == nil && c.Conn == 0 {
			path = s.pathBytes + rtrs.ConPlaceBytes*int64(c.Conns)
		}
		if err := s.charge(account, connBytes+path); err != nil {
			account.Close()
			no := rtrswire.Reject(uint16(syscall.ENOMEM))
			r.Reject(no.Append(nil))
			s.h.ev.add(Event{Kind: EventSession, Role: RoleServer, State: "refused", Err: err, Text: fmt.Sprintf("there is no memory for a connection of %v", from)})
			return
		}
		a.paid = account
		if path > 0 {
			a.path = pathCharge{s.h.memory.Account(quota.Peer(from)), path}
		}
	}
	now := s.lock(s.clock())
	s.rt.Connect(now, a, r.Private(), r.LocalAddr(), r.RemoteAddr())
	s.finish(now)
}

// charge takes the memory of one more connection. When it is spent, peers of datagrams that rest
// make room for one that holds little, as they do for a peer of datagrams that nobody knew:
// also where others hold all of the rest, the paths of a session come up. What one of them gives back
// is taken before the next one is asked: connections of strangers, who come at the same time and want
// less, would have each piece before there is enough. With twice what is wanted a peer has asked for all
// it gets; otherwise it would have all that rest forgotten, one by one.
func (s *server) charge(a *quota.Account, n int64) error {
	before := a.Used()
	err := a.Take(quota.Peers, n)
	if err == nil || s.h.evict == nil || before > littleBytes {
		return err
	}
	var have int64
	for range 2 * (1 + n/restBytes) {
		if !s.h.evict() {
			break
		}
		if err = a.Replace(quota.Peers, n-have); err == nil {
			return nil
		}
		if part := min(n-have, restBytes); a.Replace(quota.Peers, part) == nil {
			if have += part; have == n {
				return nil
			}
		}
	}
	a.Give(quota.Peers, have)
	return err
}

const (
	// littleBytes is what a peer may hold for whose connection room is made: the record of a peer
	// of datagrams, and a few paths.
	littleBytes = 256 << 10
	// restBytes is the least that one who rests gives back.
	restBytes = 16 << 10

	// connBytes is what a connection of a session is charged with: its descriptions in the cores,
	// in the shell and in the transport. What a transport keeps ready beside that is its own.
	connBytes = 4 << 10
	// keyBytes is what each key of a path takes beside its description: what a transport knows of
	// it, and its place in a table that is half full at most.
	keyBytes = 96
)

// pathMemory is what a path to chunks of so many is charged with beside its connections. It has a
// key to each, or one to all.
func pathMemory(depth int, oneKey bool) int64 {
	n := int64(depth) * rtrswire.DescLen
	if oneKey {
		return n + keyBytes
	}
	return n + int64(depth)*keyBytes
}

// pathCharge is what was taken for a path. It is taken with connection 0, and given back when all
// of the path's links have ended.
type pathCharge struct {
	paid *quota.Account // nil: nobody counts, or it was given back
	n    int64
}

func (c *pathCharge) give() {
	if c.paid != nil {
		c.paid.Give(quota.Peers, c.n)
		c.paid.Close()
		c.paid = nil
	}
}

// arrival is a connection that has come, from its request until it is refused or has ended.
type arrival struct {
	transport.ConnRequest
	via  *Transport
	paid *quota.Account // connBytes were taken from it; nil: nobody counts, or they were given back
	path pathCharge     // of connection 0, until it is accepted
}

// leave gives back what the connection was charged with.
func (a *arrival) leave() {
	a.path.give()
	if a.paid != nil {
		a.paid.Give(quota.Peers, connBytes)
		a.paid.Close()
		a.paid = nil
	}
}

// closeListeners ends them and what they have accepted but not handed on.
func (s *server) closeListeners() {
	s.lmu.Lock()
	list := s.listeners
	s.listeners, s.listening = nil, true
	s.lmu.Unlock()
	for _, l := range list {
		l.Close()
	}
}

// close begins the end of all sessions.
func (s *server) close() {
	s.closeListeners()
	now := s.lock(s.clock())
	s.rt.Close(now)
	// From here on no client hears anything, so none takes what follows for the
	// end of a volume.
	for _, x := range s.rn.Exports() {
		s.rn.ForceUnexport(now, x)
	}
	for _, r := range s.rn.Roots() {
		s.rn.ForceRemoveRoot(now, r)
	}
	s.finish(now)
}

// touch charges for memory of chunks that is about to be written. Any thread may
// call it.
func (s *server) touch(p []byte) error {
	l := s.pages.Load()
	if l == nil {
		return nil
	}
	for _, c := range *l {
		if off, ok := c.at(p); ok {
			return c.touch(off, len(p))
		}
	}
	return nil
}

// errNotYet is how a link knows quota.ErrRationed.
var errNotYet = fmt.Errorf("%w (%w)", quota.ErrRationed, transport.ErrNotYet)

// mayPlace is touch of memory that a peer writes.
func (s *server) mayPlace(p []byte) error {
	err := s.touch(p)
	if err != nil && errors.Is(err, quota.ErrRationed) {
		return errNotYet
	}
	return err
}

// rationedReq is a request that waits for pages to fill.
type rationedReq struct {
	r     *rtrs.ServerReq
	until time.Duration
}

const (
	rationEvery = 5 * time.Millisecond
	// rationWait is how long memory that is to be given back is waited for.
	rationWait = time.Second
	// rationMost is how many requests wait whose peer, or the node, has no memory for them.
	rationMost = 256
)

// ration has a request wait for memory. mu is held.
func (s *server) ration(r *rtrs.ServerReq) {
	if s.rationed = append(s.rationed, rationedReq{r, s.last + rationWait}); len(s.rationed) > 1 {
		return
	}
	s.work.Go(func() { // ends when none waits
		defer s.h.guard.Recover(guard.Step, nil)
		for more := true; more; {
			s.h.machine.Wait(rationEvery)
			now := s.lock(s.clock())
			list := s.rationed
			s.rationed = nil
			for i, w := range list {
				err := s.touch(w.r.Data)
				switch {
				case err == nil:
					s.rn.Request(now, w.r)
					continue
				case errors.Is(err, quota.ErrRationed) && now < w.until:
					s.rationed = append(s.rationed, list[i:]...)
				case errors.Is(err, rdserr.ErrNoMemory) && now < w.until: // others may have some
					s.rationed = append(s.rationed, w)
					continue
				default:
					s.rt.Reply(now, w.r, 0, err)
					continue
				}
				break
			}
			more = len(s.rationed) > 0
			s.finish(now)
		}
	})
}

// rest reports whether links are not to be read for a moment: memory of chunks is
// wanted that is not free yet.
func (s *server) rest() bool { return s.h.memory != nil && s.h.memory.Asked(quota.Chunks) }

// count begins to charge peer for the chunks of a session, if nobody is charged for them yet.
// mu is held.
func (s *server) count(mem []byte, peer netip.Addr) {
	if s.h.memory == nil || len(mem) == 0 {
		return
	}
	var old []*chunkPages
	if l := s.pages.Load(); l != nil {
		old = *l
	}
	for _, c := range old {
		if _, ok := c.at(mem); ok {
			return
		}
	}
	l := append([]*chunkPages{newChunkPages(mem, s.h.memory.Account(quota.Peer(peer)))}, old...)
	s.pages.Store(&l)
}

// uncount ends it.
func (s *server) uncount(mem []byte) {
	old := s.pages.Load()
	if old == nil {
		return
	}
	var l []*chunkPages
	for _, c := range *old {
		if _, ok := c.at(mem); ok {
			c.free()
		} else {
			l = append(l, c)
		}
	}
	s.pages.Store(&l)
}
