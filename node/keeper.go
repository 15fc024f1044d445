package node

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
)

// limits.memory_bytes is about the process: its resident memory stays below it
// and memorySlack. What is charged stays below the limit by itself; two things
// are not that, and the keeper looks after them a few times a second:
//
//   - Garbage. The collector may leave as much as the slack has room for, beside
//     the program's own pages and the memory that is not Go's.
//   - Pages of regions that the daemon has touched. They are its clients'; to
//     touch one again costs a fault and no more. When memory is short they are let
//     go, of all regions.

const (
	memorySlack = 64 << 20
	// memoryReserve is what of the slack is kept for a collector that is short of
	// processors: Go's limit is a soft one.
	memoryReserve = 48 << 20
	// memoryLast is what is left of that reserve when the collector would run without an end.
	memoryLast = 16 << 20
	// garbageLeast is how much garbage there may be between two collections, at least.
	garbageLeast = 16 << 20
	// gcPercent is how far garbage may outgrow what lives. The daemon's live heap is small
	// (queues are mostly empty), so that the collector's default of 100 makes it run for
	// every few megabytes. At 400 it takes a tenth of the time it took.
	gcPercent = 400

	keepEvery = 100 * time.Millisecond
	keepIdle  = time.Second // when nothing changes
	// limitStep is by how much the collector's limit has to be off before it is
	// set: setting it stops the world for a moment.
	limitStep = 2 << 20
)

// tuned is the limits.memory_bytes for which TuneMemory set the collector's
// limit; 0: it did not. whole says that the process is a daemon and nothing else.
var (
	tuned atomic.Int64
	whole atomic.Bool
)

// TuneMemory sets the collector of this process for a daemon with this
// configuration. It is for programs that are a daemon and nothing else: it
// changes the whole process. GOGC and GOMEMLIMIT of the environment win.
func TuneMemory(c *config.Config) {
	whole.Store(true)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		tuned.Store(int64(c.Limits.MemoryBytes))
		debug.SetMemoryLimit(goLimit(int64(c.Limits.MemoryBytes), 0, 0, 0, 0))
	}
}

// Chunks of volumes are pages that peers write and Go knows nothing of: they are there
// at once, and what Go has of the process it gives back some time later. So they are
// rationed. An eighth of the limit is what they may take between two looks; Go's limit
// leaves it to them, and a look grants it anew as far as the process has room for it by
// what is resident then. Who wants more has a look taken at once, and waits for it.
func ration(limit int64) int64 { return limit / 8 }

// goLimit is what Go may take of the process when foreign bytes of it are not Go's and
// held bytes are charged to somebody and Go's. The rest is garbage, of which a collector
// that is short of processors leaves more than it may, the more it may leave: so that is
// bounded too, to three eighths of the limit. When clients and peers hold all they may, that can be
// less than what lives, and the collector would take most of the processors: so it has what it
// needs (goUse.needs) of the reserve, but for memoryLast and what is granted to chunks.
func goLimit(limit, foreign, held, needs, granted int64) int64 {
	room := limit - ration(limit) + memorySlack - memoryReserve - foreign
	l := min(room, held+programHeap+limit/8*3)
	last := limit + memorySlack - memoryLast - foreign - granted
	return max(l, min(needs, last), 16<<20)
}

// programHeap is about what Go has in a daemon that nobody uses.
const programHeap = 24 << 20

const (
	// grantEvery and freeEvery are the least times between two looks that were asked
	// for, and between two collections for their sake.
	grantEvery = 5 * time.Millisecond
	freeEvery  = 200 * time.Millisecond
)

// chunksLeast is how far they may grow whatever is resident, if that is no more than a ration: of a small limit the
// program itself can leave nothing, and a session without any ends again and again.
const chunksLeast = 2 << 20

// granted is how far chunks that take chunks bytes may grow when so much is resident:
// a ration, or what is left until Go is as large as its limit would be afterwards.
func granted(limit, resident, chunks int64) (low, upTo int64) {
	step := min(ration(limit), max(limit+memorySlack-memoryReserve-resident, min(ration(limit), chunksLeast)-chunks, 0))
	return chunks + step/2, chunks + step
}

