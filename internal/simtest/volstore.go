package simtest

import (
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/node/volume"
)

// disk is a volume's medium. It outlives the processes and the power of its node.
type disk struct {
	v        *volumes
	num      int
	name     string
	home     *volNode
	shared   bool
	mem      *blk.Volatile
	stalled  time.Duration // nothing happens before
	stuck    time.Duration // nor do stick of the next writes
	stick    int
	writeErr int  // so many writes fail, perhaps after a part of them
	syncErr  bool // the next sync fails
	tears    bool // sectors of one request reach the medium one by one

	owner    *volClient  // the client that may write, unless it is shared
	writes   [][]*vwrite // by sector
	unsynced []unsynced
}

const diskSectors = 24

func (v *volumes) newDisk(home *volNode) *disk {
	w := v.w
	m, err := blk.NewMem(blk.MemOptions{Size: diskSectors * sectorLen})
	if err != nil {
		panic(err)
	}
	d := &disk{v: v, num: len(v.disks) + 1, home: home, shared: w.chance(3), mem: blk.NewVolatile(m, w.rng.Int63()), tears: w.chance(2),
		writes: make([][]*vwrite, diskSectors)}
	d.name = w.text("d%d", d.num)
	v.disks = append(v.disks, d)
	return d
}

// spec is how it is exported.
func (d *disk) spec() volume.ExportSpec {
	return volume.ExportSpec{Name: d.name, Kind: volume.KindFile, Path: "/" + d.name, Shared: d.shared}
}

// powerCut loses what was not flushed; so, for all anybody knows, does a sync
// that fails.
func (d *disk) powerCut() {
	if err := d.mem.PowerCut(); err != nil {
		panic(err)
	}
	d.mem.Restore()
	d.v.lost(d)
}

// store is a disk as one process of its node has it open.
type store struct {
	d    *disk
	p    *volProcess
	ro   bool
	lost bool // a sync has failed (B7)
}

// ID is the disk's; the number of its device is another one after each start of the machine.
func (s *store) ID() blk.FileID {
	return blk.FileID{Dev: uint64(s.p.boots), Ino: uint64(s.d.num)}
}

func (s *store) Info() *blk.Info              { return s.d.mem.Info() }
func (s *store) Watch(func(*blk.Info)) func() { return func() {} }
func (s *store) after(d time.Duration, f func()) {
	s.d.v.w.After(d, s.p.event(f))
}

// Close waits for the medium.
func (s *store) Close() error {
	s.p.wait(s.d.v.w.upTo(s.d.v.latency))
	return nil
}

// Submit begins each request of the batch; they reach the medium later, in any
// order.
func (s *store) Submit(batch []*blk.Request) {
	for _, r := range batch {
		if w := s.d.v.w; r.Buf != nil && !s.d.v.serverConfig.NoInvalidate && s.p.rewritable(r.Buf) {
			w.fail("B3: a client may write to a chunk that %s is given, at %d", s.d.name, r.Off)
		}
		if err := s.Info().Check(r); err != nil {
			s.done(r, err)
			continue
		}
		j := &job{s: s, r: r}
		s.after(s.d.v.w.upTo(s.d.v.latency), j.step)
	}
}

func (s *store) done(r *blk.Request, err error) {
	r.Err = err
	blk.Complete([]*blk.Request{r})
}

// job is a request on its way to the medium.
type job struct {
	s *store
	r *blk.Request
	i uint64 // sectors done
}

func (j *job) step() {
	s, d, r := j.s, j.s.d, j.r
	w := d.v.w
	if wait := d.stalled - w.Now(); wait > 0 {
		s.after(wait+w.upTo(time.Millisecond), j.step)
		return
	}
	if wait := d.stuck - w.Now(); wait > 0 && d.stick > 0 && r.Op.Writes() && j.i == 0 {
		d.stick--
		s.after(wait+w.upTo(time.Millisecond), j.step)
		s.after(w.upTo(200*time.Millisecond), func() { d.v.orphan(s.p, wait) })
		return
	}
	sync := r.Op == blk.OpFlush || r.Flags&blk.FUA != 0 && r.Op.Writes()
	switch {
	case sync && s.lost:
		j.end(blk.ErrSyncFailed)
		return
	case sync && d.syncErr:
		d.syncErr, s.lost = false, true
		d.v.total.Syncs++
		w.trace("%s: a sync fails", d.name)
		d.powerCut()
		j.end(blk.ErrMedium)
		return
	case r.Op == blk.OpFlush:
		if err := blk.Flush(d.mem); err != nil {
			w.fail("%s: flush: %v", d.name, err)
		}
		d.v.synced(d, 0, diskSectors)
		j.end(nil)
		return
	case r.Op.Writes() && d.writeErr > 0 && w.chance(2):
		d.writeErr--
		w.trace("%s: a %v fails after %d sectors", d.name, r.Op, j.i)
		s.lost = s.lost || sync
		j.end(blk.ErrMedium)
		return
	}
	for j.i < r.Len/sectorLen {
		j.sector()
		if j.i++; d.tears && j.i < r.Len/sectorLen {
			s.after(w.upTo(d.v.latency/4), j.step)
			return
		}
	}
	j.end(nil)
}

// sector carries out one sector.
func (j *job) sector() {
	d, r := j.s.d, j.r
	off := r.Off + j.i*sectorLen
	var b []byte
	if r.Buf != nil {
		b = r.Buf[j.i*sectorLen:][:sectorLen]
	}
	if r.Op.Writes() {
		d.v.touch(d, int(off/sectorLen), b, r)
	}
	if err := blk.Do(d.mem, &blk.Request{Op: r.Op, Flags: r.Flags, Off: off, Len: sectorLen, Buf: b}); err != nil {
		d.v.w.fail("%s: %v at %d: %v", d.name, r.Op, off, err)
	}
}

func (j *job) end(err error) {
	j.s.done(j.r, err)
}
