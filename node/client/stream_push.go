package client

import (
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
)

// maxOutcomeRuns bounds one OutcomeBatch.
const maxOutcomeRuns = 4096

// maxPushDatagrams bounds one RecvBatch, and so the time the engine's lock is held for it.
const maxPushDatagrams = 4096

// pushState is what a writer reuses from turn to turn.
type pushState struct {
	replies  []any
	batch    outBatch
	got      rds.Run
	outcomes []rds.OutcomeRun
}

// pusher writes what the engine has for the client whenever there is news. It
// ends with stop or when the stream does.
func (s *sockStream) pusher(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-s.stream.Context().Done():
			return s.stream.Context().Err()
		case <-s.news:
		}
		s.wmu.Lock()
		err := s.write(true)
		s.wmu.Unlock()
		if err != nil {
			return err
		}
	}
}

// answer is called by the reader after each message: it writes what there is
// if nobody else is writing, and leaves it to the pusher otherwise. When too
// many replies wait, it waits for the client to read some.
func (s *sockStream) answer() error {
	s.mu.Lock()
	waiting := len(s.out)
	all := s.mayWait == waiting && waiting > 0
	full := waiting > maxReplies || s.heavyB > maxHeavyBytes
	s.mu.Unlock()
	switch {
	case all:
		return nil
	case full:
		s.wmu.Lock()
	case !s.wmu.TryLock():
		// Whoever holds it may be past its last look: have the pusher look again.
		s.News()
		return nil
	}
	defer s.wmu.Unlock()
	return s.write(false)
}

// write sends the replies, and what the engine has when there is news (or the
// caller has taken the token that says so). wmu is held.
func (s *sockStream) write(news bool) error {
	for {
		var did bool
		var err error
		// What may wait goes behind the datagrams that it has waited for, with them.
		if news && s.allWaits() {
			if news, err = s.writeNews(); err != nil {
				return err
			}
		}
		if did, err = s.writeReplies(); err != nil {
			return err
		}
		if !news {
			select {
			case <-s.news:
				news = true
			default:
			}
		}
		if !news && !did {
			return nil
		}
		if news {
			if news, err = s.writeNews(); err != nil {
				return err
			}
		}
	}
}

func (s *sockStream) writeReplies() (did bool, err error) {
	p := &s.push
	s.mu.Lock()
	p.replies, s.out, s.mayWait = s.out, p.replies[:0], 0
	held := s.repliesB
	s.repliesB = 0
	s.mu.Unlock()
	for i, m := range p.replies {
		if err == nil {
			err = s.sendReply(m)
		}
		p.replies[i] = nil
	}
	if held > 0 {
		s.letGo(held)
	}
	return len(p.replies) > 0, err
}

// writeNews takes what the engine has for this socket, as far as the client
// has given credit, and sends it. more is true when there may be more.
func (s *sockStream) writeNews() (more bool, err error) {
	p := &s.push
	replies := s.takeNews()
	for _, m := range replies {
		if err == nil {
			err = s.sendReply(m)
		}
	}
	held := s.holdOutcomes()
	for o := p.outcomes; len(o) > 0 && err == nil; {
		k := min(len(o), maxOutcomeRuns)
		err = s.stream.SendMsg(outcomeBatch(o[:k]))
		o = o[k:]
	}
	s.letGo(held)
	if cap(p.outcomes) > maxOutcomeRuns {
		p.outcomes = nil
	}
	if err != nil || p.got.Len() == 0 {
		p.got.Release()
		return false, err
	}
	return true, s.pushDatagrams()
}

// takeNews empties the socket's news in one step of the engine: datagrams and
// outcomes into push, the rest as messages.
func (s *sockStream) takeNews() (replies []any) {
	p := &s.push
	_, now := s.eng.Lock()
	ev := s.sock.Events()
	s.takeDatagrams(&p.got)
	if p.got.Len() > 0 {
		s.sock.ReadAll(now)
	}
	if ev&rds.EvSends != 0 {
		replies = s.takeSends()
	}
	if ev&rds.EvFlushed != 0 {
		replies = append(replies, s.flushed(s.sock.Flushed())...)
	}
	p.outcomes = p.outcomes[:0]
	if ev&rds.EvOutcomes != 0 {
		p.outcomes = s.sock.Queue().Outcomes(p.outcomes)
	}
	if ev&rds.EvCongestion != 0 {
		replies = append(replies, congestionEvent(s.sock.CongestionNews())...)
	}
	s.eng.Unlock()
	return replies
}

