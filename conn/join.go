package conn

import (
	"encoding/binary"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Joining, between two rdsd that take trains. Small messages of one flow that stand behind each
// other in a lane's queue when Fill comes there leave in one frame, a train, so that what a
// frame costs at both nodes does not depend on how the application groups its calls. Nothing
// waits for that: what is there is taken.
//
// They stay messages, each with its own account, cell and outcome. What binds them is the
// sequence, which all messages of a frame have: the receiver places the frame or refuses it as a
// whole, and acknowledges it as a whole. Refused, each goes by itself the next time, as if it had
// come so: what there is room for must not depend on what it stood beside. When the link is lost they are sent again in one frame,
// under their sequence, which the receiver has wholly or not at all. They have one sender,
// so that a cancel or a close is about all of them.
//
// Invariant: messages with one sequence stand behind each other in one list.

// joined is messages on their way into one frame.
type joined struct {
	list     list
	n, bytes int  // datagrams, and their payload
	each     int  // bytes of each, unless there is a table
	table    bool // lengths differ
	wanted   bool // the outcome of one is waited for
}

// joins reports whether n, which stands behind m, may share a frame with it. Both are copied
// anyway, so small are they, and of neither the lengths lie where a client can write.
func (m *Msg) joins(n *Msg) bool {
	return m.Owner == n.Owner && m.SPort == n.SPort && m.DPort == n.DPort && m.joinable() && n.joinable()
}

// joinable leaves alone what was refused among others, for there may be room for less, and parts of
// a train that was split (Count 1), which are rare: their peer took no trains before it was
// another incarnation.
func (m *Msg) joinable() bool {
	return m.Kind == MsgData && m.Table == NoTable && !m.apart && m.Count != 1 && len(m.Payload) <= transport.InlineBytes
}

// each is how many bytes each datagram of m has.
func (m *Msg) each() int { return len(m.Payload) / m.Datagrams() }

// count has the frame carry m.
func (j *joined) count(m *Msg) {
	if j.n == 0 {
		j.each = m.each()
	}
	j.table = j.table || m.each() != j.each
	j.wanted = j.wanted || m.Want
	j.n += m.Datagrams()
	j.bytes += len(m.Payload)
}

// size is how many bytes of payload the frame has.
func (j *joined) size() int {
	if j.table {
		return j.bytes + j.n*wire.TableEntry
	}
	return j.bytes
}

// sendJoined puts m, which was popped from the queue, into the batch together with those that
// stand behind it.
func (p *Lane) sendJoined(now time.Duration, b *transport.Batch, o *frameOut, m *Msg) {
	var j joined
	j.count(m)
	j.list.push(m)
	p.c.com.QueueNs.Add(now - m.At)
	for n := p.queue.head(); n != nil && m.joins(n); n = p.queue.head() {
		more := j
		// The port was asked about for m (keepBack), and is that of all.
		if more.count(n); more.n > wire.MaxTrain || more.size() > wire.MaxTrainBytes || !p.hasCreditFor(b, more.size()) {
			break
		}
		p.queue.pop()
		j = more
		j.list.push(n)
		p.c.com.QueueNs.Add(now - n.At)
	}
	if j.list.messages == 1 {
		j.list.pop()
		p.send(now, b, o, m, p.dataFlags(m, m, len(m.Payload), m.Want))
		return
	}
	p.c.ctr.SendJoined += uint64(j.n)
	flags := p.dataFlags(m, j.list.tail, j.size(), j.wanted)
	seq := p.nextSeq
	p.nextSeq++
	for n := m; n != nil; n = n.next {
		n.flags = m.flags // whichever of them is the first when they are sent again
		p.setSeq(n, seq)
		p.goesOut(n)
	}
	p.putJoined(b, o, &j, flags)
}

// hasCreditFor reports whether there is room and credit for a frame with n bytes of payload that
// is written in place.
func (p *Lane) hasCreditFor(b *transport.Batch, n int) bool {
	return b.SpaceRoom(n) && min(creditCost(n), p.window) <= p.credits
}

// sendJoinedAgain puts the messages at the head of retrans that have one sequence into the
// batch. It reports whether there was room and credit for them.
func (p *Lane) sendJoinedAgain(b *transport.Batch, o *frameOut, flags uint8) bool {
	var j joined
	seq := p.retrans.head.seq
	for m := p.retrans.head; m != nil && m.seq == seq; m = m.next {
		j.count(m)
	}
	if !p.hasCreditFor(b, j.size()) {
		if b.SpaceRoom(j.size()) {
			p.c.ctr.CreditStall++
		}
		return false
	}
	for p.retrans.head != nil && p.retrans.head.seq == seq {
		j.list.push(p.retrans.pop())
	}
	p.c.ctr.Retransmitted++
	p.putJoined(b, o, &j, flags)
	return true
}

// putJoined writes the frame of messages that have a sequence.
func (p *Lane) putJoined(b *transport.Batch, o *frameOut, j *joined, flags uint8) {
	m, size := j.list.head, j.size()
	p.credits -= min(creditCost(size), p.window)
	t := wire.Train{Count: j.n, Table: j.table, Joined: true}
	h := wire.Header{Seq: m.seq, Len: uint32(size), SPort: m.SPort, DPort: m.DPort, Flags: flags, Ext: t.Ext()}
	raw, payload := b.Space(size)
	p.putHeader(o, &h, raw)
	table, body := payload[:size-j.bytes], payload[size-j.bytes:]
	before, of := uint32(0), uint32(j.n)<<16
	for j.list.head != nil {
		m := j.list.pop()
		if j.table {
			each := uint32(m.each())
			for range m.Datagrams() {
				binary.BigEndian.PutUint32(table, each)
				table = table[wire.TableEntry:]
			}
		}
		body = body[copy(body, m.Payload):]
		m.end = of | before
		before += uint32(m.Datagrams())
		p.inwrite.push(m)
		m.where = inSent
	}
}
