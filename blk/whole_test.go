package blk

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// TestBuckets: the bound of a latency's bucket is above it and at most a quarter too high, the
// buckets follow each other, and what is longer than all of them is in the last.
func TestBuckets(t *testing.T) {
	var at []uint64
	for i := range latencyBuckets {
		end := uint64(bucketEnd(i))
		at = append(at, end-1, end, end+1)
	}
	for e := range 63 {
		for quarter := range uint64(4) {
			at = append(at, 1<<e+quarter<<e/4-1, 1<<e+quarter<<e/4)
		}
	}
	for _, ns := range at {
		i := bucket(ns)
		switch end := uint64(LatencyBound(i)); {
		case i < 0 || i >= latencyBuckets:
			t.Errorf("%d ns: bucket %d of %d", ns, i, latencyBuckets)
		case i == latencyBuckets-1:
			if end != 0 || ns < uint64(bucketEnd(i-1)) {
				t.Errorf("%d ns: the last bucket, whose bound is %d", ns, end)
			}
		case ns >= end || i > 0 && (ns < uint64(bucketEnd(i-1)) || ns+ns/4 < end-1):
			t.Errorf("%d ns: bucket %d, whose bound is %d", ns, i, end)
		}
	}
}

// TestStatsOfUnknownOperations: a request of no operation passes, with its error, and is
// counted nowhere.
func TestStatsOfUnknownOperations(t *testing.T) {
	m, err := NewMem(MemOptions{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s := NewStats(m)
	defer s.Close()
	for _, op := range []Op{numOps, numOps + 1, 255} {
		done := make(chan error, 1)
		s.Submit([]*Request{{Op: op, Queue: CompleteFunc(func(r *Request) { done <- r.Err })}})
		if err := <-done; !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("operation %d: %v", op, err)
		}
	}
	for op, c := range s.Counts() {
		if c.Submitted+c.Completed+c.Errors+c.Bytes != 0 {
			t.Errorf("%v: %+v", Op(op), c)
		}
	}
}

// TestMapAgainstAModel: a map of any range is of runs as long as they are, none empty, each of
// another kind than the one before, and together the range.
func TestMapAgainstAModel(t *testing.T) {
	const pages = 24
	rng := rand.New(rand.NewSource(1))
	for range 100 {
		m, err := NewMem(MemOptions{Size: pages * memPage})
		if err != nil {
			t.Fatal(err)
		}
		var there [pages]bool
		for i := range there {
			if there[i] = rng.Intn(2) == 0; there[i] {
				if err := WriteAt(m, make([]byte, 512), uint64(i)*memPage, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		unit := []uint64{512, memPage}[rng.Intn(2)] // a range that ends with a page, too
		off := uint64(rng.Intn(int(pages*memPage/unit))) * unit
		n := uint64(1+rng.Intn(int((pages*memPage-off)/unit))) * unit
		got, err := m.Map(off, n, make([]Extent, 0, pages+1))
		if err != nil {
			t.Fatal(err)
		}
		at := off
		for i, e := range got {
			if e.Len == 0 || e.Hole != e.Zero || i > 0 && got[i-1].Hole == e.Hole {
				t.Errorf("extent %d of %+v", i, got)
			}
			for end := at + e.Len; at < end; at += min(memPage-at%memPage, end-at) {
				if at < pages*memPage && there[at/memPage] == e.Hole {
					t.Errorf("%+v: page %d is there: %v", got, at/memPage, e.Hole)
				}
			}
		}
		if at != off+n {
			t.Errorf("%+v: %d bytes of %d", got, at-off, n)
		}
		m.Close()
	}
}

// TestFileOfEachSize: a file whose size is not of whole blocks is exported as far as these go.
func TestFileOfEachSize(t *testing.T) {
	for _, block := range []uint32{512, 4096} {
		for _, n := range []int64{0, 1, 2, 511, 512, 513, 4095, 4096, 4097, 8191, 8193, 12288} {
			f, path := testFile(t, n, FileOptions{LogicalBlock: block})
			var told atomic.Int64
			stop := f.Watch(func(*Info) { told.Add(1) })
			want := uint64(n) / uint64(block) * uint64(block)
			if err := f.Refresh(); err != nil || f.Info().Size != want || told.Load() != 0 {
				t.Errorf("%d bytes in blocks of %d: %d are exported, %v, %d were told of a change", n, block, f.Info().Size, err, told.Load())
			}
			// A part of a block more is no change either.
			if err := os.Truncate(path, int64(want)+1); err != nil {
				t.Fatal(err)
			}
			if err := f.Refresh(); err != nil || f.Info().Size != want || told.Load() != 0 {
				t.Errorf("a byte behind %d: %d are exported, %v, %d were told of a change", want, f.Info().Size, err, told.Load())
			}
			stop()
		}
	}
}

// TestEachRefusalIsTold: what a file's system calls refuse is the outcome, with what the kernel says and
// the volume's name, of each operation; and once a store is not used any more, each says so.
func TestEachRefusalIsTold(t *testing.T) {
	operations := func(f *File) map[string]func() error {
		b := make([]byte, 4096)
		return map[string]func() error{
			"read":         func() error { return ReadAt(f, b, 0) },
			"write":        func() error { return WriteAt(f, b, 0, 0) },
			"FUA":          func() error { return WriteAt(f, b, 0, FUA) },
			"flush":        func() error { return Flush(f) },
			"discard":      func() error { return Discard(f, 0, 4096, 0) },
			"write zeroes": func() error { return WriteZeroes(f, 0, 4096, 0) },
			"map":          func() error { _, err := f.Map(0, 4096, make([]Extent, 0, 1)); return err },
			"prefetch":     func() error { return f.Prefetch(0, 4096) },
			"refresh":      f.Refresh,
			"resize":       func() error { return f.Resize(8192) },
		}
	}
	whole, _ := testFile(t, 64<<10, FileOptions{})
	for what := range operations(whole) {
		f, _ := testFile(t, 64<<10, FileOptions{})
		fd := f.fd
		f.fd = -1
		if err := operations(f)[what](); err == nil || !strings.Contains(err.Error(), unix.EBADF.Error()) || !strings.Contains(err.Error(), f.name) {
			t.Errorf("%s without a file: %v", what, err)
		}
		f.fd = fd
	}

	f, _ := testFile(t, 64<<10, FileOptions{})
	f.sync.fail()
	if err := f.datasync(); !errors.Is(err, ErrSyncFailed) { // one that was begun before the other failed
		t.Errorf("a sync after one that has failed: %v", err)
	}
	f, _ = testFile(t, 64<<10, FileOptions{})
	why := error(rdserr.With(ErrMedium, "broken"))
	f.broken.why.Store(&why)
	if err := f.attemptSync(); err != why {
		t.Errorf("a sync of a store that is not used any more: %v", err)
	}
	for what, do := range operations(f) {
		if what == "map" || what == "prefetch" || what == "refresh" || what == "resize" {
			continue // these ask the file, not what is in it
		}
		if err := do(); err != why {
			t.Errorf("%s of a store that is not used any more: %v", what, err)
		}
	}
}

// TestReadsInPlaceAreBounded: what Submit reads itself counts against its bound, and what is
// more than is left goes to a worker.
func TestReadsInPlaceAreBounded(t *testing.T) {
	f, _ := testFile(t, 64<<10, FileOptions{})
	b := make([]byte, 4096)
	if err := WriteAt(f, b, 0, 0); err != nil { // so that it is in the page cache
		t.Fatal(err)
	}
	budget := 4096 + 512
	for i, x := range []struct{ n, left int }{{4096, 512}, {513, 512}, {512, 0}, {512, 0}} {
		r := &Request{Op: OpRead, Len: uint64(x.n), Buf: b[:x.n]}
		if done := f.readNow(r, &budget); done && x.n > budget+x.n || budget != x.left {
			t.Errorf("read %d, of %d bytes: in place %v, %d are left, want %d", i, x.n, done, budget, x.left)
		}
	}
}

// TestWorkersTellInBatches: a worker tells of several writes at once.
func TestWorkersTellInBatches(t *testing.T) {
	f, _ := testFile(t, 64<<10, FileOptions{Workers: 1})
	q := &batches{told: make(chan int, 64)}
	for end := time.Now().Add(30 * time.Second); ; {
		var batch []*Request
		for i := range 16 {
			batch = append(batch, &Request{Op: OpWrite, Off: uint64(i) * 512, Len: 512, Buf: make([]byte, 512), Queue: q})
		}
		f.Submit(batch)
		most, sum := 0, 0
		for sum < len(batch) {
			n := <-q.told
			most, sum = max(most, n), sum+n
		}
		if most > 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("each write was told of by itself")
		}
	}
}

type batches struct{ told chan int }

func (q *batches) Complete(batch []*Request) { q.told <- len(batch) }

// TestQueueOfADevice: what a block device says of its queue is what is exported.
func TestQueueOfADevice(t *testing.T) {
	for _, x := range []struct {
		rotational, discard, granularity uint64
		want                             Info
	}{
		{0, 0, 0, Info{}},
		{1, 0, 0, Info{Rotational: true}},
		{0, 0, 512, Info{}},
		{0, 512, 512, Info{MaxDiscard: MaxSize, DiscardGranularity: 512}},
		{1, 1 << 40, 1 << 20, Info{Rotational: true, MaxDiscard: MaxSize, DiscardGranularity: 1 << 20}},
	} {
		var i Info
		describeQueue(&i, func(name string) uint64 {
			return map[string]uint64{"rotational": x.rotational, "discard_max_bytes": x.discard, "discard_granularity": x.granularity}[name]
		})
		if i != x.want {
			t.Errorf("%+v: %+v", x, i)
		}
	}
}

// TestSplitSizes: pieces are as large as the device takes them in whole blocks, and what it
// takes at once is handed on as it is.
func TestSplitSizes(t *testing.T) {
	for _, block := range []uint32{512, 4096} {
		for _, most := range []uint64{1, 511, 512, 513, 1000, 1024, 1536, 1537, 2000, 2560, 4096, 5000, 12288, 12800} {
			m, err := NewMem(MemOptions{Size: 1 << 20, LogicalBlock: block})
			if err != nil {
				t.Fatal(err)
			}
			info := *m.Info()
			info.MaxDiscard = most
			d := &limited{Mem: m, info: &info}
			s := Split(d)
			whole := max(most/uint64(block), 1) * uint64(block)
			for _, n := range []uint64{whole, whole + uint64(block), 7 * whole} {
				d.got = nil
				done := make(chan error, 1)
				r := &Request{Op: OpDiscard, Off: uint64(block), Len: n, Queue: CompleteFunc(func(r *Request) { done <- r.Err })}
				s.Submit([]*Request{r})
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				at := r.Off
				for i, p := range d.got {
					if p.Off != at || p.Len != min(whole, r.Off+n-at) {
						t.Errorf("blocks of %d, at most %d: piece %d of %d bytes at %d", block, most, i, p.Len, p.Off)
					}
					at += p.Len
				}
				if at != r.Off+n || (n <= most) != (d.got[0].Queue == r.Queue && len(d.got) == 1 && d.was[0] == r) {
					t.Errorf("blocks of %d, at most %d: %d bytes of %d in %d pieces", block, most, at-r.Off, n, len(d.got))
				}
				d.was = nil
			}
			s.Close()
		}
	}
}

// limited is memory that says of itself what it is told, and keeps what it is asked for.
type limited struct {
	*Mem
	info *Info
	got  []Request
	was  []*Request
}

func (l *limited) Info() *Info { return l.info }

func (l *limited) Submit(batch []*Request) {
	for _, r := range batch {
		l.got, l.was = append(l.got, *r), append(l.was, r)
	}
	l.Mem.Submit(batch)
}

// TestFaultsInPlace: a rule without a delay is carried out within Submit.
func TestFaultsInPlace(t *testing.T) {
	m, err := NewMem(MemOptions{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	f := NewFault(m, 1)
	defer f.Close()
	f.Add(Rule{Err: ErrMedium})
	for i := range 100 {
		told := false
		f.Submit([]*Request{{Op: OpRead, Len: 512, Buf: make([]byte, 512), Queue: CompleteFunc(func(r *Request) { told = errors.Is(r.Err, ErrMedium) })}})
		if !told {
			t.Fatalf("request %d was not told of its error within Submit", i)
		}
	}
}

// TestLinksAreNamed: who names a link, or what is behind one, is told that this is why.
func TestLinksAreNamed(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "real"), 0o700),
		os.WriteFile(filepath.Join(dir, "real", "file"), make([]byte, 512), 0o600),
		os.Symlink("real", filepath.Join(dir, "link")),
		os.Symlink("real/file", filepath.Join(dir, "last")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if fd, err := unix.Openat2(r.fd, "real", &unix.OpenHow{Flags: unix.O_PATH}); err != nil {
		t.Skipf("elsewhere: no openat2: %v", err)
	} else {
		unix.Close(fd)
	}
	for _, name := range []string{"link/file", "last", "link"} {
		f, err := r.Open(name, FileOptions{})
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, rdserr.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnknownFlags: a flag that nobody knows is refused with each operation, beside whatever else
// is asked for, and each that is known is refused only where it means nothing.
func TestUnknownFlags(t *testing.T) {
	i := Info{Size: 1 << 20, LogicalBlock: 512, PhysicalBlock: 512, MaxBytes: MaxIO, MaxDiscard: MaxSize, MaxWriteZeroes: MaxSize, FUA: true, FastZero: true}
	for op := range numOps {
		for flags := range 256 {
			n := uint64(512)
			if op == OpFlush {
				n = 0
			}
			f := Flags(flags)
			wrong := f&^allFlags != 0 || f&(NoUnmap|FastZero) != 0 && op != OpWriteZeroes
			if err := i.CheckRange(op, f, 0, n); wrong != errors.Is(err, ErrRequest) || !wrong && err != nil {
				t.Errorf("%v with flags %#x: %v", op, flags, err)
			}
		}
	}
}

// TestCloseLetsGoOfMemory: what was mapped of a file is not mapped any more when it is closed,
// however often its size has changed.
func TestCloseLetsGoOfMemory(t *testing.T) {
	f, path := tmpfsFile(t, 1<<20, FileOptions{})
	mapped := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skipf("elsewhere: %v", err)
		}
		return strings.Count(string(b), path)
	}
	for _, size := range []uint64{2 << 20, 4096, 1 << 20} {
		if err := f.Resize(size); err != nil {
			t.Fatal(err)
		}
		if n := mapped(); n != 1 {
			t.Errorf("mapped %d times at a size of %d", n, size)
		}
	}
	if err := f.Close(); err != nil || mapped() != 0 {
		t.Errorf("closed, and mapped %d times: %v", mapped(), err)
	}
}
