package datagram

import (
	"errors"

	"github.com/rdsd/rdsd/conn"
)

var errNotAllowed = errors.New("the configuration does not allow this peer any more")

// DropRefused gives up the links to peers that are not allowed any more. It does not
// forget them: what is queued waits for a rule or its sender's cancel.
func (a *Host) DropRefused() (dropped int) {
	for _, h := range a.list {
		e, now := h.Lock()
		var gone []*conn.Lane
		for _, pe := range e.Peers() {
			kernel := pe.Conn().Kind() == conn.KindKernel || pe.Conn().Kind() == conn.KindKernelLegacy
			if !a.engineConfig.AllowPeer(pe.Addr()) || kernel && !a.engineConfig.AllowKernel(pe.Addr()) {
				pe.Conn().EachLane(func(p *conn.Lane) { gone = append(gone, p) })
			}
		}
		for _, p := range gone {
			if p.Drop(now, errNotAllowed) {
				dropped++
			}
		}
		h.Unlock()
	}
	return dropped
}
