package shm

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// toll finds the client for whom system calls take long. What the daemon sends to a
// client, and also what it receives from one, wakes up everybody who watches the client's
// end, and a client can have a hundred thousand of those: epoll sets, or one descriptor
// many times over in a poll. The kernel walks them all within the daemon's call, some 60 ns
// each, and so a thread that serves others stands still for milliseconds. It has no call
// that does not; and a thread of its own for each client would cost everybody what one
// does. So calls are measured, and who makes them long is not served any more.
//
// By the clock a call is long also when the thread has lost its processor meanwhile.
// That only makes a suspect, whose next calls are measured in the thread's own time.
type toll struct {
	suspect atomic.Int32 // calls that are still to be measured so
	strikes atomic.Int32 // long ones, without a short one between them
}

const (
	// tollLong is a long call, a thousand times what one takes: some 16,000 watchers.
	tollLong = time.Millisecond
	// tollVery is one that is enough by itself.
	tollVery = 20 * time.Millisecond
	// tollStrikes is how many long ones in a row are enough: one may have been
	// interrupted in the middle for the work of others.
	tollStrikes = 3
	// tollLook is how many calls of a suspect are measured.
	tollLook = 8
)

// mark is the beginning of a call.
type mark struct{ clock, own time.Duration }

var tollBase = time.Now()

// begin comes before a call. own is 0 unless the client is a suspect; then the
// goroutine keeps its thread until end.
func (t *toll) begin() mark {
	m := mark{clock: time.Since(tollBase)}
	if t.suspect.Load() > 0 {
		runtime.LockOSThread()
		m.own = threadTime()
	}
	return m
}

// end comes after it. Its error says that the client is to be ended.
func (t *toll) end(m mark) error {
	took, measured := time.Since(tollBase)-m.clock, m.own != 0
	if measured {
		took = threadTime() - m.own
		runtime.UnlockOSThread()
	}
	return t.judge(took, measured)
}

// judge says what a call that took so long makes of the client.
func (t *toll) judge(took time.Duration, measured bool) error {
	switch {
	case took < tollLong && !measured:
		return nil
	case took < tollLong:
		t.strikes.Store(0)
		t.suspect.Add(-1)
		return nil
	case !measured:
		t.suspect.Store(tollLook)
		return nil
	case took < tollVery && t.strikes.Add(1) < tollStrikes:
		t.suspect.Store(tollLook)
		return nil
	}
	return &Error{errCostly, "to wake up all who watch the client's descriptor (epoll, poll) takes the daemon " + took.Round(10*time.Microsecond).String() + " each time; one millisecond is the most"}
}

// errCostly is the errno of a client that is ended for what its watchers cost.
const errCostly = unix.EUSERS

// Costly reports whether err says that a client was too expensive to wake.
func Costly(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Errno == errCostly
}

// threadTime is how long the calling thread has run.
func threadTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
