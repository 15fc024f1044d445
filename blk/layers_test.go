package blk_test

import (
	"bytes"
	"errors"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// narrow takes little at once, and notes what it gets.
type narrow struct {
	*blk.Mem
	info *blk.Info
	mu   sync.Mutex
	got  []blk.Request
}

func newNarrow(t *testing.T) *narrow {
	n := &narrow{Mem: newMem(t, blk.MemOptions{Size: 64 << 20})}
	i := *n.Mem.Info()
	i.MaxBytes, i.MaxDiscard, i.MaxWriteZeroes = 12<<10, 1<<20, 3<<10
	n.info = &i
	return n
}

func (n *narrow) Info() *blk.Info { return n.info }

func (n *narrow) Submit(batch []*blk.Request) {
	n.mu.Lock()
	for _, r := range batch {
		n.got = append(n.got, *r)
	}
	n.mu.Unlock()
	n.Mem.Submit(batch)
}

// TestSplit: pieces that fit, in order, and together the whole.
func TestSplit(t *testing.T) {
	n := newNarrow(t)
	s := blk.Split(n)
	defer s.Close()
	if err := s.Info().Validate(); err != nil || s.Info().MaxBytes != blk.MaxIO {
		t.Fatalf("%+v, %v", s.Info(), err)
	}
	b := make([]byte, 2<<20+512)
	rand.New(rand.NewSource(1)).Read(b)
	if err := blk.WriteAt(s, b, 512, blk.FUA); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(b))
	if err := blk.ReadAt(s, got, 512); err != nil || !bytes.Equal(got, b) {
		t.Errorf("read something else than was written (%v)", err)
	}
	if err := blk.WriteZeroes(s, 0, 1<<20, blk.NoUnmap); err != nil {
		t.Error(err)
	}
	if err := blk.Discard(s, 0, 64<<20, 0); err != nil {
		t.Error(err)
	}
	if n.Allocated() != 0 {
		t.Errorf("%d bytes are allocated after all was discarded", n.Allocated())
	}
	sums := map[blk.Op]uint64{}
	for _, r := range n.got {
		if err := n.info.Check(&r); err != nil {
			t.Fatalf("a piece that does not fit: %v", err)
		}
		if r.Op == blk.OpWrite && r.Flags != blk.FUA || r.Op == blk.OpWriteZeroes && r.Flags != blk.NoUnmap {
			t.Fatalf("%v with flags %v", r.Op, r.Flags)
		}
		sums[r.Op] += r.Len
	}
	for op, want := range map[blk.Op]uint64{blk.OpWrite: 2<<20 + 512, blk.OpRead: 2<<20 + 512, blk.OpWriteZeroes: 1 << 20, blk.OpDiscard: 64 << 20} {
		if sums[op] != want {
			t.Errorf("%v: the pieces make %d bytes of %d", op, sums[op], want)
		}
	}
	n.got = nil
	if err := blk.WriteAt(s, b, 64<<20-512, 0); !errors.Is(err, blk.ErrRange) || len(n.got) != 0 {
		t.Errorf("a large write across the end: %v, %d pieces", err, len(n.got))
	}
}

// TestSplitErrors: one failed piece fails the whole, once, and ends it.
func TestSplitErrors(t *testing.T) {
	n := newNarrow(t)
	f := blk.NewFault(n, 1)
	s := blk.Split(f)
	defer s.Close()
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 200 << 10, Len: 1, Err: blk.ErrNoSpace})
	f.Add(blk.Rule{Chance: 0.5, Delay: time.Millisecond})
	b := make([]byte, 8<<20)
	if err := blk.WriteAt(s, b, 0, 0); !errors.Is(err, blk.ErrNoSpace) {
		t.Errorf("%v", err)
	}
	if len(n.got) > 64 {
		t.Errorf("%d pieces were carried out although one of the first 64 failed", len(n.got))
	}
	if err := blk.WriteAt(s, b, 1<<20, 0); err != nil {
		t.Errorf("a write that does not touch the bad place: %v", err)
	}
}

