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
