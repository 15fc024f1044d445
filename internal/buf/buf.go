package buf

import (
	"sync"
	"sync/atomic"
)

// Size classes in bytes: what a buffer has beside what was asked for is less than that, but for the smallest. The
// largest holds the largest datagram with its header.
var classes = [...]int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1<<20 + 4096}

// SlabSize is the size of the buffers small datagrams are copied into together.
const SlabSize = 64 << 10

// Buf is one buffer. B has the length that was asked for.
type Buf struct {
	B     []byte
	ID    uint32 // of a foreign buffer: its owner's name for it
	refs  atomic.Int32
	class int8
	owner Owner // of a foreign buffer
}

var (
	pools [len(classes)]sync.Pool
	inUse atomic.Int64
)

// InUse tells how many bytes are out of the pool, by size class.
func InUse() int64 { return inUse.Load() }

// Get returns a buffer of n bytes with one reference. n may not be larger than 1 MiB +
// 4096: that is a mistake of the caller, which has to check lengths first.
func Get(n int) *Buf {
	i := classOf(n)
	b, _ := pools[i].Get().(*Buf)
	if b == nil {
		b = &Buf{B: make([]byte, classes[i]), class: int8(i)}
	}
	b.B = b.B[:n]
	b.refs.Store(1)
	inUse.Add(int64(classes[i]))
	return b
}

// SizeOf is the Size of what Get(n) returns.
func SizeOf(n int) int { return classes[classOf(n)] }

func classOf(n int) int {
	for i, size := range classes {
		if n <= size {
			return i
		}
	}
	panic("buf: size above the largest class")
}

// Size returns the memory of the buffer, at least len(B).
func (b *Buf) Size() int {
	if b.owner != nil {
		return len(b.B)
	}
	return classes[b.class]
}

// Ref adds a reference.
func (b *Buf) Ref() { b.refs.Add(1) }

// RefN adds n references.
func (b *Buf) RefN(n int32) { b.refs.Add(n) }

// Release gives one reference up.
func (b *Buf) Release() { b.ReleaseN(1) }

// ReleaseN gives n references up.
func (b *Buf) ReleaseN(k int32) {
	switch n := b.refs.Add(-k); {
	case n == 0 && b.owner != nil:
		b.owner.Free(b)
	case n == 0:
		b.B = b.B[:cap(b.B)]
		inUse.Add(-int64(classes[b.class]))
		pools[b.class].Put(b)
	case n < 0:
		panic("buf: released twice")
	}
}
