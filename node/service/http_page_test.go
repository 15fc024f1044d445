package service

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rdsd/rdsd/internal/await"
)

// TestKeptPage: a page is fresh for those who ask now and then, and made a few
// times a second however often it is asked for, all forms together.
func TestKeptPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		p := newKeptPage(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			made++
			w.Header().Set("Content-Type", r.Header.Get("Accept"))
			fmt.Fprint(w, made)
		}))
		get := func(accept string) string {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Accept", accept)
			p.ServeHTTP(w, r)
			return w.Header().Get("Content-Type") + " " + w.Body.String()
		}
		for n := range 10 {
			if got, want := get(""), fmt.Sprintf("%s %d", formText, n+1); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if got, want := get("application/openmetrics-text;version=0.0.1;q=0.5,*/*"), formOpen+" 11"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		begun, last := made, ""
		for range 10_000 { // ten seconds of asking each millisecond, for all forms
			for _, accept := range []string{"application/openmetrics-text", "application/vnd.google.protobuf", "*/*"} {
				last = get(accept)
			}
			time.Sleep(time.Millisecond)
		}
		if n := made - begun; n < 30 || n > pagesAtOnce+10*pagesPerSecond+pageForms {
			t.Errorf("made %d times in 10 s", n)
		}
		time.Sleep(10 * time.Second)
		if got := get("*/*"); got == last {
			t.Errorf("an old page after a rest: %q", got)
		}
	})
}

// TestKeptPageForAll: a request that asks for some metrics alone gets all of them, and so
// does who is served the page that it has made.
func TestKeptPageForAll(t *testing.T) {
	reg := prometheus.NewRegistry()
	for _, name := range []string{"one", "two"} {
		reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: name}))
	}
	synctest.Test(t, func(t *testing.T) {
		p := newKeptPage(promhttp.HandlerFor(reg, metricsOptions))
		for range 2 * pagesAtOnce { // no time passes: the last is served again from some time on
			for _, query := range []string{"?name[]=one", ""} {
				w := httptest.NewRecorder()
				p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics"+query, nil))
				if s := w.Body.String(); !strings.Contains(s, "one 0") || !strings.Contains(s, "two 0") {
					t.Fatalf("to %q: %s", query, s)
				}
			}
		}
	})
}

// TestKeptPageFailed: an error is served and not kept.
func TestKeptPageFailed(t *testing.T) {
	fail := true
	p := newKeptPage(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fail {
			http.Error(w, "no", http.StatusInternalServerError)
		}
	}))
	for _, want := range []int{500, 200} {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != want {
			t.Errorf("status %d, want %d", w.Code, want)
		}
		fail = false
	}
}

// TestNewcomersAreRead: where there are too many connections to the page, the oldest that
// is silent makes room. One that has asked and was not read yet is not silent, unless all
// that are looked at have asked.
func TestNewcomersAreRead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const most = 3
	table := newConnTable(most, sourceOf)
	var ours []net.Conn
	come := func(asks bool) {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		if ours = append(ours, s); asks {
			io.WriteString(c, "GET /healthz HTTP/1.1\r\n")
			await.Until(t, 5*time.Second, "its request is there", func() bool { return hasUnread(s) })
		}
		table.changed(s, http.StateNew)
	}
	gone := func() (l []int) {
		for i, c := range ours {
			if _, ok := table.at[c]; !ok {
				l = append(l, i)
			}
		}
		return l
	}
	come(true)
	come(false)
	come(true)
	if l := gone(); l != nil {
		t.Fatalf("%v made room for nobody", l)
	}
	for i, want := range [][]int{{1}, {0, 1}, {0, 1, 2}} {
		come(true) // number 3 and on: all have asked when 1 is gone
		if l := gone(); !slices.Equal(l, want) {
			t.Fatalf("newcomer %d: %v are gone, want %v", i, l, want)
		}
	}
	// 3, 4 and 5 are left. One at work is no candidate while others are there.
	table.changed(ours[3], http.StateActive)
	come(false) // for 4, the oldest that has asked
	come(true)  // for 6, which is silent
	if l := gone(); !slices.Equal(l, []int{0, 1, 2, 4, 6}) {
		t.Errorf("%v are gone", l)
	}
}

// TestMetricsUnderStrangeNames: metrics name peers and users, and so are told under names
// of this node alone; probes are answered under any.
func TestMetricsUnderStrangeNames(t *testing.T) {
	at := startPage(t)
	self, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{at: 200, "localhost:1": 200, "[::1]": 200, "10.9.8.7:16386": 200, self: 200, strings.ToUpper(self) + ".:16386": 200,
		"evil.example": 421, self + ".evil.example": 421, "127.0.0.1.evil.example:16386": 421} {
		for path, code := range map[string]int{"/metrics": want, "/healthz": 200, "/readyz": 200} {
			req, err := http.NewRequest("GET", "http://"+at+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			r, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r.Body)
			r.Body.Close()
			if err != nil || r.StatusCode != code || code != 200 && (strings.Contains(string(b), "rdsd_") || !strings.Contains(string(b), "http.names")) {
				t.Errorf("%s as %s: %d %.100s (%v), want %d", path, host, r.StatusCode, b, err, code)
			}
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
