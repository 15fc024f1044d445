package shm

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSendTableEdges: what is read of a send table has to agree with the counts beside
// it, to the last datagram; what contradicts them is an error and not a guess.
func TestSendTableEdges(t *testing.T) {
	const head, local = 5, 70
	rec := func(order uint64, count, done int) SendRecord {
		return SendRecord{Order: order, Word: MakeWord(KindEach, 0, count), Progress: uint32(done), Dst: MakeTarget(clientDst)}
	}
	cell := func(lane, seq uint64) SendRecord {
		r := rec(head, 1, 0)
		r.Cell = lane<<CellLane | seq
		return r
	}
	for _, c := range []struct {
		what  string
		recs  []SendRecord
		taken uint64 // beside the finished ones
		open  int
		wrong bool
	}{
		{"nothing", nil, 0, 0, false},
		{"one more was taken than is told of", nil, 1, 0, true},
		{"a part", []SendRecord{rec(head, 3, 1)}, 2, 1, false},
		{"a part, and one more was taken", []SendRecord{rec(head, 3, 1)}, 3, 1, true},
		{"a part, and one fewer", []SendRecord{rec(head, 3, 1)}, 1, 1, true},
		{"all of it", []SendRecord{rec(head, 3, 3)}, 0, 0, false},
		{"more than all", []SendRecord{rec(head, 3, 4)}, 0, 0, true},
		{"of no datagrams", []SendRecord{rec(head, 0, 0)}, 0, 0, true},
		{"of as many as may be", []SendRecord{rec(head, MaxTrain, 0)}, MaxTrain, 1, false},
		{"of more", []SendRecord{rec(head, MaxTrain+1, 0)}, MaxTrain + 1, 0, true},
		{"the next descriptor, not taken yet", []SendRecord{rec(head+1, 3, 0)}, 0, 0, false},
		{"the one behind it", []SendRecord{rec(head+2, 3, 0)}, 0, 0, true},
		{"two", []SendRecord{rec(head, 1, 0), rec(head-1, 2, 1)}, 2, 2, false},
		{"two of one descriptor", []SendRecord{rec(head, 1, 0), rec(head, 1, 0)}, 2, 2, true},
	} {
		g := readTable(c.recs, head, c.taken, local)
		if c.wrong != (g.Err != nil) || g.Err != nil && !errors.Is(g.Err, unix.EBADMSG) {
			t.Errorf("%s: %v", c.what, g.Err)
		}
		if says := map[string]string{"two of one descriptor": "descriptor 4 stands twice", "the one behind it": "descriptor 6; 5 were taken", "more than all": "3 datagrams, 4 finished",
			"a part, and one more was taken": "12 datagrams were taken, 9 are finished, 2 are not"}[c.what]; says != "" && !strings.Contains(g.Err.Error(), says) {
			t.Errorf("%s: %v, want %q", c.what, g.Err, says)
		}
		if len(g.Open) != c.open {
			t.Errorf("%s: %+v is open, want %d", c.what, g.Open, c.open)
		}
		for i := 1; i < len(g.Open); i++ {
			if g.Open[i].Order < g.Open[i-1].Order {
				t.Errorf("%s: %+v is not in the order it was taken in", c.what, g.Open)
			}
		}
	}
	for _, c := range []struct {
		what           string
		rec            SendRecord
		sent, split    bool
		arrived        bool
		lane, sequence uint64
	}{
		{"not sent", cell(0, 0), false, false, false, 0, 0},
		{"on lane 0", cell(0, 1), true, false, false, 0, 1},
		{"on the last lane, with the last sequence", cell(LocalLane-1, 1<<CellLane-1), true, false, false, LocalLane - 1, 1<<CellLane - 1},
		{"at this address and placed", cell(LocalLane, local), true, false, true, LocalLane, local},
		{"at this address and not placed", cell(LocalLane, local+1), true, false, false, LocalLane, local + 1},
		{"one by one", cell(128, 0), true, true, false, 0, 0},
	} {
		g := readTable([]SendRecord{c.rec}, head, 1, local)
		if g.Err != nil || len(g.Open) != 1 {
			t.Errorf("%s: %+v, %v", c.what, g.Open, g.Err)
			continue
		}
		s := g.Open[0]
		if s.IsSent != c.sent || s.Split != c.split || s.Arrived != c.arrived || uint64(s.Lane) != c.lane || s.Seq != c.sequence || s.Left != 1 {
			t.Errorf("%s: %+v", c.what, s)
		}
	}
}

// readTable reads a send table with recs in it and a gap between them, of a region of
// which 9 datagrams are finished and taken more are not.
func readTable(recs []SendRecord, head, taken, local uint64) *RegionReport {
	table := make([]byte, entryBytes*(2*len(recs)+1))
	for i := range recs {
		var e entry
		recs[i].put(&e)
		for k, v := range e {
			le.PutUint64(table[entryBytes*(2*i+1)+8*k:], v)
		}
	}
	g := &RegionReport{RegionRecord: RegionRecord{SendHead: head, Account: 1, Finished: [2]uint64{1, 9}}}
	g.Taken[head&1], g.Taken[head&1^1] = 9+taken, 1<<40
	g.readTaken(table, local)
	return g
}
