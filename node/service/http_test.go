package service

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdsd/rdsd/node/client/clienttest"
)

// startPage serves a page, and tells where it is.
func startPage(t *testing.T) string {
	t.Helper()
	n := newWorld(t, clienttest.Config(t), world{snap: busySnapshot()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := n.services.ListenHTTP(l, func() NodeStatus { return NodeStatus{State: "serving", Ready: true} })
	done := make(chan error, 1)
	go func() { done <- page.Serve() }() // ends with Stop
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		page.Stop(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func probeAt(t *testing.T, at string) (int, error) {
	t.Helper()
	c := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + at + "/healthz")
	if err != nil {
		return 0, err
	}
	r.Body.Close()
	return r.StatusCode, nil
}

// TestSilentConnectionsBlockNobody: with more of them than there may be, a probe is
// answered at once, and so with requests that never send what they announce.
func TestSilentConnectionsBlockNobody(t *testing.T) {
	for name, says := range map[string]string{"nothing": "", "half a header": "GET / HTTP/1.1\r\nHost:",
		"a body that does not come": "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			at := startPage(t)
			for range maxHTTPConns + 50 {
				c, err := net.Dial("tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				io.WriteString(c, says)
			}
			for range 3 {
				if code, err := probeAt(t, at); err != nil || code != http.StatusOK {
					t.Fatalf("/healthz: %d %v", code, err)
				}
			}
		})
	}
}

// TestSlotsAreForRequests: no more than so many at work, and the probes beside them.
func TestSlotsAreForRequests(t *testing.T) {
	wait := make(chan struct{})
	busy := make(chan struct{}, 2)
	h := newHTTPTurns(2*httpShare, func(net.Conn) string { return "one" }).limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			busy <- struct{}{}
			<-wait
		}
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); srv.Serve(l) }()
	defer func() { srv.Close(); <-served }()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) int {
		r, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Body.Close()
		return r.StatusCode
	}
	done := make(chan int, 2)
	for range 2 {
		go func() { done <- get("/slow") }()
		<-busy
	}
	for path, want := range map[string]int{"/other": 503, "/healthz": 200, "/readyz": 200} {
		if got := get(path); got != want {
			t.Errorf("%s beside two requests of two: %d, want %d", path, got, want)
		}
	}
	close(wait)
	for range 2 {
		if got := <-done; got != 200 {
			t.Errorf("a slow request: %d", got)
		}
	}
	if got := get("/other"); got != 200 {
		t.Errorf("afterwards: %d", got)
	}
}

// deadlines is an answer that notes how long it may take to be written.
type deadlines struct {
	*httptest.ResponseRecorder
	write time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.write = at
	return nil
}

// TestAnswersHaveDeadlines holds that each answer is to be written within a time from its request on, so that a client which does not read
// gives its place up, and that profiles, which take as long as was asked for, have another one.
func TestAnswersHaveDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHTTPTurns(1, nil).limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for path, want := range map[string]time.Duration{
			"/":                    httpWrite,
			"/metrics":             httpWrite,
			"/healthz":             httpWrite,
			"/debug/pprof":         httpWrite,
			"/debug/pprof/":        httpProfile,
			"/debug/pprof/profile": httpProfile,
		} {
			w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if got := time.Until(w.write); got != want || w.Code != http.StatusOK {
				t.Errorf("%s may take %v, want %v; status %d", path, got, want, w.Code)
			}
		}
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader("body")))
		if got := time.Until(w.write); got != httpWrite || w.Code != http.StatusBadRequest {
			t.Errorf("a refusal may take %v, want %v; status %d", got, httpWrite, w.Code)
		}
	})
}
