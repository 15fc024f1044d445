package simtest

import (
	"time"
	"unsafe"

	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
)

// volShell is what both ends of sessions have in common: a core that lives in a
// process of a node, its timer and its links. It is the shell of node/volume
// without threads.
type volShell struct {
	v     *volumes
	n     *node
	epoch int // of the node
	dead  bool
	busy  bool
	core  interface {
		Tick(now time.Duration) time.Duration
		Next() time.Duration
	}
	drain func() bool // does what the cores hand out; false: there was nothing
	dirty []*volLink
	tell  []func()
	links []*volLink // of all paths, those that are gone too
	armed time.Duration
	timer int
}

func (s *volShell) begin(v *volumes, n *node, drain func() bool) {
	*s = volShell{v: v, n: n, epoch: n.epoch, drain: drain, armed: rtrs.Never}
}

// guard makes an event of this process; see node.guard.
func (s *volShell) guard(f func()) func() {
	return s.n.guard(func() {
		if !s.dead {
			f()
		}
	})
}

// settle ends a call into the cores: what they handed out is done, links are
// flushed, the timer is set.
func (s *volShell) settle() {
	if s.busy || s.dead {
		return
	}
	s.busy = true
	for more := true; more; {
		more = len(s.tell) > 0
		tell := s.tell
		s.tell = nil
		for _, f := range tell {
			f()
		}
		more = s.drain() || more
	}
	dirty := s.dirty
	s.dirty = nil
	for _, k := range dirty {
		k.dirty = false
		k.l.Flush()
	}
	s.busy = false
	if at := s.core.Next(); at < s.armed {
		s.armed = at
		s.timer++
		my := s.timer
		late := s.v.w.upTo(time.Millisecond) // a scheduler
		s.v.w.At(at+late, s.guard(func() {
			if s.timer == my {
				s.armed = rtrs.Never
				s.core.Tick(s.v.w.Now())
				s.settle()
			}
		}))
	}
}

// corePath is a path of either end.
type corePath interface {
	Lost(now time.Duration, conn int, err error)
	Gone(now time.Duration)
	Written(now time.Duration, conn int, key uint32, addr uint64, n int, imm uint32) error
	Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) error
	Invalidated(now time.Duration, conn int, key uint32, filled int) error
}

// volLife is one life of a path: its domain and links.
type volLife struct {
	s     *volShell
	path  corePath
	dom   transport.Domain
	links []*volLink
	open  int
	hung  bool
	told  bool
	keys  map[uint32]*byte // what peers may write: where it begins, by key
}

func newVolLife(s *volShell, p corePath, host *sim.Host) *volLife {
	return &volLife{s: s, path: p, dom: sim.NewOneSided(host).NewDomain(), keys: map[uint32]*byte{}}
}

func (f *volLife) register(b []byte) (key uint32, addr uint64) {
	key, addr = f.dom.Register(b)
	f.keys[key] = unsafe.SliceData(b)
	return key, addr
}

func (f *volLife) renew(b []byte, addr uint64) (key uint32) {
	key = f.dom.RegisterAt(b, addr)
	f.keys[key] = unsafe.SliceData(b)
	return key
}

func (f *volLife) revoke(key uint32) bool {
	delete(f.keys, key)
	return f.dom.Revoke(key)
}

func (f *volLife) takeKey(key uint32) (filled int, idle bool) {
	delete(f.keys, key)
	return f.dom.Take(key)
}

// writable tells whether a peer may write to where b begins.
func (f *volLife) writable(b []byte) bool {
	for _, p := range f.keys {
		if p == unsafe.SliceData(b) && !f.told {
			return true
		}
	}
	return false
}

// reads tells whether a link that is being closed may still read b.
func (f *volLife) reads(b []byte) bool {
	for _, k := range f.links {
		if k != nil && f.hung && !k.closed && k.posted[unsafe.SliceData(b)] {
			return true
		}
	}
	return false
}

// take starts l as connection conn.
func (f *volLife) take(conn int, l transport.OneSided) {
	for conn >= len(f.links) {
		f.links = append(f.links, nil)
	}
	k := &volLink{f: f, conn: conn, l: l, posted: map[*byte]bool{}}
	f.links[conn] = k
	f.s.links = append(f.s.links, k)
	f.open++
	l.Start(k)
	// A frozen process reads nothing.
	e := l.(interface{ End() *sim.End }).End()
	if e.Readable != nil {
		e.Readable, e.Writable = f.s.guard(e.Readable), f.s.guard(e.Writable)
	}
}

func (f *volLife) post(conn int, op *transport.Op) {
	if conn >= len(f.links) || f.links[conn] == nil {
		return // as after its end
	}
	k := f.links[conn]
	k.l.Post(op)
	if op.Data != nil {
		k.posted[unsafe.SliceData(op.Data)] = true
	}
	if !k.dirty {
		k.dirty = true
		f.s.dirty = append(f.s.dirty, k)
	}
}

func (f *volLife) hang() {
	if f.hung {
		f.s.v.w.fail("a path is hung up twice")
	}
	f.hung = true
	for _, k := range f.links {
		if k != nil { // the transport is told by another thread
			f.s.v.w.After(f.s.v.w.upTo(5*time.Millisecond), f.s.guard(k.l.Close))
		}
	}
	f.check()
}

// check tells the core when all has ended. Dials that are under way end by
// themselves: nothing is ever posted to what they bring.
func (f *volLife) check() {
	if f.hung && !f.told && f.open == 0 {
		f.told = true
		f.s.tell = append(f.s.tell, func() {
			f.dom.Close()
			f.path.Gone(f.s.v.w.Now())
		})
	}
}

// volLink is the handler of one connection.
type volLink struct {
	f     *volLife
	conn  int
	l     transport.OneSided
	dirty bool

	posted map[*byte]bool // where the data begins of what was posted
	closed bool
}

func (k *volLink) Begin() {}

func (k *volLink) Written(key uint32, addr uint64, n int, imm uint32) error {
	w := k.f.s.v.w
	w.mix(21, uint64(k.conn), uint64(n), uint64(imm))
	return k.f.path.Written(w.Now(), k.conn, key, addr, n, imm)
}

func (k *volLink) Received(data []byte, imm uint32, hasImm bool) error {
	w := k.f.s.v.w
	w.mix(22, uint64(k.conn), uint64(len(data)), uint64(imm))
	return k.f.path.Received(w.Now(), k.conn, data, imm, hasImm)
}

func (k *volLink) Invalidated(key uint32, filled int) error {
	delete(k.f.keys, key)
	return k.f.path.Invalidated(k.f.s.v.w.Now(), k.conn, key, filled)
}

func (k *volLink) End() { k.f.s.settle() }

func (k *volLink) Closed(err error) {
	k.f.s.guard(func() {
		f := k.f
		f.open--
		k.closed, k.posted = true, nil
		if !f.hung {
			f.path.Lost(f.s.v.w.Now(), k.conn, err)
		}
		f.check()
		f.s.settle()
	})()
}
