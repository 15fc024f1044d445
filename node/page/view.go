package page

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
)

// encoding is how messages are written: with the names of the .proto files, and with
// what is empty, so that a reader need not know the defaults.
var encoding = protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}

// A topic is a view of the node that takes no parameter, so that one serves all.
type topic struct {
	name  string
	path  string        // below /api/v1/
	every time.Duration // how often a stream gets a new one, at most
	get   func(*Deps, context.Context) (proto.Message, error)
}

// topics are the views that can be asked for one at a time and as events.
var topics = []topic{
	{"status", "status", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.GetStatus(ctx, &rdsdv1.GetStatusRequest{})
	}},
	{"peers", "peers", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.ListPeers(ctx, &rdsdv1.ListPeersRequest{})
	}},
	{"sockets", "sockets", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.ListSockets(ctx, &rdsdv1.ListSocketsRequest{})
	}},
	{"counters", "counters", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.GetCounters(ctx, &rdsdv1.GetCountersRequest{})
	}},
	{"congestion", "congestion", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.ListCongestion(ctx, &rdsdv1.ListCongestionRequest{})
	}},
	{"history", "congestion/history", 2 * time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.GetCongestionHistory(ctx, &rdsdv1.GetCongestionHistoryRequest{})
	}},
	{"maps", "congestion/maps", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Admin.ListCongestionMaps(ctx, &rdsdv1.ListCongestionMapsRequest{})
	}},
	{"volumes", "volumes", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Volumes.List(ctx, &rdsdv1.VolumeListRequest{})
	}},
	{"sessions", "volumes/sessions", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Volumes.ListSessions(ctx, &rdsdv1.VolumeListSessionsRequest{})
	}},
	{"paths", "volumes/paths", time.Second, func(d *Deps, ctx context.Context) (proto.Message, error) {
		return d.Volumes.ListPaths(ctx, &rdsdv1.VolumeListPathsRequest{})
	}},
}

// topicNumber finds a topic by its name, -1: there is none.
func topicNumber(name string) int {
	for i := range topics {
		if topics[i].name == name {
			return i
		}
	}
	return -1
}

// A snapshot is a message as it is sent. Its bytes do not change, and are charged until
// the last who holds it has let it go.
type snapshot struct {
	body    []byte
	made    time.Time
	cost    time.Duration // of making it
	refs    atomic.Int32
	account *quota.Account
}

func (s *snapshot) hold() *snapshot {
	s.refs.Add(1)
	return s
}

func (s *snapshot) drop() {
	if s != nil && s.refs.Add(-1) == 0 {
		s.account.Give(quota.Page, int64(len(s.body)))
		s.body = nil
	}
}

// encode makes a snapshot of a message, which its caller holds. A status is small, and says what is
// wrong: it is made also where memory is short.
func (p *Page) encode(m proto.Message) (*snapshot, error) {
	b, err := encoding.Marshal(m)
	if err != nil {
		return nil, err
	}
	take := p.account.Take
	if _, ok := m.(*rdsdv1.Status); ok {
		take = p.account.Sure
	}
	if err := take(quota.Page, int64(len(b))); err != nil {
		return nil, err
	}
	s := &snapshot{body: b, made: time.Now(), account: p.account}
	return s.hold(), nil
}

// viewAge is how old a view may be that somebody who asks gets.
const viewAge = 500 * time.Millisecond

// viewKept is how long a view is kept that nobody asks for again.
var viewKept = 3 * time.Second

// A view is the newest snapshot of a topic.
type view struct {
	page  *Page
	topic *topic

	mu     sync.Mutex  // held while one is made: who comes meanwhile gets that
	newest *snapshot   // guarded by mu; held; nil: none is kept
	forget *time.Timer // guarded by mu
}

// get returns a snapshot that is at most age old, which its caller holds.
func (v *view) get(ctx context.Context, age time.Duration) (*snapshot, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.newest != nil && time.Since(v.newest.made) <= age {
		return v.newest.hold(), nil
	}
	begun := time.Now()
	m, err := v.topic.get(&v.page.Deps, ctx)
	if err != nil {
		return nil, err
	}
	s, err := v.page.encode(m)
	if err != nil {
		return nil, err
	}
	s.cost = time.Since(begun)
	v.newest.drop()
	v.newest = s
	if v.forget == nil {
		v.forget = time.AfterFunc(viewKept, v.lapse)
	} else {
		v.forget.Reset(viewKept)
	}
	return s.hold(), nil
}

// lapse lets go of a view that nobody has asked for in a while.
func (v *view) lapse() {
	defer v.page.Guard.Recover(guard.Page, nil)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.newest != nil && time.Since(v.newest.made) >= viewKept {
		v.newest.drop()
		v.newest = nil
	}
}
