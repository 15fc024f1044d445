package rdsd

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

func bareStream() (*stream, *session) {
	s := &stream{Socket: &Socket{}, waiters: map[netip.AddrPort]int{}}
	sess := &session{st: s, pending: map[uint64]*batch{}, windowBytes: 4 << 20, windowBatches: 8, wake: make(chan struct{}, 1)}
	s.sess = sess
	return s, sess
}

// TestWindowEdges: what fits exactly goes, and a byte or a batch more waits.
func TestWindowEdges(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		pending, bytes     int // batches without a result, and their bytes
		waiting, waitBytes int // of these, waiting ones
		windowBatches      int
		b                  batch
		want               bool
	}{
		{0, 0, 0, 0, 8, batch{bytes: 5 * mib}, true}, // larger than the window, alone
		{0, 0, 0, 0, 8, batch{bytes: 5 * mib, wait: true}, true},
		{1, 1, 0, 0, 8, batch{bytes: 5 * mib}, false},
		{1, mib, 0, 0, 8, batch{bytes: 3 * mib}, true}, // the whole window
		{1, mib, 0, 0, 8, batch{bytes: 3*mib + 1}, false},
		{7, 7, 0, 0, 8, batch{bytes: 1}, true}, // the last batch
		{8, 8, 0, 0, 8, batch{bytes: 1}, false},
		{1, mib, 0, 0, 8, batch{bytes: 3 * mib, wait: true}, true},        // the first that waits may take what there is
		{1, mib, 1, mib, 8, batch{bytes: 2 * mib, wait: true}, true},      // three quarters wait
		{1, mib, 1, mib, 8, batch{bytes: 2*mib + 1, wait: true}, false},   // more of the bytes than that
		{5, 5, 5, 5, 8, batch{bytes: 1, wait: true}, true},                // six of eight batches
		{6, 6, 6, 6, 8, batch{bytes: 1, wait: true}, false},               // more of the batches than that
		{6, 6, 6, 6, 8, batch{bytes: 1}, true},                            // which leaves room for what does not wait
		{1, 1, 1, 1, 1, batch{bytes: 1, wait: true}, false},               // one batch is the window
		{1, 1, 1, 1, 2, batch{bytes: 1, wait: true}, false},               // at least one may wait, of two no more
		{2, 2, 0, 0, 3, batch{bytes: 1, wait: true}, true},                // nothing waits yet
		{1, 1, 0, 0, 8, batch{bytes: 3*mib + 1, wait: true}, true},        // nor of the bytes
		{1, 3 * mib, 1, 3 * mib, 8, batch{bytes: 0, wait: true}, true},    // nothing more of the bytes
		{2, 4 * mib, 1, 3 * mib, 8, batch{bytes: 0}, true},                // the window is full, and this is nothing
		{2, 4 * mib, 1, 3 * mib, 8, batch{bytes: 1}, false},               // this is something
		{2, 4 * mib, 1, 3*mib + 1, 8, batch{bytes: 0, wait: true}, false}, // what waits has more than its share already
	} {
		_, sess := bareStream()
		sess.windowBatches = c.windowBatches
		for i := range c.pending {
			sess.pending[uint64(i)] = &batch{}
		}
		sess.bytes, sess.waiting, sess.waitBytes = c.bytes, c.waiting, c.waitBytes
		if got := sess.fits(&c.b); got != c.want {
			t.Errorf("%d batches of %d bytes pending, %d of %d waiting: %d bytes (waits: %v) fit: %v", c.pending, c.bytes, c.waiting, c.waitBytes, c.b.bytes, c.b.wait, got)
		}
	}
}

