package rdsd

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

func TestCancelSentTo(t *testing.T) {
	_, _, s, st := bindFake(t)
	var got CancelResult
	done := goErr(func() (err error) { got, err = s.CancelSentTo(testContext(t), peerAddr); return err })
	c := st.next().GetCancel()
	answer := func(errno int32) {
		r := &rdsdv1.CancelResult{}
		r.SetId(c.GetId())
		r.SetCancelled(3)
		r.SetInFlight(2)
		r.SetErrno(errno)
		m := &rdsdv1.ServerMessage{}
		m.SetCancelResult(r)
		st.send(m)
	}
	answer(0)
	if err := waitErr(t, done); err != nil || got != (CancelResult{Cancelled: 3, InFlight: 2}) {
		t.Errorf("%+v %v", got, err)
	}
	done = goErr(func() (err error) { _, err = s.CancelSentTo(testContext(t), peerAddr); return err })
	c = st.next().GetCancel()
	answer(int32(rdserr.ErrFamily.Errno))
	wantErr(t, waitErr(t, done), rdserr.ErrFamily)
}

func TestFlush(t *testing.T) {
	_, _, s, st := bindFake(t)
	for _, errno := range []*rdserr.Error{nil, rdserr.ErrTimeout} {
		done := goErr(func() error { return s.Flush(testContext(t)) })
		f := st.next().GetFlush()
		if f.GetTimeoutNs() <= 0 || f.GetTimeoutNs() > int64(patience) {
			t.Errorf("timeout %d", f.GetTimeoutNs())
		}
		r := &rdsdv1.FlushResult{}
		r.SetId(f.GetId())
		if errno != nil {
			r.SetErrno(int32(errno.Errno))
		}
		m := &rdsdv1.ServerMessage{}
		m.SetFlushResult(r)
		st.send(m)
		err := waitErr(t, done)
		if errno == nil && err != nil {
			t.Error(err)
		} else if errno != nil {
			wantErr(t, err, errno, context.DeadlineExceeded)
		}
	}
}

func sendCongestion(st *fakeStream, freed uint64, changes ...CongestionChange) {
	e := &rdsdv1.CongestionEvent{}
	e.SetFreedMask(freed)
	var list []*rdsdv1.CongestionChange
	for _, c := range changes {
		m := &rdsdv1.CongestionChange{}
		m.SetDestination(endpointToProto(c.Addr))
		m.SetCongested(c.Congested)
		list = append(list, m)
	}
	e.SetChange(list)
	m := &rdsdv1.ServerMessage{}
	m.SetCongestion(e)
	st.send(m)
}

// Watching starts with the call, is asked of the daemon once for all watchers,
// and ends with the context of the last of them.
func TestWatchCongestion(t *testing.T) {
	d, _, s, st := bindFake(t, WithCongestionMask(0xff))
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	first := s.WatchCongestion(ctx)
	mon := st.next().GetMonitor()
	if mon.GetMask() != 0xff || !mon.GetClearEvents() || !mon.GetSetEvents() {
		t.Errorf("%v", mon)
	}
	second := s.WatchCongestion(ctx)
	st.wantIdle(s, "one Monitor is enough")

	sendCongestion(st, 1, CongestionChange{peerAddr, true})
	sendCongestion(st, 2, CongestionChange{otherAddr, true}, CongestionChange{peerAddr, false})
	st.wantIdle(s, "both events have been taken in")
	for ev, err := range first {
		if err != nil || ev.Freed != 3 || len(ev.Changes) != 2 ||
			ev.Changes[0] != (CongestionChange{otherAddr, true}) || ev.Changes[1] != (CongestionChange{peerAddr, false}) {
			t.Errorf("%+v %v", ev, err)
		}
		break
	}
	st.wantIdle(s, "the loop may be entered again")

	// Over a reconnection the watch is asked for again, and the watcher told to
	// look at everything.
	st.finish(rdserr.ErrShutdown)
	st2 := reaccept(d)
	if mon := st2.next().GetMonitor(); mon.GetMask() != 0xff {
		t.Errorf("%v", mon)
	}
	for ev, err := range second {
		if err != nil || ev.Freed != ^uint64(0) || len(ev.Changes) != 0 {
			t.Errorf("%+v %v", ev, err)
		}
		break
	}
	st2.wantIdle(s, "loops that were left watch on")
	cancel()
	if mon := st2.next().GetMonitor(); mon.GetMask() != 0 || mon.GetClearEvents() || mon.GetSetEvents() {
		t.Errorf("not switched off: %v", mon)
	}
}

func TestWatchEndsWithContext(t *testing.T) {
	_, _, s, _ := bindFake(t)
	ctx, cancel := context.WithCancel(context.Background())
	events := s.WatchCongestion(ctx)
	cancel()
	n := 0
	for _, err := range events {
		n++
		wantErr(t, err, rdserr.ErrCanceled)
	}
	if n != 1 {
		t.Errorf("%d rounds", n)
	}
}

