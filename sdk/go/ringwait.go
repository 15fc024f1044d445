//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/shm"
)

// Waiting over rings. Being woken up costs tens of microseconds, so a call that
// finds nothing first keeps looking at the words that it waits for, handing the
// core to others between looks (sched_yield: the daemon may be what it waits
// for). Then it parks: it says in the region what all parked calls together wait
// for, looks once more and sleeps, one call of the socket on the doorbell itself
// for a moment (doze), all others, and that one after its moment, until they are
// given a token. One goroutine for each link hears the doorbell for them and gives
// everybody a token. Who finds that it was for others says anew what it waits for.
//
// Calls of one process are news for each other, too: one that takes in events
// frees what another waits for. Each side has a count of such changes
// (rings.txSeq, rxSeq); a waiter notes it before it looks.

const allBits = shm.ClientWaitsRecv | shm.ClientWaitsEvent | shm.ClientWaitsSendRoom | shm.ClientWaitsFlow

// waiter is one call that waits.
type waiter struct {
	r    *rings
	l    *ringLink // referenced; nil: wait for a link
	bits uint32    // shm.ClientWaitsRecv and so on
	of   *atomic.Uint32
	seq  uint32 // of what, when it last looked

	recvHead uint64
	sendHead uint64
	flows    []flowWatch

	ch   chan struct{} // capacity 1
	at   int           // in lot.list
	spun bool
	// dozed is set if the waiter has slept on the doorbell since it last returned with
	// something.
	dozed bool
	poll  bool // look again in a while, whatever the words say
	lends bool // it is news that the daemon lacks the room that is lent
}

// flowWatch is a flow whose state is to change.
type flowWatch struct {
	index uint32
	was   uint64
}

var waiterPool = sync.Pool{New: func() any { return &waiter{ch: make(chan struct{}, 1)} }}

// renew prepares w (perhaps nil) for another wait. The lock of the side that
// is waited for is held: l is in use.
func (w *waiter) renew(r *rings, l *ringLink, bits uint32) *waiter {
	if w == nil {
		w = waiterPool.Get().(*waiter)
		w.r = r
	}
	if w.l != l {
		if w.l != nil {
			w.l.unref()
		}
		if l != nil {
			l.refs.Add(1)
		}
		w.l = l
	}
	w.bits = bits
	w.lends = false
	w.flows = w.flows[:0]
	return w
}

// done gives w back.
func (w *waiter) done() {
	if w == nil {
		return
	}
	if w.l != nil {
		w.l.unref()
	}
	select {
	case <-w.ch:
	default:
	}
	*w = waiter{ch: w.ch, flows: w.flows[:0]}
	waiterPool.Put(w)
}

// ready says whether it is worth looking again.
func (w *waiter) ready() bool {
	if w.of.Load() != w.seq {
		return true
	}
	if w.l == nil {
		return false
	}
	reg := w.l.region
	if w.bits&shm.ClientWaitsRecv != 0 && reg.RecvTail().Load() != w.recvHead {
		return true
	}
	if w.lends && shm.RoomWanted(reg) {
		return true
	}
	if w.bits&shm.ClientWaitsEvent != 0 && w.l.send.EventsWait() {
		return true
	}
	if w.bits&shm.ClientWaitsSendRoom != 0 && reg.SendHead().Load() != w.sendHead {
		return true
	}
	for _, f := range w.flows {
		if reg.FlowState(f.index).Load() != f.was {
			return true
		}
	}
	return false
}

