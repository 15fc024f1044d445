package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A commit record for the first n regions and the lanes a and b.
func commitOf(regions, n, a, b uint32) []byte {
	rec := make([]byte, commitBytes(regions))
	for i, v := range []uint32{1, n, a, b} {
		le.PutUint32(rec[4*i:], v)
	}
	for i := range min(n, regions) {
		le.PutUint64(rec[commitHead+commitEach*i:], uint64(i))
	}
	return rec
}

// TestCommitRecordEdges: the last region and the last lane there are may be named, the
// ones behind them may not: they are other parts of the ledger.
func TestCommitRecordEdges(t *testing.T) {
	const regions, lanes = 3, 5
	behind := commitOf(regions, 1, NoLane, NoLane)
	le.PutUint64(behind[commitHead:], regions)
	far := commitOf(regions, 1, NoLane, NoLane)
	le.PutUint64(far[commitHead:], 1<<32) // 0 in 32 bits
	last := commitOf(regions, 1, NoLane, NoLane)
	le.PutUint64(last[commitHead:], regions-1)
	for _, c := range []struct {
		what    string
		rec     []byte
		wrong   bool
		regions int
	}{
		{"nothing", commitOf(regions, 0, NoLane, NoLane), false, 0},
		{"every region", commitOf(regions, regions, 0, lanes-1), false, regions},
		{"more regions than there are", commitOf(regions, regions+1, 0, 0), true, 0},
		{"a lane behind the last", commitOf(regions, 1, lanes, NoLane), true, 0},
		{"another lane behind the last", commitOf(regions, 1, NoLane, lanes), true, 0},
		{"the last lane twice", commitOf(regions, 1, lanes-1, lanes-1), false, 1},
		{"the last region", last, false, 1},
		{"a region behind the last", behind, true, 0},
		{"a region of more than 32 bits", far, true, 0},
	} {
		got, err := parseCommit(c.rec, regions, lanes)
		if c.wrong != (err != nil) || err != nil && !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v", c.what, err)
		}
		if err == nil && (got == nil || len(got.regions) != c.regions) {
			t.Errorf("%s: %+v", c.what, got)
		}
		le.PutUint32(c.rec, 0)
		if got, err := parseCommit(c.rec, regions, lanes); got != nil || err != nil {
			t.Errorf("%s, not valid: %+v, %v", c.what, got, err)
		}
		le.PutUint32(c.rec, 2)
		if _, err := parseCommit(c.rec, regions, lanes); err == nil {
			t.Errorf("%s, neither valid nor not: taken", c.what)
		}
	}
}

// TestRedoEdges: a valid commit record moves words of the ledger forward, at most by
// 1<<32, of what is in use; one that says anything else is refused.
func TestRedoEdges(t *testing.T) {
	const was, received = 1000, 2000
	for _, c := range []struct {
		what             string
		tail, received   uint64
		noRegion, noLane bool
		wrong            bool
	}{
		{"where they were", was, received, false, false, false},
		{"on by one", was + 1, received + 1, false, false, false},
		{"on as far as may be", was + 1<<32, received + 1<<40, false, false, false},
		{"on too far", was + 1<<32 + 1, received, false, false, true},
		{"a region back", was - 1, received, false, false, true},
		{"a lane back", was, received - 1, false, false, true},
		{"of a region that is not in use", was, received, true, false, true},
		{"of a lane that is not in use", was, received, false, true, true},
	} {
		h := &LedgerHeader{Regions: 1, Lanes: 2, Commits: 1, RegionOff: 0, LaneOff: recordBytes, CommitOff: recordBytes + 2*laneBytes}
		b := make([]byte, h.CommitOff+commitBytes(1))
		if !c.noRegion {
			le.PutUint32(b, 1)
		}
		le.PutUint64(b[88:], was)
		lane := b[h.LaneOff+laneBytes:]
		if !c.noLane {
			le.PutUint32(lane, 1)
		}
		le.PutUint64(lane[72:], received)
		rec := commitOf(1, 1, NoLane, 1)
		le.PutUint64(rec[24:], c.received)
		le.PutUint64(rec[commitHead+8:], c.tail)
		copy(b[h.CommitOff:], rec)
		rep := &Report{}
		err := rep.redo(h, b)
		got := fmt.Sprint(le.Uint64(b[88:]), le.Uint64(lane[72:]), le.Uint32(b[h.CommitOff:]), rep.Redone)
		switch want := fmt.Sprint(c.tail, c.received, 0, 1); {
		case c.wrong && (err == nil || rep.Redone != 0):
			t.Errorf("%s: taken", c.what)
		case !c.wrong && (err != nil || got != want):
			t.Errorf("%s: %s, %v; want %s", c.what, got, err, want)
		}
	}
}

// TestReadSparseEdges: a file is read that is as small or as large as a ledger may be, and
// no other; its holes cost nothing.
func TestReadSparseEdges(t *testing.T) {
	for size, ok := range map[int64]bool{0: false, HeaderBytes - 1: false, HeaderBytes: true, HeaderBytes + 1: true, 1<<40 - 1: true, 1 << 40: true, 1<<40 + 1: false} {
		path := filepath.Join(t.TempDir(), "ledger")
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Skipf("elsewhere: a file system without files of %d bytes: %v", size, err)
		}
		if ok {
			if _, err := f.WriteAt([]byte{1}, size-1); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
		b, err := readSparse(path)
		if (err == nil) != ok || err != nil && !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err != nil {
			continue
		}
		if int64(len(b)) != size || b[0] != 0 || b[size-1] != 1 {
			t.Errorf("%d bytes: %d were read, from %d to %d", size, len(b), b[0], b[len(b)-1])
		}
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	}
}
