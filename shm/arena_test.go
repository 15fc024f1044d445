package shm

import (
	"math/rand"
	"testing"
)

// TestArenaProperties: random work against a model of the bytes that are out.
func TestArenaProperties(t *testing.T) {
	for seed := range int64(30) {
		rnd := rand.New(rand.NewSource(seed))
		a := NewArena(UnitBytes << (4 + rnd.Intn(10)))
		owner := make([]int, a.Bytes()/UnitBytes) // 0: nobody
		type block struct {
			off  uint64
			size int
		}
		var out []block
		used := 0
		for step := 1; step < 4000; step++ {
			switch {
			case rnd.Intn(100) < 52:
				n := rnd.Intn(1 << rnd.Intn(16))
				off, ok := a.Alloc(n)
				if !ok {
					if n == 0 && used < len(owner)*UnitBytes {
						t.Fatalf("seed %d step %d: nothing for one unit with %d of %d in use", seed, step, used, a.Bytes())
					}
					continue
				}
				size, _ := a.Size(off)
				if size < n || size != BlockBytes(n) || off%uint64(size) != 0 {
					t.Fatalf("seed %d step %d: %d bytes at %d for %d", seed, step, size, off, n)
				}
				for u := off / UnitBytes; u < (off+uint64(size))/UnitBytes; u++ {
					if owner[u] != 0 {
						t.Fatalf("seed %d step %d: unit %d is out twice", seed, step, u)
					}
					owner[u] = step
				}
				out, used = append(out, block{off, size}), used+size
			case len(out) > 0:
				i := rnd.Intn(len(out))
				b := &out[i]
				if rnd.Intn(4) == 0 {
					was := b.size
					b.size = a.Shrink(b.off, rnd.Intn(b.size+1))
					clear(owner[(b.off+uint64(b.size))/UnitBytes : (b.off+uint64(was))/UnitBytes])
					used -= was - b.size
					break
				}
				if size, ok := a.Free(b.off); !ok || size != b.size {
					t.Fatalf("seed %d step %d: Free(%d) = %d %v, want %d", seed, step, b.off, size, ok, b.size)
				}
				clear(owner[b.off/UnitBytes : (b.off+uint64(b.size))/UnitBytes])
				used -= b.size
				if _, ok := a.Free(b.off); ok {
					t.Fatalf("seed %d step %d: freed twice", seed, step)
				}
				out[i] = out[len(out)-1]
				out = out[:len(out)-1]
			}
			if a.Used() != uint64(used) {
				t.Fatalf("seed %d step %d: %d in use, %d expected", seed, step, a.Used(), used)
			}
		}
		for _, b := range out {
			a.Free(b.off)
		}
		if off, ok := a.Alloc(int(a.Bytes())); !ok || off != 0 { // everything merges again
			t.Fatalf("seed %d: the whole is not free after everything was freed", seed)
		}
	}
}

// TestArenaFreeChecks: what is not out is not freed.
func TestArenaFreeChecks(t *testing.T) {
	a := NewArena(1 << 16)
	off, _ := a.Alloc(1000)
	for _, bad := range []uint64{off + 1, off + 64, 1 << 16, 1 << 63, ^uint64(0), ^uint64(63)} {
		if _, ok := a.Free(bad); ok {
			t.Errorf("Free(%#x) took what is not out", bad)
		}
	}
	if _, ok := a.Free(off); !ok {
		t.Error("the true one was refused")
	}
	if _, ok := a.Alloc(1<<16 + 1); ok {
		t.Error("more than the whole")
	}
}

