package shm

import (
	"path/filepath"
	"testing"
)

// TestPostEdges: what a client may post, to the last byte, datagram and flow; what ends its
// socket, and what is refused by itself alone.
func TestPostEdges(t *testing.T) {
	r := newRegion(t, testSpec())
	one, arena := int(r.MaxDatagram), r.SendArenaBytes
	const (
		fine = iota
		refused
		hostile
	)
	for _, c := range []struct {
		what string
		w    Word
		d    SendDesc
		want int
	}{
		{"one empty datagram", MakeWord(KindEach, 0, 1), SendDesc{}, fine},
		{"no datagram", MakeWord(KindEach, 0, 0), SendDesc{}, hostile},
		{"the largest", MakeWord(KindEach, one, 1), SendDesc{}, fine},
		{"one byte more", MakeWord(KindEach, one+1, 1), SendDesc{}, refused},
		{"the largest train", MakeWord(KindEach, MaxTrainBytes, 2), SendDesc{}, fine},
		{"a larger train", MakeWord(KindEach, MaxTrainBytes+2, 2), SendDesc{}, refused},
		{"as much in one", MakeWord(KindEach, MaxTrainBytes+2, 1), SendDesc{}, fine},
		{"the longest train", MakeWord(KindEach, MaxTrain, MaxTrain), SendDesc{}, fine},
		{"a longer train", MakeWord(KindEach, MaxTrain+1, MaxTrain+1), SendDesc{}, hostile},
		{"unequal datagrams", MakeWord(KindEach, 5, 2), SendDesc{}, refused},
		{"a table and nothing else", MakeWord(KindTable, 8, 2), SendDesc{}, fine},
		{"less than a table", MakeWord(KindTable, 7, 2), SendDesc{}, refused},
		{"the last flow", MakeWord(KindEach, 0, 1), SendDesc{Flow: r.Flows - 1}, fine},
		{"the flow behind it", MakeWord(KindEach, 0, 1), SendDesc{Flow: r.Flows}, hostile},
		{"the last unit", MakeWord(KindEach, UnitBytes, 1), SendDesc{Slot: arena - UnitBytes}, fine},
		{"a byte behind it", MakeWord(KindEach, UnitBytes+1, 1), SendDesc{Slot: arena - UnitBytes}, hostile},
		{"nothing at the end", MakeWord(KindEach, 0, 1), SendDesc{Slot: arena}, fine},
		{"nothing behind it", MakeWord(KindEach, 0, 1), SendDesc{Slot: arena + UnitBytes}, hostile},
		{"half a unit on", MakeWord(KindEach, 1, 1), SendDesc{Slot: UnitBytes / 2}, hostile},
		{"a kind to come", MakeWord(KindOpen+1, 0, 1), SendDesc{}, hostile},
		{"no kind", MakeWord(KindNothing, 0, 1), SendDesc{}, hostile},
		{"a flag to come", MakeWord(KindEach, 0, 1), SendDesc{Flags: FlagWant << 1}, refused},
		{"an outcome is wanted", MakeWord(KindEach, 0, 1), SendDesc{Flags: FlagWant}, fine},
		{"a flow is opened", MakeWord(KindOpen, 0, 0), SendDesc{}, fine},
	} {
		if one < MaxTrainBytes+2 || arena < uint64(one)+1 {
			t.Fatal("the region is too small for these")
		}
		c.d.put(r.sendEntry(3))
		var p Post
		err := r.readPost(3, r.sendEntry(3), c.w, &p)
		got := fine
		switch {
		case err != nil:
			got = hostile
		case p.Bad != nil:
			got = refused
		}
		if got != c.want {
			t.Errorf("%s: %v, %v", c.what, err, p.Bad)
		}
		if got == fine && !p.Open && (len(p.Body) != c.w.Bytes() || p.Count != c.w.Count() || p.Want != (c.d.Flags&FlagWant != 0)) {
			t.Errorf("%s: %d bytes, %d datagrams, wanted %v", c.what, len(p.Body), p.Count, p.Want)
		}
	}
}

// TestFreedRegionIsGone: a region whose entry is given back, begun or not, is not there
// after a crash, and the next one that takes its place is.
func TestFreedRegionIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, err := OpenLedger(path, LedgerSpec{Instance: 1, Lanes: 8, Regions: 2, Commits: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := func() int {
		t.Helper()
		rep, err := RecoverFile(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(rep.Regions)
	}
	for range 3 { // the first takes what the last gave back
		g, err := l.Region(newRegion(t, testSpec()))
		if err != nil {
			t.Fatal(err)
		}
		if n := there(); n != 1 {
			t.Errorf("%d regions are in the ledger, want 1", n)
		}
		g.Free()
		if n := there(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	}
	(*LedgerRegion)(nil).Free()
}