// keeper looks after the memory of the process.
type keeper struct {
	node    *Node
	page    int64
	own     *quota.Account // the node's
	regions int64          // charged to own for pages of regions
	goLimit int64          // as last set
	freed   time.Time      // the last collection for the sake of chunks
	goUse   func() goUse
	quiet   quiet
	file    *os.File // statm; nil: it cannot be read
	buf     [128]byte
}

// trim lets go what is kept for the next burst.
func (n *Node) trim() {
	if n.hosts != nil {
		n.hosts.Trim()
	}
}

// statm is where the kernel tells how large the process is; tests have another one.
var statm = "/proc/self/statm"

// keep runs until stop is closed. Where the process's memory cannot be read, without /proc, it goes by what is
// known of it: there is more to keep than that.
func (n *Node) keep(stop <-chan struct{}) {
	f, err := os.Open(statm)
	if err != nil {
		n.deps.Log.Error("the process's memory cannot be read; limits.memory_bytes holds for what is charged and for Go's, and not for pages of regions", "error", err)
	} else {
		defer f.Close()
	}
	k := &keeper{node: n, page: int64(os.Getpagesize()), own: n.deps.Memory.Account(quota.Holder{}), file: f, goUse: readGoUse}
	defer k.own.Close()
	keepLooking(stop, n.deps.Memory.Wanted(), n.deps.Memory.Limit(), k.look, n.clients.Lacks, func(now time.Time) {
		if whole.Load() {
			k.quiet.look(now, n.trim)
			datagram.Crowd(runtime.NumGoroutine())
		}
		n.services.Sweep(now)
		if n.hosts != nil {
			n.hosts.Sweep(now, n.deps.Config.RDS.HeartbeatTimeout.Duration)
		}
	})
	k.own.Give(quota.Regions, k.regions)
}

// keepLooking looks and sweeps at times of its own, and looks besides when it is wanted, until stop is
// closed. Who wants a look brings its own times forward and never puts them off: rings that move
// data want one all the time.
func keepLooking(stop, wanted <-chan struct{}, limit int64, look func() (resident int64), lacks func() bool, sweep func(now time.Time)) {
	t := time.NewTimer(keepEvery)
	defer t.Stop()
	due := time.Now().Add(keepEvery) // when t fires
	last := int64(math.MaxInt64)
	for {
		select {
		case <-stop:
			return
		case <-wanted:
			time.Sleep(grantEvery)
			look()
			if lacks() && time.Until(due) > client.FeedEvery { // it was fed a moment ago, or could not be
				due = time.Now().Add(client.FeedEvery)
				t.Reset(client.FeedEvery)
			}
			continue
		case <-t.C:
		}
		resident := look()
		wait := nextLook(resident, last, limit, lacks())
		last = resident
		sweep(time.Now())
		due = time.Now().Add(wait)
		t.Reset(wait)
	}
}

// nextLook is how long the keeper waits after a look: little while what is resident changes by
// more than a step or is much of the limit, and while a client lacks pages that it is fed.
func nextLook(resident, last, limit int64, lacks bool) time.Duration {
	wait := keepIdle
	if lacks {
		wait = client.FeedEvery
	}
	if d := resident - last; d > limitStep || d < -limitStep || resident > limit/4 {
		wait = min(wait, keepEvery)
	}
	return wait
}

// look reads how much is resident, and does what that asks for.
func (k *keeper) look() (resident int64) {
	n := k.node
	n.clients.KeepPages(time.Now(), n.deps.Memory.Used() > n.deps.Memory.Limit()/2)
	resident, shared, ok := k.read()
	if !ok || !whole.Load() {
		return 0 // of several nodes in one process none can tell what is its own
	}
	// What users pay for is charged already.
	paid := n.clients.PagesPaid()
	regions := max(shared-programPages-paid, 0)
	k.own.Grow(quota.Regions, regions-k.regions)
	k.regions = regions
	// Pages of regions are let go before anybody is refused for want of them.
	if regions > limitStep && (n.deps.Memory.Used() > n.deps.Memory.Limit()/8*7 || resident > n.deps.Memory.Limit()+memorySlack-memoryReserve) {
		n.clients.ForgetPages()
		if _, shared, ok := k.read(); ok {
			regions = max(shared-programPages-paid, 0)
			k.own.Grow(quota.Regions, regions-k.regions)
			k.regions = regions
			n.deps.Count.RegionsForgotten.Add(1)
		}
	}
	k.grant(resident, shared)
	return resident
}

