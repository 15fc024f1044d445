package roce

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/transport/sim"
)

// kernel is one queue pair as Linux's rxe has them: it acknowledges each packet that asks for it
// by a packet of its own, asks itself with each message and each 64 packets, sends again after
// 2.1 s and not before, and has identification 0 in its packets. It is written apart from the
// product, plainly, so that what both ends of the product do alike is found as well.
type kernel struct {
	c      *sim.Clock
	net    *sim.Datagrams
	addr   netip.AddrPort
	num    uint32
	peer   Peer
	mem    *Memory
	wake   func() // a completion is there
	fault  func(format string, a ...any)
	before int           // messages that are complete
	late   func()        // its time has passed (world.late)
	spoke  time.Duration // when it sent a packet last
	done   []Completion
	dead   bool
	deadAt time.Duration

	// Requester.
	works     []kernelWork
	una, next PSN
	unacked   int // packets since an acknowledgement was asked for
	retries   int
	rnrs      int
	waiting   bool
	retried   bool
	timer     int

	// Responder.
	recvs    []Recv
	epsn     PSN
	msn      PSN
	nakSent  bool
	got      int
	writeKey uint32
	writeAt  uint64
	writeLen int
	inside   kind // of a message that has begun
	reads    []kernelRead
}

type kernelWork struct {
	Work
	first PSN
	n     int
	data  []byte
}

type kernelRead struct {
	first PSN
	n     int
	Packet
}

const kernelTimeout = 4096 * time.Nanosecond << 19

func (k *kernel) send(p Packet) {
	k.spoke = k.c.Now()
	p.PKey, p.Dest = DefaultPKey, k.peer.Number
	f, _ := NewFlow(k.addr, netip.AddrPortFrom(k.peer.Addr, Port))
	b := p.Append(nil)
	k.net.Send(k.addr, netip.AddrPortFrom(k.peer.Addr, Port), AppendICRC(b, f.ICRC(0, b)))
}

func (k *kernel) complete(c Completion) {
	if !c.Received() {
		k.before++
	}
	k.done = append(k.done, c)
	k.wake()
}

func (k *kernel) fail() {
	k.dead, k.deadAt = true, k.c.Now()
	for _, w := range k.works {
		k.complete(Completion{ID: w.ID, Op: w.Op, Status: Flushed})
	}
	for _, r := range k.recvs {
		k.complete(Completion{ID: r.ID, Op: OpRecv, Status: Flushed})
	}
	k.works, k.recvs = nil, nil
}

func (k *kernel) post(w Work) {
	if k.dead {
		k.complete(Completion{ID: w.ID, Op: w.Op, Status: Flushed})
		return
	}
	kw := kernelWork{Work: w, first: k.una, n: max(1, (w.Len()+k.peer.MTU-1)/k.peer.MTU)}
	if n := len(k.works); n > 0 {
		kw.first = k.works[n-1].first.Add(k.works[n-1].n)
	}
	for _, p := range w.Piece {
		kw.data = append(kw.data, p...)
	}
	k.works = append(k.works, kw)
	k.transmit()
}

func (k *kernel) postRecv(r Recv) {
	if k.dead {
		k.complete(Completion{ID: r.ID, Op: OpRecv, Status: Flushed})
		return
	}
	k.recvs = append(k.recvs, r)
}

func (k *kernel) transmit() {
	for !k.waiting && !k.dead && k.next.Sub(k.una) < 128 {
		var w *kernelWork
		for i := range k.works {
			if d := k.next.Sub(k.works[i].first); d >= 0 && d < k.works[i].n {
				w = &k.works[i]
			}
		}
		if w == nil || k.reading() {
			return
		}
		at := k.next.Sub(w.first)
		off := at * k.peer.MTU
		p := Packet{PSN: k.next, Addr: w.Addr, Key: w.Key, Len: uint32(len(w.data)), Imm: w.Imm, Inval: w.Inval}
		if k.next.Sub(k.una) == 0 {
			k.arm()
		}
		if w.Op == OpRead {
			p.Op, p.Addr, p.Len, p.AckReq = ReadRequest, w.Addr+uint64(off), uint32(len(w.data)-off), true
			k.next = w.first.Add(w.n)
			k.send(p)
			return
		}
		p.Payload = w.data[off:min(len(w.data), off+k.peer.MTU)]
		ends := at == w.n-1
		switch starts := at == 0; {
		case w.Op >= OpWrite && starts && ends:
			p.Op = map[Op]Opcode{OpWrite: WriteOnly, OpWriteImm: WriteOnlyImm}[w.Op]
		case w.Op >= OpWrite && starts:
			p.Op = WriteFirst
		case w.Op >= OpWrite && ends:
			p.Op = map[Op]Opcode{OpWrite: WriteLast, OpWriteImm: WriteLastImm}[w.Op]
		case w.Op >= OpWrite:
			p.Op = WriteMiddle
		case starts && ends:
			p.Op = map[Op]Opcode{OpSend: SendOnly, OpSendImm: SendOnlyImm, OpSendInval: SendOnlyInval}[w.Op]
		case starts:
			p.Op = SendFirst
		case ends:
			p.Op = map[Op]Opcode{OpSend: SendLast, OpSendImm: SendLastImm, OpSendInval: SendLastInval}[w.Op]
		default:
			p.Op = SendMiddle
		}
		k.unacked++
		if p.AckReq = ends || k.unacked >= 64; p.AckReq {
			k.unacked = 0
		}
		p.Solicited = ends && w.Solicited && w.Op != OpWrite
		k.next = k.next.Add(1)
		k.send(p)
	}
}

