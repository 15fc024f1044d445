package conn

import "time"

// State is where a lane stands, in the words of the RDS design.
type State uint8

// States of a lane.
const (
	Down          State = iota // no link and nothing under way
	Connecting                 // dialling, or poked the peer and waiting for its connection
	Up                         // a link is there
	Disconnecting              // the link is being closed, its last bytes are being read
	Error                      // failed or lost; waiting to try again
	numStates
)

var stateNames = [numStates]string{"Down", "Connecting", "Up", "Disconnecting", "Error"}

func (s State) String() string { return stateNames[s] }

// Event is something that can happen to a lane.
type Event uint8

// Events.
const (
	EvWant Event = iota // there is something to send, or the time to retry came
	EvIdle              // the time to retry came and there is nothing to send
	EvLink              // a link was made, by either side
	EvFail              // the attempt failed or timed out
	EvLost              // the link is gone: closed by the peer, failed, or closed on our request
	EvDrop              // give the link up
	numEvents
)

var eventNames = [numEvents]string{"Want", "Idle", "Link", "Fail", "Lost", "Drop"}

func (e Event) String() string { return eventNames[e] }

type step struct {
	legal bool
	next  State
	do    func(*Lane, time.Duration) // after the state is set
	name  string
}

// laneTable is the whole life of a lane. An empty cell is an illegal event: it
// is counted and changes nothing.
var laneTable [numStates][numEvents]step

func init() {
	on := func(s State, e Event, next State, name string, do func(*Lane, time.Duration)) {
		laneTable[s][e] = step{true, next, do, name}
	}
	none := func(*Lane, time.Duration) {}

	on(Down, EvWant, Connecting, "dial or poke", (*Lane).start)
	on(Down, EvIdle, Down, "-", none)
	on(Down, EvLink, Up, "begin the link", (*Lane).established)
	on(Down, EvDrop, Down, "-", none)

	on(Connecting, EvWant, Connecting, "-", none)
	on(Connecting, EvLink, Up, "begin the link", (*Lane).established)
	on(Connecting, EvFail, Error, "back off", (*Lane).backOff)
	// An attempt is not given up: a kernel may have taken the connection already, and what it
	// sends there would be lost unread (Drop).
	on(Connecting, EvDrop, Connecting, "-", none)

	on(Up, EvWant, Up, "-", none)
	on(Up, EvLost, Error, "keep what was sent, back off", (*Lane).lost)
	on(Up, EvDrop, Disconnecting, "close the link", (*Lane).closeLink)

	on(Disconnecting, EvWant, Disconnecting, "-", none)
	on(Disconnecting, EvLost, Error, "keep what was sent, back off", (*Lane).lost)
	on(Disconnecting, EvDrop, Disconnecting, "-", none)

	on(Error, EvWant, Connecting, "dial or poke", (*Lane).start)
	on(Error, EvIdle, Down, "-", none)
	// The other side decides when it connects: its link is taken, whatever this side was about
	// to do.
	on(Error, EvLink, Up, "begin the link", (*Lane).established)
	on(Error, EvDrop, Error, "-", none)
}

// event is the one place where a lane's state changes.
func (p *Lane) event(now time.Duration, e Event) bool {
	s := &laneTable[p.state][e]
	if !s.legal {
		p.c.ctr.IllegalEvent++
		return false
	}
	was := p.state
	p.state = s.next
	// It is noted before the action, which may cause more events: so the log has them
	// in the order in which they happened.
	if was != p.state {
		p.since = now
		p.c.com.Changes = append(p.c.com.Changes, StateChange{p, p.idx, was, p.state, p.lastErr})
	}
	s.do(p, now)
	return true
}

// Table returns the state table as rows of text (state, event, next state,
// action) for the documentation.
func Table() (rows [][4]string) {
	for s := range numStates {
		for e := range numEvents {
			if c := laneTable[s][e]; c.legal {
				rows = append(rows, [4]string{s.String(), e.String(), c.next.String(), c.name})
			}
		}
	}
	return rows
}
