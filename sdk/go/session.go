package rdsd

import (
	"context"
	"errors"
	"io"
	"net/netip"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// session is one gRPC stream to the daemon, from Bind to its end.
type session struct {
	st     *stream
	stream grpc.ClientStream
	cancel context.CancelFunc
	local  netip.AddrPort
	wake   chan struct{} // capacity 1: the writer has something to do
	down   chan struct{} // closed when the stream is over

	maxBytes      int
	windowBytes   int
	windowBatches int

	// What may be posted, guarded by Socket.mu (post.go).
	creditBytes     int
	creditDatagrams int
	sentBefore      bool // a send has waited for its answer
	watching        bool // the daemon tells what becomes congested
	slow            int  // posted batches that leave their place to others
	slowTimer       bool // runs

	// Guarded by Socket.mu:
	writing   bool // a goroutine is in stream.SendMsg, or the writer is about to be
	closing   bool // half-close when the writer is free
	closed    bool // done so, or the stream is over: nothing more is written
	pending   map[uint64]*batch
	bytes     int // payload bytes in pending
	waitBytes int // of these, in waiting batches
	waiting   int // waiting batches in pending
	tries     int // the others
	ctl       ctlQueue
	ctlAt     ctlPosition
	creditN   uint64 // credit to grant with the next message
	creditB   uint64
}

var openStream = &rdsdv1.Datagrams_ServiceDesc.Streams[0]

// connect opens a stream and binds. ctx bounds only this, not the stream.
func (s *stream) connect(ctx context.Context) (link, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx, nil)
	}
	s.client.conn.ResetConnectBackoff()
	streamCtx, cancel := context.WithCancel(s.ctx)
	stop := context.AfterFunc(ctx, cancel)
	sess, err := s.handshake(streamCtx, cancel)
	if !stop() && err == nil {
		err = ctxError(ctx, nil)
	}
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			return nil, ctxError(ctx, nil)
		}
		return nil, err
	}
	return sess, nil
}

func (s *stream) handshake(ctx context.Context, cancel context.CancelFunc) (*session, error) {
	stream, err := s.client.conn.NewStream(ctx, openStream, rdsdv1.Datagrams_Open_FullMethodName,
		grpc.ForceCodecV2(streamCodec{}))
	if err != nil {
		return nil, s.connectError(err)
	}
	bind := &rdsdv1.Bind{}
	bind.SetLocal(endpointToProto(s.LocalAddr()))
	bind.SetSendBufferBytes(uint64(s.cfg.sendBuffer))
	bind.SetRecvBufferBytes(uint64(s.cfg.recvBuffer))
	bind.SetLabel(s.cfg.label)
	n, bytes := s.recv.initialCredit()
	bind.SetInitialCreditDatagrams(n)
	bind.SetInitialCreditBytes(bytes)
	m := &rdsdv1.ClientMessage{}
	m.SetBind(bind)
	// io.EOF says only that the stream has ended; RecvMsg has the reason.
	if err := stream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) {
		return nil, s.connectError(err)
	}
	var in inbound
	if err := stream.RecvMsg(&in); err != nil {
		return nil, s.connectError(err)
	}
	if in.msg != nil && in.msg.WhichBody() == rdsdv1.ServerMessage_Closing_case {
		return nil, closingError(in.msg.GetClosing())
	}
	if in.msg == nil || in.msg.WhichBody() != rdsdv1.ServerMessage_Bound_case {
		return nil, rdserr.With(rdserr.ErrProtocol, "the daemon's first message is not Bound")
	}
	bound := in.msg.GetBound()
	sess := &session{
		st:            s,
		stream:        stream,
		cancel:        cancel,
		local:         endpointFromProto(bound.GetLocal()),
		wake:          make(chan struct{}, 1),
		down:          make(chan struct{}),
		maxBytes:      int(min(bound.GetMaxDatagramBytes(), 1<<30)),
		windowBytes:   int(min(bound.GetSendWindowBytes(), 1<<40)),
		windowBatches: int(bound.GetSendWindowBatches()),
		pending:       make(map[uint64]*batch),
	}
	// A daemon that names no window gets one batch at a time.
	sess.windowBytes = max(sess.windowBytes, 1)
	sess.windowBatches = max(sess.windowBatches, 1)
	// What is posted leaves most of the window to those that wait.
	sess.creditBytes = min(int(min(bound.GetSendCreditBytes(), 1<<40)), sess.windowBytes/4)
	sess.creditDatagrams = int(bound.GetSendCreditDatagrams())
	return sess, nil
}

