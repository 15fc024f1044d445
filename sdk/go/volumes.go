package rdsd

import (
	"context"
	"fmt"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// Volumes administers the volumes of a daemon: what it exports, what it maps
// from other nodes, and the sessions between them. Changing something needs an
// administrator (root, the daemon's user, api.admin_uids). It has no state and
// is safe for concurrent use.
//
// Every error is an *OpError; errors.Is finds rdserr.ErrNotFound (ENOENT),
// ErrExists, ErrBusy, ErrPerm (EACCES), ErrOwned (EPERM: another session
// writes), ErrReadOnly and so on.
type Volumes struct {
	pb rdsdv1.VolumeServiceClient
}

// Volumes is the part of the client for volumes.
func (c *Client) Volumes() *Volumes { return &Volumes{c.VolumeService()} }

// VolumeService is the raw service of the same daemon. Its errors are gRPC
// statuses; rdsdv1.ErrorFromStatus gives their errno.
func (c *Client) VolumeService() rdsdv1.VolumeServiceClient {
	return rdsdv1.NewVolumeServiceClient(c.door())
}

// Export offers a file, a block device or memory of the daemon's node to other
// nodes. ErrExists: the name is taken.
func (v *Volumes) Export(ctx context.Context, s ExportSpec) (*Export, error) {
	req, err := exportToProto(&s)
	if err != nil {
		return nil, &OpError{Op: "export", Err: err}
	}
	m, err := v.pb.Export(ctx, req)
	if err != nil {
		return nil, callError(ctx, "export", err)
	}
	return exportFromProto(m), nil
}

// Unexport ends an export: ErrBusy while sessions have it open, unless force;
// then their requests fail.
func (v *Volumes) Unexport(ctx context.Context, name string, force bool) error {
	req := &rdsdv1.VolumeUnexportRequest{}
	req.SetName(name)
	req.SetForce(force)
	_, err := v.pb.Unexport(ctx, req)
	return callError(ctx, "unexport", err)
}

// ForceClose takes an export from one session of another node that has it open, named by name
// or id; the others keep it. What the session asks of it from then on fails (ENOTCONN) until it
// opens it anew, as a mapping of an rdsd does with Remap.
func (v *Volumes) ForceClose(ctx context.Context, export, session string) error {
	req := &rdsdv1.VolumeForceCloseRequest{}
	req.SetExport(export)
	req.SetSession(session)
	_, err := v.pb.ForceClose(ctx, req)
	return callError(ctx, "force close", err)
}

// Map makes a volume of another node a block device of the daemon's. It returns
// when the device can be used; its name is Mapping.Device. ErrExists: the
// session has it mapped already.
func (v *Volumes) Map(ctx context.Context, s MapSpec) (*Mapping, error) {
	req, err := mapToProto(&s)
	if err != nil {
		return nil, &OpError{Op: "map", Err: err}
	}
	m, err := v.pb.Map(ctx, req)
	if err != nil {
		return nil, callError(ctx, "map", err)
	}
	return mappingFromProto(m), nil
}

// Unmap ends a mapping, named by its id, its device, or "NODE:NAME": ErrBusy
// while a program has it open, unless force; then what is under way fails, and
// it takes seconds at most.
func (v *Volumes) Unmap(ctx context.Context, mapping string, force bool) error {
	req := &rdsdv1.VolumeUnmapRequest{}
	req.SetMapping(mapping)
	req.SetForce(force)
	_, err := v.pb.Unmap(ctx, req)
	return callError(ctx, "unmap", err)
}

// Remap opens a closed mapping again, now.
func (v *Volumes) Remap(ctx context.Context, mapping string) (*Mapping, error) {
	req := &rdsdv1.VolumeRemapRequest{}
	req.SetMapping(mapping)
	m, err := v.pb.Remap(ctx, req)
	if err != nil {
		return nil, callError(ctx, "remap", err)
	}
	return mappingFromProto(m), nil
}

// List returns the exports by name and the mappings, oldest first.
func (v *Volumes) List(ctx context.Context) ([]*Export, []*Mapping, error) {
	m, err := v.pb.List(ctx, &rdsdv1.VolumeListRequest{})
	if err != nil {
		return nil, nil, callError(ctx, "list volumes", err)
	}
	return all(m.GetExport(), exportFromProto), all(m.GetMapping(), mappingFromProto), nil
}

// Mapping returns one mapping, named as for Unmap.
func (v *Volumes) Mapping(ctx context.Context, mapping string) (*Mapping, error) {
	req := &rdsdv1.VolumeGetRequest{}
	req.SetMapping(mapping)
	m, err := v.get(ctx, req)
	if err != nil {
		return nil, err
	}
	return mappingFromProto(m.GetMapping()), nil
}

// ExportNamed returns one export.
func (v *Volumes) ExportNamed(ctx context.Context, name string) (*Export, error) {
	req := &rdsdv1.VolumeGetRequest{}
	req.SetExport(name)
	m, err := v.get(ctx, req)
	if err != nil {
		return nil, err
	}
	return exportFromProto(m.GetExport()), nil
}

func (v *Volumes) get(ctx context.Context, req *rdsdv1.VolumeGetRequest) (*rdsdv1.VolumeGetResponse, error) {
	m, err := v.pb.Get(ctx, req)
	if err == nil && req.HasMapping() != m.HasMapping() {
		err = rdserr.With(rdserr.ErrProtocol, "the daemon answered with something else than it was asked for")
	}
	return m, callError(ctx, "get volume", err)
}

// Info asks another node about a volume without mapping it: Node, Name, Session
// and Paths of s are used.
func (v *Volumes) Info(ctx context.Context, s MapSpec) (*RemoteVolume, error) {
	req := &rdsdv1.VolumeInfoRequest{}
	req.SetNode(s.Node)
	req.SetName(s.Name)
	req.SetSession(s.Session)
	req.SetPath(pathsToProto(s.Paths))
	m, err := v.pb.Info(ctx, req)
	if err != nil {
		return nil, callError(ctx, "volume info", err)
	}
	r := &RemoteVolume{Node: m.GetNode(), Name: m.GetName(), QueueDepth: m.GetQueueDepth()}
	if i := infoFromProto(m.GetInfo()); i != nil {
		r.Info = *i
	}
	return r, nil
}

// ResizeExport gives the store of an export (a file, memory) a new size in bytes and tells
// the sessions that have it open. 0 looks which size the store has, as for a block device
// that has grown. It returns the size afterwards.
func (v *Volumes) ResizeExport(ctx context.Context, name string, size uint64) (uint64, error) {
	req := &rdsdv1.VolumeResizeRequest{}
	req.SetExport(name)
	return v.resize(ctx, req, size)
}

// GrowExport is ResizeExport for a size that the store does not lose anything with: if it
// has more now, it is left as it is, with EINVAL.
func (v *Volumes) GrowExport(ctx context.Context, name string, size uint64) (uint64, error) {
	req := &rdsdv1.VolumeResizeRequest{}
	req.SetExport(name)
	req.SetGrowOnly(true)
	return v.resize(ctx, req, size)
}

// ResizeMapping takes over the size the other node says the volume has now. It
// has to be size, unless that is 0. It returns the size afterwards.
func (v *Volumes) ResizeMapping(ctx context.Context, mapping string, size uint64) (uint64, error) {
	req := &rdsdv1.VolumeResizeRequest{}
	req.SetMapping(mapping)
	return v.resize(ctx, req, size)
}

func (v *Volumes) resize(ctx context.Context, req *rdsdv1.VolumeResizeRequest, size uint64) (uint64, error) {
	req.SetSizeBytes(size)
	m, err := v.pb.Resize(ctx, req)
	if err != nil {
		return 0, callError(ctx, "resize", err)
	}
	return m.GetSizeBytes(), nil
}

// Check looks for faults of a mapping (named as for Unmap), an export or a session; with
// "", with everything.
func (v *Volumes) Check(ctx context.Context, what string) ([]VolumeFinding, error) {
	req := &rdsdv1.VolumeCheckRequest{}
	req.SetWhat(what)
	m, err := v.pb.Check(ctx, req)
	if err != nil {
		return nil, callError(ctx, "check", err)
	}
	return all(m.GetFinding(), findingFromProto), nil
}

// word looks a word up among those of an enum, whose value is its index.
func word[E ~int32, W ~string](what string, words []W, w W) (E, error) {
	for i, x := range words {
		if x == w {
			return E(i), nil
		}
	}
	return 0, rdserr.With(rdserr.ErrInvalid, "%s is %q; want one of %q", what, w, words[1:])
}

// wordOf is the way back. A newer daemon may know more than we do.
func wordOf[E ~int32, W ~string](words []W, e E) W {
	if e < 0 || int(e) >= len(words) {
		return W(fmt.Sprintf("unknown (%d)", e))
	}
	return words[e]
}

func all[P, T any](list []P, f func(P) T) []T {
	out := make([]T, len(list))
	for i, p := range list {
		out[i] = f(p)
	}
	return out
}
