package shm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLedgerGivesBack: a closed ledger leaves no mapping and no descriptor, and may be
// closed again; so may one that was never there.
func TestLedgerGivesBack(t *testing.T) {
	files := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	before := files()
	l, err := OpenLedger(filepath.Join(t.TempDir(), "ledger"), LedgerSpec{Instance: 1, Lanes: 8, Regions: 8, Commits: 1})
	if err != nil {
		t.Fatal(err)
	}
	if files() <= before {
		t.Fatal("a ledger has no descriptor: the test looks at the wrong thing")
	}
	fd := l.fd
	for range 2 {
		if err := l.Close(); err != nil || l.mem != nil || l.fd != -1 {
			t.Errorf("closed: %v, %d bytes, descriptor %d", err, len(l.mem), l.fd)
		}
	}
	if n := files(); n != before {
		t.Errorf("%d descriptors are open, and %d were", n, before)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor: %v", err)
	}
	if err := (*Ledger)(nil).Close(); err != nil {
		t.Errorf("no ledger: %v", err)
	}
}

// TestRegionCannotBeMapped: what is no file, and what cannot be mapped, is an error
// with its reason, and leaves the region as it was.
func TestRegionCannotBeMapped(t *testing.T) {
	var r Region
	const rw = unix.PROT_READ | unix.PROT_WRITE
	if err := r.mapParts(-1, -1, 4096, 8192, rw, unix.MAP_SHARED); !errors.Is(err, unix.EBADF) || r.mem != nil || r.Inode != 0 {
		t.Errorf("no descriptor: %v", err)
	}
	rd, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	defer w.Close()
	memfd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	for _, parts := range [][2]int{{int(rd.Fd()), memfd}, {memfd, int(rd.Fd())}} {
		if err := r.mapParts(parts[0], parts[1], 4096, 8192, rw, unix.MAP_SHARED); err == nil || r.mem != nil || r.Inode != 0 {
			t.Errorf("a pipe: %v", err)
		}
	}
}

// TestLowIsToldOnce: more of the ledger's send table is wanted when a quarter of what
// is usable is left, once until it is there, and never when all of it is usable.
func TestLowIsToldOnce(t *testing.T) {
	for _, x := range []struct {
		entries, used uint32
		growth, want  uint8
	}{
		{64, 47, growthNone, growthNone}, {64, 48, growthNone, growthWanted}, {64, 64, growthNone, growthWanted},
		{64, 64, growthBegun, growthBegun}, {64, 64, growthFailed, growthFailed}, {64, 64, growthWanted, growthWanted},
		{MaxOutstanding, MaxOutstanding, growthNone, growthNone}, {MaxOutstanding - 64, MaxOutstanding - 64, growthNone, growthWanted},
		{68, 50, growthNone, growthNone}, {68, 51, growthNone, growthWanted},
	} {
		h := &Host{}
		h.growth = x.growth
		h.entries, h.sends.n = x.entries, int(x.used)
		h.low()
		if h.growth != x.want {
			t.Errorf("%d of %d are used: %d becomes %d, want %d", x.used, x.entries, x.growth, h.growth, x.want)
		}
		from, pages, wanted := h.Growth()
		if wanted != (x.want == growthWanted) || wanted && (from != x.entries || pages <= 0 && x.entries >= sendsPerPage && MaxOutstanding-x.entries >= sendsPerPage) {
			t.Errorf("%d of %d are used: asked for %d pages from %d, %v", x.used, x.entries, pages, from, wanted)
		}
		if _, _, again := h.Growth(); again {
			t.Error("asked twice")
		}
	}
}

// TestGrowthIsTriedAgain: where there was no room for more of the ledger's send table it is
// asked for again once a descriptor has ended, and not before.
func TestGrowthIsTriedAgain(t *testing.T) {
	h, m := newPair(t, smallSpec(), newLedger(t, LedgerSpec{Lanes: 1, Regions: 1}))
	m.send(0, 1, "ab")
	p := next(t, h)
	id, _ := h.Taken(p, MakeTarget(testDst), true)
	h.growth = growthBegun
	h.Grown(0)
	h.Publish()
	if h.growth != growthFailed {
		t.Fatalf("growth %d, want it to have failed", h.growth)
	}
	h.Outcome(id, 10, 1, 0, 0, true)
	h.Publish()
	if h.growth != growthNone {
		t.Errorf("growth %d after a descriptor has ended", h.growth)
	}
}
