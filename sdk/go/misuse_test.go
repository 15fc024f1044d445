//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// everyCall is every call of a socket that takes a context, by what its error says it was.
var everyCall = []struct {
	op   string
	call func(ctx context.Context, s *Socket) error
}{
	{"send", func(ctx context.Context, s *Socket) error { return s.Send(ctx, peerAddr, nil) }},
	{"send", func(ctx context.Context, s *Socket) error { _, err := s.SendTag(ctx, peerAddr, nil); return err }},
	{"send", func(ctx context.Context, s *Socket) error { return s.Reply(ctx, Datagram{Addr: peerAddr}, nil) }},
	{"send", func(ctx context.Context, s *Socket) error {
		_, err := s.SendBatch(ctx, []Datagram{{Addr: peerAddr}})
		return err
	}},
	{"try-send", func(ctx context.Context, s *Socket) error {
		_, err := s.TrySendBatch(ctx, []Datagram{{Addr: peerAddr}})
		return err
	}},
	{"recv", func(ctx context.Context, s *Socket) error { _, err := s.Recv(ctx); return err }},
	{"recv", func(ctx context.Context, s *Socket) error { _, _, err := s.RecvInto(ctx, nil); return err }},
	{"recv", func(ctx context.Context, s *Socket) error {
		_, err := s.RecvBatch(ctx, make([]Datagram, 1))
		return err
	}},
	{"recv", func(ctx context.Context, s *Socket) error {
		_, _, err := s.Borrow(ctx, make([]Datagram, 1))
		return err
	}},
	{"recv", func(ctx context.Context, s *Socket) (last error) {
		for _, last = range s.Messages(ctx) {
		}
		return last
	}},
	{"recv", func(ctx context.Context, s *Socket) (last error) {
		for _, last = range s.All(ctx) {
		}
		return last
	}},
	{"reserve", func(ctx context.Context, s *Socket) error { _, err := s.Reserve(ctx, peerAddr, 1); return err }},
	{"request", func(ctx context.Context, s *Socket) error { _, err := s.Request(ctx, peerAddr, nil); return err }},
	{"cancel", func(ctx context.Context, s *Socket) error { _, err := s.CancelSentTo(ctx, peerAddr); return err }},
	{"flush", func(ctx context.Context, s *Socket) error { return s.Flush(ctx) }},
	{"congested", func(ctx context.Context, s *Socket) error { _, err := s.Congested(ctx, peerAddr); return err }},
	{"peek", func(ctx context.Context, s *Socket) error { _, _, err := s.PeekSize(ctx); return err }},
	{"outcomes", func(ctx context.Context, s *Socket) (last error) {
		for _, last = range s.Outcomes(ctx) {
		}
		return last
	}},
	{"watch", func(ctx context.Context, s *Socket) (last error) {
		for _, last = range s.WatchCongestion(ctx) {
		}
		return last
	}},
}

var none context.Context // what a program passes that has forgotten it

// wantMisuse wants an error that tells a programmer what is wrong, and no panic.
func wantMisuse(t *testing.T, op string, call func() error) {
	t.Helper()
	defer func() {
		t.Helper()
		if p := recover(); p != nil {
			t.Errorf("%s: a panic: %v", op, p)
		}
	}()
	err := call()
	if o, ok := errors.AsType[*OpError](err); !ok || o.Op != op || !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("%s: %v", op, err)
	}
}

// TestNilContext: a call without a context is refused, and leaves the socket as it was.
func TestNilContext(t *testing.T) {
	overFakes(t, func(t *testing.T, s *Socket, let func()) {
		for _, c := range everyCall {
			wantMisuse(t, c.op, func() error { return c.call(none, s) })
		}
		let()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}, WithOutcomes())
}

// TestNoSocket: a socket, a slot, a lease and a client that no call has returned say so.
func TestNoSocket(t *testing.T) {
	ctx := testContext(t)
	for _, s := range []*Socket{nil, {}} {
		for _, c := range everyCall {
			wantMisuse(t, c.op, func() error { return c.call(ctx, s) })
		}
		wantMisuse(t, "try-send", func() error { return s.TrySend(peerAddr, nil) })
		wantMisuse(t, "close", func() error { return s.Close() })
		if s.LocalAddr() != (netip.AddrPort{}) || s.FrontEnd() != Auto {
			t.Error(s.LocalAddr(), s.FrontEnd())
		}
	}
	for _, sl := range []*Slot{nil, {}} {
		wantMisuse(t, "commit", func() error { _, err := sl.Commit(0); return err })
		if sl.Abort(); sl.Bytes() != nil {
			t.Error("a slot of nothing has room")
		}
	}
	Lease{}.Release()
	for _, c := range []*Client{nil, {}} {
		wantMisuse(t, "bind", func() error { _, err := c.Bind(ctx, localAddr); return err })
		wantMisuse(t, "close", func() error { return c.Close() })
	}
}

// TestBindWithoutContext: a Bind without a context is refused. One that had panicked with the socket in the
// client's list would have Close of the client wait for that socket for ever.
func TestBindWithoutContext(t *testing.T) {
	d := newFakeDaemon(t)
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	wantMisuse(t, "bind", func() error { _, err := c.Bind(none, localAddr); return err })
	done := goErr(c.Close)
	if err := waitErr(t, done); err != nil {
		t.Error(err)
	}
}

// brokenContext is a context of a program with a fault: it panics once it is asked something.
type brokenContext struct{ context.Context }

func (brokenContext) Done() <-chan struct{} { panic("a fault of the program") }

// TestPanicOfContext: a panic of the program's own code in a call that waits is the program's to
// recover from, and the socket works on.
func TestPanicOfContext(t *testing.T) {
	overFakes(t, func(t *testing.T, s *Socket, let func()) {
		for _, c := range everyCall {
			if slices.Contains([]string{"flush", "cancel", "congested", "peek", "request", "watch"}, c.op) {
				continue // have contexts of their own made of it, by package context
			}
			func() {
				defer func() { _ = recover() }()
				_ = c.call(brokenContext{context.Background()}, s)
			}()
		}
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		for _, c := range everyCall {
			if err := c.call(ctx, s); err != nil && !errors.Is(err, rdserr.ErrCanceled) {
				t.Errorf("%s: %v", c.op, err)
			}
		}
		let()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}, WithOutcomes())
}
