package rdsd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// patience bounds every wait of these tests; nothing is measured with it.
const patience = 5 * time.Second

var (
	localAddr = netip.MustParseAddrPort("127.0.0.2:4000")
	peerAddr  = netip.MustParseAddrPort("127.0.0.3:5000")
	otherAddr = netip.MustParseAddrPort("127.0.0.3:5001")
)

// fakeDaemon is the other end of the stream, driven by the test message by
// message. It can be stopped and started again on the same socket path.
type fakeDaemon struct {
	t       *testing.T
	path    string
	streams chan *fakeStream
	wrap    func(net.Listener) net.Listener // nil: what comes is not watched

	server *grpc.Server
	served chan struct{}
}

// fakeStream is one Open call.
type fakeStream struct {
	t      *testing.T
	stream rdsdv1.Datagrams_OpenServer
	in     chan *rdsdv1.ClientMessage // closed at half-close or break
	end    chan error                 // capacity 1; what Open returns
	gone   chan struct{}              // closed when the handler returned
	once   sync.Once
}

func newFakeDaemon(t *testing.T) *fakeDaemon { return newFakeDaemonBehind(t, nil) }

func newFakeDaemonBehind(t *testing.T, wrap func(net.Listener) net.Listener) *fakeDaemon {
	d := &fakeDaemon{t: t, path: filepath.Join(t.TempDir(), "s"), streams: make(chan *fakeStream, 16), wrap: wrap}
	d.start()
	t.Cleanup(d.stop)
	return d
}

type fakeService struct {
	rdsdv1.UnimplementedDatagramsServer
	d *fakeDaemon
}

func (d *fakeDaemon) start() {
	l, err := net.Listen("unix", d.path)
	if err != nil {
		d.t.Fatal(err)
	}
	if d.wrap != nil {
		l = d.wrap(l)
	}
	server, served := grpc.NewServer(), make(chan struct{})
	rdsdv1.RegisterDatagramsServer(server, fakeService{d: d})
	d.server, d.served = server, served
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
}

// stop breaks every stream.
func (d *fakeDaemon) stop() {
	d.server.Stop()
	<-d.served
}

func (f fakeService) Open(stream rdsdv1.Datagrams_OpenServer) error {
	st := &fakeStream{
		t: f.d.t, stream: stream,
		in: make(chan *rdsdv1.ClientMessage, 1<<16), end: make(chan error, 1), gone: make(chan struct{}),
	}
	defer close(st.gone)
	f.d.streams <- st
	go func() {
		defer close(st.in)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			st.in <- m
		}
	}()
	select {
	case err := <-st.end:
		return rdsdv1.StatusFromErrno(err).Err()
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// accept waits for the next stream and its Bind.
func (d *fakeDaemon) accept() (*fakeStream, *rdsdv1.Bind) {
	d.t.Helper()
	select {
	case st := <-d.streams:
		m := st.next()
		if m.WhichBody() != rdsdv1.ClientMessage_Bind_case {
			d.t.Fatalf("first message is %v, want Bind", m)
		}
		return st, m.GetBind()
	case <-time.After(patience):
		d.t.Fatal("no stream was opened")
		return nil, nil
	}
}

// bound is the usual answer to Bind.
func bound(bind *rdsdv1.Bind) *rdsdv1.Bound {
	b := &rdsdv1.Bound{}
	e := bind.GetLocal()
	if e.GetPort() == 0 {
		e.SetPort(uint32(localAddr.Port()))
	}
	b.SetLocal(e)
	b.SetMaxDatagramBytes(1 << 20)
	b.SetSendWindowBytes(4 << 20)
	b.SetSendWindowBatches(64)
	b.SetDaemonInstance(1)
	return b
}

func (st *fakeStream) sendBound(b *rdsdv1.Bound) {
	m := &rdsdv1.ServerMessage{}
	m.SetBound(b)
	st.send(m)
}

func (st *fakeStream) send(m *rdsdv1.ServerMessage) {
	st.t.Helper()
	if err := st.stream.Send(m); err != nil {
		st.t.Fatalf("daemon side: send: %v", err)
	}
}

// next is the next message of the client.
func (st *fakeStream) next() *rdsdv1.ClientMessage {
	st.t.Helper()
	select {
	case m, ok := <-st.in:
		if !ok {
			st.t.Fatal("the client ended the stream")
		}
		return m
	case <-time.After(patience):
		st.t.Fatal("no message from the client")
	}
	return nil
}

func (st *fakeStream) nextSend() *rdsdv1.SendBatch {
	st.t.Helper()
	m := st.next()
	if m.WhichBody() != rdsdv1.ClientMessage_Send_case {
		st.t.Fatalf("got %v, want a SendBatch", m)
	}
	return m.GetSend()
}

// wantIdle is for what must not come: everything written before is here once
// the question is.
func (st *fakeStream) wantIdle(s *Socket, why string) {
	st.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := s.Congested(context.Background(), otherAddr)
		done <- err
	}()
	m := st.next()
	if m.WhichBody() != rdsdv1.ClientMessage_Congested_case {
		st.t.Fatalf("%s: got %v", why, m)
	}
	r := &rdsdv1.CongestedResult{}
	r.SetId(m.GetCongested().GetId())
	sm := &rdsdv1.ServerMessage{}
	sm.SetCongestedResult(r)
	st.send(sm)
	if err := <-done; err != nil {
		st.t.Fatal(err)
	}
}

