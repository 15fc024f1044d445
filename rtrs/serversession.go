package rtrs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// ServerSession is a client with its chunks, from its first connected path to
// the loss of the last. One that comes back afterwards is another one.
type ServerSession struct {
	Name string // the client's name for it
	Ctx  any    // the user's

	s          *Server
	uuid       uuid
	kernel     bool   // its first path does not fence
	generation uint32 // which of the sessions of this name it is; by it the client sees whether its chunks still exist

	// Invariant: up is how many of paths are Connected; down is set when it falls to 0,
	// for good, and the session ends with the last of paths.

	paths []*ServerPath // that are or were connected
	addrs []netip.Addr  // where its paths come from, gone ones included: a client there may replace it
	up    int
	down  bool

	fences []pendingFence // came on its paths, and wait for the end of the attempts they are about

	// Chunks, and the requests in them: at most one in each.
	//
	// Invariant: active is how many chunks have a request, and touched the sum of the bytes
	// touched in each.

	mem     []byte
	chunks  []chunk
	spare   []*ServerReq  // to be used again
	seq     uint64        // of the last request
	active  int           // requests that Reply was not called for
	pinned  bool          // a link has adopted mem: its pages stay, and are not given back
	used    time.Duration // when the last request of smallUse or more ended
	touched int           // bytes of the chunks that have pages
}

// chunk is one piece of a session's memory.
type chunk struct {
	req     *ServerReq // that is in it
	next    *ServerReq // the same of another path, which begins when req was replied to (failOver)
	touched uint32     // bytes from its beginning that were used since the last trim
}

// keepTouched is how many bytes of an idle session's chunks keep their pages.
const keepTouched = 256 << 10

// smallUse is the least data of a request that counts as use of the chunks: less
// have the questions that clients ask every few seconds, idle or not.
const smallUse = 4 << 10

// newSession makes the session of p.
func (s *Server) newSession(p *ServerPath) *ServerSession {
	mem := s.env.Alloc(int(s.chunks.Depth) * int(s.chunks.Size()))
	if mem == nil {
		return nil
	}
	if s.generation++; s.generation == 0 {
		s.generation++
	}
	e := &ServerSession{Name: p.name, s: s, uuid: p.session, kernel: !p.fences, generation: s.generation, mem: mem,
		chunks: make([]chunk, s.chunks.Depth), used: s.now}
	s.sessions = append(s.sessions, e)
	return e
}

// admit lets p, which is to join, write the chunks: it fills in p's keys.
func (e *ServerSession) admit(p *ServerPath) error {
	s := e.s
	pinned, err := s.env.Adopt(p, e.mem)
	if err != nil {
		return err
	}
	e.pinned = e.pinned || pinned
	p.keys = make([]rtrswire.Desc, s.chunks.Depth)
	size := s.chunks.Size()
	// One key for all chunks: nothing is revoked, and the client can write whenever it likes.
	if s.cfg.NoInvalidate {
		key, addr := s.env.Register(p, e.mem)
		if key == 0 {
			p.keys = nil
			return rdserr.With(rdserr.ErrNoMemory, "the device has no room to register them")
		}
		for i := range p.keys {
			p.keys[i] = rtrswire.Desc{Addr: addr + uint64(i)*uint64(size), Key: key, Len: size}
		}
		return nil
	}
	for i := range p.keys {
		// On the connection of the INFO_RSP: the client has no use of a key before that.
		key, addr := s.env.Grant(p, 0, e.chunk(uint32(i)), 0)
		p.keys[i] = rtrswire.Desc{Addr: addr, Key: key, Len: size}
	}
	return nil
}

// Kernel reports whether the client is a kernel, which understands none of our own messages.
func (e *ServerSession) Kernel() bool { return e.kernel }

// UUID is the session's number.
func (e *ServerSession) UUID() [16]byte { return e.uuid }

// Addrs are where its paths came from, gone ones included. The slice is new.
func (e *ServerSession) Addrs() []netip.Addr { return slices.Clone(e.addrs) }

// Paths are those that are or were connected and have not ended. The slice is new.
func (e *ServerSession) Paths() []*ServerPath { return slices.Clone(e.paths) }

// chunk is the memory of chunk i.
func (e *ServerSession) chunk(i uint32) []byte {
	n := e.s.chunks.Size()
	at := int(i) * int(n)
	return e.mem[at : at+int(n) : at+int(n)]
}

