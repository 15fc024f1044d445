package blk

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/rdsd/rdsd/rdserr"
)

// MaxIO bounds the length of one read or write, in bytes, for every device: an NBD server
// has to take so much at least.
const MaxIO = 32 << 20

// MaxSize bounds the size of a device, in bytes: the largest off_t, in whole 4 KiB blocks.
const MaxSize = math.MaxInt64 &^ 4095

// Info describes a device. Lengths and sizes are in bytes.
type Info struct {
	Size               uint64 // a multiple of LogicalBlock
	LogicalBlock       uint32 // every offset and length is a multiple of it; a power of two
	PhysicalBlock      uint32 // the unit that can be written without reading first; a power of two
	MaxBytes           uint32 // largest read or write; at most MaxIO
	MaxSegments        uint16 // most pieces of memory of one request the store takes; 0: it does not matter
	MaxDiscard         uint64 // largest discard; 0: discard is not supported
	DiscardGranularity uint32 // the unit that is freed at once; 0: unknown
	DiscardAlignment   uint32 // where granules begin
	MaxWriteZeroes     uint64 // largest write zeroes; 0: not supported
	FastZero           bool   // the flag FastZero is understood
	Rotational         bool
	ReadOnly           bool
	WriteCache         bool // a completed write is durable only after a flush
	FUA                bool // the flag FUA is understood
	MultiConn          bool // a flush covers completed requests of every user of the device, and all see the same bytes
}

// Check is B5: nil if the device may carry out r, else why not. Every device
// calls it first, on the Info the request then runs under.
func (i *Info) Check(r *Request) error {
	if err := i.CheckRange(r.Op, r.Flags, r.Off, r.Len); err != nil {
		return err
	}
	if _, data := i.limit(r.Op); data && uint64(len(r.Buf)) != r.Len || !data && len(r.Buf) != 0 {
		return rdserr.With(ErrRequest, "%v: length %d with a buffer of %d bytes", r.Op, r.Len, len(r.Buf))
	}
	return nil
}

// CheckRange is Check before there is a buffer. It is the only place that
// decides on range, alignment, size and permission.
func (i *Info) CheckRange(op Op, flags Flags, off, n uint64) error {
	switch {
	// The order decides which error a wrong request gets: first unknown operations and
	// flags, then those that the volume lacks, then the range.
	case op >= numOps:
		return rdserr.With(ErrNotSupported, "%v is unknown", op)
	case flags&^allFlags != 0:
		return rdserr.With(ErrRequest, "%v: unknown flags %#x", op, uint8(flags&^allFlags))
	case flags&(NoUnmap|FastZero) != 0 && op != OpWriteZeroes:
		return rdserr.With(ErrRequest, "%v: this flag goes with write zeroes only", op)
	case flags&FUA != 0 && !i.FUA:
		return rdserr.With(ErrNotSupported, "%v: the volume has no FUA", op)
	case flags&FastZero != 0 && !i.FastZero:
		return rdserr.With(ErrNotSupported, "the volume cannot tell whether write zeroes is fast")
	case op == OpFlush && (off != 0 || n != 0):
		return rdserr.With(ErrRequest, "a flush has neither offset nor length")
	case op == OpFlush:
		return nil
	case i.ReadOnly && op.Writes():
		return rdserr.With(ErrReadOnly, "%v: the volume is read-only", op)
	}

	most, _ := i.limit(op)
	if most == 0 {
		return rdserr.With(ErrNotSupported, "the volume cannot %v", op)
	}
	// Before the length: beyond the end is the error that a client of a shrunk volume needs
	// to see.
	if err := i.Bounds(off, n); err != nil {
		return err
	}
	if n > most {
		return rdserr.With(ErrTooBig, "%v: length %d; at most %d bytes at once", op, n, most)
	}
	return nil
}

// Bounds returns an error unless a range lies in the volume and begins and ends with its
// blocks.
func (i *Info) Bounds(off, n uint64) error {
	switch {
	case n == 0:
		return rdserr.With(ErrRequest, "at %d: length 0", off)
	case (off|n)&uint64(i.LogicalBlock-1) != 0:
		return rdserr.With(ErrAlign, "at %d, length %d: not multiples of the logical block of %d bytes", off, n, i.LogicalBlock)
	case off > i.Size || n > i.Size-off: // never off+n, which may wrap
		return rdserr.With(ErrRange, "at %d, length %d: the volume has %d bytes", off, n, i.Size)
	}
	return nil
}

// limit is the largest length of an operation and whether it moves data.
func (i *Info) limit(op Op) (most uint64, data bool) {
	switch op {
	case OpFlush:
		return 0, false
	case OpDiscard:
		return i.MaxDiscard, false
	case OpWriteZeroes:
		return i.MaxWriteZeroes, false
	}
	return uint64(min(i.MaxBytes, MaxIO)), true
}

// Validate returns an error for a wrong Info: a mistake of the device's maker, or of the
// peer that described it.
func (i *Info) Validate() error {
	pow2 := func(n uint32) bool { return n != 0 && n&(n-1) == 0 }
	switch {
	case !pow2(i.LogicalBlock) || i.LogicalBlock < 512 || i.LogicalBlock > 65536:
		return rdserr.With(rdserr.ErrInvalid, "logical block size %d; want a power of two from 512 to 65536", i.LogicalBlock)
	case !pow2(i.PhysicalBlock) || i.PhysicalBlock < i.LogicalBlock:
		return rdserr.With(rdserr.ErrInvalid, "physical block size %d; want a power of two of at least the logical block size %d", i.PhysicalBlock, i.LogicalBlock)
	case i.Size > MaxSize || i.Size%uint64(i.LogicalBlock) != 0:
		return rdserr.With(rdserr.ErrInvalid, "size %d; want a multiple of the logical block size %d, at most %d", i.Size, i.LogicalBlock, uint64(MaxSize))
	case i.MaxBytes < i.LogicalBlock || i.MaxBytes > MaxIO || i.MaxBytes%i.LogicalBlock != 0:
		return rdserr.With(rdserr.ErrInvalid, "largest request %d; want a multiple of the logical block size %d, at most %d", i.MaxBytes, i.LogicalBlock, MaxIO)
	}
	return nil
}

// State holds the Info of a device and the watchers of its changes. A device embeds it.
type State struct {
	info atomic.Pointer[Info]

	mu       sync.Mutex
	watchers map[int]func(*Info) // guarded by mu
	nextID   int                 // guarded by mu
}

// Info returns the present Info.
func (s *State) Info() *Info { return s.info.Load() }

// SetInfo replaces the Info and tells the watchers.
func (s *State) SetInfo(i *Info) {
	s.info.Store(i)
	s.notify()
}

// notify tells the watchers. It is called without a lock of the device's.
func (s *State) notify() {
	s.mu.Lock()
	call := make([]func(*Info), 0, len(s.watchers))
	for _, f := range s.watchers {
		call = append(call, f)
	}
	s.mu.Unlock()
	for _, f := range call {
		f(s.Info())
	}
}

// Watch has f called after each SetInfo, until stop is called.
func (s *State) Watch(f func(*Info)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers == nil {
		s.watchers = map[int]func(*Info){}
	}
	id := s.nextID
	s.nextID++
	s.watchers[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, id)
	}
}
