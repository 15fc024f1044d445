package rds

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// congLog is how many changes of our own map are kept, so that an rdsd peer that
// is not further behind gets the changes instead of the map.
const congLog = 256

type congChange struct {
	port uint16
	on   bool
}

// Notice is a port, ours or a peer's, that became congested or clear.
type Notice struct {
	Endpoint  netip.AddrPort
	Local     bool
	Congested bool
}

// Watch turns the collection of Notices on or off.
func (e *Engine) Watch(on bool) {
	if e.watched = on; !on {
		e.cnotes, e.clost = nil, false
	}
}

func (e *Engine) note(n Notice) {
	if len(e.cnotes) >= 4096 {
		e.cnotes, e.clost = append(e.cnotes[:0], e.cnotes[2048:]...), true
	}
	e.cnotes = append(e.cnotes, n)
}

// congest and clear say how one of our ports stands from now on.
func (e *Engine) congest(now time.Duration, port uint16) { e.setCongested(now, port, true) }
func (e *Engine) clear(now time.Duration, port uint16)   { e.setCongested(now, port, false) }

// setCongested notes the state of one of our ports and tells every peer of a change.
func (e *Engine) setCongested(now time.Duration, port uint16, on bool) {
	if !e.cmap.SetBy(&e.spare, port, on) {
		return
	}
	// The ring keeps the last changes by version; a peer further behind gets the whole map.
	e.clog[e.cver%congLog] = congChange{port, on}
	e.cver++
	e.loop.changed(now, port, on)
	e.tellPeers(now)
}

// Telling all peers of a change costs work for each of them, and a client can make a port
// change as often as it likes. With many peers changes are collected for peerTime for each,
// and told in pages with the lock released in between; peers get the state of the ports at
// that time.
const (
	peersAtOnce = 256
	peerTime    = 5 * time.Microsecond
)

// peerWalk is where telling the peers stands.
type peerWalk struct {
	tm    timer
	next  int           // index in Engine.order
	whole int           // peers told so far that get whole maps
	again bool          // something changed since the walk began
	ended time.Duration // when the last one did
}

func (e *Engine) tellPeers(now time.Duration) {
	w := &e.walk
	n := len(e.order)
	at := w.ended + time.Duration(n)*peerTime
	switch {
	case w.tm.t != nil:
		w.again = true
	// Few peers, or the last walk is long enough ago: telling them at once costs little of
	// the time.
	case n <= peersAtOnce/4 || now >= at:
		e.walkPeers(now)
	default:
		w.next = 0
		e.arm(&w.tm, (*walkTicker)(e), at)
	}
}

// walkPeers tells one page of the peers, and has a timer tell the others.
func (e *Engine) walkPeers(now time.Duration) {
	w := &e.walk
	end := min(w.next+peersAtOnce, len(e.order))
	for _, pe := range e.order[w.next:end] {
		if pe.c.CongestionChanged(now) {
			w.whole++
		}
	}
	e.walked += end - w.next
	if w.next = end; end < len(e.order) {
		e.arm(&w.tm, (*walkTicker)(e), now+1)
		return
	}
	w.next, w.ended = 0, now
	e.conns.MapLinks, w.whole = w.whole, 0
	if w.again {
		w.again = false
		e.tellPeers(now)
	}
}

type walkTicker Engine

func (t *walkTicker) tick(now time.Duration) {
	e := (*Engine)(t)
	e.walk.tm.t = nil
	if e.walk.next == 0 {
		e.walk.again = false
	}
	e.walkPeers(now)
}

// localCongestion returns the news for a peer that knows version since; see
// conn.Owner.LocalCongestion.
func (e *Engine) localCongestion(since uint64, wholeOnly bool) (uint64, []wire.PortState, []byte) {
	if since == e.cver || since == 0 && e.cver == 1 && !wholeOnly {
		return e.cver, nil, nil
	}
	if since == 0 || wholeOnly || e.cver-since > congLog {
		if e.cwholeV != e.cver {
			e.cwhole = e.cmap.AppendTo(make([]byte, 0, 8192)) // the former one may still be on its way out
			e.cwholeV = e.cver
		}
		return e.cver, nil, e.cwhole
	}
	var delta []wire.PortState
	seen := make(map[uint16]bool)
	for v := e.cver; v > since; v-- {
		port := e.clog[(v-1)%congLog].port
		if !seen[port] {
			seen[port] = true
			delta = append(delta, wire.PortState{Port: port, Congested: e.cmap.Congested(port)})
		}
	}
	return e.cver, delta, nil
}

// allGroups tells a socket to look at every destination again.
const allGroups = math.MaxUint64

// groupsEvery is the least time between two looks at all sockets that watch groups of
// ports: a peer decides how often it makes ports clear.
const groupsEvery = 20 * time.Millisecond

// freeGroups notes that ports became clear, bit g of freed being those with port mod
// 64 = g, for sockets that watch groups.
func (e *Engine) freeGroups(now time.Duration, freed uint64) {
	if freed == 0 || len(e.monitors) == 0 {
		return
	}
	e.groups |= freed
	if now-e.groupsAt >= groupsEvery {
		e.tellGroups(now)
	} else {
		e.arm(&e.groupsTm, (*groupsTicker)(e), e.groupsAt+groupsEvery)
	}
}

// wishAgain has sockets that are crowded look at every destination again in wishEvery: with the
// last whom a congested port concerned a wish for a link has ended, and one of them may have been
// refused there, too. It may be refused by a map of the peer's former life.
func (e *Engine) wishAgain() {
	if len(e.monitors) > 0 {
		e.arm(&e.groupsTm, (*groupsTicker)(e), e.now+wishEvery)
	}
}

