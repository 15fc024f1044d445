package roce

// window is how many packets may be under way that are not acknowledged; rxe has the same.
const window = 128

// ackEvery is after how many packets a long message asks for an acknowledgement: often enough
// that the window does not close for good.
const ackEvery = window / 2

// requester is the half of a queue pair that sends.
//
// In order: unacked, the first packet without an acknowledgement; next, the first that was not
// sent. next - unacked is at most window.
type requester struct {
	queue   ring[send]
	out     int // work requests that were posted and not polled
	sent    int // of the queue: of how many all packets were sent
	off     int // of the one behind those: bytes that were sent
	unacked PSN
	next    PSN
}

// send is a work request under way.
type send struct {
	Work
	last PSN // of its last packet, once that was sent
}

func (r *requester) begin(first PSN) { r.unacked, r.next, r.sent, r.off = first, first, 0, 0 }

// nextRequest makes p the next packet of a message, if there is one and the window is open.
func (q *QP) nextRequest(p *Packet) bool {
	r := &q.req
	if q.state != RTS || r.sent == r.queue.n || r.next.Sub(r.unacked) >= window {
		return false
	}
	w := r.queue.at(r.sent)
	rest := w.Len() - r.off
	n := min(rest, q.peer.MTU)
	ends := n == rest
	*p = Packet{
		Op: sendOpcode(r.off == 0, ends, w.Op == OpSendImm), Migrated: migrated, PKey: DefaultPKey,
		Dest: q.peer.Number, PSN: r.next,
		Solicited: ends && w.Solicited,
		AckReq:    ends || r.next%ackEvery == ackEvery-1,
		Payload:   w.Piece[0][r.off:][:n:n],
	}
	// It stays in the queue until it is acknowledged.
	if ends {
		p.Imm = w.Imm
		w.last = r.next
		r.sent++
		r.off = 0
	} else {
		r.off += n
	}
	r.next = r.next.Add(1)
	return true
}

// migrated is what cards send in each packet, and rxe does not look at.
const migrated = true

// sendOpcode is the opcode of a packet of a SEND. Only the last one has an immediate.
func sendOpcode(starts, ends, imm bool) Opcode {
	switch {
	case starts && ends && imm:
		return SendOnlyImm
	case starts && ends:
		return SendOnly
	case starts:
		return SendFirst
	case ends && imm:
		return SendLastImm
	case ends:
		return SendLast
	}
	return SendMiddle
}

// acknowledged takes an acknowledgement, which is also one of all packets before. A negative
// one is about p.PSN, and acknowledges those before it.
func (q *QP) acknowledged(p *Packet) {
	r := &q.req
	// Only what is under way can be answered; an old answer comes when a duplicate was sent.
	if q.state != RTS || !p.PSN.Within(r.unacked, r.next.Sub(r.unacked)) {
		q.stats.Dropped++
		return
	}
	if p.Syndrome.IsAck() {
		q.completeBefore(p.PSN.Add(1))
		return
	}
	q.completeBefore(p.PSN)
	q.completeSend(refusal(p.Syndrome))
	q.Fail()
}

// completeBefore ends the work requests of which all packets are before psn. Those whose last
// packet was not sent have no last one to compare.
func (q *QP) completeBefore(psn PSN) {
	r := &q.req
	for r.sent > 0 && r.queue.at(0).last.Sub(psn) < 0 {
		q.completeSend(OK)
	}
	r.unacked = psn
}

// refusal is how a work request ends that was answered with s. No retry is left, because
// there is none yet.
func refusal(s Syndrome) Status {
	switch {
	case s.IsRNR():
		return RNRExceeded
	case s == NAKSequence:
		return RetryExceeded
	case s == NAKRemoteAccess:
		return RemoteAccess
	case s == NAKRemoteOperation:
		return RemoteOperation
	}
	return RemoteInvalid
}
