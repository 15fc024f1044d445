package conn

import "time"

// State is where a path stands, in the words of the RDS design.
type State uint8

// States of a path.
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

// Event is something that can happen to a path.
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
	do    func(*Path, time.Duration) // after the state is set
	name  string
}

// pathTable is the whole life of a path. An empty cell is an illegal event: it
// is counted and changes nothing.
var pathTable [numStates][numEvents]step

func init() {
	on := func(s State, e Event, next State, name string, do func(*Path, time.Duration)) {
		pathTable[s][e] = step{true, next, do, name}
	}
	none := func(*Path, time.Duration) {}

	on(Down, EvWant, Connecting, "dial or poke", (*Path).start)
	on(Down, EvIdle, Down, "-", none)
	on(Down, EvLink, Up, "begin the link", (*Path).established)
	on(Down, EvDrop, Down, "-", none)

	on(Connecting, EvWant, Connecting, "-", none)
	on(Connecting, EvLink, Up, "begin the link", (*Path).established)
	on(Connecting, EvFail, Error, "back off", (*Path).backOff)
	// An attempt is not given up: a kernel may have taken the connection already, and what it
	// sends there would be lost unread (Drop).
	on(Connecting, EvDrop, Connecting, "-", none)

	on(Up, EvWant, Up, "-", none)
	on(Up, EvLost, Error, "keep what was sent, back off", (*Path).lost)
	on(Up, EvDrop, Disconnecting, "close the link", (*Path).closeLink)

	on(Disconnecting, EvWant, Disconnecting, "-", none)
	on(Disconnecting, EvLost, Error, "keep what was sent, back off", (*Path).lost)
	on(Disconnecting, EvDrop, Disconnecting, "-", none)

	on(Error, EvWant, Connecting, "dial or poke", (*Path).start)
	on(Error, EvIdle, Down, "-", none)
	// The other side decides when it connects: its link is taken, whatever this side was about
	// to do.
	on(Error, EvLink, Up, "begin the link", (*Path).established)
	on(Error, EvDrop, Error, "-", none)
}

// event is the one place where a path's state changes.
func (p *Path) event(now time.Duration, e Event) bool {
	s := &pathTable[p.state][e]
	if !s.legal {
		p.c.ctr.IllegalEvent++
		return false
	}
	was := p.state
	p.state = s.next
	// The owner is told before the action, which may cause more events: so the log has them
	// in the order in which they happened.
	if was != p.state {
		p.since = now
		p.c.owner.StateChanged(p, was)
	}
	s.do(p, now)
	return true
}

// Table returns the state table as rows of text (state, event, next state,
// action) for the documentation.
func Table() (rows [][4]string) {
	for s := range numStates {
		for e := range numEvents {
			if c := pathTable[s][e]; c.legal {
				rows = append(rows, [4]string{s.String(), e.String(), c.next.String(), c.name})
			}
		}
	}
	return rows
}
