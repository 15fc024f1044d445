package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
)

// get asks a page past the question of who asks.
func get(p *Page, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w
}

// TestQueries: what stands in a request's query is what the API is asked, all of it and
// nothing else; what is no such query is refused, and the API is not asked.
func TestQueries(t *testing.T) {
	p, _ := bare(t)
	a := &noting{}
	p.Admin, p.Volumes = a, a
	for target, want := range map[string]string{
		"peers?local=10.0.0.1":                          `{"local":"CgAAAQ=="}`,
		"peers?remote=10.0.0.2":                         `{"remote":"CgAAAg=="}`,
		"peers?local=10.0.0.1&remote=::ffff:10.0.0.2":   `{"local":"CgAAAQ==","remote":"CgAAAg=="}`,
		"peers?local=&remote=fe80::1":                   `{"remote":"/oAAAAAAAAAAAAAAAAAAAQ=="}`,
		"counters?remote=10.0.0.2":                      `{"remote":"CgAAAg=="}`,
		"congestion/history?endpoint=10.0.0.2:4000":     `{"endpoint":{"address":"CgAAAg==","port":4000}}`,
		"congestion/history?endpoint=":                  `{}`,
		"volumes/paths?session=s1":                      `{"session":"s1"}`,
		"queue":                                         `{}`,
		"queue?kind=send":                               `{"kind":"QUEUE_KIND_SEND"}`,
		"queue?kind=Retrans&limit=7":                    `{"kind":"QUEUE_KIND_RETRANS","limit":7}`,
		"queue?kind=recv&limit=4294967295":              `{"kind":"QUEUE_KIND_RECV","limit":4294967295}`,
		"volumes/get?mapping=m":                         `{"mapping":"m"}`,
		"volumes/get?export=e":                          `{"export":"e"}`,
		"peers?local=10.0.0.1%25eth0":                   "400 local is no address",
		"peers?remote=fe80::1%25eth0":                   "400 remote is no address",
		"peers?local=nowhere":                           "400 local is no address",
		"counters?remote=nowhere":                       "400 remote is no address",
		"counters?local=10.0.0.1":                       "400 there is no parameter",
		"congestion/history?endpoint=10.0.0.2":          "400 endpoint is no address and port",
		"queue?limit=4294967296":                        "400 limit is no number",
		"queue?limit=x":                                 "400 limit is no number",
		"queue?kind=both":                               "400 kind is not known",
		"volumes/get":                                   "400 want one of mapping and export",
		"volumes/get?mapping=a&export=b":                "400 want one of mapping and export",
		"volumes/get?mapping=a&mapping=b":               "400 a parameter stands there twice",
		"queue?limit=" + strings.Repeat("0", 20) + "1":  `{"limit":1}`,
		"volumes/sessions?x=y":                          "400 there is no parameter",
		"page?x=y":                                      "400 there is no parameter",
		"events?topics=status&topics=peers":             "400 a parameter stands there twice",
		"events?topics=status,nothing":                  "400 topics has a name that is not known",
		"nothing/here":                                  "404 there is nothing at /api/v1/nothing/here",
		"congestion/history?endpoint=10.0.0.2:65536":    "400 endpoint is no address and port",
		"congestion/history?endpoint=[fe80::1]:1&kind=": "400 there is no parameter",
	} {
		a.asked = nil
		p.rate.SetBurst(asksAtOnce) // each is the first
		p.rate.SetLimit(1e9)
		w := get(p, Prefix+target)
		if status, why, ok := strings.Cut(want, " "); ok {
			if strconv.Itoa(w.Code) != status || !strings.Contains(w.Body.String(), why) || a.asked != nil {
				t.Errorf("%s: %d %s, and the API was asked %v; want %s", target, w.Code, w.Body, a.asked, want)
			}
			continue
		}
		if a.asked == nil || w.Code != http.StatusOK || w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
			t.Errorf("%s: %d %s, and the API was asked %v", target, w.Code, w.Body, a.asked)
			continue
		}
		compact := encoding
		compact.EmitUnpopulated = false
		b, err := compact.Marshal(a.asked)
		if s := strings.ReplaceAll(string(b), `, "`, `,"`); err != nil || strings.ReplaceAll(strings.ReplaceAll(s, `": `, `":`), " ", "") != want {
			t.Errorf("%s asks %s, want %s", target, b, want)
		}
	}
}

