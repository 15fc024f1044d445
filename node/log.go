package node

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/rdsd/rdsd/node/config"
)

// NewLogger makes the daemon's logger. Keys are fixed: peer, path, state,
// local, uid, pid, port, error. Nothing is logged per datagram.
func NewLogger(w io.Writer, c *config.Log) *slog.Logger {
	level := new(slog.LevelVar)
	level.Set(c.Level.Level)
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		if l, ok := w.(*LogWriter); ok {
			l.notices = slog.NewJSONHandler(l.w, nil)
		}
		return slog.New(&levelHandler{slog.NewJSONHandler(w, opts), level})
	}
	return slog.New(&levelHandler{slog.NewTextHandler(w, opts), level})
}

// levelHandler is the handler of a logger of NewLogger, whose level a node can change.
type levelHandler struct {
	slog.Handler
	level *slog.LevelVar
}

// maxLogMessages bounds the table of a limitHandler. Messages are constants of
// the program, so it is reached only by mistake; the rest then share a bucket.
const maxLogMessages = 512

// limitHandler bounds how often each message is logged (whatever peers and
// clients do, log output is bounded). The first line after a gap says how many
// were left out.
type limitHandler struct {
	slog.Handler
	shared *logLimits
	attrs  []slog.Attr // of the logger
}

type logLimits struct {
	suppressed *atomic.Uint64 // all there ever were; a counter of the node
	now        func() time.Time
	errors     *errorTable

	mu        sync.Mutex
	perSecond rate.Limit            // guarded by mu
	messages  map[string]*logBucket // guarded by mu
}

type logBucket struct {
	limit   *rate.Limiter
	missing uint64 // guarded by logLimits.mu
}

// limitLog wraps a logger's handler.
func limitLog(l *slog.Logger, perSecond float64, suppressed *atomic.Uint64) *slog.Logger {
	return slog.New(&limitHandler{Handler: l.Handler(), shared: &logLimits{perSecond: rate.Limit(perSecond), suppressed: suppressed,
		now: time.Now, errors: newErrorTable(), messages: map[string]*logBucket{}}})
}

// setPerSecond changes how many lines of one message there may be.
func (s *logLimits) setPerSecond(perSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perSecond = rate.Limit(perSecond)
	for _, b := range s.messages {
		b.limit.SetLimit(s.perSecond)
		b.limit.SetBurst(max(1, int(perSecond)))
	}
}

// Enabled reports whether anybody wants the line: the table of errors has all that are
// warnings or worse, whatever log.level is.
func (h *limitHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *limitHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.shared.errors.note(h.attrs, &r)
		if !h.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	ok, missing := h.shared.allow(r.Message)
	if !ok {
		return nil
	}
	if missing > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("suppressed", missing))
	}
	return h.Handler.Handle(ctx, r)
}

func (s *logLimits) allow(message string) (ok bool, missing uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.messages[message]
	if b == nil {
		if len(s.messages) >= maxLogMessages {
			message = ""
			b = s.messages[message]
		}
		if b == nil {
			b = &logBucket{limit: rate.NewLimiter(s.perSecond, max(1, int(s.perSecond)))}
			s.messages[message] = b
		}
	}
	if !b.limit.AllowN(s.now(), 1) {
		b.missing++
		s.suppressed.Add(1)
		return false, 0
	}
	missing, b.missing = b.missing, 0
	return true, missing
}

func (h *limitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitHandler{h.Handler.WithAttrs(attrs), h.shared, append(slices.Clip(h.attrs), attrs...)}
}

func (h *limitHandler) WithGroup(name string) slog.Handler {
	return &limitHandler{h.Handler.WithGroup(name), h.shared, h.attrs}
}
