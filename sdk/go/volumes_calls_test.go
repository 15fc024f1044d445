package rdsd

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// recordedCalls stands for the connection to a daemon: it keeps what it was asked
// for, and answers with a message that has every field set.
type recordedCalls struct {
	grpc.ClientConnInterface
	method string
	req    proto.Message
	edit   func(answer any)
}

func (c *recordedCalls) Invoke(_ context.Context, method string, req, answer any, _ ...grpc.CallOption) error {
	c.method, c.req = method[strings.LastIndexByte(method, '/')+1:], proto.Clone(req.(proto.Message))
	fill(answer.(proto.Message).ProtoReflect())
	if c.edit != nil {
		c.edit(answer)
	}
	return nil
}

// Every call reaches the method of its name with every argument it was given, and
// what it returns is what the daemon has answered.
func TestEveryVolumeCallSaysAll(t *testing.T) {
	conn := &recordedCalls{}
	v := &Volumes{rdsdv1.NewVolumeServiceClient(conn)}
	ctx := context.Background()
	spec := PathSpec{Src: "10.0.0.1", Dst: "10.0.0.7:9", Transport: TransportIB}
	path := rdsdv1.VolumePathSpec_builder{Source: "10.0.0.1", Destination: "10.0.0.7:9", Transport: "ib"}.Build()
	onPath := rdsdv1.VolumePathRequest_builder{Session: "s", Path: path}.Build()
	wait := rdsdv1.VolumePathRequest_builder{Session: "s", Path: path, Wait: true}.Build()
	disk, sess := "disk", "m"
	for _, c := range []struct {
		method string
		call   func() (any, error)
		req    proto.Message
	}{
		{"Unexport", func() (any, error) { return true, v.Unexport(ctx, "disk", true) },
			rdsdv1.VolumeUnexportRequest_builder{Name: "disk", Force: true}.Build()},
		{"ForceClose", func() (any, error) { return true, v.ForceClose(ctx, "disk", "s") },
			rdsdv1.VolumeForceCloseRequest_builder{Export: "disk", Session: "s"}.Build()},
		{"Unmap", func() (any, error) { return true, v.Unmap(ctx, "m", true) },
			rdsdv1.VolumeUnmapRequest_builder{Mapping: "m", Force: true}.Build()},
		{"Remap", func() (any, error) { return v.Remap(ctx, "m") }, rdsdv1.VolumeRemapRequest_builder{Mapping: "m"}.Build()},
		{"List", func() (any, error) { e, _, err := v.List(ctx); return e, err }, &rdsdv1.VolumeListRequest{}},
		{"List", func() (any, error) { _, m, err := v.List(ctx); return m, err }, &rdsdv1.VolumeListRequest{}},
		{"Get", func() (any, error) { return v.Mapping(ctx, "m") }, rdsdv1.VolumeGetRequest_builder{Mapping: &sess}.Build()},
		{"Info", func() (any, error) {
			return v.Info(ctx, MapSpec{Node: "n", Name: "disk", Session: "s", Paths: []PathSpec{spec}})
		}, rdsdv1.VolumeInfoRequest_builder{Node: "n", Name: "disk", Session: "s", Path: []*rdsdv1.VolumePathSpec{path}}.Build()},
		{"Resize", func() (any, error) { return v.ResizeExport(ctx, "disk", 9) },
			rdsdv1.VolumeResizeRequest_builder{Export: &disk, SizeBytes: 9}.Build()},
		{"Resize", func() (any, error) { return v.GrowExport(ctx, "disk", 9) },
			rdsdv1.VolumeResizeRequest_builder{Export: &disk, SizeBytes: 9, GrowOnly: true}.Build()},
		{"Resize", func() (any, error) { return v.ResizeMapping(ctx, "m", 9) },
			rdsdv1.VolumeResizeRequest_builder{Mapping: &sess, SizeBytes: 9}.Build()},
		{"Check", func() (any, error) { return v.Check(ctx, "m") }, rdsdv1.VolumeCheckRequest_builder{What: "m"}.Build()},
		{"ListSessions", func() (any, error) { return v.Sessions(ctx) }, &rdsdv1.VolumeListSessionsRequest{}},
		{"ListPaths", func() (any, error) { return v.Paths(ctx, "s") }, rdsdv1.VolumeListPathsRequest_builder{Session: "s"}.Build()},
		{"AddPath", func() (any, error) { return v.AddPath(ctx, "s", spec) }, onPath},
		{"RemovePath", func() (any, error) { return true, v.RemovePath(ctx, "s", spec) }, onPath},
		{"RemovePath", func() (any, error) { return true, v.RemovePath(ctx, "s", spec, UntilDone()) }, wait},
		{"AddPath", func() (any, error) { return v.AddPath(ctx, "s", spec, UntilDone()) }, wait},
		{"DisconnectPath", func() (any, error) { return true, v.DisconnectPath(ctx, "s", spec) }, onPath},
		{"ReconnectPath", func() (any, error) { return true, v.ReconnectPath(ctx, "s", spec) }, onPath},
		{"SetPolicy", func() (any, error) { return true, v.SetPolicy(ctx, "s", PolicyMinLatency) },
			rdsdv1.VolumeSetPolicyRequest_builder{Session: "s", Policy: rdsdv1.VolumePolicy_VOLUME_POLICY_MIN_LATENCY, PolicyName: "min-latency"}.Build()},
		{"SetSession", func() (any, error) {
			return v.SetSession(ctx, "s", SessionChange{Policy: "rr", Unfenced: UnfencedNow, UnfencedAfter: 5, MaxReconnectAttempts: -1})
		}, rdsdv1.VolumeSetSessionRequest_builder{Session: "s", PolicyName: "rr", Unfenced: rdsdv1.VolumeUnfenced_VOLUME_UNFENCED_NOW, UnfencedAfterNs: 5, MaxReconnectAttempts: -1}.Build()},
		{"ResetStats", func() (any, error) { return true, v.ResetStats(ctx, "s", spec) },
			rdsdv1.VolumeResetStatsRequest_builder{Session: "s", Path: path}.Build()},
		{"ResetStats", func() (any, error) { return true, v.ResetStats(ctx, "s", PathSpec{Dst: "d"}) },
			rdsdv1.VolumeResetStatsRequest_builder{Session: "s", Path: rdsdv1.VolumePathSpec_builder{Destination: "d"}.Build()}.Build()},
		{"ResetStats", func() (any, error) { return true, v.ResetStats(ctx, "s", PathSpec{}) },
			rdsdv1.VolumeResetStatsRequest_builder{Session: "s"}.Build()},
	} {
		conn.edit = func(answer any) {
			if g, ok := answer.(*rdsdv1.VolumeGetResponse); ok {
				g.ClearExport()
			}
		}
		got, err := c.call()
		if err != nil {
			t.Errorf("%s: %v", c.method, err)
			continue
		}
		if conn.method != c.method || !proto.Equal(conn.req, c.req) {
			t.Errorf("asked %s for {%v}, want %s for {%v}", conn.method, conn.req, c.method, c.req)
		}
		if v := reflect.ValueOf(got); v.IsZero() || v.Kind() == reflect.Slice && v.Len() != 1 {
			t.Errorf("%s returned %+v", c.method, got)
		}
	}
}

