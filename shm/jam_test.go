package shm

import "testing"

// What a client says of its flows is read by flow and in all, begins at 0 for every
// user of an entry, and a wait that outlives its flow leaves nothing behind.
func TestJams(t *testing.T) {
	s, _, h := clientPair(t, Spec{Flows: 8})
	f := openFlow(t, s, h, clientDst)
	want := func(what string, i, gen uint32, want Jam) {
		t.Helper()
		if j, ok := h.Jam(i, gen); !ok || j != want {
			t.Errorf("%s: %+v %v, want %+v", what, j, ok, want)
		}
	}
	want("a new flow", f.Index(), f.Gen(), Jam{})
	s.CountRefused(f)
	s.CountRefused(f)
	s.BeginWait(f)
	s.BeginWait(f)
	s.EndWait(f)
	s.CountFull()
	want("one waits", f.Index(), f.Gen(), Jam{Refused: 2, Waited: 2, Waiting: 1})
	if refused, waited, full := s.r.Jams(); refused != 2 || waited != 2 || full != 1 {
		t.Errorf("%d refused, %d waited, %d full", refused, waited, full)
	}
	if _, ok := h.Jam(f.Index(), f.Gen()+2); ok {
		t.Error("an entry of another generation was read")
	}
	if _, ok := h.Jam(8, f.Gen()); ok {
		t.Error("an entry that does not exist was read")
	}

	// The entry becomes another's while somebody still waits for the first.
	s.Refused(f)
	g := openFlow(t, s, h, clientDst)
	if g.Index() != f.Index() {
		t.Fatalf("the entry %d was not used again, but %d", f.Index(), g.Index())
	}
	want("described anew", g.Index(), g.Gen(), Jam{})
	s.EndWait(f)
	want("and the late end of a wait", g.Index(), g.Gen(), Jam{})
}

// A client may write anything there: the daemon reports a number of callers that is
// one.
func TestJamsOfNonsense(t *testing.T) {
	s, _, h := clientPair(t, Spec{Flows: 8})
	f := openFlow(t, s, h, clientDst)
	for _, v := range []uint64{^uint64(0), 1 << 63, 1<<63 - 1, 1 << 40} {
		s.r.flow(f.Index())[jamWaiting] = v
		if j, _ := h.Jam(f.Index(), f.Gen()); j.Waiting > maxWaiting || int64(v) < 0 && j.Waiting != 0 {
			t.Errorf("%#x: %d callers", v, j.Waiting)
		}
	}
}
