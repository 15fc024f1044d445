package datagram

import (
	"log/slog"
	"math/rand"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/transport"
)

// Local is the shell around the engine of one local address: its lock, clock,
// listener, links and timer. Everything the engine hands out is carried out
// after the lock is let go, but for the notices of congestion, which waits for nothing.
type Local struct {
	// Moved counts the bytes taken out of regions and put into them since the keeper of memory was
	// last told (movedStep). The rings' owners add to it; guarded by mu.
	Moved int

	all  *Host
	log  *slog.Logger
	addr netip.Addr
	port uint16 // TCP port of RDS, here and at every peer

	looking sync.Mutex // taken before mu by whoever lists; see pages.go

	mu      sync.Mutex // guards e with everything in it, and the fields below
	e       *rds.Engine
	worker  *Worker // its timer runs there, and what others hand over; set by start
	timer   Timer
	timerAt time.Duration // what timer is set for; never when it is not
	tracing *tracing      // nil: nobody traces
	closed  bool
	leaving bool         // nothing is dialled any more
	kicked  []*conn.Lane // handed over to worker
	watch   []*Watch
	rings   localRings
	offered *Worker // OfferLone was called in the step under way, on its thread

	stepTime time.Duration // when the step under way, or the last one, began

	waiting atomic.Int32 // goroutines asleep on mu

	// A turn that ended with nothing more to write leaves its lane in written, for the next
	// step (transmit.go).
	steps   atomic.Uint64 // begun so far; stored with mu held
	written atomic.Pointer[conn.Lane]

	listener transport.Listener // set by start
	links    sync.WaitGroup     // links and dials under way

	flushKicked func() // transmits on kicked, on worker's thread
}

func newLocal(all *Host, addr netip.Addr, seed int64) *Local {
	h := &Local{all: all, log: all.deps.Log, addr: addr, port: all.deps.Config.RDS.Port, timerAt: conn.Never}
	h.e = rds.NewEngine(&all.engineConfig, addr, rand.New(rand.NewSource(seed)))
	return h
}

// attach gives the host the reactor of its timer.
func (h *Local) attach(w *Worker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.worker = w
	h.timer = w.thread.NewTimer(h.tick)
	h.flushKicked = func() { h.takeOver(w) }
}

// Addr is the local address.
func (h *Local) Addr() netip.Addr { return h.addr }

// Socket is the socket bound to port, nil when there is none. The lock is held.
func (h *Local) Socket(port uint16) *rds.Socket { return h.e.Socket(port) }

// shell is what h is one of.
func (h *Local) Host() *Host { return h.all }

// StepTime is the engine's time of the last step. The lock is held.
func (h *Local) StepTime() time.Duration { return h.stepTime }

// now is the engine's time.
func (h *Local) now() time.Duration { return h.all.machine.Clock() }

// Lock takes the lock and begins a step, which Unlock must end.
func (h *Local) Lock() (*rds.Engine, time.Duration) { return h.LockAt(h.now()) }

// LockAt is Lock for a caller who knows the time. On the thread of a worker that is when its
// turn began: to read the clock takes longer than to take the lock. Timers and what is
// measured may be off by a turn.
func (h *Local) LockAt(now time.Duration) (*rds.Engine, time.Duration) {
	if !h.mu.TryLock() {
		h.lockSlowly()
	}
	h.steps.Store(h.steps.Load() + 1)
	// A trace tells stages of one turn apart.
	if h.tracing != nil {
		now = h.now()
	}
	now = h.e.Begin(now)
	h.stepTime = now
	// The turn that left its lane there ends before anything else (leaveWritten).
	if h.written.Load() != nil {
		if p := h.written.Swap(nil); p != nil && p.Wrote(now) {
			p.FillLater()
		}
	}
	return h.e, now
}

// lockSlowly waits for the lock. A reactor does so awake: to park a thread that
// a goroutine is locked to takes three wake-ups of others, and the lock is
// never held for long. Other goroutines are counted, for whoever lets it go.
func (h *Local) lockSlowly() {
	if h.all.here() != nil {
		for begun := time.Now(); time.Since(begun) < lockAwake; {
			if reactor.Yield(); h.mu.TryLock() {
				return
			}
		}
	}
	h.waiting.Add(1)
	h.mu.Lock()
	h.waiting.Add(-1)
}

// lockAwake is longer than the lock is held by whoever has a processor; if it
// takes longer, the holder needs the one we are on.
const lockAwake = 50 * time.Microsecond

// work is what one step left to do. The pool keeps its slices.
type work struct {
	rds.Orders
	bells []*shm.Alarm
}

var works = sync.Pool{New: func() any { return new(work) }}

