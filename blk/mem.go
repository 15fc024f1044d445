package blk

import (
	"sync"
	"sync/atomic"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// Memory is kept in pages; ranges that were never written take none. The pages of a volume
// are spread over shards by number, so that requests far apart and neighbours alike seldom
// meet at a lock.
const (
	memPage   = 64 << 10
	memShards = 32
)

// MemOptions describes a memory volume.
type MemOptions struct {
	Size         uint64 // bytes
	Limit        uint64 // most bytes that may be allocated, ErrNoSpace beyond; 0: as many as there are
	Purse        Purse  // pays for what is allocated; the volume closes it. nil: nobody counts
	LogicalBlock uint32 // 0: 512
	ReadOnly     bool
	Guard        *guard.Guard // makes a panic in the work of the volume the end of the volume alone; nil: none is
}

// Purse pays for the pages of a memory volume before they are made. What it refuses is
// ErrNoSpace for the request. Any goroutine may call it.
type Purse interface {
	Take(bytes int64) error
	Give(bytes int64)
	Close()
}

// Mem is a sparse volume in memory. It carries requests out in Submit, but for
// those that give up or zero much of it.
type Mem struct {
	State
	broken broken
	limit  int64 // in pages
	purse  Purse
	used   atomic.Int64 // pages

	// resize is held for writing while the size changes and for reading by
	// every request, so that nothing is written beyond an end that has moved.
	resize sync.RWMutex
	closed bool // guarded by resize
	shards [memShards]memShard

	// sizing is taken before resize, and held as long as pages beyond a new end are
	// given up, or a long request is carried out: the size stays the same meanwhile.
	sizing  sync.Mutex
	longMu  sync.Mutex
	long    List           // guarded by longMu; waits for zeroLong
	zeroing bool           // guarded by longMu; zeroLong runs
	working sync.WaitGroup // requests left to zeroLong
}

type memShard struct {
	mu    sync.RWMutex
	pages map[uint64]*[memPage]byte // guarded by mu, content too
}

// NewMem makes a memory volume that reads as zeroes.
func NewMem(o MemOptions) (*Mem, error) {
	if o.LogicalBlock == 0 {
		o.LogicalBlock = 512
	}
	if o.Limit == 0 {
		o.Limit = MaxSize // the size bounds it, as it is later on
	}
	info := &Info{
		Size:          o.Size,
		LogicalBlock:  o.LogicalBlock,
		PhysicalBlock: max(4096, o.LogicalBlock),
		MaxBytes:      MaxIO,
		// No limit but the size: both only free pages.
		MaxDiscard:         MaxSize,
		DiscardGranularity: memPage,
		MaxWriteZeroes:     MaxSize,
		FastZero:           true,
		ReadOnly:           o.ReadOnly,
		FUA:                true,
		MultiConn:          true,
	}
	if err := info.Validate(); err != nil {
		return nil, err
	}
	m := &Mem{limit: int64((min(o.Limit, MaxSize) + memPage - 1) / memPage), purse: o.Purse}
	m.broken.guard = o.Guard
	for i := range m.shards {
		m.shards[i].pages = map[uint64]*[memPage]byte{}
	}
	m.SetInfo(info)
	return m, nil
}

// Allocated is how many bytes of memory hold data.
func (m *Mem) Allocated() uint64 { return uint64(m.used.Load()) * memPage }

// memInPlace is how much of a volume one request makes anew, zeroed, in the
// caller's thread. A request without data may cover gigabytes, which takes seconds;
// the rest of those is left to a goroutine.
const memInPlace = 1 << 20

// Submit carries the batch out and completes it as one, except for requests that take long.
func (m *Mem) Submit(batch []*Request) {
	var long List
	done := 0
	m.resize.RLock()
	info := m.Info()
	for _, r := range batch {
		if m.closed {
			r.Err = ErrClosed
		} else if r.Err = info.Check(r); r.Err == nil {
			if r.Len > memInPlace && (r.Op == OpDiscard || r.Op == OpWriteZeroes) {
				long.Push(r)
				continue
			}
			r.Err = m.attempt(r)
		}
		batch[done] = r
		done++
	}
	m.leave(&long)
	m.resize.RUnlock()
	if done > 0 {
		Complete(batch[:done])
	}
}

// leave hands requests to the goroutine. It is called with resize held for
// reading, so that Close sees them.
func (m *Mem) leave(l *List) {
	if l.Len() == 0 {
		return
	}
	m.longMu.Lock()
	defer m.longMu.Unlock()
	m.working.Add(l.Len())
	m.long.Append(l)
	if !m.zeroing {
		m.zeroing = true
		go m.zeroLong() // ends when no such request is left
	}
}

// zeroLong carries out requests that take long, without resize, which Submit takes.
func (m *Mem) zeroLong() {
	// Panics of a request are contained where it is carried out. Another one may leave the
	// queue half changed.
	defer m.broken.guard.Recover(guard.Step, nil)
	for {
		m.longMu.Lock()
		r := m.long.Pop()
		if r == nil {
			m.zeroing = false
			m.longMu.Unlock()
			return
		}
		m.longMu.Unlock()
		m.sizing.Lock()
		if r.Err = m.Info().Bounds(r.Off, r.Len); r.Err == nil {
			r.Err = m.attempt(r)
		}
		m.sizing.Unlock()
		one := [1]*Request{r}
		m.broken.complete(one[:])
		m.working.Done()
	}
}

// attempt is do in a volume that is not broken, which a panic in it makes it.
func (m *Mem) attempt(r *Request) (err error) {
	if err := m.broken.err(); err != nil {
		return err
	}
	defer m.broken.catch(&err)
	guard.Point("store.memory")
	return m.do(r)
}

func (m *Mem) do(r *Request) error {
	switch r.Op {
	case OpRead:
		for b, off := r.Buf, r.Off; len(b) > 0; {
			// Page by page, each under its shard's lock: a request is not atomic, and need not
			// be.
			n := copyPage(off, uint64(len(b)))
			m.read(off, b[:n])
			b, off = b[n:], off+n
		}
	case OpWrite:
		for b, off := r.Buf, r.Off; len(b) > 0; {
			n := copyPage(off, uint64(len(b)))
			if err := m.write(off, b[:n]); err != nil {
				return err
			}
			b, off = b[n:], off+n
		}
	case OpDiscard:
		m.zero(r.Off, r.Len)
	case OpWriteZeroes:
		if r.Flags&NoUnmap != 0 {
			return m.allocate(r.Off, r.Len)
		}
		m.zero(r.Off, r.Len)
	}
	return nil // a flush has nothing to do: nothing is kept anywhere else
}

// copyPage is how many of n bytes at off lie in one page.
func copyPage(off, n uint64) uint64 { return min(n, memPage-off%memPage) }

func (m *Mem) shard(off uint64) (*memShard, uint64) {
	page := off / memPage
	return &m.shards[page%memShards], page
}

func (m *Mem) read(off uint64, b []byte) {
	s, page := m.shard(off)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.pages[page]; p != nil {
		copy(b, p[off%memPage:])
	} else {
		clear(b)
	}
}

func (m *Mem) write(off uint64, b []byte) error {
	s, page := m.shard(off)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pages[page]
	if p == nil {
		if err := m.take(); err != nil {
			return err
		}
		p = new([memPage]byte)
		s.pages[page] = p
	}
	copy(p[off%memPage:], b)
	return nil
}

// take accounts for one page more.
func (m *Mem) take() (err error) {
	if m.used.Add(1) > m.limit {
		err = rdserr.With(ErrNoSpace, "the volume may allocate %d bytes of memory and has done so", m.limit*memPage)
	} else if m.purse != nil {
		if no := m.purse.Take(memPage); no != nil {
			err = rdserr.With(ErrNoSpace, "%v", no)
		}
	}
	if err != nil {
		m.used.Add(-1)
	}
	return err
}

// allocate makes a range read as zeroes and keeps it allocated.
func (m *Mem) allocate(off, n uint64) error {
	for n > 0 {
		k := copyPage(off, n)
		if err := m.write(off, zeroes[:k]); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

var zeroes [1 << 20]byte // never written to

// zero makes a range read as zeroes and gives up the pages it covers whole, the
// last one of the volume also if that is a part of a page.
func (m *Mem) zero(off, n uint64) {
	if end := off + n; end == m.Info().Size {
		n = (end+memPage-1)/memPage*memPage - off
	}
	if k := copyPage(off, n); off%memPage != 0 || k == n && k < memPage {
		m.clear(off, k)
		off, n = off+k, n-k
	}
	if tail := n % memPage; tail != 0 {
		m.clear(off+n-tail, tail)
		n -= tail
	}
	m.drop(off/memPage, (off+n)/memPage)
}

// clear zeroes part of a page.
func (m *Mem) clear(off, n uint64) {
	s, page := m.shard(off)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pages[page]; p != nil {
		clear(p[off%memPage : off%memPage+n])
	}
}

// drop gives up the pages from first to before end. It takes as long as there
// are pages, however long the range is.
func (m *Mem) drop(first, end uint64) {
	if first >= end {
		return
	}
	for i := range m.shards {
		m.dropOf(uint64(i), first, end)
	}
}

// dropOf is drop for the pages of one shard.
func (m *Mem) dropOf(i, first, end uint64) {
	s := &m.shards[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	if (end-first)/memShards <= uint64(len(s.pages)) {
		step := (i + memShards - first%memShards) % memShards
		for page := first + step; page < end; page += memShards {
			m.forget(s, page)
		}
		return
	}
	for page := range s.pages {
		if page >= first && page < end {
			m.forget(s, page)
		}
	}
}

func (m *Mem) forget(s *memShard, page uint64) {
	if s.pages[page] != nil {
		delete(s.pages, page)
		m.used.Add(-1)
		if m.purse != nil {
			m.purse.Give(memPage)
		}
	}
}

// mapPages bounds how many pages one call of Map looks at.
const mapPages = 1 << 16

// Map tells which pages are allocated.
func (m *Mem) Map(off, n uint64, out []Extent) (_ []Extent, err error) {
	m.resize.RLock()
	defer m.resize.RUnlock()
	defer m.broken.catch(&err)
	if err := m.Info().Bounds(off, n); err != nil {
		return out, err
	}
	for looked := 0; n > 0 && looked < mapPages; looked++ {
		k := copyPage(off, n)
		s, page := m.shard(off)
		s.mu.RLock()
		hole := s.pages[page] == nil
		s.mu.RUnlock()
		if last := len(out) - 1; last >= 0 && out[last].Hole == hole {
			out[last].Len += k
		} else if len(out) == cap(out) {
			break
		} else {
			out = append(out, Extent{Len: k, Hole: hole, Zero: hole})
		}
		off, n = off+k, n-k
	}
	return out, nil
}

// Resize sets the size; data beyond a smaller one is gone for good.
func (m *Mem) Resize(size uint64) error {
	m.sizing.Lock()
	defer m.sizing.Unlock()
	m.resize.Lock()
	info := *m.Info()
	old := info.Size
	info.Size = size
	err := info.Validate()
	if err == nil && m.closed {
		err = ErrClosed
	}
	if err != nil {
		m.resize.Unlock()
		return err
	}
	m.info.Store(&info)
	m.resize.Unlock()
	// No request reaches the pages beyond the end now, until another call makes them part
	// of the volume again, which waits for this one. So requests need not wait for it.
	if end := (old + memPage - 1) / memPage * memPage; size < old {
		m.zero(size, end-size)
	}
	m.notify()
	return nil
}

// Close gives the memory up.
func (m *Mem) Close() error {
	m.resize.Lock()
	was := m.closed
	m.closed = true
	m.resize.Unlock()
	m.working.Wait()
	m.drop(0, MaxSize/memPage+1)
	if m.purse != nil && !was {
		m.purse.Close()
	}
	return nil
}
