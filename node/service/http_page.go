package service

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of the work that readers of /metrics can ask for: making the page looks
// at every peer, socket and volume, and every user of the node may read it.
const (
	pagesPerSecond = 4
	pagesAtOnce    = 20
	// pageAge is how long pages of all forms take at that rate, so that none is made again before its turn.
	pageAge = pageForms * time.Second / pagesPerSecond
)

// keptPage serves a page that takes work to make. One is made at a time. When
// more are asked for than are made, the last one is served again, which is at
// most pageAge old: nobody waits, and nobody makes the daemon work for them alone.
// So nothing of a request decides what is on the page but the form it asks for.
type keptPage struct {
	make http.Handler
	rate *rate.Limiter

	mu   sync.Mutex
	kept map[string]*madePage // guarded by mu; by form
}

// madePage is a page as it was made.
type madePage struct {
	header http.Header
	status int
	body   bytes.Buffer
	made   time.Time
}

func newKeptPage(h http.Handler) *keptPage {
	return &keptPage{make: h, rate: rate.NewLimiter(pagesPerSecond, pagesAtOnce), kept: map[string]*madePage{}}
}

func (p *keptPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := p.page(pageForm(r.Header.Get("Accept")), r)
	for k, v := range m.header {
		w.Header()[k] = v
	}
	w.WriteHeader(m.status)
	_, _ = w.Write(m.body.Bytes()) // the client has gone away
}

// page returns a page of a form; it is not changed any more.
func (p *keptPage) page(form string, r *http.Request) *madePage {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.rate.AllowN(now, 1) {
		if m := p.kept[form]; m != nil && now.Sub(m.made) <= pageAge {
			return m
		}
		p.rate.ReserveN(now, 1) // made all the same, before its turn: the next one waits for that
	}
	m := &madePage{header: http.Header{}, status: http.StatusOK, made: now}
	own := r.Clone(r.Context())
	own.Header = http.Header{"Accept": {form}}
	own.URL = &url.URL{Path: r.URL.Path} // name[]=... would leave metrics out, for everybody who gets this page
	p.make.ServeHTTP(m, own)
	if m.status == http.StatusOK {
		p.kept[form] = m
	}
	return m
}

func (m *madePage) Header() http.Header         { return m.header }
func (m *madePage) WriteHeader(status int)      { m.status = status }
func (m *madePage) Write(b []byte) (int, error) { return m.body.Write(b) }

// The pageForms forms of a page of metrics. What a client accepts beside them makes no page
// of its own.
const (
	formText     = "text/plain;version=0.0.4"
	formOpen     = "application/openmetrics-text;version=1.0.0"
	formProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"

	pageForms = 3
)

// pageForm is the form that a client prefers: of those it names, the first that
// there is.
func pageForm(accept string) string {
	for part := range strings.SplitSeq(accept, ",") {
		switch kind, _, _ := strings.Cut(strings.TrimSpace(part), ";"); kind {
		case "application/openmetrics-text":
			return formOpen
		case "application/vnd.google.protobuf":
			return formProtobuf
		case "text/plain", "*/*":
			return formText
		}
	}
	return formText
}
