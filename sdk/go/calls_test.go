//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// overFakes runs a test with a socket of each front end whose daemon says nothing after
// Bound; let has it end the socket when the client wants that.
func overFakes(t *testing.T, test func(t *testing.T, s *Socket, let func()), opts ...BindOption) {
	t.Run("grpc", func(t *testing.T) {
		_, _, s, st := bindFake(t, opts...)
		test(t, s, st.answerClose)
	})
	t.Run("rings", func(t *testing.T) {
		d := newRingDaemon(t)
		s := d.bindRing(localAddr, opts...)
		d.pause(true)
		test(t, s, func() { d.pause(false) })
	})
}

// socketCall is one of the calls that may wait.
type socketCall struct {
	op      string
	remote  bool // its errors name the destination
	instead func(error) error
	call    func(ctx context.Context, s *Socket) error
}

// ofBatch takes the one error out of that of a batch.
func ofBatch(err error) error {
	if be, ok := errors.AsType[*BatchError](err); ok && len(be.Errors) == 2 && be.Total == 2 && be.Errors[1].Index == 1 {
		return be.Errors[1].Err
	}
	return err
}

var socketCalls = []socketCall{
	{"send", true, nil, func(ctx context.Context, s *Socket) error { return s.Send(ctx, peerAddr, []byte("x")) }},
	{"send", true, nil, func(ctx context.Context, s *Socket) error { return s.Reply(ctx, Datagram{Addr: peerAddr}, nil) }},
	{"send", true, ofBatch, func(ctx context.Context, s *Socket) error {
		_, err := s.SendBatch(ctx, []Datagram{{Addr: otherAddr}, {Addr: peerAddr}})
		return err
	}},
	{"try-send", true, ofBatch, func(ctx context.Context, s *Socket) error {
		_, err := s.TrySendBatch(ctx, []Datagram{{Addr: otherAddr}, {Addr: peerAddr}})
		return err
	}},
	{"recv", false, nil, func(ctx context.Context, s *Socket) error { _, err := s.Recv(ctx); return err }},
	{"recv", false, nil, func(ctx context.Context, s *Socket) error {
		_, err := s.RecvBatch(ctx, make([]Datagram, 2))
		return err
	}},
	{"recv", false, nil, func(ctx context.Context, s *Socket) error {
		n, l, err := s.Borrow(ctx, make([]Datagram, 2))
		if n != 0 || l != (Lease{}) {
			return errors.New("something was lent")
		}
		return err
	}},
	{"reserve", true, nil, func(ctx context.Context, s *Socket) error { _, err := s.Reserve(ctx, peerAddr, 1); return err }},
	{"cancel", true, nil, func(ctx context.Context, s *Socket) error { _, err := s.CancelSentTo(ctx, peerAddr); return err }},
	{"flush", false, nil, func(ctx context.Context, s *Socket) error { return s.Flush(ctx) }},
	{"congested", true, nil, func(ctx context.Context, s *Socket) error { _, err := s.Congested(ctx, peerAddr); return err }},
	{"request", true, nil, func(ctx context.Context, s *Socket) error { _, err := s.Request(ctx, peerAddr, nil); return err }},
	{"outcomes", false, nil, func(ctx context.Context, s *Socket) error {
		for _, err := range s.Outcomes(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"watch", false, nil, func(ctx context.Context, s *Socket) error {
		for _, err := range s.WatchCongestion(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"recv", false, nil, func(ctx context.Context, s *Socket) error {
		for _, err := range s.All(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
}

// wantOp checks that err is the call's own, between its addresses.
func (c *socketCall) wantOp(t *testing.T, when string, err error, want ...error) {
	t.Helper()
	if c.instead != nil {
		err = c.instead(err)
	}
	remote := netip.AddrPort{}
	if c.remote {
		remote = peerAddr
	}
	op, ok := errors.AsType[*OpError](err)
	if !ok || op.Op != c.op || op.Local != localAddr || op.Remote != remote || op.Undecided {
		t.Errorf("%s: %s: %+v (%v), want one from %v to %v", when, c.op, op, err, localAddr, remote)
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %s: %v, want %v", when, c.op, err, w)
		}
	}
}

// Whatever is called with a context that has ended says so at once, and has done nothing.
func TestCallsWithAnEndedContext(t *testing.T) {
	overFakes(t, func(t *testing.T, s *Socket, let func()) {
		cancelled, cancel := context.WithCancel(context.Background())
		cancel()
		late, stop := context.WithDeadline(context.Background(), time.Unix(1, 0))
		defer stop()
		for _, c := range socketCalls {
			err := waitErr(t, goErr(func() error { return c.call(cancelled, s) }))
			c.wantOp(t, "cancelled", err, rdserr.ErrCanceled, context.Canceled, syscall.ECANCELED)
			err = waitErr(t, goErr(func() error { return c.call(late, s) }))
			c.wantOp(t, "too late", err, rdserr.ErrTimeout, context.DeadlineExceeded, syscall.ETIMEDOUT)
		}
		if _, _, err := s.PeekSize(cancelled); !errors.Is(err, context.Canceled) {
			t.Errorf("peek: %v", err)
		}
		let()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.replies) != 0 || s.watch.active() {
			t.Errorf("left: %d wait for answers, watching: %v", len(s.replies), s.watch.active())
		}
	}, WithOutcomes())
}

// Whatever is called on a closed socket says so, and what waits when it is closed hears
// of it, whatever the daemon does.
func TestCallsOfAClosedSocket(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			overFakes(t, func(t *testing.T, s *Socket, let func()) {
				let()
				if when == "before" {
					s.Close()
				}
				var dones []chan error
				for _, c := range socketCalls {
					if when == "after" && (c.op == "send" || c.op == "try-send" || c.op == "reserve" || c.op == "cancel" || c.op == "congested" || c.op == "request" || c.op == "flush") {
						continue // the daemon of the test may answer these
					}
					dones = append(dones, goErr(func() error {
						c.wantOp(t, when, c.call(testContext(t), s), rdserr.ErrClosed)
						return nil
					}))
				}
				s.Close()
				for _, d := range dones {
					_ = waitErr(t, d)
				}
				if _, _, err := s.PeekSize(testContext(t)); !errors.Is(err, rdserr.ErrClosed) {
					t.Errorf("peek: %v", err)
				}
				if !errors.Is(s.TrySend(peerAddr, nil), rdserr.ErrClosed) {
					t.Error("a try on a closed socket")
				}
				s.client.mu.Lock()
				defer s.client.mu.Unlock()
				if len(s.client.sockets) != 0 {
					t.Errorf("the client has %d sockets", len(s.client.sockets))
				}
			}, WithOutcomes())
		})
	}
}

// A destination that cannot be is refused by each call in its own name, nothing is asked
// of the daemon, and no room is nothing to be received into.
func TestCallsToNowhere(t *testing.T) {
	overFakes(t, func(t *testing.T, s *Socket, let func()) {
		ctx := testContext(t)
		for op, call := range map[string]func() error{
			"send":      func() error { return s.Send(ctx, netip.AddrPort{}, nil) },
			"try-send":  func() error { return s.TrySend(netip.AddrPort{}, nil) },
			"reserve":   func() error { _, err := s.Reserve(ctx, netip.AddrPort{}, 1); return err },
			"cancel":    func() error { _, err := s.CancelSentTo(ctx, netip.AddrPort{}); return err },
			"congested": func() error { _, err := s.Congested(ctx, netip.AddrPort{}); return err },
		} {
			err := waitErr(t, goErr(call))
			if o, ok := errors.AsType[*OpError](err); !ok || o.Op != op || !errors.Is(err, rdserr.ErrDestination) {
				t.Errorf("%s: %v", op, err)
			}
		}
		if _, err := s.Reserve(ctx, peerAddr, -1); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("a slot of less than nothing: %v", err)
		}
		if n, err := s.SendBatch(ctx, nil); n != 0 || err != nil {
			t.Errorf("an empty batch: %d, %v", n, err)
		}
		if n, err := s.RecvBatch(ctx, nil); n != 0 || err != nil {
			t.Errorf("received into nothing: %d, %v", n, err)
		}
		if n, l, err := s.Borrow(ctx, nil); n != 0 || l != (Lease{}) || err != nil {
			t.Errorf("borrowed into nothing: %d, %v", n, err)
		}
		Lease{}.Release()
		ds := []Datagram{{}, {Addr: netip.MustParseAddrPort("0.0.0.0:1")}}
		n, err := s.SendBatch(ctx, ds)
		if be, ok := errors.AsType[*BatchError](err); n != 0 || !ok || len(be.Errors) != 2 || !errors.Is(err, rdserr.ErrDestination) {
			t.Errorf("a batch to nowhere: %d, %v", n, err)
		}
		let()
	})
}

// A socket that has no daemon tells each call so that does not wait, with the reason, and
// those that wait get on when there is one again.
func TestCallsWithoutADaemon(t *testing.T) {
	d := newRingDaemon(t)
	s := d.bindRing(localAddr)
	d.stop()
	eventually(t, "the end of the link", func() bool { return linkOf(s) == nil })
	for op, call := range map[string]func() error{
		"try-send": func() error { return s.TrySend(peerAddr, nil) },
		"batch":    func() error { _, err := s.TrySendBatch(testContext(t), []Datagram{{Addr: peerAddr}}); return err },
	} {
		if err := call(); !errors.Is(err, rdserr.ErrShutdown) {
			t.Errorf("%s: %v", op, err)
		}
	}
	peek := goErr(func() error {
		_, ok, err := s.PeekSize(testContext(t))
		if ok {
			return errors.New("there is something")
		}
		return err
	})
	slot := goErr(func() error {
		sl, err := s.Reserve(testContext(t), peerAddr, 3)
		if err == nil {
			copy(sl.Bytes(), "abc")
			_, err = sl.Commit(3)
		}
		return err
	})
	d.start()
	for _, done := range []chan error{peek, slot} {
		if err := waitErr(t, done); err != nil {
			t.Error(err)
		}
	}
}
