package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// Sending by credit (docs/adr/0025-grpc-accepts-by-credit.md).
//
// A Send to a destination whose way is clear posts: the datagram is accepted here, once it
// is in a batch of its own kind, and the call returns without an answer of the daemon. The
// daemon has promised (Bound.send_credit_bytes) to take so much: a posted batch waits there
// for room, as a batch of waiting sends does, and an error in its result is what became of
// the datagram. So every posted datagram has one outcome:
//
//   - written and answered: the daemon's, or Failed or Cancelled if its result has an error
//   - written and not answered when the stream breaks: Unknown, as all that was under way
//   - not written: it stays queued and goes over the next stream, or is Cancelled by Close
//
// A way is clear after a send that waited for its answer was accepted, until the daemon
// tells that the port is congested. Sends to a port that is not known to be clear wait for
// their answers.
//
// Posted batches are in tryq, in order with those that wait for an answer, and share
// maxTries with them, which is how they gather many datagrams. One that the daemon keeps
// because something of it waits is slow: it leaves its place to others, so that one
// congested port holds up no other.

const (
	// maxWays bounds the destinations whose ways are known. The daemon watches their ports
	// for as long as the socket is open; a socket with more of them has no credit.
	maxWays = 256
	// slowAfter is when a batch without a result becomes slow, if nothing says so before.
	slowAfter = 10 * time.Millisecond
	// postShare is the part of the window's batches that may be posted ones.
	postShare = 8
)

// way is what is known of a destination; one that is not in stream.ways is unknown.
type way uint8

const (
	wayClear way = iota + 1
	wayCongested
)

// posts are the datagrams that were accepted here and have no result. All of it is guarded
// by Socket.mu.
type posts struct {
	bytes     int
	datagrams int
	batches   int
	queued    int           // batches of these that are not written
	room      chan struct{} // closed when there may be room; nil when nobody waits
	cancels   []*cancelCall // those that run, in the order in which they began
}

// cancelCall is a CancelSentTo that runs.
type cancelCall struct {
	dst netip.AddrPort
	n   uint64 // guarded by Socket.mu; posted datagrams there that were cancelled meanwhile
}

// covers says whether the call is about dst: port 0 is every port of the address.
func (c *cancelCall) covers(dst netip.AddrPort) bool {
	return c.dst == dst || c.dst.Port() == 0 && c.dst.Addr() == dst.Addr()
}

// postMark is closed when the batches that it was put on have their results.
type postMark struct {
	left int
	err  error // of the batches that were lost
	done chan struct{}
}

// verdict says how a send goes.
type verdict uint8

const (
	mustAsk verdict = iota // wait for the daemon's answer
	mayPost                // by credit
	mayLate                // by credit, when there is some again
)

// postVerdictLocked looks at what a send that waits for room may do: n datagrams with tags
// from tag on.
func (s *stream) postVerdictLocked(dests []netip.AddrPort, n, bytes int, tag uint64) verdict {
	sess := s.sess
	switch {
	case sess == nil, s.over != nil, bytes > sess.creditBytes, n > sess.creditDatagrams, s.outcomes.full():
		return mustAsk
	// Never behind what may find no room in the window: a Cancel waits for what is posted.
	case s.tryq.len() > s.posts.queued:
		return mustAsk
	}
	if !sess.watching {
		// A socket that sends once needs no news of ports.
		if sess.sentBefore {
			sess.watching = true
			s.tellLocked(s.monitorMessage())
		}
		sess.sentBefore = true
		return mustAsk
	}
	for _, d := range dests {
		if s.ways[d] != wayClear || len(s.waiters) > 0 && s.waiters[d] > 0 {
			return mustAsk
		}
	}
	p := &s.posts
	switch {
	case p.bytes+bytes <= sess.creditBytes && p.datagrams+n <= sess.creditDatagrams &&
		(p.batches < sess.windowBatches/postShare || s.postJoinableLocked(n, bytes, tag) != nil):
		return mayPost
	// Something of it waits for a port: that must hold up nobody else.
	case sess.slow > 0:
		return mustAsk
	}
	return mayLate
}

