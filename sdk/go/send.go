package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// tryTimeout is how long a TrySend waits for the answer of a daemon that is
// there and says nothing.
const tryTimeout = 5 * time.Second

// Send sends one datagram and returns when it is accepted: it will
// arrive once and in order, or its outcome says otherwise. Send waits for room
// in the send buffer, for a congested destination and for a daemon that is
// being restarted, until ctx ends.
//
// Over a stream, one to a destination that is known to be clear is accepted on the daemon's
// credit and does not wait for an answer; should the daemon have to refuse it, for want of
// memory say, its outcome is Failed, and the next send there returns the error.
//
// Errors: rdserr.ErrTimeout (also context.DeadlineExceeded), ErrCanceled (also
// context.Canceled), ErrTooLarge, ErrDestination, ErrFamily, ErrClosed,
// ErrShutdown. When ctx ends after the datagram was handed to the daemon, or
// the daemon goes away before it answers, OpError.Undecided is set: the daemon
// may accept it after all (and then reports its outcome); it is never sent
// twice.
func (s *Socket) Send(ctx context.Context, dst netip.AddrPort, p []byte) error {
	_, err := s.SendTag(ctx, dst, p)
	return err
}

// SendTag is Send that also returns the tag by which Outcomes names the datagram.
func (s *Socket) SendTag(ctx context.Context, dst netip.AddrPort, p []byte) (uint64, error) {
	dst = unmap(dst)
	if err := s.misuse(ctx, "send", dst); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, s.opErr("send", dst, ctxError(ctx, nil))
	}
	return s.fe.sendOne(ctx, "send", dst, p, true)
}

// TrySend sends one datagram and does not wait for room: rdserr.ErrWouldBlock
// when the send buffer (or the window to the daemon) is full, ErrCongested when
// the destination is, ErrShutdown while there is no daemon.
func (s *Socket) TrySend(dst netip.AddrPort, p []byte) error {
	dst = unmap(dst)
	if err := s.misuse(context.Background(), "try-send", dst); err != nil {
		return err
	}
	_, err := s.fe.sendOne(context.Background(), "try-send", dst, p, false)
	return err
}

// sendMode says how a single datagram travels to the daemon.
type sendMode uint8

const (
	gather    sendMode = iota // in one batch with others, refused when there is no room
	gatherNow                 // the same, and not without a daemon or a full window
	alone                     // in a batch of its own that waits for room
)

func (s *stream) sendOne(ctx context.Context, op string, dst netip.AddrPort, p []byte, wait bool) (uint64, error) {
	if !wait {
		return s.sendAs(ctx, op, dst, p, gatherNow)
	}
	if tag, posted, err := s.postOne(ctx, dst, p); posted {
		return tag, s.opErr(op, dst, err)
	}
	mode := gather
	s.mu.Lock()
	if s.waiters[dst] > 0 {
		mode = alone
	}
	s.mu.Unlock()
	tag, err := s.sendAs(ctx, op, dst, p, mode)
	if mode == gather && noRoom(err) {
		return s.sendAs(ctx, op, dst, p, alone)
	}
	return tag, err
}

// sendAs sends one datagram and waits for its result.
func (s *stream) sendAs(ctx context.Context, op string, dst netip.AddrPort, p []byte, mode sendMode) (uint64, error) {
	s.mu.Lock()
	local := s.local
	if err := s.refuseLocked(dst, len(p)); err != nil {
		s.mu.Unlock()
		return 0, opError(op, local, dst, err)
	}
	var down <-chan struct{}
	if mode == gatherNow {
		switch {
		case s.sess == nil:
			err := s.awayLocked()
			s.mu.Unlock()
			return 0, opError(op, local, dst, err)
		// A try never queues behind a window that is full: the caller has asked not to wait.
		case !s.sess.room(len(p)), s.tryq.len() > 0 && !s.sess.fits(*s.tryq.front()), s.outcomes.full():
			s.mu.Unlock()
			return 0, opError(op, local, dst, rdserr.ErrWouldBlock)
		}
		down = s.sess.down
	}
	c := newCall()
	if mode == alone {
		b := newBatch()
		// A datagram that has already found no room once waits in a batch of its own, so that
		// it holds up no answer to others.
		b.wantOutcomes, b.wait = s.cfg.outcomes, true
		b.deadline, _ = ctx.Deadline()
		b.add(dst, p, len(p))
		s.queueLocked(b, c)
	} else {
		s.gatherLocked(c, dst, p)
	}
	m, sess := s.kickLocked()
	s.mu.Unlock()
	// Without the lock, and by the caller itself if nobody else is writing.
	s.write(m, sess)

	var err error
	if mode == gatherNow {
		err = s.awaitTry(c, down)
	} else {
		err = s.await(ctx, c)
	}
	tag, und := c.tag, c.undecided
	if err == nil {
		err = c.err
	}
	if err == nil && len(c.errs) > 0 {
		err = c.errs[0].err
	}
	// An abandoned call is still in a batch: its result may come.
	if !c.abandoned {
		c.recycle()
	}
	if err == nil {
		return tag, nil
	}
	if und {
		return tag, undecided(op, local, dst, err)
	}
	return 0, opError(op, local, dst, err)
}

