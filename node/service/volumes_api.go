package service

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
)

// volumeServer is the service VolumeService over node/volume. Who may change
// things is decided as for Admin.
type volumeServer struct {
	rdsdv1.UnimplementedVolumeServiceServer
	front *Front
}

// host is the host of volumes, for a call that reads.
func (s *volumeServer) host() (*volume.Host, error) { return s.front.volumeHost() }

// change is the host of volumes, for a call that changes something.
func (s *volumeServer) change(ctx context.Context, what string) (*volume.Host, error) {
	if err := s.front.mayChange(ctx, what); err != nil {
		return nil, err
	}
	return s.host()
}

// Export offers a volume.
func (s *volumeServer) Export(ctx context.Context, r *rdsdv1.VolumeExportRequest) (*rdsdv1.VolumeExport, error) {
	h, err := s.change(ctx, "Export")
	if err != nil {
		return nil, err
	}
	kind, err := volumeWord("kind", volumeKinds, r.GetKind())
	if err != nil {
		return nil, err
	}
	spec := volume.ExportSpec{Name: r.GetName(), Kind: kind, Path: r.GetPath(), Size: r.GetSizeBytes(), Create: r.GetCreate(),
		ReadOnly: r.GetReadOnly(), Shared: r.GetShared(), LogicalBlock: r.GetLogicalBlockBytes(), Sessions: r.GetAllowSession(), Persist: r.GetPersist()}
	for _, text := range r.GetAllowAddress() {
		var p config.Prefix
		if err := p.UnmarshalText([]byte(text)); err != nil {
			return nil, rdserr.With(rdserr.ErrInvalid, "allow_address: %v; want addresses and subnets such as \"10.0.0.0/24\"", err)
		}
		spec.Allow = append(spec.Allow, p.Prefix)
	}
	e, err := h.Export(ctx, spec)
	if err != nil {
		s.front.full.exports.note(err)
		return nil, err
	}
	return exportPB(&e, time.Now()), nil
}

// Unexport ends an export.
func (s *volumeServer) Unexport(ctx context.Context, r *rdsdv1.VolumeUnexportRequest) (*rdsdv1.VolumeUnexportResponse, error) {
	h, err := s.change(ctx, "Unexport")
	if err != nil {
		return nil, err
	}
	return &rdsdv1.VolumeUnexportResponse{}, h.Unexport(ctx, r.GetName(), r.GetForce())
}

// Map maps a volume of another node.
func (s *volumeServer) Map(ctx context.Context, r *rdsdv1.VolumeMapRequest) (*rdsdv1.VolumeMapping, error) {
	h, err := s.change(ctx, "Map")
	if err != nil {
		return nil, err
	}
	spec, err := mapSpec(r)
	if err != nil {
		return nil, err
	}
	ctx, end := ahead(ctx)
	defer end()
	m, err := h.Map(ctx, spec)
	if err != nil {
		s.front.full.mappings.note(err)
		return nil, err
	}
	return mappingPB(&m, time.Now()), nil
}

// aheadMost is how much earlier than its caller a call gives up.
const aheadMost = time.Second

// ahead is ctx for a call whose reason for being late, which tells what was tried, has to arrive
// before its caller gives up and knows of no reason at all.
func ahead(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, at.Add(-min(time.Until(at)/10, aheadMost)))
}

