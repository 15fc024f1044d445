package node

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// logQueueBytes bounds the lines that wait for whoever reads the log.
const logQueueBytes = 256 << 10

// LogWriter takes log lines and never blocks: reactors log, and standard error may
// be a pipe that nobody empties, or a file on a disk that stands still. Lines are
// written by a goroutine that lives while there are any. What finds the queue full, or
// cannot be written, is lost and counted, and the log says so when it goes on.
type LogWriter struct {
	w       io.Writer
	notices slog.Handler   // of its own, into w; NewLogger sets that of its format
	lost    *atomic.Uint64 // all there ever were; a counter of the node

	mu      sync.Mutex
	lines   [][]byte // guarded by mu
	bytes   int      // guarded by mu; of lines and of what is being written
	missing uint64   // guarded by mu; lost since the log said so
	writing bool     // guarded by mu; the goroutine lives
	idle    chan struct{}
}

// NewLogWriter makes a writer in front of w.
func NewLogWriter(w io.Writer) *LogWriter {
	return &LogWriter{w: w, notices: slog.NewTextHandler(w, nil), lost: new(atomic.Uint64)}
}

// Write queues one line. It reports success always: a logger could do nothing about
// a failure.
func (l *LogWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes+len(line) > logQueueBytes {
		l.missing++
		l.lost.Add(1)
		return len(line), nil
	}
	l.bytes += len(line)
	l.lines = append(l.lines, append([]byte(nil), line...))
	if !l.writing {
		l.writing, l.idle = true, make(chan struct{})
		go l.drain(l.idle) // ends when no line is left
	}
	return len(line), nil
}

// drain writes what is queued.
func (l *LogWriter) drain(idle chan struct{}) {
	defer close(idle)
	for said := true; ; { // the last word on what is missing could be written
		l.mu.Lock()
		lines, missing := l.lines, l.missing
		if len(lines) == 0 && (missing == 0 || !said) {
			l.writing = false
			l.mu.Unlock()
			return
		}
		l.lines, l.missing = nil, 0
		l.mu.Unlock()
		n, failed := 0, uint64(0)
		for _, line := range lines {
			if _, err := l.w.Write(line); err != nil {
				failed++
			}
			n += len(line)
		}
		if missing += failed; missing > 0 {
			// Behind the lines that had a place: the others came after these.
			r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were lost: nobody read the log", 0)
			r.AddAttrs(slog.Uint64("lines", missing))
			if said = l.notices.Handle(context.Background(), r) == nil; said {
				missing = 0
			}
		}
		l.mu.Lock()
		l.bytes -= n
		l.missing += missing
		l.lost.Add(failed)
		l.mu.Unlock()
	}
}

// Flush waits until everything is written, or for limit.
func (l *LogWriter) Flush(limit time.Duration) {
	l.mu.Lock()
	writing, idle := l.writing, l.idle
	l.mu.Unlock()
	if !writing {
		return
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}

// lastWords is how long the end of a process waits for its log to be taken.
const lastWords = time.Second

// LogsTo says that the node's logger writes through l, so that lost lines are counted
// and a process that ends itself has its last words written. Call it before Run.
func (n *Node) LogsTo(l *LogWriter) {
	l.mu.Lock()
	l.lost = &n.deps.Count.LogLost
	l.mu.Unlock()
	n.deps.Guard.Exit = func(code int) {
		l.Flush(lastWords)
		os.Exit(code)
	}
}
