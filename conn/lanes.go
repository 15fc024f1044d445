package conn

import (
	"time"
)

// flowLane is where the messages of some source ports go, those that hash to
// it. They keep to one lane while anything of them is under way, so that they
// cannot overtake each other (D2). Between two rdsd, and only there (a kernel
// keeps lanes apart by the port), they leave a lane that is loaded with what others
// send: a request of 64 bytes is not to wait for megabytes, for which TCP
// knows no turns.
type flowLane struct {
	out     uint32 // messages given to Enqueue and not decided
	lane    uint8  // valid if chosen
	chosen  bool
	unknown bool // something of it may still arrive, nobody knows: it stays
}

const flowLanes = 64

// flow is the entry of a source port, and its number.
func (c *Conn) flow(sport uint16) (f *flowLane, i uint32) {
	if c.flows == nil {
		c.flows = new([flowLanes]flowLane)
	}
	i = uint32(sport) * 0x9e3779b1 >> 16 % flowLanes
	return &c.flows[i], i
}

// lane keeps all messages of one source port on one lane, as the kernel does
// (RDS_MPATH_HASH); which one is nobody else's business. It is asked before a
// message counts in out.
func (c *Conn) lane(now time.Duration, sport uint16) *Path {
	f, i := c.flow(sport)
	if !f.chosen {
		f.chosen, f.lane = true, uint8(i%uint32(c.lanes))
	}
	p := c.path(int(f.lane))
	// Nothing of the flow may still arrive on the lane that it leaves, or what is sent on the
	// other would overtake it. What has ended as unknown may arrive.
	rests := f.out == 0 && !f.unknown
	if rests && c.kind == KindRdsd && c.lanes > 1 && p.load() >= c.cfg.LaneLoad {
		if q := c.lighter(now, p); q != nil {
			f.lane = uint8(q.idx)
			c.ctr.LaneMoved++
			return q
		}
	}
	return p
}

// load is what stands on the lane before the next message: bytes waiting, or
// sent and not acknowledged.
func (p *Path) load() int {
	return p.queue.bytes + p.inwrite.bytes + p.unacked.bytes
}

// lighter finds a lane with much less on it than p. If no lane that is up will
// do, another one is connected, for the next time.
func (c *Conn) lighter(now time.Duration, p *Path) (best *Path) {
	// Much less, not a little: lanes that took turns at being the lighter one would send
	// every flow from one to the other.
	least := p.load() / 4
	down := -1
	for i := range c.lanes {
		switch q := c.paths[i]; {
		case q == nil || q.state == Down:
			if down < 0 {
				down = i
			}
		case q.ready && q.load() < least:
			best, least = q, q.load()
		}
	}
	if best == nil && down >= 0 {
		c.path(down).event(now, EvWant)
	}
	return best
}

// accepted counts a message of a socket, completed ends that and tells its owner.
func (c *Conn) accepted(m *Msg) {
	if m.Owner != nil {
		f, _ := c.flow(m.SPort)
		f.out++
		m.Owner.add(m, nil)
	}
}

// part counts n, which is split off m.
func (c *Conn) part(n, m *Msg) {
	f, _ := c.flow(n.SPort)
	f.out++
	n.Owner.add(n, m)
}

func (c *Conn) completed(m *Msg, o Outcome, why Why) {
	f, _ := c.flow(m.SPort)
	f.out--
	// It may still arrive, after anything that is sent on another lane now.
	f.unknown = f.unknown || o == Unknown
	m.Owner.remove(m)
	m.Owner.owner.Completed(m, o, why)
}

// forgetLanes forgets the choice of every flow. The number of paths is about to be agreed
// on anew, and nothing is under way on the old ones.
func (c *Conn) forgetLanes() {
	if c.flows == nil {
		return
	}
	for i := range c.flows {
		c.flows[i].chosen, c.flows[i].unknown = false, false
	}
}
