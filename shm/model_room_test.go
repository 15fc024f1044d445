package shm

import (
	"fmt"
	"testing"
)

// A second model: events that wait for room (host_event.go), while the reactor
// sleeps and another thread of the daemon makes events. The daemon's threads
// exclude each other by the owner's lock; the client is the other side. Every
// atomic store of these paths is an exchange in the code, so memory is plainly
// sequential here; what is checked is that nobody waits for ever.

type roomState struct {
	// Shared memory: a ring of one event.
	entry, tail, head uint8
	dSleeps, dBell    uint8
	cSleeps, cBell    uint8
	// The daemon's own, under its lock.
	lock             uint8 // 0 free, 1 link, 2 reactor
	put, pub, cached uint8 // events in the ring, published, the client's head as known
	waiting          uint8 // in the overflow
	made             uint8 // events so far
	asleep           uint8
	link, reactor    uint8 // where the threads are
	client           uint8
	seen             uint8 // events the client read
}

type roomRules struct {
	events    uint8
	noAsk     bool // an event that finds no room does not ask a sleeping daemon's client for it
	noLook    bool // the reactor sleeps over events that wait without a second look
	noDrain   bool // the thread that asked does not look again for room
	noTell    bool // the client does not look whether room is waited for
	sometimes bool // the client does so only now and then
}

// room is Host.eventRoom.
func (s *roomState) room() bool {
	if s.put-s.cached >= 1 {
		s.cached = s.head
	}
	return s.put-s.cached < 1
}

func (s *roomState) putOne() {
	s.entry = s.put + 1
	s.put++
}

// daemonStep makes a step of the link's thread (1) or the reactor (2) with the lock
// held. It returns false when it cannot.
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
			s.putOne()
			s.link = 3
			break
		}
		s.waiting++
		s.link = 2
	case 2: // askRoom
		if !c.noAsk && s.asleep == DaemonWaitsSend {
			s.asleep = DaemonWaitsSend | DaemonWaitsRoom
			s.dSleeps = s.asleep
		}
		if s.link = 3; c.noDrain {
			s.link = 6
		}
	case 3: // publishEvents: what waits, as far as there is room
		if s.waiting > 0 && s.room() {
			s.waiting--
			s.putOne()
		}
		s.link = 4
	case 4: // publishEvents: the tail
		if s.link = 6; s.pub != s.put {
			s.pub = s.put
			s.tail = s.pub
			s.link = 5
		}
	case 5: // Publish: ring
		if s.cSleeps != 0 {
			s.cSleeps = 0
			s.cBell = 1
		}
		s.link = 6
	case 6:
		s.lock, s.link = 0, 0
	}
	return true
}

func (c *roomRules) reactorStep(s *roomState) bool {
	switch s.reactor {
	case 0: // asleep: poll, lock
		if s.dBell == 0 || s.lock != 0 {
			return false
		}
		s.dBell = 0
		s.lock, s.reactor = 2, 1
	case 1: // Wake
		s.asleep, s.dSleeps = 0, 0
		s.reactor = 2
	case 2: // publishEvents
		if s.waiting > 0 && s.room() {
			s.waiting--
			s.putOne()
		}
		s.reactor = 3
	case 3:
		if s.reactor = 5; s.pub != s.put {
			s.pub = s.put
			s.tail = s.pub
			s.reactor = 4
		}
	case 4:
		if s.cSleeps != 0 {
			s.cSleeps = 0
			s.cBell = 1
		}
		s.reactor = 5
	case 5: // Sleep: declare
		s.asleep = DaemonWaitsSend
		if s.waiting > 0 {
			s.asleep |= DaemonWaitsRoom
		}
		s.dSleeps = s.asleep
		if s.reactor = 6; c.noLook {
			s.reactor = 7
		}
	case 6: // Sleep: look once more
		s.reactor = 7
		if s.waiting > 0 && s.room() {
			s.reactor = 1
		}
	case 7:
		s.lock, s.reactor = 0, 0
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
	start := roomState{reactor: 5, lock: 2} // about to sleep for the first time
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
	for n := uint8(1); n <= 5; n++ {
		c := roomRules{events: n}
		states, wrong := c.explore()
		t.Logf("%d events: %d states", n, states)
		if wrong != "" {
			t.Errorf("%d events: %s", n, wrong)
		}
	}
	for name, c := range map[string]roomRules{
		"not asking for room":           {noAsk: true},
		"sleeping without another look": {noLook: true},
		"asking without another look":   {noDrain: true},
		"not telling of room":           {noTell: true},
		"telling now and then":          {sometimes: true},
	} {
		c.events = 4
		if _, wrong := c.explore(); wrong == "" {
			t.Errorf("%s: nothing went wrong", name)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
