package blk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

func testFile(t *testing.T, size int64, o FileOptions) (*File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

// withSync puts another fdatasync in place for a test.
func withSync(t *testing.T, f func(fd int) error) {
	t.Helper()
	old := fdatasync
	fdatasync = f
	t.Cleanup(func() { fdatasync = old })
}

// TestSyncFails is B7: after one failed sync no other succeeds, though the
// kernel would say so; reads and plain writes go on; opening again helps.
func TestSyncFails(t *testing.T) {
	calls := 0
	withSync(t, func(fd int) error {
		if calls++; calls == 2 {
			return syscall.EIO
		}
		return unix.Fdatasync(fd)
	})
	f, path := testFile(t, 1<<20, FileOptions{})
	b := bytes.Repeat([]byte{1}, 4096)
	if err := WriteAt(f, b, 0, FUA); err != nil {
		t.Fatal(err)
	}
	if err := Flush(f); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrSyncFailed) {
		t.Errorf("the flush that fails: %v", err)
	}
	for i := range 3 {
		if err := Flush(f); !errors.Is(err, ErrSyncFailed) {
			t.Errorf("flush %d after it: %v", i, err)
		}
	}
	if err := WriteAt(f, bytes.Repeat([]byte{2}, 4096), 8192, FUA); !errors.Is(err, ErrSyncFailed) {
		t.Errorf("a write with FUA: %v", err)
	}
	if err := Discard(f, 0, 4096, FUA); !errors.Is(err, ErrSyncFailed) {
		t.Errorf("a discard with FUA: %v", err)
	}
	if err := WriteAt(f, b, 4096, 0); err != nil {
		t.Errorf("a plain write: %v", err)
	}
	got := make([]byte, 12288)
	if err := ReadAt(f, got, 0); err != nil || got[0] != 1 || got[4096] != 1 || got[8192] != 0 {
		t.Errorf("%d %d %d, %v", got[0], got[4096], got[8192], err)
	}
	if calls != 2 {
		t.Errorf("fdatasync was called %d times", calls)
	}
	f.Close()
	again, err := OpenFile(path, FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := Flush(again); err != nil {
		t.Errorf("a flush after opening again: %v", err)
	}
}

// TestErrnoOfAStore: with whatever number a store fails, it is not that of a refused request,
// and a sync that failed with it is lost.
func TestErrnoOfAStore(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EROFS, syscall.ENOTCONN, syscall.EPERM, syscall.EACCES, syscall.EINVAL,
		syscall.EOPNOTSUPP, syscall.ESHUTDOWN, syscall.EIO, syscall.ENOSPC, syscall.EDQUOT} {
		want := ErrMedium
		if errno == syscall.ENOSPC || errno == syscall.EDQUOT {
			want = ErrNoSpace
		}
		b := make([]byte, 512)
		f, _ := testFile(t, 1<<20, FileOptions{})
		write := pwrite
		pwrite = func(int, []byte, int64) (int, error) { return 0, errno }
		err := WriteAt(f, b, 0, 0)
		pwrite = write
		if !errors.Is(err, want) {
			t.Errorf("a write that fails with %v: %v; want %v", errno, err, want)
		}
		for what, sync := range map[string]func(*File) error{
			"a flush":          func(f *File) error { return Flush(f) },
			"a write with FUA": func(f *File) error { return WriteAt(f, b, 0, FUA) },
		} {
			f, _ := testFile(t, 1<<20, FileOptions{})
			old := fdatasync
			fdatasync = func(int) error { return errno }
			err := sync(f)
			fdatasync = old
			if !errors.Is(err, ErrMedium) {
				t.Errorf("%s that fails with %v: %v", what, errno, err)
			}
			if err := Flush(f); !errors.Is(err, ErrSyncFailed) {
				t.Errorf("a flush after %s that failed with %v: %v", what, errno, err)
			}
		}
	}
}

// TestWriteOnNFS: a write that fails there has brought the error of earlier ones, which no sync tells again,
// not even one that was under way.
func TestWriteOnNFS(t *testing.T) {
	for _, flags := range []Flags{0, FUA} {
		writing, synced := make(chan bool), make(chan bool)
		once := sync.OnceFunc(func() { close(synced) })
		withSync(t, func(int) error { once(); return nil })
		write := pwrite
		pwrite = func(int, []byte, int64) (int, error) { close(writing); <-synced; return 0, unix.ENOSPC }
		f, _ := testFile(t, 1<<20, FileOptions{})
		f.nfs = true
		wrote := make(chan error)
		go func() { wrote <- WriteAt(f, make([]byte, 512), 0, flags) }()
		<-writing
		during := Flush(f)
		err := <-wrote
		pwrite = write
		if !errors.Is(err, ErrMedium) || !LosesSync(&Request{Op: OpWrite, Flags: flags}, err) {
			t.Errorf("the write: %v", err)
		}
		if after := Flush(f); !errors.Is(during, ErrSyncFailed) || !errors.Is(after, ErrSyncFailed) {
			t.Errorf("flushes during it and after it: %v, %v", during, after)
		}
	}
}

