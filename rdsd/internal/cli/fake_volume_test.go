package cli

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
)

// fakeVolumes is the volume service of a daemon with a fixed story: two exports,
// two mappings, one session. Further volumes of the node "store" can be mapped;
// they are memory behind an NBD server of its own.
type fakeVolumes struct {
	rdsdv1.UnimplementedVolumeServiceServer
	socket string
	nbd    *nbd.Server
	slow   *blk.Fault // what the volume slow is in; reads of it take seconds
	served chan error

	mu     sync.Mutex
	mapped map[string]*rdsdv1.VolumeMapping // guarded by mu; by id
	late   map[string]bool                  // guarded by mu; what was to be unmapped once
}

func newFakeVolumes(dir string) (*fakeVolumes, error) {
	f := &fakeVolumes{socket: filepath.Join(dir, "nbd.sock"), mapped: map[string]*rdsdv1.VolumeMapping{}, late: map[string]bool{}, served: make(chan error, 1)}
	var err error
	if f.nbd, err = nbd.NewServer(nbd.Options{}); err != nil {
		return nil, err
	}
	for _, v := range []struct {
		name string
		size uint64
		ro   bool
	}{{"data", 4 << 20, false}, {"one", 4 << 20, false}, {"two", 8 << 20, false}, {"small", 4096, false}, {"frozen", 4 << 20, true}} {
		m, err := blk.NewMem(blk.MemOptions{Size: v.size})
		if err == nil {
			err = f.nbd.Add(nbd.Export{Name: v.name, Device: m, ReadOnly: v.ro})
		}
		if err != nil {
			return nil, err
		}
	}
	f.slow = blk.NewFault(mustMem(4<<20), 1)
	if err := blk.WriteAt(f.slow, []byte(strings.Repeat("slow", 1024)), 0, 0); err != nil { // so that there is something to read
		return nil, err
	}
	f.slow.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Delay: 3 * time.Second})
	if err := f.nbd.Add(nbd.Export{Name: "slow", Device: f.slow}); err != nil {
		return nil, err
	}
	bad := blk.NewFault(mustMem(4<<20), 1)
	bad.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Err: blk.ErrMedium})
	if err := f.nbd.Add(nbd.Export{Name: "bad", Device: bad}); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		return nil, err
	}
	go func() { f.served <- f.nbd.Serve(l) }() // ended by stop
	return f, nil
}

func mustMem(size uint64) *blk.Mem {
	m, err := blk.NewMem(blk.MemOptions{Size: size})
	if err != nil {
		panic(err)
	}
	return m
}

func (f *fakeVolumes) stop() {
	f.slow.Close() // and what waits in it
	f.nbd.Close()
	<-f.served
}

func info(size uint64) *rdsdv1.VolumeInfo {
	return rdsdv1.VolumeInfo_builder{
		SizeBytes: size, LogicalBlockBytes: 512, PhysicalBlockBytes: 4096, MaxIoBytes: 256 << 10, MaxDiscardBytes: 1 << 30,
		DiscardGranularityBytes: 4096, MaxWriteZeroesBytes: 1 << 30, WriteCache: true, Fua: true,
	}.Build()
}

func ops() []*rdsdv1.VolumeOpCounters {
	return []*rdsdv1.VolumeOpCounters{
		rdsdv1.VolumeOpCounters_builder{Operation: "read", Submitted: 12, Completed: 10, Bytes: 40960, TimeNs: 1e6, P50Ns: 90e3, P99Ns: 200e3, P999Ns: 300e3}.Build(),
		rdsdv1.VolumeOpCounters_builder{Operation: "write", Submitted: 5, Completed: 5, Errors: 1, Bytes: 16384, TimeNs: 1e6, P50Ns: 190e3, P99Ns: 400e3, P999Ns: 500e3}.Build(),
	}
}

