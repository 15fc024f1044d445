package rdsd

import (
	"context"
	"net/netip"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// Admin looks at a daemon and changes what it does with datagrams: its peers, its
// sockets and its queues, of all clients. Reading needs no right beyond the daemon's
// socket. DropPaths, DropPath, CancelSent, CloseSocket and Trace need an administrator:
// root, the daemon's user, or one of api.admin_uids. It has no state and is safe for
// concurrent use.
//
// Every error is an *OpError; errors.Is finds rdserr.ErrNotFound (no such peer or
// socket), ErrPerm (not an administrator), ErrInvalid, ErrRateLimited, ErrTimeout,
// ErrShutdown (no daemon, or it is ending) and, after the end of a context, the
// context's error.
type Admin struct {
	pb rdsdv1.AdminClient
}

// Admin is the part of the client for administrators.
func (c *Client) Admin() *Admin { return &Admin{c.AdminService()} }

// AdminService is the raw service of the same daemon. Its errors are gRPC
// statuses; rdsdv1.ErrorFromStatus gives their errno.
func (c *Client) AdminService() rdsdv1.AdminClient { return rdsdv1.NewAdminClient(c.door()) }

// Status returns the daemon as a whole: version, addresses, budgets, and what is not as
// it should be.
func (a *Admin) Status(ctx context.Context) (*Status, error) {
	m, err := a.pb.GetStatus(ctx, &rdsdv1.GetStatusRequest{})
	if err != nil {
		return nil, callError(ctx, "status", err)
	}
	return statusFromProto(m), nil
}

// Peers returns the peers that f fits, with their paths.
func (a *Admin) Peers(ctx context.Context, f PeerFilter) ([]Peer, error) {
	req := &rdsdv1.ListPeersRequest{}
	req.SetLocal(f.Local.AsSlice())
	req.SetRemote(f.Remote.AsSlice())
	m, err := a.pb.ListPeers(ctx, req)
	if err != nil {
		return nil, callError(ctx, "list peers", err)
	}
	return all(m.GetPeer(), peerFromProto), nil
}

// Sockets returns the sockets of all clients.
func (a *Admin) Sockets(ctx context.Context) ([]SocketInfo, error) {
	m, err := a.pb.ListSockets(ctx, &rdsdv1.ListSocketsRequest{})
	if err != nil {
		return nil, callError(ctx, "list sockets", err)
	}
	return all(m.GetSocket(), socketFromProto), nil
}

// Queue returns at most limit datagrams that wait in the queues of a kind, and
// whether there are more. With limit 0 it returns at most 1000.
func (a *Admin) Queue(ctx context.Context, kind QueueKind, limit uint32) (list []QueuedDatagram, truncated bool, err error) {
	k, err := word[rdsdv1.QueueKind]("the queue", queueWords, kind)
	if err != nil {
		return nil, false, &OpError{Op: "list queue", Err: err}
	}
	req := &rdsdv1.ListQueueRequest{}
	req.SetKind(k)
	req.SetLimit(limit)
	m, err := a.pb.ListQueue(ctx, req)
	if err != nil {
		return nil, false, callError(ctx, "list queue", err)
	}
	return all(m.GetDatagram(), queuedFromProto), m.GetTruncated(), nil
}

// Counters returns the counters of the daemon, under the names the kernel's rds-info
// uses and in its order, those of rdsd alone after them. With a valid peer it returns
// those of that peer: ErrNotFound if there is none at the address.
func (a *Admin) Counters(ctx context.Context, peer netip.Addr) ([]Counter, error) {
	req := &rdsdv1.GetCountersRequest{}
	req.SetRemote(peer.AsSlice())
	m, err := a.pb.GetCounters(ctx, req)
	if err != nil {
		return nil, callError(ctx, "counters", err)
	}
	return all(m.GetCounter(), counterFromProto), nil
}

// Congestion returns the ports that are congested, as seen from the daemon's node, and about how
// many more there are that it did not list.
func (a *Admin) Congestion(ctx context.Context) (list []CongestedPort, leftOut int, err error) {
	m, err := a.pb.ListCongestion(ctx, &rdsdv1.ListCongestionRequest{})
	if err != nil {
		return nil, 0, callError(ctx, "list congestion", err)
	}
	return all(m.GetPort(), congestedFromProto), int(m.GetLeftOut()), nil
}

// CongestionHistory returns the last hour of congestion, of one port or, if that is not
// valid, of all, those that were congested for longest first.
func (a *Admin) CongestionHistory(ctx context.Context, port netip.AddrPort) (*CongestionHistory, error) {
	req := &rdsdv1.GetCongestionHistoryRequest{}
	if port.IsValid() {
		req.SetEndpoint(endpointToProto(port))
	}
	m, err := a.pb.GetCongestionHistory(ctx, req)
	if err != nil {
		return nil, callError(ctx, "congestion history", err)
	}
	return historyFromProto(m), nil
}

// CongestionMaps returns which of the 65,536 ports of nodes are congested, of one node or,
// if its address is not valid, of all that have one, those with most first.
func (a *Admin) CongestionMaps(ctx context.Context, node netip.Addr) (*CongestionMaps, error) {
	req := &rdsdv1.ListCongestionMapsRequest{}
	req.SetRemote(node.AsSlice())
	m, err := a.pb.ListCongestionMaps(ctx, req)
	if err != nil {
		return nil, callError(ctx, "congestion maps", err)
	}
	return &CongestionMaps{Maps: all(m.GetMap(), mapFromProto), LeftOut: int(m.GetLeftOut())}, nil
}

// Errors returns the distinct warnings and errors of the daemon's log.
func (a *Admin) Errors(ctx context.Context) (*ErrorLog, error) {
	m, err := a.pb.ListErrors(ctx, &rdsdv1.ListErrorsRequest{})
	if err != nil {
		return nil, callError(ctx, "list errors", err)
	}
	return &ErrorLog{Errors: all(m.GetError(), loggedFromProto), Forgotten: m.GetForgotten()}, nil
}

// Config returns the daemon's configuration as it is now: a file in TOML that loads
// again, in which each line says where its value came from. What is secret is not in it.
func (a *Admin) Config(ctx context.Context) (string, error) {
	m, err := a.pb.GetConfig(ctx, &rdsdv1.GetConfigRequest{})
	if err != nil {
		return "", callError(ctx, "configuration", err)
	}
	return m.GetToml(), nil
}

// Ping sends an RDS ping to a node and returns its answer. Every rdsd and every
// kernel answers; no application is needed there. ErrTimeout: no answer within
// s.Timeout; ErrHostDown: the node cannot be reached, or is not allowed as a peer.
func (a *Admin) Ping(ctx context.Context, s PingSpec) (*Pong, error) {
	req := &rdsdv1.PingRequest{}
	req.SetLocal(s.Local.AsSlice())
	req.SetRemote(s.Remote.AsSlice())
	req.SetTimeoutNs(int64(s.Timeout))
	m, err := a.pb.Ping(ctx, req)
	if err != nil {
		return nil, callError(ctx, "ping", err)
	}
	return pongFromProto(m), nil
}

// DropPaths drops the links of all lanes to a peer, as a network fault does, and
// returns how many. They come back by themselves, and what was not acknowledged is
// sent again. f.Remote is needed. ErrNotFound: there is no such peer.
func (a *Admin) DropPaths(ctx context.Context, f PeerFilter) (int, error) {
	req := dropRequest(f)
	req.SetAllLanes(true)
	return a.drop(ctx, req)
}

// DropPath is DropPaths for the lane of one index (PeerPath.Index) alone.
func (a *Admin) DropPath(ctx context.Context, f PeerFilter, index uint32) (int, error) {
	req := dropRequest(f)
	req.SetLane(index)
	return a.drop(ctx, req)
}

func dropRequest(f PeerFilter) *rdsdv1.DropPathRequest {
	req := &rdsdv1.DropPathRequest{}
	req.SetLocal(f.Local.AsSlice())
	req.SetRemote(f.Remote.AsSlice())
	return req
}

func (a *Admin) drop(ctx context.Context, req *rdsdv1.DropPathRequest) (int, error) {
	m, err := a.pb.DropPath(ctx, req)
	if err != nil {
		return 0, callError(ctx, "drop", err)
	}
	return int(m.GetDropped()), nil
}

// CancelSent drops what the socket bound to local has queued to a destination (with
// port 0, to every port of its address), as Socket.CancelSentTo does for the socket's
// own application. ErrNotFound: nobody has bound local.
func (a *Admin) CancelSent(ctx context.Context, local, destination netip.AddrPort) (CancelResult, error) {
	req := &rdsdv1.CancelSentRequest{}
	req.SetLocal(endpointToProto(local))
	req.SetDestination(endpointToProto(destination))
	m, err := a.pb.CancelSent(ctx, req)
	if err != nil {
		return CancelResult{}, callError(ctx, "cancel", err)
	}
	return CancelResult{Cancelled: m.GetCancelled(), InFlight: m.GetInFlight()}, nil
}

// CloseSocket closes the socket that an application has bound to local: what it had
// queued is cancelled, its calls fail with ErrReset once what had arrived was received, and
// it does not bind itself again.
// ErrNotFound: nobody has bound local.
func (a *Admin) CloseSocket(ctx context.Context, local netip.AddrPort) error {
	req := &rdsdv1.CloseSocketRequest{}
	req.SetLocal(endpointToProto(local))
	_, err := a.pb.CloseSocket(ctx, req)
	return callError(ctx, "close socket", err)
}
