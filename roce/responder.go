package roce

import "time"

// reach is how far from what is expected a packet's number may be. Peers have far fewer
// packets under way; what is further away is not of this connection.
const reach = 1 << 16

// responder is the half of a queue pair that receives.
type responder struct {
	queue    ring[Recv]
	out      int    // receives that were posted and not polled
	expected PSN    // of the next packet
	msn      PSN    // messages that were completed
	prev     Opcode // of the packet before
	acked    PSN    // behind the last packet of a SEND or WRITE, and the messages until then
	ackedMSN PSN
	got      int   // bytes of the message that has begun
	write    place // of a WRITE that has begun
	refused  bool  // the expected packet was answered with a NAK and did not come since

	// The answer that the peer is owed. A later one says all that an earlier one did, so
	// there is at most one. Of an acknowledgement psn is not looked at: it is about all that
	// has come when it leaves.
	owed     bool
	syndrome Syndrome
	psn      PSN

	// The last acknowledgement that left is repeated while nothing comes (repeatAck).
	repeat  time.Duration // when; never: not at all
	repeats int           // how often it was

	// READs of the peer: those to be answered, and those that may be asked for again because
	// the answers were lost, in a circle of which oldest is the first.
	reads  []reading
	oldest int
	active int // how many are to be answered
}

// place is where a message of the peer goes.
type place struct {
	key  uint32
	addr uint64
	len  uint32
}

// begin makes r expect first. It keeps what was posted.
func (r *responder) begin(first PSN, reads int) {
	// Before the first message is the end of another.
	*r = responder{queue: r.queue, out: r.out, expected: first, acked: first, prev: SendOnly, reads: r.reads[:0], repeat: never}
	if cap(r.reads) < reads {
		r.reads = make([]reading, 0, reads)
	}
	r.reads = r.reads[:0:reads]
}

// answer owes the peer s about psn.
func (r *responder) answer(s Syndrome, psn PSN) { r.owed, r.syndrome, r.psn = true, s, psn }

// acknowledge owes the peer an acknowledgement, unless it is owed something that includes it.
func (q *QP) acknowledge() {
	q.resp.repeats = 0
	if q.resp.owed {
		q.stats.AckDeferred++
		return
	}
	q.resp.answer(AckUnlimited, 0)
}

// An acknowledgement is repeated up to maxRepeats times: firstRepeat after it left, and each
// time 1 << repeatShift times as long after that, which is 20 ms, 180 ms and 1.5 s in all.
const (
	firstRepeat = 20 * time.Millisecond
	repeatShift = 3
	maxRepeats  = 3
)

// repeatAck owes the peer its last acknowledgement once more.
//
// Nothing tells a peer that waits for one that was lost but its own time, which is 2.1 s with
// kernels, and then rxe of Linux 6.1 goes back in a way that it may not outlive (docs/testing.md).
// A peer that has it drops what acknowledges nothing new.
func (q *QP) repeatAck() {
	r := &q.resp
	r.repeat = never
	if r.owed || r.refused || r.active > 0 {
		return
	}
	q.stats.AckRepeats++
	r.repeats++
	r.answer(AckUnlimited, 0)
}

// fillAnswer adds the answer that is owed to b, where there is room.
func (q *QP) fillAnswer(now time.Duration, b *Burst) {
	r := &q.resp
	r.owed = false
	r.repeat = never
	p := Packet{
		Op: Acknowledge, Migrated: migrated, PKey: DefaultPKey, Dest: q.peer.Number,
		PSN: r.psn, Syndrome: r.syndrome, MSN: r.msn,
	}
	if r.syndrome.IsAck() {
		// READs behind that are acknowledged by their answers. rxe takes an acknowledgement of a
		// READ for its answer, and completes it without the data if that is lost.
		p.PSN, p.MSN = r.acked.Add(-1), r.ackedMSN
	}
	q.stats.SentAcks++
	b.add(&q.dev.out, &p, [3][]byte{})
	if r.syndrome.IsAck() && r.repeats < maxRepeats && q.state != Error {
		r.repeat = now + firstRepeat<<(repeatShift*r.repeats)
	}
}

// request takes a packet of a message of the peer. It reports whether p belongs to this
// connection.
func (q *QP) request(p *Packet) bool {
	r := &q.resp
	switch ahead := p.PSN.Sub(r.expected); {
	case p.Op == ReadRequest && ahead < 0:
		// Its answers may be many, so that it may be from long ago.
		q.stats.DuplicateRequest++
		return q.replay(p)
	case ahead > reach || ahead < -reach:
		q.dev.drop(DropWindow)
		return false
	case ahead < 0:
		// Its acknowledgement was lost. What it asked for was done, and is not done again.
		q.stats.DuplicateRequest++
		q.acknowledge()
	case ahead > 0:
		// One NAK a gap: the peer goes back to what is missing and sends all behind it.
		q.stats.OutOfSeqRequest++
		if !r.refused {
			r.refused = true
			r.answer(NAKSequence, r.expected)
		}
	default:
		// A NAK that has not left is none any more: packets had only changed places.
		if r.refused && r.owed {
			r.answer(AckUnlimited, 0)
		}
		r.refused = false
		q.expected(p)
	}
	return true
}

