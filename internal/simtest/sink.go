package simtest

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// memory is what an app has whose receive queue and outcomes lie in its own
// memory: the rds.Sink of its socket. It has bounded room and may give back
// late, and in any order, what it has read.
type memory struct {
	a     *app
	ring0 datagram.Ring // of the node's worker, which has Collect called
	room  int           // bytes; one message fits whatever its size
	used  int
	queue []*lease // placed, not read
	held  []*lease // read, not given back
	out   int      // datagrams placed and not given back
	asked bool     // Reserve was asked, of the frame being offered
	tried bool     // Place was
	lends bool     // Reserve may

	posts   []*post // by cookie
	dests   map[netip.AddrPort]*dest
	blocked bool // met ErrWouldBlock and waits for EvWritable
	drained bool

	// A ring tells nobody of what was given back unless the daemon asked for that.
	ring     bool
	wanted   bool     // WantRoom
	released []*lease // given back, and not seen by the daemon
}

// lease is one message in the memory.
type lease struct {
	src   netip.AddrPort
	train wire.Train
	recs  []*rec
	cost  int
	buf   *buf.Buf
	copy  []byte // what it was when it was placed
	freed bool
}

// post is one message offered: the records of its datagrams.
type post struct {
	a     *app
	first uint64 // tag
	recs  []*rec
	body  []byte
	left  int // without an outcome
	cell  uint64
	sent  uint64 // what the cell should be since it was last seen on the wire; 0: it was not
	split bool   // it was sent as single datagrams
}

type dest struct {
	d         *rds.Dest
	congested bool // as told
}

// --- rds.Sink -------------------------------------------------------------------

// leaseCost is what a message takes beside its bytes.
const leaseCost = 16

func (m *memory) Place(from *rds.Peer, in conn.Arrival) (int, bool) {
	a, w := m.a, m.a.n.w
	src, t, p, seq := from.AddrPort(in.SPort), in.Train, in.Lane, in.Seq
	m.tried = true
	if a.n.eng == nil {
		return 0, false // the process crashed
	}
	if a.dead {
		w.fail("D3: %v is closed and something is placed", a.addr)
	}
	switch {
	case p == nil:
		if src.Addr() != a.addr.Addr() {
			w.fail("D10: %v: a datagram of %v came on no lane", a.addr, src)
		}
	case src.Addr() != p.Conn().Remote() || seq == 0 || seq != a.n.offering:
		w.fail("D10: %v: number %d of %v is said to be from %v with number %d", a.addr, a.n.offering, p, src, seq)
	}
	cost := len(t.Body) + leaseCost
	if m.used > 0 && m.used+cost > m.room {
		return 0, false
	}
	l := &lease{src: src, train: t, cost: cost, copy: bytes.Clone(t.Body)}
	l.train.Body = l.copy
	if in.Buf != nil && w.chance(2) {
		in.Buf.Ref()
		l.buf, l.train.Body = in.Buf, t.Body
	}
	c := t.Cut()
	for d, ok := c.Next(); ok; d, ok = c.Next() {
		var r *rec
		switch {
		case p == nil:
			r = unknownRec // its sender may not know yet that it is accepted
		case src.Port() != 0: // not a pong
			r = w.m.placedAt(a.n.epoch, src, a.addr, d)
		}
		l.recs = append(l.recs, r)
	}
	m.used += cost
	m.out += t.Count
	m.queue = append(m.queue, l)
	a.arm() // who looks at memory sees it there
	return cost, true
}

// Reserve has something to offer where a payload is about to be read (link.place). Engine.Buffer is a
// hint and may change nothing.
func (m *memory) Reserve(n int) *buf.Buf {
	m.asked = true
	if !m.lends {
		return nil
	}
	return buf.Foreign(make([]byte, n), m, 0)
}

// Free has nothing to take back.
func (m *memory) Free(*buf.Buf) {}

