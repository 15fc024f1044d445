package rds

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// itemOverhead is what a queued datagram costs beyond its payload, in bytes: a
// flood of empty datagrams is memory too.
const itemOverhead = 64

// partOverhead is what each datagram of a train costs beyond that.
const partOverhead = 8

// Datagram is one received datagram. Its payload is valid until Release.
type Datagram struct {
	Source  netip.AddrPort
	Payload []byte
	buf     *buf.Buf
}

// Release gives the payload's memory back. It needs no lock.
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

// hard is the limit no peer can pass, in bytes of memory: HardFactor times the
// soft limit, and room for one datagram of the largest size.
func (s *Socket) hard() int {
	return s.e.cfg.HardFactor*s.opt.RcvBufBytes + wire.MaxDatagram + itemOverhead
}

// place puts a datagram, or a train, into the receive queue. Above the soft limit the port
// becomes congested; a datagram that would pass the hard limit is not taken, and marks the
// port too, because empty datagrams never reach the soft limit.
func (s *Socket) place(pe *Peer, a conn.Arrival) conn.Verdict {
	e, t := s.e, a.Train
	if s.opt.Sink != nil {
		return s.placeInSink(pe, a)
	}
	n := len(t.Body)
	cost := n + itemOverhead
	if !t.Plain() {
		cost += t.Count * partOverhead
	}
	// Refused, an rdsd keeps it and a kernel's link pauses: nothing is dropped. The soft limit
	// is not asked here, for senders that have not heard of it yet are not to blame.
	if s.mem+cost > s.hard() {
		s.full(e.now)
		return conn.NoRoom
	}
	it := item{pe: pe, n: uint32(n), cost: uint32(cost), sport: a.SPort}
	if !t.Plain() {
		it.train = uint16(t.Count)
		if t.Table {
			it.train |= tableBit
		}
	}
	if !s.fitsRecvBudget(cost, t.Count) {
		return conn.NoRoom
	}
	switch {
	case n == 0:
	// The payload was read into memory of its own, which goes into the queue as it is.
	case a.Buf != nil:
		a.Buf.Ref()
		it.b = a.Buf
	case n > buf.SlabSize:
		it.b = buf.Get(n)
		copy(it.b.B, t.Body)
	default: // small
		// Copied behind others: a reference into the buffer that the link was read into would
		// keep all of that for a few bytes.
		it.b, it.off = s.copyToSlab(t.Body)
	}
	if s.qn == 0 {
		s.news(EvReadable)
	}
	s.pushItem(it)
	s.placed(pe, t.PayloadBytes(), cost, t.Count)
	return conn.Placed
}

// fitsRecvBudget reports whether the memory budget has room for a message of count
// datagrams.
func (s *Socket) fitsRecvBudget(cost, count int) bool {
	e := s.e
	if int64(cost) <= e.room() && e.tally.fits(s.opt.Account, cost) {
		return true
	}
	e.ctr.MemoryRefused += uint64(count)
	e.cfg.Budget.Refused.Add(1)
	// Others hold the memory, with other engines perhaps, and do not call here when they give
	// it back: the socket is in a list that is looked at.
	s.awaitRecvMemory(e.now, cost)
	return false
}

// hold takes n bytes of memory for received datagrams; with a negative n it gives them
// back.
func (s *Socket) hold(n int) {
	s.e.tally.held += int64(n)
	s.e.tally.note(s.opt.Account, n)
}

// placed adds placed datagrams to the accounts.
func (s *Socket) placed(pe *Peer, bytes, cost, count int) {
	s.unread += count
	s.queued += bytes
	s.mem += cost
	s.hold(cost)
	pe.ctr.RecvQueued += uint64(count)
	pe.ctr.RecvBytesAdded += uint64(bytes)
	if s.queued > s.opt.RcvBufBytes {
		s.mark(s.e.now)
	}
}

// taken takes datagrams that were read out of the accounts.
func (s *Socket) taken(count, bytes, cost int) {
	e := s.e
	s.unread -= count
	s.queued -= bytes
	s.mem -= cost
	s.hold(-cost)
	s.Stats.Received += uint64(count)
	s.Stats.ReceivedBytes += uint64(bytes)
	e.ctr.RecvDelivered += uint64(count)
	e.ctr.CopyToUser += uint64(bytes)
	e.ctr.RecvBytesFreed += uint64(bytes)
	if e.tracer != nil {
		s.traceRead()
	}
}