// What is asked for one of two things accepts an answer about that one alone.
func TestVolumeGetAnswersWhatWasAsked(t *testing.T) {
	conn := &recordedCalls{}
	v := &Volumes{rdsdv1.NewVolumeServiceClient(conn)}
	ctx := context.Background()
	conn.edit = func(a any) { a.(*rdsdv1.VolumeGetResponse).ClearMapping() }
	e, err := v.ExportNamed(ctx, "disk")
	if err != nil || e.Name == "" || conn.req.(*rdsdv1.VolumeGetRequest).GetExport() != "disk" {
		t.Errorf("%+v, %v after %v", e, err, conn.req)
	}
	if m, err := v.Mapping(ctx, "m"); m != nil || !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("asked for a mapping and given an export: %+v, %v", m, err)
	}
	conn.edit = func(a any) { a.(*rdsdv1.VolumeGetResponse).ClearExport() }
	if e, err := v.ExportNamed(ctx, "disk"); e != nil || !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("asked for an export and given a mapping: %+v, %v", e, err)
	}
}

// What another node says of a volume arrives whole; without a description of it the
// rest does.
func TestVolumeInfoIsWhole(t *testing.T) {
	conn := &recordedCalls{}
	v := &Volumes{rdsdv1.NewVolumeServiceClient(conn)}
	r, err := v.Info(context.Background(), MapSpec{})
	if err != nil {
		t.Fatal(err)
	}
	nonZero(t, "RemoteVolume", reflect.ValueOf(*r))
	conn.edit = func(a any) { a.(*rdsdv1.VolumeInfoResponse).ClearInfo() }
	if r, err = v.Info(context.Background(), MapSpec{}); err != nil || r.Name == "" || r.Info != (VolumeInfo{}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// Optional parts of an answer that are not there stay nil, and what cannot be read is
// left out: an odd daemon breaks no client.
func TestVolumeAnswersWithGaps(t *testing.T) {
	m := mappingFromProto(&rdsdv1.VolumeMapping{})
	if m.Info != nil || m.Address != nil || len(m.Paths) != 0 {
		t.Errorf("a mapping of nothing: %+v", m)
	}
	e := &rdsdv1.VolumeExport{}
	e.SetAllowAddress([]string{"10.0.0.0/8", "nonsense", "fd00::/8"})
	if got := exportFromProto(e); got.Info != nil || len(got.AllowAddresses) != 2 || got.AllowAddresses[1].String() != "fd00::/8" {
		t.Errorf("an export with an odd address: %+v", got)
	}
}

func TestVolumeOp(t *testing.T) {
	for _, c := range []struct {
		op       VolumeOp
		inFlight uint64
		mean     time.Duration
	}{
		{VolumeOp{}, 0, 0},
		{VolumeOp{Submitted: 5, Completed: 3, Time: 7 * time.Second}, 2, 7 * time.Second / 3},
		{VolumeOp{Submitted: 1, Completed: 1, Time: time.Second}, 0, time.Second},
		{VolumeOp{Submitted: 2, Time: time.Second}, 2, 0},
		{VolumeOp{Submitted: 1, Completed: 2, Time: 4}, 0, 2}, // counted in between
	} {
		if n, d := c.op.InFlight(), c.op.Mean(); n != c.inFlight || d != c.mean {
			t.Errorf("%+v: %d in flight, mean %v; want %d, %v", c.op, n, d, c.inFlight, c.mean)
		}
	}
}
