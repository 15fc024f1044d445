package toll

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Toll measures the calls on one client's descriptor. The zero value is ready; a
// reader and a writer may share one.
type Toll struct {
	suspect atomic.Int32 // calls that are still to be measured so
	strikes atomic.Int32 // long ones, without a short one between them
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
	// look is how many calls of a suspect are measured.
	look = 8
)

// Mark is the beginning of a call.
type Mark struct{ clock, own time.Duration }

var base = time.Now()

// Begin comes before a call that does not wait. own is 0 unless the client is a suspect; then the
// goroutine keeps its thread until End.
func (t *Toll) Begin() Mark {
	m := Mark{clock: time.Since(base)}
	if t.suspect.Load() > 0 {
		runtime.LockOSThread()
		m.own = threadTime()
	}
	return m
}

// End is called after it; bytes is how many it has moved. A call that has moved none has
// woken no watcher. With an error the client is to be ended.
func (t *Toll) End(m Mark, bytes int) error {
	took, measured := time.Since(base)-m.clock, m.own != 0
	if measured {
		took = threadTime() - m.own
		runtime.UnlockOSThread()
	}
	if bytes <= 0 {
		return nil
	}
	return t.judge(took-time.Duration(bytes)*perByte, measured)
}

// judge returns the error for a client whose call took so long.
func (t *Toll) judge(took time.Duration, measured bool) error {
	switch {
	case took < long && !measured:
		return nil
	case took < long:
		t.strikes.Store(0)
		t.suspect.Add(-1)
		return nil
	case !measured:
		t.suspect.Store(look)
		return nil
	}
	strikes := int32(1)
	if took >= veryLong {
		strikes = 2
	}
	if t.strikes.Add(strikes) >= mostStrikes {
		return &costly{took}
	}
	t.suspect.Store(look)
	return nil
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
