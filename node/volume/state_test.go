package volume

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
)

func TestStateSurvives(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, st, err := openStore(thisMachine(nil), nil, dir, "")
	if err != nil || st.NextID != 1 || s.crashed(&st) {
		t.Fatalf("a fresh directory: %+v, %v", st, err)
	}
	export := ExportSpec{Name: "a/b", Kind: KindFile, Path: "/x", Shared: true, LogicalBlock: 4096,
		Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Sessions: []string{"web-*"}, Persist: true}
	mapping := MapSpec{ID: "v7", Node: "n", Name: "d", As: AsSocket, Socket: "/s", Session: "a-b", Paths: []PathSpec{{Src: "", Dst: "n:1"}},
		Policy: rtrs.MinLatency.String(), QueueDepth: 8, Access: AccessRW, IOTimeout: 3 * time.Second, LossTimeout: time.Minute, OnLoss: OnLossError, Persist: true}
	from := []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")}
	want := state{Running: true, NextID: 8, Exports: []exportState{export.state()}, Mappings: []mappingState{mapping.state("", "", rnbd.Kept{Verifier: 1<<64 - 1, Volatile: true, LogicalBlock: 4096, SyncLost: true, Stale: true, Flushed: true})},
		Past: []pastState{{Dev: 3, Ino: 4, Syncs: 1, Writer: "a-b", WriterIs: &writerState{UUID: "0102030405060708090a0b0c0d0e0f10", From: from},
			Behind: []string{"x", "y"}, Behinds: []writerState{{}, {From: from[1:]}}, Beside: []besideState{{"z", writerState{From: from[:1]}}}, Where: "/disk"}, {Dev: 5, Block: true, Writer: "c"}}, Forgot: 3,
		Held: []heldState{{Session: "a-b", Name: "d", Dev: 3, Ino: 4, Born: 5, Where: "/disk"}, {Session: "c", Name: "e", Dev: 5, Block: true, Earlier: true, Reads: true}}}
	if err := s.write(func() state { return want }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openStore(thisMachine(nil), nil, dir, ""); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("the directory was opened twice: %v", err)
	}
	s.close()

	s, st, err = openStore(thisMachine(nil), nil, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	want.Version, want.Boot, want.Writes = stateVersion, bootID(), 1
	if !reflect.DeepEqual(st, want) {
		t.Fatalf("read %+v, wrote %+v", st, want)
	}
	if got := st.Exports[0].spec(); !reflect.DeepEqual(got, export) {
		t.Fatalf("export %+v, was %+v", got, export)
	}
	if got, err := st.Mappings[0].spec(); err != nil || !reflect.DeepEqual(got, mapping) {
		t.Fatalf("mapping %+v, was %+v; %v", got, mapping, err)
	}
	if got := st.Mappings[0].kept(); got != (rnbd.Kept{Verifier: 1<<64 - 1, Volatile: true, LogicalBlock: 4096, SyncLost: true, Stale: true, Flushed: true}) {
		t.Fatalf("of the volume is kept %+v", got)
	}
	if !s.crashed(&st) {
		t.Fatal("no crash was seen where there was no stop")
	}
	past := []rnbd.Past{
		{ID: blk.FileID{Dev: 3, Ino: 4}, Syncs: 1, Writer: rnbd.Writer{Name: "a-b", UUID: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, From: from},
			Behind: []rnbd.Writer{{Name: "x"}, {Name: "y", From: from[1:]}}, Beside: []rnbd.Writer{{Name: "z", From: from[:1]}}, Where: "/disk"},
		{ID: blk.FileID{Dev: 5, Block: true}, Writer: rnbd.Writer{Name: "c"}}, // as a version before this one wrote it
	}
	if got := s.past(&st); !reflect.DeepEqual(got, past) {
		t.Fatalf("of the past: %+v", got)
	}
	held := []rnbd.Held{
		{Session: "a-b", Name: "d", ID: blk.FileID{Dev: 3, Ino: 4}, Born: 5, Where: "/disk"},
		{Session: "c", Name: "e", ID: blk.FileID{Dev: 5, Block: true}, Earlier: true, Reads: true},
	}
	if got := s.held(&st); !reflect.DeepEqual(got, held) {
		t.Fatalf("what is held: %+v", got)
	}
	for i := range past {
		if got := stateOfPast(&past[i]); !reflect.DeepEqual(got, st.Past[i]) {
			t.Fatalf("of the past is written down: %+v", got)
		}
	}
	past[0].Earlier, held[0].Earlier = true, true
	if st.Boot = "another"; s.crashed(&st) || !reflect.DeepEqual(s.past(&st), past[:1]) {
		t.Fatalf("a start of the machine was taken for a crash of the daemon, or of who wrote is known: %+v", s.past(&st))
	}
	if got := s.held(&st); !reflect.DeepEqual(got, held) {
		t.Fatalf("what was held before the machine was started: %+v", got)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*.new"))
	if len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestStateThatCannotBeUsed(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		says    string
	}{
		"half a file":     {`{"version": 1, "mapp`, "cannot be read"},
		"another version": {`{"version": 9}`, "version 9"},
	} {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, stateFile), []byte(c.content), 0o600)
		for i := range 3 { // what was set aside before stays
			if i > 0 {
				os.WriteFile(filepath.Join(dir, stateFile), []byte(c.content), 0o600)
			}
			s, st, err := openStore(thisMachine(nil), nil, dir, "")
			if err != nil || len(st.Mappings) != 0 {
				t.Fatalf("%s: %+v, %v; want a fresh one", name, st, err)
			}
			if !errors.Is(s.aside, syscall.EINVAL) || !strings.Contains(s.aside.Error(), c.says) {
				t.Errorf("%s: %v; want %q", name, s.aside, c.says)
			}
			if st.Forgot == 0 {
				t.Errorf("%s: the next start does not know that anything was forgotten", name)
			}
			if st.NextID < 1<<30 {
				t.Errorf("%s: a mapping will be called v%d, as one of before", name, st.NextID)
			}
			if s.bootNumber() != 0 {
				t.Errorf("%s: clients are not told that nobody knows what was lost", name)
			}
			s.close()
			kept, _ := filepath.Glob(filepath.Join(dir, stateFile+".unusable*"))
			if len(kept) != i+1 {
				t.Errorf("%s: kept %v", name, kept)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "f")
	os.WriteFile(file, nil, 0o600)
	if _, _, err := openStore(thisMachine(nil), nil, file, ""); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file as directory: %v", err)
	}
}

func TestStateThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	s, _, err := openStore(thisMachine(nil), nil, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	os.Mkdir(filepath.Join(dir, stateFile), 0o700) // a rename over it fails
	if err := s.write(func() state { return state{} }); err == nil || s.lastError() == nil {
		t.Fatal("a write that failed was not told")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
}

// TestDirectoriesThatAreNotSynchronised: a file system that has no fsync for directories keeps the state all the same;
// one on which that fails does not.
func TestDirectoriesThatAreNotSynchronised(t *testing.T) {
	t.Cleanup(func() { syncDirectory = (*os.File).Sync })
	name := filepath.Join(t.TempDir(), stateFile)
	for err, kept := range map[error]bool{syscall.EINVAL: true, syscall.EOPNOTSUPP: true, syscall.EIO: false, syscall.ENOSPC: false} {
		syncDirectory = func(f *os.File) error { return &os.PathError{Op: "sync", Path: f.Name(), Err: err} }
		got := replaceFile(name, []byte(err.Error()))
		if kept != (got == nil) || !kept && !errors.Is(got, err) {
			t.Errorf("fsync of the directory says %v: %v", err, got)
		}
		if b, e := os.ReadFile(name); string(b) != err.Error() {
			t.Errorf("after %v there is %q, %v", err, b, e)
		}
	}
}