// Unlock lets the lock go and carries out what the step left to do: writes to
// links in the caller's own thread, wakes readers, dials, logs.
func (h *Local) Unlock() {
	due, ordered := h.e.End()
	if w := h.offered; w != nil {
		h.offered = nil
		// A lane has taken the offer. Now everything has been queued that the step queues: what is
		// behind the datagram keeps the turn going.
		if p := w.lone.Lane; p != nil {
			s := h.filled(p, w.lone.Batch, h.stepTime)
			s.w, w.lone = w, conn.Offer{}
			w.kicked = append(w.kicked, s)
		}
	}
	if due < h.timerAt && !h.closed && h.timer != nil {
		h.timerAt = due
		h.timer.Reset(untilTick(h.now(), due))
	}
	if !ordered && len(h.rings.placed)+len(h.rings.dirty) == 0 {
		h.mu.Unlock()
		if h.waiting.Load() > 0 {
			h.all.nudge()
		}
		return
	}
	w := works.Get().(*work)
	h.e.Take(&w.Orders)
	// Before the next step can: whoever heard of that one's changes first would take what has
	// become clear for congested for ever.
	if len(w.Notices) > 0 {
		list := slices.Clip(w.Notices)
		for _, c := range h.watch {
			c.tell(list, w.Lost)
		}
	}
	for _, s := range w.Ready {
		if o, ok := s.Options().Data.(Publisher); ok {
			o.Publish()
		}
	}
	for _, c := range w.Evicted {
		c.EachLane(h.freeLane)
	}
	w.bells = h.publishRings(w.bells[:0])
	for i := range w.States {
		h.recordLane(w.States[i].Lane)
	}
	h.mu.Unlock()

	for _, a := range w.bells {
		a.Ring() // nothing, when its socket has been closed meanwhile
	}
	if n := len(w.bells); n > 0 {
		h.all.deps.Count.RingWakes.Add(uint64(n))
	}

	woken := h.waiting.Load() > 0
	for _, s := range w.Ready {
		if o, ok := s.Options().Data.(Waker); ok && o.News() {
			woken = true
		}
	}
	if woken {
		h.all.nudge()
	}
	for _, a := range w.Actions {
		h.carryOut(a)
	}
	if w.Collect {
		h.all.Collect()
	}
	for _, s := range w.States {
		h.all.machine.Changed(h, s)
	}
	clear(w.Actions)
	clear(w.Ready)
	clear(w.bells)
	w.States, w.Notices, w.Evicted = nil, nil, nil
	works.Put(w)
}

// What is due later than tickNear is done on a grid of tickGrid: heartbeats of a
// thousand idle peers wake the reactor a few times a second, not a thousand times.
const (
	tickNear = 200 * time.Millisecond
	tickGrid = 50 * time.Millisecond
)

// untilTick is how long to wait for what is due at at.
func untilTick(now, at time.Duration) time.Duration {
	d := max(at-now, 0)
	if d > tickNear {
		d += tickGrid - (at-1)%tickGrid - 1
	}
	return d
}

// tick runs on the worker's thread.
func (h *Local) tick() {
	_, now := h.Lock()
	guard.Point("step")
	h.timerAt = conn.Never
	if !h.closed {
		h.e.Tick(now)
	}
	h.Unlock()
}

func (h *Local) carryOut(a conn.Action) {
	switch a.Kind {
	case conn.ActKick:
		h.kick(a.Lane)
	case conn.ActDial:
		guard.Point("step.late")
		h.all.machine.Dial(h, a, func(link transport.Link, err error) { h.dialled(a, link, err) })
	case conn.ActPoke:
		// To connect and close asks the smaller address to connect here.
		h.all.machine.Dial(h, a, func(link transport.Link, err error) {
			if err == nil {
				link.Abort()
			}
		})
	case conn.ActClose, conn.ActAbort:
		h.closeLink(a)
	case conn.ActPoll:
		h.pollAcked(a)
	case conn.ActResume:
		h.mu.Lock()
		l := h.laneOf(a.Lane).find(a.Attempt)
		h.mu.Unlock()
		if l != nil {
			l.link.Start(l) // one that was parked; nothing happens otherwise
			l.link.Resume()
		}
	}
}

// background runs f in a goroutine that stop waits for.
func (h *Local) background(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.links.Add(1)
	go func() {
		defer h.links.Done()
		// A lane waits for what f has to tell: without it, it would wait for ever.
		defer h.all.deps.Guard.Recover(guard.Step, nil)
		f()
	}()
	h.all.nudge()
}

// stopPatience is how long links may take to be read to their end.
const stopPatience = 3 * time.Second

// stop drops every link and waits for their goroutines.
func (h *Local) stop() {
	if h.listener != nil {
		h.listener.Close()
	}
	_, now := h.Lock()
	h.closed = true
	h.e.Shutdown(now)
	var links, stuck []*laneLink
	var unstarted int
	for _, pe := range h.e.Peers() {
		pe.Conn().EachLane(func(p *conn.Lane) {
			l := h.laneOf(p)
			for _, k := range append([]*laneLink(nil), l.links...) {
				links = append(links, k)
				if k.held > 0 && h.leaving {
					stuck = append(stuck, k)
				}
				if k.attempt != p.Attempt() { // parked
					l.remove(k)
					k.identified()
					unstarted++
				}
			}
		})
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.Unlock()
	for _, k := range links {
		k.link.Close()
	}
	for _, k := range stuck { // nothing makes room for what they hold any more
		k.link.Abort()
	}
	h.links.Add(-unstarted)
	// A link whose receiver stays full would never be read to its end.
	abort := time.AfterFunc(stopPatience, func() {
		defer h.all.deps.Guard.Recover(guard.Link, nil)
		for _, k := range links {
			k.link.Abort()
		}
	})
	h.links.Wait()
	abort.Stop()
}
