package volume

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// TestSaverCoalesces: however often something is marked, there is one writer, a
// bounded number of writes, and the last of them sees the last change.
func TestSaverCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var value, written, writes atomic.Int64
		s := newSaver(thisMachine(nil), func() error {
			now := value.Load()
			time.Sleep(3 * time.Millisecond) // what a disk takes
			written.Store(now)
			writes.Add(1)
			return nil
		}, func(err error) { t.Errorf("told %v", err) })
		go s.run()
		for range 2000 {
			value.Add(1)
			s.mark()
			time.Sleep(500 * time.Microsecond)
		}
		synctest.Wait()
		if n, most := writes.Load(), int64(time.Second/saveEvery)+2; n < 5 || n > most {
			t.Errorf("%d writes for 2,000 marks in a second; at most %d are wanted", n, most)
		}
		time.Sleep(saveEvery + 10*time.Millisecond)
		synctest.Wait()
		if written.Load() != value.Load() {
			t.Errorf("%d was written, %d is there", written.Load(), value.Load())
		}
		// Those that wait are told at once, together.
		before, began := writes.Load(), time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := s.save(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if writes.Load()-before > 2 || time.Since(began) > 2*3*time.Millisecond {
			t.Errorf("100 that waited took %d writes and %v", writes.Load()-before, time.Since(began))
		}
		// What is marked at the end is written.
		value.Add(1)
		s.mark()
		s.end()
		if written.Load() != value.Load() {
			t.Error("the last change is lost at the end")
		}
		if err := s.save(); !errors.Is(err, syscall.ESHUTDOWN) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestSaverTriesAgain: an error is told once, to those who wait each time, and what
// could not be written is tried again, at growing pauses, until it is.
func TestSaverTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		full.Store(true)
		var at []time.Duration
		var told []error
		began := time.Now()
		s := newSaver(thisMachine(nil), func() error {
			at = append(at, time.Since(began))
			if full.Load() {
				return syscall.ENOSPC
			}
			return nil
		}, func(err error) { told = append(told, err) })
		go s.run()
		s.mark()
		time.Sleep(40 * time.Second)
		synctest.Wait()
		want := []time.Duration{0, 1, 3, 7, 15, 31}
		if len(at) != len(want) {
			t.Fatalf("tried at %v", at)
		}
		for i := range at {
			if d := at[i] - want[i]*time.Second; d < 0 || d > 100*time.Millisecond {
				t.Errorf("try %d at %v, want %v s", i, at[i], int(want[i]))
			}
		}
		if err := s.save(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("who waits is told %v", err)
		}
		synctest.Wait()
		if len(told) != 1 || !errors.Is(told[0], syscall.ENOSPC) {
			t.Errorf("told %v", told)
		}
		full.Store(false)
		time.Sleep(retryMax + time.Second)
		synctest.Wait()
		if n := len(at); len(told) != 2 || told[1] != nil || n != len(want)+2 {
			t.Errorf("told %v after %d tries", told, n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(at) != len(want)+2 {
			t.Error("written again though nothing changed")
		}
		full.Store(true)
		s.mark()
		s.end()
		if len(told) != 3 {
			t.Errorf("told %v; the last write failed", told)
		}
	})
}

// TestSaverTriesForWhoWaits: while a disk fails, with a long pause until it is tried again, one
// who waits has it tried after saveEvery at most, with an answer of his own.
func TestSaverTriesForWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSaver(thisMachine(nil), func() error { return syscall.ENOSPC }, func(error) {})
		go s.run()
		s.mark()
		time.Sleep(20 * time.Second) // the next try is at 31 s
		synctest.Wait()
		began := time.Now()
		if err := s.soon(); !errors.Is(err, syscall.ENOSPC) || time.Since(began) > saveEvery {
			t.Errorf("told %v after %v", err, time.Since(began))
		}
		s.end()
	})
}

// opener has a session of the client at the server, and returns what opens a volume
// there for writing and closes it again.
func opener(t *testing.T, server, client *testNode) func(name string) error {
	t.Helper()
	ctx := testCtx(t)
	spec := MapSpec{Node: server.node(), Name: "any", Access: AccessRW}
	if err := client.h.cfg.complete(&spec); err != nil {
		t.Fatal(err)
	}
	c, err := client.h.session(ctx, &spec, &MapSpec{}, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.h.release(c) })
	return func(name string) error {
		now := c.lock(client.h.now())
		d, err := c.openVolume(now, name, AccessRW, nil, nil)
		c.finish(now)
		if err == nil {
			err = d.wait(ctx, true)
		}
		if err == nil && !d.unmap(false) {
			err = errors.New("the volume is not closed")
		}
		return err
	}
}

