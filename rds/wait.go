package rds

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
)

// Waiting sends. Datagrams that cannot be accepted yet wait in one queue for each
// destination of a socket, so that a congested port holds up only sends to it. A flow is
// either lined up for the send buffer or awaits its port, never both, and is moved by the
// event it waits for: Completed frees buffer, a congestion update frees a port, memory of
// the node that others have given back is seen by memoryTicker.
//
// Messages that are accepted may wait here too, those with an Owner: Posts, and messages to
// this same address that found no room.

// msgs is a queue of messages that are in no list of a connection.
type msgs struct{ head, tail *conn.Msg }

func (q *msgs) push(m *conn.Msg) {
	m.SetLink(nil)
	if q.tail == nil {
		q.head = m
	} else {
		q.tail.SetLink(m)
	}
	q.tail = m
}

func (q *msgs) unshift(m *conn.Msg) {
	m.SetLink(q.head)
	if q.head = m; q.tail == nil {
		q.tail = m
	}
}

func (q *msgs) pop() *conn.Msg {
	m := q.head
	if q.head = m.Link(); q.head == nil {
		q.tail = nil
	}
	m.SetLink(nil)
	return m
}

// queues reports whether anything waits for dst: it goes first.
func (s *Socket) queues(dst netip.AddrPort) bool {
	if s.waiting+s.held == 0 {
		return false
	}
	f := s.find(dst)
	return f != nil && f.q.head != nil
}

// countWaiting counts m, in f, as waiting (sign 1) or no longer waiting (-1).
func (s *Socket) countWaiting(f *flow, m *conn.Msg, sign int) {
	if m.Owner != nil {
		s.held += sign * m.Datagrams()
	} else {
		s.waiting += sign
		f.pe.owed += uint32(sign) // or less: it wraps
	}
}

func (s *Socket) wait(f *flow, m *conn.Msg) {
	s.e.stir(f)
	s.countWaiting(f, m, 1)
	f.q.push(m)
	s.holding.push(byQueued, f)
	s.traceWaits(f, m)
}

func (s *Socket) waitFirst(f *flow, m *conn.Msg) {
	s.e.stir(f)
	s.countWaiting(f, m, 1)
	f.q.unshift(m)
	s.holding.push(byQueued, f)
	s.traceWaits(f, m)
}

// SendWait offers one datagram and waits until deadline (0: for ever) if it must. If queued
// is true it waits, and a SendDone with batch and tag follows; otherwise it was accepted
// (nil error) or refused at once.
func (s *Socket) SendWait(now time.Duration, dst netip.AddrPort, payload []byte, tag uint64, report Report, deadline time.Duration, batch any) (queued bool, err error) {
	f, err := s.reach(dst, len(payload))
	if err != nil {
		return false, err
	}
	// Waiting datagrams take memory too, and are in no account yet.
	if s.waiting >= s.e.cfg.MaxUndecided {
		return false, rdserr.With(rdserr.ErrTooMany, "%d sends of this socket wait already", s.waiting)
	}
	if deadline == 0 {
		deadline = conn.Never
	}
	// Sends that wait for the same destination go first, also when there is room again: a
	// flow keeps the order in which its sends were called.
	if !s.queues(dst) {
		err = s.admit(f, len(payload))
		if err == nil {
			m := s.e.conns.NewMsg()
			m.Payload, m.Tag, m.Report, m.DPort = payload, tag, bool(report), dst.Port()
			s.accept(now, f, m)
			return false, nil
		}
		if err != rdserr.ErrCongested && !s.passes(f, err, len(payload)) {
			return false, err
		}
		// The flow waits for the end of the condition behind this error, and for that alone: a
		// port that becomes clear does not help a full buffer, nor the other way round.
		if err == rdserr.ErrCongested {
			s.block(now, f)
		} else {
			s.lineUp(f)
		}
	}
	m := s.e.conns.NewMsg()
	m.Payload, m.Tag, m.Report, m.DPort, m.At, m.Cookie = payload, tag, bool(report), dst.Port(), deadline, s.keepBatch(batch)
	s.wait(f, m)
	// One timer for the socket, for the first deadline: an earlier one would be missed.
	if deadline < s.deadline {
		s.deadline = deadline
		s.armDeadline()
	}
	return true, nil
}

