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

// transmit writes what p has to send, in the caller's thread, until there is
// no more, or the link is full, or most bytes are written; it reports whether
// that is why it ended. The engine gives the turn to one caller at a time (Fill
// after Fill, with Wrote between).
func (h *Local) transmit(p *conn.Lane, most int) (more bool) {
	b := transport.GetBatch()
	_, now := h.Lock()
	for {
		l := h.laneOf(p).current(p)
		if l == nil || !h.e.Fill(now, p, b) {
			b.Put()
			h.Unlock()
			return false
		}
		h.ledgerLane(p).SetNextSeq(p.NextTx())
		last, step := p.Last(), h.steps.Load()
		h.laneOf(p).lastTurn = now
		h.Unlock()
		done, err := l.link.Send(b)
		if !done && err == nil {
			h.all.full.Add(1)
			return false // the link goes on, and calls Written
		}
		most -= b.Bytes()
		if b.Bytes() > soonWritten {
			now = h.now()
		} else if last && err == nil && h.leaveWritten(p, step) {
			b.Put()
			return false
		}
		b.Reset()
		_, now = h.lockAt(now)
		if err != nil {
			l.dead = true // its reader will report it; nothing more is written
		}
		h.laneOf(p).lastTurn = now
		more := p.Wrote(now)
		if !more || err != nil || most <= 0 {
			b.Put()
			h.Unlock()
			return more && err == nil
		}
	}
}

// leaveWritten ends the turn that wrote p's batch without the lock, if no step was begun
// since the one numbered step, which filled it: then nobody has found p being written to and
// queued behind it, and nobody waits for the end of the turn. The next step, whoever begins
// it, is told before anything else (takeWritten). It returns false if the caller has to end
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

// takeWritten ends the turn that left its lane in written. The lock is held.
func (h *Local) takeWritten(now time.Duration) {
	if p := h.written.Swap(nil); p != nil {
		p.WroteBefore(now)
	}
}

// soonWritten is so few bytes that to write them takes too little time for the clock to be
// looked at again.
const soonWritten = 4 << 10