// TestManyOpens: a node that opens and closes a volume for writing as fast as it can
// makes the other one neither start goroutines nor sync its state each time.
func TestManyOpens(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.quiet, client.quiet = true, true
	client.cfg.StateDir = "" // all writes are the server's
	var writes atomic.Int32
	server.writesBy(func(name string, b []byte) error {
		writes.Add(1)
		return replaceFile(name, b)
	})
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "mem", 1<<20))
	openAndClose := opener(t, server, client)
	cycle := func() {
		if err := openAndClose("mem"); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	before, began, was := runtime.NumGoroutine(), time.Now(), writes.Load()
	const opens = 2000
	most, kept := 0, ""
	var stacks [1 << 20]byte
	for range opens {
		cycle()
		if runtime.NumGoroutine() > before+maxVisitors {
			// Those that have ended are not there any more when all have been stopped.
			l := string(stacks[:runtime.Stack(stacks[:], true)])
			if n := 1 + strings.Count(l, "\n\ngoroutine "); n > most {
				most, kept = n, l
			}
		}
	}
	took := time.Since(began)
	if most > before+maxVisitors { // a visitor has its turn when it has it, so it may overlap the next
		t.Errorf("%d goroutines, there were %d:\n%s", most, before, kept)
	}
	if n, limit := int(writes.Load()-was), int(took/saveEvery)+2; n > limit {
		t.Errorf("%d writes of the state for %d opens in %v; at most %d are wanted", n, opens, took, limit)
	}
	// And what it knows is written.
	eventually(t, "all is written down", func() bool { return !server.h.saver.pending() })
	b, err := os.ReadFile(filepath.Join(server.cfg.StateDir, stateFile))
	if err != nil || !strings.Contains(string(b), `"writer"`) {
		t.Errorf("nobody has written, says the state (%v): %s", err, b)
	}
	t.Logf("%d opens in %v, %d writes", opens, took, writes.Load()-was)
}

// TestWriterIsWrittenDownFirst: another session than the last is let in for writing when
// that is on the disk, so that no crash after it lets the former one's waiting writes in;
// where it cannot be written, that session is refused and told why, and readers are not.
func TestWriterIsWrittenDownFirst(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.quiet, client.quiet = true, true
	var full atomic.Bool
	server.writesBy(func(name string, b []byte) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return replaceFile(name, b)
	})
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 1<<20))
	eventually(t, "what was before is written", func() bool { return !server.h.saver.pending() })
	full.Store(true)
	spec := MapSpec{Node: server.node(), Name: "disk"}
	_, err := client.h.Map(testCtx(t), spec)
	if rdserr.Errno(err) != syscall.EIO || !strings.Contains(err.Error(), "disk") {
		t.Errorf("a writer while the disk of the state is full: %v; want EIO", err)
	}
	reader := spec
	reader.Access = AccessRO
	reader.Session = "reader"
	m, err := client.h.Map(testCtx(t), reader)
	if err != nil {
		t.Errorf("a reader: %v", err)
	} else if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Error(err)
	}
	full.Store(false)
	m = mustMap(t, client.h, spec)
	if st, err := readState(server.h.store.disk); err != nil || len(st.Past) != 1 || st.Past[0].Writer != m.Session || !strings.HasSuffix(st.Past[0].Where, "/store") {
		t.Errorf("mapped, and the disk has %+v, %v", st.Past, err)
	}
}

// pending tells whether something is marked and not written.
func (s *saver) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirty
}

// TestExportThatCannotBeWrittenDown: a persistent export that cannot be is taken back, and not
// another one that has its name by then.
func TestExportThatCannotBeWrittenDown(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.quiet = true
	var full atomic.Bool
	var writes atomic.Int32 // of them
	release := make(chan struct{})
	server.writesBy(func(name string, b []byte) error {
		if !full.Load() {
			return replaceFile(name, b)
		}
		writes.Add(1)
		<-release
		return syscall.ENOSPC
	})
	server.start()
	if err := server.h.saveBy(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	ctx := testCtx(t)
	exports := func(n int) func() bool { return func() bool { return len(server.h.Exports()) == n } }
	export := func(size int64) chan error {
		s := file(t, "disk", size)
		s.Persist = true
		done := make(chan error, 1)
		go func() {
			_, err := server.h.Export(ctx, s)
			done <- err
		}()
		return done
	}
	first := export(1 << 20)
	eventually(t, "it is being written down", func() bool { return writes.Load() == 1 })
	gone := make(chan error, 1)
	go func() { gone <- server.h.Unexport(ctx, "disk", false) }()
	eventually(t, "it is taken back", exports(0))
	second := export(2 << 20)
	eventually(t, "another one has its name", exports(1))
	full.Store(false)
	close(release)
	if err := <-first; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the first: %v; want ENOSPC", err)
	}
	if err := errors.Join(<-gone, <-second); err != nil {
		t.Errorf("its end and the second: %v", err)
	}
	client.start()
	if m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"}); m.Info.Size != 2<<20 {
		t.Errorf("mapped with %d bytes", m.Info.Size)
	}
	if err := server.h.Unexport(ctx, "disk", true); err != nil {
		t.Error(err)
	}
}
