package rdsd

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// maxOutcomeRuns is how many runs of unread outcomes stop further sends.
const maxOutcomeRuns = 1 << 16

// tagRun is a run of consecutive tags.
type tagRun struct{ first, count uint64 }

func (r tagRun) end() uint64 { return r.first + r.count }

// tagSet is a set of tags as sorted, disjoint runs. Tags come in rising order
// and leave mostly from the front, so it stays short.
type tagSet struct{ runs []tagRun }

// add inserts count tags from first on, none of which is in the set.
func (t *tagSet) add(first, count uint64) {
	i := len(t.runs)
	if i > 0 && t.runs[i-1].first > first {
		i = sort.Search(len(t.runs), func(k int) bool { return t.runs[k].first > first })
	}
	if i > 0 && t.runs[i-1].end() == first {
		t.runs[i-1].count += count
		return
	}
	t.runs = slices.Insert(t.runs, i, tagRun{first, count})
}

// remove takes tags out and returns those that were in the set, as runs.
func (t *tagSet) remove(first, count uint64) []tagRun {
	end := first + count
	from := sort.Search(len(t.runs), func(k int) bool { return t.runs[k].end() > first })
	to := from
	var gone, keep []tagRun
	for ; to < len(t.runs) && t.runs[to].first < end; to++ {
		r := t.runs[to]
		lo, hi := max(r.first, first), min(r.end(), end)
		gone = append(gone, tagRun{lo, hi - lo})
		if r.first < lo {
			keep = append(keep, tagRun{r.first, lo - r.first})
		}
		if hi < r.end() {
			keep = append(keep, tagRun{hi, r.end() - hi})
		}
	}
	t.runs = slices.Replace(t.runs, from, to, keep...)
	return gone
}

// removeWhole takes tags out that are the front of one run, or all of it, and
// reports whether they were.
func (t *tagSet) removeWhole(first, count uint64) bool {
	i := 0
	if len(t.runs) > 1 && t.runs[0].first != first {
		i = sort.Search(len(t.runs), func(k int) bool { return t.runs[k].end() > first })
	}
	if i == len(t.runs) || t.runs[i].first != first || t.runs[i].count < count {
		return false
	}
	r := &t.runs[i]
	if r.first, r.count = r.first+count, r.count-count; r.count == 0 {
		t.runs = slices.Delete(t.runs, i, i+1)
	}
	return true
}

// take empties the set.
func (t *tagSet) take() []tagRun {
	runs := t.runs
	t.runs = nil
	return runs
}

// outcomeRun is the same outcome of consecutive tags.
type outcomeRun struct {
	tagRun
	kind   OutcomeKind
	reason string
}

type outcomeQueue struct {
	wake chan struct{} // capacity 1
	len  atomic.Int64  // length of runs

	mu   sync.Mutex
	runs fifo[outcomeRun] // guarded by mu; not read yet
	over error            // guarded by mu
}

func (q *outcomeQueue) init() { q.wake = make(chan struct{}, 1) }

// ready says whether take would return something.
func (q *outcomeQueue) ready() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.runs.len() > 0 || q.over != nil
}

func (q *outcomeQueue) full() bool { return q.len.Load() >= maxOutcomeRuns }

func (q *outcomeQueue) add(first, count uint64, kind OutcomeKind, reason string) {
	q.mu.Lock()
	if q.runs.len() > 0 {
		if last := q.runs.back(); last.end() == first && last.kind == kind && last.reason == reason {
			last.count += count
			q.mu.Unlock()
			q.signal()
			return
		}
	}
	q.runs.push(outcomeRun{tagRun{first, count}, kind, reason})
	q.len.Store(int64(q.runs.len()))
	q.mu.Unlock()
	q.signal()
}

func (q *outcomeQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *outcomeQueue) finish(err error) {
	q.mu.Lock()
	q.over = err
	q.mu.Unlock()
	q.signal()
}

// outcomesLeft counts, from the end of a context on, the outcomes that were known by then.
type outcomesLeft struct {
	known bool
	n     uint64
}

