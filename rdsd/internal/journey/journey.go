package journey

import (
	"net/netip"
	"slices"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Journey is one datagram: of a message with many, the one that is traced. Times are as
// the daemon of the node said them, by its own clock; the zero time is not known.
type Journey struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Lane        uint32         `json:"lane"`
	Here        bool           `json:"here"` // it stayed at its address: seq counts those, and it never left
	Seq         uint64         `json:"seq"`  // 0: it never had one
	Incarnation uint64         `json:"incarnation"`
	Member      uint32         `json:"member"`    // which of the message's datagrams, from 0
	Datagrams   uint32         `json:"datagrams"` // of the message
	Bytes       uint64         `json:"bytes"`     // of the message

	Posted       time.Time `json:"posted,omitzero"`       // by the sender's clock
	Accepted     time.Time `json:"accepted,omitzero"`     // likewise
	Left         time.Time `json:"left,omitzero"`         // likewise
	Received     time.Time `json:"received,omitzero"`     // by the receiver's
	Placed       time.Time `json:"placed,omitzero"`       // likewise
	Read         time.Time `json:"read,omitzero"`         // likewise
	Acknowledged time.Time `json:"acknowledged,omitzero"` // by the sender's
	Ended        time.Time `json:"ended,omitzero"`        // by the sender's: refused, cancelled, failed, not accepted

	SentAgain int    `json:"sent_again"` // times, with the same sequence
	Outcome   string `json:"outcome"`    // delivered, cancelled, failed, unknown, refused, not-accepted; "" as yet none
	Reason    string `json:"reason,omitempty"`
	Dropped   bool   `json:"dropped"`  // its reader's socket was closed before it was read
	Complete  bool   `json:"complete"` // nothing more will be told of it

	sender, receiver int // which daemon told of the ends
	begun            bool
}

// key names a datagram alike at both nodes.
type key struct {
	src, dst         netip.AddrPort
	here             bool
	lane             uint32
	seq, incarnation uint64
}

// maxKeys bounds the datagrams that are followed at a time. The receiver may tell of one
// before its sender does, and of many that the sender began before the trace.
const maxKeys = 1 << 16

// Node is one daemon that tells.
type Node struct {
	Name      string       `json:"name"`            // how it was asked
	Clock     string       `json:"clock,omitempty"` // nodes with the same one need no estimate
	Addresses []netip.Addr `json:"addresses"`
	Dropped   uint64       `json:"dropped"` // events that found no room there
}

// Log gathers the events of one daemon or two.
type Log struct {
	Nodes []Node
	Most  int // journeys to follow; no more are begun

	byKey map[key]*Journey
	begun []*Journey // in the order in which they were told of
	lost  int        // events of datagrams for which there was no place

	// Until each node has said which addresses it has, nobody knows whether it will tell of
	// the other end of a datagram: what others say meanwhile waits here.
	silent int    // nodes that have said nothing yet
	named  []bool // those that have, by node
	early  []early
}

// early is an event that came too early.
type early struct {
	node int
	e    rdsd.TraceEvent
}

// New makes a Log of at most so many journeys, of the daemons with these names.
func New(most int, names ...string) *Log {
	l := &Log{Most: most, byKey: map[key]*Journey{}, silent: len(names), named: make([]bool, len(names))}
	for _, n := range names {
		l.Nodes = append(l.Nodes, Node{Name: n})
	}
	return l
}

// Add takes a report of a daemon.
func (l *Log) Add(node int, r rdsd.TraceReport) {
	n := &l.Nodes[node]
	if r.Clock != "" || len(r.LocalAddresses) > 0 { // the first one
		n.Clock, n.Addresses = r.Clock, r.LocalAddresses
		if !l.named[node] {
			l.named[node] = true
			if l.silent--; l.silent == 0 {
				l.Over()
			}
		}
	}
	n.Dropped = max(n.Dropped, r.Dropped)
	for i := range r.Events {
		switch {
		case l.silent == 0:
			l.add(node, &r.Events[i])
		case len(l.early) < maxKeys:
			l.early = append(l.early, early{node, r.Events[i]})
		default:
			l.lost++
		}
	}
}

// Over says that no node will say anything for the first time any more.
func (l *Log) Over() {
	l.silent = 0
	for i := range l.early {
		l.add(l.early[i].node, &l.early[i].e)
	}
	l.early = nil
}

