//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// errOpening holds up a send until the daemon has looked at its destination.
var errOpening = errors.New("the daemon has not looked at the destination yet")

// heldUp says whether a send may find another answer later.
func heldUp(err error) bool {
	return err == errOpening || err == errAway || noRoom(err)
}

func (r *rings) sendOne(ctx context.Context, op string, dst netip.AddrPort, p []byte, wait bool) (uint64, error) {
	r.txMu.Lock()
	tag, err := r.postLocked(dst, p, wait)
	if err == nil {
		r.txMu.Unlock()
		return tag, nil
	}
	h := holdup{r: r, ctx: ctx, wait: wait}
	defer h.end()
	for h.mayWaitLocked(dst, err) {
		r.txMu.Unlock()
		if err := h.sleep(); err != nil {
			return 0, r.opErr(op, dst, err)
		}
		r.txMu.Lock()
		if tag, err = r.postLocked(dst, p, wait); err == nil {
			r.txMu.Unlock()
			return tag, nil
		}
	}
	r.triedLocked(dst, err)
	r.txMu.Unlock()
	return 0, r.opErr(op, dst, h.final(dst, err))
}

// triedLocked counts a call that failed for want of room.
func (r *rings) triedLocked(dst netip.AddrPort, err error) {
	switch {
	case r.tx == nil: // what was known of destinations has gone with the daemon
	case err == rdserr.ErrCongested:
		if f := r.tx.send.Known(dst); f != nil {
			r.tx.send.CountRefused(f)
		}
		r.refusedLocked(dst)
	case noRoom(err):
		r.tx.send.CountFull()
	}
}

// postLocked sends one datagram, or returns what holds it up or why it never goes. With wait
// it may look for room in a pair for a moment, with the lock let go of.
func (r *rings) postLocked(dst netip.AddrPort, p []byte, wait bool) (tag uint64, err error) {
	l := r.tx
	f, err := r.flowLocked(l, dst, len(p))
	if err != nil {
		return 0, err
	}
	tag = r.nextTag + 1
	if s := r.pairedLocked(l, f, len(p)); s != nil {
		if r.putOneLocked(l, s, p, tag) {
			r.nextTag = tag
			return tag, nil
		}
		if r.fullLocked(l, f, s, wait) {
			return r.postLocked(dst, p, false)
		}
	}
	if !l.send.Append(f, p, tag) {
		least := shm.Want{Body: len(p)}
		sl, err := r.grabLocked(l, f, l.send.Plan(least), least)
		if err != nil {
			return 0, err
		}
		copyBytes(sl.Body, p)
		l.send.Post(&sl, shm.KindEach, len(p), 1, len(p), tag, r.cfg.outcomes)
	}
	r.nextTag = tag
	r.postedLocked(tag, 1)
	return tag, nil
}

// flowLocked finds the flow of a destination, which has to be clear, and sees
// that a datagram of n bytes may go.
func (r *rings) flowLocked(l *ringLink, dst netip.AddrPort, n int) (*shm.Flow, error) {
	switch {
	case r.txOver != nil:
		return nil, r.txOver
	case !dst.Addr().IsValid() || dst.Addr().IsUnspecified():
		return nil, rdserr.ErrDestination
	case l == nil:
		return nil, errAway
	case n > l.max:
		return nil, rdserr.With(rdserr.ErrTooLarge, "%d bytes: a datagram has at most %d", n, l.max)
	}
	f, err := l.send.Flow(dst)
	if err != nil {
		// The table is full. Events free entries, and may not have been taken in for a while.
		r.takeEventsLocked(l)
		if f, err = l.send.Flow(dst); err != nil {
			return nil, err
		}
	}
	switch st := l.send.State(f); st.State() {
	case shm.FlowClear:
		// Opened by this call, and looked at already. An entry before this one may have gone to
		// another flow in this pass of a batch, with the mark that it held a datagram up.
		if f.Held == 0 {
			f.Held = seenMark
			return nil, errOpening
		}
	case shm.FlowCongested:
		return nil, rdserr.ErrCongested
	// The refusal is told once and forgotten: the next send asks again, for an address may
	// come back.
	case shm.FlowRefused:
		l.send.Refused(f)
		if err := errnoError(int32(st.Errno()), ""); err != nil && !heldUp(err) {
			return nil, flowRefusal{err}
		}
		return nil, flowRefusal{rdserr.ErrHostDown}
	// The daemon has not looked yet. Whether it can send there is an error of this call, so
	// it waits.
	default:
		if f.Held == 0 {
			f.Held = seenMark
		}
		return nil, errOpening
	}
	if l.send.Room() <= 0 {
		if r.takeEventsLocked(l); l.send.Room() <= 0 {
			return nil, rdserr.ErrWouldBlock
		}
	}
	// Outcomes that nobody reads are memory of this process: sends stop before they are
	// without bound.
	if r.cfg.outcomes && r.outcomes.full() {
		return nil, rdserr.ErrWouldBlock
	}
	return f, nil
}

