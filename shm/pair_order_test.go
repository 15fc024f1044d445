package shm

import (
	"errors"
	"testing"
)

// fakeRing is a receive ring that shows one thing.
type fakeRing struct {
	d   RecvDesc
	ok  bool
	err error
}

func (r *fakeRing) Peek(d *RecvDesc) (bool, error) { *d = r.d; return r.ok, r.err }
func (r *fakeRing) Head() uint64                   { return 0 }

// TestPairOrderIsATable: whence the next datagrams are taken, for whatever ring and pair show
// and however long a run of records out of pairs has been; and a ring that is not to be trusted is
// told of, unless a pair's turn comes before it is looked at.
func TestPairOrderIsATable(t *testing.T) {
	bad := errors.New("bad ring")
	const none, ring, pair = "none", "ring", "pair"
	for _, c := range []struct {
		run   int // records in a row out of pairs
		shows string
		full  bool // the pair has something
		same  bool // of the source that the ring shows
		want  string
		err   error
	}{
		{0, "nothing", false, false, none, nil},
		{0, "nothing", true, false, pair, nil},
		{0, "a datagram", false, false, ring, nil},
		{0, "a datagram", true, false, pair, nil},
		{0, "an error", false, false, none, bad},
		{0, "an error", true, false, pair, nil},
		{maxPairRun - 1, "a datagram", true, false, pair, nil},
		{maxPairRun, "nothing", false, false, none, nil},
		{maxPairRun, "nothing", true, false, pair, nil},
		{maxPairRun, "a datagram", false, false, ring, nil},
		{maxPairRun, "a datagram", true, false, ring, nil},
		{maxPairRun, "a datagram", true, true, pair, nil}, // sent before it
		{maxPairRun, "an error", false, false, none, bad},
		{maxPairRun, "an error", true, false, pair, bad},
		{maxPairRun + 5, "a datagram", true, false, ring, nil},
	} {
		e := newPaired(t, 1<<16)
		if c.full && (e.s.Begin(1) == nil || !e.s.Put(1, 1)) {
			t.Fatal("there is no room in the pair")
		}
		in := []PairSource{{e.r, testDst}}
		r := &fakeRing{ok: c.shows == "a datagram"}
		if c.shows == "an error" {
			r.err = bad
		}
		if r.d.Src = testLocal; c.same {
			r.d.Src = testDst
		}
		var o PairOrder
		for range c.run {
			o.FromPair()
		}
		var d RecvDesc
		p, _, ok, err := o.Next(r, in, &d)
		got := none
		switch {
		case p >= 0:
			got = pair
		case ok:
			got = ring
		}
		if got != c.want || err != c.err {
			t.Errorf("after %d out of pairs, the ring shows %s, the pair something: %v, of the same source: %v: taken from %s (%v), want %s (%v)", c.run, c.shows, c.full, c.same, got, err, c.want, c.err)
		}
	}
}