// reading reports whether a READ is under way: there is one at a time, and nothing behind it.
func (k *kernel) reading() bool {
	for i := range k.works {
		if w := &k.works[i]; w.Op == OpRead && k.next.Sub(w.first) > 0 && k.next != k.una {
			return true
		}
	}
	return false
}

func (k *kernel) arm() {
	k.timer++
	id := k.timer
	k.c.After(kernelTimeout, func() {
		if id != k.timer || k.dead || len(k.works) == 0 || k.next == k.una {
			return
		}
		if k.late != nil {
			k.late()
		}
		k.again(RetryExceeded)
		if !k.dead {
			k.arm()
			k.transmit()
		}
	})
}

func (k *kernel) again(s Status) {
	if k.retries == 0 {
		w := k.works[0]
		k.works = k.works[1:]
		k.complete(Completion{ID: w.ID, Op: w.Op, Status: s})
		k.fail()
		return
	}
	k.retries--
	k.next = k.una
}

// upTo takes packets before psn as acknowledged, up to a READ.
func (k *kernel) upTo(psn PSN) {
	for len(k.works) > 0 && psn.Sub(k.una) > 0 && k.works[0].Op != OpRead {
		w := k.works[0]
		end := w.first.Add(w.n)
		if psn.Sub(end) < 0 {
			k.una = psn
		} else {
			k.una = end
			k.works = k.works[1:]
			k.complete(Completion{ID: w.ID, Op: w.Op})
		}
		k.progress()
	}
}

func (k *kernel) progress() {
	k.retries, k.rnrs, k.retried, k.waiting = 7, int(k.peer.RNRRetry), false, false
	if k.next.Sub(k.una) < 0 {
		k.next = k.una
	}
	k.arm()
}

func (k *kernel) receive(from netip.AddrPort, pkt []byte) {
	var p Packet
	f, _ := NewFlow(from, k.addr)
	if p.Parse(pkt) != nil || p.Dest != k.num || from.Addr() != k.peer.Addr || k.dead {
		return
	}
	if _, ok := f.Check(pkt); !ok {
		return
	}
	switch opcodes[p.Op].kind {
	case kindAck, kindReadResponse:
		if d := p.PSN.Sub(k.una); d >= 0 && d < k.sent() {
			k.answer(&p)
			k.transmit()
		}
	default:
		k.request(&p)
	}
}

// sent is how many packets behind una were ever sent. It is not far from right after going back.
func (k *kernel) sent() int {
	n := 0
	for _, w := range k.works {
		n += w.n
	}
	return n
}

func (k *kernel) answer(p *Packet) {
	if p.Op != Acknowledge {
		k.upTo(p.PSN)
		if p.PSN != k.una || len(k.works) == 0 || k.works[0].Op != OpRead {
			return
		}
		w := &k.works[0]
		off := p.PSN.Sub(w.first) * k.peer.MTU
		if len(p.Payload) != min(k.peer.MTU, len(w.data)-off) {
			return
		}
		copy(w.data[off:], p.Payload)
		k.una = k.una.Add(1)
		k.progress()
		if p.PSN.Sub(w.first) == w.n-1 {
			data := w.data
			for _, to := range w.Piece {
				data = data[copy(to, data):]
			}
			k.complete(Completion{ID: w.ID, Op: w.Op})
			k.works = k.works[1:]
		}
		return
	}
	// It says how many messages are done: those that end before what it is about.
	upTo, done := p.PSN, k.before
	if p.Syndrome.IsAck() {
		upTo = upTo.Add(1)
	}
	for _, w := range k.works {
		if w.first.Add(w.n).Sub(upTo) <= 0 {
			done++
		}
		if w.Op == OpRead && p.Syndrome.IsAck() && w.first.Add(w.n) == upTo {
			k.fault("a kernel takes an acknowledgement of %06x for the answer to a READ", p.PSN)
		}
	}
	if p.MSN != PSN(done) {
		k.fault("a kernel is told that %d messages are done, and knows of %d", p.MSN, done)
	}
	switch s := p.Syndrome; {
	case s.IsAck():
		k.upTo(p.PSN.Add(1))
	case s.IsRNR():
		if k.upTo(p.PSN); k.waiting || k.una != p.PSN {
			return
		}
		if k.peer.RNRRetry != 7 {
			if k.rnrs--; k.rnrs < 0 {
				k.retries = 0
				k.again(RNRExceeded)
				return
			}
		}
		k.waiting = true
		k.next = k.una
		k.timer++
		id := k.timer
		k.c.After(s.RNRDelay(), func() {
			if id == k.timer && k.waiting {
				k.waiting = false
				k.transmit()
			}
		})
	case s == NAKSequence:
		if k.upTo(p.PSN); !k.retried && len(k.works) > 0 {
			k.retried = true
			k.again(RetryExceeded)
		}
	default:
		k.upTo(p.PSN)
		w := k.works[0]
		k.works = k.works[1:]
		k.complete(Completion{ID: w.ID, Op: w.Op, Status: refusal(s)})
		k.fail()
	}
}

