package simtest

import (
	"fmt"
	"math/rand"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport/sim"
)

// Options of a run. The zero value is what the seeds of the test use.
type Options struct {
	Verbose func(line string) // the run's story, line by line
	Shape   func(*World)      // changes what was drawn, before anything starts
}

// Result is what a run came to.
type Result struct {
	Seed                               int64
	Hash                               uint64
	Virtual                            time.Duration
	Events                             uint64
	Accepted, Placed                   int
	Delivered, Cancelled, Failed, Lost int
	Faults                             int
	Volumes                            VolumeCounts
	Counters                           stats.Counters // of all engines there were
	Err                                error          // the first broken invariant
}

// World is one run.
type World struct {
	*sim.Clock
	net      *sim.Net
	rng      *rand.Rand
	seed     int64
	hash     uint64
	counters stats.Counters // of the engines that are gone
	bad      *Violation
	verbose  func(string)
	m        *model

	nodes   []*node
	byAddr  map[netip.Addr]*node
	kernels []*kernel
	kernel  map[netip.Addr]*kernel
	addrs   []netip.Addr
	scratch []byte
	calm    bool           // the faults are over
	incs    map[uint64]int // incarnation on the wire → ours

	// Drawn.
	rdsdN, legacyN, newerN int
	faulty                 time.Duration // how long there are faults
	faultEvery             time.Duration
	opEvery                time.Duration // of each node
	socketsPer             int
	writeDelay             time.Duration
	big                    int // one datagram in so many is large; 0: none
	tight                  bool
	crashes                bool
	fair                   bool // nothing ever fails: no path is lost, and everything is decided soon
	hungry                 bool // little memory for all sockets of a node, clients that stop in the middle
	crowded                bool // others hold nineteen twentieths of the memory of each node that has much
	flood                  bool // bursts that pass the hard limits before the sender knows
	faults                 int
	sleeper                bool // one reader sleeps through the end
	asleep                 *app
	sinks                  int      // one socket in so many lies in its client's memory; 0: none
	undrained              int      // of those, not drained yet
	vol                    *volumes // nil: none
}

func newWorld(seed int64, o Options) *World {
	rng := rand.New(rand.NewSource(seed))
	c := &sim.Clock{}
	w := &World{Clock: c, rng: rng, seed: seed, verbose: o.Verbose, byAddr: map[netip.Addr]*node{}, kernel: map[netip.Addr]*kernel{},
		incs: map[uint64]int{}, scratch: make([]byte, 0, 64<<10)}
	w.m = newModel(w)
	w.draw()
	if seed*0x9e3779b1>>8&1 == 0 { // not drawn: that would make other worlds of all seeds
		w.hunger()
	}
	w.crowded = seed*0x85ebca77>>9&7 == 0
	w.net = sim.NewNet(c, rng, w.drawProfile())
	if o.Shape != nil {
		o.Shape(w)
	}
	return w
}

func (w *World) text(format string, args ...any) string { return fmt.Sprintf(format, args...) }

func (w *World) chance(oneIn int) bool { return w.rng.Intn(oneIn) == 0 }

func (w *World) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int63n(int64(d) + 1)) }

// Run lives through one seed.
func Run(seed int64, o Options) Result {
	w := newWorld(seed, o)
	w.populate()
	w.schedule()
	end := w.faulty
	for w.bad == nil && w.Step(end) {
	}
	if w.bad == nil {
		w.settle()
	}
	if w.bad == nil {
		w.judge()
	}
	if w.bad == nil {
		w.teardown()
	}
	if w.vol != nil {
		w.vol.dispose()
	}
	t := &w.m.total
	r := Result{Seed: seed, Hash: w.hash, Virtual: w.Now(), Events: w.Ran(), Accepted: t.accepted, Placed: t.placed,
		Delivered: t.delivered, Cancelled: t.cancelled, Failed: t.failed, Lost: t.unknown, Faults: w.faults, Counters: w.counters}
	if w.vol != nil {
		r.Volumes = w.vol.total
	}
	if w.bad != nil {
		r.Err = w.bad
	}
	return r
}

