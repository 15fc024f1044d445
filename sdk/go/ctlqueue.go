package rdsd

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// ctlQueue is the control messages of a link that are not written. A daemon that stands still takes
// none, while calls end with their contexts and others come: so what nobody waits for leaves it.
type ctlQueue struct {
	fifo[*rdsdv1.ClientMessage]
}

// tell queues m. Of several Monitors the last one counts.
func (q *ctlQueue) tell(m *rdsdv1.ClientMessage) {
	if m.WhichBody() == rdsdv1.ClientMessage_Monitor_case {
		q.delete(func(o *rdsdv1.ClientMessage) bool { return o.WhichBody() == rdsdv1.ClientMessage_Monitor_case })
	}
	q.push(m)
}

// withdraw is called when m's caller has gone. If m is not written, a question leaves the queue. A Cancel stays,
// for what it is about shall not be sent, but of those that nobody waits for only the last to a destination:
// it does what the others would. waits reports whether somebody waits for the answer with an id.
func (q *ctlQueue) withdraw(m *rdsdv1.ClientMessage, waits func(id uint64) bool) {
	at := slices.Index(q.all(), m)
	if at < 0 {
		return
	}
	again := func(o *rdsdv1.ClientMessage) bool { return o != m && sameCancel(o, m) }
	if m.WhichBody() != rdsdv1.ClientMessage_Cancel_case || slices.ContainsFunc(q.all()[at:], again) {
		q.delete(func(o *rdsdv1.ClientMessage) bool { return o == m })
		return
	}
	q.delete(func(o *rdsdv1.ClientMessage) bool { return again(o) && !waits(o.GetCancel().GetId()) })
}

func sameCancel(a, b *rdsdv1.ClientMessage) bool {
	dst := func(m *rdsdv1.ClientMessage) netip.AddrPort { return endpointFromProto(m.GetCancel().GetDestination()) }
	return a.WhichBody() == b.WhichBody() && dst(a) == dst(b)
}

// ctlPosition is how far the control messages of a stream are written, and how far the daemon has
// read them, as its answers tell: it reads in order. In bytes, with gRPC's header of five.
type ctlPosition struct {
	wrote, read int
	asked       map[uint64]int // where the messages without an answer end, by id
}

// unread is how much the daemon may not have read.
func (p *ctlPosition) unread() int { return p.wrote - p.read }

// writes counts m, which is written now.
func (p *ctlPosition) writes(m *rdsdv1.ClientMessage) {
	p.wrote += 5 + proto.Size(m)
	id := questionID(m)
	if id == 0 {
		return
	}
	if p.asked == nil {
		p.asked = make(map[uint64]int)
	}
	p.asked[id] = p.wrote
}

// answered takes the answer to the question with this id.
func (p *ctlPosition) answered(id uint64) {
	if at, ok := p.asked[id]; ok {
		delete(p.asked, id)
		p.reads(at)
	}
}

// reads says that the daemon has read up to at.
func (p *ctlPosition) reads(at int) { p.read = max(p.read, at) }

// questionID is the id of a message that has an answer, else 0.
func questionID(m *rdsdv1.ClientMessage) uint64 {
	switch m.WhichBody() {
	case rdsdv1.ClientMessage_Cancel_case:
		return m.GetCancel().GetId()
	case rdsdv1.ClientMessage_Flush_case:
		return m.GetFlush().GetId()
	case rdsdv1.ClientMessage_Congested_case:
		return m.GetCongested().GetId()
	case rdsdv1.ClientMessage_Peek_case:
		return m.GetPeek().GetId()
	}
	return 0
}
