package blk

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stalled makes every call to a store that writes, or asks it, stand still until
// release is called; at counts those that do.
func stalled(t *testing.T) (at *atomic.Int32, release func()) {
	t.Helper()
	at = new(atomic.Int32)
	open := make(chan struct{})
	wait := func() {
		at.Add(1)
		<-open
	}
	w, a, d, tr, st := pwrite, fallocate, fdatasync, ftruncate, fstat
	pwrite = func(fd int, b []byte, off int64) (int, error) { wait(); return unix.Pwrite(fd, b, off) }
	fallocate = func(fd int, mode uint32, off, n int64) error { wait(); return unix.Fallocate(fd, mode, off, n) }
	fdatasync = func(fd int) error { wait(); return unix.Fdatasync(fd) }
	ftruncate = func(fd int, n int64) error { wait(); return unix.Ftruncate(fd, n) }
	fstat = func(fd int, s *unix.Stat_t) error { wait(); return unix.Fstat(fd, s) }
	release = sync.OnceFunc(func() { close(open) })
	t.Cleanup(func() { // after the files are closed
		pwrite, fallocate, fdatasync, ftruncate, fstat = w, a, d, tr, st
	})
	return at, release
}

// soon runs f, which must not wait for anything.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s waits for the store", what)
	}
}

// counter counts what completes.
type counter struct {
	ok, failed atomic.Int32
}

