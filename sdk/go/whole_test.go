//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// TestVerdicts: each edge of what a send that waits for room may do.
func TestVerdicts(t *testing.T) {
	type given struct {
		bytes, datagrams       int // of the send
		usedBytes, usedCount   int // of the credit of 1,000 bytes and 10 datagrams
		batches, slow, waiters int
		tries, queued          int
		congested              bool
	}
	for what, x := range map[string]struct {
		given
		want verdict
	}{
		"the first":               {given{bytes: 1, datagrams: 1}, mayPost},
		"all of the bytes":        {given{bytes: 1000, datagrams: 1}, mayPost},
		"a byte more":             {given{bytes: 1001, datagrams: 1}, mustAsk},
		"all of the datagrams":    {given{bytes: 1, datagrams: 10}, mayPost},
		"one more":                {given{bytes: 1, datagrams: 11}, mustAsk},
		"the rest of the bytes":   {given{bytes: 400, datagrams: 1, usedBytes: 600, usedCount: 1}, mayPost},
		"more than is left":       {given{bytes: 401, datagrams: 1, usedBytes: 600, usedCount: 1}, mayLate},
		"the rest of the numbers": {given{bytes: 1, datagrams: 4, usedBytes: 6, usedCount: 6}, mayPost},
		"one more than is left":   {given{bytes: 1, datagrams: 5, usedBytes: 6, usedCount: 6}, mayLate},
		"the last batch":          {given{bytes: 1, datagrams: 1, batches: 3}, mayPost},
		"a batch more":            {given{bytes: 1, datagrams: 1, batches: 4}, mayLate},
		"behind a slow one":       {given{bytes: 1, datagrams: 1, batches: 4, slow: 1}, mustAsk},
		"beside a slow one":       {given{bytes: 1, datagrams: 1, slow: 1}, mayPost},
		"behind one that waits":   {given{bytes: 1, datagrams: 1, waiters: 1}, mustAsk},
		"where it is congested":   {given{bytes: 1, datagrams: 1, congested: true}, mustAsk},
		"behind a try":            {given{bytes: 1, datagrams: 1, tries: 1}, mustAsk},
		"behind posted ones":      {given{bytes: 1, datagrams: 1, tries: 2, queued: 2}, mayPost},
	} {
		s := newStream(&Socket{})
		s.outcomes.init()
		s.sess = &session{creditBytes: 1000, creditDatagrams: 10, windowBatches: 4 * postShare, watching: true, slow: x.slow}
		s.ways = map[netip.AddrPort]way{peerAddr: wayClear}
		if x.congested {
			delete(s.ways, peerAddr)
		}
		if x.waiters > 0 {
			s.waiters[peerAddr] = x.waiters
		}
		for range x.tries {
			s.tryq.push(&batch{})
		}
		s.posts.queued, s.posts.bytes, s.posts.datagrams, s.posts.batches = x.queued, x.usedBytes, x.usedCount, x.batches
		if got := s.postVerdictLocked([]netip.AddrPort{peerAddr}, x.datagrams, x.bytes, 1); got != x.want {
			t.Errorf("%s: verdict %d, want %d", what, got, x.want)
		}
	}
}

// TestGivenUpWithoutCredit: a send that waits for credit ends with its context, and says so.
func TestGivenUpWithoutCredit(t *testing.T) {
	_, s, st := bindClear(t)
	defer st.answerClose()
	str := streamOf(s)
	str.mu.Lock()
	str.posts.bytes = str.sess.creditBytes // as if it were all spent
	str.mu.Unlock()
	ctx, cancel := context.WithCancel(testContext(t))
	done := goErr(func() error { return s.Send(ctx, peerAddr, []byte("x")) })
	eventually(t, "the send waits for credit", func() bool {
		str.mu.Lock()
		defer str.mu.Unlock()
		return str.posts.room != nil
	})
	cancel()
	err := waitErr(t, done)
	if op, ok := errors.AsType[*OpError](err); !ok || op.Undecided || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	str.mu.Lock()
	str.posts.bytes = 0
	str.mu.Unlock()
}

