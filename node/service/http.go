package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/config"
	webpage "github.com/rdsd/rdsd/node/page"
)

// Bounds of the page for monitoring. Silent connections cost a descriptor and
// nothing else: a request takes its slot when its header is there, and where there are
// too many connections whoever has most of them makes room (connTable).
const (
	maxHTTPConns    = 256
	maxHTTPRequests = 64
	httpWrite       = 20 * time.Second // for a client to read its answer
	httpProfile     = 5 * time.Minute  // and a profile, which takes as long as it was asked for
)

// metricsOptions of /metrics. One series that is wrong does not cost all the others.
var metricsOptions = promhttp.HandlerOpts{EnableOpenMetrics: true, DisableCompression: true, ErrorHandling: promhttp.ContinueOnError}

// Page serves /metrics, /healthz, /readyz and the page for people.
type Page struct {
	srv      *http.Server
	listener net.Listener
}

// NodeStatus is what a node is about to do, for /readyz.
type NodeStatus struct {
	State           string // "starting", "serving", "draining"
	Ready, Starting bool
}

// ListenHTTP makes the page for monitoring, of which state tells what the node is about
// to do.
func (f *Front) ListenHTTP(l net.Listener, state func() NodeStatus) *Page {
	return listenHTTP(&f.deps.Config.HTTP, l, f.registry, f.deps.Guard, f.newPage(), state)
}

func listenHTTP(c *config.HTTP, l net.Listener, reg *prometheus.Registry, g *guard.Guard, people *webpage.Page, state func() NodeStatus) *Page {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := state()
		if !s.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, s.State)
	})
	rest := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if s := state(); s.Starting { // what it would be about is not there yet
			http.Error(w, s.State, http.StatusServiceUnavailable)
			return
		}
		rest.ServeHTTP(w, r)
	})
	rest.Handle("GET /metrics", people.OfThisNode(newKeptPage(promhttp.HandlerFor(reg, metricsOptions))))
	rest.Handle("/", people)
	if c.Pprof {
		for path, h := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
			rest.Handle("/debug/pprof/"+path, people.OfThisNode(h))
		}
	}
	conns := newConnTable(maxHTTPConns, sourceOf)
	turns := newHTTPTurns(maxHTTPRequests, conns.sourceOf)
	return &Page{
		listener: l,
		srv: &http.Server{
			Handler:           guardPage(g, turns.limit(mux)),
			ConnState:         conns.changed,
			ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return withConn(people.ConnContext(ctx, c), c) },
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
	}
}

// Serve serves until Stop or Close: while the node starts, probes alone.
func (h *Page) Serve() error {
	if err := h.srv.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the page at once.
func (h *Page) Close() { h.srv.Close() }

// Stop ends the page; requests under way have until ctx ends.
func (h *Page) Stop(ctx context.Context) {
	if h.srv.Shutdown(ctx) != nil {
		h.srv.Close()
	}
}
