package conn

import (
	"math/rand"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/transport"
)

// Common is what the connections of one local address share: what they are told once, the
// messages they use again, and what their steps leave for the owner. The owner's lock
// guards it like the connections.
type Common struct {
	Config *Config
	Local  netip.Addr
	Rng    *rand.Rand // seeds backoff and incarnations
	// AllowKernel reports whether the peer at an address may be a kernel, which cannot prove
	// its identity. It is asked when a link begins.
	AllowKernel func(netip.Addr) bool
	// MapLinks is how many peers get whole maps, as the owner last counted them
	// (Conn.CongestionChanged): the more there are the more rarely each gets one.
	MapLinks int

	// Left by steps until the owner takes them, in the order in which they happened.

	Actions []Action
	Changes []StateChange

	// Measured since the beginning.

	Looked  uint64     // messages looked at to find those that peers refuse, and what is out when a hold begins
	QueueNs stats.Hist // time datagrams waited before their first byte left
	RTTNs   stats.Hist // handshake and heartbeat round trips

	// Messages for another use.

	Spare int   // how many are kept
	free  *Msg  // these
	msgs  []Msg // the rest of a block of new ones
}

// Offer is an empty batch for one step: a message that finds nothing before it on its lane
// leaves in it at once (lone.go), and Lane is that lane then; nil: it was not taken. Who made the
// offer writes the batch as if Fill had filled it.
type Offer struct {
	Batch *transport.Batch
	Lane  *Lane
}

// StateChange is a lane that changed its state, its number when it did, and why its last
// link or attempt had ended by then.
type StateChange struct {
	Lane     *Lane
	Index    int
	Was, Now State
	Err      error
}

// msgBlock is how many messages are made at a time: an address with few peers is to have few.
const msgBlock = 16

// Trim lets the messages go that are kept for another use.
func (x *Common) Trim() { x.Spare, x.free, x.msgs = 0, nil, nil }

// NewMsg returns an empty message.
func (x *Common) NewMsg() *Msg {
	m := x.free
	if m == nil {
		if len(x.msgs) == 0 {
			x.msgs = make([]Msg, msgBlock)
		}
		m = &x.msgs[0]
		x.msgs = x.msgs[1:]
		return m
	}
	x.free = m.next
	x.Spare--
	m.next = nil
	return m
}

// FreeMsg takes a message back that is in no list. A bounded number is kept: a burst does
// not keep its memory for ever.
func (x *Common) FreeMsg(m *Msg) {
	*m = Msg{}
	if x.Spare < 1<<15 {
		m.next = x.free
		x.free = m
		x.Spare++
	}
}

// measured counts a round trip.
func (c *Conn) measured(d time.Duration) {
	c.rtt = d
	c.com.RTTNs.Add(d)
}

// order leaves an order for the shell.
func (c *Conn) order(a Action) { c.com.Actions = append(c.com.Actions, a) }