// none reports whether all of them are read, by whoever reads; else one of them is about to be.
func (l *outcomesLeft) none(ended context.Context, s *Socket) bool {
	q := &s.outcomes
	if !l.known {
		l.known = true
		_ = s.fe.awaitOutcome(ended) // which takes in what the daemon has told
		q.mu.Lock()
		for _, r := range q.runs.all() {
			l.n += r.count
		}
		q.mu.Unlock()
	}
	if l.n == 0 {
		q.signal() // for the other readers: this one may have been woken for what has come since
		return true
	}
	l.n--
	return false
}

// take returns the next outcome. freed says that sends may go on.
func (q *outcomeQueue) take() (o Outcome, ok, freed bool, over error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.runs.len() == 0 {
		if q.over != nil {
			q.signal() // for the other readers
		}
		return Outcome{}, false, false, q.over
	}
	r := q.runs.front()
	o = Outcome{Tag: r.first, Kind: r.kind, Reason: r.reason}
	r.first++
	r.count--
	if r.count == 0 {
		q.runs.pop()
		q.len.Store(int64(q.runs.len()))
		freed = q.runs.len() == maxOutcomeRuns-1
	}
	if q.runs.len() > 0 || q.over != nil {
		q.signal() // for the other readers: this one may stop here
	}
	return o, true, freed, nil
}

// Outcomes reports the outcome of each accepted datagram, exactly once, in the order in
// which it was decided. It needs WithOutcomes. It ends, with the error of the last round,
// when ctx does or the socket is closed, once every outcome known by then was read.
//
// A datagram that was in flight when the daemon went away is Unknown, with the reason
// "daemon restarted". Refused datagrams have no outcome; one whose send ended undecided
// (OpError.Undecided) has one if the daemon accepted it and could report it.
func (s *Socket) Outcomes(ctx context.Context) iter.Seq2[Outcome, error] {
	return func(yield func(Outcome, error) bool) {
		// In the loop, where an iterator's errors are.
		if err := s.misuse(ctx, "outcomes", netip.AddrPort{}); err != nil {
			yield(Outcome{}, err)
			return
		}
		if !s.cfg.outcomes {
			yield(Outcome{}, s.opErr("outcomes", netip.AddrPort{},
				rdserr.With(rdserr.ErrInvalid, "the socket was bound without WithOutcomes")))
			return
		}
		var last outcomesLeft
		for {
			// What is decided later is not waited for, or a loop over a busy socket would never end.
			if ctx.Err() != nil && last.none(ctx, s) {
				yield(Outcome{}, s.opErr("outcomes", netip.AddrPort{}, ctxError(ctx, nil)))
				return
			}
			o, ok, freed, over := s.outcomes.take()
			// The list was full, which held up sends; now there is room.
			if freed {
				s.fe.outcomesRead()
			}
			switch {
			case ok:
				if !yield(o, nil) {
					return
				}
				continue
			case over != nil:
				yield(Outcome{}, s.opErr("outcomes", netip.AddrPort{}, over))
				return
			}
			if err := s.fe.awaitOutcome(ctx); err != nil {
				yield(Outcome{}, s.opErr("outcomes", netip.AddrPort{}, err))
				return
			}
		}
	}
}

// decided takes in the daemon's reports. A second report is dropped: there is one outcome
// for each datagram.
func (s *stream) decided(list []*rdsdv1.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range list {
		kind := Unknown
		switch o.GetKind() {
		case rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED:
			kind = Delivered
		case rdsdv1.OutcomeKind_OUTCOME_KIND_CANCELLED:
			kind = Cancelled
		case rdsdv1.OutcomeKind_OUTCOME_KIND_FAILED:
			kind = Failed
		}
		for _, r := range s.undecid.remove(o.GetFirstTag(), uint64(max(1, o.GetCount()))) {
			s.outcomes.add(r.first, r.count, kind, o.GetReason())
		}
	}
}