func (m *memory) Done(d rds.Decided) {
	cookie, tag, count, o, why := d.Cookie, d.Tag, d.Count, d.Outcome, d.Why
	a, w := m.a, m.a.n.w
	if a.n.eng == nil {
		return // the process crashed
	}
	if a.dead {
		w.fail("D3: %v is closed and told the outcome of %d", a.addr, tag)
		return
	}
	if int(cookie) >= len(m.posts) || count < 1 {
		w.fail("D3: %v: an outcome of %d datagrams of message %d, which there is not", a.addr, count, cookie)
		return
	}
	p := m.posts[cookie]
	i := int(tag - p.first)
	if tag < p.first || i+count > len(p.recs) || count > p.left {
		w.fail("D3: %v: outcomes of datagrams %d to %d of a message of %d with %d undecided", a.addr, i, i+count-1, len(p.recs), p.left)
		return
	}
	if o == conn.Delivered && p.recs[i].loop() && p.recs[i].flow.dst.Port() != 0 {
		if here := a.n.eng.Here(); p.cell>>conn.CellLane != conn.CellHere || p.cell&(1<<conn.CellLane-1) > here+1 {
			w.fail("D5: %v stayed at its address, its cell is %#x, %d were placed", p.recs[i], p.cell, here)
		}
	} else if o == conn.Delivered && p.cell != p.sent && p.sent != 0 {
		w.fail("D5: %v is delivered, its cell is %#x, want %#x", p.recs[i], p.cell, p.sent)
	}
	for _, r := range p.recs[i : i+count] {
		if w.verbose != nil {
			w.trace("%v: outcome of %v: %v %v", a.addr, r, o, why)
		}
		a.told++
		w.m.decided(r, o, why)
	}
	p.over(count)
}

// Spent is what a closed socket has instead of an outcome: the body may be anything from then on.
func (m *memory) Spent(cookie uint32, count int) {
	a, w := m.a, m.a.n.w
	if a.n.eng == nil {
		return // the process crashed
	}
	if !a.dead || m.drained || int(cookie) >= len(m.posts) || count < 1 || count > m.posts[cookie].left {
		w.fail("D7: %v, closed %v, drained %v: an end of %d datagrams of message %d", a.addr, a.dead, m.drained, count, cookie)
		return
	}
	m.posts[cookie].over(count)
}

// over notes that so many datagrams have their end. With the last of them the daemon has no
// business with the body any more.
func (p *post) over(count int) {
	if p.left -= count; p.left == 0 {
		clear(p.body) // the table too
		p.body = nil
	}
}

func (m *memory) Drained() {
	a, w := m.a, m.a.n.w
	for i, p := range m.posts {
		if p.left > 0 && !m.drained && a.n.eng != nil {
			w.fail("D7: %v is drained, and of message %d nobody has told the end of %d datagrams", a.addr, i, p.left)
		}
	}
	if m.drained || a.s != nil && a.s.InFlight() != 0 {
		w.fail("D7: %v is drained with %d in flight, before that %v", a.addr, a.s.InFlight(), m.drained)
	}
	m.drained = true
	w.undrained--
}

// WantRoom turns on or off that the client tells what it gives back. The daemon has to look
// for what it gave back before.
func (m *memory) WantRoom(on bool) {
	if m.a.n.eng == nil {
		return // the process crashed
	}
	if m.a.dead || m.wanted == on {
		m.a.n.w.fail("D7: %v is told that room is wanted %v, before that %v", m.a.addr, on, m.wanted)
	}
	if m.wanted = on; on && len(m.released) > 0 {
		m.a.n.w.After(0, m.a.n.guard(m.collect))
	}
}

// Collect is datagram.RingOwner: the daemon looks at what all clients have given back.
func (m *memory) Collect() { m.collect() }

// Show is datagram.RingOwner; there is nobody to wake.
func (m *memory) Show() *shm.Alarm { return nil }

// collect is the daemon's look at what was given back.
func (m *memory) collect() {
	a := m.a
	if a.dead || len(m.released) == 0 {
		return
	}
	m.a.n.lock()
	for _, l := range m.released {
		m.counted(l)
	}
	m.released = nil
	a.n.lock()
	a.s.ReadAll(a.n.w.Now())
	a.n.after()
}

func (m *memory) Changed(d *rds.Dest, on bool) {
	k := d.Data.(*dest)
	if m.a.n.eng == nil {
		return // the process crashed
	}
	if m.a.dead || k.congested == on || d.Congested() != on {
		m.a.n.w.fail("D8: %v is told congested %v of %v, before that %v", m.a.addr, on, d.Addr(), k.congested)
	}
	k.congested = on
}

func (m *memory) Each(f func(src netip.AddrPort, bytes int) bool) {
	for _, l := range m.queue {
		for c := l.train.Cut(); c.Left() > 0; {
			d, _ := c.Next()
			if !f(l.src, len(d)) {
				return
			}
		}
	}
}

// --- sending --------------------------------------------------------------------

