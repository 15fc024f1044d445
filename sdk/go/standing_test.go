package rdsd

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// standing is a listener whose connections read nothing while it is held.
type standing struct {
	net.Listener
	held sync.RWMutex
}

type standingConn struct {
	net.Conn
	l *standing
}

func (l *standing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return standingConn{c, l}, err
}

func (c standingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.l.held.RLock()
	defer c.l.held.RUnlock()
	return n, err
}

// passing is a context that ends behind the first look at it.
type passing struct {
	context.Context
	done   chan struct{} // closed
	looked atomic.Bool
}

func (c *passing) Done() <-chan struct{} { return c.done }

func (c *passing) Err() error {
	if !c.looked.Swap(true) {
		return nil
	}
	return context.DeadlineExceeded
}

// TestCallsBesideAStandingDaemon: calls whose context ends, however many, leave nothing to be written behind, and
// none stays past its context because of those before it: more of them than a stream takes unread.
func TestCallsBesideAStandingDaemon(t *testing.T) {
	l := &standing{}
	d := newFakeDaemonBehind(t, func(in net.Listener) net.Listener { l.Listener = in; return l })
	_, _, s, st := bindTo(t, d, grantCredit)
	makeClear(t, s, st, peerAddr)
	if err := s.Send(testContext(t), peerAddr, []byte("posted")); err != nil {
		t.Fatal(err)
	}
	posted := st.nextSend()
	l.held.Lock()
	release := sync.OnceFunc(l.held.Unlock)
	defer release()
	done := make(chan struct{})
	close(done)
	calls := map[string]func(ctx context.Context) error{
		"congested": func(ctx context.Context) error { _, err := s.Congested(ctx, peerAddr); return err },
		"peek":      func(ctx context.Context) error { _, _, err := s.PeekSize(ctx); return err },
		"flush":     s.Flush,
		"cancel":    func(ctx context.Context) error { _, err := s.CancelSentTo(ctx, peerAddr); return err },
		"watch": func(ctx context.Context) error {
			for _, err := range s.WatchCongestion(ctx) {
				return err
			}
			return nil
		},
	}
	for what, call := range calls {
		const many = 6000
		begun, ended := make(chan int, many), make(chan error, 1)
		go func() {
			defer close(begun)
			for i := range many {
				begun <- i
				ctx := &passing{Context: context.Background(), done: done}
				ctx.looked.Store(what == "flush" || what == "watch") // which look later
				if err := call(ctx); !errors.Is(err, rdserr.ErrTimeout) {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(3 * patience):
			t.Fatalf("%s: call %d does not end with its context", what, len(begun))
		}
	}
	s.mu.Lock()
	left, marks := s.fe.(*stream).sess.ctl.len(), 0
	streamOf(s).postedLocked(func(b *batch) { marks += len(b.marks) })
	s.mu.Unlock()
	if left > 2 {
		t.Errorf("%d messages are to be written, want a Cancel and a Monitor", left)
	}
	if marks > 0 {
		t.Errorf("%d calls that have ended wait for a posted batch", marks)
	}
	release()
	st.sendResult(posted)
	flushed := goErr(func() error { return s.Flush(testContext(t)) })
	go func() {
		for m := range st.in { // until the stream ends
			if m.WhichBody() == rdsdv1.ClientMessage_Flush_case {
				r := &rdsdv1.FlushResult{}
				r.SetId(m.GetFlush().GetId())
				a := &rdsdv1.ServerMessage{}
				a.SetFlushResult(r)
				_ = st.stream.Send(a)
			}
		}
	}()
	if err := waitErr(t, flushed); err != nil {
		t.Errorf("a Flush of the daemon that goes on: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := streamOf(s).sess.ctlAt.unread(); n >= inlineBytes {
		t.Errorf("%d bytes count as unread", n)
	}
}
