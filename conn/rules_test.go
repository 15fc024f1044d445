package conn

import (
	"maps"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// check looks after every step of a script at what must hold whatever happened:
// nothing can be sent that nobody was woken for, no time passes that nobody is
// called at, and whatever is counted is there.
func (w *world) check() {
	w.c.EachLane(func(p *Lane) {
		w.checkWake(p)
		w.checkTimers(p)
		w.checkLists(p)
		w.checkRefusals(p)
		w.checkCredits(p)
		w.checkNumbers(p)
	})
	w.checkPending()
	w.checkLent()
}

// checkWake checks that the shell was asked for a turn if a turn finds something.
func (w *world) checkWake(p *Lane) {
	if p.kicked && p.state == Up && !p.writing {
		w.t.Errorf("%v: a turn was asked for and not given", p)
	}
	if p.state != Up || p.writing {
		return
	}
	stalls := w.ctr.CreditStall
	b := transport.GetBatch()
	defer b.Put()
	if p.Fill(w.now, b) {
		for _, f := range framesOf(w.t, b) {
			w.t.Errorf("%v: nobody asked for a turn to send %s", p, w.text(f))
		}
		p.Wrote(w.now)
	}
	w.ctr.CreditStall = stalls
}

// checkTimers checks that the next call comes before the first thing that is due.
func (w *world) checkTimers(p *Lane) {
	due, what := Never, ""
	first := func(at time.Duration, name string) {
		if at < due {
			due, what = at, name
		}
	}
	first(p.retryAt, "another attempt")
	first(p.sweepAt, "the end of what was cancelled")
	if p.state == Up {
		first(p.askAt, "to ask who poked")
		if p.probed && !p.ready {
			first(p.probedAt+w.cfg.ProbeTimeout, "no answer to the handshake")
		}
		if p.congDirty && p.idx == 0 && !p.writing && w.c.may().hear && w.c.kind.kernel() {
			first(p.congAt+w.cfg.MapInterval, "the next map")
		}
		switch {
		case w.c.kind.kernel():
			first(p.pollAt, "what TCP acknowledged")
			if p.pollAt == Never && (p.unacked.head != nil || w.c.grow != 0 && p.txAcked < p.msgOff) && !p.writing {
				w.t.Errorf("%v: TCP is not asked about what is not acknowledged", p)
			}
		case w.c.kind == KindRdsd && p.ready:
			first(p.ackDue, "an acknowledgement")
			first(p.lastRx+w.cfg.DeadAfter, "the end of a silent link")
		}
	}
	least := w.now + time.Microsecond
	if w.now < w.c.grace {
		least = w.c.grace // this process stood still: what came is read first
	}
	if w.c.armed > max(due, least) {
		w.t.Errorf("%v: %s is due at %v, the next call comes at %v", p, what, due, w.c.armed)
	}
	if w.armed > w.c.armed {
		w.t.Errorf("%v: the owner calls at %v, asked for was %v", p, w.armed, w.c.armed)
	}
}

// checkLists checks that the lists count right and that the messages know where they are.
func (w *world) checkLists(p *Lane) {
	is := func(name string, l *list, in where) {
		n, bytes := 0, 0
		var prev *Msg
		for m := l.head; m != nil; prev, m = m, m.next {
			n += m.Datagrams()
			bytes += len(m.Payload)
			if m.prev != prev || m.Owner != nil && (m.where != in || w.c.slots[m.slot] != p) {
				w.t.Errorf("%v: datagram %d stands wrongly in %s", p, m.Tag, name)
			}
		}
		if l.tail != prev || l.n != n || l.bytes != bytes {
			w.t.Errorf("%v: %s counts %d datagrams of %d bytes, and has %d of %d", p, name, l.n, l.bytes, n, bytes)
		}
	}
	n, bytes := 0, 0
	for i := range p.queue.all() {
		l := &p.queue.lists[i]
		is("queue", l, inQueue)
		n, bytes = n+l.n, bytes+l.bytes
	}
	if p.queue.n != n || p.queue.bytes != bytes {
		w.t.Errorf("%v: the queue counts %d datagrams of %d bytes, and has %d of %d", p, p.queue.n, p.queue.bytes, n, bytes)
	}
	is("retrans", &p.retrans, inRetrans)
	is("unacked", &p.unacked, inSent)
	is("inwrite", &p.inwrite, inSent)
	outBy, looked := map[uint16]int{}, w.com.Looked
	p.eachOut(func(m *Msg) { outBy[m.DPort]++ })
	w.com.Looked = looked
	if p.outBy != nil && !maps.Equal(p.outBy, outBy) || p.outBy == nil && len(p.holds) > holdsFew || p.outBy != nil && len(p.holds) == 0 {
		w.t.Errorf("%v: with %d holds %v are out, and it counts %v", p, len(p.holds), outBy, p.outBy)
	}
	for port, h := range p.holds {
		is("back", &h.back, inBack)
		is("kept", &h.kept, inKept)
		if out := outBy[port]; out != h.out {
			w.t.Errorf("%v: %d messages to port %d are out, and it counts %d", p, out, port, h.out)
		}
		if h.out == 0 && !w.peerMap.Congested(port) && !p.late {
			w.t.Errorf("%v: messages to port %d are held back for nothing", p, port)
		}
	}
	if p.forget != WhyNone {
		return // what is being written has the numbers of a former life
	}
	// What is left to be sent again stands behind what was, on this link.
	last := uint64(0)
	for _, l := range []*list{&p.unacked, &p.inwrite, &p.retrans} {
		for m := l.head; m != nil; m = m.next {
			// Those that left in one frame have one sequence (join.go).
			together := m.prev != nil && m.prev.seq == m.seq && m.prev.joins(m) && w.c.kind == KindRdsd && w.c.trains
			if m.seq < last || m.seq == last && !together || m.seq >= p.nextSeq {
				w.t.Errorf("%v: sequence %d stands behind %d, the next is %d", p, m.seq, last, p.nextSeq)
			}
			last = m.seq
			if m.Cell != nil && atomic.LoadUint64(m.Cell) != uint64(p.idx)<<CellLane|m.seq && w.c.kind == KindRdsd {
				w.t.Errorf("%v: the cell of sequence %d says %#x", p, m.seq, *m.Cell)
			}
		}
	}
}

// checkRefusals checks that each refusal is counted until the peer acknowledges it, and
// that nothing from the first one on that has not left is acknowledged.
func (w *world) checkRefusals(p *Lane) {
	n, pongs, tells, unsent := len(p.refused), uint8(0), uint8(0), uint64(0)
	pongsOut := uint16(0)
	next, cancelled := p.refuses.head, int32(0)
	for _, l := range []*list{&p.unacked, &p.inwrite, &p.retrans, &p.control} {
		for m := l.head; m != nil; m = m.next {
			if m.cancelled {
				cancelled++
			}
			switch m.Kind {
			case MsgRefuse:
				if l == &p.inwrite && p.forget != WhyNone {
					continue // of a former life
				}
				if m != next {
					w.t.Errorf("%v: a message of refusals is not where it is in the chain", p)
					return
				}
				next = next.aft
				n += wire.Refusals(m.Payload)
				if (l == &p.retrans || l == &p.control) && (unsent == 0 || m.Tag < unsent) {
					unsent = m.Tag
				}
			case MsgPong:
				if l == &p.control {
					pongs++
				} else {
					pongsOut++
				}
			case MsgTell:
				tells++
			}
		}
	}
	if len(p.refused) > 0 && (unsent == 0 || p.refused[0].Seq < unsent) {
		unsent = p.refused[0].Seq
	}
	if next != nil || cancelled != p.cancelled {
		w.t.Errorf("%v: more messages of refusals are in the chain than there are (%v), or %d cancelled are counted, not %d", p, next != nil, p.cancelled, cancelled)
	}
	if n != p.refusals || pongs != p.pongs || tells != p.tells || pongsOut != p.pongsOut {
		w.t.Errorf("%v: %d refusals, %d+%d pongs and %d messages of Tell are counted, and %d, %d+%d and %d are there",
			p, p.refusals, p.pongs, p.pongsOut, p.tells, n, pongs, pongsOut, tells)
	}
	if (p.state == Up || p.state == Disconnecting) && !p.requeue && unsent != p.unsentRef {
		w.t.Errorf("%v: sequence %d is the first whose refusal has not left, and it says %d", p, unsent, p.unsentRef)
	}
}

// checkCredits checks that a credit is the peer's or owed to it, and never another's.
func (w *world) checkCredits(p *Lane) {
	if p.state != Up || w.c.kind != KindRdsd {
		return
	}
	if p.granted+p.owed != p.window0() || p.granted < 0 || p.owed < 0 {
		w.t.Errorf("%v: the peer has %d credits and is owed %d of %d", p, p.granted, p.owed, p.window0())
	}
	if p.credits < 0 || p.credits > p.window {
		w.t.Errorf("%v: we have %d credits of %d", p, p.credits, p.window)
	}
}

// checkNumbers checks that nothing is acknowledged that was not sent or not received,
// neither by the peer nor to it.
func (w *world) checkNumbers(p *Lane) {
	if p.ackSeen >= p.nextSeq {
		w.t.Errorf("%v: sequence %d is acknowledged, the next to be sent is %d", p, p.ackSeen, p.nextSeq)
	}
	if p.txAcked > p.txOff || p.msgOff > p.txOff {
		w.t.Errorf("%v: TCP has acknowledged %d bytes, and messages have %d, of %d", p, p.txAcked, p.msgOff, p.txOff)
	}
	if p.state == Up && w.c.kind == KindRdsd && p.ackedRx > p.ackable() {
		w.t.Errorf("%v: sequence %d was acknowledged, and %d may be", p, p.ackedRx, p.ackable())
	}
	for i, attempt := 0, p.attempt; i < len(p.waiting); i++ {
		if p.waiting[i].attempt <= attempt {
			w.t.Errorf("%v: link %d waits behind link %d", p, p.waiting[i].attempt, attempt)
		}
		attempt = p.waiting[i].attempt
	}
}

func (w *world) checkPending() {
	n, bytes := 0, 0
	for m := w.c.pending.head; m != nil; m = m.next {
		n += m.Datagrams()
		bytes += len(m.Payload)
		if m.where != inPending {
			w.t.Errorf("datagram %d waits for the lanes, and thinks itself elsewhere", m.Tag)
		}
	}
	if n != w.c.pending.n || bytes != w.c.pending.bytes {
		w.t.Errorf("%d datagrams of %d bytes wait for the lanes, counted are %d of %d", n, bytes, w.c.pending.n, w.c.pending.bytes)
	}
	if n > 0 && w.c.nlanes != 0 && w.c.grow == 0 && w.c.lanes[0].ready {
		w.t.Errorf("%d datagrams wait for lanes that are known", n)
	}
	underWay := 0
	w.c.EachLane(func(p *Lane) {
		underWay += p.queue.n + p.inwrite.n + p.unacked.n + p.retrans.n
		if p.state == Up || p.state == Disconnecting {
			underWay += int(p.msgOff - min(p.txAcked, p.msgOff))
		}
	})
	if w.c.grow != 0 && underWay == 0 && w.c.lanes[0].ready {
		w.t.Errorf("%d datagrams wait for %d lanes, and nothing is under way on the others", n, w.c.grow)
	}
}

// checkLent checks that a message that Common has lent stands in a list, and each datagram
// without an outcome does: nothing was put aside and forgotten. What was given back was
// lent, and was given back once.
func (w *world) checkLent() {
	used := len(w.msgs) - len(w.com.msgs)
	if used == len(w.msgs) || &w.com.msgs[0] != &w.msgs[used] {
		w.t.Fatalf("more than %d messages are lent at a time", len(w.msgs))
	}
	spare := 0
	for m := w.com.free; m != nil && spare <= used; m = m.next {
		if spare++; !w.pooled[m] {
			w.t.Errorf("a message is given back that was not lent")
		}
	}
	if spare != w.com.Spare || spare > used {
		w.t.Errorf("of %d messages %d are given back, and %d are counted", used, spare, w.com.Spare)
	}
	lent, undone := 0, 0
	count := func(m *Msg) bool {
		if m.Owner != nil {
			undone += m.Datagrams()
		}
		if m.Owner == nil || w.pooled[m] {
			lent++
		}
		return false
	}
	w.c.pending.each(count)
	w.c.EachLane(func(p *Lane) {
		for i := range p.queue.all() {
			p.queue.lists[i].each(count)
		}
		for _, h := range p.holds {
			h.back.each(count)
			h.kept.each(count)
		}
		for _, l := range []*list{&p.control, &p.retrans, &p.unacked, &p.inwrite} {
			l.each(count)
		}
	})
	if lent != used-spare {
		w.t.Errorf("%d lent messages are under way, and %d were not given back", lent, used-spare)
	}
	if undone != len(w.undone) {
		w.t.Errorf("%d datagrams are under way, and %d have no outcome", undone, len(w.undone))
	}
}

// checkEnd checks that nothing is counted any more when everything has its outcome.
func (w *world) checkEnd() {
	if q := w.c.Queued(); q != (Queued{}) {
		w.t.Errorf("%+v is left", q)
	}
	if n := w.c.Held(); n != 0 {
		w.t.Errorf("%d ports are held", n)
	}
	w.checkLent()
	if w.c.flows == nil {
		return
	}
	for i := range w.c.flows {
		if out := w.c.flows[i].out; out != 0 {
			w.t.Errorf("flow %d counts %d messages", i, out)
		}
	}
}
