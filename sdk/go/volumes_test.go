package rdsd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// fakeVolumes answers each call with what the test put there, and keeps the
// request. Without an answer it fails with err.
type fakeVolumes struct {
	rdsdv1.UnimplementedVolumeServiceServer
	req    proto.Message
	answer proto.Message
	err    error
	events []*rdsdv1.VolumeEvent
	hold   bool // keep a watch open after the events
}

func answer[T proto.Message](f *fakeVolumes, req proto.Message) (none T, err error) {
	f.req = req
	if f.answer == nil {
		return none, f.err
	}
	return f.answer.(T), nil
}

func (f *fakeVolumes) Export(_ context.Context, r *rdsdv1.VolumeExportRequest) (*rdsdv1.VolumeExport, error) {
	return answer[*rdsdv1.VolumeExport](f, r)
}
func (f *fakeVolumes) ForceClose(_ context.Context, r *rdsdv1.VolumeForceCloseRequest) (*rdsdv1.VolumeForceCloseResponse, error) {
	return answer[*rdsdv1.VolumeForceCloseResponse](f, r)
}

func (f *fakeVolumes) Unexport(_ context.Context, r *rdsdv1.VolumeUnexportRequest) (*rdsdv1.VolumeUnexportResponse, error) {
	return answer[*rdsdv1.VolumeUnexportResponse](f, r)
}
func (f *fakeVolumes) Map(_ context.Context, r *rdsdv1.VolumeMapRequest) (*rdsdv1.VolumeMapping, error) {
	return answer[*rdsdv1.VolumeMapping](f, r)
}
func (f *fakeVolumes) Unmap(_ context.Context, r *rdsdv1.VolumeUnmapRequest) (*rdsdv1.VolumeUnmapResponse, error) {
	return answer[*rdsdv1.VolumeUnmapResponse](f, r)
}
func (f *fakeVolumes) Get(_ context.Context, r *rdsdv1.VolumeGetRequest) (*rdsdv1.VolumeGetResponse, error) {
	return answer[*rdsdv1.VolumeGetResponse](f, r)
}
func (f *fakeVolumes) Resize(_ context.Context, r *rdsdv1.VolumeResizeRequest) (*rdsdv1.VolumeResizeResponse, error) {
	return answer[*rdsdv1.VolumeResizeResponse](f, r)
}
func (f *fakeVolumes) ListPaths(_ context.Context, r *rdsdv1.VolumeListPathsRequest) (*rdsdv1.VolumeListPathsResponse, error) {
	return answer[*rdsdv1.VolumeListPathsResponse](f, r)
}
func (f *fakeVolumes) AddPath(_ context.Context, r *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePath, error) {
	return answer[*rdsdv1.VolumePath](f, r)
}
func (f *fakeVolumes) SetPolicy(_ context.Context, r *rdsdv1.VolumeSetPolicyRequest) (*rdsdv1.VolumeSetPolicyResponse, error) {
	return answer[*rdsdv1.VolumeSetPolicyResponse](f, r)
}
func (f *fakeVolumes) ResetStats(_ context.Context, r *rdsdv1.VolumeResetStatsRequest) (*rdsdv1.VolumeResetStatsResponse, error) {
	return answer[*rdsdv1.VolumeResetStatsResponse](f, r)
}

func (f *fakeVolumes) Watch(r *rdsdv1.VolumeWatchRequest, s grpc.ServerStreamingServer[rdsdv1.VolumeEvent]) error {
	f.req = r
	if f.err != nil {
		return f.err
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	for _, e := range f.events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	if f.hold {
		<-s.Context().Done()
	}
	return nil
}

// newFakeVolumes serves f and returns a client of it.
func newFakeVolumes(t *testing.T, f *fakeVolumes) *Volumes {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(rdsdv1.UnaryErrno), grpc.StreamInterceptor(rdsdv1.StreamErrno))
	rdsdv1.RegisterVolumeServiceServer(server, f)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Stop()
		<-served
	})
	return c.Volumes()
}

func volumeContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A request carries what was asked for, field by field.
func TestVolumeRequests(t *testing.T) {
	f := &fakeVolumes{answer: &rdsdv1.VolumeMapping{}}
	v := newFakeVolumes(t, f)
	ctx := volumeContext(t)
	_, err := v.Map(ctx, MapSpec{
		Node: "10.0.0.7:9", Name: "disk", ID: "m", Attach: AttachNBD, SocketPath: "/s", Device: "/dev/nbd3", Session: "a-b",
		Paths: []PathSpec{{Src: "10.0.0.1", Dst: "10.0.0.7"}, {Dst: "10.1.0.7:9"}}, Policy: "ml", QueueDepth: 64, Access: AccessMigration,
		IOTimeout: time.Second, LossTimeout: time.Minute, OnLoss: OnLossError, Persist: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := func(src, dst string) *rdsdv1.VolumePathSpec {
		return rdsdv1.VolumePathSpec_builder{Source: src, Destination: dst}.Build()
	}
	same(t, f.req, rdsdv1.VolumeMapRequest_builder{
		Node: "10.0.0.7:9", Name: "disk", Id: "m", Attach: rdsdv1.VolumeAttach_VOLUME_ATTACH_NBD, SocketPath: "/s", Device: "/dev/nbd3", Session: "a-b",
		Path:   []*rdsdv1.VolumePathSpec{path("10.0.0.1", "10.0.0.7"), path("", "10.1.0.7:9")},
		Policy: rdsdv1.VolumePolicy_VOLUME_POLICY_NAMED, PolicyName: "ml", QueueDepth: 64, Access: rdsdv1.VolumeAccess_VOLUME_ACCESS_MIGRATION,
		IoTimeoutNs: 1e9, LossTimeoutNs: 60e9, OnLoss: rdsdv1.VolumeOnLoss_VOLUME_ON_LOSS_ERROR, Persist: true,
	}.Build())

	f.answer = &rdsdv1.VolumeExport{}
	_, err = v.Export(ctx, ExportSpec{Name: "disk", Kind: KindFile, Path: "/d", Size: 1 << 20, Create: true, ReadOnly: true, Shared: true,
		LogicalBlock: 4096, AllowAddresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, AllowSessions: []string{"a*"}, Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	same(t, f.req, rdsdv1.VolumeExportRequest_builder{Name: "disk", Kind: rdsdv1.VolumeKind_VOLUME_KIND_FILE, Path: "/d", SizeBytes: 1 << 20,
		Create: true, ReadOnly: true, Shared: true, LogicalBlockBytes: 4096, AllowAddress: []string{"10.0.0.0/8"},
		AllowSession: []string{"a*"}, Persist: true}.Build())

	f.answer = rdsdv1.VolumePath_builder{Source: "a", State: rdsdv1.VolumePathState_VOLUME_PATH_STATE_CONNECTED}.Build()
	p, err := v.AddPath(ctx, "a-b", PathSpec{Src: "x", Dst: "y"})
	if err != nil || p.Src != "a" || p.State != PathConnected {
		t.Errorf("%+v, %v", p, err)
	}
	same(t, f.req, rdsdv1.VolumePathRequest_builder{Session: "a-b", Path: path("x", "y")}.Build())

	f.answer = &rdsdv1.VolumeResetStatsResponse{}
	if err := v.ResetStats(ctx, "", PathSpec{}); err != nil || f.req.(*rdsdv1.VolumeResetStatsRequest).HasPath() {
		t.Errorf("reset of all: %v, %v", f.req, err)
	}
	f.answer = rdsdv1.VolumeResizeResponse_builder{SizeBytes: 7}.Build()
	if n, err := v.ResizeMapping(ctx, "v1", 7); n != 7 || err != nil || !f.req.(*rdsdv1.VolumeResizeRequest).HasMapping() {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := v.ResizeExport(ctx, "disk", 7); n != 7 || err != nil || !f.req.(*rdsdv1.VolumeResizeRequest).HasExport() {
		t.Errorf("%d, %v", n, err)
	}
}

func same(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("the request is\n%v, want\n%v", got, want)
	}
}

// Every field of an answer arrives: no field of a full message leaves one of the
// SDK's at zero.
func TestVolumeAnswersAreWhole(t *testing.T) {
	full := func(m proto.Message) {
		fill(m.ProtoReflect())
	}
	e, m, s, p := &rdsdv1.VolumeExport{}, &rdsdv1.VolumeMapping{}, &rdsdv1.VolumeSession{}, &rdsdv1.VolumePath{}
	i, ev := &rdsdv1.VolumeFinding{}, &rdsdv1.VolumeEvent{}
	for _, x := range []proto.Message{e, m, s, p, i, ev} {
		full(x)
	}
	e.SetAllowAddress([]string{"10.0.0.0/8"})
	e.GetUser()[0].SetPeer([]byte{10, 0, 0, 1})
	for _, x := range []any{*exportFromProto(e), *mappingFromProto(m), sessionFromProto(s), pathFromProto(p), findingFromProto(i), *eventFromProto(ev)} {
		nonZero(t, reflect.TypeOf(x).Name(), reflect.ValueOf(x))
	}
}

func nonZero(t *testing.T, name string, v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[error]():
		if v.IsZero() {
			t.Errorf("%s is empty", name)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			t.Errorf("%s is nil", name)
			return
		}
		nonZero(t, name, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			nonZero(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Slice:
		if v.Len() == 0 {
			t.Errorf("%s is empty", name)
			return
		}
		nonZero(t, name+"[0]", v.Index(0))
	default:
		if v.IsZero() {
			t.Errorf("%s is zero", name)
		}
	}
}

// A refusal is told before the daemon is asked, or is the daemon's own.
func TestVolumeErrors(t *testing.T) {
	f := &fakeVolumes{}
	v := newFakeVolumes(t, f)
	ctx := volumeContext(t)
	for errno, sentinel := range map[syscall.Errno]error{syscall.ENOENT: rdserr.ErrNotFound, syscall.EEXIST: rdserr.ErrExists,
		syscall.EBUSY: rdserr.ErrBusy, syscall.EACCES: rdserr.ErrPerm, syscall.EPERM: rdserr.ErrOwned, syscall.EROFS: rdserr.ErrReadOnly,
		syscall.ENOSPC: rdserr.ErrNoSpace, syscall.ETIMEDOUT: rdserr.ErrTimeout} {
		f.err = rdserr.With(rdserr.FromErrno(errno).(*rdserr.Error), "the reason")
		err := v.Unmap(ctx, "v1", false)
		if !errors.Is(err, sentinel) || !errors.Is(err, errno) || err.Error() != "rdsd: unmap: the reason" {
			t.Errorf("%v became %v", errno, err)
		}
	}
	f.req, f.err = nil, nil
	for what, call := range map[string]func() error{
		"the access is":  func() error { _, err := v.Map(ctx, MapSpec{Access: "w"}); return err },
		"the attachment": func() error { _, err := v.Map(ctx, MapSpec{Attach: "iscsi"}); return err },
		"on loss":        func() error { _, err := v.Map(ctx, MapSpec{OnLoss: "panic"}); return err },
		"the kind is":    func() error { _, err := v.Export(ctx, ExportSpec{Kind: "tape"}); return err },
		"no policy":      func() error { return v.SetPolicy(ctx, "s", "") },
	} {
		if err := call(); !errors.Is(err, rdserr.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if f.req != nil {
		t.Errorf("the daemon was asked: %v", f.req)
	}
	f.answer = &rdsdv1.VolumeGetResponse{}
	if _, err := v.Mapping(ctx, "v1"); !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("an answer without the mapping: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := v.Unmap(done, "v1", true); !errors.Is(err, context.Canceled) || !errors.Is(err, rdserr.ErrCanceled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

func TestVolumeWatch(t *testing.T) {
	gap := rdsdv1.VolumeEvent_builder{Number: 4, Kind: rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_GAP, Count: 3}.Build()
	lost := rdsdv1.VolumeEvent_builder{Number: 5, UnixNs: 1e9, Kind: rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_ERROR, Errno: 5, Error: "medium"}.Build()
	odd := rdsdv1.VolumeEvent_builder{Number: 6, Instance: 9, Kind: 99, Errno: int32(syscall.EXDEV), Error: "odd"}.Build()
	f := &fakeVolumes{events: []*rdsdv1.VolumeEvent{gap, lost, odd}}
	v := newFakeVolumes(t, f)
	var got []*VolumeEvent
	var end error
	for e, err := range v.Watch(volumeContext(t), WatchAfter(1), WatchOf(8)) {
		if end = err; err == nil {
			got = append(got, e)
		}
	}
	if len(got) != 3 || got[0].Kind != EventGap || got[0].Count != 3 || got[0].Err != nil ||
		got[1].Time.Unix() != 1 || !errors.Is(got[1].Err, rdserr.ErrIO) || got[1].Err.Error() != "medium" ||
		got[2].Kind != "unknown (99)" || got[2].Instance != 9 || !errors.Is(got[2].Err, syscall.EXDEV) {
		t.Errorf("events %+v", got)
	}
	if !errors.Is(end, rdserr.ErrShutdown) {
		t.Errorf("the end of the daemon is %v", end)
	}
	if r := f.req.(*rdsdv1.VolumeWatchRequest); r.GetAfter() != 1 || r.GetKept() || r.GetInstance() != 8 {
		t.Errorf("asked for %v", r)
	}

	// Leaving the loop ends the stream; the test would leak it otherwise.
	f.hold = true
	for range v.Watch(volumeContext(t), WatchKept()) {
		break
	}
	if r := f.req.(*rdsdv1.VolumeWatchRequest); r.GetAfter() != 0 || !r.GetKept() {
		t.Errorf("asked for %v", r)
	}
	f.err = rdserr.With(rdserr.ErrNotSupported, "no volumes here")
	for _, err := range v.Watch(volumeContext(t)) {
		if !errors.Is(err, rdserr.ErrNotSupported) {
			t.Errorf("a refused watch: %v", err)
		}
	}
}
