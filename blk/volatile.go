package blk

import (
	"cmp"
	"math/rand"
	"slices"
	"sync"

	"github.com/rdsd/rdsd/rdserr"
)

// Volatile is a device with a volatile write cache in front of it: as disks and page caches
// treat writes that were not flushed. A power cut leaves each sector as it was at the last
// flush or as any of the writes since then made it, drawn from the seed; so unflushed
// writes may be lost, torn between sectors and reordered.
//
// It carries requests out in Submit, one at a time, and waits for the device
// below: it is for tests.
type Volatile struct {
	view
	sync syncGuard

	mu    sync.Mutex
	rand  *rand.Rand          // guarded by mu
	cache map[uint64][][]byte // guarded by mu; sector number → contents since the last flush, oldest first; nil: zeroes
	off   bool                // guarded by mu; the power is
}

// directZeroes is the length from which discards and write zeroes go straight
// to the device, as a cache may do at any time.
const directZeroes = 1 << 20

// NewVolatile puts a volatile cache in front of a device.
func NewVolatile(d Device, seed int64) *Volatile {
	v := &Volatile{rand: rand.New(rand.NewSource(seed)), cache: map[uint64][][]byte{}}
	v.Device = d
	v.change = func(i *Info) { i.WriteCache = true }
	return v
}

// Map calls everything data, because the cache may hold more than the device below.
func (v *Volatile) Map(off, n uint64, out []Extent) ([]Extent, error) {
	if err := v.Info().Bounds(off, n); err != nil {
		return out, err
	}
	return append(out, Extent{Len: n}), nil
}

// Unsynced is how many sectors would be in danger.
func (v *Volatile) Unsynced() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.cache)
}

// PowerCut decides the content of each unsynced sector, puts that on the device and fails
// every request from now on with EIO, until Restore.
func (v *Volatile) PowerCut() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.off = true
	var err error
	for _, sector := range v.sectors() {
		contents := v.cache[sector]
		if which := v.rand.Intn(len(contents) + 1); which > 0 {
			err = cmp.Or(err, v.put(sector, contents[which-1], 0))
		}
	}
	clear(v.cache)
	return err
}

// Restore brings the power back; the device is as if opened again.
func (v *Volatile) Restore() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.off = false
	v.sync.reset()
}

// sectors lists the cached sectors in order, so that the same seed draws the same. It is
// called with mu held, as everything below.
func (v *Volatile) sectors() []uint64 {
	s := make([]uint64, 0, len(v.cache))
	for n := range v.cache {
		s = append(s, n)
	}
	slices.Sort(s)
	return s
}

func (v *Volatile) sectorSize() uint64 { return uint64(v.Device.Info().LogicalBlock) }

// put writes one sector to the device.
func (v *Volatile) put(sector uint64, content []byte, flags Flags) error {
	n := v.sectorSize()
	if content == nil {
		content = zeroes[:n]
	}
	return WriteAt(v.Device, content, sector*n, flags)
}

// Submit carries the batch out.
func (v *Volatile) Submit(batch []*Request) {
	v.mu.Lock()
	info := v.Device.Info()
	for _, r := range batch {
		if v.off {
			r.Err = rdserr.With(ErrMedium, "%v: the power is off", r.Op)
		} else if r.Err = cmp.Or(info.Check(r), v.sync.before(r)); r.Err == nil {
			r.Err = v.do(r)
			v.sync.after(r)
		}
	}
	v.mu.Unlock()
	Complete(batch)
}

func (v *Volatile) do(r *Request) error {
	n := v.sectorSize()
	first, end := r.Off/n, (r.Off+r.Len)/n
	switch {
	case r.Op == OpRead:
		if err := ReadAt(v.Device, r.Buf, r.Off); err != nil {
			return err
		}
		for s := first; s < end; s++ {
			// A cached write is newer than the device. The last one counts for a read; the
			// others may be what a power cut leaves.
			if c := v.cache[s]; len(c) > 0 {
				b := r.Buf[(s-first)*n:][:n]
				clear(b)
				copy(b, c[len(c)-1])
			}
		}
		return nil
	case r.Op == OpFlush:
		return v.flush()
	case r.Op != OpWrite && r.Len >= directZeroes:
		// So large a range goes straight to the device. Versions that are cached for it are
		// overtaken: kept, a later flush would write them over the zeroes.
		for s := range v.cache {
			if s >= first && s < end {
				delete(v.cache, s)
			}
		}
		return Do(v.Device, &Request{Op: r.Op, Flags: r.Flags, Off: r.Off, Len: r.Len})
	}
	for s := first; s < end; s++ {
		var content []byte // of a discard too: it reads as zeroes or as before, by which version survives
		if r.Op == OpWrite {
			content = slices.Clone(r.Buf[(s-first)*n:][:n])
		}
		// Not durable until a flush, or a write with FUA, of this sector.
		if r.Flags&FUA == 0 {
			v.cache[s] = append(v.cache[s], content)
			continue
		}
		if err := v.put(s, content, FUA); err != nil {
			return err
		}
		delete(v.cache, s)
	}
	return nil
}

// flush writes the cache down. A sector that cannot be written stays cached.
func (v *Volatile) flush() error {
	for _, s := range v.sectors() {
		c := v.cache[s]
		if err := v.put(s, c[len(c)-1], 0); err != nil {
			return err
		}
		delete(v.cache, s)
	}
	return Flush(v.Device)
}
