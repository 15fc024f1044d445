package node

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxHTTPConns bounds the monitoring page's connections (M2).
const maxHTTPConns = 64

// httpFront serves /metrics, /healthz, /readyz and a page that lists them.
type httpFront struct {
	srv      *http.Server
	listener net.Listener
}

// status of a node, for /readyz and the index page.
type nodeStatus struct {
	Version string
	State   string // "starting", "serving", "draining"
	Ready   bool
	Pprof   bool
}

func listenHTTP(c *HTTPConfig, reg *prometheus.Registry, state func() nodeStatus) (*httpFront, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen %s: %w", c.Listen, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := state()
		if !s.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, s.State)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		s := state()
		s.Pprof = c.Pprof
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_ = indexPage.Execute(w, s) // the client has gone away
	})
	if c.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return &httpFront{
		listener: newLimitListener(l, maxHTTPConns),
		srv: &http.Server{
			Handler:           mux,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
	}, nil
}

func (h *httpFront) serve() error {
	if err := h.srv.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop ends the page; requests under way have until ctx ends.
func (h *httpFront) stop(ctx context.Context) {
	if h.srv.Shutdown(ctx) != nil {
		h.srv.Close()
	}
}

var indexPage = template.Must(template.New("index").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rdsd</title>
<style>body{font:16px/1.5 sans-serif;max-width:40em;margin:2em auto;padding:0 1em}</style></head>
<body><h1>rdsd {{.Version}}</h1>
<p>Reliable datagrams between nodes. This node is <strong>{{.State}}</strong>.</p>
<ul>
<li><a href="/metrics">/metrics</a>: counters and histograms for Prometheus</li>
<li><a href="/healthz">/healthz</a>: the process answers</li>
<li><a href="/readyz">/readyz</a>: 200 while the node serves, 503 while it starts or drains</li>
{{if .Pprof}}<li><a href="/debug/pprof/">/debug/pprof/</a>: profiles</li>
{{end}}</ul>
<p>Peers, sockets and queues: <code>rdsd status</code>, <code>rdsd peers</code>, <code>rdsd sockets</code>.</p>
</body></html>
`))
