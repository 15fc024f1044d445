package blk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// tmpfsFile makes a volume in a file system in memory, filled with ones.
func tmpfsFile(t *testing.T, size int64, o FileOptions) (*File, string) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "rdsd")
	if err != nil {
		t.Skipf("elsewhere: no tmpfs at /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "volume")
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, int(size)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

// inPlace reads and reports whether no worker was needed for it.
func inPlace(t *testing.T, f *File, off uint64, want []byte) bool {
	t.Helper()
	done := make(chan error, 1)
	r := &Request{Op: OpRead, Off: off, Len: uint64(len(want)), Buf: make([]byte, len(want)), Queue: CompleteFunc(func(r *Request) { done <- r.Err })}
	budget := inlineRead
	f.mu.Lock()
	f.inFlight++ // as Submit counts it: Close waits
	f.mu.Unlock()
	now := f.readNow(r, &budget)
	f.finished(1)
	if !now {
		f.Submit([]*Request{r})
		if err := <-done; err != nil {
			t.Fatalf("read at %d: %v", off, err)
		}
	}
	if !bytes.Equal(r.Buf, want) {
		t.Fatalf("read at %d, in place %v: not what is there", off, now)
	}
	return now
}

// TestReadsInMemory: a file system that knows no RWF_NOWAIT and waits for nothing but pages that
// are not there is read in place where they are.
func TestReadsInMemory(t *testing.T) {
	f, _ := tmpfsFile(t, 4<<20, FileOptions{})
	ones := bytes.Repeat([]byte{1}, 1<<20)
	if _, err := preadv2(f.fd, make([]byte, 512), 0, unix.RWF_NOWAIT); err == nil {
		t.Skip("elsewhere: tmpfs takes RWF_NOWAIT")
	}
	inPlace(t, f, 0, ones[:512])
	if !f.refused.nowaitRead.Load() {
		t.Fatal("it was not learnt that there is no RWF_NOWAIT")
	}
	for _, x := range []struct{ off, n uint64 }{{0, 512}, {512, 4096}, {4096, 8192}, {512, 1<<20 - 512}, {3 << 20, 1 << 20}, {512, 1 << 20}} {
		if !inPlace(t, f, x.off, ones[:x.n]) {
			t.Errorf("%d bytes at %d needed a worker", x.n, x.off)
		}
	}

	// One page that is not there is enough, at the end of what is read as at its begin.
	if err := unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 64<<10, 4096); err != nil {
		t.Fatal(err)
	}
	hole := append(bytes.Clone(ones[:512]), make([]byte, 512)...)
	if inPlace(t, f, 64<<10-512, hole) {
		t.Error("a page that is not there was read in place")
	}
	if inPlace(t, f, 64<<10+4096-512, append(make([]byte, 512), ones[:512]...)) {
		t.Error("a page that is not there was read in place")
	}
	if !inPlace(t, f, 64<<10+4096, ones[:4096]) {
		t.Error("what lies behind it needed a worker")
	}

	// What a volume grew by is known too, and what it lost is not.
	if err := f.Resize(8 << 20); err != nil {
		t.Fatal(err)
	}
	if err := WriteAt(f, ones, 7<<20, 0); err != nil {
		t.Fatal(err)
	}
	if !inPlace(t, f, 7<<20, ones) {
		t.Error("the last megabyte needed a worker")
	}
	if err := f.Resize(4 << 20); err != nil {
		t.Fatal(err)
	}
	if f.isResident(7<<20, 512) {
		t.Error("what was cut off is in memory")
	}
}

// TestShorterThanItsVolume: somebody cuts the file behind the volume. Nobody is faulted.
func TestShorterThanItsVolume(t *testing.T) {
	f, path := tmpfsFile(t, 1<<20, FileOptions{})
	inPlace(t, f, 0, bytes.Repeat([]byte{1}, 512))
	if err := os.Truncate(path, 64<<10); err != nil {
		t.Fatal(err)
	}
	if err := ReadAt(f, make([]byte, 4096), 512<<10); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrMedium) {
		t.Errorf("a read behind the end: %v", err)
	}
	if !inPlace(t, f, 0, bytes.Repeat([]byte{1}, 4096)) && f.refused.nowaitRead.Load() {
		t.Error("what is still there needed a worker")
	}
}

// TestNotTold: of a file of somebody else's that it may only read a process is told that all of
// it is in memory, so it does not ask; nor does it of a file on a disk.
func TestNotTold(t *testing.T) {
	f, path := tmpfsFile(t, 1<<20, FileOptions{})
	if f.resident.mapping.Load() == nil {
		t.Error("a file in memory is not asked about")
	}
	own, err := OpenFile(path, FileOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if own.resident.mapping.Load() == nil {
		t.Error("its own file, to be read only, is not asked about")
	}
	if os.Geteuid() != 0 {
		t.Skip("elsewhere: to give a file away takes root")
	}
	if err := os.Chown(path, 1, 1); err != nil {
		t.Fatal(err)
	}
	other, err := OpenFile(path, FileOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.resident.mapping.Load() != nil {
		t.Error("somebody else's file is asked about")
	}
}