// open resolves a destination; now and then it is done anew.
func (m *memory) open(dst netip.AddrPort) *dest {
	a, w := m.a, m.a.n.w
	k := m.dests[dst]
	if k != nil && w.chance(20) {
		k.d.Close()
		delete(m.dests, dst)
		k = nil
	}
	if k == nil {
		k = &dest{}
		d, err := a.s.Open(dst, k)
		if err == rdserr.ErrWouldBlock { // no memory for one more
			m.blocked = true
			return nil
		}
		if err != nil {
			w.fail("open of %v by %v: %v", dst, a.addr, err)
			return nil
		}
		k.d, k.congested = d, d.Congested()
		m.dests[dst] = k
	}
	return k
}

// post offers datagrams of these sizes as one message, and reports whether
// they were taken.
func (m *memory) post(dst netip.AddrPort, sizes []int) bool {
	a, w := m.a, m.a.n.w
	k := m.open(dst)
	if k == nil {
		return false
	}
	if len(m.released) > 0 {
		m.collect() // taking a post is a look at everything of that client
	}
	p := &post{a: a, first: uint64(len(a.tags))}
	uniform := true
	for i, n := range sizes {
		r := w.m.make(a.addr, dst, n)
		r.epoch, r.post = a.n.epoch, p
		p.recs = append(p.recs, r)
		uniform = uniform && r.size == p.recs[0].size
		sizes[i] = r.size
	}
	t := wire.Train{Count: len(sizes), Table: !uniform || w.chance(8)}
	// By the number of the post, so that other worlds stay what they were.
	t.Reversed = t.Table && p.first%2 == 1
	if t.Table {
		for i := range p.recs {
			if t.Reversed {
				i = len(p.recs) - 1 - i
			}
			p.body = binary.BigEndian.AppendUint32(p.body, uint32(p.recs[i].size))
		}
	}
	at := len(p.body)
	for _, r := range p.recs {
		p.body = append(p.body, r.payload...)
	}
	for _, r := range p.recs {
		r.payload = p.body[at : at+r.size : at+r.size]
		at += r.size
	}
	if t.Table && len(sizes) > 1 && w.chance(4) {
		p.body = append(p.body, make([]byte, 1+w.rng.Intn(9))...) // behind the last: nobody's
	}
	t.Body = p.body
	p.left = len(p.recs)
	a.tags = append(a.tags, p.recs...)
	m.posts = append(m.posts, p)
	for _, r := range p.recs {
		a.accept(r) // what comes through the loop is there before Post returns
	}
	if a.n.thread.on && !w.chance(4) { // the ring has this one alone
		a.n.lock()
		a.n.shell.OfferLone(a.n.worker)
	}
	err := a.s.Post(w.Now(), k.d, t, uint32(len(m.posts)-1), p.first, rds.Report(w.chance(2)), &p.cell)
	if err != nil {
		if p.left != len(p.recs) {
			w.fail("D3: %v: a post that failed (%v) has an outcome", a.addr, err)
		}
		for _, r := range p.recs {
			a.unaccept(r)
			r.refused = true
		}
		p.left = 0
	} else {
		a.open = append(a.open, p.recs...)
		if len(a.open) > 1000 {
			a.open = slices.DeleteFunc(a.open, func(r *rec) bool { return r.outcome != 0 })
		}
	}
	m.blocked = m.blocked || err == rdserr.ErrWouldBlock
	w.mix(10, p.first, uint64(len(sizes)), uint64(len(t.Body)))
	if w.verbose != nil {
		w.trace("%v posts %d datagrams, the first %v, table %v, %d bytes: %v", a.addr, len(sizes), p.recs[0], t.Table, len(t.Body), err)
	}
	a.checkErr(err, dst, slices.Max(sizes))
	return err == nil
}

// drip posts what its client sends one by one, n messages of them, as the reactor finds it: most
// are a small datagram, and have a turn of its own.
func (m *memory) drip(dst netip.AddrPort, n int) {
	a, w := m.a, m.a.n.w
	a.n.turn(func() {
		for ok := true; ok && n > 0; n-- {
			sizes := []int{w.rng.Intn(300)}
			if w.chance(8) {
				sizes = w.drawPost()
			}
			if ok = m.post(dst, sizes); !w.chance(6) {
				n--
				break
			}
		}
		a.n.after()
	})
	if n > 0 {
		w.After(w.upTo(40*time.Microsecond), a.n.guard(func() {
			if !a.dead && !a.quit {
				m.drip(dst, n)
			}
		}))
	}
}

