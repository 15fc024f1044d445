package shm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The pages of a region's send table are allocated as it grows, those that were asked for
// and no others; when the region is gone they are given back, and whoever comes next has
// them allocated anew. What is written to a page that is only believed to be there ends
// the daemon when the file system is full.
func TestLedgerGrows(t *testing.T) {
	const page, each = 4096, 4096 / entryBytes
	l, err := OpenLedger(filepath.Join(t.TempDir(), "ledger"), LedgerSpec{Instance: 1, Lanes: 8, Regions: 8, Commits: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var regions [3]*LedgerRegion // the one in the middle grows, and its neighbours do not
	for i := range regions {
		if regions[i], err = l.PrepareRegion(); err != nil {
			t.Fatal(err)
		}
	}
	g := regions[1]
	first := g.sendOff() / page
	has := func(what string, pages ...uint64) {
		t.Helper()
		want := map[uint64]bool{regions[0].sendOff() / page: true, regions[2].sendOff() / page: true}
		for _, p := range pages {
			want[first+p] = true
		}
		for p := regions[0].sendOff() / page; p < regions[2].sendOff()/page+2; p++ {
			if got := l.allocated(p, p+1); got != want[p] {
				t.Errorf("%s: page %d of the region is there: %v, want %v", what, int64(p-first), got, want[p])
			}
		}
	}
	has("at first", 0)
	for _, c := range []struct{ from, pages int }{{1, 1}, {2, 2}, {6, 2}} {
		if err := g.Grow(uint32(c.from*each), c.pages); err != nil {
			t.Fatal(err)
		}
	}
	has("grown", 0, 1, 2, 3, 6, 7)
	g.mem[0], l.mem[(first+7)*page] = 1, 1
	g.pages = 8
	g.Free()
	if g.mem[0] != 0 || l.mem[(first+7)*page] != 0 {
		t.Error("what was written is left")
	}
	has("gone")
	if again, err := l.PrepareRegion(); err != nil || again.index != g.index {
		t.Errorf("the entry is not used again: %v", err)
	}
	has("used again", 0)
}

// TestLedgerIsReadByThePage: the kernel is told that what is accessed of the ledger lies here and there. Otherwise each
// first access brings what the disk reads ahead, which is memory of the daemon: with 8 MiB of that, 500 sockets had
// 487 MiB instead of 2.
func TestLedgerIsReadByThePage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, err := OpenLedger(path, LedgerSpec{Instance: 1, Lanes: 8, Regions: 8, Commits: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skipf("no list of mappings: %v", err)
	}
	_, mapped, _ := strings.Cut(string(b), path+"\n")
	_, flags, there := strings.Cut(mapped, "VmFlags: ")
	if !there {
		t.Skip("the kernel does not tell how memory is mapped")
	}
	flags, _, _ = strings.Cut(flags, "\n")
	want := []string{"rr"} // of an access here and there
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil {
		want = append(want, "nh") // of no huge pages
	}
	for _, flag := range want {
		if !strings.Contains(" "+flags, " "+flag+" ") {
			t.Errorf("the ledger is mapped with %q, which lacks %q", flags, flag)
		}
	}
}
