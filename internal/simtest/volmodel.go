package simtest

import (
	"encoding/binary"
	"slices"

	"github.com/rdsd/rdsd/blk"
)

// The model of volumes: each write, where in the world's order it began, touched
// the medium and ended, sector by sector. Sectors bear the number of the write
// they are of; what zeroes and discards put there bears nothing.

const sectorLen = 512

// vwrite is one write, discard or write zeroes as its submitter sees it. Times are places
// in volumes.order.
type vwrite struct {
	id         uint64 // from 1
	d          *disk
	c          *volClient
	life       int // of c's process
	op         blk.Op
	fua        bool
	at         int
	sec        []vsec
	start, end int // end: 0 while it runs
	failed     bool
	barred     int // when another became the volume's writer; 0: nobody
}

// vsec is what is known of a write in one of its sectors.
type vsec struct {
	touched int  // the last time it reached the medium
	durable bool // and survives a loss of power
	lost    bool // it may have been lost with the power since
	seen    int  // the first read that found it was complete then
}

// unsynced is a sector of a write that a flush would make durable.
type unsynced struct {
	x *vwrite
	s int // of the disk
}

func (x *vwrite) sector(s int) *vsec { return &x.sec[s-x.at] }

func (x *vwrite) covers(s int) bool { return s >= x.at && s < x.at+len(x.sec) }

func (x *vwrite) zeroes() bool { return x.op != blk.OpWrite }

// over returns when the write was over for the order of others: when it ended, or lost its
// right.
func (x *vwrite) over() int {
	if x.barred != 0 && (x.end == 0 || x.barred < x.end) {
		return x.barred
	}
	return x.end
}

// fillSector writes what write id puts into sector s of disk d.
func fillSector(b []byte, id uint64, d, s int) {
	x := id*0x9e3779b97f4a7c15 ^ uint64(d)<<48 ^ uint64(s)<<32
	for i := 0; i < sectorLen; i += 16 {
		binary.LittleEndian.PutUint64(b[i:], id)
		binary.LittleEndian.PutUint64(b[i+8:], x^uint64(i))
	}
}

// readSector tells of which write b is, 0: zeroes.
func readSector(b []byte, d, s int) (id uint64, ok bool) {
	var want [sectorLen]byte
	if id = binary.LittleEndian.Uint64(b); id != 0 {
		fillSector(want[:], id, d, s)
	}
	return id, string(want[:]) == string(b)
}

func (v *volumes) tick() int {
	v.order++
	return v.order
}

// begin notes a write that is about to be submitted, and signs buf.
func (v *volumes) begin(o *volOp, buf []byte) *vwrite {
	m := o.m
	x := &vwrite{id: uint64(len(v.writes) + 1), d: m.d, c: m.c, life: m.c.process, op: o.r.Op, fua: o.r.Flags&blk.FUA != 0,
		at: int(o.r.Off / sectorLen), sec: make([]vsec, o.r.Len/sectorLen), start: v.tick()}
	v.writes = append(v.writes, x)
	for i := range x.sec {
		m.d.writes[x.at+i] = append(m.d.writes[x.at+i], x)
		if buf != nil {
			fillSector(buf[i*sectorLen:][:sectorLen], x.id, m.d.num, x.at+i)
		}
	}
	o.f.writes = append(o.f.writes, x)
	return x
}

// ended records that the submitter of x was told its outcome.
func (v *volumes) ended(x *vwrite, err error) {
	x.end, x.failed = v.tick(), err != nil
	if err != nil {
		return
	}
	for i := range x.sec {
		switch k := &x.sec[i]; {
		case k.touched == 0:
			v.w.fail("B1: %v completed, and its sector %d never reached the store", x, x.at+i)
		case x.fua && (!k.durable || k.lost):
			v.w.fail("B1: %v with FUA completed, and its sector %d does not survive", x, x.at+i)
		}
	}
}

// touch is the moment when r reaches sector s of d; b nil: with zeroes.
func (v *volumes) touch(d *disk, s int, b []byte, r *blk.Request) {
	w := v.w
	fua := r.Flags&blk.FUA != 0
	w.mix(20, uint64(d.num), uint64(s))
	if b == nil {
		v.touchZero(d, s, r.Op, fua)
		return
	}
	id, ok := readSector(b, d.num, s)
	if !ok || id == 0 || id > uint64(len(v.writes)) {
		w.fail("B5: sector %d of %s is given what nobody wrote there (%x)", s, d.name, b[:16])
		return
	}
	x := v.writes[id-1]
	if why := v.mayTouch(d, s, x); why != "" {
		w.fail("%s", why)
		return
	}
	if w.verbose != nil {
		w.trace("%s: sector %d is of %v now", d.name, s, x)
	}
	v.touched(x, s, fua)
	if fua {
		v.synced(d, s, s+1)
	}
}

// touchZero records that a sector is zeroed. Zeroes bear no name: some write under way has
// to be allowed to write them.
func (v *volumes) touchZero(d *disk, s int, op blk.Op, fua bool) {
	why := "B3: nobody has zeroes under way"
	any := false
	for _, x := range d.writes[s] {
		if x.op != op || x.fua != fua || x.end != 0 && !x.failed {
			continue
		}
		if bad := v.mayTouch(d, s, x); bad != "" {
			why = bad
			continue
		}
		any = true
		v.touched(x, s, fua)
	}
	if !any {
		v.w.fail("%s (sector %d of %s is zeroed)", why, s, d.name)
	}
	if v.w.verbose != nil {
		v.w.trace("%s: sector %d is zeroes now", d.name, s)
	}
	if fua {
		v.synced(d, s, s+1)
	}
}