// passes reports whether a send of n bytes that was refused with err is lined up: it lacks
// buffer or memory, and whatever frees either runs the flows that are lined up.
func (s *Socket) passes(f *flow, err error, n int) bool {
	return err == rdserr.ErrWouldBlock || errors.Is(err, rdserr.ErrNoMemory) && s.e.cfg.Budget.everSends(size(n, 0)+f.cost())
}

// block lets f await its port.
func (s *Socket) block(now time.Duration, f *flow) {
	s.e.ctr.CongSendBlocked++
	f.pe.block(now, f.dst.Port())
	// A destination that is open is told of its port's changes by the sink.
	if len(f.dests) == 0 {
		s.concern(now, f)
	}
	f.awaitsPort = true
	f.pe.await(now, f)
}

func (s *Socket) lineUp(f *flow) {
	if s.waiting > 0 && f.q.head != nil && f.q.head.Owner != nil {
		// An accepted message needs no room in the send buffer: it may be the one that the
		// others wait for.
		s.lined.unshift(byLined, f)
		return
	}
	s.lined.push(byLined, f)
}

// hasSpace notes that waiting sends may go on; they do at the end of the step.
func (s *Socket) hasSpace() {
	if !s.spaceListed {
		s.spaceListed = true
		s.e.space = append(s.e.space, s)
	}
}

// runWaiting lets waiting sends go where it can, flow by flow in turn.
func (s *Socket) runWaiting(now time.Duration) {
	for s.lined.n > 0 {
		f := s.lined.head
		m := f.q.head
		var err error
		if m != nil {
			err = s.mayGo(f, m)
		}
		// No room for the first in line. Those behind it want the same, and would take it from
		// the first for ever.
		if err != nil && s.passes(f, err, len(m.Payload)) {
			return
		}
		// It goes to the end of the line after one datagram, or to those that await their port:
		// flows take turns, and a congested one holds up no other.
		s.lined.remove(byLined, f)
		if err == rdserr.ErrCongested {
			s.block(now, f)
			continue
		}
		if m != nil {
			s.countWaiting(f, f.q.pop(), -1)
			switch {
			// Accepted before: Post has charged it, and its outcome is not SendDone.
			case m.Owner != nil:
				s.dispatch(now, f, m)
			// It will never be accepted, however long it waits.
			case err != nil:
				s.sendDone(f, m, err)
				s.e.conns.FreeMsg(m)
			default:
				s.sendDone(f, m, nil)
				s.accept(now, f, m)
			}
		}
		// dispatch may have put the message back and made the flow await its port.
		if f.q.head == nil {
			s.holding.remove(byQueued, f)
			s.endFlow(f)
		} else if !f.awaitsPort {
			s.lineUp(f)
		}
	}
}

// mayGo returns nil if m need not wait any longer. A message that is accepted already waits
// for nothing but the congestion of its port.
func (s *Socket) mayGo(f *flow, m *conn.Msg) error {
	if m.Owner == nil {
		return s.admit(f, len(m.Payload))
	}
	if f.pe.Congested(f.dst.Port()) {
		return rdserr.ErrCongested
	}
	return nil
}

func (s *Socket) sendDone(f *flow, m *conn.Msg, err error) {
	if s.e.tracer != nil && err != nil {
		s.traceNotAccepted(f, m, err)
	}
	s.sends = append(s.sends, SendDone{s.dropBatch(m), m.Tag, err})
	s.news(EvSends)
}

// keepBatch keeps the batch of a datagram while that waits. The message has the place as
// its Cookie, so that messages that never wait are no larger.
func (s *Socket) keepBatch(batch any) (place uint32) {
	if n := len(s.batchFree); n > 0 {
		place = s.batchFree[n-1]
		s.batchFree = s.batchFree[:n-1]
		s.batches[place] = batch
		return place
	}
	s.batches = append(s.batches, batch)
	return uint32(len(s.batches) - 1)
}

// dropBatch takes it back; the message's Cookie means nothing from then on.
func (s *Socket) dropBatch(m *conn.Msg) (batch any) {
	batch, s.batches[m.Cookie] = s.batches[m.Cookie], nil
	s.batchFree = append(s.batchFree, m.Cookie)
	m.Cookie = 0
	if len(s.batchFree) == len(s.batches) && len(s.batches) > idleBatches {
		s.batches, s.batchFree = nil, nil
	}
	return batch
}

