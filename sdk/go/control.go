package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// ask sends a control message and waits for the reply with its id. A lost
// stream is errLost: the caller decides whether asking again makes sense.
func (s *Socket) ask(ctx context.Context, build func(id uint64) *rdsdv1.ClientMessage) (*rdsdv1.ServerMessage, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx, nil)
	}
	s.mu.Lock()
	// Without a link the call waits for the next one: a control message is about the socket,
	// which outlives its links.
	for s.link == nil {
		if s.over != nil {
			err := s.over
			s.mu.Unlock()
			return nil, err
		}
		up := s.up
		s.mu.Unlock()
		select {
		case <-up:
		case <-ctx.Done():
			s.mu.Lock()
			err := ctxError(ctx, s.awayLocked())
			s.mu.Unlock()
			return nil, err
		}
		s.mu.Lock()
	}
	l := s.link
	s.nextID++
	id := s.nextID
	// Room for one, so that the reader of the link never waits for a caller that has gone.
	answer := make(chan *rdsdv1.ServerMessage, 1)
	s.replies[id] = answer
	// Registered before it is sent: the answer may come before this goroutine runs again.
	question := build(id)
	s.fe.tellLocked(question)
	s.mu.Unlock()
	s.fe.push()

	var reply *rdsdv1.ServerMessage
	var err error
	select {
	case reply = <-answer:
	// The answer would have come over this link: nobody knows whether the daemon has acted.
	case <-l.gone():
		err = errLost
	case <-ctx.Done():
		err = ctxError(ctx, nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.replies, id)
	if err != nil {
		s.fe.withdrawLocked(question, func(id uint64) bool { return s.replies[id] != nil })
		// Of several that are ready select takes any: an answer that has come counts.
		select {
		case reply = <-answer:
		default:
		}
	}
	switch {
	case reply != nil:
		return reply, nil
	// finishLocked has closed answer, or the end of the link is why the socket is over.
	case s.over != nil && (err == nil || err == errLost):
		return nil, s.over
	}
	return nil, err
}

// answerID is the id of the question that m answers, 0: it is no answer.
func answerID(m *rdsdv1.ServerMessage) (id uint64) {
	switch m.WhichBody() {
	case rdsdv1.ServerMessage_CancelResult_case:
		id = m.GetCancelResult().GetId()
	case rdsdv1.ServerMessage_FlushResult_case:
		id = m.GetFlushResult().GetId()
	case rdsdv1.ServerMessage_CongestedResult_case:
		id = m.GetCongestedResult().GetId()
	case rdsdv1.ServerMessage_PeekResult_case:
		id = m.GetPeekResult().GetId()
	}
	return id
}

// answered gives an answer of the daemon to the call that waits for it.
func (s *Socket) answered(m *rdsdv1.ServerMessage) {
	id := answerID(m)
	// Under the lock: who takes its id out of replies finds the answer, or there is none to come.
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer := s.replies[id]; answer != nil {
		delete(s.replies, id)
		answer <- m
	}
}

// askAgain is ask for questions that do no harm when asked twice.
func (s *Socket) askAgain(ctx context.Context, build func(id uint64) *rdsdv1.ClientMessage) (*rdsdv1.ServerMessage, error) {
	for {
		m, err := s.ask(ctx, build)
		if err != errLost {
			return m, err
		}
	}
}

// CancelSentTo drops the datagrams this socket has queued to dst; port 0 means every port
// of that address. When it returns, none of them that had not begun to leave will leave.
// The outcome of each cancelled datagram is Cancelled.
func (s *Socket) CancelSentTo(ctx context.Context, dst netip.AddrPort) (CancelResult, error) {
	dst = unmap(dst)
	// Before the call is counted as one that runs.
	if err := s.misuse(ctx, "cancel", dst); err != nil {
		return CancelResult{}, err
	}
	if !dst.Addr().IsValid() {
		return CancelResult{}, s.opErr("cancel", dst, rdserr.ErrDestination)
	}
	call := s.fe.cancelBegins(dst)
	m, err := s.ask(ctx, func(id uint64) *rdsdv1.ClientMessage {
		c := &rdsdv1.Cancel{}
		c.SetId(id)
		c.SetDestination(endpointToProto(dst))
		m := &rdsdv1.ClientMessage{}
		m.SetCancel(c)
		return m
	})
	more := s.fe.cancelEnds(call)
	if err != nil {
		return CancelResult{}, s.opErr("cancel", dst, err)
	}
	r := m.GetCancelResult()
	if err := errnoError(r.GetErrno(), r.GetMessage()); err != nil {
		return CancelResult{}, s.opErr("cancel", dst, err)
	}
	return CancelResult{Cancelled: r.GetCancelled() + more, InFlight: r.GetInFlight()}, nil
}

