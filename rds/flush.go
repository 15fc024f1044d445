package rds

import (
	"math"
	"slices"
)

// Flushes. What a socket accepts between two of them is an epoch. Epochs are linked in their order, and
// a flush waits for its epoch and all before that. An epoch that everything of is decided goes at once,
// also from the middle: a datagram may have no outcome for as long as its peer is away, and the client
// sends and flushes behind it as often as it likes.
//
// Invariant: each epoch but the last has undecided datagrams, so that there are no more of them than of
// those, and one. No flush waits for the last.

// epoch counts undecided datagrams accepted between two flushes.
type epoch struct {
	n          int
	flushes    uint32 // that wait for it and all before it
	prev, next uint32 // places; of a free one next is the next free
}

// noEpoch is the place of none.
const noEpoch = math.MaxUint32

// flush is one that is not answered. Those of a socket are in the order of the calls, which is that of
// their epochs, too. The caller bounds how many there are.
type flush struct {
	id uint64
	at uint32 // the place of its epoch
}

// newEpochs begins with one epoch and no flush.
func (s *Socket) newEpochs() {
	s.epochs = []epoch{{prev: noEpoch, next: noEpoch}}
	s.firstEpoch, s.lastEpoch, s.freeEpoch = 0, 0, noEpoch
}

// Flush answers (EvFlushed, Flushed) with id once everything accepted before
// the call has its outcome.
func (s *Socket) Flush(id uint64) {
	at := s.lastEpoch
	switch ep := &s.epochs[at]; {
	// Messages accepted from now on do not belong to this flush.
	case ep.n > 0:
		s.beginEpoch()
	// Nothing was accepted since the last flush: one epoch serves both.
	case at != s.firstEpoch:
		at = ep.prev
	default:
		s.flushed = append(s.flushed, id)
		s.news(EvFlushed)
		return
	}
	s.epochs[at].flushes++
	s.flushes = append(s.flushes, flush{id, at})
}

// beginEpoch begins an epoch behind the last.
func (s *Socket) beginEpoch() {
	at := s.freeEpoch
	if at == noEpoch {
		at = uint32(len(s.epochs))
		s.epochs = append(s.epochs, epoch{})
	} else {
		s.freeEpoch = s.epochs[at].next
	}
	s.epochs[at] = epoch{prev: s.lastEpoch, next: noEpoch}
	s.epochs[s.lastEpoch].next = at
	s.lastEpoch = at
}

// keptEpochs is how many places a socket keeps that needs one.
const keptEpochs = 256

// endEpoch ends the epoch at a place, of which everything is decided.
func (s *Socket) endEpoch(at uint32) {
	if at != s.lastEpoch { // which goes on
		s.dropEpoch(at)
	}
	if len(s.epochs) > keptEpochs && s.firstEpoch == s.lastEpoch && s.epochs[s.lastEpoch].n == 0 {
		s.newEpochs()
	}
}

// dropEpoch takes an epoch that is empty, and not the last, out of the others.
func (s *Socket) dropEpoch(at uint32) {
	ep := s.epochs[at]
	n := int(ep.flushes)
	if at == s.firstEpoch {
		s.firstEpoch = ep.next
		if n > 0 {
			for _, f := range s.flushes[:n] {
				s.flushed = append(s.flushed, f.id)
			}
			s.flushes = slices.Delete(s.flushes, 0, n)
			s.news(EvFlushed)
		}
	} else {
		s.epochs[ep.prev].next = ep.next
		if n > 0 {
			// They wait for what is before it alone.
			s.epochs[ep.prev].flushes += ep.flushes
			first := slices.IndexFunc(s.flushes, func(f flush) bool { return f.at == at })
			for i := range s.flushes[first:][:n] {
				s.flushes[first+i].at = ep.prev
			}
		}
	}
	s.epochs[ep.next].prev = ep.prev
	s.epochs[at].next, s.freeEpoch = s.freeEpoch, at
}

// Flushed returns the flushes answered since the last call.
func (s *Socket) Flushed() []uint64 {
	f := s.flushed
	s.flushed = nil
	return f
}

// Unflush forgets a flush whose caller gave up; false: it was answered before.
func (s *Socket) Unflush(id uint64) bool {
	i := slices.IndexFunc(s.flushes, func(f flush) bool { return f.id == id })
	if i < 0 {
		return false
	}
	s.epochs[s.flushes[i].at].flushes--
	s.flushes = slices.Delete(s.flushes, i, i+1)
	return true
}
