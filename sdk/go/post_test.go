package rdsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

const (
	testCreditBytes     = 64 << 10
	testCreditDatagrams = 100
)

// bindClear binds a socket with credit whose way to peerAddr is clear.
func bindClear(t *testing.T, opts ...BindOption) (*fakeDaemon, *Socket, *fakeStream) {
	t.Helper()
	d, _, s, st := bindFakeAs(t, grantCredit, opts...)
	makeClear(t, s, st, peerAddr)
	return d, s, st
}

func grantCredit(b *rdsdv1.Bound) {
	b.SetSendCreditBytes(testCreditBytes)
	b.SetSendCreditDatagrams(testCreditDatagrams)
}

// TestCreditLeavesRoom: what may be posted unasked is what the daemon gives, and of the
// window a quarter at most, for those that wait for their answers need the rest.
func TestCreditLeavesRoom(t *testing.T) {
	for window, want := range map[uint64]int{4 << 20: testCreditBytes, 4 * testCreditBytes: testCreditBytes, 4000: 1000} {
		_, _, s, st := bindFakeAs(t, func(b *rdsdv1.Bound) { grantCredit(b); b.SetSendWindowBytes(window) })
		if got := streamOf(s).sess.creditBytes; got != want {
			t.Errorf("a window of %d bytes: credit for %d, want %d", window, got, want)
		}
		st.answerClose()
	}
}

// makeClear makes the two sends that are answered before those that are not: with the
// second one the socket asks for news of congestion.
func makeClear(t *testing.T, s *Socket, st *fakeStream, dst netip.AddrPort) {
	t.Helper()
	for range 2 {
		done := goErr(func() error { return s.Send(testContext(t), dst, []byte("asked")) })
		m := st.next()
		if m.WhichBody() == rdsdv1.ClientMessage_Monitor_case {
			if !m.GetMonitor().GetSetEvents() || !m.GetMonitor().GetClearEvents() || m.GetMonitor().GetMask() != 0 {
				t.Errorf("monitor %v", m)
			}
			m = st.next()
		}
		if b := m.GetSend(); b.GetWait() {
			t.Errorf("the first sends wait for room: %v", b)
		} else {
			st.sendResult(b)
		}
		if err := waitErr(t, done); err != nil {
			t.Fatal(err)
		}
	}
}

func (st *fakeStream) sendCongested(dst netip.AddrPort, on bool) {
	st.t.Helper()
	c := &rdsdv1.CongestionChange{}
	c.SetDestination(endpointToProto(dst))
	c.SetCongested(on)
	ev := &rdsdv1.CongestionEvent{}
	ev.SetChange([]*rdsdv1.CongestionChange{c})
	m := &rdsdv1.ServerMessage{}
	m.SetCongestion(ev)
	st.send(m)
}

// untilWay waits until the socket has heard how dst is.
func untilWay(t *testing.T, s *Socket, dst netip.AddrPort, want way) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got := streamOf(s).ways[dst]
		s.mu.Unlock()
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("way %d, want %d", got, want)
		}
	}
}

// untilNothingPosted waits until every account of posted datagrams is zero.
func untilNothingPosted(t *testing.T, s *Socket) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		st := streamOf(s)
		p, slow := st.posts, 0
		if st.sess != nil {
			slow = st.sess.slow
		}
		s.mu.Unlock()
		if p.bytes == 0 && p.datagrams == 0 && p.batches == 0 && p.queued == 0 && slow == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left: %+v, %d slow", p, slow)
		}
	}
}

func send(t *testing.T, s *Socket, dst netip.AddrPort, payload string) uint64 {
	t.Helper()
	tag, err := s.SendTag(testContext(t), dst, []byte(payload))
	if err != nil {
		t.Fatalf("%s: %v", payload, err)
	}
	return tag
}

