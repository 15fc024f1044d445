package rds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
)

// heldPorts are ports that were bound when the former incarnation of the daemon ended, or this
// one does (Leave), kept for their owners for a moment: applications come back within milliseconds or seconds,
// while links come back at once. Until a port is bound again, or the time is over, it
// counts as congested and has no room: senders wait, an rdsd is refused and sends again,
// the link of a kernel, which cannot be refused anything, is not read on. Without that,
// datagrams under way would be dropped as for an unbound port.
type heldPorts struct {
	owner map[uint16]uint32 // uid by port
	until time.Duration
	bound []uint16 // by their owners since the last tick
	tm    timer
	told  func(port uint16, uid uint32, bound bool)
}

// OnPorts has f told of each port that is bound and closed, and of held ports that
// are given up, in the middle of a step: f must not block or call back.
func (e *Engine) OnPorts(f func(port uint16, uid uint32, bound bool)) { e.held.told = f }

// Hold keeps ports for the users that owned them until a process of such a user binds them,
// or until the time until (Never: HoldUntil says it later). It is called once, before the first link.
func (e *Engine) Hold(now time.Duration, ports map[uint16]uint32, until time.Duration) {
	if len(ports) == 0 {
		return
	}
	e.held.owner = ports
	for _, port := range e.held.ports() {
		// Before the first link: peers learn of it with the first map.
		e.congest(now, port)
	}
	e.HoldUntil(until)
}

// HoldUntil has ports that are still held then given up at the time until, or not at all (Never),
// whatever was said before.
func (e *Engine) HoldUntil(until time.Duration) {
	h := &e.held
	h.until = until
	if len(h.owner) > 0 && until != conn.Never {
		e.arm(&h.tm, (*heldTicker)(e), until)
	}
}

// Leave is for the end of the daemon's life. What is placed from here on might never be read, and its
// sender would believe it delivered: every port is congested and has no room, whatever is read. A port
// that is closed, by whomever, stays so and is held for its user, for whom the next life holds it: a
// final outcome for what is sent to it would be wrong as soon as that life begins. Ports that are held
// already are not given up, and are congested still when their owners bind them.
func (e *Engine) Leave(now time.Duration) {
	if e.leaving {
		return
	}
	e.leaving, e.held.until = true, conn.Never
	for _, s := range e.Sockets() {
		s.mark(now)
	}
}

// leaves holds the port of a socket that is closed after Leave. Nobody is told that it was closed.
func (h *heldPorts) leaves(s *Socket) {
	if h.owner == nil {
		h.owner = map[uint16]uint32{}
	}
	h.owner[s.port] = s.opt.UID
}

// Held is how many ports wait for their owners.
func (e *Engine) Held() int { return len(e.held.owner) }

func (h *heldPorts) ports() []uint16 {
	l := make([]uint16, 0, len(h.owner))
	for port := range h.owner {
		l = append(l, port)
	}
	slices.Sort(l) // the simulator wants the same order each time
	return l
}

func (h *heldPorts) has(port uint16) bool {
	_, ok := h.owner[port]
	return ok
}

// mayTake tells whether user uid may bind port now.
func (e *Engine) mayTake(port uint16, uid uint32) error {
	if owner, ok := e.held.owner[port]; ok && owner != uid {
		return rdserr.With(rdserr.ErrAddrInUse, "%v is held for user %d, whose socket it was before the daemon started", netip.AddrPortFrom(e.local, port), owner)
	}
	return nil
}

// endHold ends the holding of port, which its owner has bound. Messages that wait for that
// go on in the next tick, at once: Bind does not know the time. After Leave the tick has to mark
// whatever was bound.
func (e *Engine) endHold(port uint16) {
	if e.held.has(port) || e.leaving {
		delete(e.held.owner, port)
		e.held.bound = append(e.held.bound, port)
		e.arm(&e.held.tm, (*heldTicker)(e), e.now)
	}
}

func (h *heldPorts) tellBound(port uint16, uid uint32) {
	if h.told != nil {
		h.told(port, uid, true)
	}
}

// tellClosed is also for a port that its owner has not come back for.
func (h *heldPorts) tellClosed(port uint16, uid uint32) {
	if h.told != nil {
		h.told(port, uid, false)
	}
}

type heldTicker Engine

func (t *heldTicker) tick(now time.Duration) {
	e := (*Engine)(t)
	h := &e.held
	h.tm.t = nil
	done := h.bound
	h.bound = nil
	if now >= h.until {
		for _, port := range h.ports() {
			h.tellClosed(port, h.owner[port])
			done = append(done, port)
		}
		h.owner = nil
	} else if len(h.owner) > 0 && h.until != conn.Never {
		e.arm(&h.tm, t, h.until)
	}
	for _, port := range done {
		// The new owner's socket may be congested by itself by now, or closed and its port held again.
		switch s := e.socks[port]; {
		case s != nil && e.leaving:
			s.mark(now)
		case !h.has(port) && (s == nil || !s.congested):
			e.clear(now, port)
		}
	}
	e.roomAgain()
}
