package datagram

import (
	"errors"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/netlocal"
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

// linkEnds is a link of a lane, of which the kernel is asked.
type linkEnds struct {
	p             *conn.Lane
	attempt       uint64
	local, remote netip.AddrPort
}

func (h *Local) dropRefused() (dropped int) {
	e, now := h.Lock()
	var gone []*conn.Lane
	var others []linkEnds
	for _, pe := range e.Peers() {
		kernel := pe.Conn().Kind() == conn.KindKernel || pe.Conn().Kind() == conn.KindKernelLegacy
		refused := !h.all.engineConfig.AllowPeer(pe.Addr()) || kernel && !h.all.engineConfig.AllowKernel(pe.Addr())
		pe.Conn().EachLane(func(p *conn.Lane) {
			if refused {
				gone = append(gone, p)
				return
			}
			for _, k := range h.laneOf(p).links {
				others = append(others, linkEnds{p, k.attempt, k.link.LocalAddr(), k.link.RemoteAddr()})
			}
		})
	}
	for _, p := range gone {
		if p.Drop(now, errNotAllowed) {
			dropped++
		}
	}
	h.Unlock()
	var strangers []linkEnds
	for _, k := range others { // without the lock: the kernel is asked
		// A link whose other end nobody holds any more ends by itself.
		if _, err := h.all.machine.From(k.local, k.remote); err != nil && !errors.Is(err, netlocal.ErrGone) {
			strangers = append(strangers, k)
		}
	}
	if len(strangers) == 0 {
		return dropped
	}
	_, now = h.Lock()
	for _, k := range strangers {
		if h.laneOf(k.p).current(k.attempt) != nil && k.p.Drop(now, errNotAllowed) {
			dropped++
		}
	}
	h.Unlock()
	return dropped
}