func (f *fakeVolumes) exports() []*rdsdv1.VolumeExport {
	return []*rdsdv1.VolumeExport{
		rdsdv1.VolumeExport_builder{
			Name: "disk", Kind: rdsdv1.VolumeKind_VOLUME_KIND_FILE, Path: "/srv/disk.img", Shared: true, AllowAddress: []string{"10.0.0.0/24", "fd00::7/128"},
			AllowSession: []string{"app-*"}, Persist: true, Origin: rdsdv1.VolumeOrigin_VOLUME_ORIGIN_CALL, State: rdsdv1.VolumeExportState_VOLUME_EXPORT_STATE_OPEN,
			StateNs: 90e9, Info: info(20 << 30), Operation: ops(),
			User: []*rdsdv1.VolumeUser{
				rdsdv1.VolumeUser_builder{Session: "app-store", Peer: ip("10.0.0.1"), Access: rdsdv1.VolumeAccess_VOLUME_ACCESS_READ_WRITE, OpenNs: 80e9}.Build(),
				rdsdv1.VolumeUser_builder{Session: "linux", Peer: ip("10.0.0.9"), Access: rdsdv1.VolumeAccess_VOLUME_ACCESS_READ_ONLY, OpenNs: 9e9, Kernel: true}.Build(),
			},
		}.Build(),
		rdsdv1.VolumeExport_builder{
			Name: "golden", Kind: rdsdv1.VolumeKind_VOLUME_KIND_BLOCK_DEVICE, Path: "/dev/sdz", ReadOnly: true, Origin: rdsdv1.VolumeOrigin_VOLUME_ORIGIN_CONFIG,
			State: rdsdv1.VolumeExportState_VOLUME_EXPORT_STATE_FAILED, StateNs: 3e9, Error: "no such file or directory",
		}.Build(),
	}
}