// TestFaultRules: what each kind of rule does.
func TestFaultRules(t *testing.T) {
	m := newMem(t, blk.MemOptions{})
	f := blk.NewFault(m, 1)
	defer f.Close()
	b := bytes.Repeat([]byte{1}, 4096)
	write := func(off uint64) error { return blk.WriteAt(f, b, off, 0) }

	hits := f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Skip: 2, Count: 1, Err: blk.ErrMedium})
	for i, want := range []error{nil, nil, blk.ErrMedium, nil} {
		if err := write(0); !errors.Is(err, want) {
			t.Errorf("write %d: %v, want %v", i, err, want)
		}
	}
	if hits() != 1 {
		t.Errorf("%d hits", hits())
	}

	f.Clear()
	f.Add(blk.Rule{Off: 8192, Len: 4096, Err: blk.ErrMedium})
	for off, want := range map[uint64]error{4096: nil, 4096 + 512: blk.ErrMedium, 8192: blk.ErrMedium, 12288 - 512: blk.ErrMedium, 12288: nil} {
		if err := write(off); !errors.Is(err, want) {
			t.Errorf("write at %d: %v, want %v", off, err, want)
		}
	}
	if err := blk.Flush(f); err != nil {
		t.Errorf("a flush touches no range: %v", err)
	}

	f.Clear()
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Short: 1023, Err: blk.ErrNoSpace})
	if err := write(64 << 10); !errors.Is(err, blk.ErrNoSpace) {
		t.Errorf("a short write: %v", err)
	}
	got := make([]byte, 4096)
	if err := blk.ReadAt(m, got, 64<<10); err != nil || got[511] != 1 || got[512] != 0 {
		t.Errorf("a short write wrote not its whole blocks alone: %v, %v", got[508:516], err)
	}

	f.Clear()
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Count: 1, Err: blk.ErrMedium})
	for i, c := range []struct {
		do   func() error
		want error
	}{
		{func() error { return blk.Flush(f) }, blk.ErrMedium},
		{func() error { return blk.Flush(f) }, blk.ErrSyncFailed},
		{func() error { return blk.WriteAt(f, b, 0, blk.FUA) }, blk.ErrSyncFailed},
		{func() error { return write(0) }, nil},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%d after a failed sync: %v, want %v", i, err, c.want)
		}
	}
}

func TestFaultSeed(t *testing.T) {
	pattern := func(seed int64) (s []bool) {
		f := blk.NewFault(newMem(t, blk.MemOptions{}), seed)
		defer f.Close()
		f.Add(blk.Rule{Chance: 0.3, Err: blk.ErrMedium})
		for range 64 {
			s = append(s, blk.ReadAt(f, make([]byte, 512), 0) != nil)
		}
		return s
	}
	same := func(a, b []bool) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	if !same(pattern(1), pattern(1)) || same(pattern(1), pattern(2)) {
		t.Error("the seed does not decide")
	}
}

// TestFaultWaits: stalls and delays, in virtual time.
func TestFaultWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := blk.NewFault(newMem(t, blk.MemOptions{}), 1)
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Delay: time.Minute})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Stall: true, Err: blk.ErrMedium})
		start := time.Now()
		if err := blk.ReadAt(f, make([]byte, 512), 0); err != nil || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		errs, flushed := make(chan error, 2), make(chan error, 1)
		go func() { errs <- blk.WriteAt(f, make([]byte, 512), 0, 0) }()
		synctest.Wait()
		go func() { flushed <- blk.Flush(f) }()
		synctest.Wait()
		if f.Held() != 2 || len(errs)+len(flushed) != 0 {
			t.Fatalf("%d are held, %d have completed", f.Held(), len(errs)+len(flushed))
		}
		f.Release()
		if err := <-errs; err != nil {
			t.Error(err)
		}
		if err := <-flushed; !errors.Is(err, blk.ErrMedium) {
			t.Error(err)
		}
		// Close waits for nobody's release, and for no timer.
		go func() { errs <- blk.WriteAt(f, make([]byte, 512), 0, 0) }()
		go func() { errs <- blk.ReadAt(f, make([]byte, 512), 0) }()
		synctest.Wait()
		start = time.Now()
		if err := f.Close(); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPowerCut: flushed writes are there; others are there, or not, or in part,
