package service

import (
	"context"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// ListSessions describes the sessions in both roles.
func (s *volumeServer) ListSessions(context.Context, *rdsdv1.VolumeListSessionsRequest) (*rdsdv1.VolumeListSessionsResponse, error) {
	h, err := s.host()
	if err != nil {
		return nil, err
	}
	var list []*rdsdv1.VolumeSession
	for _, i := range h.Sessions() {
		list = append(list, volumeSessionPB(&i, time.Now()))
	}
	resp := &rdsdv1.VolumeListSessionsResponse{}
	resp.SetSession(list)
	return resp, nil
}

// ListPaths describes the paths of a session, or of all.
func (s *volumeServer) ListPaths(_ context.Context, r *rdsdv1.VolumeListPathsRequest) (*rdsdv1.VolumeListPathsResponse, error) {
	h, err := s.host()
	if err != nil {
		return nil, err
	}
	want := r.GetSession()
	known := want == ""
	for _, i := range h.Sessions() {
		known = known || i.Name == want || i.ID == want
	}
	if !known {
		return nil, rdserr.With(rdserr.ErrNotFound, "no session is called %q", want)
	}
	var list []*rdsdv1.VolumePath
	for _, p := range h.Paths() {
		if want == "" || p.Session == want || p.SessionID == want {
			list = append(list, volumePathPB(&p, time.Now()))
		}
	}
	resp := &rdsdv1.VolumeListPathsResponse{}
	resp.SetPath(list)
	return resp, nil
}

// AddPath adds a path to a client's session.
func (s *volumeServer) AddPath(ctx context.Context, r *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePath, error) {
	h, err := s.change(ctx, "AddPath")
	if err != nil {
		return nil, err
	}
	ctx, end := ahead(ctx)
	defer end()
	p, err := h.AddPath(ctx, r.GetSession(), pathSpec(r.GetPath()))
	if err != nil {
		return nil, err
	}
	if r.GetWait() {
		if err := h.WaitPath(ctx, r.GetSession(), p.PathSpec, volume.PathConnected); err != nil {
			return nil, err
		}
		for _, now := range h.Paths() {
			if now.SessionID == p.SessionID && now.Dst == p.Dst && now.Transport == p.Transport && now.State == volume.PathConnected {
				p = now
			}
		}
	}
	return volumePathPB(&p, time.Now()), nil
}

// onPath is a call about one path, which has the state when it is done.
func (s *volumeServer) onPath(ctx context.Context, what, state string, r *rdsdv1.VolumePathRequest,
	do func(h *volume.Host, ctx context.Context, session string, p volume.PathSpec) error) (*rdsdv1.VolumePathResponse, error) {
	h, err := s.change(ctx, what)
	if err != nil {
		return nil, err
	}
	ctx, end := ahead(ctx)
	defer end()
	if err = do(h, ctx, r.GetSession(), pathSpec(r.GetPath())); err == nil && r.GetWait() {
		err = h.WaitPath(ctx, r.GetSession(), pathSpec(r.GetPath()), state)
	}
	return &rdsdv1.VolumePathResponse{}, err
}

// RemovePath takes a path from a client's session.
func (s *volumeServer) RemovePath(ctx context.Context, r *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePathResponse, error) {
	return s.onPath(ctx, "RemovePath", volume.PathRemoved, r, (*volume.Host).RemovePath)
}

// DisconnectPath closes a path.
func (s *volumeServer) DisconnectPath(ctx context.Context, r *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePathResponse, error) {
	return s.onPath(ctx, "DisconnectPath", volume.PathDisconnected, r, (*volume.Host).DisconnectPath)
}

// ReconnectPath connects a path anew.
func (s *volumeServer) ReconnectPath(ctx context.Context, r *rdsdv1.VolumePathRequest) (*rdsdv1.VolumePathResponse, error) {
	return s.onPath(ctx, "ReconnectPath", volume.PathConnected, r, (*volume.Host).ReconnectPath)
}

// SetPolicy changes how a session chooses among its paths.
func (s *volumeServer) SetPolicy(ctx context.Context, r *rdsdv1.VolumeSetPolicyRequest) (*rdsdv1.VolumeSetPolicyResponse, error) {
	h, err := s.change(ctx, "SetPolicy")
	if err != nil {
		return nil, err
	}
	policy, err := volumePolicy(r)
	if err != nil {
		return nil, err
	}
	if policy == "" {
		return nil, rdserr.With(rdserr.ErrInvalid, "policy is missing; want %s", rtrs.PolicyNames())
	}
	return &rdsdv1.VolumeSetPolicyResponse{}, h.SetPolicy(ctx, r.GetSession(), policy)
}

// SetSession changes settings of a client's session.
func (s *volumeServer) SetSession(ctx context.Context, r *rdsdv1.VolumeSetSessionRequest) (*rdsdv1.VolumeSession, error) {
	h, err := s.change(ctx, "SetSession")
	if err != nil {
		return nil, err
	}
	unfenced, err := volumeWord("unfenced", volumeUnfenced, r.GetUnfenced())
	if err != nil {
		return nil, err
	}
	i, err := h.SetSession(ctx, r.GetSession(), volume.SessionChange{Policy: r.GetPolicyName(), Unfenced: unfenced,
		UnfencedAfter: time.Duration(r.GetUnfencedAfterNs()), MaxReconnects: int(r.GetMaxReconnectAttempts())})
	if err != nil {
		return nil, err
	}
	return volumeSessionPB(&i, time.Now()), nil
}

// ForceClose takes an export from one session.
func (s *volumeServer) ForceClose(ctx context.Context, r *rdsdv1.VolumeForceCloseRequest) (*rdsdv1.VolumeForceCloseResponse, error) {
	h, err := s.change(ctx, "ForceClose")
	if err != nil {
		return nil, err
	}
	return &rdsdv1.VolumeForceCloseResponse{}, h.ForceClose(ctx, r.GetExport(), r.GetSession())
}

// ResetStats sets the statistics of paths to 0.
func (s *volumeServer) ResetStats(ctx context.Context, r *rdsdv1.VolumeResetStatsRequest) (*rdsdv1.VolumeResetStatsResponse, error) {
	h, err := s.change(ctx, "ResetStats")
	if err != nil {
		return nil, err
	}
	return &rdsdv1.VolumeResetStatsResponse{}, h.ResetStats(ctx, r.GetSession(), pathSpec(r.GetPath()))
}
