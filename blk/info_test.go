package blk_test

import (
	"errors"
	"math/rand"
	"slices"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

var plain = blk.Info{Size: 1 << 20, LogicalBlock: 512, PhysicalBlock: 4096, MaxBytes: 64 << 10, MaxDiscard: 1 << 20, MaxWriteZeroes: 1 << 20, FUA: true, FastZero: true}

func TestValidate(t *testing.T) {
	if err := plain.Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*blk.Info){
		"no block size":               func(i *blk.Info) { i.LogicalBlock = 0 },
		"block size no power of two":  func(i *blk.Info) { i.LogicalBlock = 1536 },
		"block size too small":        func(i *blk.Info) { i.LogicalBlock = 256 },
		"block size too large":        func(i *blk.Info) { i.LogicalBlock, i.PhysicalBlock = 1<<17, 1<<17 },
		"physical smaller":            func(i *blk.Info) { i.LogicalBlock, i.PhysicalBlock = 4096, 512 },
		"size no multiple":            func(i *blk.Info) { i.Size++ },
		"size beyond off_t":           func(i *blk.Info) { i.Size = 1 << 63 },
		"largest request too large":   func(i *blk.Info) { i.MaxBytes = blk.MaxIO + 512 },
		"largest request too small":   func(i *blk.Info) { i.MaxBytes = 0 },
		"largest request no multiple": func(i *blk.Info) { i.MaxBytes = 1000 },
	} {
		i := plain
		change(&i)
		if err := i.Validate(); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestEdgesAreRight: the largest and smallest of each are right, and what is one step beyond is not.
func TestEdgesAreRight(t *testing.T) {
	for what, change := range map[string]func(i *blk.Info, beyond bool){
		"the largest block": func(i *blk.Info, beyond bool) {
			i.LogicalBlock, i.PhysicalBlock, i.MaxBytes, i.Size = 65536, 65536, 1<<20, 1<<20
			if beyond {
				i.LogicalBlock, i.PhysicalBlock = 1<<17, 1<<17
			}
		},
		"the smallest block": func(i *blk.Info, beyond bool) {
			if i.LogicalBlock = 512; beyond {
				i.LogicalBlock = 256
			}
		},
		"the largest volume": func(i *blk.Info, beyond bool) {
			if i.Size = blk.MaxSize &^ 511; beyond {
				i.Size += 512
			}
		},
		"the smallest request": func(i *blk.Info, beyond bool) {
			if i.MaxBytes = i.LogicalBlock; beyond {
				i.MaxBytes = 0
			}
		},
		"the largest request": func(i *blk.Info, beyond bool) {
			if i.MaxBytes = blk.MaxIO; beyond {
				i.MaxBytes += i.LogicalBlock
			}
		},
		"nothing to store": func(i *blk.Info, beyond bool) {
			if i.Size = 0; beyond {
				i.Size = 1
			}
		},
	} {
		for _, beyond := range []bool{false, true} {
			i := plain
			change(&i, beyond)
			if err := i.Validate(); (err != nil) != beyond {
				t.Errorf("%s, a step beyond %v: %v", what, beyond, err)
			}
		}
	}
}

// TestWatchersAreTold: everybody who watches is told of each new Info, with it, until the watch ends.
func TestWatchersAreTold(t *testing.T) {
	var s blk.State
	i := plain
	s.SetInfo(&i)
	var one, two []uint64
	stop := s.Watch(func(i *blk.Info) { one = append(one, i.Size) })
	defer s.Watch(func(i *blk.Info) { two = append(two, i.Size) })()
	larger, largest := plain, plain
	larger.Size, largest.Size = 2<<20, 3<<20
	s.SetInfo(&larger)
	stop()
	s.SetInfo(&largest)
	if !slices.Equal(one, []uint64{2 << 20}) || !slices.Equal(two, []uint64{2 << 20, 3 << 20}) || s.Info() != &largest {
		t.Errorf("told of %v and %v", one, two)
	}
}

// TestCheckCapabilities: what a device cannot do is refused; the rest of B5 is
// in blktest, against real devices.
func TestCheckCapabilities(t *testing.T) {
	bare := blk.Info{Size: 1 << 20, LogicalBlock: 512, PhysicalBlock: 512, MaxBytes: 1024}
	buf := make([]byte, 2048)
	for what, c := range map[string]struct {
		r    blk.Request
		want error
	}{
		"discard":         {blk.Request{Op: blk.OpDiscard, Len: 512}, blk.ErrNotSupported},
		"write zeroes":    {blk.Request{Op: blk.OpWriteZeroes, Len: 512}, blk.ErrNotSupported},
		"FUA":             {blk.Request{Op: blk.OpWrite, Flags: blk.FUA, Len: 512, Buf: buf[:512]}, blk.ErrNotSupported},
		"fast zero":       {blk.Request{Op: blk.OpWriteZeroes, Flags: blk.FastZero, Len: 512}, blk.ErrNotSupported},
		"too large":       {blk.Request{Op: blk.OpRead, Len: 2048, Buf: buf}, blk.ErrTooBig},
		"as large as may": {blk.Request{Op: blk.OpRead, Len: 1024, Buf: buf[:1024]}, nil},
		"flush":           {blk.Request{Op: blk.OpFlush}, nil},
		"flush, FUA":      {blk.Request{Op: blk.OpFlush, Flags: blk.FUA}, blk.ErrNotSupported},
	} {
		if err := bare.Check(&c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	ro := plain
	ro.ReadOnly = true
	for _, op := range []blk.Op{blk.OpWrite, blk.OpDiscard, blk.OpWriteZeroes} {
		r := blk.Request{Op: op, Len: 512}
		if op == blk.OpWrite {
			r.Buf = buf[:512]
		}
		if err := ro.Check(&r); !errors.Is(err, blk.ErrReadOnly) {
			t.Errorf("%v on a read-only volume: %v", op, err)
		}
		if err := plain.Check(&r); err != nil {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// TestCheckNeverLetsOut: whatever the numbers, what passes lies in the volume.
func TestCheckNeverLetsOut(t *testing.T) {
	rng := rand.New(rand.NewSource(5))
	number := func() uint64 {
		n := rng.Uint64() >> rng.Intn(64)
		if rng.Intn(2) == 0 {
			n = -n
		}
		if rng.Intn(4) > 0 {
			n &^= 511
		}
		return n
	}
	passed := 0
	for range 200_000 {
		r := blk.Request{Op: blk.Op(rng.Intn(6)), Flags: blk.Flags(rng.Intn(2)), Off: number(), Len: number()}
		if plain.CheckRange(r.Op, r.Flags, r.Off, r.Len) != nil {
			continue
		}
		passed++
		if r.Op != blk.OpFlush && (r.Len == 0 || r.Off >= plain.Size || r.Len > plain.Size || r.Off+r.Len > plain.Size || (r.Off|r.Len)%512 != 0) {
			t.Fatalf("%v at %d, length %d passed", r.Op, r.Off, r.Len)
		}
	}
	if passed < 1000 {
		t.Errorf("only %d requests passed: the test tests nothing", passed)
	}
}

func TestWatch(t *testing.T) {
	m := newMem(t, blk.MemOptions{Size: 1 << 20})
	defer m.Close()
	var a, b []uint64
	stopA := m.Watch(func(i *blk.Info) { a = append(a, i.Size) })
	ro := blk.ReadOnly(m)
	stopB := ro.Watch(func(i *blk.Info) {
		if b = append(b, i.Size); !i.ReadOnly {
			t.Error("the watcher of a view saw the device below")
		}
	})
	for _, size := range []uint64{2 << 20, 4096} {
		if err := m.Resize(size); err != nil {
			t.Fatal(err)
		}
	}
	stopA()
	stopA() // does nothing
	if err := m.Resize(8192); err != nil {
		t.Fatal(err)
	}
	stopB()
	if len(a) != 2 || a[1] != 4096 || len(b) != 3 || b[2] != 8192 {
		t.Errorf("%v, %v", a, b)
	}
	if i := ro.Info(); i.Size != 8192 || ro.Info() != i {
		t.Error("a view shows something else than the device below")
	}
}

func TestList(t *testing.T) {
	var l, m blk.List
	r := make([]blk.Request, 5)
	if l.Pop() != nil {
		t.Error("an empty list has something")
	}
	l.Append(&m)
	m.Push(&r[0])
	m.Push(&r[1])
	l.Append(&m)
	l.Push(&r[2])
	m.Push(&r[3])
	l.Append(&m)
	if l.Len() != 4 || m.Len() != 0 || m.Pop() != nil {
		t.Errorf("lengths %d and %d", l.Len(), m.Len())
	}
	for i := range 4 {
		if l.Pop() != &r[i] {
			t.Errorf("request %d is another", i)
		}
	}
	l.Push(&r[4])
	if l.Pop() != &r[4] || l.Len() != 0 {
		t.Error("a list that was emptied cannot be used again")
	}
}