// grabLocked takes a slot, after the events if it must. Where there is none as
// large as want, less than that, but at least least, will do.
func (r *rings) grabLocked(l *ringLink, f *shm.Flow, want, least shm.Want) (shm.Slot, error) {
	sl, err := l.send.GrabFor(f, want)
	if err != nil {
		r.takeEventsLocked(l)
		sl, err = l.send.GrabFor(f, want)
	}
	for err == shm.ErrArena && want != least {
		want = shm.Want{Body: max(least.Body, want.Body/2), Table: max(least.Table, want.Table/2)}
		sl, err = l.send.GrabFor(f, want)
	}
	return sl, err
}

// holdup is a send that waits.
type holdup struct {
	r    *rings
	ctx  context.Context
	wait bool // for room; else only for the state that a try must know
	w    *waiter
	jams []*shm.Flow     // of the link of w: congested, and waited for
	full bool            // no room was counted
	try  context.Context // while a try waits for the daemon to look at its destination
	stop context.CancelFunc
}

// mayWaitLocked says whether to sleep because of err, and prepares it.
func (h *holdup) mayWaitLocked(dst netip.AddrPort, err error) bool {
	if !heldUp(err) || !h.wait && err != errOpening {
		return false
	}
	h.prepareLocked()
	h.onLocked(h.r.tx, dst, err)
	return true
}

// prepareLocked begins a wait.
func (h *holdup) prepareLocked() {
	r := h.r
	if h.w != nil && h.w.l != r.tx {
		h.jams = nil // the region that says so is gone
	}
	h.w = h.w.renew(r, r.tx, 0)
	h.w.of, h.w.seq = &r.txSeq, r.txSeq.Load()
	if r.tx != nil {
		r.takeEventsLocked(r.tx) // if there are events, that is news
	}
}

// onLocked adds the change that will end err for dst. A call that waits for a flow alone is
// not woken by every event.
func (h *holdup) onLocked(l *ringLink, dst netip.AddrPort, err error) {
	switch err {
	default:
		h.w.bits |= shm.ClientWaitsEvent
		h.countFull(l, err)
	case shm.ErrRing:
		h.w.bits |= shm.ClientWaitsSendRoom
		h.countFull(l, err)
		// The head that was found full: ready compares with this one, so that a head that has
		// moved since is seen.
		h.w.sendHead = l.send.Head()
	case errOpening, rdserr.ErrCongested:
		h.w.bits |= shm.ClientWaitsFlow
		f := l.send.Known(dst)
		// The entry went to another flow: look again, which makes a new one.
		if f == nil {
			h.w.seq--
			return
		}
		if err == rdserr.ErrCongested && h.wait && !slices.Contains(h.jams, f) {
			h.jams = append(h.jams, f)
			l.send.BeginWait(f)
		}
		// Watched from this value on. What changed before it is found by the comparison
		// below.
		word := l.region.FlowState(f.Index()).Load()
		h.w.flows = append(h.w.flows, flowWatch{f.Index(), word})
		was := uint16(shm.FlowUnknown)
		if err == rdserr.ErrCongested {
			was = shm.FlowCongested
		}
		// Changed since err was found: look again at once. Congested is news as well, to a
		// try that asked for the flow's state.
		if l.send.State(f).State() != was {
			h.w.seq--
		}
	}
}

// countFull tells the daemon, once for a call that waits, that there was no room.
func (h *holdup) countFull(l *ringLink, err error) {
	if l != nil && h.wait && !h.full && noRoom(err) {
		h.full = true
		l.send.CountFull()
	}
}

