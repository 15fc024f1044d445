package rtrs

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// The simulator: both ends, links, a store and applications in virtual time,
// all from one seed. This file is the clock and the network.

// world is one run. It fails by panic(violation), which run catches.
type world struct {
	rnd   *rand.Rand
	now   time.Duration
	order int // counts events, and whatever else needs a place in time
	queue events
	wires []*cable
	trace *strings.Builder // nil: not kept
	keys  uint32
	moves map[move]bool
	grid  time.Duration // not 0: what takes time takes whole multiples of it, so that things meet
}

// move is a change of a path's state at one end.
type move struct {
	client   bool
	from, to State
}

type violation string

func (w *world) fail(format string, args ...any) {
	panic(violation(fmt.Sprintf("%v: ", w.now) + fmt.Sprintf(format, args...)))
}

func (w *world) note(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%12v ", w.now)
		fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

// digest stands for bytes in what is noted.
func digest(b []byte) uint32 {
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}

type event struct {
	at  time.Duration
	seq int
	f   func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

func (w *world) at(t time.Duration, f func()) {
	w.order++
	heap.Push(&w.queue, event{max(t, w.now), w.order, f})
}

func (w *world) after(d time.Duration, f func()) { w.at(w.now+d, f) }

// step runs the next event; false: there is none up to limit.
func (w *world) step(limit time.Duration) bool {
	if len(w.queue) == 0 || w.queue[0].at > limit {
		w.now = max(w.now, limit)
		return false
	}
	e := heap.Pop(&w.queue).(event)
	w.now = e.at
	e.f()
	return true
}

func (w *world) runUntil(t time.Duration) {
	for w.step(t) {
	}
}

// upTo is a duration below d, mostly much smaller.
func (w *world) upTo(d time.Duration) time.Duration {
	t := time.Duration(float64(d) * w.rnd.Float64() * w.rnd.Float64())
	if w.grid > 0 {
		t = t.Truncate(w.grid)
	}
	return t
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

// cable is what one path runs over.
type cable struct {
	w     *world
	name  string
	delay time.Duration // longest, of a message
	cut   [2]bool       // what is sent towards the client (0), the server (1) waits
	times [2]int        // it was cut or not
	ends  []*end
	dev   device // what its ends are
}

func (x *cable) set(dir int, cut bool) {
	if x.cut[dir] == cut {
		return
	}
	x.cut[dir] = cut
	x.times[dir]++
	x.w.note("wire %s direction %d cut: %v", x.name, dir, cut)
	if !cut {
		x.ends = slices.DeleteFunc(x.ends, func(e *end) bool { return e.over() })
		for _, e := range x.ends {
			e.pump()
		}
	}
}

// message is an op that has left: its bytes are copied.
type message struct {
	op    transport.Op
	bytes []byte
	fin   bool
	ready time.Duration
}

// end is one end of a link.
type end struct {
	w       *world
	wire    *cable
	dir     int // of what it sends
	peer    *end
	dom     *domain
	h       endHandler
	out     []transport.Op // posted; Data is still the poster's
	leaving bool           // an event will send the first of out
	pipe    []message      // on the way to the peer
	pumping bool
	partial *region // being written by what arrives, half of it is placed
	closing bool
	closed  bool // nothing is read or written here any more
	dead    bool // its process has died
	sentAt  time.Duration
}

type endHandler interface {
	sent(n int)
	written(w transport.Placed) error
	received(data []byte, imm uint32, hasImm bool) error
	invalidated(key uint32, filled int) error
	revoked(key uint32, filled int) error
	ended(err error)
}

func newPair(x *cable, client, server *domain) (c, s *end) {
	c = &end{w: x.w, wire: x, dir: 1, dom: client}
	s = &end{w: x.w, wire: x, dir: 0, dom: server, peer: c}
	c.peer = s
	x.ends = append(x.ends, c, s)
	return c, s
}

func (e *end) over() bool { return e.closed && len(e.pipe) == 0 }

func (e *end) post(op *transport.Op) {
	if e.closing || e.closed {
		return
	}
	o := *op
	o.Tail = append([]byte(nil), op.Tail...)
	e.out = append(e.out, o)
	e.leave()
}

// leave has what is posted read out of its memory, one after the other, some
// time later.
func (e *end) leave() {
	if e.leaving || len(e.out) == 0 {
		return
	}
	e.leaving = true
	e.w.after(e.w.upTo(300*time.Microsecond), func() {
		e.leaving = false
		if e.closed || len(e.out) == 0 {
			return
		}
		op := e.out[0]
		e.out = e.out[1:]
		e.send(message{op: op, bytes: append(append([]byte(nil), op.Data...), op.Tail...)})
		e.hasLeft(op.Data)
		e.leave()
	})
}

// hasLeft has an operation count as sent, after a while with a slow device: until then it
// may be sent again, and its memory has to be what it was. (A server's is its client's to
// write when that has the answer, which is behind it: sent again it is a duplicate.)
func (e *end) hasLeft(data []byte) {
	if !e.wire.dev.slow {
		e.h.sent(1)
		return
	}
	was := digest(data)
	e.sentAt = max(e.sentAt, e.w.now+e.w.upTo(3*time.Millisecond))
	e.w.at(e.sentAt, func() {
		switch {
		case e.closed:
		case digest(data) != was && e.dir == 1:
			e.w.fail("D7: memory was used again before its operation was sent")
		default:
			e.h.sent(1)
		}
	})
}

func (e *end) send(m message) {
	e.w.note("%s %d: kind %d key %#x addr %#x imm %#x, %d bytes %#x, end %v", e.wire.name, e.dir, m.op.Kind, m.op.Key, m.op.Addr, m.op.Imm, len(m.bytes), digest(m.bytes), m.fin)
	m.ready = e.w.now + e.w.upTo(e.wire.delay)
	e.pipe = append(e.pipe, m)
	e.pump()
}

// pump delivers what is in the pipe, in order, unless the wire is cut.
func (e *end) pump() {
	if e.pumping || len(e.pipe) == 0 || e.wire.cut[e.dir] {
		return
	}
	e.pumping = true
	e.w.at(e.pipe[0].ready, func() {
		e.pumping = false
		if len(e.pipe) == 0 || e.wire.cut[e.dir] {
			return
		}
		e.deliver()
	})
}

// deliver brings the first message to the peer, perhaps in two parts.
func (e *end) deliver() {
	m, p := &e.pipe[0], e.peer
	done := func() {
		e.pipe = e.pipe[1:]
		e.pump()
	}
	switch {
	case p.dead && !m.fin: // nobody knows the connection there: the answer is a reset
		e.pipe = nil
		if !e.closed {
			e.w.after(e.w.upTo(e.wire.delay), func() { e.end(io.ErrUnexpectedEOF) })
		}
	case p.closed:
		done()
	case m.fin:
		p.end(io.EOF)
		done()
	case m.op.Kind == transport.OpWrite || m.op.Kind == transport.OpWriteImm:
		var dst []byte
		if len(m.bytes) > 0 {
			r := p.dom.find(m.op.Key)
			if r == nil || m.op.Addr < r.addr || m.op.Addr+uint64(len(m.bytes)) > r.addr+uint64(len(r.b)) {
				e.w.fail("a write of %d bytes at %#x with key %#x on %s, which is not there", len(m.bytes), m.op.Addr, m.op.Key, e.wire.name)
			}
			dst = r.b[m.op.Addr-r.addr:][:len(m.bytes)]
			if e.w.chance(0.2) { // in two parts
				p.partial = r
				r.busy++
				half := e.w.rnd.Intn(len(dst))
				copy(dst[:half], m.bytes)
				e.pumping = true
				e.w.after(e.w.upTo(2*time.Millisecond), func() { e.rest(dst, half, done) })
				return
			}
		}
		copy(dst, m.bytes)
		p.dom.wrote(m)
		p.arrived(m)
		done()
	default:
		p.arrived(m)
		done()
	}
}

// rest places the second part of a write.
func (e *end) rest(dst []byte, half int, done func()) {
	e.pumping = false
	if e.peer.closed {
		done()
		return
	}
	if e.wire.cut[e.dir] { // it comes when the wire is whole
		e.pumping = true
		e.w.after(10*time.Millisecond, func() { e.rest(dst, half, done) })
		return
	}
	m := &e.pipe[0]
	copy(dst[half:], m.bytes[half:])
	e.peer.dom.wrote(m)
	e.peer.release()
	e.peer.arrived(m)
	done()
}

func (e *end) release() {
	if e.partial != nil {
		e.partial.busy--
		e.partial = nil
	}
}

func (e *end) arrived(m *message) {
	var err error
	switch m.op.Kind {
	case transport.OpWriteImm:
		w := transport.Placed{N: len(m.bytes), Imm: m.op.Imm}
		if !e.wire.dev.nowhere {
			w.Known, w.Key, w.Addr = true, m.op.Key, m.op.Addr
		}
		err = e.h.written(w)
	case transport.OpSend, transport.OpSendImm:
		err = e.h.received(m.bytes, m.op.Imm, m.op.Kind == transport.OpSendImm)
	case transport.OpSendInval:
		filled, how := e.dom.end(m.op.Key)
		if how != transport.Idle {
			e.w.fail("the peer revokes a key while it writes with it")
		}
		err = e.h.invalidated(m.op.Key, filled)
	}
	if err != nil {
		e.end(err)
	}
}

// close is Close: it takes a while until the other thread has let go.
func (e *end) close() {
	if e.closing || e.closed {
		return
	}
	e.closing = true
	e.w.after(e.w.upTo(5*time.Millisecond), func() { e.end(io.ErrClosedPipe) })
}

// end ends this end of the link.
func (e *end) end(err error) {
	if e.closed {
		return
	}
	e.closing, e.closed, e.out = true, true, nil
	e.release()
	e.send(message{fin: true})
	if !e.dead {
		e.h.ended(err)
	}
}

// die ends it as the death of its process does.
func (e *end) die(silent bool) {
	if e.closed {
		return
	}
	e.closed, e.closing, e.dead, e.out = true, true, true, nil
	e.release()
	if !silent {
		e.send(message{fin: true})
	}
}

// life is one life of a path at one end: its links.
type life struct {
	w     *world
	path  corePath
	after func() // settles the node
	dom   *domain
	ends  []*end
	open  int
	dials int
	hung  bool
	told  bool
	alive func() bool // the process
}

type corePath interface {
	Lost(now time.Duration, conn int, err error)
	Gone(now time.Duration)
	Sent(now time.Duration, conn int, n int)
	Written(now time.Duration, conn int, w transport.Placed) error
	Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) error
	Invalidated(now time.Duration, conn int, key uint32, filled int) error
	Revoked(now time.Duration, conn int, key uint32, filled int) error
}

func (l *life) post(conn int, op *transport.Op) {
	if conn >= len(l.ends) || l.ends[conn] == nil {
		l.w.fail("posted to connection %d, which is not there", conn)
	}
	l.ends[conn].post(op)
}

func (l *life) take(conn int, e *end) {
	for conn >= len(l.ends) {
		l.ends = append(l.ends, nil)
	}
	l.ends[conn] = e
	l.open++
	e.h = &conHandler{l, conn}
	if l.hung {
		e.close()
	}
}

func (l *life) hang() {
	if l.hung {
		l.w.fail("hung up twice")
	}
	l.hung = true
	for _, e := range l.ends {
		if e != nil {
			e.close()
		}
	}
	l.check()
}

func (l *life) check() {
	if l.hung && l.open == 0 && l.dials == 0 && !l.told {
		l.told = true
		l.w.after(0, func() {
			if l.alive() {
				l.path.Gone(l.w.now)
				l.after()
			}
		})
	}
}

// conHandler is the handler of one connection.
type conHandler struct {
	l    *life
	conn int
}

func (h *conHandler) sent(n int) {
	h.l.path.Sent(h.l.w.now, h.conn, n)
	h.l.after()
}

func (h *conHandler) revoked(key uint32, filled int) error {
	err := h.l.path.Revoked(h.l.w.now, h.conn, key, filled)
	h.l.after()
	return err
}

func (h *conHandler) written(w transport.Placed) error {
	err := h.l.path.Written(h.l.w.now, h.conn, w)
	h.l.after()
	return err
}

func (h *conHandler) received(data []byte, imm uint32, hasImm bool) error {
	err := h.l.path.Received(h.l.w.now, h.conn, data, imm, hasImm)
	h.l.after()
	return err
}

func (h *conHandler) invalidated(key uint32, filled int) error {
	err := h.l.path.Invalidated(h.l.w.now, h.conn, key, filled)
	h.l.after()
	return err
}

func (h *conHandler) ended(err error) {
	l := h.l
	l.open--
	if !l.hung {
		l.path.Lost(l.w.now, h.conn, err)
	}
	l.check()
	l.after()
}
