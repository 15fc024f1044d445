package simtest

import (
	"context"
	"errors"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
)

// mapping is one user of a disk: it maps it, reads and writes, and unmaps it, by the calls of
// the daemon.
type mapping struct {
	c      *volClient
	d      *disk
	id     string
	f      *volFront // nil: not mapped
	asked  bool      // a call has not returned, or it is being mapped again
	asks   bool      // a call of Map is under way
	ending bool      // one of Unmap is
	forced bool      // one of Unmap by force was
	depth  int
	errors int // in a row
	last   int // final reads to be made
	under  int // requests under way, those of former fronts too
}

// volOp is a request of the user.
type volOp struct {
	r      blk.Request
	m      *mapping
	f      *volFront
	p      *volProcess
	x      *vwrite // of a write
	from   int
	when   time.Duration
	frozen time.Duration // what its node had been frozen for by then
	bad    bool          // it is no request the volume can carry out
	live   bool
}

// work lets the user do something every now and then.
func (m *mapping) work() {
	p, w := m.c.p, m.c.v.w
	pause := w.upTo(2 * m.c.v.opEvery)
	if w.chance(100) {
		pause = w.upTo(time.Second)
	}
	w.After(pause, p.event(func() {
		if !m.c.v.over && !p.over {
			m.act()
		}
		m.work()
	}))
}