func (w *World) populate() {
	total := w.rdsdN + w.legacyN + w.newerN
	for i := range total {
		w.addrs = append(w.addrs, addr(i+1))
	}
	order := w.rng.Perm(total)
	for i, k := range order {
		a := w.addrs[k]
		switch {
		case i < w.rdsdN:
			w.addNode(a)
		case i < w.rdsdN+w.legacyN:
			w.addKernel(a, false)
		default:
			w.addKernel(a, true)
		}
	}
	if w.seed >= volumeSeeds {
		newVolumes(w)
	}
	for _, k := range w.kernels {
		k.start()
	}
	for _, n := range w.nodes {
		n.start()
	}
}

// settle ends all faults and requires D12.
func (w *World) settle() {
	w.endFaults()
	patience := 60 * time.Second
	if w.fair {
		patience = fairPatience
	}
	limit := w.Now() + patience
	for w.bad == nil {
		next := min(w.Now()+250*time.Millisecond, limit)
		for w.bad == nil && w.Step(next) {
		}
		ok, why := w.settled()
		if ok && w.asleep != nil {
			w.awaken()
			limit = w.Now() + 60*time.Second
			continue
		}
		if ok {
			break
		}
		if w.Now() >= limit {
			w.fail("D12: %d s after the last fault %s", patience/time.Second, why)
		}
	}
	// What comes late would come now.
	for end := w.Now() + 2*time.Second; w.bad == nil && w.Step(end); {
	}
}

// fairPatience is what a world without faults takes to come to rest when nobody is
// forgotten: no backoff and no heartbeat is due in it, which would hide that.
const fairPatience = 3 * time.Second

// awaken lets the last reader read: what was sent to it arrives now.
func (w *World) awaken() {
	a := w.asleep
	w.trace("%v wakes up", a.addr)
	w.asleep = nil
	a.stopped = 0
	a.armed = false
	a.arm()
}

// teardown closes everything and counts what is left.
func (w *World) teardown() {
	if w.vol != nil {
		w.vol.close()
	}
	for _, n := range w.nodes {
		for len(n.apps) > 0 {
			n.apps[0].close()
		}
	}
	for end := w.Now() + time.Second; w.bad == nil && w.Step(end); {
	}
	for _, n := range w.nodes {
		if u := n.cfg.Budget.Datagrams(); u != 0 {
			w.fail("M1: %v: %d bytes of the budget are taken a second after every socket was closed", n.addr, u)
		}
		n.crash(false)
	}
	if w.bad == nil && w.undrained != 0 {
		w.fail("D7: %d closed sockets were never drained", w.undrained)
	}
	for end := w.Now() + time.Second; w.bad == nil && w.Step(end); {
	}
}

// --- what is drawn -----------------------------------------------------------------

func (w *World) draw() {
	w.rdsdN = 2
	if w.chance(4) {
		w.rdsdN = 3 + w.rng.Intn(2)
	}
	switch w.rng.Intn(6) {
	case 0:
		w.legacyN = 1
	case 1:
		w.newerN = 1
	case 2:
		w.rdsdN, w.legacyN, w.newerN = 1+w.rng.Intn(2), w.rng.Intn(2), 1
	}
	w.faulty = time.Second + w.upTo(5*time.Second)
	w.faultEvery = 50*time.Millisecond + w.upTo(500*time.Millisecond)
	if w.chance(10) {
		w.faultEvery = time.Hour // fair weather
	}
	w.opEvery = 2*time.Millisecond + w.upTo(30*time.Millisecond)
	if w.seed >= volumeSeeds { // room for them
		w.rdsdN = max(w.rdsdN, 2)
		w.opEvery += 10 * time.Millisecond
	}
	w.socketsPer = 1 + w.rng.Intn(3)
	w.writeDelay = time.Microsecond + w.upTo(5*time.Millisecond)
	if w.chance(5) {
		w.big = 20 + w.rng.Intn(100)
	}
	w.tight = w.chance(3)
	w.sinks = []int{0, 1, 2, 4}[w.rng.Intn(4)]
	w.crashes = w.chance(2)
	if w.chance(8) {
		w.flood = true
		w.opEvery = max(w.opEvery, 10*time.Millisecond)
		w.faulty = min(w.faulty, 3*time.Second)
	}
}

