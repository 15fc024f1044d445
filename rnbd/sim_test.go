package rnbd

import (
	"encoding/binary"
	"flag"
	"math/rand"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

var (
	simSeed  = flag.Int64("rnbd.seed", 0, "run this world alone")
	simSeeds = flag.Int("rnbd.seeds", 0, "number of worlds; 0: as many as take about a second")
)

const (
	simBlock  = 4096
	simBlocks = 64
)

// simOp is a request of the model's, with when it was submitted and when it
// completed, by the world's count of steps; 0: not yet.
type simOp struct {
	r              *blk.Request
	v              *Volume
	tag            uint32 // of a write; 0: zeroes
	from, to       int    // submitted, completed
	first, n       int    // blocks
	flush, durable bool
}

// sim is a world with a model of what each block may hold: what any write left
// there that is not certainly overwritten (B2), where a power cut undoes what
// was not flushed (B1).
type sim struct {
	*world
	t     *testing.T
	rnd   *rand.Rand
	now   int
	ops   []*simOp
	cuts  []int // power cuts
	vol   *blk.Volatile
	fault *blk.Fault
	boot  uint64
	vols  map[*end]*Volume
	lost  map[*Volume]bool // a sync failed
}

func TestWorlds(t *testing.T) {
	if *simSeed != 0 {
		runSim(t, *simSeed)
		return
	}
	n := int64(*simSeeds)
	if n == 0 {
		n = 100
		if raceEnabled {
			n = 15
		}
	}
	for seed := range n {
		if runSim(t, seed+1); t.Failed() {
			t.Fatalf("seed %d; go test ./rnbd -run TestWorlds -rnbd.seed=%d", seed+1, seed+1)
		}
	}
}

func runSim(t *testing.T, seed int64) {
	s := &sim{t: t, rnd: rand.New(rand.NewSource(seed)), boot: 1, vols: map[*end]*Volume{}, lost: map[*Volume]bool{}}
	m, err := blk.NewMem(blk.MemOptions{Size: simBlocks * simBlock})
	if err != nil {
		t.Fatal(err)
	}
	s.vol = blk.NewVolatile(m, seed)
	s.world = newWorld(t, ServerConfig{Boot: s.boot})
	s.world.rnd, s.world.shuffle = s.rnd, true
	s.serve()
	for _, name := range []string{"a", "b"} {
		e := s.newEnd(name, "10.0.0.1", ClientConfig{AskEvery: time.Second})
		e.maxIO, e.lateGone = simBlock*(1+s.rnd.Intn(4)), s.rnd.Intn(2) == 0
		e.connect()
		s.vols[e] = e.mustMap("d", rw)
	}
	for range 400 {
		s.act()
		s.check()
	}
	// Without faults everything ends (B4).
	s.fault.Clear()
	s.fault.Release()
	for _, e := range s.ends {
		if !e.up {
			e.connect()
		}
	}
	s.run()
	s.tick(2 * time.Second)
	for _, e := range s.ends {
		if v := s.vols[e]; stateOf(v) != Open {
			t.Errorf("%s: %v, %v", e.name, stateOf(v), v.Err())
		}
		for b := range simBlocks {
			s.submit(e, blk.OpRead, b, 1, 0)
		}
	}
	s.run()
	s.check()
	for _, o := range s.ops {
		if o.to == 0 {
			t.Errorf("%v of block %d of step %d has not completed", o.r.Op, o.first, o.from)
		}
	}
}

// serve exports the device through a new fault layer, as a server that has
// opened it anew does.
func (s *sim) serve() {
	s.fault = blk.NewFault(s.vol, s.rnd.Int63())
	s.faults = []*blk.Fault{s.fault}
	s.export(&Export{Name: "d", Device: s.fault, Rules: Rules{Shared: true}})
}

// act does one thing at random.
func (s *sim) act() {
	s.now++
	e := s.ends[s.rnd.Intn(len(s.ends))]
	b := s.rnd.Intn(simBlocks)
	n := min(1+s.rnd.Intn(8), simBlocks-b)
	switch x := s.rnd.Intn(1000); {
	case x < 350:
		s.submit(e, blk.OpWrite, b, n, blk.Flags(s.rnd.Intn(8)/7)*blk.FUA)
	case x < 600:
		s.submit(e, blk.OpRead, b, n, 0)
	case x < 660:
		s.submit(e, blk.OpFlush, 0, 0, 0)
	case x < 690:
		s.submit(e, blk.OpWriteZeroes, b, n, 0)
	case x < 860:
		s.step()
	case x < 890:
		s.run()
	case x < 910 && e.up:
		e.cut()
	case x < 950 && !e.up:
		s.fault.Clear()
		s.fault.Release()
		s.now++
		e.connect()
	case x < 965:
		s.fault.Add(blk.Rule{Stall: true, Count: 1 + s.rnd.Intn(3)})
	case x < 975:
		s.fault.Release()
	case x < 980:
		s.fault.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Err: blk.ErrMedium, Count: 1})
	case x < 981:
		s.fault.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1})
	case x < 987:
		s.restartServer(false)
	case x < 991:
		s.restartServer(true)
	case x < 993:
		s.tick(100 * time.Millisecond)
	case e.up && (x < 996 || s.lost[s.vols[e]] && s.rnd.Intn(8) == 0):
		if s.lost[s.vols[e]] {
			s.restartServer(false)
			e.connect()
		}
		s.mapAnew(e)
	}
}

