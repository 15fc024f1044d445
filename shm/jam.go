package shm

import (
	"sync/atomic"
)

// A client refuses its own sends, and lets them wait, by the flow states and its own
// accounts: the daemon takes no part in it and would not know. So the client counts them,
// in the flow table and in three words, and the daemon reads the counts when an
// administrator asks which sockets wait for which port (docs/shm.md, "What a client says of
// itself"). Nothing else depends on these numbers. A client that writes nonsense there is
// reported to have waited nonsensically often.

// Jam is a client's report of a flow, since the entry was described.
type Jam struct {
	Refused uint64 // calls that failed because the port was congested
	Waited  uint64 // calls that had to wait because it was
	Waiting uint32 // calls that wait now
}

// Indices of the words of a flow table entry.
const (
	jamRefused = 3
	jamWaited  = 4
	jamWaiting = 5
	genWord    = 2 // generation in the upper half
)

// Words of all flows together.
func (r *Region) refusedTotal() *atomic.Uint64 { return r.word64(offSendsRefused) }
func (r *Region) waitedTotal() *atomic.Uint64  { return r.word64(offSendsWaited) }
func (r *Region) fullTotal() *atomic.Uint64    { return r.word64(offSendsFull) }

// CountRefused notes that a call failed because f is congested.
func (s *Sender) CountRefused(f *Flow) {
	atomic.AddUint64(&s.r.flow(f.index)[jamRefused], 1)
	s.r.refusedTotal().Add(1)
}

// CountFull notes that a call failed, or begins to wait, for want of room in the send
// buffer, the arena or the ring.
func (s *Sender) CountFull() { s.r.fullTotal().Add(1) }

// BeginWait notes that a call begins to wait because f is congested. EndWait must
// follow.
func (s *Sender) BeginWait(f *Flow) {
	e := s.r.flow(f.index)
	atomic.AddUint64(&e[jamWaited], 1)
	atomic.AddUint64(&e[jamWaiting], 1)
	s.r.waitedTotal().Add(1)
}

// EndWait undoes BeginWait. The entry may have become another flow's meanwhile, which
// begins at 0.
func (s *Sender) EndWait(f *Flow) {
	e := s.r.flow(f.index)
	if uint32(atomic.LoadUint64(&e[genWord])>>32) == f.gen {
		atomic.AddUint64(&e[jamWaiting], ^uint64(0))
	}
}

// Jam reads the client's report of entry i. ok is false when there is no such entry, or it
// is of another generation. A wait that ended while the entry was described again may leave
// a negative number of callers, which counts as none.
func (h *Host) Jam(i, gen uint32) (j Jam, ok bool) {
	if i >= h.r.Flows {
		return j, false
	}
	e := h.r.flow(i)
	if uint32(atomic.LoadUint64(&e[genWord])>>32) != gen {
		return j, false
	}
	j.Refused, j.Waited = atomic.LoadUint64(&e[jamRefused]), atomic.LoadUint64(&e[jamWaited])
	j.Waiting = uint32(max(0, min(int64(atomic.LoadUint64(&e[jamWaiting])), maxWaiting)))
	return j, true
}

// maxWaiting is more callers than a process has threads.
const maxWaiting = 1 << 20

// Jams reads the client's report of all its flows since the region was made: calls refused
// by congestion, calls that waited for its end, calls that found no room.
func (r *Region) Jams() (refused, waited, full uint64) {
	return r.refusedTotal().Load(), r.waitedTotal().Load(), r.fullTotal().Load()
}
