package rdsd

import (
	"context"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// Sessions returns the sessions of the daemon in both roles.
func (v *Volumes) Sessions(ctx context.Context) ([]VolumeSession, error) {
	m, err := v.pb.ListSessions(ctx, &rdsdv1.VolumeListSessionsRequest{})
	if err != nil {
		return nil, callError(ctx, "list sessions", err)
	}
	return all(m.GetSession(), sessionFromProto), nil
}

// Paths returns the paths of a session, named by name or id; with "", of all.
func (v *Volumes) Paths(ctx context.Context, session string) ([]VolumePath, error) {
	req := &rdsdv1.VolumeListPathsRequest{}
	req.SetSession(session)
	m, err := v.pb.ListPaths(ctx, req)
	if err != nil {
		return nil, callError(ctx, "list paths", err)
	}
	return all(m.GetPath(), pathFromProto), nil
}

// AddPath adds a path to a client's session.
func (v *Volumes) AddPath(ctx context.Context, session string, p PathSpec, opts ...PathOption) (*VolumePath, error) {
	m, err := v.pb.AddPath(ctx, pathRequest(session, p, opts))
	if err != nil {
		return nil, callError(ctx, "add path", err)
	}
	path := pathFromProto(m)
	return &path, nil
}

// RemovePath takes a path from a client's session; requests on it move to others.
func (v *Volumes) RemovePath(ctx context.Context, session string, p PathSpec, opts ...PathOption) error {
	_, err := v.pb.RemovePath(ctx, pathRequest(session, p, opts))
	return callError(ctx, "remove path", err)
}

// DisconnectPath closes a path. A client's stays so until ReconnectPath; one of
// a server comes back if the client wants it to.
func (v *Volumes) DisconnectPath(ctx context.Context, session string, p PathSpec, opts ...PathOption) error {
	_, err := v.pb.DisconnectPath(ctx, pathRequest(session, p, opts))
	return callError(ctx, "disconnect path", err)
}

// ReconnectPath connects a client's path again, at once.
func (v *Volumes) ReconnectPath(ctx context.Context, session string, p PathSpec, opts ...PathOption) error {
	_, err := v.pb.ReconnectPath(ctx, pathRequest(session, p, opts))
	return callError(ctx, "reconnect path", err)
}

// SetPolicy changes how a client's session chooses among its paths.
func (v *Volumes) SetPolicy(ctx context.Context, session string, policy VolumePolicy) error {
	if policy == "" {
		return &OpError{Op: "set policy", Err: rdserr.With(rdserr.ErrInvalid, "no policy; want one of %q or another that the daemon has", policyWords[1:])}
	}
	req := &rdsdv1.VolumeSetPolicyRequest{}
	req.SetSession(session)
	setPolicy(req, policy)
	_, err := v.pb.SetPolicy(ctx, req)
	return callError(ctx, "set policy", err)
}

// SetSession changes settings of a client's session while it is in use, and those of its
// mappings, which a persistent one keeps. It returns the session as it is then.
func (v *Volumes) SetSession(ctx context.Context, session string, change SessionChange) (*VolumeSession, error) {
	unfenced, err := word[rdsdv1.VolumeUnfenced]("what to do without a fence", unfencedWords, change.Unfenced)
	if err != nil {
		return nil, &OpError{Op: "set session", Err: err}
	}
	req := &rdsdv1.VolumeSetSessionRequest{}
	req.SetSession(session)
	req.SetPolicyName(string(change.Policy))
	req.SetUnfenced(unfenced)
	req.SetUnfencedAfterNs(int64(change.UnfencedAfter))
	req.SetMaxReconnectAttempts(int32(change.MaxReconnectAttempts))
	m, err := v.pb.SetSession(ctx, req)
	if err != nil {
		return nil, callError(ctx, "set session", err)
	}
	s := sessionFromProto(m)
	return &s, nil
}

// ResetStats sets the statistics of a path to 0; with the zero PathSpec of all
// paths of the session, and with session "" of all sessions.
func (v *Volumes) ResetStats(ctx context.Context, session string, p PathSpec) error {
	req := &rdsdv1.VolumeResetStatsRequest{}
	req.SetSession(session)
	if p != (PathSpec{}) {
		req.SetPath(pathSpecToProto(p))
	}
	_, err := v.pb.ResetStats(ctx, req)
	return callError(ctx, "reset statistics", err)
}

func pathRequest(session string, p PathSpec, opts []PathOption) *rdsdv1.VolumePathRequest {
	req := &rdsdv1.VolumePathRequest{}
	req.SetSession(session)
	req.SetPath(pathSpecToProto(p))
	for _, o := range opts {
		o(req)
	}
	return req
}

// PathOption is how a call about a path is made.
type PathOption func(*rdsdv1.VolumePathRequest)

// UntilDone has a call return when it is done, and not when it is begun: AddPath and ReconnectPath when
// the path is connected, DisconnectPath and RemovePath when its links are closed. The end of
// the call's context ends the waiting, not what was begun; a path that fails to connect ends it
// with the reason.
func UntilDone() PathOption {
	return func(r *rdsdv1.VolumePathRequest) { r.SetWait(true) }
}