// TestQuestionsAreRationed: so many questions with parameters are answered at once, one
// more is told to come again, and views that all share are not among them.
func TestQuestionsAreRationed(t *testing.T) {
	p, _ := bare(t)
	a := &noting{}
	p.Admin = a
	p.rate.SetLimit(0) // none is added meanwhile
	for n := range asksAtOnce {
		if w := get(p, Prefix+"counters?remote=10.0.0.2"); w.Code != http.StatusOK {
			t.Fatalf("question %d: %d %s", n, w.Code, w.Body)
		}
	}
	a.asked = nil
	for _, target := range []string{"counters?remote=10.0.0.2", "queue", "volumes/get?mapping=m"} {
		w := get(p, Prefix+target)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), strconv.Itoa(asksPerSecond)+" questions") {
			t.Errorf("%s: %d %v %s", target, w.Code, w.Header(), w.Body)
		}
	}
	if a.asked != nil {
		t.Errorf("the API was asked %v all the same", a.asked)
	}
	for _, target := range []string{"counters", "status", "page"} {
		if w := get(p, Prefix+target); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
}

// TestFailures: each refusal of the API has its status of HTTP, its errno and its reason;
// only what passes by itself says when to come again.
func TestFailures(t *testing.T) {
	for err, want := range map[error]int{
		rdserr.ErrInvalid: 400, rdserr.ErrPerm: 403, rdserr.ErrNotFound: 404, rdserr.ErrAddrInUse: 409,
		rdserr.ErrNoMemory: 503, rdserr.ErrTooMany: 503, rdserr.ErrShutdown: 503, rdserr.ErrNotSupported: 501,
		rdserr.ErrRateLimited: 429, context.DeadlineExceeded: 504, errors.New("another"): 500,
	} {
		w := httptest.NewRecorder()
		if e, ok := err.(*rdserr.Error); ok {
			err = rdserr.With(e, "because")
		}
		fail(w, err)
		var answer struct {
			Error struct {
				Status, Errno int
				Message       string
			}
		}
		if e := json.Unmarshal(w.Body.Bytes(), &answer); e != nil {
			t.Fatal(e)
		}
		x := answer.Error
		if w.Code != want || x.Status != want || syscall.Errno(x.Errno) != rdserr.Errno(err) || x.Message == "" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, want)
		}
		if again := w.Header().Get("Retry-After"); (again != "") != (want == 429) {
			t.Errorf("%v: come again after %q", err, again)
		}
	}
}

// TestTargets: an address of the longest length is read, one byte more is not.
func TestTargets(t *testing.T) {
	p, _ := bare(t)
	for _, c := range []struct {
		method, target string
		ok             bool
	}{
		{"GET", "/" + strings.Repeat("x", maxTarget-1), true},
		{"HEAD", "/" + strings.Repeat("x", maxTarget-1), true},
		{"GET", "/" + strings.Repeat("x", maxTarget), false},
		{"GET", "/?" + strings.Repeat("x", maxTarget-1), true},
		{"GET", "/?" + strings.Repeat("x", maxTarget), false},
		{"GET", "/yy?" + strings.Repeat("x", maxTarget-3), true},
		{"GET", "/yy?" + strings.Repeat("x", maxTarget-2), false},
		{"PUT", "/", false},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, c.target, nil)
		r.Host = "localhost"
		if ok := p.fits(w, r); ok != c.ok || ok && w.Body.Len() > 0 {
			t.Errorf("%s of %d bytes: %v %s", c.method, len(c.target), ok, w.Body)
		}
		if (w.Header().Get("Allow") == "GET, HEAD") != (c.method == "PUT") {
			t.Errorf("%s: allowed is %q", c.method, w.Header().Get("Allow"))
		}
	}
}

