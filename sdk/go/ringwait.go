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

// Waiting over rings. Being woken up costs tens of microseconds, so a call that finds
// nothing first keeps looking at the words that it waits for, handing the core to others
// between looks (sched_yield: the daemon may be waiting for it). Then it parks: it writes
// into the region the events that all parked calls together wait for, looks once more and
// sleeps: one call of the socket on the doorbell itself for a moment (sleepOnDoorbell), all
// others, and that one after its moment, until they are given a token. One goroutine for
// each link hears the doorbell for them and gives each a token. A waiter woken for
// another's event re-arms and sleeps again.
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
	seq  uint32 // value of of when it last looked

	recvHead uint64
	pairs    *pairSet // referenced; where datagrams come by as well
	seen     []uint64 // tails of these when it last looked
	sendHead uint64
	flows    []flowWatch

	ch   chan struct{} // capacity 1
	at   int           // in waitList.list
	spun bool
	// slept is set if the waiter has slept on the doorbell since it last returned with
	// something.
	slept bool
	poll  bool // look again in a while, without a change of the words
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
			w.l.unuse()
		}
		if l != nil {
			l.use()
		}
		w.l = l
	}
	w.watchPairs(nil)
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
		w.l.unuse()
	}
	w.watchPairs(nil)
	select {
	case <-w.ch:
	default:
	}
	*w = waiter{ch: w.ch, flows: w.flows[:0], seen: w.seen[:0]}
	waiterPool.Put(w)
}

// watchPairs has w wait for what comes by the pairs of l as well; nil: no more. rxMu is held,
// unless l is nil.
func (w *waiter) watchPairs(l *ringLink) {
	w.pairs.unref()
	w.pairs, w.seen = nil, w.seen[:0]
	if l == nil || l.in == nil {
		return
	}
	w.pairs = l.in
	w.pairs.refs.Add(1)
	for _, p := range w.pairs.in {
		w.seen = append(w.seen, p.r.Seen())
	}
}

// sleeps tells the senders of the pairs that their reader is to be woken, or not any more.
func (w *waiter) sleeps(on bool) {
	if w.pairs != nil {
		for _, p := range w.pairs.in {
			p.mem.p.Sleeps(on)
		}
	}
}

