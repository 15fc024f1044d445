package rdsd

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

func portOf(i int) netip.AddrPort { return netip.AddrPortFrom(peerAddr.Addr(), uint16(i)) }

// Each accepted datagram has one outcome, whatever the daemon repeats; a
// refused one has none.
func TestOutcomesOnce(t *testing.T) {
	_, _, s, st := bindFake(t, WithOutcomes())
	ctx := testContext(t)
	ds := []Datagram{dgram("a"), dgram("b"), dgram("c"), dgram("d")}
	done := goErr(func() error { _, err := s.SendBatch(ctx, ds); return err })
	b := st.nextSend()
	if !b.GetWantOutcomes() || b.GetFirstTag() != ds[0].Tag || ds[0].Tag == 0 {
		t.Fatalf("%v, tags from %d", b, ds[0].Tag)
	}
	first := ds[0].Tag
	st.sendOutcome(first, 1, rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED, "") // may overtake the result
	st.sendResult(b, sendError(1, 1, rdserr.ErrTooLarge))
	wantErr(t, waitErr(t, done), rdserr.ErrTooLarge)
	st.sendOutcome(first, 4, rdsdv1.OutcomeKind_OUTCOME_KIND_FAILED, "no such port")
	st.sendOutcome(first, 4, rdsdv1.OutcomeKind_OUTCOME_KIND_UNKNOWN, "again")

	var got []string
	for o, err := range s.Outcomes(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, fmt.Sprintf("%d %v %s", o.Tag-first, o.Kind, o.Reason)); len(got) == 3 {
			break
		}
	}
	want := "[0 delivered  2 failed no such port 3 failed no such port]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
	st.wantIdle(s, "")
	if _, ok, _, _ := s.outcomes.take(); ok {
		t.Error("there is one more")
	}
}

func TestSendTag(t *testing.T) {
	_, _, s, st := bindFake(t, WithOutcomes())
	var tag uint64
	done := goErr(func() (err error) { tag, err = s.SendTag(testContext(t), peerAddr, nil); return err })
	b := st.nextSend()
	st.sendResult(b)
	if err := waitErr(t, done); err != nil || tag == 0 || tag != b.GetFirstTag() {
		t.Errorf("tag %d, sent as %d, %v", tag, b.GetFirstTag(), err)
	}
}

func TestOutcomesNeedTheOption(t *testing.T) {
	_, _, s, _ := bindFake(t)
	for _, err := range s.Outcomes(testContext(t)) {
		wantErr(t, err, rdserr.ErrInvalid)
	}
}

// Who asks for outcomes and does not read them cannot send on for ever.
func TestUnreadOutcomesStopSends(t *testing.T) {
	_, _, s, st := bindFake(t, WithOutcomes())
	for i := range uint64(maxOutcomeRuns) {
		s.outcomes.add(1000+2*i, 1, Delivered, "")
	}
	wantErr(t, s.TrySend(peerAddr, nil), rdserr.ErrWouldBlock)
	done := goErr(func() error { return s.Send(testContext(t), peerAddr, nil) })
	for queuedBatches(s) == 0 {
		time.Sleep(time.Millisecond)
	}
	st.wantIdle(s, "too many unread outcomes")
	for range s.Outcomes(testContext(t)) {
		break
	}
	st.sendResult(st.nextSend())
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
}

// Whoever reads of several readers, and however little: what is left, and the end,
// wake the next one. A wake-up is one token for all, so each reader passes it on.
func TestOutcomesWakeTheNextReader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q outcomeQueue
		q.init()
		var unread, told []Outcome
		over := false
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first, kind := uint64(len(told)+1), rapid.SampledFrom([]OutcomeKind{Delivered, Failed}).Draw(t, "kind")
				count := rapid.Uint64Range(1, 3).Draw(t, "count")
				q.add(first, count, kind, "")
				for k := range count {
					told = append(told, Outcome{Tag: first + k, Kind: kind})
					unread = append(unread, told[len(told)-1])
				}
			},
			"wake and read one": func(t *rapid.T) {
				select {
				case <-q.wake:
				default:
				}
				o, ok, _, err := q.take()
				if ok != (len(unread) > 0) || ok && o != unread[0] || !ok && (err != nil) != over {
					t.Fatalf("%+v, %v, %v, want the first of %v", o, ok, err, unread)
				}
				if ok {
					unread = unread[1:]
				}
			},
			"finish": func(*rapid.T) {
				q.finish(rdserr.ErrClosed)
				over = true
			},
			"": func(t *rapid.T) {
				if ready := len(unread) > 0 || over; q.ready() != ready || ready && len(q.wake) == 0 {
					t.Fatalf("%d unread, over %v: ready %v, %d wake-ups", len(unread), over, q.ready(), len(q.wake))
				}
			},
		})
	})
}

func TestOutcomeKindString(t *testing.T) {
	if fmt.Sprint(Delivered, Cancelled, Failed, Unknown, OutcomeKind(0)) != "delivered cancelled failed unknown unspecified" {
		t.Error(Delivered, Cancelled, Failed, Unknown, OutcomeKind(0))
	}
}

// tagSet against a plain map.
func TestTagSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var set tagSet
		model := map[uint64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first := rapid.Uint64Range(1, 60).Draw(t, "first")
				n := uint64(0)
				for want := rapid.Uint64Range(1, 8).Draw(t, "count"); n < want && !model[first+n]; n++ {
					model[first+n] = true
				}
				if n > 0 {
					set.add(first, n)
				}
			},
			"remove": func(t *rapid.T) {
				first, count := rapid.Uint64Range(1, 60).Draw(t, "first"), rapid.Uint64Range(1, 20).Draw(t, "count")
				got := map[uint64]bool{}
				for _, r := range set.remove(first, count) {
					if r.count == 0 {
						t.Fatalf("remove(%d, %d) has taken out a run of nothing at %d", first, count, r.first)
					}
					for k := r.first; k < r.end(); k++ {
						got[k] = true
					}
				}
				for k := first; k < first+count; k++ {
					if got[k] != model[k] {
						t.Fatalf("remove(%d, %d): tag %d was there: %v, returned: %v", first, count, k, model[k], got[k])
					}
					delete(model, k)
				}
			},
			"remove whole": func(t *rapid.T) {
				first, count := rapid.Uint64Range(1, 60).Draw(t, "first"), rapid.Uint64Range(1, 20).Draw(t, "count")
				if len(set.runs) > 0 && rapid.Bool().Draw(t, "front") {
					r := rapid.SampledFrom(set.runs).Draw(t, "run")
					first, count = r.first, r.count+1-rapid.Uint64Range(0, r.count).Draw(t, "less")
				}
				front := false
				for _, r := range set.runs {
					front = front || r.first == first && count <= r.count
				}
				if got := set.removeWhole(first, count); got != front {
					t.Fatalf("removeWhole(%d, %d) = %v of %v", first, count, got, set.runs)
				}
				for k := first; front && k < first+count; k++ {
					delete(model, k)
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for i, r := range set.runs {
					if r.count == 0 || i > 0 && set.runs[i-1].end() > r.first {
						t.Fatalf("runs %v", set.runs)
					}
					for k := r.first; k < r.end(); k++ {
						if !model[k] {
							t.Fatalf("tag %d should be gone", k)
						}
						n++
					}
				}
				if n != len(model) {
					t.Fatalf("%d tags, want %d", n, len(model))
				}
			},
		})
	})
}