// wishEvery is long: a client with more destinations than flows are kept ends a wish with each look.
const wishEvery = time.Second

type groupsTicker Engine

func (t *groupsTicker) tick(now time.Duration) {
	e := (*Engine)(t)
	e.groupsTm.t = nil
	e.tellGroups(now)
}

func (e *Engine) tellGroups(now time.Duration) {
	freed := e.groups
	e.groups, e.groupsAt = 0, now
	e.told += len(e.monitors)
	for _, s := range e.monitors {
		if s.freed |= s.mon.Mask & freed; s.crowded {
			// It may be one of the destinations that found no place. The client looks at all of them, and
			// what it is refused then is noted anew.
			s.freed, s.crowded = allGroups, false
		}
		if s.freed != 0 {
			s.news(EvCongestion)
		}
	}
}

// CongestedPort describes one congested port, for administrators.
type CongestedPort struct {
	Endpoint netip.AddrPort
	Local    bool
	Since    time.Duration // when it became congested; of a peer's that concerns no socket here, or did not then, the last change of any port of the peer's
	Blocked  uint64        // sends refused or made to wait since, of sockets of which one is there; see felt
	Waiting  int           // sockets of this node that wait for it; see felt
	Socket   *Socket       // local: whose it is; nil: held for who had it before the restart
	Away     bool          // a port of another node to which no link is up: it was congested when that was last heard of
	Reader   *wire.Reader  // a port of another node: its daemon's answer (AskReaders), nil without one
}

// feltMost bounds the destinations of one port that felt looks at.
const feltMost = 1024

// felt adds the sends that clients themselves held back, and which never reached the
// engine, and returns how many destinations it looked at. Each costs a look at the memory of
// a client, and users open as many to one port as they like: of more than feltMost the
// others are left out.
func (pe *Peer) felt(port uint16, c *CongestedPort) (looks int) {
	pp := pe.ports[port]
	if pp == nil {
		return 0
	}
	for f := pp.opened.head; f != nil && looks < feltMost; f = f.links[byOpened].next {
		waits := false
		looks += len(f.dests)
		for _, d := range f.dests {
			if w, ok := f.s.sink.(Witness); ok {
				held, waiting := w.Felt(d)
				c.Blocked += held
				waits = waits || waiting > 0
			}
		}
		// A flow in waiters is counted: its socket has one send here that waits, and another
		// in a call of its client.
		if waits && !f.links[byWaiting].on {
			c.Waiting++
		}
	}
	return looks
}

// Self is this address as a peer of itself.
func (e *Engine) Self() *Peer { return e.loop }

// Ports says which ports CongestedOf lists.
type Ports uint8

const (
	AllPorts       Ports = iota
	ConcernedPorts       // those that concern a socket here
	OtherPorts           // the rest
)

// lookShare is how many ports that are passed over cost as much as one that is listed.
const lookShare = 8

// CongestedOf calls f for the congested ports of pe (Self: ours) from port from on, until they
// have cost most or more, and says what they cost and where to go on: -1 at the end. A port
// costs 1, and 1 more for each destination open to it that was looked at.
func (e *Engine) CongestedOf(pe *Peer, which Ports, from, most int, f func(*CongestedPort)) (cost, next int) {
	// A few ports that concern somebody are found without the others, of which there may be 65,536.
	if which == ConcernedPorts && len(pe.ports) <= askLook {
		var ports []uint16
		for port := range pe.ports {
			if int(port) >= from && pe.cmap.Congested(port) {
				ports = append(ports, port)
			}
		}
		slices.Sort(ports)
		looks := len(pe.ports) / lookShare
		for _, port := range ports {
			if cost >= most {
				return cost + looks, int(port)
			}
			cost += pe.list(port, f)
		}
		return cost + looks, -1
	}
	for looks := 0; cost < most; {
		port, ok := pe.cmap.Next(from)
		if !ok {
			return cost, -1
		}
		from = int(port) + 1
		if which != AllPorts && (pe.ports[port] != nil) != (which == ConcernedPorts) {
			if looks++; looks%lookShare == 0 {
				cost++
			}
			continue
		}
		cost += pe.list(port, f)
	}
	return cost, from
}

// list calls f for one congested port, and returns what that cost.
func (pe *Peer) list(port uint16, f func(*CongestedPort)) (cost int) {
	e := pe.e
	c := CongestedPort{Endpoint: netip.AddrPortFrom(pe.addr, port), Local: pe == e.loop, Since: pe.mapAt}
	// More is known of ports that concern a socket here.
	if pp := pe.ports[port]; pp != nil {
		c.Since, c.Blocked, c.Waiting = pp.since, pp.blocked, pp.waiters.n
		if pp.readerAt >= pp.since && e.now-pp.readerAt <= readerFor { // not of an earlier congestion, nor old
			c.Reader = pp.reader
		}
	}
	if c.Away = !c.Local && !pe.c.Up(); c.Local {
		if c.Socket = e.socks[port]; c.Socket != nil {
			c.Since = c.Socket.congestedAt
		}
	}
	cost = 1 + pe.felt(port, &c)
	f(&c)
	return cost
}

// CongestedPorts lists the congested ports, ours first.
func (e *Engine) CongestedPorts() (l []CongestedPort) {
	for _, pe := range append([]*Peer{e.loop}, e.order...) {
		e.CongestedOf(pe, AllPorts, 0, math.MaxInt, func(c *CongestedPort) { l = append(l, *c) })
	}
	return l
}