// awaitRoom waits until there may be credit again. It is called with mu held and returns
// without it.
func (s *stream) awaitRoom(ctx context.Context) error {
	if s.posts.room == nil {
		s.posts.room = make(chan struct{})
	}
	room := s.posts.room
	s.mu.Unlock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctxError(ctx, nil)
	}
}

// roomLocked has those look again who wait for credit.
func (s *stream) roomLocked() {
	if s.posts.room != nil {
		close(s.posts.room)
		s.posts.room = nil
	}
}

// postOne posts one datagram; posted is false when it has to go the other way.
func (s *stream) postOne(ctx context.Context, dst netip.AddrPort, p []byte) (tag uint64, posted bool, err error) {
	dests := [1]netip.AddrPort{dst}
	s.mu.Lock()
	for {
		// The other way says why; the socket may have ended while this waited.
		// An error of the call itself: the other way tells it.
		if s.refuseLocked(dst, len(p)) != nil {
			s.mu.Unlock()
			return 0, false, nil
		}
		v := s.postVerdictLocked(dests[:], 1, len(p), s.nextTag+1)
		if v == mayPost {
			break
		}
		if v == mustAsk {
			s.mu.Unlock()
			return 0, false, nil
		}
		if err := s.awaitRoom(ctx); err != nil {
			return 0, true, err
		}
		s.mu.Lock()
	}
	// Looked for before the tag is taken: tags in a batch follow each other.
	// Behind what is queued if it may: many small sends are one message while the writer is busy.
	b := s.postJoinableLocked(1, len(p), s.nextTag+1)
	tag = s.takeTags(1)
	if b != nil {
		b.add(dst, p, 0)
	} else {
		b = newBatch()
		b.add(dst, p, len(p))
		s.pushPostLocked(b, tag)
	}
	s.posts.bytes += len(p)
	s.posts.datagrams++
	m, sess := s.kickLocked()
	s.mu.Unlock()
	s.write(m, sess)
	return tag, true, nil
}

// pushPostLocked queues a batch of posted datagrams with tags from tag on.
func (s *stream) pushPostLocked(b *batch, tag uint64) {
	b.posted = true
	// Without outcomes nobody asks for the tags, and batches of several callers join.
	if b.wantOutcomes = s.cfg.outcomes; b.wantOutcomes {
		b.firstTag = tag
	}
	s.seq++
	b.seq = s.seq
	s.posts.batches++
	s.posts.queued++
	s.tryq.push(b)
}

// postJoinableLocked returns the posted batch that so many datagrams and bytes, with tags
// from tag on, may join: the last one that is queued.
func (s *stream) postJoinableLocked(n, bytes int, tag uint64) *batch {
	if s.posts.queued == 0 || bytes > maxJoinBytes {
		return nil
	}
	b := *s.tryq.back()
	if !b.posted || len(b.lengths)+n > maxGatherDatagrams || b.bytes+bytes > maxGatherBytes ||
		b.firstTag != 0 && b.firstTag+uint64(len(b.lengths)) != tag {
		return nil
	}
	return b
}

// postBatchLocked posts b, whose datagrams have tags from tag on, and takes it. posted is false
// when it has to go the other way. mu is held when it returns,
// too, and may have been let go.
func (s *stream) postBatchLocked(ctx context.Context, b *batch, tag uint64) (posted bool, err error) {
	n, bytes := len(b.lengths), b.bytes
	for {
		v := s.postVerdictLocked(b.dests, n, bytes, tag)
		if v == mayPost {
			break
		}
		if v == mustAsk {
			return false, nil
		}
		err := s.awaitRoom(ctx)
		s.mu.Lock()
		if err != nil {
			return false, err
		}
	}
	if last := s.postJoinableLocked(n, bytes, tag); last != nil {
		last.merge(b)
		b.recycle()
	} else {
		s.pushPostLocked(b, tag)
	}
	s.posts.bytes += bytes
	s.posts.datagrams += n
	return true, nil
}

