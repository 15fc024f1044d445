package volume

import (
	"fmt"

	"github.com/rdsd/rdsd/rtrs"
)

// passing tells whether an event is of a path that is on its way to a state
// which is told soon.
func passing(x *rtrs.Event) bool {
	return x.Kind == rtrs.EventPath && (x.To == rtrs.Connecting || x.To == rtrs.Fencing || x.To == rtrs.Closing || x.To == rtrs.Draining)
}

// sessionEvent puts an event of RTRS into words.
func sessionEvent(x *rtrs.Event, role string) Event {
	ev := Event{Role: role, Session: x.Name, Count: uint64(x.N), Err: x.Err}
	where := ""
	switch {
	case x.Client != nil:
		ev.Path = PathSpec{Src: addrText(x.Client.Local), Dst: addrText(x.Client.Remote)}
	case x.Server != nil:
		ev.Path = PathSpec{Src: addrText(x.Server.Remote), Dst: addrText(x.Server.Local)}
	}
	if ev.Path.Dst != "" {
		where = fmt.Sprintf(" from %s to %s", ev.Path.Src, ev.Path.Dst)
	}
	switch x.Kind {
	case rtrs.EventPath:
		ev.Kind, ev.State = EventPath, stateText(x.To)
		ev.Text = fmt.Sprintf("path%s is %s", where, ev.State)
	case rtrs.EventUp:
		ev.Kind, ev.State, ev.Text = EventSession, "connected", "session has a path"
	case rtrs.EventDown:
		ev.Kind, ev.State, ev.Text = EventSession, "closed", "session has no path any more"
	case rtrs.EventFailover:
		ev.Kind, ev.Text = EventFailover, fmt.Sprintf("%d requests of the path%s go on elsewhere", x.N, where)
	case rtrs.EventRefused:
		ev.Kind, ev.State, ev.Text = EventSession, "refused", "a connection"+where+" was refused"
	case rtrs.EventReplaced:
		ev.Kind, ev.State, ev.Text = EventSession, "replaced", "another session of this name took its place"
	case rtrs.EventTimeout:
		ev.Kind, ev.Text = EventError, "a request on the path"+where+" takes longer than its limit"
	case rtrs.EventLost:
		ev.Kind, ev.Text = EventError, fmt.Sprintf("%d requests were given up", x.N)
	default:
		ev.Kind, ev.State, ev.Text = EventError, x.Kind.String(), "the peer broke the protocol"+where
	}
	return ev
}

// stateText is the state of a path in the words of PathInfo.
func stateText(s rtrs.State) string {
	switch s {
	case rtrs.Closed:
		return "disconnected"
	case rtrs.Draining:
		return "closing"
	case rtrs.Dead:
		return "removed"
	}
	return s.String()
}
