package service

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	webpage "github.com/rdsd/rdsd/node/page"
)

// Bounds of what one source, a user of this machine or an address of another, may ask of the
// page. Its requests beyond the rate wait and are not read meanwhile, so that no answer has to
// be made for them either. A browser with the page open asks for some ten things at once and a
// monitor for one a second.
const (
	httpPerSecond = 200
	httpAtOnce    = 400
	// httpShare is the part of the requests at work that are one source's at most.
	httpShare = 4
	// httpSources is how many sources are told apart.
	httpSources = 1024
)

type httpConnKey struct{}

// withConn lets a request find its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, httpConnKey{}, c)
}

// httpTurns bounds the requests at work, but for those of probes, which must be
// answered as long as the process lives and cost nothing, and streams of events, which
// have a bound of their own. All of a source go at its pace.
type httpTurns struct {
	most   int
	source func(net.Conn) string // whose a connection is

	mu     sync.Mutex
	atWork int                    // guarded by mu
	of     map[string]*httpSource // guarded by mu
}

type httpSource struct {
	atWork int           // guarded by httpTurns.mu
	users  int           // requests that have it; guarded by httpTurns.mu
	pace   *rate.Limiter // of all its requests
}

func newHTTPTurns(most int, source func(net.Conn) string) *httpTurns {
	return &httpTurns{most: most, source: source, of: map[string]*httpSource{}}
}

// limit has requests wait for their turn.
func (t *httpTurns) limit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := t.come(r)
		defer t.leave(s)
		if !s.wait(r.Context()) {
			return
		}
		patience := httpWrite
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			patience = httpProfile
		}
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
		if r.ContentLength != 0 { // nothing here reads a body, and nobody waits for one
			w.Header().Set("Connection", "close")
			http.Error(w, "a request here has no body", http.StatusBadRequest)
			return
		}
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" && r.URL.Path != webpage.EventsPath {
			if why := t.begin(s); why != "" {
				w.Header().Set("Retry-After", "1")
				http.Error(w, why, http.StatusServiceUnavailable)
				return
			}
			defer t.end(s)
		}
		h.ServeHTTP(w, r)
	})
}

// come finds the source of a request.
func (t *httpTurns) come(r *http.Request) *httpSource {
	name := ""
	if c, ok := r.Context().Value(httpConnKey{}).(net.Conn); ok {
		name = t.source(c)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of[name]
	if s == nil && len(t.of) >= httpSources {
		t.sweep()
		if len(t.of) >= httpSources {
			name = "" // who comes now shares the pace of those of whom nothing is known
			s = t.of[name]
		}
	}
	if s == nil {
		s = &httpSource{pace: rate.NewLimiter(httpPerSecond, httpAtOnce)}
		t.of[name] = s
	}
	s.users++
	return s
}

// sweep forgets sources that owe nothing. mu is held.
func (t *httpTurns) sweep() {
	now := time.Now()
	for name, s := range t.of {
		if s.users == 0 && s.pace.TokensAt(now) >= httpAtOnce {
			delete(t.of, name)
		}
	}
}

func (t *httpTurns) leave(s *httpSource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.users--
}

// wait waits for the pace, and reports whether the client is still there.
func (s *httpSource) wait(ctx context.Context) bool {
	wait := s.pace.Reserve().Delay()
	if wait == 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin counts a request at work, or says why it may not be.
func (t *httpTurns) begin(s *httpSource) (why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case s.atWork >= max(1, t.most/httpShare):
		return "you have too many requests at once: read the answers to others first"
	case t.atWork >= t.most:
		return "too many requests at once"
	}
	s.atWork++
	t.atWork++
	return ""
}

func (t *httpTurns) end(s *httpSource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.atWork--
	t.atWork--
}