// TestPageInfo: a page learns what the configuration says to it.
func TestPageInfo(t *testing.T) {
	p, _ := bare(t)
	p.Conf().HTTP.PeerPage, p.Conf().HTTP.Pprof = "http://{address}:16386/", true
	var got map[string]any
	w := get(p, Prefix+"page")
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got["peer_page"] != p.Conf().HTTP.PeerPage || got["pprof"] != true ||
		w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s, %v", w.Body, err)
	}
}

// TestUnknownKind: a file of a type that is not served is not there.
func TestUnknownKind(t *testing.T) {
	assets["/assets/secret.key"] = asset{body: []byte("secret")}
	defer delete(assets, "/assets/secret.key")
	p, _ := bare(t)
	if w := get(p, "/assets/secret.key"); w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w := get(p, "/assets/app.js")
	if w.Code != http.StatusOK || w.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) || w.Header().Get("Cache-Control") != "no-cache" ||
		!strings.HasPrefix(w.Header().Get("Content-Type"), "text/javascript") || w.Body.Len() < 1000 {
		t.Errorf("a script: %d %v, %d bytes", w.Code, w.Header(), w.Body.Len())
	}
}

// TestView: within its age all get the one view there is, after it another is made, and
// the old one is let go when the last who holds it has sent it.
func TestView(t *testing.T) {
	p, f := bare(t)
	v := &p.views[topicNumber("status")]
	ctx := context.Background()
	take := func(age time.Duration) *snapshot {
		t.Helper()
		s, err := v.get(ctx, age)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := take(time.Hour)
	if b := take(time.Hour); b != a || f.asked.Load() != 1 {
		t.Errorf("a second one was made within the age of the first")
	} else {
		b.drop()
	}
	if a.cost <= 0 || time.Since(a.made) > time.Minute {
		t.Errorf("it cost %v and was made %v ago", a.cost, time.Since(a.made))
	}
	a.made = a.made.Add(-time.Minute)
	c := take(time.Second)
	if c == a || f.asked.Load() != 2 || len(a.body) == 0 {
		t.Error("an old one was given, or one that is still held was let go")
	}
	if want := int64(len(a.body) + len(c.body)); p.Memory.Used() != want {
		t.Errorf("%d bytes are charged for two views of %d", p.Memory.Used(), want)
	}
	a.drop()
	if a.body != nil || p.Memory.Used() != int64(len(c.body)) {
		t.Error("what nobody holds is still there")
	}
	// What nobody asked for in a while lapses; what is young does not.
	v.lapse()
	if v.newest != c {
		t.Error("a young view lapsed")
	}
	c.made = c.made.Add(-viewKept)
	v.lapse()
	if v.newest != nil || len(c.body) == 0 {
		t.Error("an old view is kept, or was taken from one who sends it")
	}
	c.drop()
	v.lapse() // nothing is kept
	f.fail = errors.New("not now")
	if s, err := v.get(ctx, time.Hour); err == nil || s != nil {
		t.Errorf("a view that cannot be made: %v", s)
	}
	f.fail = nil
	all := p.Memory.Account(quota.User(1))
	all.Grow(quota.Chunks, 256<<20)
	v = &p.views[topicNumber("counters")] // a status is made all the same
	if s, err := v.get(ctx, time.Hour); !errors.Is(err, rdserr.ErrNoMemory) || s != nil || v.newest != nil {
		t.Errorf("a view that memory has no room for: %v, %v", s, err)
	}
	all.Give(quota.Chunks, 256<<20)
	all.Close()
}
