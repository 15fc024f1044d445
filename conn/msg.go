package conn

import (
	"time"

	"github.com/rdsd/rdsd/wire"
)

// TableForm says whether Payload of a train begins with a table of lengths.
type TableForm uint8

// Tables.
const (
	NoTable  TableForm = iota
	InOrder            // as a frame has it
	Reversed           // wire.Train.Reversed
)

// TableOf is the table of t.
func TableOf(t wire.Train) TableForm {
	switch {
	case !t.Table:
		return NoTable
	case t.Reversed:
		return Reversed
	}
	return InOrder
}

// MsgKind says what a Msg is to the protocol.
type MsgKind uint8

// Kinds of message a lane queues.
const (
	MsgData   MsgKind = iota
	MsgPing           // to port 0
	MsgPong           // the answer
	MsgProbe          // handshake ping; belongs to one link, never sent again
	MsgAnswer         // handshake pong; likewise
	MsgNull           // ignored by every receiver, moves its expected sequence
	MsgRefuse         // list of refused sequences, to an rdsd
	MsgTell           // a control message without a sequence, to an rdsd; Tag says which
)

// Completer is told the outcome of a message it owns.
type Completer interface {
	Completed(m *Msg, o Outcome, why Why)
}

// Msg is one message on its way: a datagram of a socket, or one of the
// protocol's own. It stands in exactly one list at a time. Payload is not
// copied and must not change until Completed.
type Msg struct {
	next, prev *Msg // in the list it stands in

	// 128 bytes, two cache lines (TestMsgSize): thousands are in flight, and the
	// cache is what limits the rate.
	Owner   *Sender // nil: the protocol's own message, whose outcome nobody waits for
	Payload []byte
	Tag     uint64        // the owner's; the parts of a train that is split count on
	At      time.Duration // when it was accepted; before that the owner's

	seq       uint64
	fore, aft *Msg // of its sender, accepted before and after it
	// Cell, when not nil, is where the lane and the sequence of the message are kept for
	// others to read; see CellSplit.
	Cell   *uint64
	end    uint32 // kernel peers: offset in the link's stream behind its last byte, modulo 2^32; others: see Among
	Epoch  uint32 // the owner's
	Cookie uint32 // the owner's
	Bytes  uint32 // the owner's: the cost of the payload; splitting divides it

	SPort, DPort uint16
	Count        uint16 // datagrams it carries; 0: one; 1: one that was split off a train
	Kind         MsgKind
	Table        TableForm // of a train
	Want         bool      // ask for an acknowledgement soon
	Report       bool      // the owner's: the sender asked for the outcome
	cancelled    bool      // had begun to leave when it was cancelled: not to be sent again
	orphan       bool      // its socket was closed at At
	apart        bool      // it was refused among others (join.go)
	flags        uint8
	where        where
	slot         uint8 // of the lane it is on, see Conn.slots
}

// where is the list a message of a sender stands in.
type where uint8

const (
	nowhere   where = iota
	inPending       // of the connection
	inQueue         // these and the following of the lane
	inBack          // of the hold of its port
	inKept          // likewise
	inSent          // inwrite or unacked
	inRetrans
)

// A Cell holds 0 while the message has no sequence, which it also loses again when it is
// refused; lane<<CellLane | sequence when it was sent; CellSplit when it was a train that
// had to be sent as single datagrams; CellHere<<CellLane | number (Engine.Here) when it
// stayed at this address.
const (
	CellLane  = 56
	CellSplit = 1 << 63
	CellHere  = 127
)

// Datagrams is how many datagrams the message carries.
func (m *Msg) Datagrams() int { return max(1, int(m.Count)) }

// Train is what the message carries.
func (m *Msg) Train() wire.Train {
	return wire.Train{Body: m.Payload, Count: m.Datagrams(), Table: m.Table != NoTable, Reversed: m.Table == Reversed}
}

// Link and SetLink chain messages that are in no list, for their owner.
func (m *Msg) Link() *Msg     { return m.next }
func (m *Msg) SetLink(n *Msg) { m.next = n }

// Reset makes m as new, for another use.
func (m *Msg) Reset() { *m = Msg{} }

// Seq is the sequence it was sent with; 0 before.
func (m *Msg) Seq() uint64 { return m.seq }

// Outcome says how an accepted datagram ended; there is exactly one for each (D3).
type Outcome uint8

// Outcomes.
const (
	Delivered Outcome = iota + 1 // acknowledged
	Cancelled                    // never left this node
	Failed                       // refused by the peer, certainly not delivered
	Unknown                      // left, and no more can be known
)

func (o Outcome) String() string {
	return [...]string{"none", "delivered", "cancelled", "failed", "unknown"}[o]
}

// Why explains an outcome.
type Why uint8

// Reasons.
const (
	WhyNone Why = iota
	WhyNoPort
	WhyApp
	WhyClosed
	WhyPeerRestarted
	WhyPeerChanged
	WhyCancelledSent
	WhyShutdown
	WhyDaemonRestarted
	WhyNoMemory
	WhyAddressLost
)

var whyText = [...]string{"", "no such port", "cancelled by the application", "the socket was closed",
	"peer restarted", "peer changed between kernel and rdsd", "cancelled after it had begun to leave, then the link was lost",
	"the daemon is shutting down", "daemon restarted", "the memory budget is spent", "the address was taken from this node"}

func (w Why) String() string { return whyText[w] }

// list is a queue of messages; one message is in one list.
type list struct {
	head, tail *Msg
	n          int // datagrams
	messages   int
	bytes      int
}

func (l *list) push(m *Msg) {
	m.next, m.prev = nil, l.tail
	if l.tail == nil {
		l.head = m
	} else {
		l.tail.next = m
	}
	l.tail = m
	l.n += m.Datagrams()
	l.messages++
	l.bytes += len(m.Payload)
}

func (l *list) pop() *Msg {
	m := l.head
	l.remove(m)
	return m
}

// remove takes m, which stands in l, out of it.
func (l *list) remove(m *Msg) {
	if m.prev == nil {
		l.head = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		l.tail = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.next, m.prev = nil, nil
	l.n -= m.Datagrams()
	l.messages--
	l.bytes -= len(m.Payload)
}

// splice moves all of o behind l.
func (l *list) splice(o *list) {
	if o.head == nil {
		return
	}
	if l.tail == nil {
		*l = *o
	} else {
		l.tail.next, o.head.prev = o.head, l.tail
		l.tail = o.tail
		l.n += o.n
		l.messages += o.messages
		l.bytes += o.bytes
	}
	*o = list{}
}

// front moves all of o before l.
func (l *list) front(o *list) {
	o.splice(l)
	*l = *o
	*o = list{}
}

// each calls f for every message; those for which f returns true are taken out
// (f has put them elsewhere or is done with them).
func (l *list) each(f func(m *Msg) (take bool)) {
	var prev *Msg
	for m := l.head; m != nil; {
		next := m.next
		n, bytes := m.Datagrams(), len(m.Payload)
		if f(m) {
			if prev == nil {
				l.head = next
			} else {
				prev.next = next
			}
			if next == nil {
				l.tail = prev
			} else {
				next.prev = prev
			}
			l.n -= n
			l.messages--
			l.bytes -= bytes
		} else {
			prev = m
		}
		m = next
	}
}
