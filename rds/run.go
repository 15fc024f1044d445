package rds

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// Runs: many datagrams in one call. Conditions that are the same for all of them are looked
// at once, and payloads that lie behind each other are handed out together.

// SendRun offers datagrams to one destination, without waiting: datagram i has the next
// lengths[i] bytes of payload and the tag tag+i. It accepts a prefix of them, returns how
// many, and leaves the next to Send or SendWait, which know why that one has to wait or to
// fail. Accepted datagrams are copied: small ones travel in trains, if the peer takes them.
func (s *Socket) SendRun(now time.Duration, dst netip.AddrPort, payload []byte, lengths []uint32, tag uint64, report Report) (n int) {
	e := s.e
	if s.closed || dst.Port() < wire.PortFirst {
		return 0
	}
	f, err := s.reach(dst, 0)
	// This is only the plain case. A send that needs a reason or a wait is left to Send and
	// SendWait.
	if err != nil || f.q.head != nil || f.pe.c == nil || f.pe.Congested(dst.Port()) {
		return 0
	}
	pe := f.pe
	limit := min(s.opt.SndBufBytes, wire.MaxDatagram)
	price := f.price()
	_, room, shared := e.room(s.opt.Account, len(payload)+len(lengths)*msgBytes+price) // for each of them in a message of its own
	if !shared {
		return 0
	}
	bytes := 0
	// Each is checked as if it came by itself, so that a run accepts as many as single sends
	// would, and no more.
	for ; n < len(lengths); n++ {
		l := int(lengths[n])
		if l > limit || s.used+bytes >= s.opt.SndBufBytes || s.undecided+n >= e.cfg.MaxUndecided || s.outcomesN >= e.cfg.MaxOutcomes || bytes+l+(n+1)*msgBytes+price > room {
			break
		}
		bytes += l
	}
	if n == 0 {
		return 0
	}
	f.pay()
	if s.mon.Set {
		s.concern(now, f)
	}
	run := sendRun{s: s, f: f, port: dst.Port(), tag: tag, report: report}
	if pe.c.Trains() {
		run.trains(payload, lengths[:n])
	} else {
		// A copy of the payload of all: the caller's memory is its own again when this returns.
		run.singles(append([]byte(nil), payload[:bytes]...), lengths[:n])
	}
	e.now = now
	// The accounts that charge keeps for one, once for the run; used is counted in add, as
	// whether to ask for an acknowledgement depends on it.
	s.undecided += n
	pe.owed += uint32(n)
	s.epochs[s.lastEpoch].n += n
	s.Stats.Accepted += uint64(n)
	s.spend(run.size)
	e.ctr.SendQueued += uint64(n)
	e.ctr.CopyFromUser += uint64(bytes)
	pe.c.EnqueueChain(now, run.head)
	return n
}

// sendRun is the messages of a SendRun.
type sendRun struct {
	s          *Socket
	f          *flow
	head, tail *conn.Msg
	size       int // of the messages
	tag        uint64
	port       uint16
	report     Report
}

// trainDatagram is the largest datagram that is sent in a train, in bytes:
// for those above it a header of their own is little, and reading them straight
// to where they belong is worth more.
const trainDatagram = 4 << 10

// trains makes trains of small datagrams, of as many as fit into one, and lets
// the others be.
func (r *sendRun) trains(payload []byte, lengths []uint32) {
	for len(lengths) > 0 {
		n, bytes, uniform := 0, 0, true
		for n < len(lengths) && n < wire.MaxTrain {
			l := int(lengths[n])
			if l > trainDatagram || bytes+l+(n+1)*wire.TableEntry > wire.MaxTrainBytes {
				break
			}
			// Datagrams of one length need no table, which would be 4 bytes for each.
			uniform = uniform && lengths[n] == lengths[0]
			bytes += l
			n++
		}
		// Too large for a train, or alone: it goes as a datagram.
		if n < 2 {
			bytes = int(lengths[0])
			r.single(append([]byte(nil), payload[:bytes]...))
			n = 1
		} else if uniform {
			r.add(wire.Train{Body: append([]byte(nil), payload[:bytes]...), Count: n})
		} else {
			body := make([]byte, 0, n*wire.TableEntry+bytes)
			for _, l := range lengths[:n] {
				body = binary.BigEndian.AppendUint32(body, l)
			}
			r.add(wire.Train{Body: append(body, payload[:bytes]...), Count: n, Table: true})
		}
		payload, lengths = payload[bytes:], lengths[n:]
	}
}

// singles makes a message of each datagram.
func (r *sendRun) singles(payload []byte, lengths []uint32) {
	for _, l := range lengths {
		r.single(payload[:l:l])
		payload = payload[l:]
	}
}

// single adds one datagram as a message of its own.
func (r *sendRun) single(payload []byte) { r.add(wire.Train{Body: payload, Count: 1}) }