// TestGivenUpInFlight: who gives up a datagram that the daemon has is told that it is undecided,
// and nothing of a daemon that is away, for it is there.
func TestGivenUpInFlight(t *testing.T) {
	_, _, s, st := bindFake(t)
	defer st.answerClose()
	ctx, cancel := context.WithCancel(testContext(t))
	done := goErr(func() error { return s.Send(ctx, peerAddr, []byte("x")) })
	st.nextSend()
	cancel()
	err := waitErr(t, done)
	if op, ok := errors.AsType[*OpError](err); !ok || !op.Undecided || op.Err.Error() != errCanceled.Error() {
		t.Errorf("%v", err)
	}
}

// TestBatchThatIsSentAgain: the second attempt at what found no room fails with the socket or
// with its context: each datagram has its error, which stops those behind it, and of one that
// never left nothing is undecided.
func TestBatchThatIsSentAgain(t *testing.T) {
	_, _, s, st := bindFake(t)
	defer st.answerClose()
	str := streamOf(s)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	over := error(rdserr.ErrClosed)
	for what, x := range map[string]struct {
		over error
		want error
	}{"over": {over, over}, "ended": {nil, context.Canceled}} {
		ds := []Datagram{{Addr: peerAddr}, {Addr: otherAddr}, {Addr: peerAddr}}
		r := batchRun{s: str, batchErrors: batchErrors{op: "send", ds: ds}}
		str.mu.Lock()
		was, sess := str.over, str.sess
		str.over = x.over
		if x.over == nil {
			str.sess = nil // so that nothing is written
		}
		str.mu.Unlock()
		stop := r.wait(ended, []sendErr{{index: 0, count: 1}, {index: 2, count: 1}})
		str.mu.Lock()
		str.over, str.sess = was, sess
		str.mu.Unlock()
		if !errors.Is(stop, x.want) {
			t.Errorf("%s: stops with %v", what, stop)
		}
		n, err := r.result()
		be, ok := errors.AsType[*BatchError](err)
		if n != 1 || !ok || len(be.Errors) != 2 || be.Errors[0].Index != 0 || be.Errors[1].Index != 2 {
			t.Fatalf("%s: %d were accepted, %v", what, n, err)
		}
		for _, e := range be.Errors {
			if op, ok := errors.AsType[*OpError](e.Err); !ok || op.Undecided || !errors.Is(op, x.want) {
				t.Errorf("%s: datagram %d: %+v", what, e.Index, op)
			}
		}
	}
}

// TestOneWriterAtATime: who has a message to write is the writer, until it says otherwise, over a
// stream and over rings.
func TestOneWriterAtATime(t *testing.T) {
	s := newStream(&Socket{})
	s.outcomes.init()
	s.sess = &session{wake: make(chan struct{}, 1)}
	s.sess.ctl.push(&rdsdv1.ClientMessage{})
	s.sess.ctl.push(&rdsdv1.ClientMessage{})
	if m, sess := s.kickLocked(); m == nil || sess != s.sess || !sess.writing {
		t.Errorf("the first has %v to write", m)
	}
	if m, sess := s.kickLocked(); m != nil || sess != nil {
		t.Errorf("the second writes %v beside it", m)
	}

	l := linkOf(newRingDaemon(t).bindRing(localAddr))
	l.r.mu.Lock()
	for range 3 {
		m := &rdsdv1.ClientMessage{}
		m.SetFlush(&rdsdv1.Flush{})
		l.ctl.push(m)
		if l.writeLocked(); !l.writing {
			t.Error("nobody is noted as the writer")
		}
	}
	l.r.mu.Unlock()
	eventually(t, "all is written", func() bool {
		l.r.mu.Lock()
		defer l.r.mu.Unlock()
		return !l.writing && l.ctl.len() == 0
	})
}

