package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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
	// httpWaiting is how many requests of a source wait: as many as there are connections. Those
	// beyond are of clients that have gone, which is not seen behind a body or a further request.
	httpWaiting = maxHTTPConns
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

	waiting atomic.Int32  // requests that wait for the pace
	turn    chan struct{} // full while one of them is the next; the others stand in their order
}

func newHTTPTurns(most int, source func(net.Conn) string) *httpTurns {
	return &httpTurns{most: most, source: source, of: map[string]*httpSource{}}
}

// limit has requests wait for their turn.
func (t *httpTurns) limit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := t.come(r)
		defer t.leave(s)
		probe := r.URL.Path == "/healthz" || r.URL.Path == "/readyz"
		switch err := s.wait(r.Context()); {
		case errors.Is(err, errHTTPWaiting):
			w.Header().Set("Connection", "close")
			if !probe { // whose answer costs no more than this one
				w.Header().Set("Retry-After", "2")
				http.Error(w, err.Error(), http.StatusTooManyRequests)
				return
			}
		case err != nil:
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
		if !probe && r.URL.Path != webpage.EventsPath {
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
		s = &httpSource{pace: rate.NewLimiter(httpPerSecond, httpAtOnce), turn: make(chan struct{}, 1)}
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

var errHTTPWaiting = fmt.Errorf("you ask more than %d times a second, and %d of your requests wait", httpPerSecond, httpWaiting)

// wait waits for the pace behind the requests that came before. The error is errHTTPWaiting,
// or says that the client has gone. Only the next one has a claim on the pace: a claim with
// others behind it could not be given back, and who asks and goes away would have the source
// owe time for long.
func (s *httpSource) wait(ctx context.Context) error {
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > httpWaiting {
		return errHTTPWaiting
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	return s.pace.Wait(ctx)
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
