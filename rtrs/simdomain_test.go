package rtrs

import (
	"time"

	"github.com/rdsd/rdsd/transport"
)

// The memory that simulated links may write, and what kind of links they are.

// device says in what the links of a cable differ from those over TCP.
type device struct {
	late    bool // a key's end is Pending, mostly, and told later or never
	nowhere bool // it does not tell where a write went
	blind   bool // nor how much was written
	slow    bool // what is posted counts as sent long after it has left
}

// drawDevice draws one; half of them are TCP.
func drawDevice(w *world) (d device) {
	if w.chance(0.5) {
		d = device{late: w.chance(0.7), nowhere: w.chance(0.5), blind: w.chance(0.5), slow: w.chance(0.7)}
	}
	return d
}

// domain is a protection domain.
type domain struct {
	w       *world
	dev     device
	life    *life // whose links tell of keys that have ended
	regions map[uint32]*region
}

type region struct {
	b    []byte
	addr uint64
	busy int
	full int // bytes from the first one on that were written
}

func newDomain(w *world, dev device) *domain {
	return &domain{w: w, dev: dev, regions: map[uint32]*region{}}
}

func (d *domain) register(b []byte, addr uint64) (uint32, uint64) {
	d.w.keys++
	key := d.w.keys * 2654435761
	if addr == 0 {
		addr = uint64(d.w.rnd.Intn(1<<30)+1) << 20
	}
	d.regions[key] = &region{b: b, addr: addr}
	return key, addr
}

func (d *domain) find(key uint32) *region { return d.regions[key] }

// end ends a key now.
func (d *domain) end(key uint32) (filled int, how transport.Revocation) {
	r := d.regions[key]
	delete(d.regions, key)
	switch {
	case r == nil:
		return 0, transport.Idle
	case r.busy > 0:
		how = transport.Busy
	}
	if d.dev.blind {
		return transport.Unfilled, how
	}
	return r.full, how
}

// take ends a key, or has it end after a while: a link tells that then, unless all have
// ended.
func (d *domain) take(key uint32) (filled int, how transport.Revocation) {
	if d.regions[key] == nil || !d.dev.late || d.life.open == 0 || d.w.chance(0.3) {
		return d.end(key)
	}
	d.w.after(d.w.upTo(5*time.Millisecond), func() { d.ends(key) })
	return transport.Unfilled, transport.Pending
}

// ends is the end of a key that was Pending.
func (d *domain) ends(key uint32) {
	switch r := d.regions[key]; {
	case r == nil:
		return
	case r.busy > 0: // a device ends it when nothing writes there
		d.w.after(100*time.Microsecond, func() { d.ends(key) })
		return
	}
	filled, _ := d.end(key)
	for _, e := range d.life.ends {
		if e != nil && !e.closed {
			d.w.note("%s: key %#x has ended", e.wire.name, key)
			if err := e.h.revoked(key, filled); err != nil {
				e.end(err)
			}
			return
		}
	}
}

// wrote counts what a write has placed, if its key is still good.
func (d *domain) wrote(m *message) {
	if r := d.regions[m.op.Key]; r != nil && len(m.bytes) > 0 {
		if off := int(m.op.Addr - r.addr); off <= r.full {
			r.full = max(r.full, off+len(m.bytes))
		}
	}
}

// covered reports whether a peer can write the first byte of b. It is asked only at the end
// of a request.
func (d *domain) covered(b []byte) bool {
	for _, r := range d.regions {
		if len(b) > 0 && len(r.b) > 0 && &r.b[0] == &b[0] {
			return true
		}
	}
	return false
}
