package ib

import (
	"errors"
	"fmt"
	"io"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// Ready is called by the device when something has completed.
func (l *link) Ready() {
	// The device serves many links: a panic in what this one's owner does ends this one.
	defer l.p.Guard.Recover(guard.Link, l.fault)
	l.turn()
}

// Ended is called by the device when the queue pair has failed. What completed before is
// still told.
func (l *link) Ended(why error) {
	defer l.p.Guard.Recover(guard.Link, l.fault)
	l.mu.Lock()
	l.fail(l.reason(why))
	l.mu.Unlock()
	l.turn()
}

// turn takes completions, on the reactor's thread. Before Start they wait.
func (l *link) turn() {
	guard.Point("volume.link")
	l.mu.Lock()
	started, left := l.h != nil && !l.ended, l.left
	l.due, l.left = false, false
	if !started {
		l.drained()
	}
	l.mu.Unlock()
	if left {
		l.Flush()
	}
	if !started {
		return
	}
	for range turnBatches {
		n := l.qp.Poll(l.p.done)
		l.batch(l.p.done[:n])
		if n < len(l.p.done) {
			l.rest()
			return
		}
	}
	// The device does not call again while there is something.
	l.mu.Lock()
	l.turnSoon()
	l.mu.Unlock()
}

// batch takes completions: first their counts, then the events.
func (l *link) batch(done []Completion) {
	if len(done) == 0 {
		return
	}
	h, sent, events, more := l.count(done)
	if h != nil && (sent > 0 || events) {
		// A slot that holds nothing is posted again before the handler answers, because the
		// peer may have a message for it then.
		l.repost(done, func(c *Completion) bool { return !c.held() })
		h.Begin()
		if sent > 0 {
			h.Sent(sent)
		}
		l.events(h, done)
		l.repost(done, (*Completion).held)
		h.End()
	}
	if more {
		l.Flush()
	}
}

// received reports whether c brings something of the peer's, held whether that is in a slot.
func (c *Completion) received() bool { return c.Op >= Recv && c.Status == OK }
func (c *Completion) held() bool     { return c.Op == Recv && c.N > 0 }

// count takes what completions say about the queues: sent operations are to be told, and
// events if there are any, unless h is nil; more can be handed over, because there are places.
func (l *link) count(done []Completion) (h transport.OneSidedHandler, sent int, events, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range done {
		c := &done[i]
		sent += l.counted(c)
		events = events || c.received()
	}
	if l.why == nil {
		l.out.refill(l.shrink)
		more = l.out.handed < l.out.placed
	}
	if !l.silent.Load() {
		h = l.h
	}
	return h, sent, events, more
}

// counted takes what c says about the queues. It returns how many operations are sent. mu is
// held.
func (l *link) counted(c *Completion) (sent int) {
	if c.Op >= Recv {
		l.posted--
		if c.Op > RecvWriteImm || c.ID >= uint64(l.recvs) || c.held() && c.N > l.slotSize {
			l.silent.Store(true)
			l.fail(fmt.Errorf("ib: the device says that a %v of %v has left %d bytes in slot %d", c.Op, l.to, c.N, c.ID))
		}
		return 0
	}
	sent, ok := l.out.complete(c.ID)
	if !ok {
		l.fail(fmt.Errorf("ib: the device completes work %d for %v, which it does not have", c.ID, l.to))
	}
	if c.Status != OK { // why is told by Ended
		return 0
	}
	return sent
}

// repost gives slots back to the device, those of received messages for which which is true.
func (l *link) repost(done []Completion, which func(c *Completion) bool) {
	again := l.p.again[:0]
	for i := range done {
		if c := &done[i]; c.received() && which(c) {
			again = append(again, l.slotOf(c.ID))
		}
	}
	if len(again) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	n, err := l.qp.Receive(again)
	l.posted += n
	if err == nil && n < len(again) {
		err = fmt.Errorf("it has room for %d of %d that it has completed", n, len(again))
	}
	if err != nil {
		l.fail(fmt.Errorf("ib: receives from %v: %w", l.to, err))
	}
}

// events tells the handler what was received, until it fails or ends the link.
func (l *link) events(h transport.OneSidedHandler, done []Completion) {
	for i := range done {
		c := &done[i]
		if !c.received() || l.silent.Load() {
			continue
		}
		if err := l.event(h, c); err != nil {
			l.stop(err)
			return
		}
	}
}

func (l *link) event(h transport.OneSidedHandler, c *Completion) error {
	if c.Op == RecvWriteImm {
		return h.Written(transport.Placed{Known: c.Has&HasPlace != 0, Key: c.Key, Addr: c.Addr, N: c.N, Imm: c.Imm})
	}
	if c.Has&HasInval != 0 {
		filled := transport.Unfilled
		if c.Has&HasFilled != 0 {
			filled = c.Filled
		}
		if err := h.Invalidated(c.Key, filled); err != nil || c.N == 0 || l.silent.Load() {
			return err
		}
	}
	return h.Received(l.slotOf(c.ID).Data[:c.N], c.Imm, c.Has&HasImm != 0)
}

// rest ends the link once the device has nothing of it any more.
func (l *link) rest() {
	l.mu.Lock()
	over := l.end()
	l.mu.Unlock()
	if over {
		l.h.Closed(l.why)
	}
}

// end closes the queue pair, if the link is to end and the device has nothing of it any more.
// mu is held.
func (l *link) end() bool {
	if l.why == nil || l.ended || l.handing || l.posted > 0 || !l.out.idle() {
		return false
	}
	l.ended = true
	l.qp.Close()
	l.free()
	l.d.remove(l)
	return true
}

// drained takes the completions of a link that was not started and that its owner has ended;
// Start says that it is closed. It reports whether it has ended. mu is held, since no other
// polls before Start.
func (l *link) drained() bool {
	var done [16]Completion
	for n := len(done); n == len(done) && !l.ended && l.silent.Load(); {
		n = l.qp.Poll(done[:])
		for i := range done[:n] {
			l.counted(&done[i])
		}
		if n < len(done) {
			l.end()
		}
	}
	return l.ended
}

// sayClosed is the end of a link that ended before it was started.
func (l *link) sayClosed() { l.h.Closed(l.why) }

// revoked tells that key is at rest, on the reactor's thread.
func (l *link) revoked(key uint32, filled int) {
	defer l.p.Guard.Recover(guard.Link, l.fault)
	l.h.Begin()
	if err := l.h.Revoked(key, filled); err != nil {
		l.stop(err)
	}
	l.h.End()
}

// reason is what a device's reason for the end of a link is to its owner.
func (l *link) reason(why error) error {
	if a, ok := errors.AsType[*AccessError](why); ok {
		kind := transport.OpWrite
		switch a.Op {
		case WriteImm:
			kind = transport.OpWriteImm
		case SendInval:
			kind = transport.OpSendInval
		}
		return &transport.AccessError{Kind: kind, Key: a.Key, Addr: a.Addr, Len: uint32(a.N), Why: fmt.Sprint(a.Err)}
	}
	if s, ok := errors.AsType[*StatusError](why); ok {
		return rdserr.With(sentinels[s.Status], "ib: the connection with %v ended with a %v: %v", l.to, s.Op, s.Status)
	}
	if why == nil {
		return io.ErrUnexpectedEOF
	}
	return why
}

// sentinels says what a status is to a caller.
var sentinels = [...]*rdserr.Error{
	OK: rdserr.ErrIO, Flushed: rdserr.ErrReset,
	LocalLength: rdserr.ErrProtocol, RemoteInvalid: rdserr.ErrProtocol, RemoteAccess: rdserr.ErrProtocol,
	RetryExceeded: rdserr.ErrTimeout, RNRExceeded: rdserr.ErrTimeout,
	LocalProtection: rdserr.ErrIO, RemoteOperation: rdserr.ErrIO, OtherFailure: rdserr.ErrIO,
}
