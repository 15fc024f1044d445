package datagram

import (
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/transport"
)

// busyGap tells load from rest: when the last turn of a lane ended less than this ago, the
// lane is under load and the turn goes to the reactor, so that batches form while it is
// on its way. Otherwise the caller writes at once and nobody has to be woken.
const busyGap = 20 * time.Microsecond

// kick has p transmitted on: at the end of the turn if the caller is a reactor.
func (h *Local) kick(p *conn.Lane) {
	if w := h.all.here(); w != nil {
		w.kick(h, p)
		return
	}
	h.mu.Lock()
	busy := h.now()-h.laneOf(p).lastTurn < busyGap
	h.mu.Unlock()
	if busy || h.transmit(p, bytesAtOnce) {
		h.handOver(p)
	}
}

// handOver leaves p to the host's worker.
func (h *Local) handOver(p *conn.Lane) {
	h.mu.Lock()
	h.kicked = append(h.kicked, p)
	first := len(h.kicked) == 1
	h.mu.Unlock()
	if first {
		h.worker.thread.Do(h.flushKicked)
	}
}

// takeOver runs on the worker's thread.
func (h *Local) takeOver(w *Worker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, p := range h.kicked {
		h.kicked[i] = nil
		w.kick(h, p)
	}
	h.kicked = h.kicked[:0]
}

// What one caller writes, for the others too.
const (
	bytesAtOnce = 4 << 20   // a sender's own thread, before the reactor goes on
	bytesATurn  = 512 << 10 // a reactor, before its other links and rings have their turn
)

// sending is a batch of a lane that the lock's holder has filled, on its way to the link that the
// lane had then.
type sending struct {
	h    *Local
	p    *conn.Lane
	link *laneLink // nil: there was none that works
	b    *transport.Batch
	last bool          // nothing is behind it (conn.Lane.Filled)
	step uint64        // that filled it
	now  time.Duration // of that step
	w    *Worker       // whose batch it is, on whose thread it is written; nil: the pool's
}

// filled is what follows p's having filled b. The lock is held.
func (h *Local) filled(p *conn.Lane, b *transport.Batch, now time.Duration) sending {
	l := p.Data.(*lane) // laneOf has been asked when its link was made
	if l.ledger == nil {
		h.ledgerLane(p)
	}
	// Before anything of the batch leaves: a daemon that starts again must not give these
	// sequences to others.
	attempt, next, last := p.Filled()
	if l.ledger != nil {
		*l.ledger.NextSeq = next
	}
	l.lastTurn = now
	return sending{h, p, l.current(attempt), b, last, h.steps.Load(), now, nil}
}

// transmit writes what p has to send, in the caller's thread, until there is
// no more, or the link is full, or most bytes are written; it reports whether
// that is why it ended. The engine gives the turn to one caller at a time (Fill
// after Fill, with Wrote between).
func (h *Local) transmit(p *conn.Lane, most int) (more bool) {
	b := transport.GetBatch()
	_, now := h.Lock()
	s, ok := h.fillBatch(now, p, b)
	h.Unlock()
	if !ok {
		b.Put()
		return false
	}
	return h.write(s, most)
}

// fillBatch fills b with what p has to send, false: nothing now. The lock is held.
func (h *Local) fillBatch(now time.Duration, p *conn.Lane, b *transport.Batch) (s sending, ok bool) {
	k := h.laneOf(p).current(p.Attempt())
	if k == nil {
		return s, false
	}
	k.settled() // a link that becomes ready unread has this turn
	if !h.e.Fill(now, p, b) {
		return s, false
	}
	return h.filled(p, b, now), true
}

// write writes a batch, without the lock, and is transmit from there on.
func (h *Local) write(s sending, most int) (more bool) {
	p, b, w := s.p, s.b, s.w
	for ok := true; ok; {
		var err error
		if s.link != nil { // else it is as if the link had failed, which its reader reports
			var done bool
			if done, err = s.link.link.Send(b); !done && err == nil {
				h.all.full.Add(1)
				return false // the link goes on, and calls Written
			}
		}
		now := s.now
		most -= b.Bytes
		if b.Bytes > soonWritten {
			now = h.now()
		} else if s.last && err == nil && h.leaveWritten(p, s.step) {
			break
		}
		b.Reset()
		_, now = h.LockAt(now)
		if err != nil {
			s.link.dead = true // Closed follows; nothing more is written
		}
		h.laneOf(p).lastTurn = now
		// Also when that failed: the lane may have the next link by now, whose turn nobody else
		// orders. Nothing is filled for one that is dead.
		more, ok = p.Wrote(now), false
		if more && most > 0 {
			s, ok = h.fillBatch(now, p, b)
			more = false
		}
		h.Unlock()
	}
	// The batch goes back to whom it belongs.
	if w == nil || w.lone.Batch != nil {
		b.Put()
	} else {
		b.Reset()
		w.lone.Batch = b
	}
	return more
}

// OfferLone lets the next datagram of the step under way go the short way: if nothing is before it
// on its lane, it is in a batch when it is accepted, which w writes at the end of its turn
// (conn/lone.go). It may be called on the thread of w only. The lock is held.
func (h *Local) OfferLone(w *Worker) {
	if w.lone.Batch == nil {
		w.lone.Batch = transport.GetBatch()
	}
	if h.tracing == nil { // who is told of what Fill does
		h.offered, h.e.Lone = w, &w.lone
	}
}

// leaveWritten ends the turn that wrote p's batch without the lock, if no step was begun
// since the one numbered step, which filled it: then nobody has found p being written to and
// queued behind it, and nobody waits for the end of the turn. The next step, whoever begins
// it, is told before anything else (LockAt). It returns false if the caller has to end
// the turn with the lock.
//
// A step that begins meanwhile stores its number and then looks at written; this stores
// written and then looks at the number. So one of them sees the other, and when both do one
// takes p out.
func (h *Local) leaveWritten(p *conn.Lane, step uint64) bool {
	if !h.written.CompareAndSwap(nil, p) {
		return false // another lane of this address is there
	}
	return h.steps.Load() == step || !h.written.CompareAndSwap(p, nil)
}

// soonWritten is so few bytes that to write them takes too little time for the clock to be
// looked at again.
const soonWritten = 4 << 10
