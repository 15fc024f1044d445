package client

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// sockStream is one open socket. The handler of the stream only waits for its
// end, so that it can end the stream whatever the client does. A reader takes
// the client's messages; a pusher writes what the engine has for it. The
// reader, when nobody is writing, writes its answers itself, so that the
// answer to a batch costs no hand-off.
//
// Lock order: wmu, then the engine's lock, then mu. Nothing blocks with the
// engine's lock or mu held; messages are sent with wmu alone.
type sockStream struct {
	front  *Front
	stream Stream
	eng    datagram.Engine
	sock   *rds.Socket    // guarded by the engine's lock
	sends  []rds.SendDone // guarded by the engine's lock
	id     config.Identity
	memory *quota.Account // of id's user; from sockets.reserve to sockets.remove
	size   int64          // what the socket itself takes of it
	news   chan struct{}  // capacity 1: wakes the pusher
	end    chan error     // capacity 1: the daemon ends the stream
	ended  func(error)    // guarded by mu; not nil: called too when the daemon ends it
	// answerer, when not nil, has answers written; the engine's news then goes
	// another way, through rings.
	answerer func()
	rings    *ringSock // nil: its datagrams come as messages

	vain bool // owned by the reader; the last batch that lacked memory has waited for it in vain

	wmu  sync.Mutex // held by whoever writes to the stream
	push pushState  // guarded by wmu

	mu         sync.Mutex
	over       bool                  // guarded by mu; the daemon lets go of the socket
	out        []any                 // guarded by mu; replies to be written, in order
	mayWait    int                   // guarded by mu; of them, results that wait for others
	waitArmed  bool                  // guarded by mu; resultsWaited is about to look
	creditN    int64                 // guarded by mu; datagrams that may be pushed
	creditB    int64                 // guarded by mu; bytes that may be pushed
	stalled    bool                  // guarded by mu; a datagram waits for credit
	later      bool                  // guarded by mu; pushLater is about to look again
	windowN    int                   // guarded by mu; waiting batches without a result
	windowSize int64                 // guarded by mu; what they take
	windowB    int                   // guarded by mu; their payload bytes
	flushes    map[uint64]*flushCall // guarded by mu; nil when the stream is over
	flushN     uint64                // guarded by mu
	heavyB     int64                 // guarded by mu; what heavy replies take that are not written
	repliesB   int64                 // guarded by mu; what those of out take beyond freeReplies
	heldB      int64                 // guarded by mu; taken of memory for all of these, for flushes and for outcomes
}

// maxReplies bounds the replies that wait for a client that does not read; the
// reader then takes nothing more from it.
const maxReplies = 512

// ServeStream serves the socket of one stream until that ends. Once it is bound its
// messages go by bound, which may be first or a shorter way to the same client.
func (f *Front) ServeStream(first Stream, id config.Identity, bound Stream) error {
	in := &inMsg{}
	if err := first.RecvMsg(in); err != nil {
		return streamEnd(err)
	}
	err := f.serveSocket(first, id, bound, in)
	if errors.Is(err, rdserr.ErrReset) {
		// What Closing has said. To a client that did not take that in time, the status of a
		// reset would be a lost connection, which it makes anew.
		err = rdserr.With(rdserr.ErrClosed, "%v", err)
	}
	return err
}

// stream carries a socket's messages: a stream of gRPC, or a connection to the control
// socket of docs/shm.md. One goroutine at a time receives, and one sends.
type Stream interface {
	// SendMsg sends a ServerMessage, or what lays itself out as one.
	SendMsg(m any) error
	// RecvMsg receives a ClientMessage into m, an *inMsg. io.EOF: the client has closed
	// its side.
	RecvMsg(m any) error
	// Context ends when the client is gone.
	Context() context.Context
}

func newSockStream(f *Front, st Stream, id config.Identity) *sockStream {
	return &sockStream{front: f, stream: st, id: id,
		news: make(chan struct{}, 1), end: make(chan error, 1), flushes: map[uint64]*flushCall{}}
}

// serveSocket is ServeStream for a client whose first message is in.
func (f *Front) serveSocket(first Stream, id config.Identity, bound Stream, in *inMsg) error {
	s := newSockStream(f, first, id)
	if in.isBatch || in.msg.WhichBody() != rdsdv1.ClientMessage_Bind_case {
		in.release()
		f.deps.Count.StreamErrors.Add(1)
		return rdserr.With(rdserr.ErrNotBound, "the first message of a socket must be bind")
	}
	if err := s.bind(in.msg.GetBind()); err != nil {
		f.deps.Count.BindsRefused.Add(1)
		f.deps.Log.Log(first.Context(), refusalLevel(err), "bind refused", "uid", s.id.UID, "pid", s.id.PID, "error", err)
		return err
	}
	defer s.close()
	f.deps.Log.Debug("socket bound", "local", s.sock.Addr(), "uid", s.id.UID, "pid", s.id.PID)
	s.stream = bound
	in.release() // before it has an account, which paid for nothing of it
	in.account = s.memory
	pool := &outPool{account: s.memory}
	defer pool.close()
	s.push.batch.pool = pool
	read, pushed := make(chan error, 1), make(chan error, 1)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends when the stream does, after this handler has returned
		defer s.front.deps.Guard.Recover(guard.Socket, func(err error) { read <- err })
		guard.Point("stream")
		read <- s.read(in)
	}()
	go func() { // ends with stop, or when the stream does
		defer s.front.deps.Guard.Recover(guard.Socket, func(err error) { pushed <- err })
		pushed <- s.pusher(stop)
	}()
	select {
	case err := <-read:
		if err != nil && first.Context().Err() == nil {
			f.deps.Count.StreamErrors.Add(1)
		}
		return err
	case err := <-pushed:
		return err
	case err := <-s.end:
		s.sayClosing(err)
		return err
	}
}

