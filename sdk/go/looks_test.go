//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// lookedAt is a context that ends when it is looked at for the last of so many times, by
// whoever asks for its error or for its end.
type lookedAt struct {
	context.Context
	end  context.CancelFunc
	left atomic.Int64
}

func endsAtLook(t *testing.T, n int) *lookedAt {
	c := &lookedAt{}
	c.Context, c.end = context.WithCancel(testContext(t))
	t.Cleanup(c.end)
	c.left.Store(int64(n))
	return c
}

func (c *lookedAt) look() {
	if c.left.Add(-1) == 0 {
		c.end()
	}
}

func (c *lookedAt) Err() error { c.look(); return c.Context.Err() }

func (c *lookedAt) Done() <-chan struct{} { c.look(); return c.Context.Done() }

// ended reports whether it has been looked at often enough.
func (c *lookedAt) ended() bool { return c.left.Load() <= 0 }

// TestEndsAtEveryLook: wherever its context ends, a call has done what it is for, or says
// that it was cancelled and by which call; and the next one, with a context that does not end,
// gets what it asks for.
func TestEndsAtEveryLook(t *testing.T) {
	each := func(t *testing.T, op string, call func(ctx context.Context) error) {
		t.Helper()
		for n := 1; ; n++ {
			ctx := endsAtLook(t, n)
			err := waitErr(t, goErr(func() error { return call(ctx) }))
			if err != nil {
				o, ok := errors.AsType[*OpError](err)
				if !ok || o.Op != op || !errors.Is(err, rdserr.ErrCanceled) || !errors.Is(err, context.Canceled) {
					t.Errorf("%s, its context ended at look %d: %v", op, n, err)
				}
			}
			if err := waitErr(t, goErr(func() error { return call(testContext(t)) })); err != nil {
				t.Fatalf("%s, after one whose context ended at look %d: %v", op, n, err)
			}
			if !ctx.ended() {
				if n == 1 || err != nil {
					t.Errorf("%s looked at its context %d times and said %v: this shows nothing", op, n-1, err)
				}
				return
			}
		}
	}
	bind := func(c *Client) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			s, err := c.Bind(ctx, netip.AddrPortFrom(localAddr.Addr(), 0))
			if err == nil {
				return s.Close()
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if s != nil || len(c.sockets) > 0 {
				t.Errorf("bind failed and left %v of %d sockets", s, len(c.sockets))
			}
			return err
		}
	}
	t.Run("rings", func(t *testing.T) {
		d := newRingDaemon(t)
		s := d.bindRing(localAddr)
		to := s.LocalAddr()
		each(t, "bind", bind(d.dial()))
		each(t, "bind", bind(d.dial(WithFrontEnd(Rings))))
		each(t, "send", func(ctx context.Context) error { return s.Send(ctx, to, []byte("x")) })
	})
	t.Run("grpc", func(t *testing.T) {
		d := newFakeDaemon(t)
		go func() { // ends with the daemon
			for st := range d.streams {
				if m, ok := <-st.in; ok && m.HasBind() {
					b := &rdsdv1.ServerMessage{}
					b.SetBound(bound(m.GetBind()))
					_ = st.stream.Send(b)
				}
				st.answerClose()
			}
		}()
		c, err := Dial(d.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); d.stop(); close(d.streams) })
		each(t, "bind", bind(c))
	})
}