// copyToSlab copies a small payload behind others into a slab.
func (s *Socket) copyToSlab(p []byte) (*buf.Buf, uint32) {
	if s.slab == nil || s.slabOff+len(p) > len(s.slab.B) {
		s.endSlab()
		s.slab, s.slabOff, s.slabRefs = buf.Get(buf.SlabSize), 0, slabRefs
		s.slab.RefN(slabRefs)
	}
	off := s.slabOff
	copy(s.slab.B[off:], p)
	s.slabOff += len(p)
	s.slabRefs--
	return s.slab, uint32(off)
}

// slabRefs are taken of a slab when it is begun, one for each datagram it can
// hold, so that placing one costs no atomic operation.
const slabRefs = buf.SlabSize

// endSlab gives up the socket's own reference to its slab and those it did not use.
func (s *Socket) endSlab() {
	if s.slab != nil {
		s.slab.ReleaseN(int32(s.slabRefs) + 1)
		s.slab = nil
	}
}

func (s *Socket) mark(now time.Duration) {
	if !s.congested {
		s.congested, s.congestedAt = true, now
		s.updateWantRoom()
		s.e.congest(now, s.port)
	}
}

// full marks the port because something found no room in the socket's own memory.
func (s *Socket) full(now time.Duration) {
	s.wasFull = true
	s.mark(now)
	s.updateWantRoom()
}

// updateWantRoom tells the sink when SendersWait has changed.
func (s *Socket) updateWantRoom() {
	if on := s.SendersWait(); on != s.toldWantRoom && s.opt.Sink != nil && !s.closed {
		s.toldWantRoom = on
		s.opt.Sink.WantRoom(on)
	}
}

// unmark clears the port when less than half of its limits is used.
func (s *Socket) unmark(now time.Duration) {
	// Half, as in the kernel (net/rds/recv.c, rds_recv_rcvbuf_delta): a port that changed
	// its state with each datagram would be told to every peer each time.
	if s.congested && s.recvWaitAt == 0 && (s.queued < s.opt.RcvBufBytes/2 || s.unread == 0) && s.roomy() {
		s.congested = false
		s.updateWantRoom()
		s.e.clear(now, s.port)
	}
}

// relax forgets that something found no room, once there is some.
func (s *Socket) relax() bool {
	if !s.wasFull || s.recvWaitAt > 0 || !s.roomy() {
		return false
	}
	s.wasFull, s.fullAt = false, math.MaxInt
	s.updateWantRoom()
	return true
}

// roomy reports whether half of the hard limit is free; a sink's limit is the amount it
// held when it had no room.
func (s *Socket) roomy() bool {
	if s.opt.Sink == nil {
		return s.mem <= s.hard()/2
	}
	return s.mem <= s.fullAt/2
}

// Recv takes the next datagram. After the last of a run call ReadAll.
func (s *Socket) Recv() (d Datagram, ok bool) {
	if s.qn == 0 {
		return d, false
	}
	it := &s.q[s.qhead]
	d.Source = netip.AddrPortFrom(it.pe.addr, it.sport)
	d.buf = it.b
	// A train stays at the head of the queue until the last of it is taken.
	if it.train != 0 {
		c := s.headTrain(it)
		d.Payload, _ = c.Next()
		s.trainTaken(it, 1, len(d.Payload))
		return d, true
	}
	if it.b != nil {
		d.Payload = it.b.B[it.off : it.off+it.n : it.off+it.n]
	}
	s.taken(1, int(it.n), int(it.cost))
	s.dropHead()
	return d, true
}

// headTrain returns the rest of the train at the head of the queue. From the first call on
// the item has a reference for each datagram left.
func (s *Socket) headTrain(it *item) *wire.Cutter {
	if s.head.Left() == 0 {
		s.head = it.cut()
		if it.train&tableBit != 0 {
			// The table has been charged as memory, and is not payload.
			it.n -= uint32(s.head.Left() * wire.TableEntry) // payload left from now on
		}
		if it.b != nil {
			// Each datagram handed out is released by its reader, on any thread and in any order.
			it.b.RefN(int32(s.head.Left() - 1))
		}
	}
	return &s.head
}

// trainTaken ends the taking of count datagrams of the head train, whose
// references are the taker's now.
func (s *Socket) trainTaken(it *item, count, bytes int) {
	cost := bytes
	it.n -= uint32(bytes)
	if s.head.Left() == 0 {
		// The last one carries the cost of the train beside its payloads.
		cost = int(it.cost)
		s.queued -= int(it.n) // bytes behind the last datagram, which belong to none
		s.dropHead()
	} else {
		it.cost -= uint32(cost)
	}
	s.taken(count, bytes, cost)
}