func (v *volumes) touched(x *vwrite, s int, fua bool) {
	k := x.sector(s)
	*k = vsec{touched: v.tick(), durable: fua, seen: k.seen}
	if !fua {
		x.d.unsynced = append(x.d.unsynced, unsynced{x, s})
	}
}

// mayTouch is what B3 and B6 say of x reaching the medium now.
func (v *volumes) mayTouch(d *disk, s int, x *vwrite) string {
	text := v.w.text
	switch {
	case x.d != d || !x.covers(s):
		return text("B5: %v reaches sector %d of %s", x, s, d.name)
	case x.end != 0 && !x.failed:
		return text("B3: %v reaches sector %d of %s after it was completed", x, s, d.name)
	case x.life < x.c.upLife:
		return text("B3: %v is of process %d of %s and reaches %s while process %d has a session", x, x.life, x.c.name, d.name, x.c.upLife)
	case !d.shared && (d.owner != x.c || x.barred != 0):
		return text("B6: %v reaches %s, whose writer is %v", x, d.name, d.owner)
	}
	if x.end != 0 { // it failed, and may happen until something newer has
		for _, y := range d.writes[s] {
			if y.start > x.end && y.sector(s).touched != 0 && (!d.shared || y.c == x.c) {
				return text("B3: %v, which failed, reaches sector %d of %s after %v", x, s, d.name, y)
			}
		}
	}
	return ""
}

// synced records that sectors from a up to b are durable.
func (v *volumes) synced(d *disk, a, b int) {
	d.unsynced = slices.DeleteFunc(d.unsynced, func(u unsynced) bool {
		in := u.s >= a && u.s < b
		if in {
			u.x.sector(u.s).durable = true
		}
		return in
	})
}

// lost records that writes that were not durable may be gone.
func (v *volumes) lost(d *disk) {
	for _, u := range d.unsynced {
		k := u.x.sector(u.s)
		k.lost, k.seen = true, 0
	}
	d.unsynced = d.unsynced[:0]
}

// flushed checks a flush that was submitted to f at from and that has succeeded: everything f had
// been given before it was durable then (B1), and no sync had failed (B7).
func (v *volumes) flushed(f *volFront, from int) {
	f.writes = slices.DeleteFunc(f.writes, func(x *vwrite) bool {
		if x.end == 0 || x.end > from {
			return false
		}
		for i := range x.sec {
			if k := &x.sec[i]; !x.failed && (k.lost || !k.durable) {
				v.w.fail("B1: a flush of %s succeeded, and sector %d of %v, which was complete before, does not survive", f.m.d.name, x.at+i, x)
			}
		}
		return true
	})
}

// saw checks what a read that began at from found in sector s of d (B2, B8).
func (v *volumes) saw(d *disk, s, from int, b []byte) {
	w := v.w
	id, ok := readSector(b, d.num, s)
	if !ok || id > uint64(len(v.writes)) {
		w.fail("B8: sector %d of %s reads as what nobody wrote there (%x)", s, d.name, b[:16])
		return
	}
	if id == 0 {
		last := v.superseded(d, s, from, nil)
		if last == nil {
			return
		}
		for _, x := range d.writes[s] {
			if x.zeroes() && v.superseded(d, s, from, x) == nil {
				return
			}
		}
		w.fail("B2: sector %d of %s reads as zeroes, begun at %d, after %v", s, d.name, from, last)
		return
	}
	x := v.writes[id-1]
	if y := v.superseded(d, s, from, x); y != nil {
		w.fail("B2: sector %d of %s reads as %v, begun at %d, after %v", s, d.name, x, from, y)
		return
	}
	if k := x.sector(s); k.seen == 0 {
		k.seen = v.tick()
	}
}

// superseded finds a write that was certain to have come after x (nil: what was
// there in the beginning), and to have happened, when a read began at from.
func (v *volumes) superseded(d *disk, s, from int, x *vwrite) *vwrite {
	end := 0
	if x != nil {
		if end = x.over(); end == 0 {
			return nil
		}
	}
	for _, y := range d.writes[s] {
		if y.start < end || y.op == blk.OpDiscard || x != nil && x.failed && d.shared && y.c != x.c {
			continue
		}
		k := y.sector(s)
		if !k.lost && (y.end != 0 && !y.failed && y.end < from || k.seen != 0 && k.seen < from) {
			return y
		}
	}
	return nil
}

// owned records that the server has opened d for writing for c alone (B6). Writes of other
// clients may not reach it any more.
func (v *volumes) owned(d *disk, c *volClient) {
	if d.shared {
		return
	}
	if d.owner != c {
		v.total.Owners++
	}
	d.owner = c
	now := v.tick()
	for _, x := range v.writes {
		if x.d == d && x.c != c && x.barred == 0 {
			x.barred = now
		}
	}
}

// replaced records that a new process of c has a session: the requests of the former one
// have ended.
func (v *volumes) replaced(c *volClient) {
	if c.upLife == c.process {
		return
	}
	c.upLife = c.process
	for _, x := range v.writes {
		if x.c == c && x.life < c.process && x.end == 0 {
			x.end, x.failed = v.tick(), true
		}
	}
}

func (x *vwrite) String() string {
	if x.failed {
		return x.c.v.w.text("%v %d of %s (sectors %d to %d, begun at %d, failed at %d)", x.op, x.id, x.c.name, x.at, x.at+len(x.sec)-1, x.start, x.end)
	}
	return x.c.v.w.text("%v %d of %s (sectors %d to %d, begun at %d, ended at %d)", x.op, x.id, x.c.name, x.at, x.at+len(x.sec)-1, x.start, x.end)
}
