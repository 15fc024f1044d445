package page

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// noting is a node that keeps what it was asked last.
type noting struct {
	fake
	asked proto.Message
}

func (n *noting) ListPeers(_ context.Context, r *rdsdv1.ListPeersRequest) (*rdsdv1.ListPeersResponse, error) {
	n.asked = r
	return &rdsdv1.ListPeersResponse{}, nil
}
func (n *noting) GetCounters(_ context.Context, r *rdsdv1.GetCountersRequest) (*rdsdv1.GetCountersResponse, error) {
	n.asked = r
	return &rdsdv1.GetCountersResponse{}, nil
}
func (n *noting) GetCongestionHistory(_ context.Context, r *rdsdv1.GetCongestionHistoryRequest) (*rdsdv1.CongestionHistory, error) {
	n.asked = r
	return &rdsdv1.CongestionHistory{}, nil
}
func (n *noting) ListQueue(_ context.Context, r *rdsdv1.ListQueueRequest) (*rdsdv1.ListQueueResponse, error) {
	n.asked = r
	return &rdsdv1.ListQueueResponse{}, nil
}
func (n *noting) ListPaths(_ context.Context, r *rdsdv1.VolumeListPathsRequest) (*rdsdv1.VolumeListPathsResponse, error) {
	n.asked = r
	return &rdsdv1.VolumeListPathsResponse{}, nil
}
func (n *noting) Get(_ context.Context, r *rdsdv1.VolumeGetRequest) (*rdsdv1.VolumeGetResponse, error) {
	n.asked = r
	return &rdsdv1.VolumeGetResponse{}, nil
}

// TestParameters: each parameter of a request is a field of the message that is asked for.
func TestParameters(t *testing.T) {
	s := serve(t, "tcp")
	n := &noting{}
	s.Admin, s.Volumes = n, n
	a2, a7 := netip.MustParseAddr("10.0.0.2").AsSlice(), netip.MustParseAddr("10.0.0.7").AsSlice()
	peers := &rdsdv1.ListPeersRequest{}
	peers.SetLocal(a2)
	peers.SetRemote(a7)
	counters := &rdsdv1.GetCountersRequest{}
	counters.SetRemote(a7)
	history := &rdsdv1.GetCongestionHistoryRequest{}
	history.SetEndpoint(endpointPB(netip.MustParseAddrPort("10.0.0.7:4000")))
	queue := &rdsdv1.ListQueueRequest{}
	queue.SetKind(rdsdv1.QueueKind_QUEUE_KIND_RETRANS)
	queue.SetLimit(17)
	queue.SetLocal(endpointPB(netip.MustParseAddrPort("[fd00::7]:4000")))
	paths := &rdsdv1.VolumeListPathsRequest{}
	paths.SetSession("s 1")
	mapping, export := &rdsdv1.VolumeGetRequest{}, &rdsdv1.VolumeGetRequest{}
	mapping.SetMapping("m/1")
	export.SetExport("e 1")
	want := map[string]proto.Message{
		"peers?local=10.0.0.2&remote=10.0.0.7":             peers,
		"peers?remote=::ffff:10.0.0.7&local=10.0.0.2":      peers,
		"counters?remote=10.0.0.7":                         counters,
		"congestion/history?endpoint=10.0.0.7:4000":        history,
		"queue?kind=Retrans&limit=17&local=[fd00::7]:4000": queue,
		"queue":                       &rdsdv1.ListQueueRequest{},
		"volumes/paths?session=s%201": paths,
		"volumes/get?mapping=m%2F1":   mapping,
		"volumes/get?export=e+1":      export,
	}
	for _, target := range slices.Sorted(maps.Keys(want)) {
		n.asked = nil
		if a, body := s.ask(t, "GET", "/api/v1/"+target); a.StatusCode != 200 {
			t.Errorf("%s: %d %s", target, a.StatusCode, body)
		} else if !proto.Equal(n.asked, want[target]) {
			t.Errorf("%s asks for %v, want %v", target, n.asked, want[target])
		}
	}
}

// TestEventsPace: views of different paces are looked after at the pace of the quickest, and
// what nobody wants is not made.
func TestEventsPace(t *testing.T) {
	s := serve(t, "tcp")
	s.Admin = &noting{}
	status, history, counters := topicNumber("status"), topicNumber("history"), topicNumber("counters")
	looks := &stream{wants: []int{status, history}, wake: make(chan struct{}, 1)}
	h := &hub{page: s.Page, streams: map[*stream]struct{}{looks: {}}}
	r := round{due: make([]time.Time, len(topics)), last: make([]*snapshot, len(topics))}
	wait := h.makeAll(&r)
	if quick := topics[status].every; wait > quick || wait < quick/2 || quick >= topics[history].every {
		t.Errorf("the next look is after %v; the quickest of two views is due after %v", wait, quick)
	}
	if looks.next[status] == nil || looks.next[history] == nil || looks.next[counters] != nil || len(looks.wake) != 1 {
		t.Errorf("given: %v", looks.next)
	}
	r.due[history] = time.Now().Add(50 * time.Millisecond)
	if wait := h.makeAll(&r); wait > 50*time.Millisecond {
		t.Errorf("the next look is after %v; a view is due after 50ms", wait)
	}
	delete(h.streams, looks) // nobody looks: what was kept for the next is let go
	h.makeAll(&r)
	for i, v := range r.last {
		if v != nil {
			t.Errorf("%s is kept for nobody", topics[i].name)
		}
	}
	for _, v := range looks.next {
		v.drop()
	}
}

// TestNameThatChanges: the page is served under the name that the machine has now, and not under one that it had.
func TestNameThatChanges(t *testing.T) {
	var name atomic.Value
	name.Store("localhost.localdomain")
	was := hostName
	t.Cleanup(func() { hostName = was }) // after serve's
	hostName = func() string { return name.Load().(string) }
	s := serve(t, "tcp")
	for _, c := range []struct {
		is, host string
		want     int
	}{{"first", "first", 200}, {"first", "second", 421}, {"second", "second:16386", 200}, {"second", "first", 421}, {"", "second", 421}} {
		name.Store(c.is)
		if a, _ := s.ask(t, "GET", "/", "Host", c.host); a.StatusCode != c.want {
			t.Errorf("a machine called %q is asked as %q: %d, want %d", c.is, c.host, a.StatusCode, c.want)
		}
	}
}