// refusalLevel is the level that a refusal is logged at: what concerns rights and limits is
// for the administrator to see, the rest is between the client and its mistakes.
func refusalLevel(err error) slog.Level {
	if errors.Is(err, rdserr.ErrPerm) || errors.Is(err, rdserr.ErrTooMany) || errors.Is(err, rdserr.ErrNoMemory) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// streamEnd is nil when the client closed its side, which closes the socket.
func streamEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// read takes the client's messages until the stream ends.
func (s *sockStream) read(in *inMsg) error {
	for {
		if err := s.stream.RecvMsg(in); err != nil {
			if err = streamEnd(err); err == nil {
				s.noWaiting()
				err = s.answer()
			}
			return err
		}
		var err error
		if in.isBatch {
			s.send(&in.batch)
		} else {
			err = s.control(in.msg)
			s.noWaiting() // a client that asks may be about to wait for its results
		}
		in.release()
		if err == nil {
			err = s.answer()
		}
		if err != nil {
			return err
		}
	}
}

// finish makes the daemon end the stream: Closing with err, then the status.
func (s *sockStream) finish(err error) {
	select {
	case s.end <- err:
	default: // it is ending already
	}
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended != nil {
		ended(err)
	}
}

// onEnd has f called when the daemon ends the stream; at once if it has done so.
func (s *sockStream) onEnd(f func(error)) {
	s.mu.Lock()
	s.ended = f
	s.mu.Unlock()
	select {
	case err := <-s.end:
		f(err)
	default:
	}
}

// goodbye is how long a client may take to read what is still there for it when
// the daemon ends its stream.
const goodbye = 500 * time.Millisecond

// sayClosing writes what the engine still has for the client, outcomes above
// all, and then Closing. A client that does not read does not hold the end up.
func (s *sockStream) sayClosing(err error) {
	said := make(chan struct{})
	go func() { // ends when the stream does, at the latest
		defer close(said)
		defer s.front.deps.Guard.Recover(guard.Socket, nil)
		s.wmu.Lock()
		defer s.wmu.Unlock()
		if s.write(true) != nil {
			return
		}
		_ = s.stream.SendMsg(closingPB(err)) // the status follows and says the same
	}()
	select {
	case <-said:
	case <-time.After(goodbye):
	}
}

// closingPB is the last message of a stream the daemon ends.
func closingPB(err error) *rdsdv1.ServerMessage {
	c := &rdsdv1.Closing{}
	c.SetErrno(int32(rdserr.Errno(err)))
	c.SetMessage(err.Error())
	m := &rdsdv1.ServerMessage{}
	m.SetClosing(c)
	return m
}

// close gives the port back when the stream is over. What its client asks and sends until it sees the end
// is not answered: with a socket that is closed, as if by himself, but by the end.
func (s *sockStream) close() {
	_, now := s.eng.Lock()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.sock.Close(now)
	s.eng.Unlock()
	s.forget()
}

// forget gives up what the stream holds beside its socket.
func (s *sockStream) forget() {
	s.mu.Lock()
	flushes := s.flushes
	s.flushes = nil
	s.memory.Give(quota.Waiting, s.windowSize)
	s.windowN, s.windowB, s.windowSize = 0, 0, 0
	s.memory.Give(quota.Calls, s.heldB)
	s.heldB = 0
	s.mu.Unlock()
	for _, f := range flushes {
		f.stop()
	}
	s.front.sockets.remove(s)
}

var _ datagram.Waker = (*sockStream)(nil)

// News implements Waker.
func (s *sockStream) News() (goroutine bool) {
	if s.answerer != nil {
		s.answerer()
		return false
	}
	select {
	case s.news <- struct{}{}:
	default:
	}
	return true
}

// reply queues a message for the client.
func (s *sockStream) reply(m any) {
	s.mu.Lock()
	s.queue(m)
	s.mu.Unlock()
}

// A result that its client does not wait for (SendBatch.result_may_wait) is written with what is
// written next: to wake a client for it takes longer than all else that the batch costs here. Next is
// a datagram for the same client, where it asks and is answered, or whatever follows from its next
// message; or resultDelay is over.
const resultDelay = 2 * time.Millisecond

// replyLater queues a result that may wait. With a second one it does not: who sends one batch after
// the other has two of them under way (ADR 25), and goes on with the results.
func (s *sockStream) replyLater(m any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue(m)
	if len(s.out) != 1 {
		return
	}
	s.mayWait = 1
	if !s.waitArmed {
		s.waitArmed = true
		time.AfterFunc(resultDelay, s.resultsWaited)
	}
}

// resultsWaited has the pusher write what has waited.
func (s *sockStream) resultsWaited() {
	defer s.front.deps.Guard.Recover(guard.Socket, s.finish)
	s.mu.Lock()
	s.waitArmed = false
	waits := s.mayWait > 0
	s.mu.Unlock()
	if waits {
		s.News()
	}
}

// noWaiting has everything that waits written with the next answer.
func (s *sockStream) noWaiting() {
	s.mu.Lock()
	s.mayWait = 0
	s.mu.Unlock()
}

// allWaits reports whether there is nothing to be written but what may wait.
func (s *sockStream) allWaits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayWait > 0 && len(s.out) == s.mayWait
}