func (k *kernel) ack(s Syndrome, psn PSN) {
	k.send(Packet{Op: Acknowledge, Syndrome: s, PSN: psn, MSN: k.msn})
}

func (k *kernel) nak(s Syndrome) {
	k.ack(s, k.epsn)
	k.fail()
}

func (k *kernel) request(p *Packet) {
	kind := opcodes[p.Op].kind
	if d := p.PSN.Sub(k.epsn); d > 0 {
		if !k.nakSent {
			k.nakSent = true
			k.ack(NAKSequence, k.epsn)
		}
		return
	} else if d < 0 {
		if kind != kindReadRequest {
			k.ack(AckUnlimited, k.epsn.Add(-1))
			return
		}
		for _, r := range k.reads {
			if at := p.PSN.Sub(r.first); at >= 0 && at < r.n && p.Key == r.Key && p.Addr == r.Addr+uint64(at*k.peer.MTU) {
				k.read(p)
			}
		}
		return
	}
	k.nakSent = false
	imm := opcodes[p.Op].has&hasImm != 0
	if (k.inside == 0) != p.Op.Starts() || k.inside != 0 && k.inside != kind {
		k.nak(NAKInvalidRequest)
		return
	}
	if (kind == kindSend && p.Op.Starts() || kind == kindWrite && imm) && len(k.recvs) == 0 {
		k.nakSent = true
		k.ack(RNR(time.Millisecond), k.epsn)
		return
	}
	if p.Op.Starts() {
		k.got, k.writeKey, k.writeAt, k.writeLen = 0, p.Key, p.Addr, int(p.Len)
	}
	switch kind {
	case kindSend:
		k.got += copy(k.recvs[0].Data[k.got:], p.Payload)
	case kindWrite:
		to, err := k.mem.Access(k.num, k.writeKey, k.writeAt+uint64(k.got), uint64(len(p.Payload)), RemoteWrite)
		if err == nil && p.Op.Starts() {
			_, err = k.mem.Access(k.num, p.Key, p.Addr, uint64(p.Len), RemoteWrite)
		}
		if err != nil {
			k.nak(NAKRemoteAccess)
			return
		}
		k.got += copy(to, p.Payload)
		if k.got > k.writeLen || p.Op.Ends() && k.got != k.writeLen {
			k.nak(NAKInvalidRequest)
			return
		}
	case kindReadRequest:
		if _, err := k.mem.Access(k.num, p.Key, p.Addr, uint64(p.Len), RemoteRead); err != nil {
			k.nak(NAKRemoteAccess)
			return
		}
		n := max(1, (int(p.Len)+k.peer.MTU-1)/k.peer.MTU)
		k.reads = append(k.reads, kernelRead{first: p.PSN, n: n, Packet: *p})
		k.epsn = k.epsn.Add(n)
		k.msn = k.msn.Add(1)
		k.read(p)
		return
	}
	k.inside = kind
	c := Completion{Op: OpRecv, N: k.got, Imm: p.Imm, HasImm: imm, Solicited: p.Solicited}
	if p.Op.Ends() {
		k.inside = 0
		if opcodes[p.Op].has&hasIETH != 0 {
			filled, err := k.mem.Invalidate(k.num, p.Inval)
			if err != nil {
				k.nak(NAKRemoteAccess)
				return
			}
			c.HasInval, c.Key, c.Filled = true, p.Inval, filled
		}
		k.msn = k.msn.Add(1)
		if kind == kindWrite {
			c.Op, c.Key, c.Addr = OpRecvWrite, k.writeKey, k.writeAt
		}
		if kind == kindSend || imm {
			c.ID = k.recvs[0].ID
			k.recvs = k.recvs[1:]
			k.complete(c)
		}
	}
	k.epsn = k.epsn.Add(1)
	if p.AckReq {
		k.ack(AckUnlimited, p.PSN)
	}
}

func (k *kernel) read(p *Packet) {
	data, err := k.mem.Access(k.num, p.Key, p.Addr, uint64(p.Len), RemoteRead)
	if err != nil {
		return
	}
	n := max(1, (len(data)+k.peer.MTU-1)/k.peer.MTU)
	for i := range n {
		k.send(Packet{
			Op: readOpcode(i == 0, i == n-1), PSN: p.PSN.Add(i), Syndrome: AckUnlimited, MSN: k.msn,
			Payload: data[i*k.peer.MTU : min(len(data), (i+1)*k.peer.MTU)],
		})
	}
}