// grant says how far Go's memory and chunks may grow until the next look. Where Go has what
// chunks want it is made to give it back first.
func (k *keeper) grant(resident, shared int64) {
	m := k.node.deps.Memory
	if tuned.Load() == 0 {
		return
	}
	for {
		chunks := m.Kinds()[quota.Chunks].Used
		use := k.goUse()
		// What is charged may be written any moment, whether it is resident or not.
		low, upTo := granted(m.Limit(), max(resident, use.all+shared+chunks), chunks)
		if upTo-chunks == ration(m.Limit()) || !m.Asked(quota.Chunks) || time.Since(k.freed) < freeEvery {
			k.limitGo(shared, chunks, upTo-chunks, use)
			m.Ration(quota.Chunks, low, upTo)
			return
		}
		debug.FreeOSMemory()
		k.freed = time.Now()
		resident, shared, _ = k.read()
	}
}

// limitGo sets the collector's limit, if it is off.
func (k *keeper) limitGo(shared, chunks, granted int64, use goUse) {
	m := k.node.deps.Memory
	held := max(m.Used()-m.Kinds()[quota.Regions].Used-chunks, 0)
	if l := goLimit(tuned.Load(), shared+chunks, held, use.needs(), granted); l-k.goLimit > limitStep || k.goLimit-l > limitStep {
		k.goLimit = l
		debug.SetMemoryLimit(l)
	}
}

// goUse is what Go has of the process, in bytes.
type goUse struct {
	all    int64 // that it has not given back
	live   int64 // objects that the last collection found in use
	beside int64 // neither objects nor pages of the heap without any: stacks, tables, parts of spans
}

// needs is the least limit with which the collector does not run without an end: it has half of
// what lives, and garbageLeast, for garbage. The runtime leaves 3 % of the heap, and 1 MiB, below
// its limit (runtime/mgcpacer.go, memoryLimitHeapGoal).
func (u goUse) needs() int64 {
	heap := u.live + max(u.live/2, garbageLeast)
	return u.beside + heap + max(heap/100*3, 1<<20)
}

// samples are figures of Go's runtime that are read again and again: a read allocates nothing.
type samples struct {
	mu   sync.Mutex
	list []metrics.Sample // guarded by mu
}

func newSamples(names ...string) *samples {
	s := &samples{list: make([]metrics.Sample, len(names))}
	for i, name := range names {
		s.list[i].Name = name
	}
	return s
}

func (s *samples) read(to []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	metrics.Read(s.list)
	for i := range to {
		to[i] = int64(s.list[i].Value.Uint64())
	}
}

var goUseSamples = newSamples("/memory/classes/total:bytes", "/memory/classes/heap/released:bytes",
	"/memory/classes/heap/free:bytes", "/memory/classes/heap/objects:bytes", "/gc/heap/live:bytes")

func readGoUse() goUse {
	var v [5]int64
	goUseSamples.read(v[:])
	all := v[0] - v[1]
	return goUse{all: all, live: v[4], beside: max(all-v[2]-v[3], 0)}
}

// programPages is about what the program's own file takes.
const programPages = 24 << 20

// read tells what of the process is resident, and what of that is shared with
// files or other processes.
func (k *keeper) read() (resident, shared int64, ok bool) {
	if k.file == nil {
		shared = programPages + k.node.clients.PagesPaid()
		return k.goUse().all + shared, shared, true
	}
	n, _ := k.file.ReadAt(k.buf[:], 0)
	f := bytes.Fields(k.buf[:n])
	if len(f) < 3 {
		return 0, 0, false
	}
	r, err := strconv.ParseInt(string(f[1]), 10, 64)
	s, err2 := strconv.ParseInt(string(f[2]), 10, 64)
	return r * k.page, s * k.page, err == nil && err2 == nil
}