// TestReadyIsWhatNextHas: in any state readyLocked says whether nextLocked has a message,
// so that the writer is woken when there is something to write, and not else; and what
// has been taken to write is in the accounts, and leaves them with its result.
func TestReadyIsWhatNextHas(t *testing.T) {
	rnd := rand.New(rand.NewSource(7))
	some := func(n int) bool { return rnd.Intn(n) == 0 }
	taken := map[string]int{}
	for range 3000 {
		s, sess := bareStream()
		sess.windowBatches = 1 + rnd.Intn(4)
		sess.windowBytes = smallTry << rnd.Intn(3)
		if some(3) {
			sess.creditN = uint64(rnd.Intn(2))
			sess.creditB = uint64(rnd.Intn(2))
		}
		if some(4) {
			sess.ctl.push(&rdsdv1.ClientMessage{})
		}
		sess.closing = some(6)
		if some(10) {
			s.outcomes.len.Store(maxOutcomeRuns - int64(rnd.Intn(2)))
		}
		for range rnd.Intn(5) {
			b := &batch{bytes: []int{0, 1, smallTry - 1, smallTry, smallTry + 1}[rnd.Intn(5)], lengths: []uint32{1, 2}, wait: some(2), wantOutcomes: some(2)}
			s.seq++
			if b.seq = s.seq; b.wait {
				s.waitq.push(b)
			} else {
				s.tryq.push(b)
			}
		}
		for range 20 {
			ready := s.readyLocked(sess)
			m := s.nextLocked(sess)
			if ready != (m != nil) {
				t.Fatalf("ready says %v, next has %T; %d tries, %d waiting, window of %d and %d bytes", ready, m, sess.tries, sess.waiting, sess.windowBatches, sess.windowBytes)
			}
			if m == nil {
				break
			}
			taken[fmt.Sprintf("%T", m)]++
			if sess.closed {
				break
			}
		}
		if err := accounts(sess); err != nil {
			t.Fatal(err)
		}
		for id := range sess.pending {
			s.result(sess, id, nil)
			if err := accounts(sess); err != nil {
				t.Fatal(err)
			}
			s.result(sess, id, nil) // a second one is of nothing
		}
		if sess.bytes != 0 || sess.waiting != 0 || sess.waitBytes != 0 || sess.tries != 0 {
			t.Fatalf("left: %+v", sess)
		}
	}
	if len(taken) != 3 {
		t.Errorf("taken: %v, want batches, control messages and half-closes", taken)
	}
}

// accounts compares what a session counts with what is pending.
func accounts(sess *session) error {
	var want session
	for _, b := range sess.pending {
		want.bytes += b.bytes
		if b.wait {
			want.waiting++
			want.waitBytes += b.bytes
		} else {
			want.tries++
		}
	}
	if got := (session{bytes: sess.bytes, waiting: sess.waiting, waitBytes: sess.waitBytes, tries: sess.tries}); got.bytes != want.bytes ||
		got.waiting != want.waiting || got.waitBytes != want.waitBytes || got.tries != want.tries {
		return fmt.Errorf("%d bytes, %d waiting with %d bytes, %d tries; pending are %d, %d, %d, %d",
			got.bytes, got.waiting, got.waitBytes, got.tries, want.bytes, want.waiting, want.waitBytes, want.tries)
	}
	return nil
}