// as the seed says; nothing else is.
func TestPowerCut(t *testing.T) {
	const sectors = 64
	fate := func(seed int64) (content []byte) {
		m := newMem(t, blk.MemOptions{})
		v := blk.NewVolatile(m, seed)
		defer v.Close()
		write := func(n byte, off, sectors int, flags blk.Flags) {
			t.Helper()
			if err := blk.WriteAt(v, bytes.Repeat([]byte{n}, 512*sectors), uint64(off)*512, flags); err != nil {
				t.Fatal(err)
			}
		}
		write(1, 0, sectors, 0)
		if err := blk.Flush(v); err != nil || v.Unsynced() != 0 {
			t.Fatalf("%v, %d sectors unsynced", err, v.Unsynced())
		}
		write(2, 0, 32, 0)
		write(3, 16, 32, 0)
		write(4, 0, 1, blk.FUA)
		if err := blk.WriteZeroes(v, 63*512, 512, 0); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, sectors*512)
		if err := blk.ReadAt(v, got, 0); err != nil || got[0] != 4 || got[512] != 2 || got[20*512] != 3 || got[50*512] != 1 || got[63*512] != 0 {
			t.Fatalf("before the cut: %v", err)
		}
		if err := v.PowerCut(); err != nil {
			t.Fatal(err)
		}
		if err := blk.Flush(v); !errors.Is(err, blk.ErrMedium) {
			t.Errorf("a flush without power: %v", err)
		}
		v.Restore()
		if err := blk.ReadAt(v, got, 0); err != nil {
			t.Fatal(err)
		}
		for s := range sectors {
			if len(bytes.Trim(got[s*512:][:512], string(got[s*512:s*512+1]))) != 0 {
				t.Fatalf("sector %d is torn", s)
			}
			content = append(content, got[s*512])
		}
		return content
	}
	seen := map[byte]bool{}
	for seed := range int64(20) {
		c := fate(seed)
		if !bytes.Equal(c, fate(seed)) {
			t.Fatalf("seed %d has two fates", seed)
		}
		for s, b := range c {
			allowed := "\x01"
			switch {
			case s == 0:
				allowed = "\x04"
			case s < 16:
				allowed = "\x01\x02"
			case s < 32:
				allowed = "\x01\x02\x03"
			case s < 48:
				allowed = "\x01\x03"
			case s == 63:
				allowed = "\x01\x00"
			}
			if !bytes.Contains([]byte(allowed), []byte{b}) {
				t.Fatalf("seed %d: sector %d is %d, want one of %q", seed, s, b, allowed)
			}
			if s >= 16 && s < 32 || s == 63 {
				seen[b] = true
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("not every fate occurs: %v", seen)
	}
}

// TestVolatileFlushFails: B7 here too; what could not be written stays cached.
func TestVolatileFlushFails(t *testing.T) {
	f := blk.NewFault(newMem(t, blk.MemOptions{}), 1)
	v := blk.NewVolatile(f, 1)
	defer v.Close()
	b := bytes.Repeat([]byte{5}, 512)
	if err := blk.WriteAt(v, b, 0, 0); err != nil {
		t.Fatal(err)
	}
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1, Err: blk.ErrMedium})
	if err := blk.Flush(v); !errors.Is(err, blk.ErrMedium) {
		t.Error(err)
	}
	if err := blk.Flush(v); !errors.Is(err, blk.ErrSyncFailed) {
		t.Errorf("the flush after a failed one: %v", err)
	}
	got := make([]byte, 512)
	if err := blk.ReadAt(v, got, 0); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the write is gone: %v", err)
	}
	if err := v.PowerCut(); err != nil {
		t.Error(err)
	}
	v.Restore()
	if err := blk.Flush(v); err != nil {
		t.Errorf("a flush of a device that is as if opened again: %v", err)
	}
}

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := blk.NewFault(newMem(t, blk.MemOptions{}), 1)
		s := blk.NewStats(f)
		defer s.Close()
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Skip: 9, Count: 1, Delay: time.Second})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Delay: time.Millisecond})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1, Err: blk.ErrMedium})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Stall: true})
		b := make([]byte, 4096)
		for range 10 {
			if err := blk.ReadAt(s, b, 0); err != nil {
				t.Fatal(err)
			}
		}
		if ago := s.FailedAgo(); ago != 0 {
			t.Errorf("nothing has failed, %v ago", ago)
		}
		blk.WriteAt(s, b, 0, 0)
		blk.WriteAt(s, b, 0, 0)
		time.Sleep(time.Hour)
		if ago := s.FailedAgo(); ago != time.Hour {
			t.Errorf("a write has failed %v ago", ago)
		}
		go blk.Flush(s)
		synctest.Wait()

		c := s.Counts()
		r, w, fl := &c[blk.OpRead], &c[blk.OpWrite], &c[blk.OpFlush]
		if r.Completed != 10 || r.Bytes != 40960 || r.Errors != 0 || r.InFlight() != 0 || r.Time != time.Second+9*time.Millisecond {
			t.Errorf("reads: %+v", r)
		}
		if w.Completed != 2 || w.Errors != 1 || w.Bytes != 4096 {
			t.Errorf("writes: %+v", w)
		}
		if fl.Submitted != 1 || fl.Completed != 0 || fl.InFlight() != 1 {
			t.Errorf("flushes: %+v", fl)
		}
		for q, want := range map[float64]time.Duration{0: time.Millisecond, 0.5: time.Millisecond, 0.9: time.Millisecond, 1: time.Second} {
			if got := r.Quantile(q); got < want || got > want+want/4 {
				t.Errorf("quantile %v: %v, want %v", q, got, want)
			}
		}
		if fl.Quantile(0.5) != 0 {
			t.Error("a quantile of nothing")
		}
		last := time.Duration(0)
		for i := range len(r.Latency) - 1 {
			if b := blk.LatencyBound(i); b <= last {
				t.Errorf("bucket %d ends at %v, the one before at %v", i, b, last)
			} else {
				last = b
			}
		}
		if last < time.Minute || blk.LatencyBound(len(r.Latency)-1) != 0 {
			t.Errorf("the last bound is %v", last)
		}
		f.Release()
	})
}

