package rdsd

import (
	"context"
	"errors"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

func TestBackoffDelay(t *testing.T) {
	for _, c := range []struct {
		n        int
		random   float64
		min, max time.Duration
	}{
		{0, 0, 10 * time.Millisecond, 10 * time.Millisecond},
		{0, 0.999, 19 * time.Millisecond, 20 * time.Millisecond},
		{3, 0, 80 * time.Millisecond, 80 * time.Millisecond},
		{6, 0.999, time.Second, 1280 * time.Millisecond},
		{7, 0.999, 1990 * time.Millisecond, 2 * time.Second},
		{1000, 0, time.Second, time.Second},
	} {
		if d := backoffDelay(c.n, c.random); d < c.min || d > c.max {
			t.Errorf("attempt %d: %v, want %v..%v", c.n, d, c.min, c.max)
		}
	}
}

// reaccept waits for the socket to bind itself again.
func reaccept(d *fakeDaemon) *fakeStream {
	d.t.Helper()
	st, bind := d.accept()
	if got := endpointFromProto(bind.GetLocal()); got != localAddr {
		d.t.Errorf("bound again to %v, want the same %v", got, localAddr)
	}
	st.sendBound(bound(bind))
	d.t.Cleanup(st.answerClose)
	return st
}

// Who sends between the end of the stream and the moment when the socket lets go of
// it, as a try may that was just told of the end, is served by the next stream.
func TestSendBehindTheEnd(t *testing.T) {
	d, _, s, _ := bindFake(t)
	ctx := testContext(t)
	st := s.fe.(*stream)
	st.mu.Lock()
	sess := st.sess
	st.mu.Unlock()
	sess.over() // as its reader does first
	late := goErr(func() error { return s.Send(ctx, peerAddr, []byte("late")) })
	for queuedBatches(s) != 1 {
		if ctx.Err() != nil {
			t.Fatal("the send was not kept for the next stream")
		}
		time.Sleep(time.Millisecond)
	}
	d.stop()
	d.start()
	st2 := reaccept(d)
	b := st2.nextSend()
	if string(b.GetPayload()) != "late" {
		t.Errorf("sent %q", b.GetPayload())
	}
	st2.sendResult(b)
	if err := waitErr(t, late); err != nil {
		t.Error(err)
	}
}

// After a restart: what had no answer fails undecided and is not sent again,
// what was accepted is unknown, what waited in the SDK goes on, Recv goes on.
func TestReconnect(t *testing.T) {
	d, _, s, st := bindFakeAs(t, func(b *rdsdv1.Bound) { b.SetSendWindowBatches(1) }, WithOutcomes(), WithRecvWindow(8, 1000))
	ctx := testContext(t)

	accepted := goErr(func() error { return s.Send(ctx, peerAddr, []byte("accepted")) })
	st.sendResult(st.nextSend())
	if err := waitErr(t, accepted); err != nil {
		t.Fatal(err)
	}
	noAnswer := goErr(func() error { return s.Send(ctx, peerAddr, []byte("no answer")) })
	st.nextSend()
	queued := goErr(func() error { return s.Send(ctx, peerAddr, []byte("queued")) })
	for queuedBatches(s) != 1 {
		time.Sleep(time.Millisecond)
	}
	st.push(dgram("before"))
	for unread(s) != 1 {
		time.Sleep(time.Millisecond)
	}

	d.stop()
	err := waitErr(t, noAnswer)
	wantErr(t, err, rdserr.ErrShutdown)
	var op *OpError
	if !errors.As(err, &op) || !op.Undecided {
		t.Errorf("%v is not undecided", err)
	}
	wantErr(t, s.TrySend(peerAddr, nil), rdserr.ErrShutdown)
	late := goErr(func() error { return s.Send(ctx, peerAddr, []byte("late")) })

	d.start()
	st2, bind := d.accept()
	if bind.GetInitialCreditDatagrams() != 7 || bind.GetInitialCreditBytes() != 1000-6 {
		t.Errorf("credit %d, %d: one datagram of 6 bytes is still unread", bind.GetInitialCreditDatagrams(), bind.GetInitialCreditBytes())
	}
	st2.sendBound(bound(bind))
	t.Cleanup(st2.answerClose)
	seen := ""
	for n := 0; n < 2; {
		b := st2.nextSend()
		seen += string(b.GetPayload())
		n += len(b.GetLength())
		st2.sendResult(b)
	}
	if seen != "queuedlate" && seen != "latequeued" {
		t.Errorf("sent after the restart: %q", seen)
	}
	for _, done := range []chan error{queued, late} {
		if err := waitErr(t, done); err != nil {
			t.Error(err)
		}
	}
	st2.push(dgram("after"))
	for _, want := range []string{"before", "after"} {
		if got, err := s.Recv(ctx); err != nil || string(got.Payload) != want {
			t.Errorf("%v %v, want %q", got, err, want)
		}
	}
	for o, err := range s.Outcomes(ctx) {
		if err != nil || o.Kind != Unknown || o.Reason != "daemon restarted" || o.Tag != 1 {
			t.Errorf("%+v %v", o, err)
		}
		break
	}
	// The error of the undecided one has said all there is to say of it.
	if o, ok, _, _ := s.outcomes.take(); ok {
		t.Errorf("one more outcome: %+v", o)
	}
}

// What is read while the daemon answers the Bind, which counted it as unread, is granted to the
// session that this begins: nothing else would ever be.
func TestReadWhileBinding(t *testing.T) {
	d, _, s, st := bindFake(t, WithRecvWindow(4, 1000))
	for range 4 {
		st.push(dgram("unread"))
	}
	for unread(s) != 4 {
		time.Sleep(time.Millisecond)
	}
	d.stop()
	d.start()
	st2, bind := d.accept()
	if n := bind.GetInitialCreditDatagrams(); n != 0 {
		t.Errorf("credit for %d datagrams with a window full of unread ones", n)
	}
	ctx := testContext(t)
	for range 4 {
		if _, err := s.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	st2.sendBound(bound(bind))
	t.Cleanup(st2.answerClose)
	if c := st2.next().GetCredit(); c.GetDatagrams() != 4 || c.GetBytes() != 24 {
		t.Errorf("credit %v, want 4 datagrams of 24 bytes", c)
	}
}

func queuedBatches(s *Socket) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return streamOf(s).tryq.len() + streamOf(s).waitq.len()
}

func unread(s *Socket) int {
	streamOf(s).recv.mu.Lock()
	defer streamOf(s).recv.mu.Unlock()
	return streamOf(s).recv.n
}

// A port that the daemon still holds for the old stream is asked for again.
func TestReconnectAddressStillInUse(t *testing.T) {
	d, _, s, st := bindFake(t)
	st.finish(rdserr.ErrShutdown)
	st2, _ := d.accept()
	st2.finish(rdserr.ErrAddrInUse)
	st3 := reaccept(d)
	done := goErr(func() error { return s.Send(testContext(t), peerAddr, nil) })
	st3.sendResult(st3.nextSend())
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
}

// A refusal that waiting cannot mend ends the socket.
func TestReconnectRefused(t *testing.T) {
	d, _, s, st := bindFake(t)
	st.finish(rdserr.ErrShutdown)
	st2, _ := d.accept()
	st2.finish(rdserr.ErrPerm)
	_, err := s.Recv(testContext(t))
	wantErr(t, err, rdserr.ErrPerm)
	wantErr(t, s.Send(testContext(t), peerAddr, nil), rdserr.ErrPerm)
}

// A socket closed by an administrator stays closed.
func TestClosedByDaemon(t *testing.T) {
	_, _, s, st := bindFake(t)
	c := &rdsdv1.Closing{}
	c.SetErrno(int32(rdserr.ErrReset.Errno))
	c.SetMessage("closed by an administrator")
	m := &rdsdv1.ServerMessage{}
	m.SetClosing(c)
	st.push(dgram("last"))
	st.send(m)
	st.finish(nil)
	ctx := testContext(t)
	if d, err := s.Recv(ctx); err != nil || string(d.Payload) != "last" {
		t.Errorf("%v %v", d, err)
	}
	_, err := s.Recv(ctx)
	wantErr(t, err, rdserr.ErrReset)
	wantErr(t, s.Flush(ctx), rdserr.ErrReset)
}

func TestWithoutReconnect(t *testing.T) {
	_, _, s, st := bindFake(t, WithReconnect(false))
	ctx := testContext(t)
	st.push(dgram("last"))
	for unread(s) != 1 {
		time.Sleep(time.Millisecond)
	}
	flush := goErr(func() error { return s.Flush(ctx) })
	st.next()
	st.finish(rdserr.ErrShutdown)
	wantErr(t, waitErr(t, flush), rdserr.ErrShutdown)
	if d, err := s.Recv(ctx); err != nil || string(d.Payload) != "last" {
		t.Fatalf("%v %v", d, err)
	}
	_, err := s.Recv(ctx)
	wantErr(t, err, rdserr.ErrShutdown)
	wantErr(t, s.Send(ctx, peerAddr, nil), rdserr.ErrShutdown)
}

// Nothing hangs while there is no daemon.
func TestTimeoutsWithoutDaemon(t *testing.T) {
	d, c, s, _ := bindFake(t)
	d.stop()
	calls := map[string]func(context.Context) error{
		"send":      func(ctx context.Context) error { return s.Send(ctx, peerAddr, nil) },
		"batch":     func(ctx context.Context) error { _, err := s.SendBatch(ctx, []Datagram{dgram("x")}); return err },
		"recv":      func(ctx context.Context) error { _, err := s.Recv(ctx); return err },
		"request":   func(ctx context.Context) error { _, err := s.Request(ctx, peerAddr, nil); return err },
		"cancel":    func(ctx context.Context) error { _, err := s.CancelSentTo(ctx, peerAddr); return err },
		"flush":     func(ctx context.Context) error { return s.Flush(ctx) },
		"congested": func(ctx context.Context) error { _, err := s.Congested(ctx, peerAddr); return err },
		"peek":      func(ctx context.Context) error { _, _, err := s.PeekSize(ctx); return err },
		"watch": func(ctx context.Context) error {
			for _, err := range s.WatchCongestion(ctx) {
				return err
			}
			return nil
		},
	}
	// One that was in its stream when that broke may see the break instead.
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, rdserr.ErrTimeout) && !errors.Is(err, rdserr.ErrShutdown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := c.Bind(ctx, localAddr)
	wantErr(t, err, rdserr.ErrShutdown)
}

// TestLostForGood: a socket whose link ends with an error that another link does not
// mend says so at once, and not first that there is no daemon just now.
func TestLostForGood(t *testing.T) {
	_, _, s, _ := bindFake(t)
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	s.broken(l, rdserr.With(rdserr.ErrInvalid, "of no use"))
	wantErr(t, s.TrySend(peerAddr, nil), rdserr.ErrInvalid)
	_, err := s.Recv(testContext(t))
	wantErr(t, err, rdserr.ErrInvalid)
	l.abort()
}

func TestClose(t *testing.T) {
	_, _, s, st := bindFake(t, WithOutcomes())
	ctx := context.Background()
	waiting := map[string]chan error{
		"recv":    goErr(func() error { _, err := s.Recv(ctx); return err }),
		"send":    goErr(func() error { return s.Send(ctx, peerAddr, nil) }),
		"flush":   goErr(func() error { return s.Flush(ctx) }),
		"request": goErr(func() error { _, err := s.Request(ctx, otherAddr, nil); return err }),
		"watch": goErr(func() error {
			for _, err := range s.WatchCongestion(ctx) {
				return err
			}
			return nil
		}),
	}
	for range 3 { // send and request may be one batch
		if m := st.next(); m.WhichBody() == rdsdv1.ClientMessage_Send_case && len(m.GetSend().GetLength()) == 2 {
			break
		}
	}
	closed := goErr(s.Close)
	select { // the daemon sees the half-close
	case _, ok := <-st.in:
		for ok {
			_, ok = <-st.in
		}
	case <-time.After(patience):
		t.Fatal("no half-close")
	}
	select {
	case <-closed:
		t.Error("Close returned before the daemon let go of the port")
	case <-time.After(10 * time.Millisecond):
	}
	for name, done := range waiting {
		if err := waitErr(t, done); !errors.Is(err, rdserr.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	st.finish(nil)
	if err := waitErr(t, closed); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, s.TrySend(peerAddr, nil), rdserr.ErrClosed)
}