// TestSpinning: after so many looks for nothing in a row calls look for an eighth as long, but for
// one in many; after so many hits four times as long; one of the other kind begins anew.
func TestSpinning(t *testing.T) {
	const d = 800 * time.Microsecond
	for _, x := range []struct {
		before      int32
		missed, hit int32
		budget      time.Duration
	}{
		{0, 1, -1, d},
		{1, 2, -1, d},
		{2, 3, -1, d},
		{-1, 1, -2, d},
		{-(manyHits - 1), 1, -manyHits, d},
		{-manyHits, 1, -manyHits, 4 * d},
		{manyMisses - 1, manyMisses, -1, d},
		{manyMisses, manyMisses + 1, -1, d},
		{manyMisses + 1, manyMisses + 2, -1, d / 8},
		{2*manyMisses - 1, 2 * manyMisses, -1, d / 8},
		{2 * manyMisses, 2*manyMisses + 1, -1, d},
	} {
		var p waitList
		p.misses.Store(x.before)
		if got := p.budget(d, 0); got != x.budget {
			t.Errorf("after %d: looks for %v, want %v", x.before, got, x.budget)
		}
		p.spun(false)
		if got := p.misses.Load(); got != x.missed {
			t.Errorf("after %d and a miss: %d, want %d", x.before, got, x.missed)
		}
		p.misses.Store(x.before)
		p.spun(true)
		if got := p.misses.Load(); got != x.hit {
			t.Errorf("after %d and a hit: %d, want %d", x.before, got, x.hit)
		}
	}
}

// TestLooksForAnswers: waits that ended a little later than a look does, behind pauses, are looked through; without pauses,
// or when they end later than that, none is.
func TestLooksForAnswers(t *testing.T) {
	const d = 50 * time.Microsecond
	var p waitList
	now := time.Hour
	wait := func(pause, took time.Duration) (looked time.Duration) {
		now += pause
		looked = p.budget(d, now)
		p.over(now, now+took, d)
		now += took
		return looked
	}
	for i := range 2 * mostAnswers {
		want := d
		if i >= expectAt {
			want = longer * d
		}
		took := answerIn * d // the latest that is one
		if i%2 == 1 {
			took = d + 1 // the earliest
		}
		if got := wait(longer*d, took); got != want {
			t.Errorf("after %d answers: looks for %v, want %v", i, got, want)
		}
	}
	for range 3 {
		if got := wait(longer*d-1, 2*d); got != d {
			t.Errorf("without a pause: looks for %v", got)
		}
		if got := wait(longer*d, d); got != longer*d {
			t.Errorf("behind answers that came sooner: looks for %v", got)
		}
	}
	for i := range 3 { // 8 of them, less two each time
		if got := wait(longer*d, answerIn*d+1); got != longer*d {
			t.Errorf("after %d that took longer: looks for %v", i, got)
		}
	}
	for range 2 * mostAnswers {
		if got := wait(longer*d, answerIn*d+1); got != d {
			t.Errorf("where none comes: looks for %v", got)
		}
	}
	for i := range expectAt {
		if got := wait(longer*d, 2*d); got != d {
			t.Errorf("after %d answers again: looks for %v", i, got)
		}
	}
	if got := wait(longer*d, 2*d); got != longer*d {
		t.Errorf("after answers again: looks for %v", got)
	}
}

// TestPass: who sleeps again and again goes through Go's scheduler as often as its monitor asks for, and not each time.
func TestPass(t *testing.T) {
	var p waitList
	p.pass()
	first := p.passed.Load()
	if first == 0 {
		t.Fatal("the first sleep does not pass")
	}
	for p.passed.Load() == first {
		p.pass()
	}
	if after := p.passed.Load() - first; after < int64(passEvery) {
		t.Errorf("again after %v", time.Duration(after))
	}
}

// TestSpareIsBounded: of what is kept to be used again there is no more than there may be.
func TestSpareIsBounded(t *testing.T) {
	var s trainStore
	for range maxSpare + 2 {
		s.putTrain(&train{})
		s.putHeld(&held{})
		s.putMemory(make([]byte, 1))
	}
	s.putHeld(&held{trains: make([]*train, maxSpare+1)})
	if len(s.trains) != maxSpare || len(s.held) != maxSpare || len(s.memory) != maxSpareMemory {
		t.Errorf("%d trains, %d holds, %d pieces of memory are kept", len(s.trains), len(s.held), len(s.memory))
	}
	for n, want := range map[int]bool{0: false, 1: true, 2: true} {
		p := &replyPorts{list: make([]*replyPort, n)}
		if p.used() != want {
			t.Errorf("with %d ports one may become free: %v", n, !want)
		}
	}
}