func (l *Log) add(node int, e *rdsd.TraceEvent) {
	j := l.journey(e)
	if j == nil {
		l.lost++
		return
	}
	// Of a train that was made of several messages the sender knows the bytes of one.
	j.Member, j.Datagrams, j.Bytes = e.Member, e.Datagrams, max(j.Bytes, e.Bytes)
	switch e.Stage {
	case rdsd.TraceLeft:
		if !j.Left.IsZero() {
			j.SentAgain++
			return
		}
		j.Posted, j.Accepted, j.Left = e.Posted, e.Accepted, e.Time
		l.begin(node, j)
	case rdsd.TraceRefused:
		j.end("refused", e)
	case rdsd.TraceNotAccepted:
		j.Posted = e.Posted
		j.end("not-accepted", e)
		l.begin(node, j)
	case rdsd.TraceDone:
		if e.Seq == 0 || e.Here {
			j.Posted, j.Accepted = e.Posted, e.Accepted
			l.begin(node, j)
		}
		if j.end(string(e.Outcome), e); e.Outcome == rdsd.TraceDelivered {
			j.Acknowledged, j.Ended = e.Time, time.Time{}
		}
	case rdsd.TracePlaced:
		j.Received, j.Placed, j.receiver = e.Received, e.Time, node
		if !l.tells(j.Source.Addr()) { // a kernel's, or nobody asked its daemon
			l.begin(node, j)
		}
	case rdsd.TraceNotPlaced:
		j.Received, j.receiver = e.Received, node
		if j.Reason == "" {
			j.Reason = e.Reason
		}
		if !l.tells(j.Source.Addr()) {
			j.Outcome, j.Ended = "refused", e.Time
			l.begin(node, j)
		}
	case rdsd.TraceRead:
		j.Read = e.Time
	case rdsd.TraceDropped:
		j.Dropped = true
	}
	j.Complete = l.complete(j)
}

func (j *Journey) end(outcome string, e *rdsd.TraceEvent) {
	j.Outcome, j.Ended, j.Reason = outcome, e.Time, e.Reason
}

// journey finds or makes that of an event; nil when there are too many.
func (l *Log) journey(e *rdsd.TraceEvent) *Journey {
	k := key{e.Source, e.Destination, e.Here, e.Lane, e.Seq, e.Incarnation}
	if j := l.byKey[k]; j != nil {
		return j
	}
	if len(l.byKey) >= maxKeys {
		return nil
	}
	j := &Journey{Source: e.Source, Destination: e.Destination, Lane: e.Lane, Here: e.Here, Seq: e.Seq, Incarnation: e.Incarnation}
	if e.Seq != 0 { // those without have one event and no name
		l.byKey[k] = j
	}
	return j
}

// begin counts j among those that are followed.
func (l *Log) begin(node int, j *Journey) {
	j.sender = node
	if !j.begun && (l.Most == 0 || len(l.begun) < l.Most) {
		j.begun = true
		l.begun = append(l.begun, j)
	}
}

// tells reports whether a daemon that was asked has the address.
func (l *Log) tells(a netip.Addr) bool {
	return slices.ContainsFunc(l.Nodes, func(n Node) bool { return slices.Contains(n.Addresses, a) })
}

// complete reports whether all that will be told of j was told.
func (l *Log) complete(j *Journey) bool {
	receiver := !l.tells(j.Destination.Addr()) || !j.Read.IsZero() || j.Dropped
	switch j.Outcome {
	case "":
		return !l.tells(j.Source.Addr()) && receiver
	case "delivered":
		return receiver
	}
	return true
}

// Dropped is how many events are missing, for want of room at the daemons or here.
func (l *Log) Dropped() (n uint64) {
	for i := range l.Nodes {
		n += l.Nodes[i].Dropped
	}
	return n + uint64(l.lost)
}

// Enough reports whether as many journeys as are to be followed are complete.
func (l *Log) Enough() bool {
	if l.Most == 0 || len(l.begun) < l.Most {
		return false
	}
	for _, j := range l.begun {
		if !j.Complete {
			return false
		}
	}
	return true
}

// Journeys returns those that were begun, in that order.
func (l *Log) Journeys() []*Journey { return l.begun }
