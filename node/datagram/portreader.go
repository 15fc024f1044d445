package datagram

import "github.com/rdsd/rdsd/rds"

// PortReader is who ought to read a port of this node, and who fills it.
type PortReader struct {
	UID, PID    uint32
	Label       string
	QueuedBytes uint64        // unread
	Fillers     []rds.Culprit // largest first
}

// Reader looks at the socket that has a port, and names at most so many of those who fill
// it; false: no socket has it. Who fills it is a walk along the queue of the socket, so the
// lock is taken for one port at a time: in a page of congested ports (EachCongested) it
// would be held for a hundred such walks. The lock is not held.
func (h *Local) Reader(port uint16, fillers int) (r PortReader, ok bool) {
	e := h.Look()
	if s := e.Socket(port); s != nil {
		o := s.Options()
		r = PortReader{UID: o.UID, PID: o.PID, Label: o.Label, QueuedBytes: uint64(max(s.Info().RecvQueued, 0)), Fillers: s.Culprits(fillers)}
		ok = true
	}
	h.Unlook()
	return r, ok
}
