package reactor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
)

// DefaultSpin is how long a reactor yields before it sleeps, unless told otherwise: two
// wake-ups across processors, so that a partner that slept finds it awake.
const DefaultSpin = 50 * time.Microsecond

// Options of a reactor.
type Options struct {
	// SpinFor is how long to look for work, yielding, before sleeping. 0 means
	// DefaultSpin; negative, or a single processor: sleep at once.
	SpinFor time.Duration
	// CPU is the processor the thread is bound to; -1: none in particular.
	CPU int
	// Name is the thread's name, at most 15 bytes.
	Name string
	// Guard contains panics of the work the reactor does for its owners; nil: they
	// end the process.
	Guard *guard.Guard
}

// Reactor is one event loop on one thread. Its methods may be called from any
// goroutine unless they say otherwise.
type Reactor struct {
	epfd, evfd int
	thread     atomic.Uintptr // identifies the thread (self); 0 when it has ended
	closing    atomic.Bool
	done       chan struct{} // closed when the loop has ended

	// asleep is set while the thread is in, or on its way into, a blocking epoll_wait: a
	// thread that has something for it must ring.
	asleep  atomic.Bool
	ringing atomic.Int32 // callers in ring
	queue   queue
	timers  timers

	regMu   sync.Mutex // guards changes of sources and gen
	gen     uint32
	sources atomic.Pointer[[]atomic.Pointer[source]] // by descriptor

	// Owned by the thread.
	doing  doing         // the call under way
	now    time.Duration // start of this turn, since base
	hot    hotList
	end    func() (more bool) // of AtEnd
	ends   []func()           // run at the end of this turn
	ending []func()
	spin   spin
	rest   rest
	events [maxEvents]unix.EpollEvent
	late   int           // events that were fetched and not handled yet
	passed time.Duration // see pass
	eager  *source       // was ready last, of those that are Eager
	tries  int           // how often it was asked since epoll was

	turns, sleeps, wakes, spins atomic.Uint64
}

const maxEvents = 64 // descriptors served in one turn

// ErrClosed says that the reactor has been closed.
var ErrClosed = errors.New("reactor: closed")

// base is an hour before the process began: no time is 0, which is none.
var base = time.Now().Add(-time.Hour)

// Clock is the reactors' time: monotonic, and never 0.
func Clock() time.Duration { return time.Since(base) }

// Now is when the turn under way began, by Clock, and costs nothing. It may be
// called on the reactor's thread only.
func (r *Reactor) Now() time.Duration { return r.now }

// New starts a reactor.
func New(o Options) (*Reactor, error) {
	if len(o.Name) > 15 {
		return nil, fmt.Errorf("reactor: the name %q has more than 15 bytes", o.Name)
	}
	r := &Reactor{done: make(chan struct{}), end: func() bool { return false }}
	r.spin.init(spinFor(o.SpinFor, runtime.NumCPU()))
	r.hot.init()
	r.rest.opt = o
	r.timers.next.Store(int64(never))
	r.sources.Store(new([]atomic.Pointer[source]))
	var err error
	if r.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if r.evfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(r.epfd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	// Edge-triggered: every ring is one event, and need not be read.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: -1}
	if err = unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, r.evfd, &ev); err == nil {
		if err = r.rest.open(r); err == nil {
			begun := make(chan error)
			go r.run(begun) // ends with Close
			err = <-begun
		}
	}
	if err != nil {
		r.closeFiles()
		return nil, err
	}
	return r, nil
}

func (r *Reactor) closeFiles() {
	r.rest.close()
	unix.Close(r.evfd)
	unix.Close(r.epfd)
}

// Close ends the reactor and waits until its thread has ended. Functions given to Do before
// are still run; handlers, pollers and timers are not called any more. It must not be
// called on the reactor's own thread.
func (r *Reactor) Close() {
	if r.OnThread() {
		panic("reactor: Close on the reactor's own thread would wait for itself")
	}
	if r.closing.Swap(true) {
		<-r.done
		return
	}
	r.ring()
	<-r.done
	r.regMu.Lock()
	r.sources.Store(nil)
	r.regMu.Unlock()
	for r.ringing.Load() > 0 {
		runtime.Gosched()
	}
	r.closeFiles()
}

// Done is closed when the reactor's thread has ended: what was queued and has not run by
// then never does.
func (r *Reactor) Done() <-chan struct{} { return r.done }

// OnThread reports whether the caller is called by the reactor. It costs about a
// nanosecond.
func (r *Reactor) OnThread() bool { return r.thread.Load() == self() }

// Stats are counters: turns of the loop, times it slept, times another thread
// had to wake it, and calls of sched_yield.
func (r *Reactor) Stats() (turns, sleeps, wakes, spins uint64) {
	return r.turns.Load(), r.sleeps.Load(), r.wakes.Load(), r.spins.Load()
}

// run is the reactor's goroutine. If it is locked to its thread when it ends, the thread
// ends with it: its CPU set and name are not inherited by other goroutines.
func (r *Reactor) run(begun chan<- error) {
	r.thread.Store(self())
	err := r.rest.lock()
	begun <- err
	if err != nil {
		return
	}
	for !r.closing.Load() {
		r.loop() // again after a panic that was contained
	}
	r.closeQueue()
	r.thread.Store(0)
	close(r.done)
}

// closeQueue runs the functions that are left, past those that panic.
func (r *Reactor) closeQueue() {
	for closed := false; !closed; {
		func() {
			defer r.contain()
			r.doing.what = inQueue
			r.queue.close()
			closed = true
		}()
	}
}