// endPostLocked takes a posted batch out of the accounts. err is why it was lost.
func (s *stream) endPostLocked(b *batch, err error) {
	s.posts.bytes -= b.bytes
	s.posts.datagrams -= len(b.lengths)
	s.posts.batches--
	for _, m := range b.marks {
		if err != nil {
			m.err = err
		}
		if m.left--; m.left == 0 {
			close(m.done)
		}
	}
	s.roomLocked()
}

// refusedPostLocked is the outcome of posted datagrams that the daemon did not accept.
func (s *stream) refusedPostLocked(b *batch, index, count int, err error) {
	kind, reason := Failed, err.Error()
	if errors.Is(err, rdserr.ErrCanceled) {
		kind, reason = Cancelled, reasonCancelled
		for _, k := range b.index[index : index+count] {
			s.posts.countCancelled(b.dests[k])
		}
	} else {
		// The next send there waits for its answer, and has the error itself.
		for _, d := range b.dests {
			delete(s.ways, d)
		}
	}
	if b.wantOutcomes {
		for _, r := range s.undecid.remove(b.firstTag+uint64(index), uint64(count)) {
			s.outcomes.add(r.first, r.count, kind, reason)
		}
	}
}

// --- ways -------------------------------------------------------------------------

// learnLocked takes from the result of a batch what it says of its destinations.
func (s *stream) learnLocked(sess *session, b *batch, errs []*rdsdv1.SendError) {
	if !b.watched || !sess.watching || s.sess != sess {
		return
	}
	for _, e := range errs {
		if e.GetErrno() == int32(rdserr.ErrCongested.Errno) {
			if i := int(e.GetIndex()); i < len(b.index) {
				s.leaveWayLocked(b.dests[b.index[i]])
			}
		}
	}
	if len(errs) > 0 {
		return
	}
	for _, d := range b.dests {
		// One that was told to be congested is clear when that is told, too: this result may be
		// older than the news.
		if s.ways[d] == 0 {
			s.setWayLocked(sess, d, wayClear)
		}
	}
}

// leaveWayLocked makes a way that was clear unknown.
func (s *stream) leaveWayLocked(d netip.AddrPort) {
	if s.ways[d] == wayClear {
		delete(s.ways, d)
	}
}

func (s *stream) setWayLocked(sess *session, d netip.AddrPort, w way) {
	if _, known := s.ways[d]; !known && len(s.ways) >= maxWays {
		// The daemon shall not watch as many ports as this socket has ever sent to.
		sess.creditBytes, sess.creditDatagrams = 0, 0
		sess.watching = false
		s.ways = nil
		s.tellLocked(s.monitorMessage())
		return
	}
	if s.ways == nil {
		s.ways = make(map[netip.AddrPort]way)
	}
	s.ways[d] = w
}

// congestionNews takes the daemon's news of ports.
func (s *stream) congestionNews(sess *session, ev *rdsdv1.CongestionEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sess != sess {
		return
	}
	// There was more than the daemon could keep.
	if ev.GetFreedMask() == ^uint64(0) {
		clear(s.ways)
	}
	for _, c := range ev.GetChange() {
		d := endpointFromProto(c.GetDestination())
		switch {
		case !sess.watching:
		case c.GetCongested():
			s.setWayLocked(sess, d, wayCongested)
			s.slowLocked(sess, func(b *batch) bool { return slices.Contains(b.dests, d) })
		case s.ways[d] == wayCongested:
			s.ways[d] = wayClear
		}
	}
	s.kickOtherLocked(sess)
}

// slowLocked makes posted batches slow.
func (s *stream) slowLocked(sess *session, which func(*batch) bool) {
	for _, b := range sess.pending {
		if b.posted && !b.slow && which(b) {
			b.slow = true
			sess.slow++
			sess.tries--
			sess.waiting++
			sess.waitBytes += b.bytes
		}
	}
	if sess.slow > 0 {
		s.roomLocked()
	}
}

// kickOtherLocked has the writer go on if there is something to write and nobody does.
func (s *stream) kickOtherLocked(sess *session) {
	if !sess.writing && s.readyLocked(sess) {
		sess.kickWriterLocked()
	}
}