// expected takes the packet that is due.
func (q *QP) expected(p *Packet) {
	r := &q.resp
	info := &opcodes[p.Op]
	if info.kind == kindAtomic || !p.Op.Follows(r.prev) || !fits(p, q.peer.MTU) {
		q.refuse(NAKInvalidRequest, ErrProtocol)
		return
	}
	// A SEND has its receive from its first packet on, a WRITE with immediate at its last one.
	// Nothing of that packet is done before there is one.
	takes := info.kind == kindSend && p.Op.Starts() || info.kind == kindWrite && info.has&hasImm != 0
	if takes && r.queue.n == 0 {
		q.notNow()
		return
	}
	switch info.kind {
	case kindSend:
		if !q.placeSend(p) {
			return
		}
	case kindWrite:
		if !q.placeWrite(p) {
			return
		}
	case kindReadRequest:
		q.read(p)
		return
	}
	r.prev = p.Op
	r.expected = r.expected.Add(1)
	if p.Op.Ends() {
		r.msn = r.msn.Add(1)
	}
	r.acked, r.ackedMSN = r.expected, r.msn
	if p.AckReq {
		q.acknowledge()
	}
}

// notNow has the peer send the packet again that is due, of which nothing was done.
func (q *QP) notNow() {
	q.stats.SendRNRErr++
	q.resp.refused = true
	q.resp.answer(q.cfg.RNR, q.resp.expected)
}

// placeSend takes a packet of a SEND. It reports false if it did not.
func (q *QP) placeSend(p *Packet) bool {
	r := &q.resp
	if p.Op.Starts() {
		r.got = 0
	}
	data := r.queue.at(0).Data
	if len(p.Payload) > len(data)-r.got {
		// A SEND does not say how long it will be, so this shows with the packet that is
		// too much. What came before it stays in the receiver's memory.
		q.dev.env.Failed(q, &StatusError{Op: OpRecv, Status: LocalLength})
		q.completeRecv(Completion{Op: OpRecv, Status: LocalLength})
		r.answer(NAKInvalidRequest, r.expected)
		q.Fail()
		return false
	}
	r.got += copy(data[r.got:], p.Payload)
	if !p.Op.Ends() {
		return true
	}
	has := opcodes[p.Op].has
	c := Completion{Op: OpRecv, N: r.got, Solicited: p.Solicited, HasImm: has&hasImm != 0, Imm: p.Imm}
	if has&hasIETH != 0 {
		// The key has ended when the receiver learns of the message.
		filled, err := q.cfg.Memory.Invalidate(q.number, p.Inval)
		if err != nil {
			q.refuse(NAKRemoteAccess, &AccessError{Op: OpSendInval, Key: p.Inval, Err: err})
			return false
		}
		c.HasInval, c.Key, c.Filled = true, p.Inval, filled
	}
	q.completeRecv(c)
	return true
}

// placeWrite takes a packet of a WRITE. It reports false if it did not.
func (q *QP) placeWrite(p *Packet) bool {
	r, w := &q.resp, &q.resp.write
	n := len(p.Payload)
	if p.Op.Starts() {
		r.got = 0
		*w = place{p.Key, p.Addr, p.Len}
	}
	// Each packet but the last leaves something to come, and the last one nothing.
	rest := int64(w.len) - int64(r.got)
	if w.len > MaxMessage || int64(n) > rest || p.Op.Ends() != (int64(n) == rest) {
		q.refuse(NAKInvalidRequest, ErrProtocol)
		return false
	}
	if p.Op.Starts() {
		// All of it has to be the peer's to write before any of it is written.
		if _, err := q.cfg.Memory.Access(q.number, w.key, w.addr, uint64(w.len), RemoteWrite); err != nil {
			return q.denied(p.Op, w, err)
		}
	}
	region, to, err := q.cfg.Memory.access(q.number, w.key, w.addr+uint64(r.got), uint64(n), RemoteWrite)
	if err != nil {
		return q.denied(p.Op, w, err)
	}
	if n > 0 {
		if guard := q.cfg.Memory.guard; guard != nil {
			switch err := guard(to); {
			case err == ErrNotNow:
				q.notNow()
				return false
			case err != nil:
				q.refuse(NAKRemoteOperation, err)
				return false
			}
		}
		copy(to, p.Payload)
		region.wrote(w.addr+uint64(r.got), n)
		r.got += n
	}
	if opcodes[p.Op].has&hasImm != 0 {
		q.completeRecv(Completion{
			Op: OpRecvWrite, N: int(w.len), Solicited: p.Solicited, HasImm: true, Imm: p.Imm, Key: w.key, Addr: w.addr,
		})
	}
	return true
}

// denied ends q because the peer may not touch what w is. It returns false.
func (q *QP) denied(op Opcode, w *place, err error) bool {
	e := &AccessError{Op: OpWrite, Key: w.key, Addr: w.addr, N: uint64(w.len), Err: err}
	switch {
	case op == ReadRequest:
		e.Op = OpRead
	case opcodes[op].has&hasImm != 0:
		e.Op = OpWriteImm
	}
	q.refuse(NAKRemoteAccess, e)
	return false
}

// refuse ends q and tells the peer, whose queue pair that ends as well.
func (q *QP) refuse(s Syndrome, why error) {
	q.resp.answer(s, q.resp.expected)
	q.dev.env.Failed(q, why)
	q.Fail()
}

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