// join connects p.
func (e *ServerSession) join(p *ServerPath) {
	s := e.s
	p.ses = e
	e.paths = append(e.paths, p)
	// Addresses of paths that are gone count too: a client that was started again may come
	// from any of them, and take its name over.
	if a := p.Remote.Addr(); !slices.Contains(e.addrs, a) {
		if len(e.addrs) >= rtrswire.MaxPaths {
			e.addrs = slices.Delete(e.addrs, 0, 1)
		}
		e.addrs = append(e.addrs, a)
	}
	p.setState(Connected)
	p.beat.start(s.now, p.pulse())
	s.arm(p.beat.next)
	// Before the INFO_RSP: requests may follow that at once.
	if e.up++; e.up == 1 {
		s.event(Event{Kind: EventUp, Server: p, Generation: e.generation})
		s.env.Up(e)
	}
	descs := p.keys
	if s.cfg.NoInvalidate { // one key for all
		descs = []rtrswire.Desc{{Addr: p.keys[0].Addr, Key: p.keys[0].Key, Len: uint32(len(e.mem))}}
	}
	b := rtrswire.AppendInfoRsp(nil, descs)
	if p.fences {
		rtrswire.SetGeneration(b, e.generation)
	}
	s.op = transport.Op{Kind: transport.OpSend, Data: b}
	p.post(0, &s.op)
	s.op.Data = nil
}

// leave counts p as no longer connected. The user is told, with the last path Down, before
// anything is done about requests of p.
func (e *ServerSession) leave(p *ServerPath) {
	for i := range e.chunks {
		c := &e.chunks[i]
		if r := c.req; r != nil && r.Path == p {
			// Requests at the store go on; those that wait for it need not begin (Stale).
			r.stale = true
		}
		// One that waits for its chunk has not begun, and never does.
		if r := c.next; r != nil && r.Path == p {
			c.next = nil
			e.discard(r)
		}
	}
	if e.up--; e.up == 0 {
		e.down = true
		e.s.event(Event{Kind: EventDown, Server: p, Generation: e.generation})
		e.s.env.Down(e)
	} else {
		e.s.env.Stale(e)
	}
}

// free ends e when nothing of it is left.
func (e *ServerSession) free() {
	if e.down && len(e.paths) == 0 {
		e.drop()
	}
}

// drop takes e, which has no path, out of the server.
func (e *ServerSession) drop() {
	s := e.s
	s.sessions = slices.DeleteFunc(slices.Clone(s.sessions), func(x *ServerSession) bool { return x == e })
	s.env.Free(e.mem)
	e.mem = nil
}

// tick gives the pages of an idle session back. The client is asked first, because it may
// be writing into a chunk right now, which the server cannot see.
func (e *ServerSession) tick(now time.Duration) {
	if e.down || e.active > 0 || e.touched <= e.s.keep || e.pinned {
		return
	}
	at := e.used + e.s.cfg.TrimAfter
	for _, p := range e.paths {
		// There is one question at a time, on any path.
		if p.asked {
			return
		}
		if p.state == Connected && p.fences && at <= now {
			p.asked = true
			p.notice(rtrswire.RestType, 0)
			return
		}
	}
	if at > now {
		e.s.arm(at)
	}
}

// onRested takes the client's answer to a REST: that it sends nothing until it is woken
// (ok), or that it has something to send (not ok). A request it sent before on a path that
// is closing might still be on its way into a chunk.
func (e *ServerSession) onRested(p *ServerPath, ok bool) {
	if !ok {
		e.later()
		return
	}
	for _, q := range e.paths {
		ok = ok && q.state == Connected
	}
	if ok && e.active == 0 && !e.pinned {
		e.trim()
	} else {
		e.later()
	}
	// In any case the client sends nothing until it gets this.
	p.notice(rtrswire.WakeType, 0)
}

// later tries again when the time has passed once more.
func (e *ServerSession) later() {
	e.used = e.s.now
	e.s.arm(e.used + e.s.cfg.TrimAfter)
}

func (e *ServerSession) trim() {
	for i := range e.chunks {
		if c := &e.chunks[i]; c.touched > 0 {
			e.s.env.Trim(e.chunk(uint32(i))[:c.touched])
			c.touched = 0
		}
	}
	e.touched = 0
}

// touch notes that the first n bytes of c have pages now.
func (e *ServerSession) touch(c *chunk, n uint32) {
	if n > c.touched {
		e.touched += int(n - c.touched)
		c.touched = n
	}
}