// ReadAll ends a run of Recv calls, or of Freed: a port that has room again is cleared, and
// senders that wait for it go on.
func (s *Socket) ReadAll(now time.Duration) {
	e := s.e
	e.now = now
	if s.congested {
		s.unmark(now)
	}
	if s.relax() {
		e.roomAgain()
	}
	if s.qn == 0 {
		s.endSlab()
	}
	e.runDeferred(now)
}

// roomAgain lets kernel links go on that stopped before a full receiver.
func (e *Engine) roomAgain() {
	l := e.full
	e.full = nil
	for _, pe := range l {
		pe.isFull = false
		if pe.c != nil {
			pe.c.Paths((*conn.Path).Resume)
		}
	}
}

// SendersWait reports whether the port is congested or a datagram found no room, so that
// senders wait for datagrams to be read.
func (s *Socket) SendersWait() bool { return s.congested || s.wasFull }

// Peek tells the size of the next datagram in bytes and how many wait.
func (s *Socket) Peek() (next, n int) {
	if s.qn == 0 {
		return 0, 0
	}
	it := &s.q[s.qhead]
	if it.train == 0 {
		return int(it.n), s.unread
	}
	c := s.head
	if c.Left() == 0 {
		c = it.cut()
	}
	return c.Peek(), s.unread
}

// Culprit is a source with datagrams in a receive queue.
type Culprit struct {
	Source netip.AddrPort
	N      int
	Bytes  int
}

// culpritsLook is how many datagrams Culprits looks at.
const culpritsLook = 4096

// Culprits returns the senders that fill the receive queue, largest first, at most max. In
// a long queue only the oldest datagrams are looked at.
func (s *Socket) Culprits(max int) []Culprit { return s.culprits(max, culpritsLook) }

// culprits looks at so many datagrams, the oldest.
func (s *Socket) culprits(max, look int) []Culprit {
	by := map[netip.AddrPort]*Culprit{}
	s.EachQueued(func(src netip.AddrPort, bytes int) bool {
		c := by[src]
		if c == nil {
			c = &Culprit{Source: src}
			by[src] = c
		}
		c.N++
		c.Bytes += bytes
		look--
		return look > 0
	})
	l := make([]Culprit, 0, len(by))
	for _, c := range by {
		l = append(l, *c)
	}
	slices.SortFunc(l, func(a, b Culprit) int {
		if a.Bytes != b.Bytes {
			return b.Bytes - a.Bytes
		}
		return a.Source.Compare(b.Source)
	})
	return l[:min(len(l), max)]
}

// EachQueued calls f for every datagram in the receive queue until it returns false.
func (s *Socket) EachQueued(f func(src netip.AddrPort, bytes int) bool) {
	if s.opt.Sink != nil {
		s.opt.Sink.Each(f)
		return
	}
	for i := range s.qn {
		it := &s.q[(s.qhead+i)&(len(s.q)-1)]
		src := netip.AddrPortFrom(it.pe.addr, it.sport)
		if it.train == 0 {
			if !f(src, int(it.n)) {
				return
			}
			continue
		}
		// Of the first the reader may have taken a part already.
		c := s.head
		if i > 0 || c.Left() == 0 {
			c = it.cut()
		}
		for {
			p, ok := c.Next()
			if !ok {
				break
			}
			if !f(src, len(p)) {
				return
			}
		}
	}
}

func (s *Socket) pushItem(it item) {
	if s.qn == len(s.q) {
		q := make([]item, max(16, 2*len(s.q)))
		for i := range s.qn {
			q[i] = s.q[(s.qhead+i)&(len(s.q)-1)]
		}
		s.q, s.qhead = q, 0
	}
	s.q[(s.qhead+s.qn)&(len(s.q)-1)] = it
	s.qn++
}

// releaseHead drops the item at the head unread.
func (s *Socket) releaseHead() {
	if b := s.q[s.qhead].b; b != nil {
		b.ReleaseN(int32(max(1, s.head.Left()))) // see headTrain
	}
	s.head = wire.Cutter{}
	s.dropHead()
}

func (s *Socket) dropHead() {
	s.q[s.qhead].b = nil
	s.qhead = (s.qhead + 1) & (len(s.q) - 1)
	s.qn--
	if s.qn == 0 && len(s.q) > 4096 {
		s.q, s.qhead = nil, 0 // a burst does not keep its memory
	}
}

// ReceiveMemory returns how many bytes of the node's memory received datagrams take that
// were not given back.
func (s *Socket) ReceiveMemory() int { return s.mem }