// restartServer starts the daemon again, or the machine.
func (s *sim) restartServer(power bool) {
	if s.fault.Held() > 0 && !power {
		s.fault.Release()
		s.run()
	}
	for _, e := range s.ends {
		if e.up {
			e.cut()
		}
	}
	if power {
		s.now++
		if err := s.vol.PowerCut(); err != nil {
			s.t.Fatal(err)
		}
		s.cuts = append(s.cuts, s.now)
		s.boot++
	}
	s.fault.Clear()
	s.fault.Release() // what was at the store is lost with it
	s.world.run()
	s.vol.Restore()
	s.world.restart(ServerConfig{Boot: s.boot, FirstID: uint32(1 + s.rnd.Intn(5))})
	s.serve()
}

// mapAnew unmaps by force and maps again.
func (s *sim) mapAnew(e *end) {
	s.fault.Clear()
	s.fault.Release()
	s.run()
	if err := s.vols[e].ForceUnmap(s.world.now); err != nil {
		s.t.Fatal(err)
	}
	s.run()
	s.vols[e] = e.mustMap("d", rw)
}

// Complete notes when a request completed.
func (s *sim) Complete(batch []*blk.Request) {
	for _, r := range batch {
		o := r.Ctx.(*simOp)
		if o.to != 0 {
			s.t.Errorf("%v of step %d completed twice", r.Op, o.from)
		}
		o.to = s.now
		v := o.v
		if sync := o.flush || o.durable; sync && r.Err == nil && s.lost[v] {
			s.t.Errorf("step %d: a %v succeeded after a sync had failed", s.now, r.Op)
		} else if sync && (rdserr.Errno(r.Err) == blk.ErrMedium.Errno) {
			s.lost[v] = true
		}
		if r.Op == blk.OpRead && r.Err == nil {
			s.judge(o)
		}
	}
}

func (s *sim) submit(e *end, op blk.Op, first, n int, flags blk.Flags) {
	s.now++
	o := &simOp{v: s.vols[e], from: s.now, first: first, n: n, flush: op == blk.OpFlush, durable: flags&blk.FUA != 0}
	o.r = &blk.Request{Op: op, Flags: flags, Off: uint64(first) * simBlock, Len: uint64(n) * simBlock, Queue: s, Ctx: o}
	if op == blk.OpRead || op == blk.OpWrite {
		o.r.Buf = make([]byte, n*simBlock)
	}
	if op == blk.OpWrite {
		o.tag = uint32(len(s.ops) + 1)
		for i := 0; i < len(o.r.Buf); i += 512 { // each sector bears it
			binary.LittleEndian.PutUint32(o.r.Buf[i:], o.tag)
		}
	}
	s.ops = append(s.ops, o)
	s.vols[e].Submit(s.world.now, []*blk.Request{o.r})
}

// check lets what has completed be told.
func (s *sim) check() {
	s.now++
	for _, e := range s.ends {
		e.finished()
	}
}

// writes tells whether o changed block b, or may have.
func (o *simOp) writes(b int) bool { return o.r.Op.Writes() && b >= o.first && b < o.first+o.n }

// safe tells whether what o wrote is still there at a time, if nothing was
// written over it: each power cut since came after it was durable.
func (s *sim) safe(o *simOp, at int) bool {
	for _, cut := range s.cuts {
		if cut > o.to && cut <= at && !(o.durable || s.flushed(o, cut)) {
			return false
		}
	}
	return true
}

// flushed tells whether a flush has covered o before a time: one by who wrote
// it, with the same mapping, as nobody else knows what had been written before
// the power was cut.
func (s *sim) flushed(o *simOp, before int) bool {
	for _, f := range s.ops {
		if f.flush && f.v == o.v && f.to != 0 && f.to < before && f.r.Err == nil && f.from > o.to {
			return true
		}
	}
	return false
}

// judge checks a read: in each sector it may have found the data of a write that no other
// write is certain to have gone over.
func (s *sim) judge(rd *simOp) {
	for i := 0; i < len(rd.r.Buf); i += 512 {
		b := rd.first + i/simBlock
		tag := binary.LittleEndian.Uint32(rd.r.Buf[i:])
		if !s.mayHold(b, tag, rd) {
			s.t.Errorf("step %d: block %d holds write %d, which was written over for certain (read of steps %d to %d)", s.now, b, tag, rd.from, rd.to)
			return
		}
	}
}

func (s *sim) mayHold(b int, tag uint32, rd *simOp) bool {
	for _, w := range s.ops {
		if w.writes(b) && w.tag == tag && w.from <= rd.to && !s.over(b, w.to, rd) {
			return true
		}
	}
	return tag == 0 && !s.over(b, -1, rd) // as it was in the beginning
}

// over tells whether some write came after one that had completed at a time
// (0: it has not), was complete before the read, and stayed.
func (s *sim) over(b, after int, rd *simOp) bool {
	if after == 0 {
		return false
	}
	for _, w := range s.ops {
		if w.writes(b) && w.from > after && w.to != 0 && w.to < rd.from && w.r.Err == nil && s.safe(w, rd.to) {
			return true
		}
	}
	return false
}