// TestSyncFailsForAll: those that share a sync share its failure.
func TestSyncFailsForAll(t *testing.T) {
	first, release := make(chan bool), make(chan bool)
	var calls atomic.Int32
	withSync(t, func(int) error {
		switch calls.Add(1) {
		case 1:
			close(first)
			<-release
			return nil
		case 2:
			return syscall.ENOSPC
		}
		return nil
	})
	f, _ := testFile(t, 1<<20, FileOptions{})
	errs := make(chan error, 9)
	go func() { errs <- Flush(f) }()
	<-first
	for i := range 8 { // these wait for the next sync, all for the same one
		go func() {
			if i%2 == 0 {
				errs <- Flush(f)
			} else {
				errs <- WriteAt(f, make([]byte, 512), uint64(i)*512, FUA)
			}
		}()
	}
	for {
		f.mu.Lock()
		n := f.syncWait.Len()
		f.mu.Unlock()
		if n == 8 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	// Meanwhile the medium is not needed for what is in the page cache.
	if err := WriteAt(f, make([]byte, 512), 0, 0); err != nil {
		t.Error(err)
	}
	close(release)
	good := 0
	for range 9 {
		if err := <-errs; err == nil {
			good++
		} else if !errors.Is(err, ErrMedium) {
			t.Errorf("%v", err)
		}
	}
	if good != 1 || calls.Load() != 2 {
		t.Errorf("%d succeeded with %d calls of fdatasync; want 1 with 2", good, calls.Load())
	}
}

// TestCloseWaits: Close returns when the slowest request has completed.
func TestCloseWaits(t *testing.T) {
	entered, release := make(chan bool), make(chan bool)
	withSync(t, func(int) error { close(entered); <-release; return nil })
	f, _ := testFile(t, 1<<20, FileOptions{})
	flushed, closed := make(chan error, 1), make(chan error, 1)
	go func() { flushed <- Flush(f) }()
	<-entered
	go func() { closed <- f.Close() }()
	for err := error(nil); !errors.Is(err, ErrClosed); err = ReadAt(f, make([]byte, 512), 0) {
		time.Sleep(time.Millisecond)
	}
	if len(closed) != 0 {
		t.Error("closed with a flush in flight")
	}
	close(release)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for what, f := range map[string]func() error{"refresh": f.Refresh, "resize": func() error { return f.Resize(0) },
		"prefetch": func() error { return f.Prefetch(0, 512) }, "map": func() error { _, err := f.Map(0, 512, nil); return err }} {
		if err := f(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s when closed: %v", what, err)
		}
	}
}

// TestFileSize: a file that somebody else makes shorter or longer.
func TestFileSize(t *testing.T) {
	f, path := testFile(t, 64<<10+100, FileOptions{})
	if n := f.Info().Size; n != 64<<10 {
		t.Errorf("%d bytes are exported of a file of %d", n, 64<<10+100)
	}
	var told atomic.Int64
	stop := f.Watch(func(i *Info) { told.Store(int64(i.Size)) })
	defer stop()
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte{0xee}, 8192)
	if err := ReadAt(f, b, 0); !errors.Is(err, ErrMedium) {
		t.Errorf("a read across the end that moved: %v", err)
	}
	if err := f.Refresh(); err != nil || f.Info().Size != 4096 || told.Load() != 4096 {
		t.Errorf("%v, %d bytes, told of %d", err, f.Info().Size, told.Load())
	}
	if err := ReadAt(f, b, 0); !errors.Is(err, ErrRange) {
		t.Errorf("a read across the new end: %v", err)
	}
	if err := f.Resize(1 << 20); err != nil || f.Info().Size != 1<<20 || told.Load() != 1<<20 {
		t.Errorf("%v, %d bytes, told of %d", err, f.Info().Size, told.Load())
	}
	if err := ReadAt(f, b, 1<<20-8192); err != nil || len(bytes.Trim(b, "\x00")) != 0 {
		t.Errorf("the new part does not read as zeroes (%v)", err)
	}
	if err := f.Resize(1000); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a size of 1000: %v", err)
	}
	ro, err := OpenFile(path, FileOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if err := ro.Resize(512); !errors.Is(err, ErrReadOnly) {
		t.Errorf("resized read-only: %v", err)
	}
	if err := WriteAt(ro, b, 0, 0); !errors.Is(err, ErrReadOnly) {
		t.Errorf("written read-only: %v", err)
	}
	if err := Flush(ro); err != nil {
		t.Errorf("a flush read-only: %v", err)
	}
}

