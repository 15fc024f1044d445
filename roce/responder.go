package roce

// responder is the half of a queue pair that receives.
type responder struct {
	queue    ring[Recv]
	out      int    // receives that were posted and not polled
	expected PSN    // of the next packet
	msn      PSN    // messages that were completed
	prev     Opcode // of the packet before
	got      int    // bytes of the message that has begun
	refused  bool   // the expected packet was answered with a NAK and did not come since

	// The answer that the peer is owed. A later one says all that an earlier one did, so
	// there is at most one.
	owed     bool
	syndrome Syndrome
	psn      PSN
}

func (r *responder) begin(first PSN) {
	// Before the first message is the end of another.
	*r = responder{queue: r.queue, out: r.out, expected: first, prev: SendOnly}
}

// answer owes the peer s about psn.
func (r *responder) answer(s Syndrome, psn PSN) { r.owed, r.syndrome, r.psn = true, s, psn }

// nextAnswer makes p the answer that is owed, if one is.
func (q *QP) nextAnswer(p *Packet) bool {
	r := &q.resp
	if !r.owed {
		return false
	}
	r.owed = false
	*p = Packet{
		Op: Acknowledge, Migrated: migrated, PKey: DefaultPKey, Dest: q.peer.Number,
		PSN: r.psn, Syndrome: r.syndrome, MSN: r.msn,
	}
	return true
}

// request takes a packet of a message of the peer.
func (q *QP) request(p *Packet) {
	r := &q.resp
	switch ahead := p.PSN.Sub(r.expected); {
	case ahead < 0:
		// Its acknowledgement was lost. What it asked for was done, and is not done again.
		q.stats.Duplicates++
		if !r.refused {
			r.answer(AckUnlimited, r.expected.Add(-1))
		}
	case ahead > 0:
		// One NAK a gap: the peer goes back to what is missing and sends all behind it.
		q.stats.Gaps++
		if !r.refused {
			r.refused = true
			r.answer(NAKSequence, r.expected)
		}
	default:
		r.refused = false
		q.expected(p)
	}
}

// expected takes the packet that is due.
func (q *QP) expected(p *Packet) {
	r := &q.resp
	if opcodes[p.Op].kind != kindSend || hasKey(p.Op) || !p.Op.Follows(r.prev) || !fits(p, q.peer.MTU) {
		q.refuse(NAKInvalidRequest)
		return
	}
	if r.queue.n == 0 { // and so the message begins: one that has begun has its receive
		q.stats.NotReady++
		r.refused = true
		r.answer(q.cfg.RNR, r.expected)
		return
	}
	data := r.queue.at(0).Data
	if len(p.Payload) > len(data)-r.got {
		// A SEND does not say how long it will be, so this shows with the packet that is
		// too much. What came before it stays in the receiver's memory.
		q.completeRecv(Completion{Status: LocalLength})
		q.refuse(NAKInvalidRequest)
		return
	}
	r.got += copy(data[r.got:], p.Payload)
	r.prev = p.Op
	r.expected = r.expected.Add(1)
	if p.Op.Ends() {
		hasImm := opcodes[p.Op].has&hasImm != 0
		q.completeRecv(Completion{N: r.got, Solicited: p.Solicited, HasImm: hasImm, Imm: p.Imm})
		r.got = 0
		r.msn = r.msn.Add(1)
	}
	if p.AckReq {
		r.answer(AckUnlimited, p.PSN)
	}
}

// refuse ends q and tells the peer, whose queue pair that ends as well.
func (q *QP) refuse(s Syndrome) {
	q.resp.answer(s, q.resp.expected)
	q.Fail()
}

// hasKey reports whether a message ends a key, which is not done yet.
func hasKey(op Opcode) bool { return opcodes[op].has&hasIETH != 0 }

// fits reports whether a packet is as long as its place in its message demands: all but the
// last one carry exactly one MTU, and the last of several something.
func fits(p *Packet, mtu int) bool {
	n := len(p.Payload)
	switch opcodes[p.Op].part {
	case only:
		return n <= mtu
	case last:
		return n > 0 && n <= mtu
	}
	return n == mtu
}