func mapSpec(r *rdsdv1.VolumeMapRequest) (spec volume.MapSpec, err error) {
	spec = volume.MapSpec{Node: r.GetNode(), Name: r.GetName(), ID: r.GetId(), Socket: r.GetSocketPath(), Device: r.GetDevice(),
		Session: r.GetSession(), Paths: pathSpecs(r.GetPath()), IOTimeout: time.Duration(r.GetIoTimeoutNs()),
		LossTimeout: time.Duration(r.GetLossTimeoutNs()), Persist: r.GetPersist(),
		UnfencedAfter: time.Duration(r.GetUnfencedAfterNs()), MaxReconnects: int(r.GetMaxReconnectAttempts())}
	if r.GetQueueDepth() > 1<<16 {
		return spec, rdserr.With(rdserr.ErrInvalid, "queue_depth is %d; want 0 (what the other node offers) to 65536", r.GetQueueDepth())
	}
	spec.QueueDepth = int(r.GetQueueDepth())
	if spec.As, err = volumeWord("attach", volumeAttaches, r.GetAttach()); err != nil {
		return spec, err
	}
	if spec.Access, err = volumeWord("access", volumeAccesses, r.GetAccess()); err != nil {
		return spec, err
	}
	if spec.OnLoss, err = volumeWord("on_loss", volumeOnLosses, r.GetOnLoss()); err != nil {
		return spec, err
	}
	if spec.Unfenced, err = volumeWord("unfenced", volumeUnfenced, r.GetUnfenced()); err != nil {
		return spec, err
	}
	spec.Policy, err = volumePolicy(r)
	return spec, err
}

// Unmap ends a mapping.
func (s *volumeServer) Unmap(ctx context.Context, r *rdsdv1.VolumeUnmapRequest) (*rdsdv1.VolumeUnmapResponse, error) {
	h, err := s.change(ctx, "Unmap")
	if err != nil {
		return nil, err
	}
	return &rdsdv1.VolumeUnmapResponse{}, h.Unmap(ctx, r.GetMapping(), r.GetForce())
}

// Remap opens a closed mapping again.
func (s *volumeServer) Remap(ctx context.Context, r *rdsdv1.VolumeRemapRequest) (*rdsdv1.VolumeMapping, error) {
	h, err := s.change(ctx, "Remap")
	if err != nil {
		return nil, err
	}
	ctx, end := ahead(ctx)
	defer end()
	m, err := h.Remap(ctx, r.GetMapping())
	if err != nil {
		return nil, err
	}
	return mappingPB(&m, time.Now()), nil
}

// List describes exports and mappings.
func (s *volumeServer) List(context.Context, *rdsdv1.VolumeListRequest) (*rdsdv1.VolumeListResponse, error) {
	h, err := s.host()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var exports []*rdsdv1.VolumeExport
	for _, e := range h.Exports() {
		exports = append(exports, exportPB(&e, now))
	}
	var mappings []*rdsdv1.VolumeMapping
	for _, m := range h.Mappings() {
		mappings = append(mappings, mappingPB(&m, now))
	}
	resp := &rdsdv1.VolumeListResponse{}
	resp.SetExport(exports)
	resp.SetMapping(mappings)
	return resp, nil
}

// Get describes one export or mapping.
func (s *volumeServer) Get(_ context.Context, r *rdsdv1.VolumeGetRequest) (*rdsdv1.VolumeGetResponse, error) {
	h, err := s.host()
	if err != nil {
		return nil, err
	}
	resp := &rdsdv1.VolumeGetResponse{}
	switch r.WhichWhat() {
	case rdsdv1.VolumeGetRequest_Mapping_case:
		m, err := h.Mapping(r.GetMapping())
		if err != nil {
			return nil, err
		}
		resp.SetMapping(mappingPB(&m, time.Now()))
		return resp, nil
	case rdsdv1.VolumeGetRequest_Export_case:
		for _, e := range h.Exports() {
			if e.Name == r.GetExport() {
				resp.SetExport(exportPB(&e, time.Now()))
				return resp, nil
			}
		}
		return nil, rdserr.With(rdserr.ErrNotFound, "no export is called %q", r.GetExport())
	}
	return nil, rdserr.With(rdserr.ErrInvalid, "what to get is missing; want mapping or export")
}