// TestNoAllocations: the way down and up again, layer by layer.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("elsewhere: the race detector allocates, and makes pools forget")
	}
	n := newNarrow(t)
	for name, d := range map[string]blk.Device{
		"memory":   newMem(t, blk.MemOptions{}),
		"stats":    blk.NewStats(newMem(t, blk.MemOptions{})),
		"readonly": blk.ReadOnly(newMem(t, blk.MemOptions{})),
		"split":    blk.Split(n),
		"file":     openFile(t, blk.FileOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			defer d.Close()
			const depth, each = 16, 16 << 10
			c := &counter{done: make(chan struct{}, 1)}
			var reqs [depth]blk.Request
			batch := make([]*blk.Request, depth)
			round := func() {
				for i := range reqs {
					r := &reqs[i]
					if r.Buf == nil {
						*r = blk.Request{Op: blk.OpRead, Off: uint64(i) * each, Len: each, Buf: make([]byte, each), Queue: c}
						if i%2 == 0 && name != "readonly" {
							r.Op = blk.OpWrite
						}
					}
					batch[i] = r
				}
				c.left.Store(depth)
				d.Submit(batch)
				<-c.done
			}
			for range 50 {
				round()
			}
			n.got = make([]blk.Request, 0, 1<<16)
			if allocs := testing.AllocsPerRun(100, round) / depth; allocs > 0.05 {
				t.Errorf("%.2f allocations for each request", allocs)
			}
			for i := range reqs {
				if reqs[i].Err != nil {
					t.Fatal(reqs[i].Err)
				}
			}
		})
	}
}

type counter struct {
	left atomic.Int64
	done chan struct{}
}

func (c *counter) Complete(batch []*blk.Request) {
	if c.left.Add(-int64(len(batch))) == 0 {
		c.done <- struct{}{}
	}
}
