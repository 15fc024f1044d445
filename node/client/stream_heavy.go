package client

import "github.com/rdsd/rdsd/internal/quota"

// What a client is told of its own datagrams has been decided already and cannot be refused:
// the results of batches, with an entry for each datagram that failed, and outcomes. While its
// client does not read it, it stands here, as all replies do. But for a few small ones it is charged to the
// client's user until it is written, so that other things are refused to that user instead; and a client with
// more than maxHeavyBytes of results with errors is not read.

// maxHeavyBytes is about what of heavy replies may wait for a client that does not read.
const maxHeavyBytes = 1 << 20

// textBytes is what an error that is told in words takes beside them, and beyond errorBytes.
const textBytes = 24

// freeReplies are in a socket's own price. Those beyond them take replyBytes each until they are written, with an error that
// one tells in words, and are charged freeReplies at a time; one that is laid out already, for a client with rings, takes
// outBytes and what it has.
const (
	freeReplies = 64
	replyBytes  = 320
	outBytes    = 48
)

// freeFlushes are in a socket's own price. Each beyond them takes flushBytes until it is answered, with its timer, and
// with what the engine and the rings have of it.
const (
	freeFlushes = 16
	flushBytes  = 320
)

// outcomeBytes is an rds.OutcomeRun.
const outcomeBytes = 16

// heavyReply is a reply that is charged until it is written.
type heavyReply struct {
	m     any
	bytes int64
}

// heavy is the result of a decided batch, charged if it has errors.
func (s *sockStream) heavy(c *sendCall) any {
	m := c.result()
	if len(c.errs) == 0 {
		return m
	}
	h := &heavyReply{m, 0}
	for _, e := range c.errs {
		h.bytes += errorBytes
		if n := len(e.GetMessage()); n > 0 {
			h.bytes += textBytes + int64(n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heavyB += h.bytes
	s.hold(h.bytes)
	return h
}

// queue puts a reply behind the others. They are charged freeReplies at a time, for a client that sends one by one
// has a million of them a second. mu is held.
func (s *sockStream) queue(m any) {
	if s.over {
		return
	}
	if s.out = append(s.out, m); len(s.out) > freeReplies && len(s.out)%freeReplies == 1 {
		s.hold(freeReplies * replyBytes)
		s.repliesB += freeReplies * replyBytes
	}
}

// addFlush notes a flush, if there is memory for it. mu is held.
func (s *sockStream) addFlush(n uint64, call *flushCall) error {
	if len(s.flushes) >= freeFlushes {
		if err := s.memory.Take(quota.Calls, flushBytes); err != nil {
			return err
		}
		s.heldB += flushBytes
	}
	s.flushes[n] = call
	return nil
}

// endFlush forgets a flush, which is answered. mu is held.
func (s *sockStream) endFlush(n uint64) {
	if delete(s.flushes, n); len(s.flushes) >= freeFlushes {
		s.memory.Give(quota.Calls, flushBytes)
		s.heldB -= flushBytes
	}
}

// sendReply writes a reply.
func (s *sockStream) sendReply(m any) error {
	h, ok := m.(*heavyReply)
	if !ok {
		return s.stream.SendMsg(m)
	}
	err := s.stream.SendMsg(h.m)
	s.mu.Lock()
	s.heavyB -= h.bytes
	s.mu.Unlock()
	s.letGo(h.bytes)
	return err
}

// holdOutcomes charges the outcomes that were fetched, if they are many: in the engine they
// are not charged any more.
func (s *sockStream) holdOutcomes() (bytes int64) {
	if len(s.push.outcomes) <= maxOutcomeRuns {
		return 0
	}
	bytes = outcomeBytes * int64(len(s.push.outcomes))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold(bytes)
	return bytes
}

// hold charges n bytes, until letGo or the end of the stream. mu is held.
func (s *sockStream) hold(n int64) {
	if s.flushes != nil { // else it is over, and nobody would give it back
		s.memory.Grow(quota.Calls, n)
		s.heldB += n
	}
}

// letGo ends what hold began.
func (s *sockStream) letGo(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.heldB) // the end of the stream has given all back
	s.memory.Give(quota.Calls, n)
	s.heldB -= n
}
