package rdsd

import (
	"errors"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// Writing to the stream.
//
// At most one goroutine is in stream.SendMsg (session.writing). A caller that finds no
// other there writes its own message itself: no hand-over when idle. Callers that come
// meanwhile only queue. The session's writer goroutine sends what the first caller leaves
// behind.
//
// Every send is first tried without waiting, and small tries join the one that is queued
// last. At most maxTries small ones are without a result at a time, and the daemon answers
// a try at once; so batches form by themselves under load, without a timer and without
// delay while there are few senders. A datagram that finds no room is sent again, waiting,
// in a batch of its own: a waiting datagram would hold back the answer to the others. While
// something waits for a destination, more for it is not tried first: it would be refused,
// too.
//
// That keeps the order of a flow, because the daemon takes a batch in one step:
// once it refuses a datagram for lack of room, it refuses those that follow to
// the same destination.
//
// A caller must not get stuck in SendMsg past its context, when the daemon does
// not read. grpc-go blocks there only once 64 KiB of a stream are unwritten;
// batches with a result were written, so a caller writes itself only while
// those without one, and control messages that may be unread, are fewer than inlineBytes, else
// the writer does.
const inlineBytes = 32 << 10

// maxTries and smallTry: see above; a try of smallTry bytes or more gains
// nothing by waiting for others.
const (
	maxTries = 2
	smallTry = 32 << 10
)

// waitShare is the part of the send window that waiting batches may take, in
// quarters: senders blocked by one congested port leave room for the others.
const waitShare = 3

// message is what next returns: a *batch, a *rdsdv1.ClientMessage, halfClose.
type message any

type halfClose struct{}

// kickLocked makes sure that queued messages are written. When it returns a message, the
// caller is the one to write: it must call write with it after unlocking.
func (s *stream) kickLocked() (message, *session) {
	sess := s.sess
	if sess == nil || sess.writing {
		return nil, nil
	}
	if sess.bytes+sess.ctlAt.unread() >= inlineBytes {
		if s.readyLocked(sess) {
			sess.kickWriterLocked()
		}
		return nil, nil
	}
	m := s.nextLocked(sess)
	if m == nil {
		return nil, nil
	}
	sess.writing = true
	return m, sess
}

// kickWriterLocked wakes the writer goroutine.
func (sess *session) kickWriterLocked() {
	select {
	case sess.wake <- struct{}{}:
	default:
	}
}

// write sends one message and leaves the rest to the writer.
func (s *stream) write(m message, sess *session) {
	if m == nil {
		return
	}
	sess.send(m)
	s.mu.Lock()
	sess.writing = false
	if s.readyLocked(sess) {
		sess.kickWriterLocked()
	}
	s.mu.Unlock()
}

func (sess *session) send(m message) {
	switch m := m.(type) {
	case halfClose:
		sess.stream.CloseSend()
	default:
		// An error ends the stream; the reading goroutine sees why.
		if sess.stream.SendMsg(m) != nil {
			sess.cancel()
		}
	}
}

// writer is one goroutine per session; it ends when the session does.
func (s *stream) writer(sess *session) {
	for {
		select {
		case <-sess.wake:
		case <-sess.down:
			return
		}
		s.mu.Lock()
		for !sess.writing {
			m := s.nextLocked(sess)
			if m == nil {
				break
			}
			sess.writing = true
			s.mu.Unlock()
			sess.send(m)
			s.mu.Lock()
			sess.writing = false
		}
		s.mu.Unlock()
	}
}

// readyLocked says whether nextLocked would return a message.
func (s *stream) readyLocked(sess *session) bool {
	return sess.creditDue() || sess.ctl.len() > 0 && !s.cancelWaitsLocked(sess) || sess.closing && !sess.closed ||
		s.sess == sess && s.pickLocked(sess) != nil
}

// nextLocked takes the next message to write. Control messages are small, not subject to
// the window and concern only datagrams accepted before: they go first.
func (s *stream) nextLocked(sess *session) message {
	switch {
	case sess.closed:
		return nil
	case sess.closing:
		sess.closed = true
		return halfClose{}
	// A later link has taken over: what is queued belongs to it.
	case s.sess != sess:
		return nil
	// Credit first: without it the daemon sends nothing, and the answers to what is sent
	// come behind.
	case sess.creditDue():
		m := &rdsdv1.ClientMessage{}
		c := &rdsdv1.Credit{}
		c.SetDatagrams(uint32(min(sess.creditN, 1<<31)))
		c.SetBytes(sess.creditB)
		m.SetCredit(c)
		sess.creditN, sess.creditB = 0, 0
		return m
	case sess.ctl.len() > 0 && !s.cancelWaitsLocked(sess):
		m := sess.ctl.pop()
		sess.ctlAt.writes(m)
		return m
	}
	q := s.pickLocked(sess)
	if q == nil {
		return nil
	}
	b := q.pop()
	// Counted in the window before it is written: the answer may come at once.
	s.sentLocked(sess, b)
	return b
}

func (sess *session) creditDue() bool { return sess.creditN > 0 || sess.creditB > 0 }

// pickLocked returns the queue whose head fits in the window, the older one of
// two; nil when there is none.
func (s *stream) pickLocked(sess *session) *fifo[*batch] {
	urgent := s.cancelWaitsLocked(sess)
	if s.outcomes.full() && !urgent {
		return nil
	}
	try := s.tryq.len() > 0 && sess.fits(*s.tryq.front()) &&
		(sess.tries < maxTries || urgent || (*s.tryq.front()).bytes >= smallTry)
	wait := s.waitq.len() > 0 && sess.fits(*s.waitq.front())
	// What was posted before goes first: its caller has gone on.
	if wait && s.posts.queued > 0 && (*s.tryq.front()).seq < (*s.waitq.front()).seq {
		wait = false
	}
	switch {
	case try && (!wait || (*s.tryq.front()).seq < (*s.waitq.front()).seq):
		return &s.tryq
	case wait:
		return &s.waitq
	}
	return nil
}

// fits reports whether the window has room. A batch larger than the window may still go
// alone: the daemon answers it.
func (sess *session) fits(b *batch) bool {
	if len(sess.pending) == 0 {
		return true
	}
	if b.wait && sess.waiting > 0 &&
		(sess.waiting >= max(1, sess.windowBatches*waitShare/4) ||
			sess.waitBytes+b.bytes > sess.windowBytes/4*waitShare) {
		return false
	}
	return sess.room(b.bytes)
}

func (sess *session) room(bytes int) bool {
	return len(sess.pending) == 0 ||
		len(sess.pending) < sess.windowBatches && sess.bytes+bytes <= sess.windowBytes
}

// sentLocked moves b from its queue to pending.
func (s *stream) sentLocked(sess *session, b *batch) {
	s.nextID++
	b.id = s.nextID
	if b.firstTag == 0 { // tags follow the order in the batch
		b.firstTag = s.takeTags(len(b.lengths))
	}
	tag := b.firstTag
	for _, p := range b.parts {
		p.c.sent = true
		p.c.tag = tag
		tag += uint64(p.n)
	}
	if b.wantOutcomes {
		s.undecid.add(b.firstTag, uint64(len(b.lengths)))
	}
	b.watched = sess.watching
	b.ctlAt = sess.ctlAt.wrote
	// Who answers what came is likely to be answered: the result comes with that. Who sends and
	// sends goes on with the results.
	if s.recv.taken.Load() {
		s.recv.taken.Store(false)
		b.resultLater = b.posted && sess.tries == 0
	}
	if b.posted {
		s.posts.queued--
		s.armSlowLocked(sess)
	}
	sess.pending[b.id] = b
	sess.bytes += b.bytes
	if b.wait {
		sess.waiting++
		sess.waitBytes += b.bytes
	} else {
		sess.tries++
	}
}

// refused tells the callers concerned that count datagrams from index on were
// not accepted.
func (b *batch) refused(index, count int, err error) {
	at := 0
	for _, p := range b.parts {
		lo, hi := max(index, at), min(index+count, at+p.n)
		if lo < hi && !p.c.abandoned { // else only the caller that left may write to it
			p.c.errs = append(p.c.errs, sendErr{lo - at, hi - lo, err})
		}
		at += p.n
	}
}

func (s *stream) takeTags(n int) uint64 {
	first := s.nextTag + 1
	s.nextTag += uint64(n)
	return first
}

// result is the daemon's answer to one batch.
func (s *stream) result(sess *session, id uint64, errs []*rdsdv1.SendError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := sess.pending[id]
	if b == nil { // closed meanwhile, or a fault of the daemon that harms nobody
		return
	}
	delete(sess.pending, id)
	sess.ctlAt.reads(b.ctlAt)
	sess.bytes -= b.bytes
	if b.wait || b.slow {
		sess.waiting--
		sess.waitBytes -= b.bytes
	} else {
		sess.tries--
	}
	if b.slow {
		sess.slow--
	}
	s.learnLocked(sess, b, errs)
	for _, e := range errs {
		// The numbers are the daemon's: those outside the batch are left out, or cut.
		index, count := int(e.GetIndex()), int(max(1, e.GetCount()))
		if index >= len(b.lengths) {
			continue
		}
		count = min(count, len(b.lengths)-index)
		err := errnoError(e.GetErrno(), e.GetMessage())
		if err == nil {
			err = errors.New("refused without a reason")
		}
		if b.posted {
			s.refusedPostLocked(b, index, count, err)
			continue
		}
		// A refused datagram has no outcome.
		if b.wantOutcomes {
			s.undecid.remove(b.firstTag+uint64(index), uint64(count))
		}
		b.refused(index, count, err)
	}
	for _, p := range b.parts {
		p.c.finish()
	}
	if b.posted {
		s.endPostLocked(b, nil)
	}
	s.doneLocked(b)
	// The window has room again, and no goroutine is writing that would go on.
	s.kickOtherLocked(sess)
}
