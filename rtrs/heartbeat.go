package rtrs

import (
	"time"
)

// heartbeat is the watch that one end keeps over a path. In each interval a message is sent
// on connection 0 unless the last is unanswered; any message, on any connection, is a sign
// of life, and the path ends after so many intervals without one as its pulse says.
//
// The kernel gives up one to two intervals later, as it counts ticks.
type heartbeat struct {
	pulse pulse
	next  time.Duration // when it is looked at
	heard time.Duration // the last sign of life
	asked time.Duration // when the message was sent that is not answered, 0: none
}

func (h *heartbeat) start(now time.Duration, p pulse) {
	*h = heartbeat{pulse: p, next: now + p.every, heard: now}
}

// tick is to be called when next has come. send: a message is to be sent.
func (h *heartbeat) tick(now time.Duration) (send, dead bool) {
	end := h.heard + h.pulse.silence()
	if now >= end {
		return false, true
	}
	if send = h.asked == 0; send {
		h.asked = max(now, 1)
	}
	if h.next = now + h.pulse.every; end > now {
		h.next = min(h.next, end)
	}
	return send, false
}

// answered returns how long the answer took, 0 when none was expected.
func (h *heartbeat) answered(now time.Duration) (d time.Duration) {
	if h.asked != 0 {
		d = max(now-h.asked, 1)
	}
	h.asked = 0
	return d
}

// lateness keeps a process that did not run for a while from taking that for the silence of
// its peers: messages that came meanwhile are read first.
type lateness bool

// tick is called first in Tick. It reports whether the call came an interval or more too
// late: everything due waits for one more then, but not twice in a row.
func (l *lateness) tick(due *time.Duration, now, every time.Duration) bool {
	*l = !*l && *due != Never && now-*due >= every
	if *l {
		*due = now + every
	}
	return bool(*l)
}
