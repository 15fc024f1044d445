package rds

import (
	"math"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// Queue is the Sink of a socket whose client has no memory of its own (SocketOptions.Sink).
// Received datagrams lie in memory of the node until they are taken (Recv, RecvRun), and
// outcomes that were asked for in a list until they are fetched (Outcomes). The engine's lock
// guards it.
type Queue struct {
	s *Socket

	// items is a ring of n items from first on, whose size is a power of two; head is the
	// rest of the train at its head once something of it was read.
	items    []item
	first, n int
	head     wire.Cutter

	// slab is where small payloads are copied behind each other, slabOff where the next
	// goes, and slabRefs how many of its references no datagram has yet.
	slab     *buf.Buf
	slabOff  int
	slabRefs int

	// outcomes are those that nobody has fetched. Socket.outcomesN is the sum of their counts.
	outcomes []OutcomeRun
}

var _ Sink = (*Queue)(nil)

// OutcomeRun is the outcome of datagrams with tags First..First+Count-1.
type OutcomeRun struct {
	First uint64
	Count uint32
	Kind  conn.Outcome
	Why   conn.Why
}

// Datagram is one received datagram. Its payload is valid until Release.
type Datagram struct {
	Source  netip.AddrPort
	Payload []byte
	buf     *buf.Buf
}

// Release gives the payload's memory back. It needs no lock. Called again it does nothing.
func (d *Datagram) Release() {
	if d.buf != nil {
		d.buf.Release()
	}
	d.buf, d.Payload = nil, nil
}

type item struct {
	pe    *Peer
	b     *buf.Buf // nil: no payload
	off   uint32
	n     uint32
	cost  uint32
	sport uint16
	train uint16 // 0: one datagram; else how many, and tableBit
}

// tableBit in item.train: the datagrams are behind a table of their lengths.
const tableBit = 1 << 15

// cut begins to take the train's datagrams.
func (it *item) cut() wire.Cutter {
	var body []byte
	if it.b != nil {
		body = it.b.B[it.off : it.off+it.n]
	}
	return wire.Train{Body: body, Count: int(it.train &^ tableBit), Table: it.train&tableBit != 0}.Cut()
}

// --- the socket's side ------------------------------------------------------------

// Place implements Sink. Its room is the memory of the node, of which the socket has
// reserved what the datagrams take.
func (q *Queue) Place(from *Peer, a conn.Arrival) (cost int, ok bool) {
	t := a.Train
	n := len(t.Body)
	it := item{pe: from, n: uint32(n), cost: uint32(arrivalBytes(t) + q.beside(a)), sport: a.SPort}
	if !t.Plain() {
		it.train = uint16(t.Count)
		if t.Table {
			it.train |= tableBit
		}
	}
	switch {
	case n == 0:
	// The payload was read into memory of its own, which goes into the queue as it is.
	case keeps(a):
		a.Buf.Ref()
		it.b = a.Buf
	case n >= buf.SlabSize/4:
		it.b = buf.Get(n)
		t.PutBody(it.b.B)
	default: // small
		// Copied behind others: a reference into the buffer that the link was read into would
		// keep all of that for a few bytes.
		it.b, it.off = q.copyToSlab(t)
	}
	if q.n == 0 {
		q.s.news(EvReadable)
	}
	q.push(it)
	return int(it.cost), true
}

// keeps reports whether the memory that an arrival was read into is kept for it. Not for a small one, whose frame came
// in two reads: it would keep many times its length.
func keeps(a conn.Arrival) bool { return a.Buf != nil && a.Buf.Size() <= 2*len(a.Train.Body) }

// beside is how much larger the buffer is that an arrival will lie in alone.
func (q *Queue) beside(a conn.Arrival) int {
	switch n := len(a.Train.Body); {
	case keeps(a):
		return a.Buf.Size() - n
	case n >= buf.SlabSize/4:
		return buf.SizeOf(n) - n
	}
	return 0
}

// Done implements Sink.
func (q *Queue) Done(d Decided) {
	if !d.Report {
		return
	}
	s := q.s
	s.outcomesN += d.Count
	// Senders count their tags up, so that runs are long and a reader gets few of them.
	if n := len(q.outcomes); n > 0 {
		l := &q.outcomes[n-1]
		if l.Kind == d.Outcome && l.Why == d.Why && l.First+uint64(l.Count) == d.Tag && uint64(l.Count)+uint64(d.Count) <= math.MaxUint32 {
			l.Count += uint32(d.Count)
			return
		}
	}
	s.spend(outcomeBytes)
	q.outcomes = append(q.outcomes, OutcomeRun{d.Tag, uint32(d.Count), d.Outcome, d.Why})
	s.news(EvOutcomes)
}

// Spent implements Sink.
func (q *Queue) Spent(uint32, int) {}

// Drained implements Sink: payloads of a Queue's socket are the collector's.
func (q *Queue) Drained() {}

// WantRoom implements Sink: whoever takes datagrams says so with ReadAll.
func (q *Queue) WantRoom(bool) {}

// Changed implements Sink: see Socket.Monitor.
func (q *Queue) Changed(*Dest, bool) {}

// Each implements Sink.
func (q *Queue) Each(f func(src netip.AddrPort, bytes int) bool) {
	for i := range q.n {
		it := q.at(i)
		src := it.pe.AddrPort(it.sport)
		if it.train == 0 {
			if !f(src, int(it.n)) {
				return
			}
			continue
		}
		// Of the first the reader may have taken a part already.
		c := q.head
		if i > 0 || c.Left() == 0 {
			c = it.cut()
		}
		for p, ok := c.Next(); ok; p, ok = c.Next() {
			if !f(src, len(p)) {
				return
			}
		}
	}
}

// discard gives up what was not fetched when the socket closes.
func (q *Queue) discard() {
	for q.n > 0 {
		if b := q.at(0).b; b != nil {
			b.ReleaseN(int32(max(1, q.head.Left()))) // see headTrain
		}
		q.head = wire.Cutter{}
		q.pop()
	}
	q.endSlab()
	q.s.spend(-outcomeBytes * len(q.outcomes))
	q.outcomes = nil
}

// --- the client's side ------------------------------------------------------------

// Recv takes the next datagram. After the last of a run call Socket.ReadAll.
func (q *Queue) Recv() (d Datagram, ok bool) {
	if q.n == 0 {
		return d, false
	}
	it := q.at(0)
	d.Source = it.pe.AddrPort(it.sport)
	d.buf = it.b
	// A train stays at the head of the queue until the last of it is taken.
	if it.train != 0 {
		c := q.headTrain(it)
		d.Payload, _ = c.Next()
		q.trainTaken(it, 1, len(d.Payload))
		return d, true
	}
	if it.b != nil {
		d.Payload = it.b.B[it.off : it.off+it.n : it.off+it.n]
	}
	q.s.taken(1, int(it.n), int(it.cost))
	q.pop()
	return d, true
}

// headTrain returns the rest of the train at the head of the queue. From the first call on
// the item has a reference for each datagram left.
func (q *Queue) headTrain(it *item) *wire.Cutter {
	if q.head.Left() == 0 {
		q.head = it.cut()
		if it.train&tableBit != 0 {
			// The table has been charged as memory, and is not payload.
			it.n -= uint32(q.head.Left() * wire.TableEntry) // payload left from now on
		}
		if it.b != nil {
			// Each datagram handed out is released by its reader, on any thread and in any order.
			it.b.RefN(int32(q.head.Left() - 1))
		}
	}
	return &q.head
}

// trainTaken ends the taking of count datagrams of the head train, whose
// references are the taker's now.
func (q *Queue) trainTaken(it *item, count, bytes int) {
	cost := bytes
	it.n -= uint32(bytes)
	if q.head.Left() == 0 {
		// The last one carries the cost of the train beside its payloads.
		cost = int(it.cost)
		q.s.queued -= int(it.n) // bytes behind the last datagram, which belong to none
		q.pop()
	} else {
		it.cost -= uint32(cost)
	}
	q.s.taken(count, bytes, cost)
}

// Peek tells the size of the next datagram in bytes and how many wait.
func (q *Queue) Peek() (next, waiting int) {
	if q.n == 0 {
		return 0, 0
	}
	it := q.at(0)
	if it.train == 0 {
		return int(it.n), q.s.unread
	}
	c := q.head
	if c.Left() == 0 {
		c = it.cut()
	}
	return c.Peek(), q.s.unread
}

// keptOutcomes is how long a list of outcomes may be that is used again.
const keptOutcomes = 4096

// Outcomes appends the outcomes reported since the last call to l.
func (q *Queue) Outcomes(l []OutcomeRun) []OutcomeRun {
	s := q.s
	l = append(l, q.outcomes...)
	s.spend(-outcomeBytes * len(q.outcomes))
	// A long list is not kept: nobody is charged for it any more.
	if q.outcomes = q.outcomes[:0]; cap(q.outcomes) > keptOutcomes {
		q.outcomes = nil
	}
	// Fetching them makes room: sends were refused while too many lay here.
	if s.outcomesN > 0 {
		s.outcomesN = 0
		if s.wantSpace {
			s.writable()
		}
		if s.waiting > 0 {
			s.hasSpace()
		}
	}
	return l
}

// --- its memory -------------------------------------------------------------------

// at is item i of the queue.
func (q *Queue) at(i int) *item { return &q.items[(q.first+i)&(len(q.items)-1)] }

func (q *Queue) push(it item) {
	if q.n == len(q.items) {
		items := make([]item, max(16, 2*len(q.items)))
		for i := range q.n {
			items[i] = *q.at(i)
		}
		q.items, q.first = items, 0
	}
	*q.at(q.n) = it
	q.n++
}

func (q *Queue) pop() {
	q.at(0).b = nil
	q.first = (q.first + 1) & (len(q.items) - 1)
	if q.n--; q.n > 0 {
		return
	}
	// What was there for a burst is not kept.
	q.endSlab()
	if len(q.items) > 4096 {
		q.items, q.first = nil, 0
	}
}

// copyToSlab copies a small body behind others into a slab.
func (q *Queue) copyToSlab(t wire.Train) (*buf.Buf, uint32) {
	n := len(t.Body)
	if q.slab == nil || q.slabOff+n > len(q.slab.B) {
		q.endSlab()
		q.slab, q.slabOff, q.slabRefs = buf.Get(buf.SlabSize), 0, slabRefs
		q.slab.RefN(slabRefs)
	}
	off := q.slabOff
	t.PutBody(q.slab.B[off:][:n])
	q.slabOff += n
	q.slabRefs--
	return q.slab, uint32(off)
}

// slabRefs are taken of a slab when it is begun, one for each datagram it can
// hold, so that placing one costs no atomic operation.
const slabRefs = buf.SlabSize

// endSlab gives up the queue's own reference to its slab and those it did not use.
func (q *Queue) endSlab() {
	if q.slab != nil {
		q.slab.ReleaseN(int32(q.slabRefs) + 1)
		q.slab = nil
	}
}
