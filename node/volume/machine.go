package volume

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
)

// Machine is what a Host takes from where it runs, beside its links: clocks, timers,
// somebody to do things meanwhile, memory, and what outlives the process. The daemon's is
// this machine (thisMachine). A simulated world brings its own, so that the same shell runs
// there, in one thread, from a seed.
type Machine struct {
	Clock func() time.Duration // monotonic; the time of the cores
	Wall  func() time.Time     // for what lasts long and is reported in such times
	Seed  func() uint64        // a random number

	// Go runs f beside the caller, who may hold locks: never before Go has returned. f
	// may wait.
	Go func(f func())
	// Wait returns when something can be taken from one of the bells, which it does, or one
	// is closed: its index. -1: d has passed (Forever never does). What waits holds no lock
	// that a step is made under, and is no step.
	Wait func(d time.Duration, bells ...<-chan struct{}) int
	// Timeout is context.WithTimeout by Clock.
	Timeout func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Either is a context that ends with ctx and with other.
	Either func(ctx, other context.Context) (context.Context, context.CancelFunc)
	// NewTimer makes a timer that is not set; f, a step, runs when it is due. home is the
	// reactor that it belongs to; nil: none.
	NewTimer func(home *reactor.Reactor, f func()) Timer

	Chunks Chunks
	// Boot is other after each start of the machine; "": nobody knows.
	Boot string
	// Disk opens a directory for what outlives the process.
	Disk func(dir string) (Disk, error)
	// Mark is where the number of the last state of stateDir is kept in dir; nil: nowhere.
	Mark func(dir, stateDir string) Mark

	// Store opens the store of an export; nil: the file or block device at path.
	Store func(path string, o blk.FileOptions) (blk.Device, error)
	// Front shows a mapped volume to those who use it; nil: on a socket, or as a device of
	// the kernel.
	Front func(s *MapSpec, d blk.Device) (Front, error)

	// Tune sets what a world draws of the cores and nobody configures, Session and Export
	// hear of their events, without a lock and before what a step brought reaches a store;
	// nil: nobody does.
	Tune    func(*rtrs.ClientConfig, *rtrs.ServerConfig) // one of the two is nil
	Session func(rtrs.Event)
	Export  func(rnbd.ServerEvent)
}

// NewOn is New on m.
func NewOn(cfg Config, deps Deps, m *Machine) (*Host, error) {
	return newHostOn(cfg, deps, kernelDriver, m)
}

// Forever is a time that does not pass.
const Forever = time.Duration(1<<63 - 1)

// Timer is set anew by Reset, whether it was set or not. From anywhere.
type Timer interface {
	Reset(d time.Duration)
	Stop() bool
}

// Chunks is where the memory comes from that peers write to.
type Chunks interface {
	Alloc(n int) []byte // n zero bytes; nil: there is no room
	Free(b []byte)      // what Alloc returned. It may take its time
	Trim(b []byte)      // a part whose content is not wanted any more
}

// Disk keeps a few bytes over the end of a process and of the machine. One Host at a time
// has it.
type Disk interface {
	Read() ([]byte, error)            // what was written last; fs.ErrNotExist: nothing
	Write(b []byte) error             // replaces that, so that a reader finds the one or the other
	SetAside() (as string, err error) // keeps what cannot be used under another name
	Close()
}

// thisMachine is the machine that the daemon runs on.
func thisMachine(g *guard.Guard) *Machine {
	base := time.Now()
	return &Machine{
		Clock: func() time.Duration { return time.Since(base) },
		Wall:  time.Now,
		Seed:  rand.Uint64,
		Go: func(f func()) {
			go f() // ends with f, which its caller sees to; each contains its panics
		},
		Wait:    wait,
		Timeout: context.WithTimeout,
		Either:  either,
		NewTimer: func(home *reactor.Reactor, f func()) Timer {
			if home != nil {
				return home.NewTimer(f)
			}
			t := time.AfterFunc(Forever, func() {
				defer g.Recover(guard.Step, nil)
				f()
			})
			t.Stop()
			return afterTimer{t}
		},
		Chunks: mappedChunks{},
		Boot:   bootID(),
		Disk:   openDisk,
		Mark:   newFileMark,
	}
}

// wait is Machine.Wait.
func wait(d time.Duration, bells ...<-chan struct{}) int {
	var after <-chan time.Time
	if d != Forever {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	var b [3]<-chan struct{} // nobody waits for more; nil is never ready
	copy(b[:], bells)
	select {
	case <-b[0]:
		return 0
	case <-b[1]:
		return 1
	case <-b[2]:
		return 2
	case <-after:
		return -1
	}
}

// either is Machine.Either.
func either(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(other, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// afterTimer is the runtime's timer, where there is no reactor.
type afterTimer struct{ *time.Timer }

func (t afterTimer) Reset(d time.Duration) { t.Timer.Reset(d) }

// turn is a lock that is waited for as Machine.Wait does: its holder may wait, too.
type turn struct {
	m    *Machine
	free chan struct{} // has something while nobody holds it
}

func newTurn(m *Machine) turn {
	t := turn{m, make(chan struct{}, 1)}
	t.Unlock()
	return t
}

func (t turn) Lock()   { t.m.Wait(Forever, t.free) }
func (t turn) Unlock() { t.free <- struct{}{} }

// group counts what has begun and not ended.
type group struct {
	m *Machine

	mu   sync.Mutex    // after any other lock
	n    int           // guarded by mu
	idle chan struct{} // guarded by mu; closed when n is 0 again; nil: nobody waits
}

func (g *group) Add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n += n; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

func (g *group) Done() { g.Add(-1) }

// Go has f run beside the caller, and counts it.
func (g *group) Go(f func()) {
	g.Add(1)
	g.m.Go(func() {
		defer g.Done()
		f()
	})
}

// ended is closed when nothing is under way.
func (g *group) ended() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	return g.idle
}
