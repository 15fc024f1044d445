package toll

import (
	"errors"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Toll measures the calls on one client's descriptor. The zero value is ready; a
// reader and a writer may share one.
type Toll struct {
	// User, unless it is nil, is what is known of all clients of one user. It has to be set before
	// the first call.
	User *User

	own     User         // where there is no User
	strikes atomic.Int32 // long calls, without a short one between them
}

// User is what clients of one user cost together, so that none gains by being many, or by coming
// anew. The zero value is ready.
type User struct {
	until atomic.Int64 // by the clock: up to then its calls are measured so

	mu    sync.Mutex
	spent time.Duration // guarded by mu; of threads, by long calls, and not made up for at
	at    time.Duration // guarded by mu; by the clock
}

const (
	// long is the time of a long call, a thousand times the usual: some 16,000 watchers.
	long = time.Millisecond
	// perByte is the time allowed for each byte, a hundred times the usual: on an emulated
	// processor, or where memory has to be found first, it takes so long.
	perByte = 100 * time.Nanosecond
	// veryLong is one that counts for two.
	veryLong = 20 * time.Millisecond
	// mostStrikes is how many long ones in a row are enough: one may have been
	// interrupted in the middle for the work of others, or by a hypervisor.
	mostStrikes = 3
	// mostSpent is how much of threads' time long calls may have taken with short ones between them. Of
	// each makeUp that passes one part is made up for, and none counts for more than mostOnce, for the
	// reason of mostStrikes: kernels there are that count as a thread's own what an interrupt took of it.
	mostSpent = 150 * time.Millisecond
	mostOnce  = mostSpent / 5
	makeUp    = 50
	// look is how long a suspect's calls are measured. A long one that comes later is again but the
	// reason to look.
	look = 5 * time.Second
)

// Mark is the beginning of a call.
type Mark struct{ clock, own time.Duration }

var base = time.Now()

func (t *Toll) user() *User {
	if t.User != nil {
		return t.User
	}
	return &t.own
}

// Begin comes before a call that does not wait. own is 0 unless the client is a suspect; then the
// goroutine keeps its thread until End.
func (t *Toll) Begin() Mark {
	m := Mark{clock: time.Since(base)}
	if t.user().suspect(m.clock) {
		runtime.LockOSThread()
		m.own = threadTime()
	}
	return m
}

// End is called after it; bytes is how many it has moved. A call that has moved none has
// woken no watcher. With an error the client is to be ended.
func (t *Toll) End(m Mark, bytes int) error {
	now, measured := time.Since(base), m.own != 0
	took := now - m.clock
	if measured {
		took = threadTime() - m.own
		runtime.UnlockOSThread()
	}
	if bytes <= 0 {
		return nil
	}
	return t.judge(now, took-time.Duration(bytes)*perByte, measured)
}

// judge returns the error for a client whose call took so long.
func (t *Toll) judge(now, took time.Duration, measured bool) error {
	if took < long {
		if t.strikes.Load() != 0 {
			t.strikes.Store(0)
		}
		return nil
	}
	u := t.user()
	u.until.Store(int64(now + look))
	if !measured {
		return nil
	}
	strikes := int32(1)
	if took >= veryLong {
		strikes = 2
	}
	if spent := u.spend(now, took); spent >= mostSpent || t.strikes.Add(strikes) >= mostStrikes {
		return &costly{took}
	}
	return nil
}

// suspect reports whether calls are to be measured in the thread's own time.
func (u *User) suspect(now time.Duration) bool { return int64(now) < u.until.Load() }

// spend adds a call to what long ones have taken, and returns that.
func (u *User) spend(now, took time.Duration) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.spent = max(u.spent-(now-u.at)/makeUp, 0) + min(took, mostOnce)
	u.at = now
	return u.spent
}

// idle reports whether nothing is known of it.
func (u *User) idle(now time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.suspect(now) && u.spent <= (now-u.at)/makeUp
}

// Users are the users of a daemon. The zero value is ready.
type Users struct {
	mu sync.Mutex
	of map[uint32]*User // guarded by mu
}

// mostUsers is how many are kept of whom nothing is known.
const mostUsers = 1024

// Of is what is known of a user; nil where there are no users.
func (l *Users) Of(uid uint32) *User {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of[uid]
	if u != nil {
		return u
	}
	if l.of == nil {
		l.of = map[uint32]*User{}
	}
	if len(l.of) >= mostUsers {
		now := time.Since(base)
		maps.DeleteFunc(l.of, func(_ uint32, u *User) bool { return u.idle(now) })
	}
	u = &User{}
	l.of[uid] = u
	return u
}

// costly is the error of a client that is ended for the cost of its watchers.
type costly struct{ took time.Duration }

func (e *costly) Error() string {
	return "to wake up all who watch the client's descriptor (epoll, poll) takes the daemon " + e.took.Round(10*time.Microsecond).String() + " each time; one millisecond is the most"
}

// Unwrap returns the errno that the client is told.
func (e *costly) Unwrap() error { return unix.EUSERS }

// Costly reports whether err says that a client was too expensive to wake.
func Costly(err error) bool {
	var e *costly
	return errors.As(err, &e)
}

// threadTime is how long the calling thread has run.
func threadTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
