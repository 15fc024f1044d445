package node

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestKeptPage: a page is fresh for those who ask now and then, and made a few
// times a second however often it is asked for, of each form.
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
		for range 10_000 { // ten seconds of asking each millisecond
			last = get("*/*")
			time.Sleep(time.Millisecond)
		}
		if n := made - begun; n < 30 || n > pagesAtOnce+10*2*pagesPerSecond {
			t.Errorf("made %d times in 10 s", n)
		}
		time.Sleep(10 * time.Second)
		if got := get("*/*"); got == last {
			t.Errorf("an old page after a rest: %q", got)
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
