package conn

import (
	"encoding/binary"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// creditUnit is the payload that one credit pays for: a frame costs one credit for each 16
// KiB begun.
const creditUnit = 16 << 10

func creditCost(n int) int { return max(1, (n+creditUnit-1)/creditUnit) }

// frameOut holds the fields that all frames of one Fill share.
type frameOut struct {
	now    time.Duration
	rdsd   bool
	ack    uint64
	credit uint8  // still to be put into a frame
	put    bool   // a frame has carried an acknowledgement
	kept   bool   // the turn has kept back as many messages as it may (fillData)
	told   uint64 // the last ack carried: a refusal that leaves raises ack for the frames behind it
}

// Fill puts what may be sent now into b, in this order: the handshake, our congestion
// changes, retransmissions, the protocol's own messages, datagrams; an acknowledgement
// alone when nothing else carries it. It returns false if there is nothing to send. If it
// returns true the shell writes b and calls Wrote exactly once, whatever happens to the
// link; until then Fill returns false.
//
// Retransmissions precede every new sequence number: a receiver drops a
// retransmission that is below what it expects.
func (p *Lane) Fill(now time.Duration, b *transport.Batch) bool {
	c := p.c
	if p.writing || p.state != Up {
		// The thread that is writing takes these frames along when it comes back for more.
		if p.writing {
			c.ctr.SendLockContention++
		}
		p.kicked = false
		return false
	}
	// A frame has parts that only an rdsd understands once the handshake has shown that the
	// peer is one: before that, credits and a checksum could reach another incarnation of
	// the peer.
	o := frameOut{now: now, rdsd: c.kind == KindRdsd && p.ready}
	if c.kind == KindRdsd {
		o.ack = p.ackable()
		// Refusals become messages here and not when each is made, so that one message
		// carries all of a read.
		if len(p.refused) > 0 && p.ready {
			p.sendRefusals()
		}
		o.credit = p.creditsToGrant(o.now)
	}
	// Between two rdsd, and on a link whose peer is not known yet, the handshake goes
	// before everything: all other frames wait for its answer.
	p.fillHandshake(now, b, &o)
	p.fillCongestion(now, b, &o)
	if p.ready {
		// Retransmissions before any new sequence: a receiver drops one that is below what
		// it expects, and a new message would move that past it (net/rds/recv.c,
		// rds_recv_incoming).
		p.fillRetrans(now, b, &o)
		if p.retrans.head == nil {
			// To a kernel the handshake takes a sequence too, and so has waited for them.
			p.fillHandshake(now, b, &o)
			p.fillControl(now, b, &o)
			p.fillData(now, b, &o)
		}
		// Every frame above has carried the newest acknowledgement. One alone goes if there
		// was no frame, or if a refusal among them has raised what may be acknowledged
		// behind the last that was carried.
		if o.rdsd && (p.askNow || (!o.put || o.told != o.ack) && (p.ackPending || p.ackDue <= now)) {
			p.fillAck(now, b, &o)
		}
	}
	if b.Frames() == 0 {
		// The turn that was asked for has found nothing: the next want is a kick again.
		if p.kicked {
			p.kicked = false
			c.ctr.SendQueueEmpty++
		}
		if o.kept {
			p.kick()
		}
		return false
	}
	p.filled(now, b, &o)
	return true
}

// filled ends the filling of a batch that has frames: the shell writes it now.
func (p *Lane) filled(now time.Duration, b *transport.Batch, o *frameOut) {
	if o.put {
		// told and not ack: a frame may have been filled before a refusal raised ack.
		p.ackPending, p.ackDue, p.ackedRx = false, Never, o.told
	}
	frames, size := b.Seal()
	bytes := uint64(size)
	p.writing = true
	p.lastTx = now
	p.txOff += bytes
	if p.inwrite.head != nil {
		p.msgOff = p.txOff
	}
	p.sentB += bytes
	p.c.ctr.SentBytes += bytes
	p.c.ctr.SentFrames += uint64(frames)
}

// put writes one frame.
func (p *Lane) put(b *transport.Batch, o *frameOut, h *wire.Header, payload []byte) {
	p.putHeader(o, h, b.Frame(payload))
}

// putHeader writes a frame's header. Acknowledgement, credits and checksum are for rdsd.
func (p *Lane) putHeader(o *frameOut, h *wire.Header, raw []byte) {
	if o.rdsd {
		h.Ack, h.Credit = o.ack, o.credit
		// A credit is given back by the frame that says so and by no other, or the peer
		// would have more than was granted.
		p.owed -= int(o.credit)
		p.granted += int(o.credit)
		o.credit = 0
		// A header holds 255 credits, so the next frame of the batch may carry more.
		if p.owed > 0 {
			o.credit = p.creditsToGrant(o.now)
		}
		o.put, o.told = true, o.ack
		if h.Flags&wire.FlagAckRequired != 0 {
			p.c.ctr.SendAckRequired++
		}
	}
	// A kernel sums nothing and wants 0 (zero is "none").
	if o.rdsd {
		h.PutSummed(raw)
	} else {
		h.Put(raw)
	}
}

func (p *Lane) fillHandshake(now time.Duration, b *transport.Batch, o *frameOut) {
	if p.c.kind.kernel() && p.ready && p.retrans.head != nil {
		// The handshake takes a sequence, which must not overtake the retransmissions.
		return
	}
	p.control.each(func(m *Msg) bool {
		// control holds other messages too; they keep their place.
		if m.Kind > MsgNull || m.Kind < MsgProbe {
			return false
		}
		var h wire.Header
		if m.Kind != MsgNull {
			h.Ext = p.handshake(m)
		}
		h.SPort, h.DPort = m.SPort, m.DPort
		outside := p.c.kind == KindRdsd
		// A sequence without the flag tells a kernel that outlived our restart where our
		// numbers begin, and an rdsd that does not know us yet does not count it
		// (docs/protocol.md, "Handshake"). Between two rdsd the handshake stands outside
		// the sequence, for it may go before retransmissions.
		if !outside {
			m.seq = p.nextSeq
			p.nextSeq++
			h.Seq = m.seq
		}
		if m.Kind == MsgProbe {
			p.probedAt = now
			// Only a kernel's answer confirms the NPATHS of a certain ping of ours.
			if !outside {
				p.pings.sent(p.c.told)
			}
		} else if m.Kind == MsgAnswer {
			p.answer = false
			if outside {
				// The header's ack stays below refusals that have not left. The sequence
				// received stands beside it, so that the peer can decide its cancelled messages.
				h.Ack = o.ack
				m.Payload = binary.BigEndian.AppendUint64(m.Payload[:0], p.Received())
				h.Len = uint32(len(m.Payload))
			}
		}
		was := o.rdsd
		// A link is not ready while it shakes hands: neither checksum nor credits.
		o.rdsd = false
		p.put(b, o, &h, m.Payload)
		o.rdsd = was
		m.end = uint32(p.txOff + uint64(b.Bytes))
		// A message without a sequence is not acknowledged: it is forgotten once it is
		// written.
		if outside {
			p.c.com.FreeMsg(m)
		} else {
			p.inwrite.push(m)
			return true
		}
		return true
	})
}

// fillRetrans sends again, whole and in order, with the same sequences.
func (p *Lane) fillRetrans(now time.Duration, b *transport.Batch, o *frameOut) {
	for p.retrans.head != nil {
		m := p.retrans.head
		flags := wire.FlagRetransmitted | m.flags
		if o.rdsd {
			// A retransmission asks for an answer soon: until it comes no hold of these ports
			// ends, and the loss of this link would send it a third time.
			flags |= wire.FlagAckRequired
		}
		if m.next != nil && m.next.seq == m.seq {
			if !p.sendJoinedAgain(b, o, flags) {
				return
			}
			continue
		}
		// Nothing behind m may go before it, so the batch ends here: sequences only rise.
		if !p.hasCredit(b, o, m) {
			return
		}
		p.retrans.pop()
		p.c.ctr.Retransmitted++
		p.send(now, b, o, m, flags)
		p.sentRefusal(o, m)
	}
}

// sentRefusal lets the acknowledgement advance when m is a refusal: acknowledgements behind
// it may cover the messages that it refuses.
func (p *Lane) sentRefusal(o *frameOut, m *Msg) {
	if m.Kind == MsgRefuse {
		p.nextRefusal()
		o.ack = p.ackable()
	}
}

// fillControl puts refusals first: they cost no credit, and must not stand behind an answer
// that waits for one. Until they leave no message behind the refused ones is acknowledged,
// not even the peer's refusals, for which it withholds our credits.
func (p *Lane) fillControl(now time.Duration, b *transport.Batch, o *frameOut) {
	for m := p.control.head; m != nil; {
		next := m.next
		if m.Kind == MsgRefuse {
			if !p.hasCredit(b, o, m) {
				return
			}
			p.control.remove(m)
			p.send(now, b, o, m, m.flags)
			p.sentRefusal(o, m)
		}
		m = next
	}
	for p.control.head != nil && p.hasCredit(b, o, p.control.head) {
		m := p.control.pop()
		if m.Kind == MsgTell {
			p.fillTell(b, o, m)
			continue
		}
		if m.Kind == MsgPong {
			p.pongs--
			p.pongsOut++
		}
		p.send(now, b, o, m, m.flags)
	}
}

// fillTell sends a message that has no sequence: it is not sent again when the link is
// lost, and a peer that has become a kernel meanwhile does not get it.
func (p *Lane) fillTell(b *transport.Batch, o *frameOut, m *Msg) {
	p.tells--
	if o.rdsd {
		h := wire.Header{Flags: wire.FlagControl, Len: uint32(len(m.Payload))}
		h.Ext[0] = uint8(m.Tag)
		p.put(b, o, &h, m.Payload)
	}
	p.c.com.FreeMsg(m)
}

// maxTells bounds the messages of Tell that wait.
const maxTells = 32

// Tell sends the other rdsd a control message of the owner, once and without a promise that
// it arrives. It reports whether the message is on its way: the peer is an rdsd with a link
// that is in use, and few others wait.
func (c *Conn) Tell(ctl uint8, payload []byte) bool {
	p := c.lane(0)
	if c.kind != KindRdsd || p.state != Up || !p.ready || p.tells >= maxTells {
		return false
	}
	m := c.com.NewMsg()
	m.Kind, m.Tag, m.Payload = MsgTell, uint64(ctl), payload
	p.tells++
	p.control.push(m)
	p.kick()
	return true
}

func (p *Lane) fillData(now time.Duration, b *transport.Batch, o *frameOut) {
	kept := 0
	for m := p.queue.head(); m != nil; m = p.queue.head() {
		if !p.hasCredit(b, o, m) {
			return
		}
		if o.kept = kept == keptMost; o.kept {
			return // the next turn goes on with these
		}
		p.queue.pop()
		// Its port is full or congested: it waits in a hold, and flows to other ports go on.
		if p.keepBack(m) {
			kept++
			continue
		}
		if n := p.queue.head(); n != nil && o.rdsd && p.c.trains && m.joins(n) {
			p.sendJoined(now, b, o, m)
		} else {
			p.sendData(now, b, o, m)
		}
	}
}

// sendData puts a datagram, which stands in no list, into the batch: for the first time, or
// again after it was refused.
func (p *Lane) sendData(now time.Duration, b *transport.Batch, o *frameOut, m *Msg) {
	var flags uint8
	if o.rdsd {
		flags = p.dataFlags(m, m, len(m.Payload), m.Want)
	}
	p.c.com.QueueNs.Add(now - m.At)
	p.send(now, b, o, m, flags)
}

// dataFlags returns the flags of a frame with the messages from m to last, n bytes of payload;
// wanted says that one of them has a sender who waits for the outcome.
func (p *Lane) dataFlags(m, last *Msg, n int, wanted bool) uint8 {
	if len(p.resume) > 0 {
		// The first after a hold ends the receiver's refusing. The flag stays on the message,
		// not on this frame alone: if the link is lost it must be sent again with it.
		if _, ok := p.resume[m.DPort]; ok {
			delete(p.resume, m.DPort)
			m.flags |= wire.FlagResume
		}
	}
	flags := m.flags
	p.sinceAck.frames++
	p.sinceAck.bytes += n
	// Ask for an acknowledgement so often that neither side keeps much, and at the end of
	// a run that a sender waits for; asking for each datagram would double the frames of
	// small requests.
	if p.sinceAck.frames >= p.c.cfg.AckFrames || p.sinceAck.bytes >= p.c.cfg.AckBytes || wanted && (p.sinceAck.bytes >= p.c.cfg.AckStep || p.lastOfRun(last)) {
		flags |= wire.FlagAckRequired
		p.sinceAck.frames, p.sinceAck.bytes = 0, 0
	}
	return flags
}

// lastOfRun reports whether m ends a run of datagrams whose sender waits for their outcome.
// One request for an acknowledgement there is enough; fillData asks in a long run now and
// then as well, so that a sender that waits for room can go on with the first of it while
// the rest is under way.
func (p *Lane) lastOfRun(m *Msg) bool {
	n := p.queue.head()
	return n == nil || n.Owner != m.Owner || !n.Want
}

// hasCredit reports whether there is room and credit for m.
func (p *Lane) hasCredit(b *transport.Batch, o *frameOut, m *Msg) bool {
	if m.Table == Reversed {
		if n := m.Datagrams() * wire.TableEntry; !b.LedRoom(n, len(m.Payload)-n) {
			return false
		}
	} else if !b.Room(len(m.Payload)) {
		return false
	}
	if o.rdsd && m.Kind != MsgRefuse && m.Kind != MsgTell {
		if min(creditCost(len(m.Payload)), p.window) > p.credits {
			p.c.ctr.CreditStall++
			return false
		}
	}
	return true
}

// send puts a sequenced message into the batch.
func (p *Lane) send(now time.Duration, b *transport.Batch, o *frameOut, m *Msg, flags uint8) {
	// A message that is sent again keeps its sequence: by it the receiver knows the
	// duplicate (net/rds/recv.c, rds_recv_incoming).
	if m.seq == 0 {
		p.setSeq(m, p.nextSeq)
		p.nextSeq++
		p.goesOut(m)
	}
	// Refusals cost nothing. Were they to wait for credits, two nodes that refuse each
	// other could both be waiting for the other's.
	if o.rdsd && m.Kind != MsgRefuse {
		p.credits -= min(creditCost(len(m.Payload)), p.window)
	}
	h := wire.Header{Seq: m.seq, Len: uint32(len(m.Payload)), SPort: m.SPort, DPort: m.DPort, Flags: flags}
	if m.Kind == MsgRefuse {
		h.Ext[0] = wire.CtlRefuse
	} else if m.Count > 1 {
		h.Ext = m.Train().Ext()
	}
	if m.Table == Reversed {
		// The table is turned round on its way into the frame; payloads stay where they are.
		n := m.Datagrams() * wire.TableEntry
		raw, table := b.Led(n, m.Payload[n:])
		p.putHeader(o, &h, raw)
		m.Train().PutTable(table)
	} else {
		p.putHeader(o, &h, b.Frame(m.Payload))
	}
	// Where in the stream it ends: a kernel's TCP acknowledges bytes, not messages
	// (net/rds/tcp_send.c, rds_tcp_is_acked).
	if m.end = 0; !o.rdsd {
		m.end = uint32(p.txOff + uint64(b.Bytes))
	}
	p.inwrite.push(m)
	m.where = inSent
}

// fillAck sends an acknowledgement alone (sport 0, dport 0, sequence 0). One
// is in flight at most: the next Fill comes after this batch is written.
func (p *Lane) fillAck(now time.Duration, b *transport.Batch, o *frameOut) {
	var h wire.Header
	if p.askNow {
		p.askNow = false
		h.Flags = wire.FlagAckRequired
		p.c.ctr.HeartbeatSent++
	}
	p.put(b, o, &h, nil)
	p.c.ctr.AckOnlySent++
	// A header holds 255 credits: those freed by a large read take several.
	for o.credit == 255 {
		p.put(b, o, &wire.Header{}, nil)
		p.c.ctr.AckOnlySent++
	}
}

// WroteLate is Wrote for a turn that met a full link: the rest of its batch was written
// when the link took bytes again, or the link failed with err before that.
func (p *Lane) WroteLate(now time.Duration, err error) bool {
	p.c.ctr.SendDelayedRetry++
	if err == nil {
		p.c.ctr.TCPWriteSpace++
	}
	return p.Wrote(now)
}

// Wrote ends the writing of the batch of the last Fill: all of it is in the
// link's hands, or the link is gone and Lost has been or will be called. It
// reports whether the next Fill is likely to find more.
func (p *Lane) Wrote(now time.Duration) bool {
	p.writing, p.kicked = false, false
	// The peer's incarnation ended while the shell read these payloads. Whether it received
	// them is unknown for ever, and sending them to the next incarnation might deliver
	// twice.
	if why := p.forget; why != WhyNone {
		p.forget = WhyNone
		p.inwrite.each(func(m *Msg) bool {
			if m.Owner == nil {
				p.refuses.remove(m)
				p.answered(m)
				p.c.com.FreeMsg(m)
			} else {
				p.c.done(p, m, Unknown, why)
			}
			return true
		})
	}
	// The messages first go where they can be acknowledged. Then comes what the peer sent
	// meanwhile, refusals before the acknowledgement: it may cover refused messages, which
	// would count as delivered.
	p.unacked.splice(&p.inwrite)
	if p.refuses.head != nil {
		p.joinRefusals()
	}
	var ref []wire.Refusal
	if p.search != nil {
		ref, p.search.late = p.search.late, nil
	}
	for _, r := range ref {
		if err := p.onRefusal(now, r); err != nil {
			// Nothing is acknowledged then: it may cover what the others refuse.
			p.lateAck = 0
			p.Drop(now, err)
			break
		}
	}
	p.searched()
	if a := p.lateAck; a != 0 {
		p.lateAck = 0
		p.ack(now, a)
	}
	// The link is gone, and only now the shell no longer reads these: messages without an
	// acknowledgement from before the loss are to be sent again.
	if p.requeue {
		p.takeBack(now)
	}
	if p.c.kind != KindRdsd && p.state == Up {
		if p.unacked.head != nil {
			// TCP may have acknowledged bytes of this batch while it was still being written.
			p.ackTCP(now, p.txAcked)
			p.believe(now)
		}
		if p.awaitsTCP() {
			p.pollSoon(now)
		}
	}
	// If so the caller fills again; that turn counts as asked for, or a want meanwhile
	// would order a second one.
	p.kicked = p.more()
	return p.kicked
}

// FillLater has the shell told to call Fill, which Wrote has found likely to find more: by who
// called Wrote in a step of another purpose.
func (p *Lane) FillLater() { p.emit(ActKick) }

// Filled tells of the batch that was just filled, by Fill or for an offer: the attempt whose link
// it is for, the sequence that the next message gets, and whether the turn has nothing behind
// it. Then another Fill would find nothing, and the peer acknowledges by itself; of a kernel
// TCP has to be asked, which Wrote orders.
func (p *Lane) Filled() (attempt, next uint64, last bool) {
	return p.attempt, p.nextSeq, p.c.kind == KindRdsd && !p.more()
}

// more reports whether another Fill would find something.
func (p *Lane) more() bool {
	if p.state != Up {
		return false
	}
	return p.control.head != nil || p.congDirty && p.idx == 0 || p.ready && (p.queue.n > 0 || p.retrans.head != nil || p.ackPending || p.askNow || len(p.refused) > 0)
}
