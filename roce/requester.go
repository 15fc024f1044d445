package roce

import "time"

// window is how many packets may be under way that are not acknowledged; rxe has the same.
const window = 128

// askEvery is after how many packets at most an acknowledgement is asked for, if the packets
// behind them do not wait for one. A quarter of a window does not let it close, and costs the
// peer one packet for so many.
const askEvery = window / 4

// readPackets is how many packets one READ request asks for. A longer OpRead is several
// requests: what is lost is asked for again, and no more than a few of these run into a
// receiver that is slow.
const readPackets = 64

// maxReads is how many READ requests are under way at most, whatever the peer takes.
const maxReads = 16

// requester is the half of a queue pair that sends.
//
// In order: unacked, the first packet without an acknowledgement; next, the first to be sent;
// end, the first that never was. next is before end after something was lost: what is between
// is sent again. end - unacked is at most a window and what one READ is answered with.
type requester struct {
	queue   ring[send]
	out     int // work requests that were posted, and not polled or quietly done
	tail    PSN // of the first packet of the work request that is posted next
	unacked PSN
	next    PSN
	end     PSN
	current int // of the queue: that next is of, or how many there are
	since   int // packets sent since an acknowledgement was asked for

	reads   [maxReads]PSN // behind the last packet of each READ request under way, oldest first
	reading int           // how many they are

	retry retrier
}

// send is a work request under way.
type send struct {
	Work
	first   PSN
	len     int
	packets int // PSNs that it takes, which of a READ are those of its answers
}

func (r *requester) begin(first PSN) {
	r.tail, r.unacked, r.next, r.end = first, first, first, first
	r.current, r.since, r.reading = 0, 0, 0
	r.retry.begin()
}

// packetsOf is how many packets n bytes take.
func packetsOf(n, mtu int) int { return max(1, (n+mtu-1)/mtu) }

func (r *requester) push(w Work, n, mtu int) {
	packets := 1
	if mtu > 0 { // in ERROR there may never have been a peer
		packets = packetsOf(n, mtu)
	}
	r.queue.push(send{Work: w, first: r.tail, len: n, packets: packets})
	r.tail = r.tail.Add(packets)
}

func (r *requester) pop() send {
	if r.current > 0 {
		r.current--
	}
	return r.queue.pop()
}

// place is the place of packet p in w, from 0 on.
func (w *send) place(p PSN) int { return int((p - w.first) & psnMask) }

// canSend reports whether there is a packet that may be sent now.
func (q *QP) canSend() bool {
	r := &q.req
	if q.state != RTS || r.current == r.queue.n || r.retry.waiting || r.next.Sub(r.unacked) >= r.retry.window {
		return false
	}
	w := r.queue.at(r.current)
	switch {
	case w.Op == OpRead:
		return r.reading < min(int(q.peer.Reads), maxReads)
	case w.Fence:
		// READs have their data when they are acknowledged, and not before.
		return r.reading == 0
	}
	return true
}

// fillRequest adds the packet next to b, and reports whether there was room. canSend has been
// asked.
func (q *QP) fillRequest(now time.Duration, b *Burst) bool {
	r := &q.req
	w := r.queue.at(r.current)
	mtu := q.peer.MTU
	at := w.place(r.next)
	off := at * mtu
	n := min(mtu, w.len-off)
	op := requestOpcode(w.Op, at == 0, at == w.packets-1)
	if w.Op == OpRead {
		n = 0
	}
	if !b.room(packetLen(op, n)) {
		return false
	}
	p := Packet{
		Op: op, Migrated: migrated, PKey: DefaultPKey, Dest: q.peer.Number, PSN: r.next,
		Addr: w.Addr, Key: w.Key, Len: uint32(w.len), Imm: w.Imm, Inval: w.Inval,
	}
	packets := 1
	if w.Op == OpRead {
		// Up to the end of the same request if this one is sent again, because the peer
		// remembers requests (duplicate).
		packets = min(readPackets-at%readPackets, w.packets-at)
		p.Addr += uint64(off)
		p.Len = uint32(min(packets*mtu, w.len-off))
		p.AckReq = true
		r.reads[r.reading] = r.next.Add(packets)
		r.reading++
	}
	ends := at+packets == w.packets
	if ends {
		p.Solicited = w.Solicited && w.Op != OpWrite && w.Op != OpRead
		r.current++
	}
	fresh := q.advanceNext(now, packets)
	// Asked when nothing may follow before it is answered, and in a long run now and then.
	if r.since++; !q.canSend() || r.since >= askEvery {
		p.AckReq = true
	}
	if p.AckReq {
		r.since = 0
		if fresh {
			r.retry.ask(now, p.PSN)
		}
	}
	b.add(&q.dev.out, &p, slice(&w.Piece, off, n))
	return true
}

// advanceNext counts the next n packets as sent, and reports whether they never were before.
func (q *QP) advanceNext(now time.Duration, n int) (fresh bool) {
	r := &q.req
	if r.unacked == r.end {
		r.retry.alive = now // the peer owes nothing yet
	}
	if q.deadline == never {
		q.deadline = now + r.retry.timeout(q)
	}
	fresh = r.next == r.end
	r.next = r.next.Add(n)
	if r.next.Sub(r.end) > 0 {
		r.end = r.next
	}
	if !fresh {
		r.retry.forget() // the answer may be to the packet before
	}
	return fresh
}

// migrated is what cards send in each packet, and rxe does not look at.
const migrated = true

// requestOpcode is the opcode of a packet of a message. Only the last one has an immediate or
// a key to be invalidated.
func requestOpcode(op Op, starts, ends bool) Opcode {
	if op == OpRead {
		return ReadRequest
	}
	t := &requestOpcodes[op]
	switch {
	case starts && ends:
		return t[only]
	case starts:
		return t[first]
	case ends:
		return t[last]
	}
	return t[middle]
}

// requestOpcodes are the opcodes of messages by the place of a packet.
var requestOpcodes = [numOps][4]Opcode{
	OpSend:      {only: SendOnly, first: SendFirst, middle: SendMiddle, last: SendLast},
	OpSendImm:   {only: SendOnlyImm, first: SendFirst, middle: SendMiddle, last: SendLastImm},
	OpSendInval: {only: SendOnlyInval, first: SendFirst, middle: SendMiddle, last: SendLastInval},
	OpWrite:     {only: WriteOnly, first: WriteFirst, middle: WriteMiddle, last: WriteLast},
	OpWriteImm:  {only: WriteOnlyImm, first: WriteFirst, middle: WriteMiddle, last: WriteLastImm},
}

// slice is the n bytes from off on of pieces that lie one behind the other.
func slice(pieces *[3][]byte, off, n int) (s [3][]byte) {
	for i, p := range pieces {
		if off >= len(p) {
			off -= len(p)
			continue
		}
		k := min(n, len(p)-off)
		s[i] = p[off:][:k:k]
		n -= k
		off = 0
		if n == 0 {
			break
		}
	}
	return s
}
