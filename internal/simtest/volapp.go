package simtest

import (
	"errors"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// mapping is one user of a disk: it maps it, reads and writes, and unmaps it.
type mapping struct {
	c       *volClient
	d       *disk
	vol     *rnbd.Volume // nil: not mapped
	asked   bool         // Map has no answer yet
	ending  bool
	ro      bool
	depth   int
	running int
	syncBad bool      // a sync failed at the store since it was mapped
	writes  []*vwrite // since it was mapped, and not flushed
	errors  int       // in a row
	last    int       // final reads to be made
}

// volOp is a request of the user.
type volOp struct {
	r      blk.Request
	m      *mapping
	vol    *rnbd.Volume
	x      *vwrite // of a write
	from   int
	when   time.Duration
	frozen time.Duration // what its node had been frozen for by then
	bad    bool          // it is no request the volume can carry out
	live   bool
}

// work lets the user do something every now and then.
func (m *mapping) work() {
	w := m.c.v.w
	pause := w.upTo(2 * m.c.v.opEvery)
	if w.chance(100) {
		pause = w.upTo(time.Second)
	}
	w.After(pause, m.c.guard(func() {
		if m.c.rt.Err() == nil && !m.c.v.over {
			m.act()
			m.c.settle()
		}
		m.work()
	}))
}

func (m *mapping) act() {
	c, w := m.c, m.c.v.w
	now := w.Now()
	calm := w.calm
	switch {
	case m.vol == nil && m.running != 0: // what had ended was handed out in the same step
		w.fail("B4: %s is not mapped by %s any more, with %d requests under way", m.d.name, c.name, m.running)
	case m.vol == nil:
		if !calm || !m.d.shared && w.chance(4) || m.d.shared {
			m.open()
		}
	case m.asked || m.ending:
		if !calm && w.chance(200) && !m.ending { // no patience
			m.close(true)
		}
	case m.errors > 5 || !calm && w.chance(m.d.turns()):
		m.close(m.errors > 5 || w.chance(2))
	case calm && !m.d.shared && s(m.vol) == rnbd.Closed: // it has another writer, perhaps for ever
		m.close(true)
	case m.stopped() && w.chance(4):
		m.vol.Remap(now)
	case m.stopped():
		m.close(true)
	case calm:
		for ; m.last > 0 && m.running < m.depth; m.last-- {
			m.submit(blk.OpRead, (m.last-1)*4, 4, 0)
		}
	default:
		for k := 1 + w.rng.Intn(m.depth); k > 0 && m.running < m.depth && m.vol != nil; k-- {
			m.op()
		}
	}
}

// turns is how often the users of a disk unmap it: one in so many acts.
func (d *disk) turns() int {
	if d.shared {
		return 400
	}
	return 60
}

// stopped reports whether the volume is closed for good.
func (m *mapping) stopped() bool {
	s, _ := m.vol.State()
	return s == rnbd.Closed && m.errors > 0
}

func (m *mapping) open() {
	c, w := m.c, m.c.v.w
	m.ro = w.chance(6)
	access := rnbdwire.ReadWrite
	if m.ro {
		access = rnbdwire.ReadOnly
	}
	vol, err := c.rn.Map(w.Now(), m.d.name, access)
	if err != nil {
		w.fail("B4: %s cannot map %s: %v", c.name, m.d.name, err)
		return
	}
	w.mix(27, uint64(m.d.num))
	m.syncBad, m.writes, m.errors, m.ending = false, nil, 0, false
	if s, _ := vol.State(); s == rnbd.Unmapped { // refused within the call
		return
	}
	m.vol, m.asked = vol, s(vol) == rnbd.Init
	vol.Ctx = m
}

func s(v *rnbd.Volume) rnbd.State {
	st, _ := v.State()
	return st
}

func (m *mapping) close(force bool) {
	w := m.c.v.w
	unmap := m.vol.Unmap
	if force {
		unmap = m.vol.ForceUnmap
	}
	err := unmap(w.Now())
	if err == nil {
		m.ending = m.vol != nil
		m.asked = false
	}
	if w.verbose != nil {
		w.trace("%s unmaps %s, by force %v: %v", m.c.name, m.d.name, force, err)
	}
}

// op draws a request.
func (m *mapping) op() {
	w := m.c.v.w
	at := w.rng.Intn(m.d.spread())
	n := min(1+w.rng.Intn(8), m.d.spread()-at)
	var fua blk.Flags
	if w.chance(8) {
		fua = blk.FUA
	}
	switch k := w.rng.Intn(100); {
	case k < 45:
		m.submit(blk.OpWrite, at, n, fua)
	case k < 80:
		m.submit(blk.OpRead, at, n, 0)
	case k < 88:
		m.submit(blk.OpFlush, 0, 0, 0)
	case k < 93:
		m.submit(blk.OpWriteZeroes, at, n, fua)
	case k < 96:
		m.submit(blk.OpDiscard, at, n, 0)
	default:
		m.submit(pick(w, blk.OpRead, blk.OpWrite), diskSectors-1, 2, 0) // beyond the end
	}
}

// spread is how many sectors are used: few, so that writes overlap.
func (d *disk) spread() int {
	if d.num%2 == 0 {
		return 6
	}
	return diskSectors
}

func (m *mapping) submit(op blk.Op, at, n int, flags blk.Flags) {
	c, v, w := m.c, m.c.v, m.c.v.w
	o := &volOp{m: m, vol: m.vol, when: w.Now(), live: true, frozen: v.frozen[c.node]}
	o.r = blk.Request{Op: op, Flags: flags, Off: uint64(at) * sectorLen, Len: uint64(n) * sectorLen, Ctx: o, Queue: v}
	if op == blk.OpRead || op == blk.OpWrite {
		o.r.Buf = make([]byte, n*sectorLen)
	}
	o.bad = at+n > diskSectors || m.ro && op.Writes()
	if op.Writes() && !o.bad {
		o.x = v.begin(o, o.r.Buf)
	} else if o.bad && op == blk.OpWrite {
		scramble(o.r.Buf)
	}
	o.from = v.tick()
	m.running++
	w.mix(28, uint64(op), uint64(at), uint64(n))
	if w.verbose != nil {
		w.trace("%s submits %v of %s at %d+%d, flags %d, at %d %v", c.name, op, m.d.name, at, n, flags, o.from, o.x != nil)
	}
	m.vol.Submit(w.Now(), []*blk.Request{&o.r})
}

// Complete is told how requests ended.
func (v *volumes) Complete(batch []*blk.Request) {
	for _, r := range batch {
		v.complete(r.Ctx.(*volOp))
	}
}

func (v *volumes) complete(o *volOp) {
	w, m, r := v.w, o.m, &o.r
	w.mix(29, uint64(r.Op), uint64(rdserr.Errno(r.Err)))
	if w.verbose != nil {
		w.trace("%s: %v of %s at %d+%d, of %d, is done: %v", m.c.name, r.Op, m.d.name, r.Off/sectorLen, r.Len/sectorLen, o.from, r.Err)
	}
	if !o.live {
		w.fail("B4: a %v of %s, of %d, is completed twice", r.Op, m.c.name, o.from)
	}
	o.live = false
	for _, f := range m.c.lives {
		_, ours := errors.AsType[*rdserr.Error](r.Err)
		switch {
		case r.Op == blk.OpRead && f.writable(r.Buf):
			w.fail("B4: the server may write to the memory of a read of %s, of %d, that is done", m.c.name, o.from)
		case r.Op == blk.OpWrite && ours && f.reads(r.Buf):
			w.fail("B4: a link may read the memory of a write of %s, of %d, that is done", m.c.name, o.from)
		}
	}
	m.running--
	v.total.Done++
	if r.Err != nil {
		v.total.Failed++
		m.errors++
	} else {
		m.errors = 0
	}
	if m.c.cfg.OnLoss == rtrs.Error {
		most := m.c.cfg.IOTimeout + m.c.cfg.LossTimeout + 20*time.Millisecond + v.frozen[m.c.node] - o.frozen
		if took := w.Now() - o.when; took > most {
			w.fail("B4: a %v of %s, of %d, took %v, %v are allowed", r.Op, m.c.name, o.from, took, most)
		}
	}
	if o.bad && r.Err == nil {
		w.fail("B5: a %v at %d+%d of %s succeeded", r.Op, r.Off, r.Len, m.d.name)
	}
	if o.x != nil {
		v.ended(o.x, r.Err)
	}
	if sync := r.Op == blk.OpFlush || r.Flags&blk.FUA != 0 && r.Op.Writes(); sync {
		n := rdserr.Errno(r.Err)
		switch {
		case r.Err == nil && m.syncBad:
			w.fail("B7: a %v of %s succeeds after a sync had failed", r.Op, m.c.name)
		case n == blk.ErrMedium.Errno || n == blk.ErrSyncFailed.Errno:
			m.syncBad = true
		}
	}
	switch {
	case r.Err != nil:
	case r.Op == blk.OpFlush:
		v.flushed(m, o.from)
	case r.Op == blk.OpRead:
		for i := range int(r.Len / sectorLen) {
			v.saw(m.d, int(r.Off/sectorLen)+i, o.from, r.Buf[i*sectorLen:][:sectorLen])
		}
	}
	scramble(r.Buf) // its owner's again
}
