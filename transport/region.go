package transport

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Regions is the Domain of links over a byte stream: which memory their peers
// may write, by key. A TagReader asks it for each write.
//
// A key is a counter, encrypted, so that it is hard to guess and comes again
// only after all others; an address is random. The counter's low bits are the
// place in the table: one that is taken makes the counter go on.
type Regions struct {
	mu         sync.Mutex // guards all; nothing is called with it held
	rnd        *rand.ChaCha8
	secret     [4]uint32
	count      uint32
	table      []*region // a power of two of them, at most half in use
	live       int
	spare      []*region
	closed     bool
	guard      func(p []byte) error // set before the first link; called without mu
	deferReads func() bool          // likewise
}

// Guard has f called before a peer writes p, which is memory of this domain. Its error ends
// the link. f is called on the thread that reads the link, for each write, and must not
// block. Set it before the first link.
func (d *Regions) Guard(f func(p []byte) error) { d.guard = f }

// DeferReads has f called before a link is read, under the rules of Guard. If it returns
// true the peer's bytes wait for a moment in the socket, because there is no memory yet
// that it may write.
func (d *Regions) DeferReads(f func() bool) { d.deferReads = f }

type region struct {
	p     []byte
	addr  uint64
	count uint32
	busy  atomic.Int32 // writes under way
	full  atomic.Int64 // bytes from the first one on that were written, without a gap
	dead  atomic.Bool  // revoked while busy: never used again
}

// NewRegions makes a domain. Its keys can be computed from the seed, which has to be
// secret.
func NewRegions(seed [32]byte) *Regions {
	d := &Regions{rnd: rand.NewChaCha8(seed), table: make([]*region, 16)}
	for i := range d.secret {
		d.secret[i] = uint32(d.rnd.Uint64())
	}
	d.count = uint32(d.rnd.Uint64())
	return d
}

// key encrypts a count, count decrypts a key: a Feistel network of four rounds.
func (d *Regions) key(count uint32) uint32 {
	l, r := uint16(count>>16), uint16(count)
	for _, s := range d.secret {
		l, r = r, l^mix(r, s)
	}
	return uint32(l)<<16 | uint32(r)
}

func (d *Regions) counted(key uint32) uint32 {
	l, r := uint16(key>>16), uint16(key)
	for i := len(d.secret) - 1; i >= 0; i-- {
		l, r = r^mix(l, d.secret[i]), l
	}
	return uint32(l)<<16 | uint32(r)
}

func mix(x uint16, secret uint32) uint16 {
	v := (uint32(x) ^ secret) * 0x9e3779b1
	v ^= v >> 15
	v = (v + secret) * 0x85ebca6b
	return uint16(v >> 16)
}

// Register lets peers write p.
func (d *Regions) Register(p []byte) (key uint32, addr uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Page-aligned, and far from both ends of the address space, so that sums
	// with lengths pass neither.
	addr = d.rnd.Uint64()>>8&^0xfff | 1<<56
	return d.register(p, addr), addr
}

// RegisterAt lets peers write p at an address of the caller's.
func (d *Regions) RegisterAt(p []byte, addr uint64) (key uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.register(p, addr)
}

// register finds a key. mu is held.
func (d *Regions) register(p []byte, addr uint64) (key uint32) {
	if 2*d.live >= len(d.table) {
		d.grow()
	}
	for {
		d.count++
		if d.table[d.slot(d.count)] != nil {
			continue
		}
		if key = d.key(d.count); key != 0 { // which a write without bytes carries
			break
		}
	}
	if d.closed {
		return key
	}
	r := d.take()
	r.p, r.addr, r.count = p, addr, d.count
	r.full.Store(0)
	d.table[d.slot(r.count)] = r
	d.live++
	return key
}

func (d *Regions) slot(count uint32) int { return int(count) & (len(d.table) - 1) }

// grow doubles the table: regions in different places stay in different places.
func (d *Regions) grow() {
	old := d.table
	d.table = make([]*region, 2*len(old))
	for _, r := range old {
		if r != nil {
			d.table[d.slot(r.count)] = r
		}
	}
}

func (d *Regions) take() *region {
	n := len(d.spare)
	if n == 0 {
		return &region{}
	}
	r := d.spare[n-1]
	d.spare = d.spare[:n-1]
	return r
}

func (d *Regions) find(key uint32) *region {
	count := d.counted(key)
	if r := d.table[d.slot(count)]; r != nil && r.count == count {
		return r
	}
	return nil
}

// Grant is Register where at is 0, and RegisterAt otherwise: OneSided.Grant for links whose
// keys are the domain's.
func (d *Regions) Grant(p []byte, at uint64) (key uint32, addr uint64) {
	if at == 0 {
		return d.Register(p)
	}
	return d.RegisterAt(p, at), at
}

// Revoke ends key. It is never Pending.
func (d *Regions) Revoke(key uint32) Revocation {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.find(key)
	if r == nil {
		return Idle
	}
	return d.remove(r)
}

// Take is Revoke, and tells how much was written.
func (d *Regions) Take(key uint32) (filled int, how Revocation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.find(key)
	if r == nil {
		return 0, Idle
	}
	filled = int(r.full.Load())
	return filled, d.remove(r)
}

func (d *Regions) remove(r *region) Revocation {
	d.table[d.slot(r.count)] = nil
	d.live--
	if r.busy.Load() > 0 { // the writer has it; it is not used again
		r.dead.Store(true)
		return Busy
	}
	r.p = nil
	d.spare = append(d.spare, r)
	return Idle
}

// Close revokes all keys, for good.
func (d *Regions) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, r := range d.table {
		if r != nil {
			d.remove(r)
		}
	}
	d.spare = nil
}

// begin checks a write and holds its region until region.end; the memory may
// be written as long as the region is not dead.
func (d *Regions) begin(t *Tag) (r *region, dst []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r = d.find(t.Key); r == nil {
		return nil, nil, t.denied("there is no such key (any more)")
	}
	off := t.Addr - r.addr
	if t.Addr < r.addr || off > uint64(len(r.p)) || uint64(t.Len) > uint64(len(r.p))-off {
		return nil, nil, t.denied("the key is for other memory")
	}
	r.busy.Add(1)
	return r, r.p[off:][:t.Len:t.Len], nil
}

func (r *region) end() { r.busy.Add(-1) }

// wrote counts the write t, all of whose bytes are in their place. A peer that
// writes one part twice and leaves another out is not credited with both.
func (r *region) wrote(t *Tag) {
	off := int64(t.Addr - r.addr)
	for end := off + int64(t.Len); ; {
		was := r.full.Load()
		if off > was || end <= was || r.full.CompareAndSwap(was, end) {
			return
		}
	}
}

// invalidate is Take as a peer may ask for it.
func (d *Regions) invalidate(t *Tag) (filled int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.find(t.Key)
	switch {
	case r == nil:
		return 0, t.denied("there is no such key (any more)")
	case r.busy.Load() > 0: // it stays, so that its owner learns of the write
		return 0, t.denied("it is writing with that key")
	}
	filled = int(r.full.Load())
	d.remove(r)
	return filled, nil
}

func (t *Tag) denied(why string) error {
	return &AccessError{Kind: t.Kind, Key: t.Key, Addr: t.Addr, Len: t.Len, Why: why}
}