// TestRefusedParts: each caller of a joint batch hears of its own datagrams, by their
// number in its own call.
func TestRefusedParts(t *testing.T) {
	why := errors.New("why")
	for _, c := range []struct{ index, count int }{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {5, 1}, {0, 6}, {1, 4}, {2, 2}, {1, 2}, {5, 1}} {
		b := &batch{}
		var calls []*call
		for _, n := range []int{2, 1, 3} {
			calls = append(calls, &call{})
			b.parts = append(b.parts, part{calls[len(calls)-1], n})
		}
		b.refused(c.index, c.count, why)
		at := 0
		for i, p := range b.parts {
			var got, want []int
			for _, e := range calls[i].errs {
				for k := range e.count {
					got = append(got, at+e.index+k)
				}
			}
			for k := at; k < at+p.n; k++ {
				if k >= c.index && k < c.index+c.count {
					want = append(want, k)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || len(want) == 0 && len(calls[i].errs) > 0 {
				t.Errorf("%d from %d refused: call %d hears of %v, want %v", c.count, c.index, i, calls[i].errs, want)
			}
			at += p.n
		}
	}
}

// TestRunsAreJoined: tags in rising order are one run however they come, so that a set
// of a million under way costs as much as one; and a set that was emptied holds nothing.
func TestRunsAreJoined(t *testing.T) {
	var s tagSet
	for first := uint64(1); first < 1000; first += 3 {
		s.add(first, 3)
	}
	if len(s.runs) != 1 || s.runs[0] != (tagRun{1, 999}) {
		t.Errorf("%d runs: %v", len(s.runs), s.runs[:1])
	}
	s.add(2000, 5) // behind a gap
	s.add(1500, 5) // between
	s.add(1505, 5) // behind one that is not the last
	if got, want := fmt.Sprint(s.runs), "[{1 999} {1500 10} {2000 5}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := s.take(); len(got) != 3 || len(s.runs) != 0 || len(s.take()) != 0 {
		t.Errorf("took %v, and %v is left", got, s.runs)
	}
}

// TestEndOfALink: whoever waits for a batch is told why and that nobody knows what became
// of it; what was accepted and has no outcome gets one, once; nothing waits any more.
func TestEndOfALink(t *testing.T) {
	cause := errors.New("closed")
	dst := netip.MustParseAddrPort("10.0.0.9:7")
	for _, c := range []struct {
		cause    error
		outcomes bool
		err      error
		reason   string
	}{{nil, true, errLost, reasonRestarted}, {cause, true, cause, reasonClosed}, {nil, false, errLost, ""}} {
		s, sess := bareStream()
		s.cfg.outcomes = c.outcomes
		s.outcomes.init()
		var calls []*call
		for i := range 4 {
			b := &batch{bytes: 1, lengths: make([]uint32, 3), wantOutcomes: c.outcomes, wait: i%2 == 1}
			k := newCall()
			calls = append(calls, k)
			b.parts = append(b.parts, part{k, 3})
			if b.wait {
				b.dests = []netip.AddrPort{dst}
				s.waiters[dst]++
			}
			s.sentLocked(sess, b)
		}
		s.result(sess, 1, nil) // tags 1 to 3 were accepted; 10 to 12 are abandoned by their caller
		<-calls[0].done
		calls[3].abandoned = true
		s.dropLocked(sess, c.cause)
		for i, k := range calls[1:3] {
			select {
			case <-k.done:
			default:
				t.Fatalf("call %d is told nothing", i+1)
			}
			if k.err != c.err || !k.undecided {
				t.Errorf("call %d: %v, undecided %v; want %v", i+1, k.err, k.undecided, c.err)
			}
		}
		if k := calls[3]; k.err != nil || len(k.done) > 0 || !k.finished {
			t.Errorf("a caller that left is told %v", k.err)
		}
		if s.sess != nil || len(sess.pending) != 0 || len(s.waiters) != 0 || len(s.undecid.runs) != 0 && c.outcomes {
			t.Errorf("left: %v, %d pending, waiting for %v, %v undecided", s.sess, len(sess.pending), s.waiters, s.undecid.runs)
		}
		var got []Outcome
		for {
			o, ok, _, _ := s.outcomes.take()
			if !ok {
				break
			}
			got = append(got, o)
		}
		want := "[]"
		if c.outcomes {
			want = fmt.Sprint([]Outcome{{1, Unknown, c.reason}, {2, Unknown, c.reason}, {3, Unknown, c.reason}})
		}
		if fmt.Sprint(got) != want {
			t.Errorf("outcomes %v, want %s", got, want)
		}
	}
}

// TestCreditIsDue: the smallest credit that can be given back is worth a message: one empty
// datagram has no bytes.
func TestCreditIsDue(t *testing.T) {
	for _, x := range []struct {
		s   session
		due bool
	}{{session{}, false}, {session{creditN: 1}, true}, {session{creditB: 1}, true}} {
		if got := x.s.creditDue(); got != x.due {
			t.Errorf("%d datagrams, %d bytes: due %v", x.s.creditN, x.s.creditB, got)
		}
	}
}
