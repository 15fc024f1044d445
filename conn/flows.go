package conn

import (
	"time"

	"github.com/rdsd/rdsd/wire"
)

// flowLane is the lane of the messages of some source ports, those that hash to it. They
// keep to one lane while one of them is under way, so that they cannot overtake each other
// (D2). Between two rdsd, and only there (a kernel keeps lanes apart by the port), they
// leave a lane that is loaded with messages of others: a request of 64 bytes must not wait
// for megabytes, because TCP does not interleave.
type flowLane struct {
	out     uint32 // messages given to Enqueue and not decided
	lane    uint8  // valid if chosen
	chosen  bool
	unknown bool  // a message of it has an unknown outcome and may still arrive: it stays
	at      uint8 // in Conn.flows
}

const flowSlots = 64

// flow returns the entry of a source port.
func (c *Conn) flow(sport uint16) *flowLane {
	if c.flows == nil {
		c.flows = new([flowSlots]flowLane)
		for i := range c.flows {
			c.flows[i].at = uint8(i)
		}
	}
	return &c.flows[uint32(sport)*0x9e3779b1>>16%flowSlots]
}

// laneFor keeps all messages of one source port on one lane, as the kernel does, and tells
// both. It is asked before a message counts in out.
func (c *Conn) laneFor(now time.Duration, sport uint16) (*Lane, *flowLane) {
	f := c.flow(sport)
	if !f.chosen {
		f.chosen, f.lane = true, c.firstLane(f)
	}
	p := c.lanes[f.lane]
	if p == nil {
		p = c.lane(int(f.lane))
	}
	// No message of the flow may still arrive on the lane that it leaves, or messages sent on
	// the other lane would overtake it. A message that has ended as unknown may arrive.
	rests := f.out == 0 && !f.unknown
	if rests && c.kind == KindRdsd && c.nlanes > 1 && p.load() >= c.cfg.LaneLoad {
		if q := c.lighter(now, p); q != nil {
			f.lane = uint8(q.idx)
			c.ctr.LaneMoved++
			return q, f
		}
	}
	return p, f
}

// firstLane chooses the lane of f: by a hash of the port, as kernels do (RDS_MPATH_HASH). But
// the first flow to an rdsd goes on lane 0, which is there for the handshake: a peer to which
// one socket sends needs no second link.
func (c *Conn) firstLane(f *flowLane) uint8 {
	first := c.kind == KindRdsd && !c.chosen
	c.chosen = true
	if first {
		return 0
	}
	return f.at % uint8(c.nlanes)
}

// load returns the bytes that are on the lane before the next message: waiting, or sent and
// not acknowledged.
func (p *Lane) load() int {
	return p.queue.bytes + p.inwrite.bytes + p.unacked.bytes
}

// lighter finds a lane with much less load than p. If no lane that is up will do, another
// one is connected, for the next time.
func (c *Conn) lighter(now time.Duration, p *Lane) (best *Lane) {
	// Much less, not a little: if two lanes took turns at being the lighter one, every flow
	// would go from one to the other all the time.
	least := p.load() / 4
	down := -1
	for i := range c.nlanes {
		switch q := c.lanes[i]; {
		case q == nil || q.state == Down:
			if down < 0 {
				down = i
			}
		case q.ready && q.load() < least:
			best, least = q, q.load()
		}
	}
	if best == nil && down >= 0 {
		c.lane(down).event(now, EvWant)
	}
	return best
}

// part counts n, which is split off m.
func (c *Conn) part(n, m *Msg) {
	n.Owner.add(c.flow(n.SPort), n, m)
}

// done is the one end of a message; p is the lane that it was on, nil: none yet.
func (c *Conn) done(p *Lane, m *Msg, o Outcome, why Why) {
	if m.Owner == nil {
		if m.Kind == MsgRefuse {
			p.refusals -= wire.Refusals(m.Payload)
			p.refuses.remove(m)
			c.forgotRefusals()
		}
		p.answered(m)
		c.com.FreeMsg(m)
		return
	}
	if m.cancelled {
		c.slots[m.slot].cancelled--
	}
	f := c.flow(m.SPort)
	// The message may still arrive, after one that is sent on another lane now.
	f.unknown = f.unknown || o == Unknown
	// It leaves its sender, and the count of its flow (Sender.add).
	f.out--
	s := m.Owner
	if m.fore == nil {
		s.head = m.aft
	} else {
		m.fore.aft = m.aft
	}
	if m.aft == nil {
		s.tail = m.fore
	} else {
		m.aft.fore = m.fore
	}
	m.fore, m.aft = nil, nil
	s.messages--
	s.owner.Completed(m, o, why)
}

// trimFlows lets go which lanes flows have, if no message of any may still arrive: they choose
// anew. To a kernel a port keeps its lane.
func (c *Conn) trimFlows() {
	if c.kind != KindRdsd || c.flows == nil {
		return
	}
	for i := range c.flows {
		if f := &c.flows[i]; f.out > 0 || f.unknown {
			return
		}
	}
	c.flows, c.chosen = nil, false
}

// forgetFlows forgets the choice of every flow. The number of lanes is about to be agreed
// on again, and nothing is under way on the old ones.
func (c *Conn) forgetFlows() {
	if c.flows == nil {
		return
	}
	c.chosen = false
	for i := range c.flows {
		c.flows[i].chosen, c.flows[i].unknown = false, false
	}
}
