package buf

import (
	"math/rand"
	"sync"
	"testing"
)

func TestSizes(t *testing.T) {
	for _, c := range []struct{ n, size int }{
		{0, 4096}, {1, 4096}, {4096, 4096}, {4097, 8192}, {SlabSize, SlabSize}, {SlabSize + 1, 128 << 10}, {512<<10 + 1, 1<<20 + 4096}, {1 << 20, 1<<20 + 4096}, {1<<20 + 4096, 1<<20 + 4096},
	} {
		before := InUse()
		b := Get(c.n)
		if len(b.B) != c.n || b.Size() != c.size || cap(b.B) != c.size {
			t.Errorf("Get(%d): length %d, size %d, capacity %d", c.n, len(b.B), b.Size(), cap(b.B))
		}
		if d := InUse() - before; d != int64(c.size) {
			t.Errorf("Get(%d) counts %d bytes", c.n, d)
		}
		b.Release()
		if InUse() != before {
			t.Errorf("Get(%d) and Release leave %d bytes", c.n, InUse()-before)
		}
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestMistakesPanic(t *testing.T) {
	if !panics(func() { Get(1<<20 + 4097) }) {
		t.Error("a size above the largest class")
	}
	b := &Buf{B: make([]byte, 4096)} // not from the pool: it must not get into it twice
	b.refs.Store(0)
	if !panics(b.Release) {
		t.Error("a second release")
	}
}

func TestReferences(t *testing.T) {
	before := InUse()
	b := Get(10)
	b.Ref()
	b.Release()
	if InUse() != before+4096 {
		t.Error("given back while somebody holds it")
	}
	b.Release()
	if InUse() != before {
		t.Error("not given back")
	}
}

// TestOneOwner: buffers taken and released by many goroutines are never held
// by two at once, and none is lost.
func TestOneOwner(t *testing.T) {
	before := InUse()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() { // ends after its rounds
			defer wg.Done()
			rng := rand.New(rand.NewSource(int64(g)))
			for range 2000 {
				b := Get(rng.Intn(8 << 10))
				for i := range b.B {
					b.B[i] = byte(g)
				}
				refs := rng.Intn(3)
				for range refs {
					b.Ref()
				}
				for i := range b.B {
					if b.B[i] != byte(g) {
						t.Error("somebody else writes into this buffer")
						break
					}
				}
				for range refs + 1 {
					b.Release()
				}
			}
		}()
	}
	wg.Wait()
	if InUse() != before {
		t.Errorf("%d bytes lost", InUse()-before)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(1000, func() { Get(4000).Release() }); n > 0.1 {
		t.Errorf("%v allocations", n)
	}
}
