package datagram

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
)

var errNotAllowed = errors.New("the configuration does not allow this peer any more")

// DropRefused gives up the links to peers that are not allowed any more, and to users of
// this machine who are not. It does not forget them: what is queued waits for a rule or its
// sender's cancel.
func (a *Host) DropRefused() (dropped int) {
	for _, h := range a.list {
		dropped += h.dropRefused()
	}
	return dropped
}

// drop gives a link up whose peer may not be one any more. The lane's own is read to its end. One
// that waits for that is taken out of the line: nobody would ask again who it is when its turn
// comes. The lock is held.
func (l *laneLink) drop(now time.Duration) bool {
	p := l.p
	if l.attempt == p.Attempt() {
		return p.Drop(now, errNotAllowed)
	}
	h := l.h
	p.Lost(now, l.attempt, 0, errNotAllowed)
	h.laneOf(p).remove(l)
	l.identified()
	l.link.Abort() // never started: it calls nobody
	h.links.Done()
	return true
}

// linkEnds is a link of a lane, of which the kernel is asked.
type linkEnds struct {
	p             *conn.Lane
	attempt       uint64
	local, remote netip.AddrPort
}

func (h *Local) dropRefused() (dropped int) {
	e, now := h.Lock()
	var gone []*laneLink
	var others []linkEnds
	for _, pe := range e.Peers() {
		refused := !h.all.engineConfig.AllowPeer(pe.Addr()) || pe.Conn().MayBeKernel() && !h.all.engineConfig.AllowKernel(pe.Addr())
		pe.Conn().EachLane(func(p *conn.Lane) {
			for _, k := range h.laneOf(p).links {
				if refused {
					gone = append(gone, k)
					continue
				}
				others = append(others, linkEnds{p, k.attempt, k.link.LocalAddr(), k.link.RemoteAddr()})
			}
		})
	}
	for _, k := range gone {
		if k.drop(now) {
			dropped++
		}
	}
	h.Unlock()
	var strangers []linkEnds
	for _, k := range others { // without the lock: the kernel is asked
		if _, err := h.all.machine.From(k.local, k.remote); h.all.peers.Denies(k.remote.Addr(), err) {
			strangers = append(strangers, k)
		}
	}
	if len(strangers) == 0 {
		return dropped
	}
	_, now = h.Lock()
	for _, k := range strangers {
		if l := h.laneOf(k.p).current(k.attempt); l != nil && l.drop(now) {
			dropped++
		}
	}
	h.Unlock()
	return dropped
}
