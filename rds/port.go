package rds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// Congestion of a peer's ports, and the flows concerned.
//
// The state of its ports that a peer sends is taken over at once, whole maps word by word:
// from then on sends are refused or pass by it. Telling the flows concerned costs work for
// each of them, and the peer decides how often. Therefore a change of a port that concerns
// many flows is told no sooner after the last than tellTime for each of them, with the state
// at that time, and whole maps of a peer with many such ports at most every tellEvery; a timer
// tells the changes that are late. A port that
// changed twice meanwhile is as its flows were told, and there is nothing to tell; flows
// that wait for a port are woken whenever it is found clear.

// peerPort is a port of a peer that concerns a socket here.
type peerPort struct {
	port    uint16
	told    bool  // congested, as the flows concerned were told
	late    bool  // in Peer.late
	dests   int32 // open to it, of all flows in opened
	toldAt  time.Duration
	since   time.Duration
	blocked uint64   // sends refused or made to wait, while it is congested
	opened  flowList // destinations sockets have open
	waiters flowList // flows with something that waits for it
	refused flowList // flows whose socket hears of its changes

	reader   *wire.Reader // the other daemon's last answer about its reader
	readerAt time.Duration
}

const (
	tellEvery = 50 * time.Millisecond // time between two tellings, however much they cost
	tellTime  = 5 * time.Microsecond  // for each that is told: much longer than to tell it
	tellFew   = 64                    // so many concerned cost little
)

func (pp *peerPort) concerned() int { return 1 + int(pp.dests) + pp.waiters.n + pp.refused.n }

// due is when a change may be told.
func (pp *peerPort) due() time.Duration {
	n := pp.concerned()
	if n <= tellFew {
		return 0
	}
	return pp.toldAt + min(time.Duration(n)*tellTime, tellEvery)
}

// portOf finds or makes the entry of a port. The caller acts upon the port's state, so a
// change that is late is told first.
func (pe *Peer) portOf(now time.Duration, port uint16) *peerPort {
	pp := pe.ports[port]
	if pp != nil && pp.told != pe.Congested(port) {
		pe.tell(now, pp)
		pp = pe.ports[port] // which may have gone with the last that it concerned
	}
	if pp == nil {
		if pe.ports == nil {
			pe.ports = make(map[uint16]*peerPort)
		}
		pp = &peerPort{port: port, told: pe.Congested(port), toldAt: now - tellEvery, since: pe.mapAt}
		pe.ports[port] = pp
		pe.portsMost = max(pe.portsMost, uint32(len(pe.ports)))
	}
	return pp
}

// tidy forgets the entry of a port that no longer concerns a socket here.
func (pe *Peer) tidy(port uint16) {
	if pp := pe.ports[port]; pp != nil && pp.concerned() == 1 && !pp.late {
		// Whoever was refused has gone, or was not remembered. A peer that went while its port was
		// congested would be kept, and connected to, for ever.
		if pp.blocked > 0 && pe.Congested(port) {
			pe.e.wishAgain()
		}
		pe.unblock(pp)
		delete(pe.ports, port)
		pe.ports = fit(pe.ports, &pe.portsMost)
	}
}

// Congested asks the peer's map.
func (pe *Peer) Congested(port uint16) bool {
	return pe.cmap.Congested(port)
}

// CongestionMap takes over the peer's whole map.
func (pe *Peer) CongestionMap(now time.Duration, m []byte) {
	freed, changed, err := pe.cmap.ReplaceBy(&pe.e.spare, m, noteMost+1, pe.noteMany())
	if err != nil || !changed {
		return
	}
	pe.mapAt = now
	// Monitors of groups are told at their own pace, and cost nothing here.
	pe.e.freeGroups(now, freed)
	if len(pe.ports)+pe.c.Held() <= tellFew || now-pe.mapTold >= tellEvery {
		pe.tellAll(now)
	} else {
		pe.allLate = true
		pe.lateAt(pe.mapTold + tellEvery)
	}
}

// noteMost bounds the notices of one map. Of more than so many changes watchers are told that they
// have lost some.
const noteMost = 256

// noteMany returns what notes the changes of a map, and one beyond noteMost; nil: nobody watches.
func (pe *Peer) noteMany() func(port uint16, on bool) {
	e, n := pe.e, 0
	if !e.watched {
		return nil
	}
	return func(port uint16, on bool) {
		if n++; n > noteMost {
			e.clost = true
			return
		}
		e.note(Notice{Endpoint: netip.AddrPortFrom(pe.addr, port), Congested: on})
	}
}

// CongestionDelta takes over one change.
func (pe *Peer) CongestionDelta(now time.Duration, s wire.PortState) {
	if pe.cmap.SetBy(&pe.e.spare, s.Port, s.Congested) {
		pe.changed(now, s.Port, s.Congested)
	}
}

// changed is for one port whose bit has changed.
func (pe *Peer) changed(now time.Duration, port uint16, on bool) {
	e := pe.e
	if e.watched {
		e.note(Notice{Endpoint: netip.AddrPortFrom(pe.addr, port), Local: pe.c == nil, Congested: on})
	}
	if !on {
		e.freeGroups(now, 1<<(port%64))
	}
	pe.mapAt = now
	switch pp := pe.ports[port]; {
	case pp == nil:
		if !on && pe.c != nil {
			// No flow waits here, but accepted datagrams may be held for the port (conn.PortClear).
			e.cleared = append(e.cleared, clearedPort{pe, port})
		}
	case now >= pp.due():
		pe.tell(now, pp)
	case !pp.late:
		pp.late = true
		pe.late = append(pe.late, pp)
		pe.lateAt(pp.due())
	}
}

