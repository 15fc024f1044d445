package shm

import "testing"

// A commit record is a head of 64 bytes and 16 for each region, in whole units: not a
// byte less, and no unit more.
func TestCommitBytes(t *testing.T) {
	for regions, want := range map[uint32]uint64{0: 64, 1: 128, 3: 128, 4: 128, 5: 192, 8: 192, 9: 256, 1024: 64 + 1024*16} {
		if got := commitBytes(regions); got != want {
			t.Errorf("%d regions: %d bytes, want %d", regions, got, want)
		}
	}
}

// The parts of a ledger begin at whole pages, one behind the other without a gap.
func TestLedgerLay(t *testing.T) {
	for _, c := range []struct {
		what string
		is   LedgerHeader // what is asked for
		want [5]uint64    // pages at which commits, lanes, regions, sends and the end are
	}{
		{"one of each", LedgerHeader{Lanes: 1, Regions: 1, Sends: 1, Commits: 1}, [5]uint64{1, 2, 3, 4, 5}},
		{"whole pages", LedgerHeader{Lanes: 8, Regions: 32, Sends: 4096 / entryBytes, Commits: 64}, [5]uint64{1, 10, 11, 12, 44}},
		{"a bit more", LedgerHeader{Lanes: 9, Regions: 33, Sends: 4096 / entryBytes, Commits: 64}, [5]uint64{1, 11, 13, 15, 48}},
	} {
		h := c.is
		h.lay()
		if got := [5]uint64{h.CommitOff, h.LaneOff, h.RegionOff, h.SendOff, h.FileBytes}; got != [5]uint64{c.want[0] * 4096, c.want[1] * 4096, c.want[2] * 4096, c.want[3] * 4096, c.want[4] * 4096} {
			t.Errorf("%s: %d, want pages %d", c.what, got, c.want)
		}
	}
}
