package shm

import (
	"fmt"
	"testing"
)

// A second model: events that wait for room (host_event.go, host_view.go), while
// the reactor goes to sleep without the lock and another thread of the daemon makes events with
// it. The client is the other side. Every store of these paths is an exchange
// in the code, so memory is plainly sequential here; what is checked is that
// nobody waits for ever.

type roomState struct {
	// Shared memory: a ring of one event.
	entry, tail, head uint8
	dSleeps, dBell    uint8
	cSleeps, cBell    uint8
	// The daemon's own.
	lock      uint8 // 0 free
	put, pub  uint8 // events in the ring, published
	cached    uint8 // the client's head as known (Host.eventHead)
	waiting   uint8 // in the overflow
	view, was uint8 // events wait for room
	due, hot  uint8
	made      uint8 // events so far
	link      uint8 // where the threads are
	reactor   uint8
	bits      uint8 // the reactor's
	client    uint8
	seen      uint8 // events the client read
}

type roomRules struct {
	events    uint8
	noAsk     bool // an event that finds no room does not change what a sleeping daemon waits for
	noLook    bool // the reactor sleeps without a second look
	noView    bool // the reactor does not look whether something began to wait while it declared itself asleep
	noSecond  bool // the thread whose event waits does not look for room again after it asked
	noTell    bool // the client does not look whether room is waited for
	sometimes bool // the client does so only now and then
	noRoom    bool // a reactor that was woken looks at posts only
}

// room is Host.eventRoom.
func (s *roomState) room() bool {
	if s.put-s.cached >= 1 {
		s.cached = s.head
	}
	return s.put-s.cached < 1
}

// publishEvents, up to the tail.
func (s *roomState) drain() {
	for s.waiting > 0 && s.room() {
		s.waiting--
		s.entry = s.put + 1
		s.put++
	}
}

// hasRoom is Host.HasRoom.
func (s *roomState) hasRoom() bool { return s.view != 0 && s.head != s.cached }

// refresh is Host.refresh up to the store of view; true when it has to ask.
func (s *roomState) refresh() bool {
	v := min(s.waiting, 1)
	on := v > s.was
	if on {
		s.due = 1
	}
	s.view, s.was = v, v
	return on
}

func (s *roomState) wakeClient() {
	if s.cSleeps != 0 {
		s.cSleeps = 0
		s.cBell = 1
	}
}

func (c *roomRules) linkStep(s *roomState) bool {
	switch s.link {
	case 0: // an event; lock
		if s.made == c.events || s.lock != 0 {
			return false
		}
		s.lock, s.link = 1, 1
	case 1: // push
		s.made++
		if s.waiting == 0 && s.room() {
			s.entry = s.put + 1
			s.put++
			s.link = 3
			break
		}
		s.waiting++
		if s.link = 3; s.refresh() && !c.noAsk {
			s.link = 2
		}
	case 2: // refresh: ask
		if s.dSleeps == DaemonWaitsSend {
			s.dSleeps = DaemonWaitsSend | DaemonWaitsRoom
		}
		s.link = 3
	case 3: // publishEvents
		if !c.noSecond || s.waiting == 0 {
			s.drain()
		}
		s.link = 4
	case 4: // the tail
		if s.pub != s.put {
			s.pub = s.put
			s.tail = s.pub
		}
		s.refresh()
		s.link = 5
	case 5: // Publish: ring
		s.wakeClient()
		s.link = 6
	case 6: // Due; unlock
		if s.due != 0 && s.hasRoom() && !c.noSecond {
			s.hot = 1
		}
		s.due, s.lock, s.link = 0, 0, 0
	}
	return true
}