// hunger makes a world in which what the sockets of a node share is soon spent,
// and whose clients say nothing that they are not asked for.
func (w *World) hunger() {
	w.hungry, w.big, w.flood = true, 0, false
	w.sinks = 1 + int(w.seed>>1&1)
	w.socketsPer += 3
}

func (w *World) drawProfile() sim.Profile {
	p := sim.Profile{Latency: 20*time.Microsecond + w.upTo(2*time.Millisecond), Jitter: w.upTo(time.Millisecond), Bandwidth: 1 << (20 + w.rng.Intn(10)),
		SndBuf: 1 << (12 + w.rng.Intn(9)), RcvBuf: 1 << (12 + w.rng.Intn(9)), AckDelay: w.upTo(5 * time.Millisecond)}
	if w.flood {
		p.Bandwidth, p.SndBuf, p.RcvBuf = 1<<28, 1<<20, 1<<20
	}
	if w.chance(4) {
		p.Latency = w.upTo(80 * time.Millisecond)
	}
	if w.chance(2) {
		p.Chop = 1 + w.rng.Intn(6)
	}
	if w.chance(4) {
		p.Loss = w.rng.Float64() * 0.1
	}
	return p
}

func (w *World) drawConfig() rds.Config {
	c := rds.DefaultConfig()
	c.Conn.Lanes = []int{1, 1, 2, 3, 8}[w.rng.Intn(5)]
	c.Conn.CreditLog2 = uint8(7 + w.rng.Intn(6))
	c.Conn.AckFrames = 1 + w.rng.Intn(256)
	if w.chance(2) {
		c.Conn.Heartbeat = time.Second + w.upTo(4*time.Second)
		c.Conn.DeadAfter = 3 * c.Conn.Heartbeat
	}
	c.Conn.Trains = !w.chance(4)
	// Not drawn: that would make other worlds of all seeds.
	c.Conn.LaneLoad = 1 << (w.seed * 7 % 17)
	c.Conn.AckStep = 1 << (w.seed * 11 % 18)
	if w.tight {
		c.MaxUndecided = 8 << w.rng.Intn(8)
		c.MaxOutcomes = 8 << w.rng.Intn(8)
	}
	return c
}

// ample is a budget that is never spent.
const ample = 1 << 30

func (w *World) drawBudget() *rds.Budget {
	switch {
	case w.hungry:
		return &rds.Budget{Limit: 64<<10 + int64(w.rng.Intn(64<<10))} // the largest datagram takes a quarter
	case (w.tight || w.flood) && w.chance(2):
		return &rds.Budget{Limit: 3<<20 + int64(w.rng.Intn(4<<20))}
	case w.crowded:
		b := &rds.Budget{Limit: 20 * ample, Rest: new(atomic.Int64)}
		b.Rest.Store(19 * ample)
		return b
	}
	return &rds.Budget{Limit: ample}
}

// drawBuf draws a socket's buffer; 0 is the default.
func (w *World) drawBuf() int {
	if w.chance(3) {
		return 0
	}
	return 1 << (9 + w.rng.Intn(11))
}

func (w *World) drawSize() int {
	if w.flood && w.chance(2) {
		return 1 << (13 + w.rng.Intn(5))
	}
	if w.big > 0 && w.chance(w.big) {
		return 1 << (14 + w.rng.Intn(7))
	}
	switch w.rng.Intn(12) {
	case 0:
		return 0
	case 1:
		return 1000 + w.rng.Intn(8000)
	case 2:
		return 8192 - 48 + w.rng.Intn(96)
	}
	return signLen + w.rng.Intn(400)
}