func (st *fakeStream) sendResult(b *rdsdv1.SendBatch, errs ...*rdsdv1.SendError) {
	st.t.Helper()
	r := &rdsdv1.SendResult{}
	r.SetId(b.GetId())
	refused := uint32(0)
	for _, e := range errs {
		refused += e.GetCount()
	}
	r.SetAccepted(uint32(len(b.GetLength())) - refused)
	r.SetErrors(errs)
	m := &rdsdv1.ServerMessage{}
	m.SetSendResult(r)
	st.send(m)
}

func sendError(index, count uint32, e *rdserr.Error) *rdsdv1.SendError {
	se := &rdsdv1.SendError{}
	se.SetIndex(index)
	se.SetCount(count)
	se.SetErrno(int32(e.Errno))
	se.SetMessage(e.Text)
	return se
}

// sendCancelled answers a Cancel.
func (st *fakeStream) sendCancelled(m *rdsdv1.ClientMessage, cancelled, inFlight uint64) {
	r := &rdsdv1.CancelResult{}
	r.SetId(m.GetCancel().GetId())
	r.SetCancelled(cancelled)
	r.SetInFlight(inFlight)
	sm := &rdsdv1.ServerMessage{}
	sm.SetCancelResult(r)
	st.send(sm)
}

// answerFlush answers a Flush, which comes next.
func (st *fakeStream) answerFlush() {
	st.t.Helper()
	f := st.next()
	if f.WhichBody() != rdsdv1.ClientMessage_Flush_case {
		st.t.Fatalf("got %v, want the Flush", f)
	}
	r := &rdsdv1.FlushResult{}
	r.SetId(f.GetFlush().GetId())
	m := &rdsdv1.ServerMessage{}
	m.SetFlushResult(r)
	st.send(m)
}

func (st *fakeStream) sendOutcome(first uint64, count uint32, kind rdsdv1.OutcomeKind, reason string) {
	st.t.Helper()
	o := &rdsdv1.Outcome{}
	o.SetFirstTag(first)
	o.SetCount(count)
	o.SetKind(kind)
	o.SetReason(reason)
	b := &rdsdv1.OutcomeBatch{}
	b.SetOutcome([]*rdsdv1.Outcome{o})
	m := &rdsdv1.ServerMessage{}
	m.SetOutcomes(b)
	st.send(m)
}

// push sends datagrams to the client.
func (st *fakeStream) push(ds ...Datagram) {
	st.t.Helper()
	b := &rdsdv1.RecvBatch{}
	var payload []byte
	var lengths, index []uint32
	var sources []*rdsdv1.Endpoint
	for i, d := range ds {
		payload = append(payload, d.Payload...)
		lengths = append(lengths, uint32(len(d.Payload)))
		sources = append(sources, endpointToProto(d.Addr))
		index = append(index, uint32(i))
	}
	b.SetPayload(payload)
	b.SetLength(lengths)
	b.SetSource(sources)
	b.SetSourceIndex(index)
	m := &rdsdv1.ServerMessage{}
	m.SetRecv(b)
	st.send(m)
}

func (st *fakeStream) finish(err error) {
	st.once.Do(func() { st.end <- err })
	<-st.gone
}

// answerClose lets the socket's Close end at once: the daemon ends a stream
// that the client has half-closed.
func (st *fakeStream) answerClose() {
	go func() {
		for range st.in {
		}
		st.once.Do(func() { st.end <- nil })
	}()
}

// bindFake binds a socket against a fake daemon.
func bindFake(t *testing.T, opts ...BindOption) (*fakeDaemon, *Client, *Socket, *fakeStream) {
	t.Helper()
	return bindFakeAs(t, func(*rdsdv1.Bound) {}, opts...)
}

func bindFakeAs(t *testing.T, change func(*rdsdv1.Bound), opts ...BindOption) (*fakeDaemon, *Client, *Socket, *fakeStream) {
	t.Helper()
	return bindTo(t, newFakeDaemon(t), change, opts...)
}

func bindTo(t *testing.T, d *fakeDaemon, change func(*rdsdv1.Bound), opts ...BindOption) (*fakeDaemon, *Client, *Socket, *fakeStream) {
	t.Helper()
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	type bindResult struct {
		s   *Socket
		err error
	}
	done := make(chan bindResult, 1)
	go func() {
		s, err := c.Bind(testContext(t), localAddr, opts...)
		done <- bindResult{s, err}
	}()
	st, bind := d.accept()
	b := bound(bind)
	change(b)
	st.sendBound(b)
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() {
		st.answerClose()
		c.Close()
	})
	return d, c, r.s, st
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// expiring is a context whose deadline passes when the test says so: not before what it is about has begun.
type expiring struct {
	context.Context
	passed chan struct{}
}

func newExpiring() expiring { return expiring{context.Background(), make(chan struct{})} }

func (c expiring) Done() <-chan struct{} { return c.passed }

func (c expiring) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error %v, want %v", err, w)
		}
	}
}

// streamOf is the front end of a socket that was bound over a stream.
func streamOf(s *Socket) *stream { return s.fe.(*stream) }