// connectError says where no daemon was found.
func (s *stream) connectError(err error) error {
	if errors.Is(err, io.EOF) {
		return rdserr.With(rdserr.ErrShutdown, "the daemon at %s ended the stream", s.client.target)
	}
	mapped := statusError(err)
	if errors.Is(mapped, rdserr.ErrShutdown) {
		if why := whyNoDaemon(s.client.target); why != "" {
			return rdserr.With(rdserr.ErrShutdown, "no daemon at %s: %s", s.client.target, why)
		}
		return rdserr.With(rdserr.ErrShutdown, "no daemon at %s: %v", s.client.target, mapped)
	}
	return mapped
}

func closingError(c *rdsdv1.Closing) error {
	err := errnoError(c.GetErrno(), c.GetMessage())
	switch {
	case err == nil:
		return rdserr.ErrShutdown
	case errors.Is(err, rdserr.ErrShutdown):
		return err
	}
	return dismissed{err}
}

func (s *stream) startLocked(l link) {
	sess := l.(*session)
	s.sess = sess
	s.ways = nil
	// What was read since the Bind counted it as unread.
	s.grantLocked()
	go s.writer(sess) // ends with sess.down
	sess.kickWriterLocked()
}

func (sess *session) bound() (netip.AddrPort, int) { return sess.local, sess.maxBytes }

func (sess *session) abort() { sess.cancel() }

func (sess *session) discard() { sess.cancel() }

func (sess *session) gone() <-chan struct{} { return sess.down }

// endLocked makes the writer half-close the stream after its present message. The daemon
// answers by ending the stream.
func (sess *session) endLocked() {
	sess.closing = true
	sess.kickWriterLocked()
}

// over stops all writing. It is called before down is closed: a caller that learns that the
// connection is lost, and sends again, must not have that sent on the lost one, where its
// outcome would never be known. It waits for the next connection instead.
func (sess *session) over() {
	sess.st.mu.Lock()
	defer sess.st.mu.Unlock()
	sess.closed = true
}

// read takes messages until the stream ends and says why it did.
func (sess *session) read() error {
	defer close(sess.down)
	defer sess.over()
	defer sess.cancel()
	s := sess.st
	var in inbound
	var closing error
	for {
		// Decided before the message is read: its memory is the pool's, or the reader's to
		// keep.
		in.lend = s.recv.lend.Load()
		if err := sess.stream.RecvMsg(&in); err != nil {
			switch {
			// The daemon has said why before it ended the stream; the status says less.
			case closing != nil:
				return closing
			case errors.Is(err, io.EOF):
				return rdserr.With(rdserr.ErrShutdown, "the daemon ended the stream")
			}
			return statusError(err)
		}
		switch {
		case in.recv != nil:
			s.recv.deliver(in.recv, s)
		case in.isResult:
			s.result(sess, in.resultID, nil)
		default:
			if err := s.handle(sess, in.msg); err != nil {
				closing = err
			}
		}
	}
}

// handle takes the rare messages. It returns the reason of a Closing.
func (s *stream) handle(sess *session, m *rdsdv1.ServerMessage) error {
	switch m.WhichBody() {
	case rdsdv1.ServerMessage_SendResult_case:
		s.result(sess, m.GetSendResult().GetId(), m.GetSendResult().GetErrors())
	case rdsdv1.ServerMessage_Outcomes_case:
		s.decided(m.GetOutcomes().GetOutcome())
	case rdsdv1.ServerMessage_Congestion_case:
		s.congestionNews(sess, m.GetCongestion())
		s.watch.event(m.GetCongestion())
	case rdsdv1.ServerMessage_Closing_case:
		return closingError(m.GetClosing())
	default: // answers, and messages of a newer daemon
		s.mu.Lock()
		sess.ctlAt.answered(answerID(m))
		s.mu.Unlock()
		s.answered(m)
	}
	return nil
}