// refuseLocked returns the error of a datagram that needs no answer of the daemon.
func (s *Socket) refuseLocked(dst netip.AddrPort, n int) error {
	switch {
	case s.over != nil:
		return s.over
	case !dst.Addr().IsValid() || dst.Addr().IsUnspecified():
		return rdserr.ErrDestination
	case s.maxBytes > 0 && n > s.maxBytes:
		return rdserr.With(rdserr.ErrTooLarge, "%d bytes: a datagram has at most %d", n, s.maxBytes)
	}
	return nil
}

// awayLocked is why there is no daemon now.
func (s *Socket) awayLocked() error {
	if s.down != nil {
		return rdserr.With(rdserr.ErrShutdown, "not connected to the daemon: %v", s.down)
	}
	return rdserr.ErrShutdown
}

// noRoom reports whether waiting may end err.
func noRoom(err error) bool {
	return errors.Is(err, rdserr.ErrWouldBlock) || errors.Is(err, rdserr.ErrCongested)
}

// gatherLocked adds a datagram to the last try that is still waiting to be
// written, or starts one.
func (s *stream) gatherLocked(c *call, dst netip.AddrPort, p []byte) {
	if b := s.joinableLocked(1, len(p)); b != nil {
		b.add(dst, p, 0)
		b.parts = append(b.parts, part{c, 1})
		c.batch = b
		return
	}
	b := newBatch()
	b.wantOutcomes = s.cfg.outcomes
	b.add(dst, p, len(p))
	s.queueLocked(b, c)
}

// joinableLocked returns the try that so many datagrams and bytes may join.
func (s *stream) joinableLocked(n, bytes int) *batch {
	if s.tryq.len() == 0 || bytes > maxJoinBytes {
		return nil
	}
	b := *s.tryq.back()
	limit := maxGatherBytes
	if s.sess != nil {
		limit = min(limit, s.sess.windowBytes)
	}
	if b.posted || b.firstTag != 0 || len(b.lengths)+n > maxGatherDatagrams || b.bytes+bytes > limit {
		return nil
	}
	return b
}

// queueLocked queues a batch whose datagrams are all c's.
func (s *stream) queueLocked(b *batch, c *call) {
	b.parts = append(b.parts, part{c, len(b.lengths)})
	c.batch = b
	if !b.wait && b.firstTag == 0 {
		if last := s.joinableLocked(len(b.lengths), b.bytes); last != nil {
			last.join(b)
			return
		}
	}
	s.seq++
	b.seq = s.seq
	if !b.wait {
		s.tryq.push(b)
		return
	}
	s.waitq.push(b)
	for _, d := range b.dests {
		s.waiters[d]++
	}
}

// doneLocked is the end of a batch that was queued.
func (s *stream) doneLocked(b *batch) {
	s.unwaitLocked(b)
	b.recycle()
}

// unwaitLocked takes b off the destinations that something waits for.
func (s *stream) unwaitLocked(b *batch) {
	if b.wait {
		for _, d := range b.dests {
			if s.waiters[d]--; s.waiters[d] == 0 {
				delete(s.waiters, d)
			}
		}
	}
}

// mustWaitLocked says whether something waits for a destination of b.
func (s *stream) mustWaitLocked(b *batch) bool {
	if len(s.waiters) == 0 {
		return false
	}
	return slices.ContainsFunc(b.dests, func(d netip.AddrPort) bool { return s.waiters[d] > 0 })
}

// await waits for c until ctx ends.
func (s *stream) await(ctx context.Context, c *call) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	return s.giveUp(c, func() error {
		var why error
		if s.sess == nil && s.over == nil {
			why = s.awayLocked()
		}
		return ctxError(ctx, why)
	})
}

func (s *stream) awaitTry(c *call, down <-chan struct{}) error {
	if c.timer == nil {
		c.timer = time.NewTimer(tryTimeout)
	} else {
		c.timer.Reset(tryTimeout)
	}
	defer c.timer.Stop()
	select {
	case <-c.done:
		return nil
	case <-c.timer.C:
		return s.giveUp(c, func() error { return rdserr.With(rdserr.ErrTimeout, "the daemon does not answer") })
	case <-down:
		return s.giveUp(c, func() error { return errLost })
	}
}

// giveUp leaves c without its result: taken back when it was not written yet,
// undecided otherwise. why is called with mu held. It returns nil when the
// result came after all.
func (s *stream) giveUp(c *call, why func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.finished {
		<-c.done
		return nil
	}
	err := why()
	c.abandoned = true
	if c.sent {
		c.undecided = true
		return err
	}
	b := c.batch
	b.remove(c)
	if len(b.parts) > 0 {
		return err
	}
	same := func(x *batch) bool { return x == b }
	s.tryq.delete(same)
	s.waitq.delete(same)
	s.doneLocked(b)
	return err
}
