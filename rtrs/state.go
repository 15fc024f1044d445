package rtrs

import "fmt"

// State is where a path stands.
type State uint8

// States of a path. The kernel's sysfs shows Connected and, for all others,
// disconnected.
const (
	Reconnecting State = iota // client: waits until it is tried again, or for the first time
	Connecting                // connections are made, the first messages exchanged
	Fencing                   // server: waits until older epochs have ended before it is connected
	Connected                 // requests run
	Closing                   // given up; its links are closing
	Draining                  // server: the links are closed, the store is not done with all requests
	Closed                    // client: disconnected by the administrator, or out of attempts
	Dead                      // removed, or gone
	numStates
)

var stateNames = [numStates]string{"reconnecting", "connecting", "fencing", "connected", "closing", "draining", "closed", "dead"}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// transition is a change of state, and when it happens.
type transition struct {
	from, to State
	when     string
}

// clientTable is the whole life of a client's path, serverTable of a server's. A move that
// is not there does not happen; docs/protocol.md has both.
var clientTable = []transition{
	{Reconnecting, Connecting, "its time has come, or the administrator asked"},
	{Reconnecting, Closed, "disconnected"},
	{Reconnecting, Dead, "removed"},
	{Connecting, Connected, "INFO_RSP"},
	{Connecting, Closing, "refused, lost, too late, disconnected, removed"},
	{Connected, Closing, "lost, silent, a request timed out, disconnected, removed"},
	{Closing, Reconnecting, "all links closed; a pause follows"},
	{Closing, Closed, "all links closed; disconnected, refused for good, or out of attempts"},
	{Closing, Dead, "all links closed; removed"},
	{Closed, Reconnecting, "reconnected by the administrator"},
	{Closed, Dead, "removed"},
}

var serverTable = []transition{
	{Connecting, Fencing, "INFO_REQ"},
	{Connecting, Closing, "lost, too late, given up"},
	{Fencing, Connected, "older epochs have ended; INFO_RSP"},
	{Fencing, Closing, "refused, lost, given up"},
	{Connected, Closing, "lost, silent, fenced, replaced, given up"},
	{Closing, Draining, "all links closed; requests are at the store"},
	{Closing, Dead, "all links closed"},
	{Draining, Dead, "the store is done with the last request"},
}

type table [numStates][numStates]bool

func newTable(ts []transition) (t table) {
	for _, x := range ts {
		t[x.from][x.to] = true
	}
	return t
}

var clientMay, serverMay = newTable(clientTable), newTable(serverTable)

func (t *table) check(from, to State) {
	if !t[from][to] {
		panic(fmt.Sprintf("a path that is %v becomes %v", from, to))
	}
}