// lateAt arms the timer that tells late changes.
func (pe *Peer) lateAt(at time.Duration) { pe.e.arm(&pe.lateTm, (*lateTicker)(pe), at) }

type lateTicker Peer

func (t *lateTicker) tick(now time.Duration) {
	pe := (*Peer)(t)
	pe.lateTm.t = nil
	if pe.allLate && now-pe.mapTold >= tellEvery {
		pe.tellAll(now)
	}
	next := conn.Never
	// Those whose time has not come yet go into a new list.
	late := pe.late
	pe.late = nil
	for _, pp := range late {
		if at := pp.due(); at > now {
			pe.late = append(pe.late, pp)
			next = min(next, at)
			continue
		}
		pp.late = false
		pe.tell(now, pp)
		pe.tidy(pp.port)
	}
	if pe.allLate {
		next = min(next, pe.mapTold+tellEvery)
	}
	if next != conn.Never {
		pe.lateAt(next)
	}
}

// tellAll tells everybody concerned by any port of the peer, in the ports' order.
func (pe *Peer) tellAll(now time.Duration) {
	pe.allLate, pe.mapTold = false, now
	var ports []uint16
	for port, pp := range pe.ports {
		// A port that is as it was told also counts if a flow waits for it: it may have been
		// congested in between, noticed only by that flow.
		if on := pe.Congested(port); on != pp.told || !on && pp.waiters.n > 0 {
			ports = append(ports, port)
		}
	}
	// The map of Go has no order, and the simulator wants the same each time.
	slices.Sort(ports)
	for _, port := range ports {
		// What one of them makes idle may have forgotten the last that another concerned.
		if pp := pe.ports[port]; pp != nil {
			pe.tell(now, pp)
		}
	}
	pe.e.clearedMaps = append(pe.e.clearedMaps, pe)
}

// tell tells everybody concerned by a port how it stands.
func (pe *Peer) tell(now time.Duration, pp *peerPort) {
	e := pe.e
	on := pe.Congested(pp.port)
	// Before the check below: waiters are woken whenever the port is found clear, also when
	// the others were never told that it was not.
	if !on {
		e.cleared = append(e.cleared, clearedPort{pe, pp.port})
		pe.unblock(pp)
	}
	if on == pp.told {
		return
	}
	pp.told, pp.toldAt = on, now
	if on {
		pp.since = now
	}
	e.told += int(pp.dests) + pp.refused.n
	pp.opened.each(byOpened, func(f *flow) {
		// A flow in both lists hears of it once.
		if !f.refused {
			f.s.portNews(f, on)
		}
		for _, d := range f.dests {
			f.s.sink.Changed(d, on)
		}
	})
	pp.refused.each(byRefused, func(f *flow) {
		f.s.portNews(f, on)
		// It asked to hear when the port clears, and has.
		if !on && !f.s.mon.Set {
			f.unconcern(pp)
		}
	})
}

// portNews tells a socket that watches congestion of a destination it is concerned by.
func (s *Socket) portNews(f *flow, on bool) {
	if on && !s.mon.Set || !on && !s.mon.Clear {
		return
	}
	// A client that does not fetch them may have one port change without an end; its flows are paid for.
	if len(s.changes) < min(freeChanges+len(s.flows), maxRefused) {
		s.changes = append(s.changes, Change{f.dst, on})
	} else {
		s.freed = allGroups // look at every destination again
	}
	s.news(EvCongestion)
}

// unblock forgets the sends that were refused or had to wait.
func (pe *Peer) unblock(pp *peerPort) {
	if pp.blocked > 0 {
		pp.blocked = 0
		pe.blockedPorts--
		pe.noteBlocked()
	}
}

// noteBlocked tells the connection whether a port of the peer stops somebody.
func (pe *Peer) noteBlocked() {
	if pe.c != nil {
		pe.c.SetBlocked(pe.blockedPorts > 0)
	}
}

// --- flows that wait for a port ---------------------------------------------------

func (pe *Peer) await(now time.Duration, f *flow) {
	pe.portOf(now, f.dst.Port()).waiters.push(byWaiting, f)
}

func (pe *Peer) unawait(f *flow) {
	port := f.dst.Port()
	if pp := pe.ports[port]; pp != nil {
		pp.waiters.remove(byWaiting, f)
		pe.tidy(port)
	}
}

// wake lets every flow that waits for port try again.
func (pe *Peer) wake(port uint16) {
	pp := pe.ports[port]
	if pp == nil {
		return
	}
	if pe.Congested(port) {
		// It was clear for a moment of this step, and who heard of that may have been the last whom it
		// concerned; but a send may have been refused since.
		if pp.blocked == 0 {
			pe.tidy(port)
		}
		return
	}
	pp.waiters.each(byWaiting, func(f *flow) {
		pp.waiters.remove(byWaiting, f)
		f.awaitsPort = false
		// Not sent from here: the first to be woken would take all the room, and lists are being
		// walked. runWaiting lets flows go in turn when the step ends.
		f.s.lineUp(f)
		f.s.hasSpace()
	})
	pe.tidy(port)
}

// block notes a send that is refused or has to wait because port is congested.
func (pe *Peer) block(now time.Duration, port uint16) {
	if pe.ports[port] != nil || len(pe.ports) < 4096 {
		pp := pe.portOf(now, port)
		if pp.blocked == 0 {
			pe.blockedPorts++
			pe.noteBlocked()
		}
		pp.blocked++
	}
	if pe.c != nil {
		pe.c.Blocked(now)
	}
}