// Flush waits until every datagram accepted before has its outcome. It fails with
// rdserr.ErrTimeout when ctx ends first, and with ErrShutdown when the daemon went away:
// then the outcome of datagrams in flight is unknown.
func (s *Socket) Flush(ctx context.Context) error {
	if err := s.misuse(ctx, "flush", netip.AddrPort{}); err != nil {
		return err
	}
	if err := s.fe.settle(ctx); err != nil {
		return s.opErr("flush", netip.AddrPort{}, err)
	}
	m, err := s.ask(ctx, func(id uint64) *rdsdv1.ClientMessage {
		f := &rdsdv1.Flush{}
		f.SetId(id)
		if t, ok := ctx.Deadline(); ok {
			f.SetTimeoutNs(max(1, int64(time.Until(t))))
		}
		m := &rdsdv1.ClientMessage{}
		m.SetFlush(f)
		return m
	})
	if err != nil {
		return s.opErr("flush", netip.AddrPort{}, err)
	}
	return s.opErr("flush", netip.AddrPort{}, errnoError(m.GetFlushResult().GetErrno(), ""))
}

// Congested says whether dst refuses datagrams now, as far as this node knows.
func (s *Socket) Congested(ctx context.Context, dst netip.AddrPort) (bool, error) {
	dst = unmap(dst)
	if err := s.misuse(ctx, "congested", dst); err != nil {
		return false, err
	}
	if !dst.Addr().IsValid() {
		return false, s.opErr("congested", dst, rdserr.ErrDestination)
	}
	if congested, ok := s.fe.knows(dst); ok {
		return congested, nil
	}
	m, err := s.askCongested(ctx, dst)
	if err != nil {
		return false, s.opErr("congested", dst, err)
	}
	r := m.GetCongestedResult()
	return r.GetCongested(), s.opErr("congested", dst, errnoError(r.GetErrno(), r.GetMessage()))
}

func (s *Socket) askCongested(ctx context.Context, dst netip.AddrPort) (*rdsdv1.ServerMessage, error) {
	return s.askAgain(ctx, func(id uint64) *rdsdv1.ClientMessage {
		q := &rdsdv1.CongestedQuery{}
		q.SetId(id)
		q.SetDestination(endpointToProto(dst))
		m := &rdsdv1.ClientMessage{}
		m.SetCongested(q)
		return m
	})
}

// PeekSize says how large the next datagram is, without taking it; ok is false
// when there is none.
func (s *Socket) PeekSize(ctx context.Context) (n int, ok bool, err error) {
	if err := s.misuse(ctx, "peek", netip.AddrPort{}); err != nil {
		return 0, false, err
	}
	n, ok, err = s.fe.peekSize(ctx)
	return n, ok, s.opErr("peek", netip.AddrPort{}, err)
}

func (s *stream) peekSize(ctx context.Context) (n int, ok bool, err error) {
	if n, ok := s.recv.peek(); ok {
		return n, true, nil
	}
	m, err := s.askAgain(ctx, func(id uint64) *rdsdv1.ClientMessage {
		p := &rdsdv1.Peek{}
		p.SetId(id)
		m := &rdsdv1.ClientMessage{}
		m.SetPeek(p)
		return m
	})
	if err != nil {
		return 0, false, err
	}
	// The daemon answers for datagrams it has not pushed; those it pushed before it
	// answered are here by now.
	if n, ok := s.recv.peek(); ok {
		return n, true, nil
	}
	r := m.GetPeekResult()
	return int(r.GetNextBytes()), r.GetAvailable(), nil
}

func (q *recvQueue) peek() (int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.batches.len() == 0 {
		return 0, false
	}
	return (*q.batches.front()).nextSize(), true
}

func isClosed(err error) bool { return errors.Is(err, rdserr.ErrClosed) }