// wait returns nil when it is worth looking again, else the end of ctx.
func (w *waiter) wait(ctx context.Context) error {
	done := ctx.Done()
	if w.poll {
		return pause(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if w.ready() {
		return nil
	}
	if w.l != nil && !w.spun {
		w.spun = true
		if w.spin(done) {
			return nil
		}
	}
	lot := &w.r.lot
	lot.add(w)
	defer lot.remove(w)
	for {
		lot.arm(w)
		if w.ready() {
			w.spun, w.dozed = false, false
			return nil
		}
		if w.doze(ctx) {
			continue
		}
		if w.l != nil {
			w.l.bell.listen()
		}
		select {
		case <-w.ch:
		case <-done:
			return ctx.Err()
		}
	}
}

// pause is for what no word tells.
func pause(ctx context.Context) error {
	t := time.NewTimer(pollEvery)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const pollEvery = 200 * time.Microsecond

// spinners bounds how many threads of the process look at once: others would
// only take the cores from what they wait for.
var spinners atomic.Int32

// spin looks until something is there or the socket's share of time is used up.
func (w *waiter) spin(done <-chan struct{}) bool {
	budget := w.r.lot.budget(w.r.cfg.spin)
	if budget == 0 {
		return false
	}
	defer spinners.Add(-1)
	most := int32(runtime.GOMAXPROCS(0))
	if spinners.Add(1) > most {
		return false
	}
	start := time.Now()
	for i := 1; ; i++ {
		if w.ready() {
			w.r.lot.spun(true)
			w.spun = false
			return true
		}
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if time.Since(start) >= budget { // after one yield, where somebody else computes
			w.r.lot.spun(false)
			return false
		}
		if i%8 != 0 {
			continue
		}
		select {
		case <-done:
			return false
		default:
		}
		if i%32 == 0 && spinners.Load() >= most {
			runtime.Gosched() // this process's other goroutines want a thread as well; it starts one, so not without need
		}
	}
}

// dozers bounds how many threads of the process sleep on doorbells.
var dozers atomic.Int32

const (
	dozeFor   = 2 * time.Millisecond // a cancelled context is noticed so much later at most
	fewDozes  = 4                    // so many in vain in a row, and
	dozeEvery = 16                   // only each such call tries it
)

// doze sleeps on the doorbell for a moment, once in each wait; false: not this
// call, or not now.
func (w *waiter) doze(ctx context.Context) bool {
	lot := &w.r.lot
	if w.l == nil || w.dozed {
		return false
	}
	w.dozed = true
	if n := lot.vain.Load(); n >= fewDozes && n%dozeEvery != 0 {
		lot.vain.Add(1)
		return false
	}
	if dozers.Add(1) > int32(runtime.GOMAXPROCS(0)) || !lot.bed(w) {
		dozers.Add(-1)
		return false
	}
	d := dozeFor
	if t, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(t))
	}
	if len(w.ch) == 0 && d > 0 {
		w.l.bell.sleep(d)
	}
	dozers.Add(-1)
	if lot.rise(w) {
		lot.wake(allBits) // the ring may have been for them
	}
	if w.ready() {
		lot.vain.Store(0)
	} else {
		lot.vain.Add(1)
	}
	return true
}

// lot is where waiters park.
type lot struct {
	parked atomic.Int32 // length of list
	misses atomic.Int32 // spins in a row that were for nothing; below 0: that were not
	vain   atomic.Int32 // dozes in a row that were for nothing, and those left out since

	bedded *waiter // guarded by mu; it sleeps on the doorbell
	mu     sync.Mutex
	list   []*waiter // guarded by mu
	count  [4]int    // guarded by mu; waiters with each bit
}

// After manyMisses spins in a row for nothing, most are short: what comes
// rarely is not worth them. After manyHits that were not for nothing they are
// longer: when all who work together spin, one that sleeps costs each of them a
// wake-up.
const (
	manyMisses = 16
	manyHits   = 8
)

func (p *lot) budget(d time.Duration) time.Duration {
	switch n := p.misses.Load(); {
	case n <= -manyHits:
		return 4 * d
	case n >= manyMisses && n%manyMisses != 0:
		return d / 8
	}
	return d
}

func (p *lot) spun(hit bool) {
	switch n := p.misses.Load(); {
	case !hit && n < 0:
		p.misses.Store(1)
	case !hit:
		p.misses.Add(1)
	case n > 0:
		p.misses.Store(-1)
	case n > -manyHits:
		p.misses.Add(-1)
	}
}

func (p *lot) add(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.at = len(p.list)
	p.list = append(p.list, w)
	p.parked.Store(int32(len(p.list)))
	p.tally(w, 1)
}

func (p *lot) remove(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.list) - 1
	p.list[w.at] = p.list[last]
	p.list[w.at].at = w.at
	p.list[last] = nil
	p.list = p.list[:last]
	p.parked.Store(int32(last))
	p.tally(w, -1)
	if w.l != nil && last == 0 {
		w.l.region.ClientSleeps().Store(0)
	}
}

func (p *lot) tally(w *waiter, n int) {
	for i := range p.count {
		if w.bits&(1<<i) != 0 {
			p.count[i] += n
		}
	}
}

// bed is called by who is to sleep on the doorbell; false: somebody does.
func (p *lot) bed(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bedded != nil {
		return false
	}
	p.bedded = w
	return true
}

// rise ends that, and tells whether others are parked.
func (p *lot) rise(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bedded = nil
	return len(p.list) > 1
}

// arm tells the daemon what everybody parked here waits for.
func (p *lot) arm(w *waiter) {
	if w.l == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	bits := uint32(0)
	for i, n := range p.count {
		if n > 0 {
			bits |= 1 << i
		}
	}
	w.l.region.ClientSleeps().Store(bits)
}

// wake has those look again that wait for any of bits, or for a link.
func (p *lot) wake(bits uint32) {
	if p.parked.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.list {
		if w.bits&bits != 0 {
			select {
			case w.ch <- struct{}{}:
			default:
			}
			if w == p.bedded {
				w.l.bell.ring()
			}
		}
	}
}