func (c *counter) Complete(batch []*Request) {
	for _, r := range batch {
		if r.Err != nil {
			c.failed.Add(1)
		} else {
			c.ok.Add(1)
		}
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// TestSubmitNeverWaits: whatever a store that stands still is asked, Submit comes
// back at once, for it is called on threads that serve others too; what the page
// cache holds is read all the same, and while somebody asks for another size.
func TestSubmitNeverWaits(t *testing.T) {
	f, _ := testFile(t, 1<<20, FileOptions{})
	buf := make([]byte, 4096)
	if err := WriteAt(f, buf, 0, 0); err != nil {
		t.Fatal(err)
	}
	at, release := stalled(t)
	defer release()
	held := &counter{}
	requests := []*Request{
		{Op: OpWrite, Len: 4096, Buf: buf},
		{Op: OpWrite, Flags: FUA, Off: 4096, Len: 4096, Buf: buf},
		{Op: OpDiscard, Off: 8192, Len: 4096},
		{Op: OpWriteZeroes, Off: 12288, Len: 4096},
		{Op: OpWriteZeroes, Flags: NoUnmap, Off: 16384, Len: 4096},
		{Op: OpFlush},
	}
	for i, r := range requests {
		r.Queue = held
		soon(t, "Submit of a "+r.Op.String(), func() { f.Submit([]*Request{r}) })
		eventually(t, "it is at the store", func() bool { return int(at.Load()) == i+1 })
	}
	sized := make(chan error, 2)
	go func() { sized <- f.Resize(2 << 20) }()
	eventually(t, "the size is being set", func() bool { return int(at.Load()) == len(requests)+1 })
	go func() { sized <- f.Refresh() }()
	reads := &counter{}
	soon(t, "Submit of a read", func() {
		f.Submit([]*Request{{Op: OpRead, Len: 4096, Buf: make([]byte, 4096), Queue: reads}})
		f.Info()
	})
	eventually(t, "what is in the page cache is read", func() bool { return reads.ok.Load() == 1 })
	if n := held.ok.Load() + held.failed.Load(); n != 0 {
		t.Errorf("%d requests have completed while the store stands still", n)
	}
	release()
	eventually(t, "everything completes", func() bool { return int(held.ok.Load()) == len(requests) })
	for range 2 {
		if err := <-sized; err != nil {
			t.Error(err)
		}
	}
	if got := f.Info().Size; got != 2<<20 {
		t.Errorf("%d bytes after the resize", got)
	}
}

// TestStalledFilesShare: files that stand still take no worker from one that does
// not, and all of them together are granted a bounded number.
func TestStalledFilesShare(t *testing.T) {
	const each = 64 // more than a file has workers
	files := maxSpareWorkers/31 + 8
	before := spareWorkers.Load()
	at, release := stalled(t)
	defer release()
	held := &counter{}
	buf := make([]byte, 512)
	list := make([]*File, files)
	for i := range list {
		list[i] = stalledFile(t)
		batch := make([]*Request, each)
		for j := range batch {
			batch[j] = &Request{Op: OpWrite, Flags: FUA, Off: uint64(j) * 512, Len: 512, Buf: buf, Queue: held}
		}
		list[i].Submit(batch)
	}
	eventually(t, "as many wait as may", func() bool { return int(at.Load()) == maxSpareWorkers-int(before)+files })
	if n := spareWorkers.Load(); n != maxSpareWorkers {
		t.Errorf("%d workers beyond the first of each file; want %d", n, maxSpareWorkers)
	}
	// One more has a worker, though none is left to share.
	last := stalledFile(t)
	n := at.Load()
	last.Submit([]*Request{{Op: OpWrite, Len: 512, Buf: buf, Queue: held}})
	eventually(t, "the store of one more is asked", func() bool { return at.Load() == n+1 })
	release()
	eventually(t, "everything completes", func() bool { return int(held.ok.Load()) == files*each+1 })
	eventually(t, "all workers beyond the first are given back", func() bool { return spareWorkers.Load() == before })
}

// stalledFile is a file of a store that stands still, so that it is not asked for
// anything when it is opened.
func stalledFile(t *testing.T) *File {
	t.Helper()
	s := fstat
	fstat = unix.Fstat
	defer func() { fstat = s }()
	f, _ := testFile(t, 1<<20, FileOptions{})
	return f
}

// TestWorkerLingers: a worker that has nothing left to do is there for what comes
// soon, and gone when nothing does.
func TestWorkerLingers(t *testing.T) {
	l := linger{}
	l.init()
	if d := l.begin(); d != lingerFor {
		t.Fatalf("the first moment is %v", d)
	}
	if d := l.begin(); d != 0 {
		t.Errorf("a second worker lingers for %v", d)
	}
	l.posted.Store(true)
	if found, _ := l.wait(lingerFor); !found {
		t.Error("what was posted is not found")
	}
	l.end(true, false)
	l.posted.Store(false)
	// Work that comes late each time ends it, work that comes soon brings it back.
	for i := 0; l.budget > 0; i++ {
		if i > 10 {
			t.Fatalf("after %d moments in vain the next is %v still", i, l.budget)
		}
		if l.begin() == 0 {
			t.Fatal("a moment is left out")
		}
		l.end(false, false)
		l.ended = time.Now().Add(-time.Second)
		l.started()
	}
	if d := l.begin(); d != 0 {
		t.Errorf("without a budget: %v", d)
	}
	l.started()
	if l.begin() != lingerFor {
		t.Error("work that came soon does not bring the moment back")
	}
	// One who computes meanwhile has the processor: the next moments are left out.
	l.end(false, true)
	left := 0
	for l.begin() == 0 {
		left++
	}
	l.end(false, true)
	more := 0
	for l.begin() == 0 {
		more++
	}
	if left != 2 || more != 4 {
		t.Errorf("%d moments were left out, then %d; want 2 and 4", left, more)
	}
}

// TestLookInVain: a worker that has looked on and found nothing has nothing to do; with something in a queue it
// has, whoever found that.
func TestLookInVain(t *testing.T) {
	f, _ := testFile(t, 1<<20, FileOptions{})
	f.mu.Lock()
	defer f.mu.Unlock()
	for range 3 {
		if f.look() {
			t.Fatal("there is something to do in a store that nobody asks for anything")
		}
	}
	f.linger = linger{}
	f.linger.init()
	f.writes.Push(&Request{})
	if !f.look() {
		t.Error("a write that waits is nothing to do")
	}
	f.writes.Pop()
}
