package blk

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
)

func testGuard() (*guard.Guard, *bytes.Buffer) {
	var log bytes.Buffer
	return &guard.Guard{Log: slog.New(slog.NewTextHandler(&log, nil)), Exit: func(int) { panic("the process would end") }}, &log
}

// brokenBy checks that a store is over for good, with one panic counted and its stack in
// the log, and that it can still be closed.
func brokenBy(t *testing.T, d Device, g *guard.Guard, log *bytes.Buffer, first error) {
	t.Helper()
	if !errors.Is(first, ErrMedium) || !errors.Is(first, syscall.EIO) || !strings.Contains(first.Error(), "open the volume again") {
		t.Errorf("the request that met it: %v", first)
	}
	buf := make([]byte, 4096)
	for what, err := range map[string]error{"write": WriteAt(d, buf, 0, 0), "read": ReadAt(d, buf, 0), "flush": Flush(d), "discard": Discard(d, 0, 1<<19, 0)} {
		if !errors.Is(err, ErrMedium) {
			t.Errorf("%s afterwards: %v", what, err)
		}
	}
	if n := g.Count(guard.Volume); n != 1 || !strings.Contains(log.String(), "goroutine ") {
		t.Errorf("%d panics counted, log %q", n, log)
	}
	soon(t, "Close", func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestPanicOfAStore: a panic in the work of a store is the end of that store alone,
// wherever the work is done.
func TestPanicOfAStore(t *testing.T) {
	for what, set := range map[string]func() (restore func(), do func(*File) error){
		"a write": func() (func(), func(*File) error) {
			was := pwrite
			pwrite = func(int, []byte, int64) (int, error) { panic("in a write") }
			return func() { pwrite = was }, func(f *File) error { return WriteAt(f, make([]byte, 4096), 0, 0) }
		},
		"a write through": func() (func(), func(*File) error) {
			was := fdatasync
			fdatasync = func(int) error { panic("in a sync") }
			return func() { fdatasync = was }, func(f *File) error { return WriteAt(f, make([]byte, 4096), 0, FUA) }
		},
		"a flush": func() (func(), func(*File) error) {
			was := fdatasync
			fdatasync = func(int) error { panic("in a sync") }
			return func() { fdatasync = was }, func(f *File) error { return Flush(f) }
		},
		"a discard": func() (func(), func(*File) error) {
			was := fallocate
			fallocate = func(int, uint32, int64, int64) error { panic("in a discard") }
			return func() { fallocate = was }, func(f *File) error { return Discard(f, 0, 4096, 0) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			g, log := testGuard()
			f, _ := testFile(t, 1<<20, FileOptions{Guard: g})
			other, _ := testFile(t, 1<<20, FileOptions{Guard: g})
			restore, do := set()
			err := do(f)
			restore()
			if err := WriteAt(other, make([]byte, 4096), 0, FUA); err != nil {
				t.Errorf("another store: %v", err)
			}
			brokenBy(t, f, g, log, err)
		})
	}
}

// TestPanicOfMemory: so is one of a volume in memory, for a request that is carried out
// in Submit and for a long one.
func TestPanicOfMemory(t *testing.T) {
	for what, n := range map[string]uint64{"in place": memPage, "long": 2 * memInPlace} {
		t.Run(what, func(t *testing.T) {
			g, log := testGuard()
			m, err := NewMem(MemOptions{Size: 8 << 20, Guard: g})
			if err != nil {
				t.Fatal(err)
			}
			m.shards[0].pages = nil // to write there panics
			brokenBy(t, m, g, log, WriteZeroes(m, 0, n, NoUnmap))
		})
	}
}

// panicky panics when it is told of a completion.
type panicky struct{ told atomic.Int32 }

func (p *panicky) Complete([]*Request) {
	p.told.Add(1)
	panic("in a completer")
}

// TestPanicOfACompleter: one who panics when it is told of a completion breaks neither
// the store nor what others are told.
func TestPanicOfACompleter(t *testing.T) {
	g, _ := testGuard()
	f, _ := testFile(t, 1<<20, FileOptions{Guard: g})
	var bad panicky
	var good counter
	var batch []*Request
	for i := range 16 {
		r := &Request{Op: OpWrite, Off: uint64(i) * 4096, Len: 4096, Buf: make([]byte, 4096), Queue: &good}
		if i%4 == 0 {
			r.Queue = &bad
		}
		batch = append(batch, r)
	}
	f.Submit(batch)
	eventually(t, "all are told", func() bool { return good.ok.Load() == 12 && bad.told.Load() > 0 })
	if err := Flush(f); err != nil {
		t.Errorf("the store afterwards: %v", err)
	}
	soon(t, "Close", func() { f.Close() })
	if g.Count(guard.Volume) == 0 || good.failed.Load() != 0 {
		t.Errorf("%d panics, %d failed", g.Count(guard.Volume), good.failed.Load())
	}
}

// TestAttemptsAllocateNothing: to contain panics costs a request no memory.
func TestAttemptsAllocateNothing(t *testing.T) {
	g, _ := testGuard()
	m, err := NewMem(MemOptions{Size: 1 << 20, Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	f, _ := testFile(t, 1<<20, FileOptions{Guard: g})
	r := &Request{Op: OpRead, Len: 4096, Buf: make([]byte, 4096)}
	if _, err := unix.Pwrite(f.fd, r.Buf, 0); err != nil {
		t.Fatal(err)
	}
	budget := inlineRead
	for what, do := range map[string]func(){
		"memory": func() { r.Err = m.attempt(r) }, "file": func() { r.Err = f.attempt(r) },
		"page cache": func() { budget = inlineRead; f.readNow(r, &budget) },
	} {
		if n := testing.AllocsPerRun(100, do); n != 0 || r.Err != nil {
			t.Errorf("%s: %v allocations, %v", what, n, r.Err)
		}
	}
}
