package client

import (
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// maxFlushes bounds the flushes of one socket that are not answered yet.
const maxFlushes = 1024

// flushCall is a Flush that waits for its answer.
type flushCall struct {
	id    uint64 // the client's
	timer *time.Timer
}

func (f *flushCall) stop() {
	if f.timer != nil {
		f.timer.Stop()
	}
}

// control carries out a message that is not a batch. An error ends the stream.
func (s *sockStream) control(m *rdsdv1.ClientMessage) error {
	switch m.WhichBody() {
	case rdsdv1.ClientMessage_Credit_case:
		s.credit(m.GetCredit())
	case rdsdv1.ClientMessage_Cancel_case:
		s.cancel(m.GetCancel())
	case rdsdv1.ClientMessage_Flush_case:
		s.flush(m.GetFlush())
	case rdsdv1.ClientMessage_Monitor_case:
		s.monitor(m.GetMonitor())
	case rdsdv1.ClientMessage_Congested_case:
		s.congested(m.GetCongested())
	case rdsdv1.ClientMessage_Peek_case:
		s.peek(m.GetPeek())
	case rdsdv1.ClientMessage_Bind_case:
		return rdserr.With(rdserr.ErrInvalid, "bind came a second time; a socket is bound once, open another stream for another socket")
	default:
		return rdserr.With(rdserr.ErrInvalid, "a message without a body known to rdsd %s", base.Version())
	}
	return nil
}

func (s *sockStream) credit(c *rdsdv1.Credit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stalled {
		s.stalled = false
		s.News()
	}
	s.creditN = min(s.creditN+int64(c.GetDatagrams()), maxCredit)
	s.creditB = min(s.creditB+int64(min(c.GetBytes(), maxCredit)), maxCredit)
}

func (s *sockStream) cancel(c *rdsdv1.Cancel) {
	r := &rdsdv1.CancelResult{}
	r.SetId(c.GetId())
	dst, err := Endpoint("cancel.destination", c.GetDestination())
	if err == nil {
		var cancelled, begun int
		_, now := s.eng.Lock()
		cancelled, begun, err = s.sock.Cancel(now, dst)
		// Sends that waited have failed with ECANCELED. Their results go before this answer: a
		// client that had accepted them itself counts them.
		replies := s.takeSends()
		s.eng.Unlock()
		for _, m := range replies {
			s.reply(m)
		}
		r.SetCancelled(uint64(cancelled))
		r.SetInFlight(uint64(begun))
	}
	if err != nil {
		s.reply(cancelRefused(c.GetId(), err))
		return
	}
	m := &rdsdv1.ServerMessage{}
	m.SetCancelResult(r)
	s.reply(m)
}

// cancelRefused answers a Cancel by which nothing is cancelled.
func cancelRefused(id uint64, err error) *rdsdv1.ServerMessage {
	r := &rdsdv1.CancelResult{}
	r.SetId(id)
	r.SetErrno(int32(rdserr.Errno(err)))
	r.SetMessage(err.Error())
	m := &rdsdv1.ServerMessage{}
	m.SetCancelResult(r)
	return m
}

func (s *sockStream) flush(f *rdsdv1.Flush) {
	if f.GetTimeoutNs() < 0 {
		s.reply(flushResult(f.GetId(), rdserr.ErrInvalid, 0))
		return
	}
	s.mu.Lock()
	if s.flushes == nil || len(s.flushes) >= maxFlushes {
		s.mu.Unlock()
		s.reply(flushResult(f.GetId(), rdserr.ErrTooMany, 0))
		return
	}
	s.flushN++
	n := s.flushN
	call := &flushCall{id: f.GetId()}
	err := s.addFlush(n, call)
	s.mu.Unlock()
	if err != nil {
		s.reply(flushResult(f.GetId(), rdserr.ErrNoMemory, 0))
		return
	}
	s.eng.Lock()
	if s.rings == nil || !s.rings.keepFlush(n) {
		s.sock.Flush(n)
	}
	s.eng.Unlock()
	if f.GetTimeoutNs() == 0 {
		return
	}
	// Its time begins when the engine has it, or the rings: they would keep one that was given up before.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flushes[n] == call {
		call.timer = time.AfterFunc(time.Duration(f.GetTimeoutNs()), func() {
			defer s.front.deps.Guard.Recover(guard.Socket, s.finish)
			s.flushTimeout(n)
		})
	}
}

// flushed makes the answers to flushes that are done. The engine's lock is held.
func (s *sockStream) flushed(done []uint64) (replies []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range done {
		if call := s.flushes[n]; call != nil {
			s.endFlush(n)
			call.stop()
			replies = append(replies, flushResult(call.id, nil, 0))
		}
	}
	return replies
}

// flushTimeout answers flush n unless it is answered already.
func (s *sockStream) flushTimeout(n uint64) {
	s.eng.Lock()
	waited := s.sock.Unflush(n)
	undecided := s.sock.Info().Undecided
	if !waited && s.rings != nil {
		var more int
		more, waited = s.rings.forgetFlush(n)
		undecided += more
	}
	s.eng.Unlock()
	if !waited { // everything is decided: its answer is among the news
		return
	}
	s.mu.Lock()
	call := s.flushes[n]
	if call != nil {
		s.endFlush(n)
		s.queue(flushResult(call.id, rdserr.ErrTimeout, undecided))
	}
	s.mu.Unlock()
	s.News()
}

func flushResult(id uint64, err *rdserr.Error, inFlight int) *rdsdv1.ServerMessage {
	r := &rdsdv1.FlushResult{}
	r.SetId(id)
	if err != nil {
		r.SetErrno(int32(err.Errno))
	}
	r.SetInFlight(uint64(inFlight))
	m := &rdsdv1.ServerMessage{}
	m.SetFlushResult(r)
	return m
}

func (s *sockStream) monitor(m *rdsdv1.Monitor) {
	s.eng.Lock()
	s.sock.SetMonitor(rds.Monitor{Mask: m.GetMask(), Clear: m.GetClearEvents(), Set: m.GetSetEvents()})
	s.eng.Unlock()
}

func (s *sockStream) congested(q *rdsdv1.CongestedQuery) {
	r := &rdsdv1.CongestedResult{}
	r.SetId(q.GetId())
	dst, err := Endpoint("congested.destination", q.GetDestination())
	if err == nil {
		var on bool
		s.eng.Lock()
		on, err = s.sock.Congested(dst)
		s.eng.Unlock()
		r.SetCongested(on)
	}
	if err != nil {
		r.SetErrno(int32(rdserr.Errno(err)))
		r.SetMessage(err.Error())
	}
	m := &rdsdv1.ServerMessage{}
	m.SetCongestedResult(r)
	s.reply(m)
}

func (s *sockStream) peek(p *rdsdv1.Peek) {
	s.eng.Lock()
	next, n := s.sock.Queue().Peek()
	s.eng.Unlock()
	r := &rdsdv1.PeekResult{}
	r.SetId(p.GetId())
	r.SetAvailable(n > 0)
	r.SetNextBytes(uint32(next))
	r.SetQueuedDatagrams(uint32(n))
	m := &rdsdv1.ServerMessage{}
	m.SetPeekResult(r)
	s.reply(m)
}
