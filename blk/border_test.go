package blk

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestVolatileZeroesAreNotOverwritten: of what is cached before a large range is zeroed nothing
// comes over the zeroes later, and what lies beside the range stays.
func TestVolatileZeroesAreNotOverwritten(t *testing.T) {
	for _, op := range []Op{OpWriteZeroes, OpDiscard} {
		m, err := NewMem(MemOptions{Size: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		v := NewVolatile(m, 1)
		word := bytes.Repeat([]byte{0xaa}, 512)
		from, to := uint64(1<<20), uint64(1<<20+directZeroes)
		for _, off := range []uint64{from - 512, from, to - 512, to} {
			if err := WriteAt(v, word, off, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := Do(v, &Request{Op: op, Off: from, Len: to - from}); err != nil {
			t.Fatal(err)
		}
		if n := v.Unsynced(); n != 2 {
			t.Errorf("%v: %d sectors are in danger; two lie beside the range", op, n)
		}
		for _, when := range []string{"before a flush", "after it"} {
			for off, want := range map[uint64]byte{from - 512: 0xaa, from: 0, to - 512: 0, to: 0xaa} {
				got := make([]byte, 512)
				if err := ReadAt(v, got, off); err != nil || got[0] != want || got[511] != want {
					t.Errorf("%v, %s: at %d %#x, %v; want %#x", op, when, off, got[0], err, want)
				}
			}
			if err := Do(v, &Request{Op: OpFlush}); err != nil {
				t.Fatal(err)
			}
		}
		if n := v.Unsynced(); n != 0 {
			t.Errorf("%v: %d sectors are in danger after a flush", op, n)
		}
	}
}

// TestVolatileErrorsAreTold: a write that has to be durable at once fails as the device does, and
// so does a flush, which keeps what it could not write.
func TestVolatileErrorsAreTold(t *testing.T) {
	m, err := NewMem(MemOptions{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	f := NewFault(m, 1)
	v := NewVolatile(f, 1)
	word := bytes.Repeat([]byte{0xaa}, 512)
	f.Add(Rule{Ops: Ops(OpWrite), Err: ErrMedium, Count: 1})
	if err := WriteAt(v, word, 0, FUA); err == nil {
		t.Error("a durable write succeeded where the device failed")
	}
	v.Restore()
	if err := WriteAt(v, word, 512, 0); err != nil {
		t.Fatal(err)
	}
	f.Add(Rule{Ops: Ops(OpWrite), Err: ErrMedium, Count: 1})
	if err := Do(v, &Request{Op: OpFlush}); err == nil || v.Unsynced() != 1 {
		t.Errorf("a flush that failed: %v, %d sectors kept", err, v.Unsynced())
	}
}

// TestMapIntoLittleRoom: a map stops where there is room for no more extents, and what it has
// said until then is right.
func TestMapIntoLittleRoom(t *testing.T) {
	m, err := NewMem(MemOptions{Size: 16 * memPage})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []uint64{0, 2, 4} {
		if err := WriteAt(m, make([]byte, memPage), page*memPage, 0); err != nil {
			t.Fatal(err)
		}
	}
	data, hole := Extent{Len: memPage}, Extent{Len: memPage, Hole: true, Zero: true}
	all := []Extent{data, hole, data, hole, data, {Len: 11 * memPage, Hole: true, Zero: true}}
	for room := 1; room <= len(all); room++ {
		got, err := m.Map(0, 16*memPage, make([]Extent, 0, room))
		if err != nil || !slices.Equal(got, all[:room]) {
			t.Errorf("room for %d: %+v, %v; want %+v", room, got, err, all[:room])
		}
	}
}

// TestFilesHaveAnIdentity: a file is the same by whatever name it was opened, and no other is.
func TestFilesHaveAnIdentity(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, n), make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	ids := map[string]FileID{}
	for _, n := range []string{"a", "b", "c"} {
		f, err := OpenFile(filepath.Join(dir, n), FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids[n] = f.ID()
		if f.Name() != filepath.Join(dir, n) {
			t.Errorf("its name is %q", f.Name())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "a"), &st); err != nil {
		t.Fatal(err)
	}
	if ids["a"] != ids["c"] || ids["a"] == ids["b"] || ids["a"].Block || ids["a"].Ino != st.Ino {
		t.Errorf("%+v", ids)
	}
}

// TestOwnFilesAreReadQuietly: reads of a file that is ours do not set the time of its last access,
// so that they wait for no journal.
func TestOwnFilesAreReadQuietly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd, _, quiet, err := reopen(fd, path, unix.O_RDONLY)
	if err != nil || !quiet {
		t.Fatalf("quiet %v, %v", quiet, err)
	}
	unix.Close(fd)
}