func (f *fakeVolumes) mappings() []*rdsdv1.VolumeMapping {
	list := []*rdsdv1.VolumeMapping{
		rdsdv1.VolumeMapping_builder{
			Id: "v1", Device: f.socket, Uri: nbd.URI(f.socket, "data"), Attach: rdsdv1.VolumeAttach_VOLUME_ATTACH_SOCKET, Node: "store", Name: "data",
			State: rdsdv1.VolumeMappingState_VOLUME_MAPPING_STATE_OPEN, StateNs: 60e9, Info: info(4 << 20), Access: rdsdv1.VolumeAccess_VOLUME_ACCESS_READ_WRITE,
			Session: "app-store", SessionId: "c1", Policy: rdsdv1.VolumePolicy_VOLUME_POLICY_MIN_INFLIGHT, IoTimeoutNs: 30e9, LossTimeoutNs: 30e9,
			OnLoss: rdsdv1.VolumeOnLoss_VOLUME_ON_LOSS_WAIT, Persist: true, Users: 1, Paths: 2, PathsUp: 2, Operation: ops(),
		}.Build(),
		rdsdv1.VolumeMapping_builder{
			Id: "v2", Device: "/dev/nbd3", Attach: rdsdv1.VolumeAttach_VOLUME_ATTACH_NBD, Node: "fd00::7", Name: "logs",
			State: rdsdv1.VolumeMappingState_VOLUME_MAPPING_STATE_CLOSED, StateNs: 2e9, LastError: "no path", Access: rdsdv1.VolumeAccess_VOLUME_ACCESS_READ_ONLY,
			Session: "app-logs", SessionId: "c2", Policy: rdsdv1.VolumePolicy_VOLUME_POLICY_ROUND_ROBIN, IoTimeoutNs: 30e9, LossTimeoutNs: 10e9,
			OnLoss: rdsdv1.VolumeOnLoss_VOLUME_ON_LOSS_ERROR, Paths: 1, Waiting: 3,
		}.Build(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.mapped {
		list = append(list, m)
	}
	return list
}

func (f *fakeVolumes) List(context.Context, *rdsdv1.VolumeListRequest) (*rdsdv1.VolumeListResponse, error) {
	return rdsdv1.VolumeListResponse_builder{Export: f.exports(), Mapping: f.mappings()}.Build(), nil
}

func (f *fakeVolumes) Get(_ context.Context, req *rdsdv1.VolumeGetRequest) (*rdsdv1.VolumeGetResponse, error) {
	if name := req.GetExport(); name != "" {
		for _, x := range f.exports() {
			if x.GetName() == name || name == "twin" {
				return rdsdv1.VolumeGetResponse_builder{Export: x}.Build(), nil
			}
		}
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no export %q", name)
	}
	name := req.GetMapping()
	for _, m := range f.mappings() {
		if name == "twin" || m.GetId() == name || m.GetDevice() == name || volumeText(m.GetNode(), m.GetName()) == name {
			return rdsdv1.VolumeGetResponse_builder{Mapping: m}.Build(), nil
		}
	}
	return nil, rdserr.With(rdserr.ErrNotFound, "there is no mapping %q", name)
}

func (f *fakeVolumes) Map(_ context.Context, req *rdsdv1.VolumeMapRequest) (*rdsdv1.VolumeMapping, error) {
	volume := volumeText(req.GetNode(), req.GetName())
	switch {
	case req.GetNode() == "gone":
		return nil, rdserr.With(rdserr.ErrTimeout, "%s does not answer", req.GetNode())
	case volume == "store:data":
		return nil, rdserr.With(rdserr.ErrExists, "%s is mapped as v1 already", volume)
	case req.GetNode() == "twin":
		return nil, rdserr.With(rdserr.ErrOwned, "map disk of twin: 10.0.0.7:16388: the server has a session of this name from another node (operation not permitted)")
	case req.GetName() == "locked":
		return nil, rdserr.With(rdserr.ErrOwned, "session app2-store writes %s", volume)
	case req.GetName() == "busy":
		return nil, rdserr.With(rdserr.ErrBusy, "%s is being closed", volume)
	case req.GetName() == "broken":
		return nil, rdserr.With(rdserr.ErrIO, "the store behind the volume failed")
	case req.GetName() == "secret":
		return nil, rdserr.With(rdserr.ErrPerm, "store does not let this node open %q", req.GetName())
	case strings.HasPrefix(req.GetName(), "nope"):
		return nil, rdserr.With(rdserr.ErrNotFound, "store exports no volume %q", req.GetName())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := req.GetId()
	for n := len(f.mapped) + 3; id == "" || f.mapped[id] != nil && req.GetId() == ""; n++ {
		id = fmt.Sprintf("v%d", n)
	}
	for _, o := range f.mapped {
		switch {
		case o.GetId() == id:
			return nil, rdserr.With(rdserr.ErrExists, "there is a mapping %s already", id)
		case volumeText(o.GetNode(), o.GetName()) == volume && o.GetSession() == req.GetSession() && o.GetDevice() != "":
			return nil, rdserr.With(rdserr.ErrExists, "%s is mapped already, as %s", volume, o.GetId())
		}
	}
	socket := req.GetSocketPath()
	if socket == "" {
		socket = f.socket
	}
	m := rdsdv1.VolumeMapping_builder{
		Id: id, Device: socket, Uri: nbd.URI(socket, req.GetName()), Attach: rdsdv1.VolumeAttach_VOLUME_ATTACH_SOCKET,
		Node: req.GetNode(), Name: req.GetName(), State: rdsdv1.VolumeMappingState_VOLUME_MAPPING_STATE_OPEN, Info: info(10 << 30),
		Access: req.GetAccess(), Session: req.GetSession(), SessionId: "c9", Path: req.GetPath(), Policy: req.GetPolicy(), QueueDepth: req.GetQueueDepth(),
		IoTimeoutNs: req.GetIoTimeoutNs(), LossTimeoutNs: req.GetLossTimeoutNs(), OnLoss: req.GetOnLoss(), Persist: req.GetPersist(), Paths: 1, PathsUp: 1,
	}
	if req.GetAttach() == rdsdv1.VolumeAttach_VOLUME_ATTACH_NBD {
		m.Attach, m.Device, m.Uri = req.GetAttach(), "/dev/nbd0", ""
		if req.GetDevice() != "" {
			m.Device = req.GetDevice()
		}
		if req.GetNode() == "kernel" { // a file stands for the device
			m.Device = filepath.Join(filepath.Dir(f.socket), req.GetName())
		}
	}
	switch {
	case req.GetNode() == "away": // the server is, and the device was of an earlier start
		m.State = rdsdv1.VolumeMappingState_VOLUME_MAPPING_STATE_INIT
		m.Device = filepath.Join(filepath.Dir(f.socket), req.GetName())
	case strings.HasPrefix(id, "left"): // there was no room for it
		m.State, m.Device, m.Uri, m.LastError = rdsdv1.VolumeMappingState_VOLUME_MAPPING_STATE_INIT, "", "", "there is no room"
	}
	f.mapped[id] = m.Build()
	return f.mapped[id], nil
}

func (f *fakeVolumes) Unmap(_ context.Context, req *rdsdv1.VolumeUnmapRequest) (*rdsdv1.VolumeUnmapResponse, error) {
	for _, m := range f.mappings() {
		if name := req.GetMapping(); m.GetId() == name || m.GetDevice() == name {
			if m.GetUsers() > 0 && !req.GetForce() {
				return nil, rdserr.With(rdserr.ErrBusy, "a program has %s open", m.GetId())
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if id := m.GetId(); strings.HasPrefix(id, "copy-") && !req.GetForce() && !f.late[id] { // as if the end of the connection were not seen yet
				f.late[id] = true
				return nil, rdserr.With(rdserr.ErrBusy, "a program has %s open", id)
			}
			delete(f.mapped, m.GetId())
			if m.GetNode() == "full" { // the disk that the daemon keeps its state on
				return nil, rdserr.With(rdserr.ErrNoSpace, "mapping %s has ended, but a start finds it as it was until that is written down", m.GetId())
			}
			return &rdsdv1.VolumeUnmapResponse{}, nil
		}
	}
	return nil, rdserr.With(rdserr.ErrNotFound, "there is no mapping %q", req.GetMapping())
}

func (f *fakeVolumes) Remap(_ context.Context, req *rdsdv1.VolumeRemapRequest) (*rdsdv1.VolumeMapping, error) {
	return f.mappings()[0], nil
}

func (f *fakeVolumes) Export(_ context.Context, req *rdsdv1.VolumeExportRequest) (*rdsdv1.VolumeExport, error) {
	switch req.GetName() {
	case "disk":
		return nil, rdserr.With(rdserr.ErrExists, "disk is exported already")
	case "../x":
		return nil, rdserr.With(rdserr.ErrInvalid, "name %q: no part of it may be ..", req.GetName())
	case "sealed": // the errors of a daemon that may not open the store
		return nil, rdserr.With(rdserr.ErrReadOnly, "open %s: read-only file system", req.GetPath())
	case "foreign":
		return nil, rdserr.With(rdserr.ErrPerm, "open volume %s: permission denied", req.GetPath())
	case "hidden":
		return nil, rdserr.With(rdserr.ErrNotFound, "stat %s: no such file or directory", req.GetPath())
	case "denied":
		return nil, rdserr.With(rdserr.ErrPerm, "exporting is for administrators")
	}
	size := req.GetSizeBytes()
	if size == 0 {
		size = 1 << 30
	}
	return rdsdv1.VolumeExport_builder{
		Name: req.GetName(), Kind: max(req.GetKind(), rdsdv1.VolumeKind_VOLUME_KIND_FILE), Path: req.GetPath(), ReadOnly: req.GetReadOnly(), Shared: req.GetShared(),
		AllowAddress: req.GetAllowAddress(), AllowSession: req.GetAllowSession(), Persist: req.GetPersist(), Origin: rdsdv1.VolumeOrigin_VOLUME_ORIGIN_CALL,
		State: rdsdv1.VolumeExportState_VOLUME_EXPORT_STATE_OPEN, Info: info(size),
	}.Build(), nil
}

func (f *fakeVolumes) Unexport(_ context.Context, req *rdsdv1.VolumeUnexportRequest) (*rdsdv1.VolumeUnexportResponse, error) {
	switch {
	case req.GetName() != "disk" && req.GetName() != "golden":
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no export %q", req.GetName())
	case req.GetName() == "disk" && !req.GetForce():
		return nil, rdserr.With(rdserr.ErrBusy, "session app-store has disk open")
	}
	return &rdsdv1.VolumeUnexportResponse{}, nil
}

func (f *fakeVolumes) ForceClose(_ context.Context, req *rdsdv1.VolumeForceCloseRequest) (*rdsdv1.VolumeForceCloseResponse, error) {
	if req.GetExport() != "disk" || req.GetSession() != "linux" {
		return nil, rdserr.With(rdserr.ErrNotFound, "session %q does not have volume %q open", req.GetSession(), req.GetExport())
	}
	return &rdsdv1.VolumeForceCloseResponse{}, nil
}

func (f *fakeVolumes) Info(_ context.Context, req *rdsdv1.VolumeInfoRequest) (*rdsdv1.VolumeInfoResponse, error) {
	if req.GetName() != "disk" {
		return nil, rdserr.With(rdserr.ErrNotFound, "%s exports no volume %q", req.GetNode(), req.GetName())
	}
	return rdsdv1.VolumeInfoResponse_builder{Node: req.GetNode(), Name: req.GetName(), Info: info(20 << 30), QueueDepth: 512}.Build(), nil
}

func (f *fakeVolumes) Resize(_ context.Context, req *rdsdv1.VolumeResizeRequest) (*rdsdv1.VolumeResizeResponse, error) {
	if req.GetExport() == "golden" {
		return nil, rdserr.With(rdserr.ErrNotFound, "export %q: no such file or directory", req.GetExport())
	}
	const has = 21 << 30 // more than what exports remembers
	size := req.GetSizeBytes()
	if size == 0 {
		size = has
	}
	if req.GetGrowOnly() && size < has {
		return nil, rdserr.With(rdserr.ErrInvalid, "it has %d bytes", uint64(has))
	}
	return rdsdv1.VolumeResizeResponse_builder{SizeBytes: size}.Build(), nil
}

func (f *fakeVolumes) ListSessions(context.Context, *rdsdv1.VolumeListSessionsRequest) (*rdsdv1.VolumeListSessionsResponse, error) {
	return rdsdv1.VolumeListSessionsResponse_builder{Session: []*rdsdv1.VolumeSession{rdsdv1.VolumeSession_builder{
		Id: "c1", Name: "app-store", Uuid: "6d1f", Role: rdsdv1.VolumeRole_VOLUME_ROLE_CLIENT, Peer: "10.0.0.7:16388", Up: true, StateNs: 60e9,
		Policy: rdsdv1.VolumePolicy_VOLUME_POLICY_MIN_INFLIGHT, Volume: []string{"v1"}, Paths: 2, PathsUp: 1, QueueDepth: 512, InFlight: 4, Waiting: 2, MaxIoBytes: 256 << 10, MemoryBytes: 3 << 20,
		Kernel: true, Unfenced: rdsdv1.VolumeUnfenced_VOLUME_UNFENCED_AFTER, UnfencedAfterNs: 40e9, UnfencedFailovers: 2, MaxReconnectAttempts: -1,
	}.Build()}}.Build(), nil
}

func (f *fakeVolumes) SetSession(ctx context.Context, req *rdsdv1.VolumeSetSessionRequest) (*rdsdv1.VolumeSession, error) {
	l, err := f.ListSessions(ctx, nil)
	s := l.GetSession()[0]
	if req.GetSession() != s.GetName() {
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no session %q", req.GetSession())
	}
	if name := req.GetPolicyName(); name != "" {
		s.SetPolicyName(name)
	}
	if u := req.GetUnfenced(); u != 0 {
		s.SetUnfenced(u)
	}
	if n := req.GetUnfencedAfterNs(); n != 0 {
		s.SetUnfencedAfterNs(n)
	}
	if n := req.GetMaxReconnectAttempts(); n != 0 {
		s.SetMaxReconnectAttempts(n)
	}
	return s, err
}

func (f *fakeVolumes) ListPaths(_ context.Context, req *rdsdv1.VolumeListPathsRequest) (*rdsdv1.VolumeListPathsResponse, error) {
	if s := req.GetSession(); s != "" && s != "app-store" && s != "c1" {
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no session %q", s)
	}
	return rdsdv1.VolumeListPathsResponse_builder{Path: []*rdsdv1.VolumePath{
		rdsdv1.VolumePath_builder{
			Session: "app-store", SessionId: "c1", Role: rdsdv1.VolumeRole_VOLUME_ROLE_CLIENT, Source: "10.0.0.1:40112", Destination: "10.0.0.7:16388",
			State: rdsdv1.VolumePathState_VOLUME_PATH_STATE_CONNECTED, StateNs: 60e9, Epoch: 2, Connections: 2, CurLatencyNs: 85e3, Reconnects: 1, Reads: 10, ReadBytes: 40960,
			Writes: 5, WriteBytes: 20480, InFlight: 4, Failovers: 3, Transport: "ib", Device: "soft-10.0.0.1", Port: 1,
		}.Build(),
		rdsdv1.VolumePath_builder{
			Session: "app-store", SessionId: "c1", Role: rdsdv1.VolumeRole_VOLUME_ROLE_CLIENT, Source: "10.1.0.1:40113", Destination: "10.1.0.7:16388",
			State: rdsdv1.VolumePathState_VOLUME_PATH_STATE_RECONNECTING, StateNs: 2e9, ReconnectsFailed: 7, LastError: "connection refused", Transport: "tcp",
		}.Build(),
	}}.Build(), nil
}

func (f *fakeVolumes) path(req *rdsdv1.VolumePathRequest) error {
	if req.GetSession() != "app-store" {
		return rdserr.With(rdserr.ErrNotFound, "there is no session %q", req.GetSession())
	}
	if d := req.GetPath().GetDestination(); d != "10.1.0.7" {
		return rdserr.With(rdserr.ErrNotFound, "the session has no path to %s", d)
	}
	return nil
}

func (f *fakeVolumes) AddPath(_ context.Context, req *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePath, error) {
	if req.GetWait() && f.path(req) == nil {
		return nil, rdserr.With(rdserr.ErrTimeout, "the path is not connected in time")
	}
	return rdsdv1.VolumePath_builder{Session: req.GetSession()}.Build(), f.path(req)
}

func (f *fakeVolumes) RemovePath(_ context.Context, req *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePathResponse, error) {
	return &rdsdv1.VolumePathResponse{}, f.path(req)
}

func (f *fakeVolumes) DisconnectPath(_ context.Context, req *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePathResponse, error) {
	return &rdsdv1.VolumePathResponse{}, f.path(req)
}

func (f *fakeVolumes) ReconnectPath(_ context.Context, req *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePathResponse, error) {
	return &rdsdv1.VolumePathResponse{}, f.path(req)
}

func (f *fakeVolumes) SetPolicy(_ context.Context, req *rdsdv1.VolumeSetPolicyRequest) (*rdsdv1.VolumeSetPolicyResponse, error) {
	if req.GetSession() != "app-store" {
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no session %q", req.GetSession())
	}
	return &rdsdv1.VolumeSetPolicyResponse{}, nil
}

// ResetStats fails, so that a test sees what it was asked for.
func (f *fakeVolumes) ResetStats(_ context.Context, req *rdsdv1.VolumeResetStatsRequest) (*rdsdv1.VolumeResetStatsResponse, error) {
	return nil, rdserr.With(rdserr.ErrPerm, "uid 1000 may not reset %q", req.GetSession())
}

func (f *fakeVolumes) Check(_ context.Context, req *rdsdv1.VolumeCheckRequest) (*rdsdv1.VolumeCheckResponse, error) {
	all := []*rdsdv1.VolumeFinding{
		rdsdv1.VolumeFinding_builder{Severity: rdsdv1.VolumeSeverity_VOLUME_SEVERITY_OK, What: "disk", Text: "open, no errors"}.Build(),
		rdsdv1.VolumeFinding_builder{Severity: rdsdv1.VolumeSeverity_VOLUME_SEVERITY_WARNING, What: "app-store", Text: "1 of 2 paths is down", Remedy: "look at 10.1.0.7"}.Build(),
		rdsdv1.VolumeFinding_builder{Severity: rdsdv1.VolumeSeverity_VOLUME_SEVERITY_ERROR, What: "golden", Text: "/dev/sdz: no such file or directory", Remedy: "unexport it, or plug the disk in"}.Build(),
	}
	switch req.GetWhat() {
	case "":
	case "disk":
		all = all[:1]
	case "app-store":
		all = all[1:2]
	default:
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no mapping, export or session %q", req.GetWhat())
	}
	return rdsdv1.VolumeCheckResponse_builder{Finding: all}.Build(), nil
}

func (f *fakeVolumes) Watch(req *rdsdv1.VolumeWatchRequest, s grpc.ServerStreamingServer[rdsdv1.VolumeEvent]) error {
	n := req.GetAfter()
	path := rdsdv1.VolumePathSpec_builder{Source: "10.0.0.1:40112", Destination: "10.0.0.7:16388"}.Build()
	for i, e := range []*rdsdv1.VolumeEvent{
		rdsdv1.VolumeEvent_builder{Kind: rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_GAP, Count: 5}.Build(),
		rdsdv1.VolumeEvent_builder{Kind: rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_PATH, Session: "app-store", Path: path, State: "reconnecting", Error: "connection reset", Errno: 104, Text: "path 10.0.0.1 > 10.0.0.7 of app-store is lost: connection reset"}.Build(),
		rdsdv1.VolumeEvent_builder{Kind: rdsdv1.VolumeEventKind_VOLUME_EVENT_KIND_FAILOVER, Session: "app-store", Path: path, Count: 4, TookNs: 5e6}.Build(),
	} {
		e.SetNumber(n + uint64(i) + 1)
		e.SetInstance(req.GetInstance())
		e.SetUnixNs(1e18)
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return rdserr.With(rdserr.ErrShutdown, "the daemon is draining")
}