// idleBatches is how many places a socket of which nothing waits keeps.
const idleBatches = 256

// SendsDone appends the waiting sends decided since the last call to l.
func (s *Socket) SendsDone(l []SendDone) []SendDone {
	l = append(l, s.sends...)
	clear(s.sends)
	s.sends = s.sends[:0]
	return l
}

// failWaiting ends the messages that wait in f: sends not accepted fail with err, accepted
// ones are cancelled for the reason why and counted.
func (s *Socket) failWaiting(f *flow, err error, why conn.Why) (cancelled int) {
	return s.expire(f, err, why, nil)
}

// armDeadline has tick called for the first deadline, no sooner than lookAt.
func (s *Socket) armDeadline() { s.e.arm(&s.tm, s, max(s.deadline, s.lookAt)) }

// tick ends waiting sends whose deadline passed. To find them costs time for everything that waits, with a
// deadline or without one, and the client decides how much that is and how often it wants another to end:
// so behind a look at much that goes on waiting there is none for tellTime for each flow and message of it,
// which is much longer than the look took. A deadline may be as late as that.
func (s *Socket) tick(now time.Duration) {
	s.tm.t = nil
	n, steps := len(s.sends), 0
	var late []*flow
	// Only sends that are not accepted have a deadline; the time of the others is when they
	// were accepted.
	s.deadline = conn.Never
	s.holding.each(byQueued, func(f *flow) {
		passed, left := false, 0
		for m := f.q.head; m != nil; m = m.Link() {
			if m.Owner == nil && m.At <= now {
				passed = true
				continue
			}
			left++
			if m.Owner == nil {
				s.deadline = min(s.deadline, m.At)
			}
		}
		if left > 0 {
			steps += 1 + left
		}
		if passed {
			late = append(late, f)
			steps += left // expire looks at them again
		}
	})
	sortFlows(late)
	for _, f := range late {
		s.expire(f, rdserr.ErrTimeout, conn.WhyNone, func(m *conn.Msg) bool { return m.Owner == nil && m.At <= now })
	}
	s.e.looked += steps
	if s.lookAt = now; steps > lookFew {
		s.lookAt += time.Duration(steps) * tellTime
	}
	s.e.ctr.SendTimeout += uint64(len(s.sends) - n)
	if s.deadline != conn.Never {
		s.armDeadline()
	}
}

// lookFew flows and messages cost little to look at.
const lookFew = 2 * tellFew

// expire ends the messages that wait in f and that which selects, nil being all.
func (s *Socket) expire(f *flow, err error, why conn.Why, which func(*conn.Msg) bool) (cancelled int) {
	if f.q.head == nil {
		return 0
	}
	head := f.q.head
	var keep msgs
	for f.q.head != nil {
		m := f.q.pop()
		switch {
		case which != nil && !which(m):
			keep.push(m)
			continue
		case m.Owner != nil:
			s.countWaiting(f, m, -1)
			cancelled += m.Datagrams()
			s.e.ctr.SendCancelled += uint64(m.Datagrams())
			f.Completed(m, conn.Cancelled, why)
		default:
			s.countWaiting(f, m, -1)
			s.sendDone(f, m, err)
			s.e.conns.FreeMsg(m)
		}
	}
	f.q = keep
	// There may be room for what comes first in line now, though there was none for what did until now.
	if s.lined.head == f && f.q.head != head {
		s.hasSpace()
	}
	// The others go on waiting as they did.
	if f.q.head != nil {
		return cancelled
	}
	if f.awaitsPort {
		f.awaitsPort = false
		f.pe.unawait(f)
	}
	s.lined.remove(byLined, f)
	s.holding.remove(byQueued, f)
	s.endFlow(f)
	return cancelled
}

// sortedFlows returns the flows of s by destination, because the simulator wants the same
// order each time.
func (s *Socket) sortedFlows() []*flow {
	l := make([]*flow, 0, len(s.flows))
	for _, f := range s.flows {
		l = append(l, f)
	}
	sortFlows(l)
	return l
}

func sortFlows(l []*flow) { slices.SortFunc(l, func(a, b *flow) int { return a.dst.Compare(b.dst) }) }
