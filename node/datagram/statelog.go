package datagram

import (
	"log/slog"
	"sync"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
)

// stateLog writes the log lines of lane states in a goroutine of its own: whoever
// reads the log may be slow, and a reactor must not wait for that.
type stateLog struct {
	mu   sync.RWMutex // guards c against being closed
	c    chan stateLine
	done sync.WaitGroup
}

type stateLine struct {
	h *Local
	s conn.StateChange
}

// stateLines are kept for a log that does not keep up; what comes on top is
// counted as suppressed.
const stateLines = 1024

func (l *stateLog) start(a *Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan stateLine, stateLines)
	l.c = c
	l.done.Go(func() { // ends with stop
		defer a.deps.Guard.Recover(guard.Step, nil)
		for k := range c {
			_ = a.deps.Guard.Do(guard.Task, func() { k.h.logState(&k.s) }) // it has told of a panic
		}
	})
}

func (l *stateLog) put(h *Local, s conn.StateChange) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.c == nil {
		return
	}
	select {
	case l.c <- stateLine{h, s}:
	default:
		h.all.deps.Count.LogSuppressed.Add(1)
	}
}

// stop writes what is left.
func (l *stateLog) stop() {
	l.mu.Lock()
	if l.c != nil {
		close(l.c)
		l.c = nil
	}
	l.mu.Unlock()
	l.done.Wait()
}

func (h *Local) logState(s *conn.StateChange) {
	c := s.Lane.Conn()
	level := slog.LevelInfo
	if s.Now == conn.Connecting || s.Was == conn.Connecting && s.Now != conn.Up {
		level = slog.LevelDebug // an unreachable peer is tried for ever
	}
	args := []any{"peer", c.Remote(), "local", c.Local(), "path", s.Index, "was", s.Was.String(), "state", s.Now.String()}
	if s.Err != nil && s.Now != conn.Up {
		args = append(args, "error", s.Err)
	}
	h.log.Log(h.all.ctx, level, "path", args...)
}
