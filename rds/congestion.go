package rds

import (
	"math"
	"net/netip"
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

// Notices returns the changes since the last call, for those who watch. They
// are bounded: a flood loses the oldest, not memory.
func (e *Engine) Notices() []Notice {
	n := e.cnotes
	e.cnotes = nil
	return n
}

func (e *Engine) note(ep netip.AddrPort, local, on bool) {
	if len(e.cnotes) >= 4096 {
		e.cnotes = append(e.cnotes[:0], e.cnotes[2048:]...)
	}
	e.cnotes = append(e.cnotes, Notice{ep, local, on})
}

// setCongested marks one of our ports and tells every peer.
func (e *Engine) setCongested(now time.Duration, port uint16, on bool) {
	if !e.cmap.Set(port, on) {
		return
	}
	e.clog[e.cver%congLog] = congChange{port, on}
	e.cver++
	e.loop.changed(now, port, on)
	for _, pe := range e.order {
		pe.c.CongestionChanged(now)
	}
}

// localCongestion: what a peer that knows version since is to be told, see
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

// tellMonitors informs sockets that watch congestion.
func (e *Engine) tellMonitors(pe *Peer, port uint16, on bool) {
	dst := netip.AddrPortFrom(pe.addr, port)
	for _, s := range e.monitors {
		concerned := s.concerned(dst)
		if !on {
			s.freed |= s.mon.Mask & (1 << (port % 64))
			if !concerned && s.crowded {
				// It may be one of the destinations that found no place any more.
				s.freed = math.MaxUint64
			}
			if s.freed != 0 {
				s.news(EvCongestion)
			}
			if !s.mon.Set {
				delete(s.refused, dst)
			}
		}
		if concerned && (on && s.mon.Set || !on && s.mon.Clear) {
			if len(s.changes) < maxRefused {
				s.changes = append(s.changes, Change{dst, on})
			} else {
				s.freed = math.MaxUint64 // look at every destination again
			}
			s.news(EvCongestion)
		}
	}
}

// CongestedPort describes one congested port, for administrators.
type CongestedPort struct {
	Endpoint netip.AddrPort
	Local    bool
	Since    time.Duration // when it became congested
	Blocked  uint64        // sends refused or made to wait since
	Waiting  int           // sockets of this node that wait for it
	Socket   *Socket       // local: whose it is
}

// felt adds what clients say of sends that never reached the engine.
func (pe *Peer) felt(port uint16, c *CongestedPort) {
	for _, f := range pe.opened[port] {
		for _, d := range f.dests {
			if w, ok := f.s.opt.Sink.(Witness); ok {
				held, waiting := w.Felt(d)
				c.Blocked += held
				if waiting > 0 {
					c.Waiting++
				}
			}
		}
	}
}

// CongestedPorts lists what is congested now: ours first.
func (e *Engine) CongestedPorts() (l []CongestedPort) {
	add := func(pe *Peer, port uint16, local bool) {
		c := CongestedPort{Endpoint: netip.AddrPortFrom(pe.addr, port), Local: local, Since: pe.since[port], Blocked: pe.blocked[port], Waiting: len(pe.waiters[port])}
		if local {
			c.Socket = e.socks[port]
		}
		pe.felt(port, &c)
		l = append(l, c)
	}
	e.cmap.Each(func(p uint16) { add(e.loop, p, true) })
	for _, pe := range e.order {
		pe.cmap.Each(func(p uint16) { add(pe, p, false) })
	}
	return l
}