func (m *mapping) act() {
	w := m.c.v.w
	calm := w.calm
	switch {
	case m.ending:
	case m.asked:
		if !calm && w.chance(200) { // no patience
			m.close(true)
		}
	case m.f == nil:
		m.open()
	case m.errors > 5 || !calm && w.chance(m.d.turns()):
		m.close(m.errors > 5 || w.chance(2))
	case calm && !m.d.shared && m.state() == volume.StateClosed: // it has another writer, perhaps for ever
		m.close(true)
	case m.errors > 0 && m.state() == volume.StateClosed:
		if w.chance(4) {
			m.call(func(ctx context.Context) error {
				_, err := m.c.p.host.Remap(ctx, m.id)
				return err
			})
		} else if w.chance(4) {
			m.close(true)
		}
	case calm:
		for ; m.last > 0 && m.f.running < m.depth; m.last-- {
			m.submit(blk.OpRead, (m.last-1)*4, 4, 0)
		}
	default:
		for k := 1 + w.rng.Intn(m.depth); k > 0 && m.f != nil && m.f.running < m.depth; k-- {
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

// state is what the daemon says of it; "": it has no such mapping.
func (m *mapping) state() string {
	i, err := m.c.p.host.Mapping(m.id)
	if err != nil {
		return ""
	}
	return i.State
}

// call makes a call that may wait.
func (m *mapping) call(f func(ctx context.Context) error) {
	m.asked = true
	m.c.p.spawn(func() {
		err := f(context.Background())
		m.asked = false
		if w := m.c.v.w; w.verbose != nil {
			w.trace("%s: a call about %s has returned: %v", m.c.name, m.d.name, err)
		}
	})
}

func (m *mapping) open() {
	w := m.c.v.w
	s := m.c.spec
	s.ID, s.Name, s.Persist = m.id, m.d.name, w.chance(3)
	if w.chance(6) {
		s.Access = volume.AccessRO
	}
	m.asks = true
	m.call(func(ctx context.Context) error {
		p := m.c.p
		_, err := p.host.Map(ctx, s)
		m.asks = false
		// The stop of its daemon may take it before the call has returned.
		if w.bad == nil && (err == nil) != (m.f != nil) && !m.ending && (err != nil || !p.over) {
			w.fail("B4: %s maps %s: %v, and it is there: %v", m.c.name, m.d.name, err, m.f != nil)
		}
		return err
	})
}

func (m *mapping) close(force bool) {
	p, w := m.c.p, m.c.v.w
	m.ending = true
	m.forced = m.forced || force
	if w.verbose != nil {
		w.trace("%s unmaps %s, by force %v", m.c.name, m.d.name, force)
	}
	p.spawn(func() {
		err := p.host.Unmap(context.Background(), m.id, force)
		m.ending = false
		if w.verbose != nil {
			w.trace("%s has unmapped %s: %v", m.c.name, m.d.name, err)
		}
		if err == nil && m.f != nil && !m.asks {
			w.fail("B4: %s has unmapped %s, and it is there", m.c.name, m.d.name)
		}
		// It has ended too where only the state cannot be kept.
		if _, e := p.host.Mapping(m.id); e != nil && !m.asks {
			m.asked = false
		}
	})
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
	f := m.f
	o := &volOp{m: m, f: f, p: c.p, when: w.Now(), live: true, frozen: v.frozen[c.node.n]}
	o.r = blk.Request{Op: op, Flags: flags, Off: uint64(at) * sectorLen, Len: uint64(n) * sectorLen, Ctx: o, Queue: v}
	if op == blk.OpRead || op == blk.OpWrite {
		o.r.Buf = make([]byte, n*sectorLen)
	}
	o.bad = at+n > diskSectors || f.ro && op.Writes()
	if op.Writes() && !o.bad {
		o.x = v.begin(o, o.r.Buf)
	} else if o.bad && op == blk.OpWrite {
		scramble(o.r.Buf)
	}
	o.from = v.tick()
	f.running++
	m.under++
	w.mix(28, uint64(op), uint64(at), uint64(n))
	if w.verbose != nil {
		w.trace("%s submits %v of %s at %d+%d, flags %d, at %d %v", c.name, op, m.d.name, at, n, flags, o.from, o.x != nil)
	}
	f.d.Submit([]*blk.Request{&o.r})
}

// Complete is told how requests ended.
func (v *volumes) Complete(batch []*blk.Request) {
	for _, r := range batch {
		v.complete(r.Ctx.(*volOp))
	}
}

func (v *volumes) complete(o *volOp) {
	w, m, r := v.w, o.m, &o.r
	if o.p.dead {
		return
	}
	w.mix(29, uint64(r.Op), uint64(rdserr.Errno(r.Err)))
	if w.verbose != nil {
		w.trace("%s: %v of %s at %d+%d, of %d, is done: %v", m.c.name, r.Op, m.d.name, r.Off/sectorLen, r.Len/sectorLen, o.from, r.Err)
	}
	if !o.live {
		w.fail("B4: a %v of %s, of %d, is completed twice", r.Op, m.c.name, o.from)
	}
	o.live = false
	_, ours := errors.AsType[*rdserr.Error](r.Err)
	switch {
	case r.Op == blk.OpRead && o.p.writable(r.Buf):
		w.fail("B4: the server may write to the memory of a read of %s, of %d, that is done", m.c.name, o.from)
	case r.Op == blk.OpWrite && ours && o.p.reads(r.Buf):
		w.fail("B4: a link may read the memory of a write of %s, of %d, that is done", m.c.name, o.from)
	}
	m.under--
	defer o.f.ended()
	v.total.Done++
	if r.Err != nil {
		v.total.Failed++
		m.errors++
	} else {
		m.errors = 0
	}
	if s := &m.c.spec; s.OnLoss == volume.OnLossError && !m.forced {
		most := s.IOTimeout + s.LossTimeout + 20*time.Millisecond + v.frozen[m.c.node.n] - o.frozen
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
		case r.Err == nil && o.f.syncBad:
			w.fail("B7: a %v of %s succeeds after a sync had failed", r.Op, m.c.name)
		case n == blk.ErrMedium.Errno || n == blk.ErrSyncFailed.Errno:
			o.f.syncBad = true
		}
	}
	switch {
	case r.Err != nil:
	case r.Op == blk.OpFlush:
		v.flushed(o.f, o.from)
	case r.Op == blk.OpRead:
		for i := range int(r.Len / sectorLen) {
			v.saw(m.d, int(r.Off/sectorLen)+i, o.from, r.Buf[i*sectorLen:][:sectorLen])
		}
	}
	scramble(r.Buf) // its owner's again
	v.givenBack(o)
}

// givenBack looks at the memory of reads that ended some time ago, in which nobody may have
// written since, and keeps that of o.
func (v *volumes) givenBack(o *volOp) {
	if o.r.Op == blk.OpRead && o.r.Buf != nil {
		v.freed = append(v.freed, o)
	}
	if len(v.freed) <= 32 && !v.over {
		return
	}
	x := v.freed[0]
	v.freed = v.freed[1:]
	for _, b := range x.r.Buf {
		if b != scrambled {
			v.w.fail("B4: somebody wrote to the memory of a read of %s, of %d, after it was done", x.m.c.name, x.from)
			return
		}
	}
}
