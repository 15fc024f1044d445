package page

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
)

// Deps is what a page is given.
type Deps struct {
	// Admin and Volumes are what it shows.
	Admin   rdsdv1.AdminServer
	Volumes rdsdv1.VolumeServiceServer
	// As makes a context in which those take id for their caller.
	As func(ctx context.Context, id config.Identity) context.Context
	// Allow counts a call of a user, and refuses it if there are too many.
	Allow func(uid uint32) error

	Conf     func() *config.Config
	Memory   *quota.Node
	Guard    *guard.Guard
	Log      *slog.Logger
	Stopping <-chan struct{} // closed when the node ends: streams end then
}

// Prefix is where the JSON is.
const Prefix = "/api/v1/"

// EventsPath is where the stream of events is. A stream lives as long as its reader
// looks, so it has bounds of its own and counts as none of the requests at work.
const EventsPath = Prefix + "events"

// A Page serves the page of a node and the JSON it is made of.
type Page struct {
	Deps
	account    *quota.Account // of the node, for what all share
	background context.Context
	mux        *http.ServeMux
	views      []view // by topic
	hub        hub
	groups     groupCache
	patience   time.Duration // for a reader of an event

	// Answers to questions with parameters are made for one alone: one at a time, and
	// at most so many a second for all.
	asking sync.Mutex
	rate   *rate.Limiter
}

const (
	asksPerSecond = 20
	asksAtOnce    = 40
)

// New makes a page.
func New(d Deps) *Page {
	p := &Page{Deps: d, patience: patience, account: d.Memory.Account(quota.Holder{}), background: context.Background(), rate: rate.NewLimiter(asksPerSecond, asksAtOnce)}
	p.views = make([]view, len(topics))
	for i := range topics {
		p.views[i].page, p.views[i].topic = p, &topics[i]
	}
	p.hub.page = p
	p.mux = http.NewServeMux()
	for i := range topics {
		p.mux.HandleFunc(Prefix+topics[i].path, func(w http.ResponseWriter, r *http.Request) { p.serveView(w, r, i) })
	}
	p.mux.HandleFunc(Prefix+"queue", p.serveQueue)
	p.mux.HandleFunc(Prefix+"volumes/get", p.serveVolume)
	p.mux.HandleFunc(Prefix+"page", p.servePageInfo)
	p.mux.HandleFunc(EventsPath, p.serveEvents)
	p.mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "there is nothing at "+r.URL.Path+"; docs/api.md lists what there is")
	})
	p.mux.HandleFunc("/", serveAsset)
	return p
}

// ServeHTTP serves the page, its assets and the JSON, to whom may look.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if !p.fits(w, r) {
		return
	}
	id, err := p.caller(r)
	if err != nil {
		p.Log.Warn("page refused", "uid", id.UID, "remote", r.RemoteAddr, "error", err)
		refuse(w, http.StatusForbidden, err.Error())
		return
	}
	if strings.HasPrefix(r.URL.Path, Prefix) {
		if err := p.Allow(id.UID); err != nil {
			fail(w, err)
			return
		}
	}
	p.mux.ServeHTTP(w, r.WithContext(context.WithValue(p.As(r.Context(), id), callerKey{}, id)))
}

// nobody is in whose name views that all share are made: none of them needs a right.
var nobody = config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}

// patience is how long one who reads may take over an event.
const patience = 10 * time.Second