// sleep waits without the lock.
func (h *holdup) sleep() error {
	ctx := h.ctx
	if !h.wait {
		if h.try == nil {
			h.try, h.stop = context.WithTimeout(h.ctx, tryTimeout)
		}
		ctx = h.try
	}
	if h.w.wait(ctx) == nil {
		return nil
	}
	if h.ctx.Err() == nil {
		return rdserr.With(rdserr.ErrTimeout, "the daemon does not answer")
	}
	if h.w.l == nil {
		return ctxError(h.ctx, h.r.away())
	}
	return ctxError(h.ctx, nil)
}

// final returns the caller's error.
func (h *holdup) final(dst netip.AddrPort, err error) error {
	if err == errAway {
		return h.r.away()
	}
	if _, ok := err.(flowRefusal); !ok {
		return err
	}
	ctx, cancel := context.WithTimeout(h.ctx, explainTime)
	defer cancel()
	return h.r.explain(ctx, dst, err)
}

// flowRefusal is the errno of a destination the daemon refuses, from the flow's state. The
// daemon has the text.
type flowRefusal struct{ error }

func (r flowRefusal) Unwrap() error { return r.error }

// explainTime is how long the daemon may take for that, for all that a call has to ask.
const explainTime = time.Second

// explain asks the daemon why it refuses dst.
func (r *rings) explain(ctx context.Context, dst netip.AddrPort, err error) error {
	rf, ok := err.(flowRefusal)
	if !ok {
		return err
	}
	if m, err := r.askCongested(ctx, dst); err == nil {
		if c := m.GetCongestedResult(); c.GetErrno() != 0 {
			return errnoError(c.GetErrno(), c.GetMessage())
		}
	}
	return rf.error
}

func (h *holdup) end() {
	for _, f := range h.jams {
		h.w.l.send.EndWait(f)
	}
	h.w.done()
	if h.stop != nil {
		h.stop()
	}
}

// ringSlot is a Slot's part that is about rings.
type ringSlot struct {
	l    *ringLink // referenced
	slot shm.Slot
}

func (r *rings) reserve(ctx context.Context, dst netip.AddrPort, n int) (*Slot, error) {
	h := holdup{r: r, ctx: ctx, wait: true}
	defer h.end()
	for {
		r.txMu.Lock()
		l := r.tx
		f, err := r.flowLocked(l, dst, n)
		if err == nil {
			var sl shm.Slot
			size := shm.Want{Body: n}
			if sl, err = r.grabLocked(l, f, size, size); err == nil {
				// Counted as sent from now on, so that reserved room is within the send buffer.
				l.send.Count(&sl, n)
				// The slot is in the mapping, which has to stay until Commit or Abort. Its doorbell is
				// rung only while the link is in use.
				l.refs.Add(1)
				r.txMu.Unlock()
				return &Slot{fe: r, dst: dst, buf: sl.Body, ring: ringSlot{l, sl}}, nil
			}
		}
		if !h.mayWaitLocked(dst, err) {
			r.txMu.Unlock()
			return nil, h.final(dst, err)
		}
		r.txMu.Unlock()
		if err := h.sleep(); err != nil {
			return nil, err
		}
	}
}

func (r *rings) commit(sl *Slot, n int) (uint64, error) {
	l := sl.ring.l
	defer l.unref()
	r.txMu.Lock()
	defer r.txMu.Unlock()
	switch {
	case r.txOver != nil:
		return 0, opError("commit", l.local, sl.dst, r.txOver)
	case r.tx != l:
		return 0, opError("commit", l.local, sl.dst, rdserr.With(rdserr.ErrShutdown, "the daemon went away since Reserve"))
	}
	r.nextTag++
	l.send.Post(&sl.ring.slot, shm.KindEach, n, 1, n, r.nextTag, r.cfg.outcomes)
	r.postedLocked(r.nextTag, 1)
	return r.nextTag, nil
}

func (r *rings) abort(sl *Slot) {
	l := sl.ring.l
	defer l.unref()
	r.txMu.Lock()
	defer r.txMu.Unlock()
	if r.tx == l {
		l.send.Drop(&sl.ring.slot)
		r.txSeq.Add(1)
		r.waiters.wake(shm.ClientWaitsEvent | shm.ClientWaitsSendRoom)
	}
}

// Rings post into their memory; the daemon takes what lies there before it answers.

func (r *rings) settle(context.Context) error            { return nil }
func (r *rings) cancelBegins(netip.AddrPort) *cancelCall { return nil }
func (r *rings) cancelEnds(*cancelCall) uint64           { return 0 }
func (r *rings) cancelQueuedLocked()                     {}
func (r *rings) watchesLocked() bool                     { return false }