// takeSends returns the results of batches whose waiting sends are decided. The engine's lock
// is held, which guards sends.
func (s *sockStream) takeSends() (replies []any) {
	s.sends = s.sock.SendsDone(s.sends[:0])
	rejected := uint64(0)
	for i := range s.sends {
		if s.sends[i].Err != nil {
			rejected++
		}
		if c := s.sends[i].Batch.(*sendCall); c.decided(&s.sends[i]) {
			s.releaseWindow(c.bytes, c.datagrams, c.flows)
			replies = append(replies, s.heavy(c))
		}
		s.sends[i] = rds.SendDone{}
	}
	if rejected > 0 {
		s.front.deps.Count.SendRejected.Add(rejected)
	}
	return replies
}

// takeDatagrams takes from the receive queue what one batch may hold and the
// client has credit for. The engine's lock is held.
func (s *sockStream) takeDatagrams(got *rds.Run) {
	next, waiting := s.sock.Queue().Peek()
	if waiting == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.creditN <= 0 || s.creditB <= 0 {
		if !s.stalled {
			s.stalled = true
			s.front.deps.Count.PushStalls.Add(1)
		}
		return
	}
	limit := int(min(int64(s.front.deps.Conf().API.PushBatchSize), s.creditB))
	// What a client does not read is copied into messages and cannot be refused later
	// (outPool). So it stays where it is, and makes its port congested, while there is no
	// memory for more of those.
	if s.memory.Tight(quota.Calls, int64(max(limit, next))) {
		limit = 0 // the next one alone
		if s.memory.Tight(quota.Calls, int64(next)) {
			s.pushLater()
			return
		}
	}
	s.sock.Queue().RecvRun(got, int(min(s.creditN, maxPushDatagrams)), max(limit, next)) // the last one may pass the credit
	s.creditN -= int64(got.Len())
	s.creditB -= int64(got.Bytes)
}

// pushRetry is how long a socket whose datagrams there is no memory for waits before it
// looks again.
const pushRetry = 50 * time.Millisecond

// pushLater has the pusher look again some time. mu is held.
func (s *sockStream) pushLater() {
	if s.later {
		return
	}
	s.later = true
	time.AfterFunc(pushRetry, func() {
		defer s.front.deps.Guard.Recover(guard.Socket, s.finish)
		s.mu.Lock()
		s.later = false
		s.mu.Unlock()
		s.News()
	})
}

// pushDatagrams sends what takeDatagrams took: payloads are copied once, into
// the message, many at a time.
func (s *sockStream) pushDatagrams() error {
	p := &s.push
	p.batch.take(&p.got)
	s.front.deps.Count.RecvBatches.Add(1)
	s.front.deps.Count.RecvBatchDatagrams.Add(uint64(p.got.Len()))
	p.got.Release()
	return s.stream.SendMsg(&p.batch)
}

var outcomeKinds = map[conn.Outcome]rdsdv1.OutcomeKind{
	conn.Delivered: rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED,
	conn.Cancelled: rdsdv1.OutcomeKind_OUTCOME_KIND_CANCELLED,
	conn.Failed:    rdsdv1.OutcomeKind_OUTCOME_KIND_FAILED,
	conn.Unknown:   rdsdv1.OutcomeKind_OUTCOME_KIND_UNKNOWN,
}

// OutcomePB is an outcome in messages; there is none for 0.
func OutcomePB(o conn.Outcome) rdsdv1.OutcomeKind { return outcomeKinds[o] }

func outcomeBatch(runs []rds.OutcomeRun) *rdsdv1.ServerMessage {
	list := make([]*rdsdv1.Outcome, len(runs))
	for i, r := range runs {
		o := &rdsdv1.Outcome{}
		o.SetFirstTag(r.First)
		o.SetCount(r.Count)
		o.SetKind(outcomeKinds[r.Kind])
		o.SetReason(r.Why.String())
		list[i] = o
	}
	b := &rdsdv1.OutcomeBatch{}
	b.SetOutcome(list)
	m := &rdsdv1.ServerMessage{}
	m.SetOutcomes(b)
	return m
}

func congestionEvent(freed uint64, changes []rds.Change) []any {
	if freed == 0 && len(changes) == 0 {
		return nil
	}
	list := make([]*rdsdv1.CongestionChange, len(changes))
	for i, c := range changes {
		x := &rdsdv1.CongestionChange{}
		x.SetDestination(EndpointPB(c.Endpoint))
		x.SetCongested(c.Congested)
		list[i] = x
	}
	ev := &rdsdv1.CongestionEvent{}
	ev.SetFreedMask(freed)
	ev.SetChange(list)
	m := &rdsdv1.ServerMessage{}
	m.SetCongestion(ev)
	return []any{m}
}
