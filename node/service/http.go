package service

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/config"
	webpage "github.com/rdsd/rdsd/node/page"
)

// Bounds of the page for monitoring. Silent connections cost a descriptor and
// nothing else: a request takes its slot when its header is there, and where there are
// too many connections the oldest one that has said nothing makes room.
const (
	maxHTTPConns    = 256
	maxHTTPRequests = 16
	httpWrite       = 20 * time.Second // for a client to read its answer
	httpProfile     = 5 * time.Minute  // and a profile, which takes as long as it was asked for
)

// Page serves /metrics, /healthz, /readyz and the page for people.
type Page struct {
	srv      *http.Server
	listener net.Listener
}

// NodeStatus is what a node is about to do, for /readyz.
type NodeStatus struct {
	State string // "starting", "serving", "draining"
	Ready bool
}

// ListenHTTP makes the page for monitoring, of which state tells what the node is about
// to do.
func (f *Front) ListenHTTP(l net.Listener, state func() NodeStatus) *Page {
	return listenHTTP(&f.deps.Config.HTTP, l, f.registry, f.deps.Guard, f.newPage(), state)
}

func listenHTTP(c *config.HTTP, l net.Listener, reg *prometheus.Registry, g *guard.Guard, people *webpage.Page, state func() NodeStatus) *Page {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", people.OfThisNode(newKeptPage(promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true, DisableCompression: true}))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := state()
		if !s.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, s.State)
	})
	mux.Handle("/", people)
	if c.Pprof {
		for path, h := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
			mux.Handle("/debug/pprof/"+path, people.OfThisNode(h))
		}
	}
	conns := &connTable{most: maxHTTPConns, silent: map[net.Conn]*list.Element{}, busy: map[net.Conn]*list.Element{}}
	return &Page{
		listener: l,
		srv: &http.Server{
			Handler:           guardPage(g, limitRequests(mux, maxHTTPRequests)),
			ConnState:         conns.changed,
			ConnContext:       people.ConnContext,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
		},
	}
}

// limitRequests bounds the requests at work, but for those of probes, which must be
// answered as long as the process lives and cost nothing, and streams of events, which
// have a bound of their own.
func limitRequests(h http.Handler, most int) http.Handler {
	slots := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			default:
				http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// connTable bounds the connections of the page.
type connTable struct {
	most int

	mu           sync.Mutex
	silent, busy map[net.Conn]*list.Element // guarded by mu; places in the lists
	quiet, loud  list.List                  // guarded by mu; of net.Conn, oldest first; quiet ones have asked for nothing
}

// changed is http.Server.ConnState. Only who comes costs another its place: a state
// that changes adds nobody.
func (t *connTable) changed(c net.Conn, s http.ConnState) {
	t.mu.Lock()
	t.remove(c)
	var out net.Conn
	switch s {
	case http.StateNew:
		out = t.makeRoom()
		t.silent[c] = t.quiet.PushBack(c)
	case http.StateIdle:
		t.silent[c] = t.quiet.PushBack(c)
	case http.StateActive:
		t.busy[c] = t.loud.PushBack(c)
	}
	t.mu.Unlock()
	if out != nil {
		out.Close() // its own goroutine reports that
	}
}

// makeRoom takes the connection off the lists that goes for one more; nil: there is room.
// Whoever has asked for something and was not read yet is not silent: it is new, and in
// a flood of others its goroutine has had no turn.
func (t *connTable) makeRoom() (out net.Conn) {
	if t.quiet.Len()+t.loud.Len() < t.most {
		return nil
	}
	e := t.quiet.Front()
	for n := 0; e != nil && n < unreadLook && hasUnread(e.Value.(net.Conn)); n++ {
		e = e.Next()
	}
	if e == nil {
		e = t.quiet.Front()
	}
	if e == nil {
		e = t.loud.Front()
	}
	out = e.Value.(net.Conn)
	t.remove(out)
	return out
}

// unreadLook bounds the connections that are looked at for one that is silent.
const unreadLook = 32

// hasUnread reports whether something has come on a connection and was not read.
func hasUnread(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	n := 0
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }) // closed: nothing
	}
	return n > 0
}

func (t *connTable) remove(c net.Conn) {
	if e := t.silent[c]; e != nil {
		t.quiet.Remove(e)
		delete(t.silent, c)
	}
	if e := t.busy[c]; e != nil {
		t.loud.Remove(e)
		delete(t.busy, c)
	}
}

// Serve serves until Stop.
func (h *Page) Serve() error {
	if err := h.srv.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close closes the listener of a page that was never served.
func (h *Page) Close() { h.listener.Close() }

// Stop ends the page; requests under way have until ctx ends.
func (h *Page) Stop(ctx context.Context) {
	if h.srv.Shutdown(ctx) != nil {
		h.srv.Close()
	}
}
