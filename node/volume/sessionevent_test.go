package volume

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/rtrs"
)

// TestSessionEvents holds what is told of each event of a session.
func TestSessionEvents(t *testing.T) {
	boom := errors.New("boom")
	local, remote := netip.MustParseAddrPort("10.0.0.1:5"), netip.MustParseAddrPort("10.0.0.2:6")
	p := &rtrs.ClientPath{Local: local, Remote: remote}
	ends := PathSpec{Src: "10.0.0.1:5", Dst: "10.0.0.2:6"}
	for _, c := range []struct {
		x    rtrs.Event
		want Event
	}{
		{rtrs.Event{Kind: rtrs.EventPath, To: rtrs.Connected, Client: p}, Event{Kind: EventPath, State: "connected", Path: ends, Text: "path from 10.0.0.1:5 to 10.0.0.2:6 is connected"}},
		{rtrs.Event{Kind: rtrs.EventPath, To: rtrs.Dead, Client: p, Err: boom}, Event{Kind: EventPath, State: "removed", Path: ends, Err: boom, Text: "path from 10.0.0.1:5 to 10.0.0.2:6 is removed"}},
		{rtrs.Event{Kind: rtrs.EventUp}, Event{Kind: EventSession, State: "connected", Text: "session has a path"}},
		{rtrs.Event{Kind: rtrs.EventDown}, Event{Kind: EventSession, State: "closed", Text: "session has no path any more"}},
		{rtrs.Event{Kind: rtrs.EventFailover, N: 3, Client: p}, Event{Kind: EventFailover, Count: 3, Path: ends, Text: "3 requests of the path from 10.0.0.1:5 to 10.0.0.2:6 go on elsewhere"}},
		{rtrs.Event{Kind: rtrs.EventRefused, Err: boom}, Event{Kind: EventSession, State: "refused", Err: boom, Text: "a connection was refused"}},
		{rtrs.Event{Kind: rtrs.EventReplaced}, Event{Kind: EventSession, State: "replaced", Text: "another session of this name took its place"}},
		{rtrs.Event{Kind: rtrs.EventTimeout, Client: p}, Event{Kind: EventError, Path: ends, Text: "a request on the path from 10.0.0.1:5 to 10.0.0.2:6 takes longer than its limit"}},
		{rtrs.Event{Kind: rtrs.EventLost, N: 2}, Event{Kind: EventError, Count: 2, Text: "2 requests were given up"}},
	} {
		c.x.Name, c.want.Session, c.want.Role = "s", "s", RoleClient
		if got := sessionEvent(&c.x, RoleClient); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.x.Kind, got, c.want)
		}
	}
	for s, want := range map[rtrs.State]string{rtrs.Closed: "disconnected", rtrs.Draining: "closing", rtrs.Dead: "removed", rtrs.Connected: "connected", rtrs.Reconnecting: "reconnecting"} {
		if got := stateText(s); got != want {
			t.Errorf("%v is %q, want %q", s, got, want)
		}
	}
}

// TestFailuresAreToldOnce: of attempts to connect that fail in a row for one reason the
// first is told; another reason is, and the same one on another path or after a success.
func TestFailuresAreToldOnce(t *testing.T) {
	e := (*clientEnv)(&client{whys: map[*rtrs.ClientPath]string{}})
	p, other := &rtrs.ClientPath{}, &rtrs.ClientPath{}
	fails := func(p *rtrs.ClientPath, why string) rtrs.Event {
		return rtrs.Event{Kind: rtrs.EventPath, Client: p, To: rtrs.Reconnecting, Err: errors.New(why)}
	}
	for i, c := range []struct {
		x    rtrs.Event
		said bool
	}{
		{fails(p, "refused"), false},
		{fails(p, "refused"), true},
		{fails(other, "refused"), false},
		{fails(p, "refused"), true},
		{fails(p, "no route"), false},
		{fails(p, "no route"), true},
		{rtrs.Event{Kind: rtrs.EventUp}, false},
		{rtrs.Event{Kind: rtrs.EventTimeout, Client: p, Err: errors.New("no route")}, false},
		{rtrs.Event{Kind: rtrs.EventPath, Client: p, To: rtrs.Connected}, false},
		{fails(p, "no route"), false},
		{fails(other, "refused"), true},
		{rtrs.Event{Kind: rtrs.EventPath, Client: p, To: rtrs.Dead, Err: errors.New("no route")}, false},
		{fails(p, "no route"), false},
	} {
		if got := e.said(&c.x); got != c.said {
			t.Errorf("event %d: said before is %v", i, got)
		}
	}
}