// drawPost draws what one message holds.
func (w *World) drawPost() (sizes []int) {
	n := 1
	switch w.rng.Intn(8) {
	case 0, 1:
	case 2:
		n = 2 + w.rng.Intn(400)
	default:
		n = 2 + w.rng.Intn(20)
	}
	size, same, bytes := w.drawSize(), w.chance(2), 0
	most := wire.MaxTrainBytes - 16
	if w.hungry {
		most = 9 << 10
	}
	for len(sizes) < n {
		if bytes += max(size, signLen) + wire.TableEntry; bytes > most && len(sizes) > 0 {
			break
		}
		sizes = append(sizes, size)
		if !same {
			size = w.drawSize()
		}
	}
	return sizes
}

// observe sees datagram r leave on a lane as number seq, in a frame of count datagrams.
func (p *post) observe(w *World, r *rec, lane int, seq uint64, count int) {
	p.sent = uint64(lane)<<conn.CellLane | seq
	if p.split = p.split || count < len(p.recs); p.split {
		p.sent = conn.CellSplit
	}
	if p.cell != p.sent {
		w.fail("D5: %v leaves on lane %d as number %d among %d, its cell is %#x", r, lane, seq, count, p.cell)
	}
}

// --- reading --------------------------------------------------------------------

// read takes what there is and gives it back now, later, or in pieces.
func (m *memory) read(most int) {
	a, w := m.a, m.a.n.w
	for k := 0; k < most && len(m.queue) > 0; k++ {
		l := m.queue[0]
		m.queue = m.queue[1:]
		i := 0
		for c := l.train.Cut(); c.Left() > 0; i++ {
			d, _ := c.Next()
			switch r := l.recs[i]; {
			case r == unknownRec:
				if l.src.Port() != 0 {
					w.m.placedAt(a.n.epoch, l.src, a.addr, d)
				}
			case r != nil && w.m.read(d) != r || r == nil && len(d) != 0:
				w.fail("D4: %v reads something else than %v", a.addr, r)
			}
		}
		m.held = append(m.held, l)
		if w.chance(8) {
			w.After(w.upTo(20*time.Millisecond), a.n.guard(func() {
				if l.freed || a.dead {
					return
				}
				m.free(l)
				m.freed()
				a.n.after()
			}))
		} else {
			m.free(l)
		}
	}
	m.freed()
}

// freed ends a run of free.
func (m *memory) freed() {
	switch {
	case !m.ring:
		m.a.n.lock()
		m.a.s.ReadAll(m.a.n.w.Now())
	case m.wanted:
		m.collect()
	}
}

// free gives a message back, its datagrams one by one or together.
func (m *memory) free(l *lease) {
	if !bytes.Equal(l.train.Body, l.copy) {
		m.a.n.w.fail("D7: a message of %v changed while %v held it", l.src, m.a.addr)
	}
	m.held = slices.DeleteFunc(m.held, func(x *lease) bool { return x == l })
	if l.freed = true; m.ring {
		m.released = append(m.released, l)
	} else {
		m.counted(l)
	}
}

// counted takes a message that was given back out of the daemon's account.
func (m *memory) counted(l *lease) {
	m.used -= l.cost
	m.out -= l.train.Count
	bytes, n := l.train.PayloadBytes(), l.train.Count
	if m.a.n.w.chance(2) {
		for c := l.train.Cut(); c.Left() > 1; {
			d, _ := c.Next()
			m.a.s.Freed(len(d), 0, 1)
			bytes, n = bytes-len(d), n-1
		}
	}
	m.a.s.Freed(bytes, l.cost, n)
	l.release()
}

func (l *lease) release() {
	l.freed = true
	if l.buf != nil {
		l.buf.Release()
	}
}

// gone gives back what the client holds of the daemon's when it ends.
func (m *memory) gone() {
	for _, l := range slices.Concat(m.queue, m.held, m.released) {
		l.release()
	}
	m.queue, m.held, m.released = nil, nil, nil
}

// datagrams calls f for every datagram in a data frame.
func datagrams(h *wire.Header, payload []byte, rdsd bool, f func(i, count int, d []byte)) {
	t := wire.One(payload)
	if rdsd && h.Kind(true) == wire.KindData {
		var err error
		if t, err = wire.ParseTrain(&h.Ext, payload); err != nil {
			t = wire.One(payload)
		}
	}
	i := 0
	for c := t.Cut(); c.Left() > 0; i++ {
		d, _ := c.Next()
		f(i, t.Count, d)
	}
}
