package conn

import (
	"errors"
	"slices"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Flow holds, between two rdsd only. A receiver at its hard limit refuses a datagram
// instead of stopping the link (D9) or dropping it: it remembers the port as refusing,
// answers with a refusal, and refuses everything else to that port on this lane until a
// frame with FlagResume arrives. The sender takes refused datagrams back, in order, puts
// those that it has not sent yet behind them, and goes on sending when the port is clear
// and nothing to it is unacknowledged; the first frame then bears FlagResume. So a flow
// keeps its order, and nothing is refused for ever.
//
// Refusals are sequenced messages and therefore survive the loss of a link; the
// receiver's acknowledgement stays below a refused sequence until the refusal
// has been sent on the same link, so the sender never takes a refused datagram
// for a delivered one.
type hold struct {
	back list // refused, in order
	kept list // not sent yet: behind all that may still be refused
	out  int  // to this port, sent and not yet acknowledged or refused
}

// n is how many datagrams are held.
func (h *hold) n() int { return h.back.n + h.kept.n }

// keepBack takes m (just popped from the queue) into the hold of its port
// when there is one or the port is congested.
func (p *Lane) keepBack(m *Msg) bool {
	if p.c.kind != KindRdsd || m.Kind != MsgData {
		return false
	}
	h := p.holds[m.DPort]
	if h == nil {
		if !p.c.owner.Congested(m.DPort) {
			return false
		}
		h = p.newHold(m.DPort)
		if h.out > 0 {
			// The hold ends when these are decided; the frame that would have
			// asked for their acknowledgement may be the one kept back.
			p.askNow = true
		}
	}
	// The message was accepted before its port became congested, or stands behind refused
	// ones: sent now it would be refused, or overtake them.
	p.c.ctr.HoldEnter += uint64(m.Datagrams())
	h.kept.push(m)
	m.where = inKept
	return true
}

func (p *Lane) newHold(port uint16) *hold {
	h := &hold{}
	if p.holds == nil {
		p.holds = make(map[uint16]*hold)
	}
	p.holds[port] = h
	if p.outBy == nil && len(p.holds) > holdsFew {
		p.outBy = make(map[uint16]int)
		p.eachOut(func(m *Msg) { p.outBy[m.DPort]++ })
	}
	// Messages that are out already may still be refused, and have to be put back before
	// those that are kept. The hold ends only when each of them is decided.
	if p.outBy != nil {
		h.out = p.outBy[port]
		return h
	}
	p.eachOut(func(m *Msg) {
		if m.DPort == port {
			h.out++
		}
	})
	return h
}

// holdsFew is how many holds each look for themselves at what is out. A peer that says of all its
// ports that they are congested has a hold begin for each of them: from the next one on what is out
// is counted by port.
const holdsFew = 16

// eachOut calls f for the datagrams that were sent and are not decided.
func (p *Lane) eachOut(f func(*Msg)) {
	for _, l := range []*list{&p.unacked, &p.inwrite, &p.retrans} {
		for m := l.head; m != nil; m = m.next {
			p.c.com.Looked++
			if m.Kind == MsgData {
				f(m)
			}
		}
	}
}

// goesOut counts m, which gets its sequence, as out.
func (p *Lane) goesOut(m *Msg) {
	if p.outBy != nil && m.Kind == MsgData {
		p.outBy[m.DPort]++
	}
}

// decided counts m as not out any more, and returns the hold of its port if there is one.
func (p *Lane) decided(m *Msg) *hold {
	if len(p.holds) == 0 || m.Kind != MsgData {
		return nil
	}
	if p.outBy != nil {
		if p.outBy[m.DPort]--; p.outBy[m.DPort] <= 0 {
			delete(p.outBy, m.DPort)
		}
	}
	h := p.holds[m.DPort]
	if h != nil {
		h.out--
	}
	return h
}

// settled tells the hold of m's port that m is decided.
func (p *Lane) settled(now time.Duration, m *Msg) {
	if h := p.decided(m); h != nil {
		p.tryResume(now, m.DPort, h)
	}
}

// Held is how many ports of the peer messages are held for.
func (c *Conn) Held() (n int) {
	c.EachLane(func(p *Lane) { n += len(p.holds) })
	return n
}

// PortsClear tells that any port of the peer may be clear.
func (c *Conn) PortsClear(now time.Duration) {
	c.EachLane(func(p *Lane) {
		if p.late { // all have their turn soon
			return
		}
		for _, port := range p.heldPorts() {
			p.tryResume(now, port, p.holds[port])
		}
	})
}

// PortClear tells that a port of the peer is no longer congested.
func (c *Conn) PortClear(now time.Duration, port uint16) {
	c.EachLane(func(p *Lane) {
		if h := p.holds[port]; h != nil {
			p.tryResume(now, port, h)
		}
	})
}

// To end a hold costs as much as is held, and so does to begin it again: a peer whose port
// is congested, then clear, then congested would have us do nothing else. So once something was
// moved, nothing is before moveTime has passed for each message of it, which leaves most of the time
// to others; what may end then does as soon as it may. Before that holds go at once
// that come to no more than heldFew together. Likewise the messages that wait for a peer are spread
// over the lanes and taken back again with each incarnation of the peer.
//
// A hold that begins may look at all that is out besides (holdsFew), whatever is held: with more than
// outFew messages out, which only a peer has that grants more than rdsd does, outCost of them count
// as one that is moved.
const (
	heldFew  = 256
	moveTime = time.Microsecond
	outFew   = 8192
	outCost  = 32
	// portsCost of the ports that are looked through for those that are late count as one.
	portsCost = 16
	// keptMost is how many messages one turn keeps back.
	keptMost = 4096
)

// errRestarts is why a lane closes when too many messages wait for the peer to be moved to
// its new incarnation so soon after the last.
var errRestarts = errors.New("the peer restarts more often than what waits for it can be sorted")

func (p *Lane) tryResume(now time.Duration, port uint16, h *hold) {
	// A message that is out may yet be refused and would then come back behind those put
	// into the queue here: its flow would be out of order.
	if h.out > 0 || p.c.owner.Congested(port) {
		return
	}
	n := h.back.messages + h.kept.messages
	if out := p.unacked.messages + p.inwrite.messages + p.retrans.messages; out > outFew {
		n += out / outCost
	}
	// A port that was late before has its turn first.
	if now >= p.moveAt && !p.late {
		p.movedFew = 0
	} else if n > heldFew || int(p.movedFew)+n > heldFew {
		p.late = true
		p.c.rearm(p.moveAt)
		return
	}
	if n <= heldFew {
		p.movedFew += int16(n)
	}
	p.moveAt = max(p.moveAt, now) + time.Duration(n)*moveTime
	if delete(p.holds, port); len(p.holds) == 0 {
		p.outBy = nil
	}
	if p.resume == nil {
		p.resume = make(map[uint16]struct{})
	}
	// The receiver refuses everything to the port until a frame says that nothing refused
	// is missing before it. Which message that will be is known when it is sent: this one
	// may be cancelled before.
	p.resume[port] = struct{}{}
	p.c.ctr.HoldResume++
	// The second goes before the first: refused messages were sent earlier than those that
	// were kept.
	p.queue.front(&h.kept)
	p.queue.front(&h.back)
	if p.ready {
		p.kick()
	}
}

// resumeLate ends holds that were not moved when they might have been, and returns when
// to come again. Ports take turns: one that is always held again leaves the next to others.
func (p *Lane) resumeLate(now time.Duration) time.Duration {
	if !p.late {
		return Never
	}
	if now < p.moveAt {
		return p.moveAt
	}
	p.late = false
	// Behind the one that had its turn last, round and round: the ports' order alone would
	// let the lowest one that is congested again and again keep out all others.
	ports := p.heldPorts()
	first, _ := slices.BinarySearch(ports, p.moved)
	if first < len(ports) && ports[first] == p.moved {
		first++
	}
	for i := range ports {
		port := ports[(first+i)%len(ports)]
		h := p.holds[port]
		if p.tryResume(now, port, h); p.holds[port] == nil {
			p.moved = port
		}
	}
	p.moveAt += time.Duration(len(ports)/portsCost) * moveTime
	return Never // of a hold that has to wait again tryResume has armed the next call
}

func (p *Lane) heldPorts() []uint16 {
	ports := make([]uint16, 0, len(p.holds))
	for port := range p.holds {
		ports = append(ports, port)
	}
	slices.Sort(ports) // the simulator wants the same order each time
	return ports
}

// onRefusal takes one refusal of the peer.
func (p *Lane) onRefusal(now time.Duration, r wire.Refusal) error {
	// A refusal of a message that was never sent cannot come from a fault of the network:
	// TCP has kept the bytes. The peer and we disagree about the stream, and the link ends.
	if r.Seq == 0 || r.Seq >= p.nextSeq {
		return errAckAhead
	}
	s := p.search
	if s == nil {
		s = new(search)
		p.search = s
	}
	if len(s.late) > 0 || p.writing && p.inwrite.head != nil && r.Seq >= p.inwrite.head.seq && r.Seq <= p.inwrite.tail.seq {
		// The other side was quicker than our own write call. Its next refusals wait too,
		// because refusals are taken in order. There are no more refusals than messages
		// out, so a peer cannot grow this without end.
		if len(s.late) > p.inwrite.n+p.retrans.n+p.unacked.n {
			return errAckAhead
		}
		s.late = append(s.late, r)
		return nil
	}
	if s.spent > looksMost {
		return errRefusedFar
	}
	l, m := p.sentAs(r.Seq)
	// All that left in that frame (join.go).
	for m != nil && m.seq == r.Seq && m.Kind == MsgData {
		next := m.next
		l.remove(m)
		p.refusedMsg(now, m, r.Reason)
		m = next
	}
	s.in, s.at = l, m
	return nil
}

// search is what a lane keeps for a peer that refuses, from its first refusal on: the search
// for refused messages above all. A peer decides how many it refuses, at 12 bytes each, and
// each search from the beginning costs as much as is unacknowledged. Those of one control
// message rise with the sequences if the peer keeps to the rules, so the search goes on where
// it ended (and no longer than for that message: what it points at may be done then, and be
// another lane's); and an acknowledgement follows, which takes what was passed by out of the
// way.
type search struct {
	in    *list  // where the last refused message stood
	at    *Msg   // behind it
	spent int    // looks that no message has paid for by being done
	first uint64 // the lowest sequence that was out when spent was last paid off

	// late are of messages in inwrite: the peer was quicker than our own write call. Wrote
	// takes them.
	late []wire.Refusal
}

// A message that is done pays for looksEach looks; a peer that has looksMost unpaid loses its link.
// One that keeps to the rules has what is out looked through once, and then acknowledges it.
const (
	looksEach = 64
	looksMost = 1 << 22
)

var errRefusedFar = errors.New("it refuses messages far behind what it acknowledges")

// searched ends the search of one control message.
func (p *Lane) searched() {
	if p.search != nil {
		p.search.in, p.search.at = nil, nil
	}
}

// sentAs finds the message with sequence seq, the first if several left in one frame, or the
// first behind where it would be; and the list that it stands in. If a link was lost since it
// was sent, it stands in retrans. If it is in neither list it was given up meanwhile (giveUp),
// and no socket waits for its outcome.
func (p *Lane) sentAs(seq uint64) (*list, *Msg) {
	s := p.search
	if s.in == nil {
		s.pay(p)
	}
	for _, l := range [...]*list{&p.unacked, &p.retrans} {
		if l.tail == nil || l.tail.seq < seq {
			continue
		}
		m := l.head
		if s.in == l && s.at != nil && s.at.seq <= seq {
			m = s.at
		}
		for ; m != nil && m.seq < seq; m = m.next {
			s.spent++
			p.c.com.Looked++
		}
		return l, m
	}
	return nil, nil
}

// pay lets what is not out any more pay for looks.
func (s *search) pay(p *Lane) {
	first := p.nextSeq
	for _, l := range [...]*list{&p.unacked, &p.retrans} {
		if l.head != nil {
			first = min(first, l.head.seq)
		}
	}
	if first > s.first {
		s.spent = max(0, s.spent-looksEach*int(min(first-s.first, looksMost)))
		s.first = first
	}
}

func (p *Lane) refusedMsg(now time.Duration, m *Msg, why wire.Reason) {
	port := m.DPort
	// No socket will take it, now or later: its outcome is failed, and the messages behind
	// it are not held up for it.
	if why == wire.ReasonNoPort {
		p.settled(now, m)
		p.c.done(p, m, Failed, WhyNoPort)
		return
	}
	h := p.decided(m)
	if h == nil {
		h = p.newHold(port) // m stands in no list any more
	}
	if m.cancelled {
		// It was not delivered, and was cancelled.
		p.c.ctr.SendCancelled += uint64(m.Datagrams())
		p.c.done(p, m, Cancelled, WhyApp)
	} else {
		p.c.owner.Refused(m)
		_, of := p.c.Among(m)
		m.flags, m.apart = 0, m.apart || of > 0
		// It counts as a message that was never sent: next time it gets a new sequence and
		// flags, and the sequence that it had stays a gap.
		p.setSeq(m, 0)
		h.back.push(m)
		m.where = inBack
		p.c.ctr.HoldEnter += uint64(m.Datagrams())
	}
	p.tryResume(now, port, h)
}

// Refusals wait here until the peer acknowledges them. A peer that does not, and goes on
// sending, would fill this node's memory with them: while more than refusalsWait wait, the
// peer gets no new credits for the messages it sends, and a peer that comes again with new
// links is given up at refusalsMost.
//
// A peer that retransmits is another matter: its own refusals stand behind its
// retransmissions, and until they have left, our refusals are not acknowledged either.
func (p *Lane) refusalsWait() bool { return !p.again && p.refusals > p.window0()/4 }

func (p *Lane) refusalsMost() int { return 4 * p.window0() }

// refuse notes that the n datagrams with sequence seq were received and not placed. The link ends
// if the peer goes on sending and does not acknowledge refusals, which would fill this node's memory.
func (p *Lane) refuse(seq uint64, n int, why wire.Reason) error {
	if p.refusals >= p.refusalsMost() || !p.c.mayRefuse() {
		return errRefusals
	}
	if why == wire.ReasonNoPort {
		p.c.ctr.RefuseNoPort += uint64(n)
	} else {
		p.c.ctr.RefuseNoRoom += uint64(n)
	}
	p.refusals++
	p.refused = append(p.refused, wire.Refusal{Seq: seq, Reason: why})
	// Sequences rise, so the first that is noted is the lowest, below which
	// acknowledgements stay until its refusal has left.
	if p.unsentRef == 0 {
		p.unsentRef = seq
	}
	// A sender whose datagram is refused holds a whole flow back for it.
	p.ackPending = true
	return nil
}

// Refusals copies the refusals the peer has not acknowledged yet to dst and
// tells how many; when dst is full there may be more.
func (p *Lane) Refusals(dst []wire.Refusal) (n int) {
	// Those in messages first, in the order in which they will be acknowledged.
	for m := p.refuses.head; m != nil && n < len(dst); m = m.aft {
		p.c.com.Looked++
		_ = wire.ParseRefusals(m.Payload, func(r wire.Refusal) error {
			if n < len(dst) {
				dst[n] = r
				n++
			}
			return nil
		})
	}
	return n + copy(dst[n:], p.refused)
}

// sendRefusals puts the refusals into messages, which are sequenced like data: into the last one
// if it has not left.
func (p *Lane) sendRefusals() {
	for len(p.refused) > 0 {
		m := p.refuses.last()
		if m == nil || m.seq != 0 || wire.Refusals(m.Payload) == wire.MaxRefusals {
			m = p.c.com.NewMsg()
			m.Kind = MsgRefuse
			m.flags = wire.FlagControl | wire.FlagAckRequired
			// The lowest sequence in it: by this ackable knows how far it may go once this has left.
			m.Tag = p.refused[0].Seq
			p.control.push(m)
			p.refuses.add(m)
		}
		n := min(len(p.refused), wire.MaxRefusals-wire.Refusals(m.Payload))
		was := len(m.Payload)
		for _, r := range p.refused[:n] {
			m.Payload = wire.AppendRefusal(m.Payload, r)
		}
		p.control.bytes += len(m.Payload) - was
		p.refused = p.refused[n:]
	}
	p.refused = nil
}

// joinedRefusals is up to how many refusals messages that were sent are joined. One that went on
// growing would never be acknowledged as a whole, and a peer gets no credits for a quarter of a window
// of them (refusalsWait).
func (p *Lane) joinedRefusals() int { return min(64, p.window0()/8) }

// joinRefusals makes one message of the last ones that were sent and are not acknowledged, with the
// last one's sequence, or a peer that has each read of ours answered with a refusal would have us
// keep a message for each. It is read again if the link is lost: what a peer has then been told twice
// is decided, and says nothing new to it (sentAs).
func (p *Lane) joinRefusals() {
	m := p.refuses.last()
	for m != nil && m.where != inSent {
		m = p.refuses.before(m)
	}
	most := p.joinedRefusals()
	for m != nil {
		o := p.refuses.before(m)
		if o == nil || o.where != inSent || wire.Refusals(o.Payload)+wire.Refusals(m.Payload) > most {
			return
		}
		p.unacked.remove(o)
		p.refuses.remove(o)
		p.unacked.bytes += len(o.Payload)
		m.Payload, m.Tag = append(o.Payload, m.Payload...), o.Tag
		p.c.com.FreeMsg(o)
	}
}

// refuses chains a lane's messages of refusals (MsgRefuse), in the order in which they leave: they
// are asked for at each read, and may stand behind all that is unacknowledged. They have no sender,
// whose fore and aft are free for that.
// The first has the last as its fore, so that a lane is no larger than it has to be (TestLaneSize).
type refuses struct{ head *Msg }

func (l *refuses) add(m *Msg) {
	if l.head == nil {
		l.head, m.fore = m, m
		return
	}
	last := l.last()
	last.aft, m.fore, l.head.fore = m, last, m
}

// last is the one that leaves last, before the one that leaves before m; nil: there is none.
func (l *refuses) last() *Msg {
	if l.head == nil {
		return nil
	}
	return l.head.fore
}

func (l *refuses) before(m *Msg) *Msg {
	if m == l.head {
		return nil
	}
	return m.fore
}

// remove takes m out when it ends, if it is not of a former life (clear).
func (l *refuses) remove(m *Msg) {
	if m.fore == nil {
		return
	}
	switch {
	case m == l.head:
		if l.head = m.aft; l.head != nil {
			l.head.fore = m.fore
		}
	case m.aft == nil:
		m.fore.aft, l.head.fore = nil, m.fore
	default:
		m.fore.aft, m.aft.fore = m.aft, m.fore
	}
	m.fore, m.aft = nil, nil
}

func (l *refuses) clear() {
	for l.head != nil {
		l.remove(l.head)
	}
}

// restoreRefusals is called when the link is gone: acknowledgements on the next link must
// again wait for the refusals that were not acknowledged.
func (p *Lane) restoreRefusals() {
	p.unsentRef = 0
	// Acknowledgements are of one link: the refusals may have been lost with the former
	// link, and the refused messages would count as delivered if they were acknowledged
	// before the refusals are sent again. The first message has the lowest, as in nextRefusal.
	if m := p.refuses.head; m != nil {
		p.unsentRef = m.Tag
	} else if len(p.refused) > 0 {
		p.unsentRef = p.refused[0].Seq
	}
}

// nextRefusal finds the lowest refused sequence whose refusal has not left.
func (p *Lane) nextRefusal() {
	p.unsentRef = 0
	// They leave in this order, those that refuse lower sequences first, so the first that
	// is found has the lowest.
	for _, l := range []*list{&p.retrans, &p.control} {
		for m := l.head; m != nil; m = m.next {
			if m.Kind == MsgRefuse {
				p.unsentRef = m.Tag
				return
			}
		}
	}
	if len(p.refused) > 0 {
		p.unsentRef = p.refused[0].Seq
	}
}
