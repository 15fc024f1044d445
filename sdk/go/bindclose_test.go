package rdsd

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// onlySocket is the socket that the client has, once it has one.
func onlySocket(t *testing.T, c *Client) *Socket {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		for s := range c.sockets {
			c.mu.Unlock()
			return s
		}
		c.mu.Unlock()
		if time.Now().After(end) {
			t.Fatal("no socket is being bound")
		}
	}
}

// Close ends a Bind that the daemon does not answer.
func TestCloseBesideBind(t *testing.T) {
	d := newFakeDaemon(t)
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	binding := goErr(func() error { _, err := c.Bind(context.Background(), localAddr); return err })
	d.accept()
	if err := waitErr(t, goErr(c.Close)); err != nil {
		t.Error(err)
	}
	if err := waitErr(t, binding); !errors.Is(err, rdserr.ErrClosed) || !strings.Contains(err.Error(), "the client is closed") {
		t.Errorf("bind: %v", err)
	}
}

// Close ends a Request whose reply port is being bound.
func TestCloseBesideRequest(t *testing.T) {
	d, c, s, st := bindFake(t)
	asked := goErr(func() error { _, err := s.Request(context.Background(), peerAddr, nil); return err })
	d.accept()
	st.answerClose()
	if err := waitErr(t, goErr(c.Close)); err != nil {
		t.Error(err)
	}
	wantErr(t, waitErr(t, asked), rdserr.ErrClosed)
}

// Whoever closes while another does waits for the daemon too.
func TestCloseBesideClose(t *testing.T) {
	_, c, s, st := bindFake(t)
	done := make(chan error, 4)
	for _, end := range []func() error{s.Close, s.Close, c.Close, c.Close} {
		go func() { done <- end() }()
		time.Sleep(10 * time.Millisecond)
	}
	select {
	case <-done:
		t.Fatal("Close returned while the daemon had the port")
	case <-time.After(300 * time.Millisecond):
	}
	st.answerClose()
	for range cap(done) {
		if err := waitErr(t, done); err != nil {
			t.Error(err)
		}
	}
}

// The link may be there when the socket is over: it is let go of, and Bind says why.
func TestOverWhileBinding(t *testing.T) {
	d := newFakeDaemon(t)
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	binding := goErr(func() error { _, err := c.Bind(context.Background(), localAddr); return err })
	st, b := d.accept()
	s := onlySocket(t, c)
	s.mu.Lock()
	s.finishLocked(rdserr.ErrClosed)
	s.mu.Unlock()
	st.sendBound(bound(b))
	wantErr(t, waitErr(t, binding), rdserr.ErrClosed)
	select {
	case <-st.gone:
	case <-time.After(patience):
		t.Error("the stream goes on")
	}
	if err := waitErr(t, goErr(c.Close)); err != nil {
		t.Error(err)
	}
}

// A socket is to be found before it has a front end.
func TestCloseBeforeTheFrontEnd(t *testing.T) {
	s := &Socket{client: &Client{}, ended: make(chan struct{}), up: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.outcomes.init()
	close(s.ended)
	if err := s.Close(); err != nil || !s.isLost() || s.ctx.Err() == nil {
		t.Errorf("%v, over: %v", err, s.over)
	}
}

// Close ends whatever step a Bind is at.
func TestCloseAtAnyStepOfBind(t *testing.T) {
	d := newFakeDaemon(t)
	ctx := t.Context()
	go func() {
		for {
			var st *fakeStream
			select {
			case st = <-d.streams:
			case <-ctx.Done():
				return
			}
			if in, ok := <-st.in; ok {
				m := &rdsdv1.ServerMessage{}
				m.SetBound(bound(in.GetBind()))
				_ = st.stream.Send(m) // the client may be gone
			}
			st.answerClose()
		}
	}()
	for range 300 {
		c, err := Dial(d.path)
		if err != nil {
			t.Fatal(err)
		}
		binding := goErr(func() error { _, err := c.Bind(context.Background(), localAddr); return err })
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		if err := waitErr(t, goErr(c.Close)); err != nil {
			t.Fatal(err)
		}
		if err := waitErr(t, binding); err != nil && !isClosed(err) {
			t.Fatal(err)
		}
	}
}