// ready says whether it is worth looking again.
func (w *waiter) ready() bool {
	// Another call of this process took events or datagrams in: the words below may be as
	// before.
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
	if w.pairs != nil {
		for i, p := range w.pairs.in {
			if p.mem.p.Tail() != w.seen[i] {
				return true
			}
		}
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
	// No word tells of this, so it is looked for again in a while.
	if w.poll {
		return pause(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if w.ready() {
		return nil
	}
	waiters := &w.r.waiters
	var began time.Duration // 0: it has not looked for this
	if w.l != nil && !w.spun {
		w.spun = true
		began = sinceBase()
		if w.spin(done, began) {
			return nil
		}
	}
	// From here on wake finds w: a change after the last look is a token in ch.
	waiters.add(w)
	defer waiters.remove(w)
	for {
		// Say it, then look, then sleep. The daemon stores, then looks whether anybody
		// sleeps: one of the two sees the other (docs/shm.md, "Waiting").
		waiters.arm(w)
		if w.ready() {
			w.spun, w.slept = false, false
			if began != 0 {
				waiters.over(began, sinceBase(), w.r.cfg.spin)
			}
			return nil
		}
		if w.sleepOnDoorbell(ctx) {
			continue
		}
		if w.l != nil {
			// The poller watches the doorbell for those that do not sleep on it themselves.
			w.l.bell.listen()
		}
		select {
		case <-w.ch:
		case <-done:
			return ctx.Err()
		}
	}
}

// pause waits for a change that no word shows.
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

// spinners bounds how many threads of the process look at once: more would only take the
// cores from the threads they wait for.
var spinners atomic.Int32

// oneProcessor is set where the daemon can do nothing while a call looks: both a yield and a
// sleep give it the processor, and after a yield each that looks has its turn first.
var oneProcessor = runtime.NumCPU() == 1

// base is an hour before the process began: no time is 0, which is none.
var base = time.Now().Add(-time.Hour)

func sinceBase() time.Duration { return time.Since(base) }

// spin looks, from start on, until something is there or the socket's share of time is used up.
func (w *waiter) spin(done <-chan struct{}, start time.Duration) bool {
	budget := w.r.waiters.budget(w.r.cfg.spin, start)
	if budget == 0 || oneProcessor {
		return false
	}
	defer spinners.Add(-1)
	most := int32(runtime.GOMAXPROCS(0))
	// With more threads looking than there are processors each would wait for a turn, and
	// the daemon too.
	if spinners.Add(1) > most {
		return false
	}
	now := start
	for i := 1; ; i++ {
		if w.ready() {
			w.r.waiters.spun(true)
			w.r.waiters.over(start, now, w.r.cfg.spin)
			w.spun = false
			return true
		}
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if now = sinceBase(); now-start >= budget { // after one yield, where another process computes
			w.r.waiters.spun(false)
			if budget > w.r.cfg.spin { // so answers come too late here
				w.r.waiters.answers.Store(0)
			}
			return false
		}
		// A look at ctx costs more than one at the words.
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

// sleepers counts the threads of the process that sleep on doorbells, which are bounded.
var sleepers atomic.Int32

const (
	sleepFor   = 2 * time.Millisecond // a cancelled context is noticed so much later at most
	fewSleeps  = 4                    // after so many in vain in a row
	sleepEvery = 16                   // only each such call tries it
)

// sleepOnDoorbell sleeps on the doorbell for a moment, once in each wait. It returns false
// if this call may not, or not now.
func (w *waiter) sleepOnDoorbell(ctx context.Context) bool {
	waiters := &w.r.waiters
	if w.l == nil || w.slept {
		return false
	}
	w.slept = true
	// A call that waits for something rare would hold a thread for nothing each time.
	if n := waiters.vain.Load(); n >= fewSleeps && n%sleepEvery != 0 {
		waiters.vain.Add(1)
		return false
	}
	// Each sleeper holds a thread, so there are at most as many as processors.
	if sleepers.Add(1) > int32(runtime.GOMAXPROCS(0)) || !waiters.claimDoorbell(w) {
		sleepers.Add(-1)
		return false
	}
	d := sleepFor
	if t, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(t))
	}
	// A token that came before the place was taken has rung no doorbell.
	if len(w.ch) == 0 && d > 0 {
		waiters.pass()
		w.l.bell.sleep(d)
	}
	sleepers.Add(-1)
	if waiters.leaveDoorbell(w) {
		// Only one call hears the doorbell while it sleeps on it.
		waiters.wake(allBits) // the ring may have been for them
	}
	if w.ready() {
		waiters.vain.Store(0)
	} else {
		waiters.vain.Add(1)
	}
	return true
}

// waitList holds the parked waiters.
type waitList struct {
	parked atomic.Int32 // length of list
	misses atomic.Int32 // spins in a row that were for nothing; below 0: that were not
	vain   atomic.Int32 // sleeps in a row that were for nothing, and those left out since

	answers atomic.Int32 // waits that ended a little later than a spin does; see budget
	ended   atomic.Int64 // since base: when the last wait did
	passed  atomic.Int64 // since base: see pass

	sleeper *waiter // guarded by mu; it sleeps on the doorbell
	mu      sync.Mutex
	list    []*waiter // guarded by mu
	count   [4]int    // guarded by mu; waiters with each bit
}

// After manyMisses spins in a row for nothing, most are short: rare events are not worth
// them. After manyHits successful ones they are longer: when all threads that work together
// spin, one that sleeps costs each of them a wake-up.
const (
	manyMisses = 16
	manyHits   = 8
	longer     = 4 // times

	expectAt    = 4 // answers
	mostAnswers = 8
	answerIn    = 2 * longer // spins: it is slept for, so there are wake-ups in it
)

// budget is how long a call that begins to wait at now looks before it sleeps, of the d asked for. Where answers
// come a little later than a spin ends, because others must be woken for them, each who sleeps meanwhile costs
// a wake-up more: they are waited for longer if the program did something else for as long before, and so
// spends at most half of its time so.
func (p *waitList) budget(d, now time.Duration) time.Duration {
	if p.answers.Load() >= expectAt && now-time.Duration(p.ended.Load()) >= longer*d {
		return longer * d
	}
	switch n := p.misses.Load(); {
	case n <= -manyHits:
		return longer * d
	case n >= manyMisses && n%manyMisses != 0:
		return d / 8
	}
	return d
}

// over records when a wait began and ended with what it was for, of a call that looks for d.
func (p *waitList) over(start, now, d time.Duration) {
	p.ended.Store(int64(now))
	switch took := now - start; {
	case took <= d:
	case took <= answerIn*d:
		p.answers.Store(min(p.answers.Load()+1, mostAnswers))
	default:
		p.answers.Store(max(p.answers.Load()-2, 0))
	}
}

// passEvery is half of the time after which Go's monitor takes a goroutine for one that computes (forcePreemptNS of runtime/proc.go).
const passEvery = 5 * time.Millisecond

// pass has the caller, who is about to sleep in a system call, go through Go's scheduler now and then. From one
// that has not for 10 ms the runtime's monitor takes its place at each sleep, however short, and then sleeps itself:
// to wake the monitor is the first that the thread does when it wakes, and the monitor runs 2,000 times a second.
func (p *waitList) pass() {
	if now := int64(sinceBase()); now-p.passed.Load() >= int64(passEvery) {
		p.passed.Store(now)
		runtime.Gosched()
	}
}

func (p *waitList) spun(hit bool) {
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

func (p *waitList) add(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.at = len(p.list)
	p.list = append(p.list, w)
	p.parked.Store(int32(len(p.list)))
	p.tally(w, 1)
}

func (p *waitList) remove(w *waiter) {
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
	if w.pairs != nil && p.count[0] == 0 {
		w.sleeps(false)
	}
}

func (p *waitList) tally(w *waiter, n int) {
	for i := range p.count {
		if w.bits&(1<<i) != 0 {
			p.count[i] += n
		}
	}
}

// claimDoorbell claims the doorbell for w to sleep on. It returns false if another call
// sleeps there.
func (p *waitList) claimDoorbell(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sleeper != nil {
		return false
	}
	p.sleeper = w
	return true
}

// leaveDoorbell gives the doorbell up, and reports whether others are parked.
func (p *waitList) leaveDoorbell(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sleeper = nil
	return len(p.list) > 1
}

// arm tells the daemon the events that all parked calls wait for.
func (p *waitList) arm(w *waiter) {
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
	w.sleeps(true)
}

// wake makes the calls look again that wait for any of bits, or for a link.
func (p *waitList) wake(bits uint32) {
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
			if w == p.sleeper {
				w.l.bell.ring()
			}
		}
	}
}