// A loop that was left and entered again goes on: nothing in between is lost, and
// nothing is told twice.
func TestWatchIsRangedAgain(t *testing.T) {
	_, _, s, st := bindFake(t)
	ctx := testContext(t)
	events := s.WatchCongestion(ctx)
	st.next()
	next := func() (ev CongestionEvent, err error) {
		for ev, err = range events {
			break
		}
		return ev, err
	}
	for i := range uint64(3) {
		sendCongestion(st, 1<<i, CongestionChange{peerAddr, i%2 == 0})
		if ev, err := next(); err != nil || ev.Freed != 1<<i || len(ev.Changes) != 1 || ev.Changes[0].Congested != (i%2 == 0) {
			t.Errorf("loop %d: %+v %v", i, ev, err)
		}
	}
	waited := make(chan CongestionEvent)
	go func() {
		ev, _ := next()
		waited <- ev
	}()
	select {
	case ev := <-waited:
		t.Errorf("%+v, and nothing has happened", ev)
	case <-time.After(10 * time.Millisecond):
	}
	sendCongestion(st, 64)
	if ev := <-waited; ev.Freed != 64 || len(ev.Changes) != 0 {
		t.Errorf("%+v", ev)
	}
	s.Close()
	_, err := next()
	wantErr(t, err, rdserr.ErrClosed)
	_, err = next()
	wantErr(t, err, rdserr.ErrClosed)
}

// bareWatcher is a watcher whose context never ends.
func bareWatcher() *watcher {
	return &watcher{wake: make(chan struct{}, 1), begin: func() func() bool { return func() bool { return true } }}
}

// watchedContext counts who waits for its end.
type watchedContext struct {
	context.Context
	n atomic.Int32
}

// Value hides that the context in it could be asked directly.
func (*watchedContext) Value(any) any { return nil }

func (c *watchedContext) AfterFunc(func()) func() bool {
	c.n.Add(1)
	return func() bool { c.n.Add(-1); return true }
}

// TestWatchesLetGoOfTheirContext: of very many watches, and of a socket that is over, nothing
// stays in a context that goes on.
func TestWatchesLetGoOfTheirContext(t *testing.T) {
	_, _, s, st := bindFake(t)
	ctx := &watchedContext{Context: testContext(t)}
	first := s.WatchCongestion(ctx)
	if n := ctx.n.Load(); n != 1 {
		t.Fatalf("%d wait for the end of a context with one watch", n)
	}
	for range 2 * maxIdleWatches {
		s.WatchCongestion(ctx)
	}
	for range first { // it was given up, and watches again
		if n := ctx.n.Load(); n != maxIdleWatches+1 {
			t.Errorf("%d wait for the end of the context, want %d and the one with a loop", n, maxIdleWatches)
		}
		break
	}
	if n := ctx.n.Load(); n != maxIdleWatches {
		t.Errorf("%d wait for the end of the context, want %d", n, maxIdleWatches)
	}
	st.answerClose()
	s.Close()
	s.WatchCongestion(ctx)
	for _, err := range first {
		wantErr(t, err, rdserr.ErrClosed)
	}
	if n := ctx.n.Load(); n != 0 {
		t.Errorf("%d wait for the end of the context of a closed socket's watches", n)
	}
}

// Of very many watches without a loop the oldest is given up; the loop that comes
// after all is told to look at everything, and watches again.
func TestWatchThatWasGivenUp(t *testing.T) {
	_, _, s, st := bindFake(t)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	first := s.WatchCongestion(ctx)
	st.next()
	inLoop, release := make(chan struct{}), make(chan struct{})
	held := s.WatchCongestion(ctx)
	go func() {
		for range held {
			close(inLoop)
			<-release
			break
		}
	}()
	sendCongestion(st, 2)
	<-inLoop
	for range maxIdleWatches {
		s.WatchCongestion(ctx)
	}
	if n := len(s.watch.list); n != maxIdleWatches+1 {
		t.Errorf("%d watches, want %d and the one with a loop", n, maxIdleWatches)
	}
	for ev, err := range first {
		if err != nil || ev.Freed != ^uint64(0) {
			t.Errorf("%+v %v", ev, err)
		}
		break
	}
	close(release)
	sendCongestion(st, 4)
	for ev, err := range first {
		if err != nil || ev.Freed != 4 {
			t.Errorf("%+v %v", ev, err)
		}
		break
	}
	cancel()
	if mon := st.next().GetMonitor(); mon.GetSetEvents() {
		t.Errorf("not switched off: %v", mon)
	}
}

func TestChangesAreBounded(t *testing.T) {
	ws := &watchers{}
	w := bareWatcher()
	ws.add(w, nil)
	for i := range maxChanges + 10 {
		w.note(CongestionChange{Addr: portOf(i), Congested: true})
	}
	ev, ok, _ := ws.take(w)
	_ = ok
	if len(ev.Changes) != maxChanges || ev.Freed != ^uint64(0) || ev.Changes[maxChanges-1].Addr != portOf(maxChanges+9) {
		t.Errorf("%d changes, freed %x", len(ev.Changes), ev.Freed)
	}
}

// An answer that has come is the answer, however soon the link or the context ends behind it.
func TestAnswerBeforeTheEnd(t *testing.T) {
	for _, what := range []string{"the context", "the link"} {
		s, sess := bareStream()
		s.fe, s.link, s.replies = s, sess, map[uint64]chan *rdsdv1.ServerMessage{}
		sess.closed = true // nothing is written
		for i := range 300 {
			ctx, cancel := context.WithCancel(context.Background())
			sess.down = make(chan struct{})
			m, err := s.ask(ctx, func(id uint64) *rdsdv1.ClientMessage {
				r := &rdsdv1.FlushResult{}
				r.SetId(id)
				m := &rdsdv1.ServerMessage{}
				m.SetFlushResult(r)
				read := goErr(func() error { s.answered(m); return nil })
				s.mu.Unlock()
				<-read
				s.mu.Lock()
				if what == "the link" {
					close(sess.down)
				} else {
					cancel()
				}
				return &rdsdv1.ClientMessage{}
			})
			if err != nil || m.GetFlushResult().GetId() == 0 {
				t.Fatalf("end of %s, call %d: %v, %v", what, i, m, err)
			}
			cancel()
		}
	}
}
