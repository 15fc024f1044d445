package buf

import (
	"sync"
	"sync/atomic"
	"testing"
)

// lender counts what comes back.
type lender struct {
	freed atomic.Int64
	last  atomic.Pointer[Buf]
}

func (l *lender) Free(b *Buf) { l.freed.Add(1); l.last.Store(b) }

func TestForeign(t *testing.T) {
	before := InUse()
	l := &lender{}
	mem := make([]byte, 100, 200)
	b := Foreign(mem, l, 7)
	if &b.B[0] != &mem[0] || len(b.B) != 100 || b.Size() != 100 || b.ID != 7 || b.Owner() != l {
		t.Fatalf("%d bytes, size %d, id %d", len(b.B), b.Size(), b.ID)
	}
	b.RefN(2)
	b.ReleaseN(2)
	if l.freed.Load() != 0 || InUse() != before {
		t.Fatal("freed while it is held, or counted as the pools'")
	}
	b.Release()
	if l.freed.Load() != 1 || l.last.Load() != b {
		t.Fatalf("freed %d times", l.freed.Load())
	}
	if !panics(b.Release) {
		t.Error("a second release")
	}
	if own := Get(10); own.Owner() != nil || !panics(func() { own.Lend(mem, l, 1) }) {
		t.Error("a buffer of the pools can be lent")
	}
	c := Foreign(mem, l, 1)
	if !panics(func() { c.Lend(mem, l, 2) }) || !panics(func() { Foreign(mem, nil, 1) }) {
		t.Error("lent twice at once, or without an owner")
	}
}

func TestLendAgainDoesNotAllocate(t *testing.T) {
	l := &lender{}
	mem := make([]byte, 64)
	var b Buf
	n := uint32(0)
	if a := testing.AllocsPerRun(100, func() {
		b.Lend(mem, l, n)
		n++
		b.Release()
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
	if l.freed.Load() != int64(n) || b.ID != n-1 {
		t.Errorf("freed %d times of %d", l.freed.Load(), n)
	}
}

// TestForeignFreedOnce: many hold it, the last one, whoever that is, frees it.
func TestForeignFreedOnce(t *testing.T) {
	l := &lender{}
	var b Buf
	for i := range 200 {
		b.Lend(make([]byte, 8), l, uint32(i))
		b.RefN(7)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { _ = b.B[0]; b.Release() })
		}
		wg.Wait()
		if l.freed.Load() != int64(i+1) {
			t.Fatalf("freed %d times of %d", l.freed.Load(), i+1)
		}
	}
}