// Without credit, which an older daemon does not grant, every send is answered.
func TestNoCreditFromAnOldDaemon(t *testing.T) {
	_, _, s, st := bindFake(t)
	for range 4 {
		done := goErr(func() error { return s.Send(testContext(t), peerAddr, []byte("x")) })
		b := st.nextSend()
		select {
		case err := <-done:
			t.Fatalf("returned without an answer: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		st.sendResult(b)
		if err := waitErr(t, done); err != nil {
			t.Fatal(err)
		}
	}
}

// What is posted goes without an answer, in order, gathered while two batches have none,
// and never beyond the credit.
func TestPostsWithinCredit(t *testing.T) {
	_, s, st := bindClear(t)
	for i := range testCreditDatagrams {
		send(t, s, peerAddr, fmt.Sprint(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := s.Send(ctx, peerAddr, nil); !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("one more than the credit: %v", err)
	}
	var got []string
	for len(got) < testCreditDatagrams {
		b := st.nextSend()
		if !b.GetWait() || b.GetTimeoutNs() != 0 {
			t.Errorf("a posted batch that does not wait: %v", b)
		}
		p := b.GetPayload()
		for _, l := range b.GetLength() {
			got = append(got, string(p[:l]))
			p = p[l:]
		}
		st.sendResult(b)
	}
	for i, g := range got {
		if g != fmt.Sprint(i) {
			t.Fatalf("datagram %d is %s", i, g)
		}
	}
	untilNothingPosted(t, s)
	send(t, s, peerAddr, "again")
	st.sendResult(st.nextSend())
	untilNothingPosted(t, s)
}

// A batch by credit, of which the daemon refuses some: each has one outcome, and the next
// send there is answered again.
func TestRefusalIsAnOutcome(t *testing.T) {
	_, s, st := bindClear(t, WithOutcomes())
	ds := make([]Datagram, 4)
	for i := range ds {
		ds[i] = Datagram{Addr: peerAddr, Payload: []byte("x")}
	}
	if n, err := s.SendBatch(testContext(t), ds); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	b := st.nextSend()
	if b.GetFirstTag() != ds[0].Tag || !b.GetWantOutcomes() {
		t.Errorf("tags from %d on, want %d", b.GetFirstTag(), ds[0].Tag)
	}
	st.sendOutcome(ds[3].Tag, 1, rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED, "")
	st.sendResult(b, sendError(1, 1, rdserr.ErrNoMemory), sendError(2, 1, rdserr.ErrCanceled))
	st.sendOutcome(ds[0].Tag, 1, rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED, "")
	want := map[uint64]OutcomeKind{ds[0].Tag: Delivered, ds[1].Tag: Failed, ds[2].Tag: Cancelled, ds[3].Tag: Delivered}
	for o, err := range s.Outcomes(testContext(t)) {
		if err != nil {
			t.Fatalf("%v; left %v", err, want)
		}
		if want[o.Tag] != o.Kind || o.Kind != Delivered && o.Reason == "" {
			t.Errorf("%+v, want %v", o, want[o.Tag])
		}
		if delete(want, o.Tag); len(want) == 0 {
			break
		}
	}
	untilNothingPosted(t, s)
	untilWay(t, s, peerAddr, 0)
	done := goErr(func() error { return s.Send(testContext(t), peerAddr, nil) })
	st.sendResult(st.nextSend(), sendError(0, 1, rdserr.ErrHostDown))
	wantErr(t, waitErr(t, done), rdserr.ErrHostDown)
}

// A port that becomes congested: what is under way stays with the daemon and holds up
// nobody else, further sends there wait for their answers, until the port is clear.
func TestCongestionTakesCreditBack(t *testing.T) {
	_, s, st := bindClear(t)
	first := goErr(func() error { return s.Send(testContext(t), otherAddr, nil) })
	st.sendResult(st.nextSend())
	if err := waitErr(t, first); err != nil {
		t.Fatal(err)
	}
	send(t, s, peerAddr, "one")
	send(t, s, peerAddr, "two")
	one, two := st.nextSend(), st.nextSend()
	st.sendCongested(peerAddr, true)
	untilWay(t, s, peerAddr, wayCongested)

	done := goErr(func() error { return s.Send(testContext(t), peerAddr, []byte("held")) })
	b := st.nextSend() // asks, though two posted ones have no result
	if b.GetWait() {
		t.Errorf("%v", b)
	}
	st.sendResult(b, sendError(0, 1, rdserr.ErrCongested))
	if b = st.nextSend(); !b.GetWait() {
		t.Errorf("%v", b)
	}
	for i := range 5 {
		send(t, s, otherAddr, fmt.Sprint("other", i))
		o := st.nextSend()
		if endpointFromProto(o.GetDestination()[0]) != otherAddr {
			t.Fatalf("%v", o)
		}
		st.sendResult(o)
	}
	select {
	case err := <-done:
		t.Fatalf("a send to a congested port returned: %v", err)
	default:
	}
	st.sendResult(one)
	st.sendResult(two)
	st.sendCongested(peerAddr, false)
	st.sendResult(b)
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	untilWay(t, s, peerAddr, wayClear)
	send(t, s, peerAddr, "clear")
	st.sendResult(st.nextSend())
	untilNothingPosted(t, s)
}

// A batch that stays without a result leaves its place to others also when nobody has told
// why, and who waited for credit asks the daemon.
func TestSlowWithoutNews(t *testing.T) {
	_, s, st := bindClear(t)
	for i := range testCreditDatagrams {
		send(t, s, peerAddr, fmt.Sprint(i))
	}
	done := goErr(func() error { return s.Send(testContext(t), otherAddr, nil) })
	var posted []*rdsdv1.SendBatch
	for n := 0; ; {
		b := st.nextSend()
		if !b.GetWait() {
			st.sendResult(b)
			break
		}
		posted = append(posted, b)
		if n += len(b.GetLength()); n > testCreditDatagrams {
			t.Fatalf("%d datagrams", n)
		}
	}
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	for _, b := range posted {
		st.sendResult(b)
	}
	untilNothingPosted(t, s)
}

// neverSlow has no batch of the session become slow, however long it has no result.
func neverSlow(t *testing.T, s *Socket) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		sess := streamOf(s).sess
		ran := sess.slowTimer
		sess.slowTimer = true // as if one ran already
		s.mu.Unlock()
		if !ran {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a timer for slow batches runs and runs")
		}
	}
}

// The daemon goes away: what was written is Unknown, once; what was not goes over the next
// stream, once, and before what is sent there.
func TestRestartBetweenPosts(t *testing.T) {
	d, s, st := bindClear(t, WithOutcomes())
	neverSlow(t, s) // else what gathers leaves after a while
	var tags []uint64
	for i := range 4 {
		tags = append(tags, send(t, s, peerAddr, fmt.Sprint(i)))
	}
	st.nextSend() // 0
	st.nextSend() // 1; 2 and 3 gather
	flushed := goErr(func() error { return s.Flush(testContext(t)) })
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // until the Flush is behind them
		s.mu.Lock()
		marked := len((*streamOf(s).tryq.front()).marks) > 0
		s.mu.Unlock()
		if marked || time.Now().After(end) {
			break
		}
	}
	d.stop()
	d.start()
	st, bind := d.accept()
	b := bound(bind)
	grantCredit(b)
	st.sendBound(b)
	again := st.nextSend()
	if string(again.GetPayload()) != "23" || !again.GetWait() || again.GetFirstTag() != tags[2] {
		t.Fatalf("over the next stream: %v", again)
	}
	st.sendResult(again)
	wantErr(t, waitErr(t, flushed), rdserr.ErrShutdown)
	st.sendOutcome(tags[2], 2, rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED, "")
	var got []Outcome
	for o, err := range s.Outcomes(testContext(t)) {
		if err != nil {
			t.Fatalf("%v after %v", err, got)
		}
		if !slices.Contains(tags, o.Tag) { // of those that were answered
			continue
		}
		if got = append(got, o); len(got) == len(tags) {
			break
		}
	}
	for i, want := range []OutcomeKind{Unknown, Unknown, Delivered, Delivered} {
		if got[i].Tag != tags[i] || got[i].Kind != want {
			t.Errorf("outcome %d: %+v, want %v of %d", i, got[i], want, tags[i])
		}
	}
	untilNothingPosted(t, s)
	makeClear(t, s, st, peerAddr) // nothing is known of the next daemon's ports
	st.answerClose()
}

// Flush waits for what was posted, and Cancel goes behind it and counts what it ends.
func TestFlushAndCancelBehindPosts(t *testing.T) {
	_, s, st := bindClear(t)
	for i := range 4 {
		send(t, s, peerAddr, fmt.Sprint(i))
	}
	flushed := goErr(func() error { return s.Flush(testContext(t)) })
	type answer struct {
		r   CancelResult
		err error
	}
	cancelled := make(chan answer, 1)
	go func() {
		r, err := s.CancelSentTo(testContext(t), peerAddr)
		cancelled <- answer{r, err}
	}()
	var bs []*rdsdv1.SendBatch
	for n := 0; n < 4; n += len(bs[len(bs)-1].GetLength()) {
		bs = append(bs, st.nextSend())
	}
	c := st.next()
	if c.WhichBody() != rdsdv1.ClientMessage_Cancel_case {
		t.Fatalf("behind the posts: %v", c)
	}
	st.sendResult(bs[0])
	for _, b := range bs[1:] {
		st.sendResult(b, sendError(0, uint32(len(b.GetLength())), rdserr.ErrCanceled))
	}
	st.sendCancelled(c, 1, 0)
	want := uint64(1) // by the daemon, which may have had any number of the four in the first batch
	for _, b := range bs[1:] {
		want += uint64(len(b.GetLength()))
	}
	if a := <-cancelled; a.err != nil || a.r.Cancelled != want {
		t.Errorf("cancelled %+v, want %d", a, want)
	}
	st.answerFlush()
	if err := waitErr(t, flushed); err != nil {
		t.Error(err)
	}
	untilNothingPosted(t, s)
}

// Close tells of what never reached the daemon, and TrySend always asks.
func TestCloseCancelsQueuedPosts(t *testing.T) {
	_, s, st := bindClear(t, WithOutcomes())
	tried := goErr(func() error { return s.TrySend(peerAddr, nil) })
	st.sendResult(st.nextSend(), sendError(0, 1, rdserr.ErrWouldBlock))
	wantErr(t, waitErr(t, tried), rdserr.ErrWouldBlock)
	var tags []uint64
	for i := range 4 {
		tags = append(tags, send(t, s, peerAddr, fmt.Sprint(i)))
	}
	st.nextSend()
	st.nextSend()
	st.answerClose()
	s.Close()
	got := map[uint64]OutcomeKind{}
	for o, err := range s.Outcomes(testContext(t)) {
		if err != nil {
			break
		}
		got[o.Tag] = o.Kind
	}
	for i, want := range []OutcomeKind{Unknown, Unknown, Cancelled, Cancelled} {
		if got[tags[i]] != want {
			t.Errorf("%d: %v, want %v", i, got[tags[i]], want)
		}
	}
	untilNothingPosted(t, s)
}

// A socket with very many destinations gives its credit up rather than have the daemon
// watch them all.
func TestManyDestinationsGiveCreditUp(t *testing.T) {
	_, s, st := bindClear(t)
	ds := make([]Datagram, maxWays)
	for i := range ds {
		ds[i] = Datagram{Addr: netip.AddrPortFrom(peerAddr.Addr(), uint16(7000+i)), Payload: []byte("x")}
	}
	done := goErr(func() error { _, err := s.SendBatch(testContext(t), ds); return err })
	st.sendResult(st.nextSend())
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	if m := st.next(); m.WhichBody() != rdsdv1.ClientMessage_Monitor_case || m.GetMonitor().GetSetEvents() {
		t.Errorf("got %v, want the end of the news", m)
	}
	done = goErr(func() error { return s.Send(testContext(t), peerAddr, nil) })
	b := st.nextSend()
	if b.GetWait() {
		t.Errorf("%v", b)
	}
	st.sendResult(b)
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	x := streamOf(s)
	x.mu.Lock()
	if n := len(x.ways); n > 1 {
		t.Errorf("%d destinations are still remembered", n)
	}
	x.mu.Unlock()
	// That was said once: further destinations are nothing new to the daemon.
	for i := range 3 {
		done = goErr(func() error {
			return s.Send(testContext(t), netip.AddrPortFrom(otherAddr.Addr(), uint16(100+i)), nil)
		})
		st.sendResult(st.nextSend())
		if err := waitErr(t, done); err != nil {
			t.Fatal(err)
		}
	}
}

// A batch joins the last posted one up to the limits of a batch, and not beyond them.
func TestJoinsUpToTheLimits(t *testing.T) {
	for _, c := range []struct {
		what     string
		n, bytes int // posted
		tag      uint64
		more, by int // that may join
		after    uint64
		want     bool
	}{
		{"as many bytes as there may be", 1, maxGatherBytes - maxJoinBytes, 0, 1, maxJoinBytes, 9, true},
		{"one more", 1, maxGatherBytes - maxJoinBytes + 1, 0, 1, maxJoinBytes, 9, false},
		{"too large to join", 1, 0, 0, 1, maxJoinBytes + 1, 9, false},
		{"as many datagrams as there may be", maxGatherDatagrams - 3, 0, 0, 3, 0, 9, true},
		{"one datagram more", maxGatherDatagrams - 2, 0, 0, 3, 0, 9, false},
		{"the next tag", 2, 0, 7, 1, 0, 9, true},
		{"a tag further on", 2, 0, 7, 1, 0, 10, false},
		{"the same tag", 2, 0, 7, 1, 0, 8, false},
	} {
		s, _ := bareStream()
		s.cfg.outcomes = c.tag != 0
		s.pushPostLocked(&batch{lengths: make([]uint32, c.n), bytes: c.bytes}, c.tag)
		if got := s.postJoinableLocked(c.more, c.by, c.after); (got != nil) != c.want {
			t.Errorf("%s: joins: %v", c.what, got != nil)
		}
	}
	s, _ := bareStream()
	if s.postJoinableLocked(1, 1, 1) != nil {
		t.Error("one joins nothing")
	}
}

// A batch that waits, of a later call, does not overtake what was posted and is not written.
func TestWaitingBehindPosts(t *testing.T) {
	s, sess := bareStream()
	sess.pending[1] = &batch{posted: true, lengths: []uint32{1}}
	sess.tries = maxTries
	s.pushPostLocked(&batch{lengths: []uint32{1}, bytes: 1}, 0)
	s.queueLocked(&batch{wait: true, lengths: []uint32{1}, bytes: 1}, newCall())
	if q := s.pickLocked(sess); q != nil {
		t.Fatalf("picked one of %d posted, %d waiting", s.tryq.len(), s.waitq.len())
	}
	sess.tries = 0
	if q := s.pickLocked(sess); q != &s.tryq {
		t.Error("not the posted one first")
	}
	s.tryq.pop()
	s.posts.queued = 0
	if q := s.pickLocked(sess); q != &s.waitq {
		t.Error("the waiting one does not follow")
	}
}

// A batch that waits for credit ends with its context: each datagram of it has failed with that.
func TestBatchThatWaitsForCreditEnds(t *testing.T) {
	_, s, st := bindClear(t)
	fill := make([]Datagram, testCreditDatagrams)
	for i := range fill {
		fill[i] = Datagram{Addr: peerAddr}
	}
	if n, err := s.SendBatch(testContext(t), fill); n != len(fill) || err != nil {
		t.Fatal(n, err)
	}
	first := st.nextSend()
	// Before the first batch counts as slow, and the daemon is asked.
	ctx, cancel := context.WithTimeout(testContext(t), slowAfter/5)
	defer cancel()
	n, err := s.SendBatch(ctx, []Datagram{{Addr: peerAddr}, {Addr: peerAddr}})
	be, ok := errors.AsType[*BatchError](err)
	if !ok || n != 0 || be.Total != 2 || len(be.Errors) != 2 || !errors.Is(be.Errors[1].Err, rdserr.ErrTimeout) {
		t.Errorf("%d are sent, %v", n, err)
	}
	st.sendResult(first)
}