// allocated is how many bytes of a file the file system has on the medium.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestHoles: discards give space back; zeroes do too unless they may not.
func TestHoles(t *testing.T) {
	f, path := testFile(t, 1<<20, FileOptions{})
	if f.Info().MaxDiscard == 0 {
		t.Skip("elsewhere: the file system has no holes")
	}
	for _, c := range []struct {
		name string
		do   func() error
		want func(n int64) bool
	}{
		{"discard", func() error { return Discard(f, 0, 512<<10, 0) }, func(n int64) bool { return n <= 600<<10 }},
		{"write zeroes", func() error { return WriteZeroes(f, 0, 512<<10, FUA) }, func(n int64) bool { return n <= 600<<10 }},
		{"write zeroes, allocated", func() error { return WriteZeroes(f, 0, 512<<10, NoUnmap) }, func(n int64) bool { return n >= 1<<20 }},
	} {
		if err := WriteAt(f, bytes.Repeat([]byte{1}, 1<<20), 0, FUA); err != nil {
			t.Fatal(err)
		}
		if err := c.do(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		b := make([]byte, 1<<20)
		if err := ReadAt(f, b, 0); err != nil || len(bytes.Trim(b[:512<<10], "\x00")) != 0 || len(bytes.Trim(b[512<<10:], "\x01")) != 0 {
			t.Errorf("%s: the content is wrong (%v)", c.name, err)
		}
		if n := allocated(t, path); !c.want(n) {
			t.Errorf("%s: %d bytes are allocated", c.name, n)
		}
	}
}

// TestZeroFallback: where the file system has neither holes nor unwritten
// extents, zeroes are written, unless that had to be fast.
func TestZeroFallback(t *testing.T) {
	f, _ := testFile(t, 4<<20, FileOptions{})
	f.refused.punch.Store(true)
	f.refused.zeroRange.Store(true)
	if err := WriteAt(f, bytes.Repeat([]byte{1}, 4<<20), 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := WriteZeroes(f, 512, 3<<20, FastZero); !errors.Is(err, ErrNotSupported) {
		t.Errorf("fast: %v", err)
	}
	b := make([]byte, 4<<20)
	if err := ReadAt(f, b, 0); err != nil || len(bytes.Trim(b, "\x01")) != 0 {
		t.Errorf("the refused request did something (%v)", err)
	}
	if err := WriteZeroes(f, 512, 3<<20, 0); err != nil {
		t.Error(err)
	}
	if err := ReadAt(f, b, 0); err != nil || len(bytes.Trim(b[512:512+3<<20], "\x00")) != 0 || b[511] != 1 || b[512+3<<20] != 1 {
		t.Errorf("the content is wrong (%v)", err)
	}
}

// mountTmpfs gives a file system of a few bytes.
func mountTmpfs(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("elsewhere: no right to mount: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// TestStoreFull: ENOSPC goes to the write concerned, and later ones that fit succeed.
func TestStoreFull(t *testing.T) {
	path := filepath.Join(mountTmpfs(t, 1<<20), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 8<<20); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path, FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := WriteAt(f, bytes.Repeat([]byte{1}, 2<<20), 0, 0); !errors.Is(err, ErrNoSpace) {
		t.Errorf("2 MiB into 1: %v", err)
	}
	if err := Discard(f, 0, 8<<20, 0); err != nil {
		t.Fatal(err)
	}
	if err := WriteAt(f, bytes.Repeat([]byte{2}, 64<<10), 4<<20, FUA); err != nil {
		t.Errorf("after space was given back: %v", err)
	}
	if err := Flush(f); err != nil {
		t.Errorf("a full store is no failed sync: %v", err)
	}
}

// TestWorkersBounded: however much waits, no more than the limit are at it.
func TestWorkersBounded(t *testing.T) {
	f, _ := testFile(t, 1<<20, FileOptions{Workers: 3})
	f.refused.nowaitRead.Store(true) // so that every read needs a worker
	for range 20 {
		done := make(chan bool, 200)
		queue := CompleteFunc(func(r *Request) { done <- r.Err == nil })
		batch := make([]*Request, 200)
		for i := range batch {
			batch[i] = &Request{Op: OpRead, Len: 512, Buf: make([]byte, 512), Queue: queue}
		}
		f.Submit(batch)
		f.mu.Lock()
		n := f.workers
		f.mu.Unlock()
		if n > 3 {
			t.Fatalf("%d workers", n)
		}
		for range batch {
			if !<-done {
				t.Fatal("a read failed")
			}
		}
	}
	for {
		f.mu.Lock()
		n, slow, waiting := f.workers, f.slow, f.queue.Len()+f.writes.Len()+f.writing
		f.mu.Unlock()
		if n == 0 {
			if slow != 0 || waiting != 0 {
				t.Errorf("without workers %d are at work and %d wait", slow, waiting)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFileOptions(t *testing.T) {
	_, path := testFile(t, 1<<20, FileOptions{})
	for _, o := range []FileOptions{{LogicalBlock: 1024}, {Workers: -1}} {
		if _, err := OpenFile(path, o); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := OpenFile(path+"x", FileOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