// TestArenaPartInUse: no offset is out at the edges of the part in use, however often
// that doubles, and what is asked about one behind it is answered, not looked up.
func TestArenaPartInUse(t *testing.T) {
	const whole = 1 << 20
	a := NewArena(whole)
	var out []uint64
	for part := uint64(1 << firstOrder * UnitBytes); part <= whole; part *= 2 {
		for a.Used() < part {
			off, ok := a.Alloc(UnitBytes)
			if !ok || off >= part {
				t.Fatalf("unit %d: %d, %v; want one below %d", len(out), off, ok, part)
			}
			out = append(out, off)
		}
		for _, off := range []uint64{part, part + UnitBytes, 2 * part, whole, whole + UnitBytes} {
			_, freed := a.Free(off)
			_, sized := a.Size(off)
			_, marked := a.Mark(off)
			if freed || sized || marked || a.Shrink(off, 1) != 0 {
				t.Errorf("%d of %d in use: the unit at %d is out", part, whole, off)
			}
		}
		if size, ok := a.Size(part - UnitBytes); !ok || size != UnitBytes {
			t.Errorf("%d of %d in use: the last unit is not out", part, whole)
		}
	}
	if _, ok := a.Alloc(0); ok {
		t.Error("there was one unit more than there are")
	}
	for _, off := range out {
		a.Free(off)
	}
	if a.Used() != 0 {
		t.Errorf("%d bytes are in use", a.Used())
	}
}

// TestArenaWarm: the block freed last is the one taken next.
func TestArenaWarm(t *testing.T) {
	a := NewArena(1 << 20)
	x, _ := a.Alloc(100)
	y, _ := a.Alloc(100)
	a.Free(x)
	a.Free(y)
	if z, _ := a.Alloc(100); z != y {
		t.Errorf("%d after %d was freed", z, y)
	}
	if n := testing.AllocsPerRun(100, func() { o, _ := a.Alloc(64); a.Free(o) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkArena(b *testing.B) {
	for _, c := range []struct {
		name string
		deep int
	}{{"1", 1}, {"4096", 4096}} {
		b.Run(c.name, func(b *testing.B) {
			a := NewArena(8 << 20)
			ring := make([]uint64, c.deep)
			for i := range ring {
				ring[i], _ = a.Alloc(64)
			}
			i := 0
			for b.Loop() {
				a.Free(ring[i])
				ring[i], _ = a.Alloc(64)
				if i++; i == len(ring) {
					i = 0
				}
			}
		})
	}
}

// TestClaim: of a free block the part with the page is taken out of use, as much as was asked for
// at most; what is out, or behind the part in use, is not.
func TestClaim(t *testing.T) {
	const whole = 1 << 20
	a := NewArena(whole)
	const inUse = uint64(64 << 10)
	off, _ := a.Alloc(int(inUse)) // all there is of the part in use, which was a page
	a.Free(off)
	a.merge()
	for _, off := range []uint64{inUse, inUse + pageBytes, whole - pageBytes} {
		if _, _, ok := a.Claim(off, whole); ok {
			t.Errorf("%d is behind the part in use, and was taken", off)
		}
	}
	at, n, ok := a.Claim(inUse-pageBytes, whole)
	if !ok || at != 0 || n != inUse {
		t.Fatalf("the last page in use: %d bytes at %d, %v", n, at, ok)
	}
	if _, _, ok := a.Claim(0, whole); ok {
		t.Error("taken twice")
	}
	a.Unclaim(at)
	if at, n, ok = a.Claim(0, 2*pageBytes); !ok || at != 0 || n != 2*pageBytes {
		t.Errorf("two pages: %d bytes at %d, %v", n, at, ok)
	}
	a.Unclaim(at)
	for _, page := range []uint64{0, 1, 5, inUse/pageBytes - 1} {
		at, n, ok := a.Claim(page*pageBytes, pageBytes)
		if !ok || at != page*pageBytes || n != pageBytes {
			t.Errorf("page %d: %d bytes at %d, %v", page, n, at, ok)
		}
		off, ok := a.Alloc(int(inUse) - int(pageBytes))
		if ok && off < inUse {
			t.Errorf("page %d: %d is in a block that was taken", page, off)
		}
		if ok {
			a.Free(off)
		}
		a.Unclaim(at)
	}
	a.merge()
	out, _ := a.Alloc(64)
	if _, _, ok := a.Claim(out&^(pageBytes-1), whole); ok {
		t.Error("a page with a block that is out was taken")
	}
	a.Free(out)
	a.merge()
	if at, n, ok := a.Claim(0, whole); !ok || at != 0 || n < inUse {
		t.Errorf("not whole again: %d bytes at %d, %v", n, at, ok)
	}
}
