package page

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// serveView answers with a view that all share, or, where a topic takes parameters and
// some are given, with a message for this one request.
func (p *Page) serveView(w http.ResponseWriter, r *http.Request, topic int) {
	ask := asks[topics[topic].name]
	q, ok := only(w, r, ask.parameters...)
	if !ok {
		return
	}
	if len(q) > 0 {
		p.answer(w, r, func(ctx context.Context) (proto.Message, error) { return ask.get(p, ctx, q.Get) })
		return
	}
	s, err := p.views[topic].get(r.Context(), viewAge)
	if err != nil {
		fail(w, err)
		return
	}
	defer s.drop()
	write(w, s)
}

// asks are the topics that take parameters.
var asks = map[string]struct {
	parameters []string
	get        func(p *Page, ctx context.Context, value func(string) string) (proto.Message, error)
}{
	"peers": {[]string{"local", "remote"}, func(p *Page, ctx context.Context, value func(string) string) (proto.Message, error) {
		m := &rdsdv1.ListPeersRequest{}
		local, err := addressParameter("local", value("local"))
		if err != nil {
			return nil, err
		}
		remote, err := addressParameter("remote", value("remote"))
		if err != nil {
			return nil, err
		}
		m.SetLocal(local)
		m.SetRemote(remote)
		return p.Admin.ListPeers(ctx, m)
	}},
	"counters": {[]string{"remote"}, func(p *Page, ctx context.Context, value func(string) string) (proto.Message, error) {
		remote, err := addressParameter("remote", value("remote"))
		if err != nil {
			return nil, err
		}
		m := &rdsdv1.GetCountersRequest{}
		m.SetRemote(remote)
		return p.Admin.GetCounters(ctx, m)
	}},
	"maps": {[]string{"remote"}, func(p *Page, ctx context.Context, value func(string) string) (proto.Message, error) {
		remote, err := addressParameter("remote", value("remote"))
		if err != nil {
			return nil, err
		}
		m := &rdsdv1.ListCongestionMapsRequest{}
		m.SetRemote(remote)
		return p.Admin.ListCongestionMaps(ctx, m)
	}},
	"history": {[]string{"endpoint"}, func(p *Page, ctx context.Context, value func(string) string) (proto.Message, error) {
		m := &rdsdv1.GetCongestionHistoryRequest{}
		a, err := endpointParameter("endpoint", value("endpoint"))
		if err != nil {
			return nil, err
		}
		m.SetEndpoint(a)
		return p.Admin.GetCongestionHistory(ctx, m)
	}},
	"paths": {[]string{"session"}, func(p *Page, ctx context.Context, value func(string) string) (proto.Message, error) {
		m := &rdsdv1.VolumeListPathsRequest{}
		m.SetSession(value("session"))
		return p.Volumes.ListPaths(ctx, m)
	}},
}

func addressParameter(name, text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return nil, rdserr.With(rdserr.ErrInvalid, "%s is no address; want one such as 10.0.0.7", name)
	}
	return a.Unmap().AsSlice(), nil
}

// endpointParameter is nil without text.
func endpointParameter(name, text string) (*rdsdv1.Endpoint, error) {
	if text == "" {
		return nil, nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, rdserr.With(rdserr.ErrInvalid, "%s is no address and port; want one such as 10.0.0.7:4000", name)
	}
	return endpointPB(a), nil
}

// queueKinds are the parameter kind of the queue.
var queueKinds = map[string]rdsdv1.QueueKind{
	"":        rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED,
	"send":    rdsdv1.QueueKind_QUEUE_KIND_SEND,
	"retrans": rdsdv1.QueueKind_QUEUE_KIND_RETRANS,
	"recv":    rdsdv1.QueueKind_QUEUE_KIND_RECV,
}

func (p *Page) serveQueue(w http.ResponseWriter, r *http.Request) {
	q, ok := only(w, r, "kind", "limit", "local")
	if !ok {
		return
	}
	p.answer(w, r, func(ctx context.Context) (proto.Message, error) {
		kind, ok := queueKinds[strings.ToLower(q.Get("kind"))]
		if !ok {
			return nil, rdserr.With(rdserr.ErrInvalid, "kind is not known; want send, retrans or recv, or none for all")
		}
		limit := uint64(0)
		if text := q.Get("limit"); text != "" {
			var err error
			if limit, err = strconv.ParseUint(text, 10, 32); err != nil {
				return nil, rdserr.With(rdserr.ErrInvalid, "limit is no number")
			}
		}
		m := &rdsdv1.ListQueueRequest{}
		m.SetKind(kind)
		m.SetLimit(uint32(limit))
		local, err := endpointParameter("local", q.Get("local"))
		if err != nil {
			return nil, err
		}
		m.SetLocal(local)
		return p.Admin.ListQueue(ctx, m)
	})
}

func (p *Page) serveVolume(w http.ResponseWriter, r *http.Request) {
	q, ok := only(w, r, "mapping", "export")
	if !ok {
		return
	}
	p.answer(w, r, func(ctx context.Context) (proto.Message, error) {
		m := &rdsdv1.VolumeGetRequest{}
		switch {
		case q.Has("mapping") == q.Has("export"):
			return nil, rdserr.With(rdserr.ErrInvalid, "want one of mapping and export")
		case q.Has("mapping"):
			m.SetMapping(q.Get("mapping"))
		default:
			m.SetExport(q.Get("export"))
		}
		return p.Volumes.Get(ctx, m)
	})
}

// answer makes a message for one request alone, and sends it.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, get func(context.Context) (proto.Message, error)) {
	if !p.rate.Allow() {
		fail(w, rdserr.With(rdserr.ErrRateLimited, "more than %d questions with parameters a second are asked of the page; wait and try again", asksPerSecond))
		return
	}
	s, err := p.make(r.Context(), get)
	if err != nil {
		fail(w, err)
		return
	}
	defer s.drop()
	write(w, s)
}

func (p *Page) make(ctx context.Context, get func(context.Context) (proto.Message, error)) (*snapshot, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	m, err := get(ctx)
	if err != nil {
		return nil, err
	}
	return p.encode(m)
}

func write(w http.ResponseWriter, s *snapshot) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(s.body)+1))
	if _, err := w.Write(s.body); err == nil {
		_, _ = w.Write([]byte("\n")) // the client has gone away
	}
}

// servePageInfo tells a page what it needs besides what it shows.
func (p *Page) servePageInfo(w http.ResponseWriter, r *http.Request) {
	if _, ok := only(w, r); !ok {
		return
	}
	writeJSON(w, map[string]any{"peer_page": p.Conf().HTTP.PeerPage, "pprof": p.Conf().HTTP.Pprof})
}