// armSlowLocked has posted batches that stay without a result become slow.
func (s *stream) armSlowLocked(sess *session) {
	if sess.slowTimer {
		return
	}
	sess.slowTimer = true
	last := s.nextID
	time.AfterFunc(slowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sess.slowTimer = false
		if s.sess != sess {
			return
		}
		s.slowLocked(sess, func(b *batch) bool { return b.id <= last })
		s.kickOtherLocked(sess)
		if s.posts.batches > s.posts.queued+sess.slow {
			s.armSlowLocked(sess)
		}
	})
}

// --- calls that concern what was accepted before ------------------------------------

// settle waits until everything that was posted before has its result: the daemon's answer
// to a Flush is about what the daemon has accepted.
func (s *stream) settle(ctx context.Context) error {
	s.mu.Lock()
	if s.posts.batches == 0 {
		s.mu.Unlock()
		return nil
	}
	mark := &postMark{done: make(chan struct{})}
	later := false
	s.postedLocked(func(b *batch) {
		mark.left++
		b.marks = append(b.marks, mark)
		later = later || b.resultLater
	})
	// What the client asks has the daemon send results that wait; this has no answer.
	if later {
		s.tellLocked(s.monitorMessage())
	}
	m, sess := s.kickLocked()
	s.mu.Unlock()
	s.write(m, sess)
	select {
	case <-mark.done:
		return mark.err
	case <-ctx.Done():
	}
	// A daemon that stands still gives no results, however many calls come and go.
	s.mu.Lock()
	s.postedLocked(func(b *batch) {
		b.marks = slices.DeleteFunc(b.marks, func(m *postMark) bool { return m == mark })
	})
	s.mu.Unlock()
	return ctxError(ctx, nil)
}

// postedLocked calls do with every batch that is posted and has no result.
func (s *stream) postedLocked(do func(*batch)) {
	for _, b := range s.tryq.all() {
		if b.posted {
			do(b)
		}
	}
	if s.sess == nil {
		return
	}
	for _, b := range s.sess.pending {
		if b.posted {
			do(b)
		}
	}
}

// cancelWaitsLocked reports whether the next control message is a Cancel, and posted
// datagrams go before it: they were accepted before.
func (s *stream) cancelWaitsLocked(sess *session) bool {
	return s.posts.queued > 0 && sess.ctl.len() > 0 && (*sess.ctl.front()).WhichBody() == rdsdv1.ClientMessage_Cancel_case
}

func (s *stream) cancelBegins(dst netip.AddrPort) *cancelCall {
	c := &cancelCall{dst: dst}
	s.mu.Lock()
	s.posts.cancels = append(s.posts.cancels, c)
	s.mu.Unlock()
	return c
}

// countCancelled counts a posted datagram to dst that was cancelled, for one call: a Request
// concludes from the count of its call that it has not left.
func (p *posts) countCancelled(dst netip.AddrPort) {
	for _, c := range p.cancels {
		if c.covers(dst) {
			c.n++
			return
		}
	}
}

// cancelEnds returns how many posted datagrams were cancelled before the daemon had accepted
// them, which it does not count.
func (s *stream) cancelEnds(c *cancelCall) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts.cancels = slices.DeleteFunc(s.posts.cancels, func(o *cancelCall) bool { return o == c })
	return c.n
}

// cancelQueuedLocked ends the posted datagrams that were not written: the socket is over.
func (s *stream) cancelQueuedLocked() {
	for s.posts.queued > 0 {
		isPost := func(b *batch) bool { return b.posted }
		all := s.tryq.all()
		b := all[slices.IndexFunc(all, isPost)]
		s.tryq.delete(isPost)
		s.posts.queued--
		if b.wantOutcomes {
			s.outcomes.add(b.firstTag, uint64(len(b.lengths)), Cancelled, reasonClosed)
		}
		s.endPostLocked(b, s.over)
	}
	s.roomLocked()
}

func (s *stream) watchesLocked() bool { return s.sess != nil && s.sess.watching }