// Info asks another node about a volume. It costs a session there, so it is for
// administrators.
func (s *volumeServer) Info(ctx context.Context, r *rdsdv1.VolumeInfoRequest) (*rdsdv1.VolumeInfoResponse, error) {
	h, err := s.change(ctx, "Info")
	if err != nil {
		return nil, err
	}
	ctx, end := ahead(ctx)
	defer end()
	i, err := h.RemoteInfo(ctx, volume.MapSpec{Node: r.GetNode(), Name: r.GetName(), Session: r.GetSession(), Paths: pathSpecs(r.GetPath())})
	if err != nil {
		return nil, err
	}
	resp := &rdsdv1.VolumeInfoResponse{}
	resp.SetNode(i.Node)
	resp.SetName(text(i.Name))
	resp.SetInfo(volumeInfoPB(&i.Info))
	resp.SetQueueDepth(uint32(i.QueueDepth))
	return resp, nil
}

// Resize changes the size of an export's store, or takes over that of a volume
// elsewhere.
func (s *volumeServer) Resize(ctx context.Context, r *rdsdv1.VolumeResizeRequest) (*rdsdv1.VolumeResizeResponse, error) {
	h, err := s.change(ctx, "Resize")
	if err != nil {
		return nil, err
	}
	var size uint64
	switch r.WhichWhat() {
	case rdsdv1.VolumeResizeRequest_Mapping_case:
		size, err = h.ResizeMapping(ctx, r.GetMapping(), r.GetSizeBytes())
	case rdsdv1.VolumeResizeRequest_Export_case:
		resize := h.ResizeExport
		if r.GetGrowOnly() {
			resize = h.GrowExport
		}
		size, err = resize(ctx, r.GetExport(), r.GetSizeBytes())
	default:
		err = rdserr.With(rdserr.ErrInvalid, "what to resize is missing; want mapping or export")
	}
	if err != nil {
		return nil, err
	}
	resp := &rdsdv1.VolumeResizeResponse{}
	resp.SetSizeBytes(size)
	return resp, nil
}

// Check looks for what is wrong.
func (s *volumeServer) Check(ctx context.Context, r *rdsdv1.VolumeCheckRequest) (*rdsdv1.VolumeCheckResponse, error) {
	h, err := s.host()
	if err != nil {
		return nil, err
	}
	findings, err := h.Check(ctx, r.GetWhat())
	if err != nil {
		return nil, err
	}
	var list []*rdsdv1.VolumeFinding
	for _, f := range findings {
		m := &rdsdv1.VolumeFinding{}
		m.SetSeverity(volumeEnum[rdsdv1.VolumeSeverity](volumeSeverities, f.Severity))
		m.SetWhat(text(f.What))
		m.SetText(text(f.Text))
		m.SetRemedy(text(f.Fix))
		list = append(list, m)
	}
	resp := &rdsdv1.VolumeCheckResponse{}
	resp.SetFinding(list)
	return resp, nil
}

// Watch reports events. The header goes out once it watches: who waits for it
// misses nothing of what it does next.
func (s *volumeServer) Watch(r *rdsdv1.VolumeWatchRequest, stream grpc.ServerStreamingServer[rdsdv1.VolumeEvent]) error {
	h, err := s.host()
	if err != nil {
		return err
	}
	leave, err := s.front.volumeWatches.enter(stream.Context())
	if err != nil {
		return err
	}
	defer leave()
	since := r.GetAfter()
	of := r.GetInstance()
	switch {
	case since == 0 && !r.GetKept():
		since = volume.FromNow
	case of != 0 && of != s.front.deps.Instance: // numbers begin anew, so that one is no news of the other
		since = volume.FromBefore
	}
	events, stop := h.Watch(since)
	defer stop()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-s.front.deps.Stopping:
			return base.ErrDraining
		case e, ok := <-events:
			if !ok {
				return base.ErrDraining
			}
			m := volumeEventPB(&e)
			m.SetInstance(s.front.deps.Instance)
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// peerBytes is an address of 4 or 16 bytes.
func peerBytes(a netip.Addr) []byte { return a.Unmap().AsSlice() }
