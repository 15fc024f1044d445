package roce

import "time"

// acknowledged takes an acknowledgement, which is also one of all packets before. A negative
// one is about p.PSN, and acknowledges those before it. It reports whether p belongs to what
// is under way, or did.
func (q *QP) acknowledged(now time.Duration, p *Packet) bool {
	r := &q.req
	if !q.underWay(p.PSN) {
		return q.stale(p.PSN)
	}
	s := p.Syndrome
	// Whatever it says of p.PSN, what is before that was received.
	switch {
	case s.IsAck():
		if q.before(now, p.PSN.Add(1)) {
			q.back(now)
		}
	case s.IsRNR():
		q.stats.RcvdRNRErr++
		// Answers to a READ are missing before it: they are asked for first.
		if q.before(now, p.PSN) {
			q.back(now)
			return true
		}
		q.notReady(now, s)
	case s == NAKSequence:
		q.stats.RcvdSeqErr++
		q.before(now, p.PSN)
		q.back(now)
	case s == NAKInvalidRequest || s == NAKRemoteAccess || s == NAKRemoteOperation:
		q.before(now, p.PSN)
		q.refused(p.PSN, refusal(s))
	default:
		q.stats.BadSyndrome++
	}
	if r.unacked == r.end {
		q.deadline = never
	}
	q.dev.timers.arm(q)
	return true
}

// underWay reports whether psn is one of the packets that can be answered.
func (q *QP) underWay(psn PSN) bool {
	r := &q.req
	return q.state == RTS && psn.Within(r.unacked, r.end.Sub(r.unacked))
}

// stale reports whether psn, which is not under way, was so lately: an answer that comes twice
// or is overtaken by another is nothing to be counted.
func (q *QP) stale(psn PSN) bool {
	if q.state == RTS {
		if d := psn.Sub(q.req.unacked); d < 0 && d >= -reach {
			return true
		}
	}
	q.dev.drop(DropWindow)
	return false
}

// before takes all packets before psn as received. It reports whether a READ stands in the
// way: what acknowledges a later packet says that answers to it were lost.
func (q *QP) before(now time.Duration, psn PSN) (lost bool) {
	r := &q.req
	n := psn.Sub(r.unacked)
	if n <= 0 {
		return false
	}
	moved := false
	for n > 0 {
		w := r.queue.at(0)
		if lost = w.Op == OpRead; lost {
			break
		}
		k := min(n, w.packets-w.place(r.unacked))
		n -= k
		moved = true
		q.received(k)
	}
	if moved {
		q.progress(now)
	}
	return lost
}

// received counts the next n packets, which are of the oldest work request, as acknowledged.
func (q *QP) received(n int) {
	r := &q.req
	w := r.queue.at(0)
	ends := w.place(r.unacked)+n == w.packets
	r.unacked = r.unacked.Add(n)
	if r.next.Sub(r.unacked) < 0 { // they were about to be sent again
		r.next = r.unacked
		r.current = 0
		if ends {
			r.current = 1 // until the oldest is gone
		}
	}
	r.retry.arrived(n)
	if ends {
		q.completeSend(OK)
	}
}

// progress notes that the peer has received something that it had not before.
func (q *QP) progress(now time.Duration) {
	r := &q.req
	gaps := uint64(min(r.retry.backs, 2))
	q.stats.GapsClosed += gaps
	q.way.gap(int(gaps))
	r.retry.backs = 0
	gone := 0
	for gone < r.reading && r.reads[gone].Sub(r.unacked) <= 0 {
		gone++
	}
	r.reading = copy(r.reads[:], r.reads[gone:r.reading])
	r.retry.progress(now, r.unacked)
	q.deadline = never
	if r.unacked != r.end {
		q.deadline = now + r.retry.timeout(q)
	}
	q.dev.timers.arm(q)
}

// response takes an answer to a READ. It reports whether it belongs to what is under way, or
// did.
func (q *QP) response(now time.Duration, p *Packet) bool {
	r := &q.req
	if !q.underWay(p.PSN) {
		return q.stale(p.PSN)
	}
	if q.before(now, p.PSN) {
		q.back(now) // answers before this one are missing
		return true
	}
	w := r.queue.at(0)
	off := w.place(p.PSN) * q.peer.MTU
	// Its length says all that there is to be known of it: which opcode a peer chooses for an
	// answer to a request that it saw twice is its own affair.
	if w.Op != OpRead || len(p.Payload) != min(q.peer.MTU, w.len-off) ||
		opcodes[p.Op].has&hasAETH != 0 && !p.Syndrome.IsAck() {
		q.dev.drop(DropResponse)
		return false
	}
	for _, to := range slice(&w.Piece, off, len(p.Payload)) {
		p.Payload = p.Payload[copy(to, p.Payload):]
	}
	q.received(1)
	q.progress(now)
	return true
}

// refused ends q because the peer refused packet psn.
func (q *QP) refused(psn PSN, s Status) {
	r := &q.req
	// Work requests before the one that was refused are READs whose answers were lost: whether
	// the peer did them is not known.
	i := 0
	for ; i+1 < r.queue.n; i++ {
		if w := r.queue.at(i); w.place(psn) < w.packets {
			break
		}
	}
	q.dev.env.Failed(q, &StatusError{Op: r.queue.at(i).Op, Status: s})
	for range i {
		q.completeSend(Flushed)
	}
	q.completeSend(s)
	q.Fail()
}

// gaveUp ends q because the peer did not do the oldest work request in time.
func (q *QP) gaveUp(s Status) {
	q.dev.env.Failed(q, &StatusError{Op: q.req.queue.at(0).Op, Status: s})
	q.completeSend(s)
	q.Fail()
}

// refusal is how a work request ends that was answered with s.
func refusal(s Syndrome) Status {
	switch s {
	case NAKRemoteAccess:
		return RemoteAccess
	case NAKRemoteOperation:
		return RemoteOperation
	}
	return RemoteInvalid
}
