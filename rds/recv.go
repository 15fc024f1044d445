package rds

import (
	"math/bits"
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

// arrivalBytes is the memory of the node that an arrival may take until it is read.
func arrivalBytes(t wire.Train) int {
	if t.Plain() {
		return len(t.Body) + itemOverhead
	}
	return len(t.Body) + itemOverhead + t.Count*partOverhead
}

// place gives what has arrived to the sink. Above the soft limit the port becomes congested;
// a datagram that would pass the hard limit is not taken, and marks the port too, because
// empty datagrams never reach the soft limit.
func (s *Socket) place(from *Peer, a conn.Arrival) conn.Verdict {
	e, t := s.e, a.Train
	// What was lent to read it into is its lender's alone.
	if b := a.Buf; b != nil && b.Owner() != nil && b.Owner() != buf.Owner(s.reserver) {
		return from.strayed()
	}
	cost := arrivalBytes(t)
	if s.queue != nil {
		cost += s.queue.beside(a)
	}
	// Refused, an rdsd keeps it and a kernel's link pauses: nothing is dropped. The soft limit
	// is not asked here, for senders that have not heard of it yet are not to blame.
	if s.mem+cost > s.hard || e.leaving {
		s.full(e.now)
		return conn.NoRoom
	}
	// This comes before the sink is asked, because a placed datagram cannot be taken back.
	if !s.fitsRecvBudget(cost, t) {
		return conn.NoRoom
	}
	cost, ok := s.sink.Place(from, a)
	if !ok {
		if l, is := s.sink.(Lacker); is && l.Lacked() {
			// The node's memory is short, and the reader is not slow: unread datagrams of this socket
			// are not the reason.
			s.awaitRecvMemory(e.now, least(t, len(t.Body)+itemOverhead))
			return conn.NoRoom
		}
		// Only the sink knows how large its memory is: the amount that fitted until now stands for
		// the hard limit, and half of that counts as room again (roomy).
		s.fullAt = s.mem
		s.full(e.now)
		return conn.NoRoom
	}
	s.placed(from, t.PayloadBytes(), cost, t.Count)
	return conn.Placed
}

// strayed is the verdict on a payload that was read into memory of another socket, which had the port
// when the header came and was closed before the rest did. That memory may be taken away at any time,
// with zeros in its place, or held up with what lies in it. An rdsd is refused the datagram and sends
// it again, at once, for nothing marks the port. A kernel cannot be refused anything: it is as if the
// datagram had come whole a little earlier, and nobody had read it before that socket was closed.
func (pe *Peer) strayed() conn.Verdict {
	if pe.c.Kind() == conn.KindRdsd {
		return conn.NoRoom
	}
	return conn.NoPort
}

// lacked refuses what came while there was no memory to read it into.
func (s *Socket) lacked(a conn.Arrival) conn.Verdict {
	e := s.e
	e.ctr.MemoryRefused += uint64(a.Train.Count)
	e.cfg.Budget.refusedHeld.Add(1)
	s.awaitRecvMemory(e.now, a.Skipped+itemOverhead)
	return conn.NoRoom
}

// least is for how much memory to wait when a message that takes cost finds none: of what its
// sender joined, for the largest datagram, because it sends each message apart then.
func least(t wire.Train, cost int) int {
	if !t.Joined {
		return cost
	}
	largest := 0
	for c := t.Cut(); c.Left() > 0; {
		d, _ := c.Next()
		largest = max(largest, len(d))
	}
	return largest + itemOverhead
}

// fitsRecvBudget reports whether the memory budget has room for a message.
func (s *Socket) fitsRecvBudget(cost int, t wire.Train) bool {
	e := s.e
	if free, _, shared := e.room(s.opt.Account, cost); int64(cost) <= free && shared {
		return true
	}
	e.ctr.MemoryRefused += uint64(t.Count)
	e.cfg.Budget.refusedHeld.Add(1)
	// Others hold the memory, with other engines perhaps, and do not call here when they give
	// it back: the socket is in a list that is looked at.
	s.awaitRecvMemory(e.now, least(t, cost))
	return false
}

// hold takes n bytes of memory for received datagrams; with a negative n it gives them
// back.
func (s *Socket) hold(n int) {
	t := &s.e.tally
	if t.account != s.opt.Account {
		t.turn(s.opt.Account)
	}
	t.held += int64(n)
	t.noted += int64(n)
}

// placed adds placed datagrams to the accounts.
func (s *Socket) placed(pe *Peer, bytes, cost, count int) {
	s.unread += count
	s.queued += bytes
	s.mem += cost
	s.hold(cost)
	pe.ctr.RecvQueued += uint64(count)
	pe.ctr.RecvBytesAdded += uint64(bytes)
	if s.queued > s.soft() {
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

// updateWantRoom tells the sink when it is no longer as it was, whether senders wait for
// what is read, or a trace does.
func (s *Socket) updateWantRoom() {
	if on := s.SendersWait() || s.tracedTo > 0; on != s.toldWantRoom && !s.closed {
		s.toldWantRoom = on
		s.sink.WantRoom(on)
	}
}

// unmark clears the port when less than half of its limits is used.
func (s *Socket) unmark(now time.Duration) {
	// Half, as in the kernel (net/rds/recv.c, rds_recv_rcvbuf_delta): a port that changed
	// its state with each datagram would be told to every peer each time.
	if s.congested && !s.e.leaving && s.recvWaitAt == 0 && (s.queued < s.soft()/2 || s.unread == 0) && s.roomy() {
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
	s.wasFull, s.fullAt = false, s.hard
	s.updateWantRoom()
	return true
}

// roomy reports whether half of the hard limit is free, or of what the sink held when it had
// no room.
func (s *Socket) roomy() bool { return s.mem <= s.fullAt/2 }

// ReadAll ends a run of Freed: a port that has room again is cleared, and
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
	e.runDeferred(now)
}

// roomAgain lets kernel links go on that stopped before a full receiver. After Leave there is
// no room for what they hold.
func (e *Engine) roomAgain() {
	if e.leaving {
		return
	}
	l := e.full
	e.full = nil
	for _, pe := range l {
		pe.isFull = false
		if pe.c != nil {
			pe.c.EachLane((*conn.Lane).Resume)
		}
	}
}

// SendersWait reports whether the port is congested or a datagram found no room, so that
// senders wait for datagrams to be read.
func (s *Socket) SendersWait() bool { return s.congested || s.wasFull }

// Culprit is a source with datagrams in a receive queue.
type Culprit struct {
	Source netip.AddrPort
	N      int
	Bytes  int
}

// culpritsLook is how many datagrams Culprits looks at.
const culpritsLook = 4096

// Culprits returns the senders that fill the receive queue, largest first, at most max. In
// a long queue only the oldest datagrams are looked at, and the others taken to be like them.
func (s *Socket) Culprits(max int) []Culprit {
	l, _ := s.culprits(max, culpritsLook)
	return l
}

// culprits looks at so many datagrams, the oldest, and reports how many there were. What lies in pairs is
// known without a look.
func (s *Socket) culprits(max, look int) (l []Culprit, looked int) {
	lookedBytes := 0
	by := map[netip.AddrPort]*Culprit{}
	of := func(src netip.AddrPort) *Culprit {
		c := by[src]
		if c == nil {
			c = &Culprit{Source: src}
			by[src] = c
		}
		return c
	}
	s.sink.Each(func(src netip.AddrPort, bytes int) bool {
		c := of(src)
		c.N++
		c.Bytes += bytes
		looked++
		lookedBytes += bytes
		return looked < look
	})
	// What is told beside it is how much all of the queue has.
	if looked >= look {
		for _, c := range by {
			c.N, c.Bytes = scaled(c.N, looked, s.unread), scaled(c.Bytes, lookedBytes, s.queued)
		}
	}
	s.eachPaired(func(src netip.AddrPort, u PairedUnread) {
		c := of(src)
		c.N += u.Datagrams
		c.Bytes += u.Bytes
	})
	l = make([]Culprit, 0, len(by))
	for _, c := range by {
		l = append(l, *c)
	}
	slices.SortFunc(l, func(a, b Culprit) int {
		if a.Bytes != b.Bytes {
			return b.Bytes - a.Bytes
		}
		return a.Source.Compare(b.Source)
	})
	return l[:min(len(l), max)], looked
}

// scaled is what n of some comes to of all.
func scaled(n, some, all int) int {
	if some <= 0 || all <= some {
		return n
	}
	hi, lo := bits.Mul64(uint64(n), uint64(all))
	q, _ := bits.Div64(hi, lo, uint64(some)) // n is part of some, so this is part of all
	return int(q)
}

// ReceiveMemory returns how many bytes of the node's memory received datagrams take that
// were not given back.
func (s *Socket) ReceiveMemory() int { return s.mem }