func (r *sendRun) add(t wire.Train) {
	s, bytes := r.s, t.PayloadBytes()
	m := s.e.conns.NewMsg()
	m.Owner, m.SPort, m.DPort = &r.f.out, s.port, r.port
	m.Payload, m.Table, m.Bytes, m.Count = t.Body, conn.TableOf(t), uint32(bytes), uint16(msgCount(t))
	r.size += size(bytes, int(m.Count))
	m.Tag, m.Epoch = r.tag, s.lastEpoch
	s.used += bytes
	m.Report = bool(r.report)
	m.Want = bool(r.report) || s.used >= s.opt.SndBufBytes/2
	if r.tail == nil {
		r.head = m
	} else {
		r.tail.SetLink(m)
	}
	r.tail = m
	r.tag += uint64(t.Count)
}

// Run is datagrams taken from a receive queue together. The zero Run is empty;
// Release empties it.
type Run struct {
	Lengths []uint32         // bytes of each payload
	Sources []netip.AddrPort // each once, or a few times
	Index   []uint32         // source of each datagram
	Spans   []Span           // the payloads, in order, without gaps
	Bytes   int              // sum of Lengths

	pe    *Peer // of the last datagram, and its port
	sport uint16
	cur   uint32 // where they are in Sources
}

// Span is a stretch of payload: of one datagram or of several behind each other.
type Span struct {
	Payload []byte
	b       *buf.Buf
	refs    int32
}

// Release gives the memory of the spans back and empties the run. It needs no lock.
func (r *Run) Release() {
	for i := range r.Spans {
		r.Spans[i].b.ReleaseN(r.Spans[i].refs)
		r.Spans[i] = Span{}
	}
	r.Lengths, r.Sources, r.Index, r.Spans, r.Bytes = r.Lengths[:0], r.Sources[:0], r.Index[:0], r.Spans[:0], 0
	r.pe = nil
}

// Len is the number of datagrams in the run.
func (r *Run) Len() int { return len(r.Lengths) }

// RecvRun appends datagrams to r while it holds fewer than maxN of them and the next does
// not take it above maxBytes; a first datagram is taken whatever its size. The caller calls
// Socket.ReadAll afterwards.
func (q *Queue) RecvRun(r *Run, maxN, maxBytes int) {
	n0, bytes0 := len(r.Lengths), r.Bytes
	cost := 0
	for q.n > 0 && len(r.Lengths) < maxN {
		it := q.at(0)
		if it.train != 0 {
			// A train keeps its own accounts, because it may be taken in part: first those of what was
			// taken before it.
			q.s.taken(len(r.Lengths)-n0, r.Bytes-bytes0, cost)
			more := q.runTrain(r, it, maxN, maxBytes)
			n0, bytes0, cost = len(r.Lengths), r.Bytes, 0
			if !more {
				break
			}
			continue
		}
		if r.Bytes > 0 && r.Bytes+int(it.n) > maxBytes {
			break
		}
		if r.pe != it.pe || r.sport != it.sport {
			r.source(it)
		}
		r.Index = append(r.Index, r.cur)
		r.Lengths = append(r.Lengths, it.n)
		r.Bytes += int(it.n)
		cost += int(it.cost)
		if it.b != nil {
			r.span(it.b, it.b.B[it.off:it.off+it.n], 1)
		}
		q.pop()
	}
	q.s.taken(len(r.Lengths)-n0, r.Bytes-bytes0, cost)
}

// runTrain takes as many datagrams as fit from the train at the head of the queue; more is
// true when that was all of it.
func (q *Queue) runTrain(r *Run, it *item, maxN, maxBytes int) (more bool) {
	c := q.headTrain(it)
	b, n, bytes := it.b, 0, 0
	// The datagrams of a train lie behind each other, so that those taken are one span.
	payload := c.Rest()
	for c.Left() > 0 && len(r.Lengths) < maxN {
		if k := c.Peek(); r.Bytes > 0 && r.Bytes+k > maxBytes {
			break
		}
		if r.pe != it.pe || r.sport != it.sport {
			r.source(it)
		}
		p, _ := c.Next()
		r.Index = append(r.Index, r.cur)
		r.Lengths = append(r.Lengths, uint32(len(p)))
		r.Bytes += len(p)
		bytes += len(p)
		n++
	}
	if n == 0 {
		return false
	}
	if b != nil {
		r.span(b, payload[:bytes], int32(n))
	}
	more = c.Left() == 0
	q.trainTaken(it, n, bytes)
	return more
}

// source finds it's source among the last few of Sources, or adds it.
func (r *Run) source(it *item) {
	r.pe, r.sport = it.pe, it.sport
	src := it.pe.AddrPort(it.sport)
	for i := len(r.Sources) - 1; i >= max(0, len(r.Sources)-8); i-- {
		if r.Sources[i] == src {
			r.cur = uint32(i)
			return
		}
	}
	r.Sources = append(r.Sources, src)
	r.cur = uint32(len(r.Sources) - 1)
}

func (r *Run) span(b *buf.Buf, p []byte, refs int32) {
	if k := len(r.Spans); k > 0 {
		l := &r.Spans[k-1]
		// Only if p really lies behind it, in the same buffer: then one write carries both.
		if l.b == b && (len(p) == 0 || len(l.Payload)+len(p) <= cap(l.Payload) && &l.Payload[:len(l.Payload)+1][len(l.Payload)] == &p[0]) {
			l.Payload = l.Payload[:len(l.Payload)+len(p)]
			l.refs += refs
			return
		}
	}
	r.Spans = append(r.Spans, Span{p, b, refs})
}