// loop ends when the reactor is closed, or with a panic that was contained. That costs its
// one deferred function: once for the reactor, not for each turn.
func (r *Reactor) loop() {
	defer r.contain()
	busy := true
	var idleSince time.Duration
	for !r.closing.Load() {
		was := r.now
		r.now = time.Since(base)
		away := r.now - was
		worked := r.turn(!busy)
		if !busy && away > lostTurn {
			r.spin.away(away, time.Since(base)-r.now)
		}
		if worked {
			if !busy {
				r.spin.found(r.now - idleSince)
				r.rest.longs = 0
			}
			busy = true
			continue
		}
		if busy {
			busy, idleSince = false, r.now
			if !r.rest.locked && !r.rest.wanted() {
				r.rest.lock()
			}
		}
		if r.now-idleSince < r.spin.look {
			r.spins.Store(r.spins.Load() + 1) // counted by this thread alone
			Yield()
			continue
		}
		if r.sleep() {
			r.now = Clock()
			r.spin.slept(r.now - idleSince)
			r.rest.gap(r.now - idleSince)
			r.doing.what = inPoller
			r.hot.woken(r.now)
		}
		busy = true // in any case; at worst the spin begins again
	}
}

// turn does a bounded piece of the work there is and reports whether there was any. When
// the turn before found nothing, work from a poller is finished (AtEnd, Defer) before epoll is
// asked: its partner waits for it, and no other work could be batched with it.
func (r *Reactor) turn(spinning bool) (worked bool) {
	r.turns.Store(r.turns.Load() + 1)
	if r.queue.posted.Load() {
		r.doing.what = inQueue
		worked = r.queue.run()
	}
	if time.Duration(r.timers.next.Load()) <= r.now {
		r.doing.what = inTimer
		worked = r.timers.run(r.now) || worked
	}
	if len(r.hot.list) > 0 {
		r.doing.what = inPoller
		worked = r.hot.poll(r.now) || worked
	}
	if spinning {
		r.doing.what = inEnd
		worked = r.end() || worked
		if len(r.ends) > 0 {
			r.runEnds()
			worked = true
		}
	}
	n := r.late
	r.late = 0
	if n == 0 {
		var got bool
		n, got = r.look(spinning)
		worked = worked || got
	}
	if n > 0 {
		worked = true
		r.dispatch(n)
	}
	r.doing.what = inEnd
	worked = r.end() || worked
	if len(r.ends) > 0 {
		worked = true
		r.runEnds()
	}
	return worked
}

// look asks for ready descriptors without blocking, so the scheduler need not know. While the
// reactor spins it asks the Eager that was ready last alone, most times and if it is still there,
// and reports whether that had work.
func (r *Reactor) look(spinning bool) (ready int, worked bool) {
	if s := r.eager; spinning && s != nil && r.tries < eagerTries {
		if !s.gone.Load() {
			r.tries++
			r.doing.what = inEager
			return 0, s.eager.Try()
		}
		r.eager = nil
	}
	r.tries = 0
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(r.epfd), uintptr(unsafe.Pointer(&r.events[0])), maxEvents, 0, 0, 0)
	if e != 0 {
		if e != unix.EINTR {
			cannotWait("epoll_pwait", e)
		}
		return 0, false
	}
	return int(n), false
}

// sleep blocks until something happens; false: something had happened already.
func (r *Reactor) sleep() bool {
	r.asleep.Store(true)
	r.doing.what = inPoller
	if r.queue.posted.Load() || r.closing.Load() || !r.hot.sleep(r.now) {
		r.asleep.Store(false)
		return false
	}
	r.sleeps.Store(r.sleeps.Load() + 1)
	if until := r.timers.sleepUntil(); r.rest.wanted() {
		r.passed = r.now
		r.rest.wait(r, until)
	} else {
		r.pass()
		r.late = r.wait(until)
	}
	r.asleep.Store(false)
	return true
}

// ring wakes the thread if it sleeps.
func (r *Reactor) ring() {
	if !r.asleep.Load() {
		return
	}
	r.ringing.Add(1) // Close lets the descriptor live until this is over
	if r.asleep.CompareAndSwap(true, false) {
		r.wakes.Add(1)
		one := [8]byte{1}
		unix.Write(r.evfd, one[:]) // cannot fail: the counter never gets full
	}
	r.ringing.Add(-1)
}

// AtEnd has f called at the end of every turn, and once more in those that find something after
// a while without: it does what the turn has collected from many sources, lanes to transmit on for
// example, and reports whether it left something for the next turn. There is one such f, for whom
// most turns have something; others Defer.
func (r *Reactor) AtEnd(f func() (more bool)) { r.Do(func() { r.end = f }) }

// Defer runs f on the reactor's thread at the end of the turn under way, behind what AtEnd was
// given. It may be called on the reactor's thread only.
func (r *Reactor) Defer(f func()) {
	if !r.OnThread() {
		panic("reactor: Defer from another thread")
	}
	r.ends = append(r.ends, f)
}

// runEnds runs the functions that this turn deferred; those they defer belong to the next
// turn.
func (r *Reactor) runEnds() {
	r.doing.what = inEnd
	r.ends, r.ending = r.ending[:0], r.ends
	for i, f := range r.ending {
		r.ending[i] = nil
		f()
	}
}

// Yield gives the processor to any other thread that wants it, unknown to the scheduler of
// Go. It is for waiting on a reactor's thread, for moments.
func Yield() { unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0) }
