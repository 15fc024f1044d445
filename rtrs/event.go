package rtrs

import "fmt"

// EventKind says what happened.
type EventKind uint8

// Kinds of event.
const (
	EventPath      EventKind = iota // the path changed its state, From To; Err is why, if it was not asked for
	EventUp                         // the session has a path
	EventDown                       // the session has no path any more
	EventFailover                   // N requests of Path, which was lost, go on elsewhere
	EventTimeout                    // a request on Path passed its limit; the path is given up, or lives and waits for the store
	EventLost                       // N requests were given up with Err
	EventRefused                    // a connection or a session was refused with Err
	EventReplaced                   // the session was ended by a new one of the same name
	EventViolation                  // the peer broke the protocol on Path: Err
	numEvents
)

var eventNames = [numEvents]string{"path", "up", "down", "failover", "timeout", "lost", "refused", "replaced", "violation"}

func (k EventKind) String() string {
	if k < numEvents {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// Event is something that happened, as far as it has a meaning for its kind.
type Event struct {
	Kind       EventKind
	Name       string // of the session
	Client     *ClientPath
	Server     *ServerPath // on the other side
	From, To   State
	N          int
	Err        error
	Generation uint32 // EventUp: of the session at the server, 0: unknown
}
