package blk

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Design notes.
//
// Every write to a file is handed to a worker, because no call that writes can be trusted
// not to wait: pwritev2 with RWF_NOWAIT waits for a frozen file system before it looks at
// the flag (file_start_write in fs/read_write.c of Linux), and ext4, tmpfs and block
// devices answer EOPNOTSUPP to it for buffered data. What a hand-over costs is the wake-up
// of a thread, 5 to 50 µs, several times the copy into the page cache. So the last worker
// of a file that finds nothing left to do yields for a moment before it ends, as reactors
// do (internal/reactor/spin.go), and takes requests that come meanwhile without waking a
// thread.
//
// Success pays for that: work that comes soon after a worker ended brings the whole moment
// back, work that comes late halves it, and a yield that does not return soon has given the
// processor to a computing thread, so that the next moments are left out, more of them each
// time.
type linger struct {
	posted atomic.Bool // the queue is not empty

	// Guarded by File.mu.
	busy    bool          // a worker lingers
	budget  time.Duration // of the next moment
	ended   time.Time     // when the last moment passed in vain
	shun    int           // moments still to be left out
	penalty int           // how many that were the last time
}

const (
	lingerFor  = 50 * time.Microsecond
	lingerNear = 4 * lingerFor        // work that comes so soon is worth another moment
	lingerLost = 2 * lingerFor        // a yield that took so long was another thread's slice
	lingerMost = 1024                 // moments left out at most
	lingerLeft = lingerFor / (1 << 4) // less than that is nothing
)

func (l *linger) init() { l.budget = lingerFor }

// begin tells how long a worker without work looks on; 0: not at all.
func (l *linger) begin() time.Duration {
	switch {
	case l.busy:
		return 0
	case l.shun > 0:
		l.shun--
		return 0
	case l.budget == 0:
		l.ended = time.Now()
		return 0
	}
	l.busy = true
	return l.budget
}

// lingering counts the workers that linger, of all files.
var lingering atomic.Int32

// wait yields until something is posted or the time has passed. It is called
// without File.mu.
func (l *linger) wait(d time.Duration) (found, lost bool) {
	// A reactor has one of Go's places, and one stays for all other goroutines.
	most := int32(max(1, runtime.GOMAXPROCS(0)-2))
	lingering.Add(1)
	defer lingering.Add(-1)
	began := time.Now()
	for last := began; ; {
		if l.posted.Load() {
			return true, false
		}
		if lingering.Load() > most {
			runtime.Gosched() // wakes a thread each time, so not without need
		}
		unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0)
		now := time.Now()
		switch {
		case now.Sub(last) > lingerLost:
			return l.posted.Load(), true
		case now.Sub(began) > d:
			return l.posted.Load(), false
		}
		last = now
	}
}

// end takes note of how a moment ended.
func (l *linger) end(found, lost bool) {
	l.busy = false
	switch {
	case lost:
		l.penalty = min(max(2*l.penalty, 2), lingerMost)
		l.shun = l.penalty
	case found:
		l.budget = lingerFor
		l.penalty = max(l.penalty-1, 0)
	default:
		l.ended = time.Now()
	}
}

// started adapts the budget when work came after the worker had gone.
func (l *linger) started() {
	if l.ended.IsZero() {
		return
	}
	if time.Since(l.ended) <= lingerNear {
		l.budget = lingerFor
	} else if l.budget /= 2; l.budget < lingerLeft {
		l.budget = 0
	}
	l.ended = time.Time{}
}

// Workers of all files together, beyond the first of each: so many wait for
// stores at a time at most, for each takes a thread of the process while it does,
// and a process has a limited number of those. The first of each file is always
// granted, so that stores that stand still take nothing from the others but speed.
const maxSpareWorkers = 1024

var spareWorkers atomic.Int32

// moreWorkers grants at most n workers to a file that has some.
func moreWorkers(have, n int) int {
	granted := 0
	for ; granted < n; granted++ {
		if have+granted == 0 {
			continue
		}
		if spareWorkers.Add(1) > maxSpareWorkers {
			spareWorkers.Add(-1)
			break
		}
	}
	return granted
}

// fewerWorkers takes back one of the workers that a file has.
func fewerWorkers(have int) {
	if have > 1 {
		spareWorkers.Add(-1)
	}
}