func (c *roomRules) reactorStep(s *roomState) bool {
	switch s.reactor {
	case 0: // asleep: its doorbell, or Hot
		if s.dBell == 0 && s.hot == 0 {
			return false
		}
		s.dBell, s.hot, s.reactor = 0, 0, 1
	case 1: // Wake
		s.dSleeps = 0
		s.reactor = 2
	case 2: // Poll; lock
		s.reactor = 6
		if !c.noRoom && s.hasRoom() {
			if s.lock != 0 {
				s.reactor = 2
				return false
			}
			s.lock, s.reactor = 1, 3
		}
	case 3: // publishEvents
		s.drain()
		s.reactor = 4
	case 4: // the tail
		if s.pub != s.put {
			s.pub = s.put
			s.tail = s.pub
		}
		s.refresh()
		s.reactor = 5
	case 5: // ring; unlock
		s.wakeClient()
		s.lock, s.reactor = 0, 2
	case 6: // Sleep: how do things stand?
		if s.bits = DaemonWaitsSend; s.view != 0 {
			s.bits |= DaemonWaitsRoom
		}
		s.reactor = 7
	case 7: // declare
		s.dSleeps = s.bits
		if s.reactor = 8; c.noView {
			s.reactor = 9
		}
	case 8: // and now?
		if s.reactor = 9; s.view != 0 && s.bits&DaemonWaitsRoom == 0 {
			s.reactor = 6
		}
	case 9: // look once more
		if s.reactor = 0; s.bits&DaemonWaitsRoom != 0 && s.hasRoom() && !c.noLook {
			s.reactor = 1
		}
	}
	return true
}

func (c *roomRules) clientStep(s *roomState) (ok bool, bad string) {
	switch s.client {
	case 0: // is there one?
		if s.client = 3; s.tail != s.head {
			s.client = 1
		}
	case 1: // read it, store the head
		s.seen++
		if s.entry != s.seen {
			return false, fmt.Sprintf("event %d where %d was due", s.entry, s.seen)
		}
		s.head++
		s.client = 2
		if c.noTell || c.sometimes && s.seen%2 == 0 {
			s.client = 0
		}
	case 2: // does the daemon wait for it?
		if s.dSleeps&DaemonWaitsRoom != 0 {
			s.dSleeps = 0
			s.dBell = 1
		}
		s.client = 0
	case 3: // sleep
		if s.seen == c.events {
			return false, ""
		}
		s.cSleeps = 1
		s.client = 4
	case 4:
		if s.client = 5; s.tail != s.head {
			s.client = 6
		}
	case 5:
		if s.cBell == 0 {
			return false, ""
		}
		s.cBell = 0
		s.client = 6
	case 6:
		s.cSleeps = 0
		s.client = 0
	}
	return true, ""
}

func (c *roomRules) explore() (states int, wrong string) {
	start := roomState{reactor: 6} // about to sleep for the first time
	return explore(start, func(s roomState, visit func(roomState, string)) string {
		if n := s; c.linkStep(&n) {
			visit(n, fmt.Sprint("l", s.link))
		}
		if n := s; c.reactorStep(&n) {
			visit(n, fmt.Sprint("r", s.reactor))
		}
		n := s
		ok, bad := c.clientStep(&n)
		if ok {
			visit(n, fmt.Sprint("c", s.client))
		}
		return bad
	}, func(s roomState) bool { return s.seen == c.events })
}

func TestModelRoom(t *testing.T) {
	for n := uint8(1); n <= 3; n++ {
		c := roomRules{events: n}
		states, wrong := c.explore()
		t.Logf("%d events: %d states", n, states)
		if wrong != "" {
			t.Errorf("%d events: %s", n, wrong)
		}
	}
	for name, c := range map[string]roomRules{
		"not asking for room":             {noAsk: true},
		"sleeping without another look":   {noLook: true},
		"sleeping over what just began":   {noView: true},
		"asking without another look":     {noSecond: true},
		"not telling of room":             {noTell: true},
		"telling now and then":            {sometimes: true},
		"a reactor that forgets the room": {noRoom: true},
	} {
		c.events = 3
		if _, wrong := c.explore(); wrong == "" {
			t.Errorf("%s: nothing went wrong", name)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
