package datagram

import (
	"net/netip"
	"slices"

	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/wire"
)

// PortReader is who ought to read a port, and who fills it: of a port of this node what its
// socket says (Local.Reader), of another node's what the daemon there has said (ReaderThere).
type PortReader struct {
	UID, PID    uint32
	Label       string
	QueuedBytes uint64        // unread
	Fillers     []rds.Culprit // largest first
}

// Culprit is who fills it most; not valid: nobody is known.
func (r *PortReader) Culprit() (p netip.AddrPort) {
	if len(r.Fillers) > 0 {
		p = r.Fillers[0].Source
	}
	return p
}

// ReaderThere is what the daemon of another node has said of a port, with at most so many of
// those who fill it; nobody if it has said nothing.
func ReaderThere(said *wire.Reader, fillers int) (r PortReader) {
	if said == nil {
		return r
	}
	r = PortReader{UID: said.UID, PID: said.PID, Label: said.Label, QueuedBytes: said.Queued}
	for _, f := range said.Fillers[:min(len(said.Fillers), fillers)] {
		r.Fillers = append(r.Fillers, rds.Culprit{Source: f.Source, N: int(f.Datagrams), Bytes: int(f.Bytes)})
	}
	return r
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

// AskReaders has the peers asked about their congested ports, some with the lock held at a time, and
// returns how many answers may come (rds.Engine.ReadersDue).
func (h *Local) AskReaders() (due int) {
	e := h.Look()
	l := slices.Clone(e.Peers())
	h.Unlook()
	for len(l) > 0 {
		d, n := h.Look().AskReaders(l)
		h.Unlook()
		due, l = due+d, l[n:]
	}
	return due
}
