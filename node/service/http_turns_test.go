package service

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// connOf is a connection of somebody.
type connOf struct {
	net.Conn
	source string
}

// turnsOfNamed makes turns for connections that say whose they are, and a function that asks.
func turnsOfNamed(most int, h http.HandlerFunc) (t *httpTurns, ask func(ctx context.Context, source, path string) int) {
	t = newHTTPTurns(most, func(c net.Conn) string { return c.(connOf).source })
	limited := t.limit(h)
	return t, func(ctx context.Context, source, path string) int {
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, httptest.NewRequest("GET", path, nil).WithContext(withConn(ctx, connOf{source: source})))
		return w.Code
	}
}

// TestOneSourceLeavesTurnsToOthers: who has its share of requests at work is told so, and
// another source is served beside it until all there may be are at work.
func TestOneSourceLeavesTurnsToOthers(t *testing.T) {
	var wait chan struct{}
	turns, ask := turnsOfNamed(2*httpShare, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-wait
		}
	})
	synctest.Test(t, func(t *testing.T) {
		wait = make(chan struct{})
		for i := range httpShare {
			source := fmt.Sprint("uid ", i)
			for range 2 {
				if got := ask(t.Context(), source, "/quick"); got != 200 {
					t.Fatalf("%s is answered %d before all are at work", source, got)
				}
				go ask(t.Context(), source, "/slow")
				synctest.Wait()
			}
			if got := ask(t.Context(), source, "/quick"); got != 503 {
				t.Errorf("the third request of %s is answered %d", source, got)
			}
			if got := ask(t.Context(), source, "/healthz"); got != 200 {
				t.Errorf("a probe of %s is answered %d", source, got)
			}
		}
		if got := ask(t.Context(), "late", "/quick"); got != 503 {
			t.Errorf("with all at work another is answered %d", got)
		}
		close(wait)
		synctest.Wait()
		if got := ask(t.Context(), "uid 0", "/quick"); got != 200 || turns.atWork != 0 {
			t.Errorf("afterwards: %d, %d at work", got, turns.atWork)
		}
	})
}

// TestSourcesGoAtTheirPace: what a source asks beyond its pace waits, probes too, and no other
// does; who goes away meanwhile is not answered.
func TestSourcesGoAtTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered := 0
		_, ask := turnsOfNamed(maxHTTPRequests, func(http.ResponseWriter, *http.Request) { answered++ })
		begun := time.Now()
		for range httpAtOnce {
			ask(t.Context(), "one", "/metrics")
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("%d requests waited %v", httpAtOnce, took)
		}
		for i := range httpPerSecond {
			ask(t.Context(), "one", []string{"/metrics", "/healthz"}[i%2])
		}
		if took := time.Since(begun).Round(time.Millisecond); took != time.Second {
			t.Errorf("%d more took %v, want a second", httpPerSecond, took)
		}
		begun = time.Now()
		if ask(t.Context(), "another", "/metrics"); time.Since(begun) != 0 {
			t.Errorf("another source waited %v", time.Since(begun))
		}
		was := answered
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if ask(ctx, "one", "/metrics"); answered != was || time.Since(begun) != 0 {
			t.Errorf("who has gone was answered, or waited for %v", time.Since(begun))
		}
	})
}

// TestWhoGoesAwayOwesNothing: requests of clients that went away, before their turn or while
// they waited, cost those behind them nothing.
func TestWhoGoesAwayOwesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered := 0
		_, ask := turnsOfNamed(maxHTTPRequests, func(http.ResponseWriter, *http.Request) { answered++ })
		for range httpAtOnce {
			ask(t.Context(), "one", "/healthz")
		}
		asked := answered
		gone, cancel := context.WithCancel(t.Context())
		for range httpWaiting {
			go ask(gone, "one", "/healthz")
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		for range 10000 {
			ask(gone, "one", "/healthz")
		}
		begun := time.Now()
		if got := ask(t.Context(), "one", "/healthz"); got != 200 || time.Since(begun) > 10*time.Millisecond || answered != asked+1 {
			t.Errorf("%d after %v, with %d answers to who has gone", got, time.Since(begun), answered-asked-1)
		}
	})
}

// TestWaitingOfASourceIsBounded: clients that go away unseen, since they sent a body or a further
// request, have their source wait for little more than a second, and its probes are answered.
func TestWaitingOfASourceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ask := turnsOfNamed(maxHTTPRequests, func(http.ResponseWriter, *http.Request) {})
		for range httpAtOnce + 10000 {
			go ask(t.Context(), "one", "/metrics")
		}
		synctest.Wait()
		begun := time.Now()
		for path, want := range map[string]int{"/metrics": 429, "/healthz": 200, "/readyz": 200} {
			if got := ask(t.Context(), "one", path); got != want || time.Since(begun) != 0 {
				t.Errorf("%s behind all that may wait: %d after %v, want %d at once", path, got, time.Since(begun), want)
			}
		}
		time.Sleep(time.Second / httpPerSecond)
		synctest.Wait()
		if got := ask(t.Context(), "one", "/metrics"); got != 200 || time.Since(begun) > 2*time.Second {
			t.Errorf("behind others: %d after %v", got, time.Since(begun))
		}
	})
}

// TestSourcesAreForgotten: a table of sources that is full is swept of those that owe nothing,
// and has one pace for all others.
func TestSourcesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, ask := turnsOfNamed(maxHTTPRequests, func(http.ResponseWriter, *http.Request) {})
		for i := range httpSources + 10 {
			ask(t.Context(), fmt.Sprint(i), "/")
		}
		if n := len(turns.of); n != httpSources+1 {
			t.Errorf("%d sources are known, want %d and one for the rest", n, httpSources)
		}
		time.Sleep(time.Second) // the pace is free again
		ask(t.Context(), "new", "/")
		if n := len(turns.of); n != 1 {
			t.Errorf("%d sources are known, want the new one", n)
		}
	})
}
