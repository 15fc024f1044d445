package client

import "github.com/rdsd/rdsd/internal/quota"

// What a client is told of its own datagrams has been decided already and cannot be refused:
// the results of batches, with an entry for each datagram that failed, and outcomes. While its
// client does not read it, it stands here. What is large of it is charged to the client's user
// until it is written, so that other things are refused to that user instead; and a client with
// more than maxHeavyBytes of such results is not read.

// maxHeavyBytes is about what of heavy replies may wait for a client that does not read.
const maxHeavyBytes = 1 << 20

// outcomeBytes is an rds.OutcomeRun.
const outcomeBytes = 16

// heavyReply is a reply that is charged until it is written.
type heavyReply struct {
	m     any
	bytes int64
}

// heavy is the result of a decided batch, charged if it has many errors.
func (s *sockStream) heavy(c *sendCall) any {
	m := c.result()
	if len(c.errs) <= maxBatchErrors {
		return m
	}
	h := &heavyReply{m, errorBytes * int64(len(c.errs))}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heavyB += h.bytes
	s.hold(h.bytes)
	return h
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
