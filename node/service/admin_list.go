package service

import (
	"context"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

var peerKinds = [...]rdsdv1.PeerKind{
	conn.KindUnknown:      rdsdv1.PeerKind_PEER_KIND_UNSPECIFIED,
	conn.KindRdsd:         rdsdv1.PeerKind_PEER_KIND_RDSD,
	conn.KindKernelLegacy: rdsdv1.PeerKind_PEER_KIND_KERNEL_LEGACY,
	conn.KindKernel:       rdsdv1.PeerKind_PEER_KIND_KERNEL,
}

var pathStates = [...]rdsdv1.PathState{
	conn.Down:          rdsdv1.PathState_PATH_STATE_DOWN,
	conn.Connecting:    rdsdv1.PathState_PATH_STATE_CONNECTING,
	conn.Up:            rdsdv1.PathState_PATH_STATE_UP,
	conn.Disconnecting: rdsdv1.PathState_PATH_STATE_DISCONNECTING,
	conn.Error:         rdsdv1.PathState_PATH_STATE_ERROR,
}

// ListPeers describes peers and their paths, of datagrams and of volumes.
func (a *adminServer) ListPeers(_ context.Context, r *rdsdv1.ListPeersRequest) (*rdsdv1.ListPeersResponse, error) {
	local, err := optionalAddr("local", r.GetLocal())
	if err != nil {
		return nil, err
	}
	remote, err := optionalAddr("remote", r.GetRemote())
	if err != nil {
		return nil, err
	}
	var list []*rdsdv1.Peer
	for _, h := range a.front.deps.Host.Locals() {
		if local.IsValid() && h.Addr() != local {
			continue
		}
		h.EachPeer(func(_ *rds.Engine, pe *rds.Peer) {
			if !remote.IsValid() || pe.Addr() == remote {
				list = append(list, peerPB(h, pe))
			}
		})
	}
	if h := a.front.deps.Volumes(); h != nil {
		list = withVolumes(list, h.Paths(), local, remote, time.Now())
	}
	resp := &rdsdv1.ListPeersResponse{}
	resp.SetPeer(list)
	return resp, nil
}

// peerPB describes one peer. The lock is held.
func peerPB(h *datagram.Local, pe *rds.Peer) *rdsdv1.Peer {
	c := pe.Conn()
	q := c.Queued()
	p := &rdsdv1.Peer{}
	p.SetLocal(h.Addr().AsSlice())
	p.SetRemote(pe.Addr().AsSlice())
	p.SetKind(peerKinds[c.Kind()])
	p.SetIncarnation(c.PeerIncarnation())
	p.SetLanes(uint32(c.Lanes()))
	p.SetQueued(uint64(q.Queued))
	p.SetQueuedBytes(uint64(q.QueuedBytes))
	p.SetUnacked(uint64(q.Unacked))
	p.SetUnackedBytes(uint64(q.UnackedBytes))
	p.SetHeld(uint64(q.Held))
	p.SetCongestedPorts(uint32(pe.CongestedPorts()))
	p.SetRttNs(uint64(c.RTT()))
	var paths []*rdsdv1.Path
	c.EachLane(func(cp *conn.Lane) { paths = append(paths, pathPB(h, cp)) })
	p.SetPath(paths)
	return p
}

func pathPB(h *datagram.Local, cp *conn.Lane) *rdsdv1.Path {
	i := cp.Info()
	p := &rdsdv1.Path{}
	p.SetIndex(uint32(cp.Index()))
	p.SetState(pathStates[i.State])
	p.SetNextTxSeq(i.NextTx)
	p.SetNextRxSeq(i.NextRx)
	p.SetReconnects(i.Reconnects)
	p.SetSentBytes(i.SentBytes)
	p.SetReceivedBytes(i.RxByte)
	p.SetSendCredits(uint32(max(i.Credits, 0)))
	p.SetReadPaused(i.Paused)
	if i.State == conn.Up {
		p.SetUpSinceNs(uint64(max(h.StepTime()-i.Since, 1)))
	}
	if i.LastErr != nil && i.State != conn.Up { // what is over is in the log
		p.SetLastError(i.LastErr.Error())
		p.SetErrorAgeNs(uint64(max(h.StepTime()-i.ErrAt, 1)))
	}
	p.SetAttempts(uint32(i.Attempts))
	if i.RetryAt != conn.Never {
		p.SetRetryInNs(uint64(max(i.RetryAt-h.StepTime(), 0)))
	}
	if k := h.LinkOf(cp); k != nil {
		p.SetLocalEndpoint(k.LocalAddr().String())
		p.SetRemoteEndpoint(k.RemoteAddr().String())
	}
	return p
}

// ListSockets describes every socket.
func (a *adminServer) ListSockets(context.Context, *rdsdv1.ListSocketsRequest) (*rdsdv1.ListSocketsResponse, error) {
	var list []*rdsdv1.SocketInfo
	for _, h := range a.front.deps.Host.Locals() {
		h.EachSocket(func(_ *rds.Engine, s *rds.Socket) { list = append(list, socketPB(s)) })
	}
	programs := map[uint32]string{}
	for _, p := range list {
		name, known := programs[p.GetPid()]
		if !known {
			name = access.Program(p.GetPid())
			programs[p.GetPid()] = name
		}
		p.SetProgram(name)
	}
	resp := &rdsdv1.ListSocketsResponse{}
	resp.SetSocket(list)
	return resp, nil
}

// socketPB describes a socket. Its engine's lock is held.
func socketPB(s *rds.Socket) *rdsdv1.SocketInfo {
	o, i := s.Options(), s.Info()
	p := &rdsdv1.SocketInfo{}
	p.SetLocal(client.EndpointPB(s.Addr()))
	p.SetUid(o.UID)
	p.SetPid(o.PID)
	p.SetLabel(o.Label)
	p.SetSendBufferBytes(uint64(o.SndBufBytes))
	p.SetSendQueuedBytes(uint64(i.SendQueued))
	p.SetRecvBufferBytes(uint64(o.RcvBufBytes))
	p.SetRecvQueuedBytes(uint64(i.RecvQueued))
	p.SetRecvHardLimitBytes(uint64(i.Hard))
	p.SetRecvQueued(uint64(i.RecvN))
	p.SetCongested(i.Congested)
	p.SetAccepted(i.Stats.Accepted)
	p.SetDelivered(i.Stats.Delivered)
	p.SetCancelled(i.Stats.Cancelled)
	p.SetFailed(i.Stats.Failed)
	p.SetUnknown(i.Stats.Unknown)
	p.SetInFlight(uint64(i.Undecided))
	p.SetReceived(i.Stats.Received)
	p.SetWaitingSends(uint32(i.Waiting))
	p.SetInode(i.ID)
	if used, most, ok := client.RingBytes(s); ok {
		p.SetRingBytes(used)
		p.SetRingMaxBytes(most)
	}
	return p
}

const (
	defaultQueueLimit = 1000
	// maxQueueLimit keeps the answer below a message's size, and the lock short.
	maxQueueLimit = 20000
)

// ListQueue shows datagrams that wait somewhere.
func (a *adminServer) ListQueue(_ context.Context, r *rdsdv1.ListQueueRequest) (*rdsdv1.ListQueueResponse, error) {
	limit := int(r.GetLimit())
	switch {
	case limit == 0:
		limit = defaultQueueLimit
	case limit > maxQueueLimit:
		return nil, rdserr.With(rdserr.ErrInvalid, "limit is %d; want at most %d", limit, maxQueueLimit)
	}
	kind := r.GetKind()
	if kind < 0 || kind > rdsdv1.QueueKind_QUEUE_KIND_RECV {
		return nil, rdserr.With(rdserr.ErrInvalid, "kind is %d; want 0 (all) to 3", kind)
	}
	q := &queueLister{want: kind, limit: limit}
	locals := a.front.deps.Host.Locals()
	if r.HasLocal() {
		at, err := client.Endpoint("local", r.GetLocal())
		if err != nil {
			return nil, err
		}
		h, err := a.front.deps.Host.Local(at.Addr())
		if err != nil {
			return nil, err
		}
		q.local, locals = at, []*datagram.Local{h}
	}
	for _, h := range locals {
		if r.HasLocal() { // before what may end with others' looked at and not its own
			q.receives(h)
			q.sends(h)
			continue
		}
		q.sends(h)
		q.receives(h)
	}
	resp := &rdsdv1.ListQueueResponse{}
	resp.SetDatagram(q.list)
	resp.SetTruncated(q.truncated)
	return resp, nil
}

// GetCounters returns the node's counters, or one peer's.
func (a *adminServer) GetCounters(_ context.Context, r *rdsdv1.GetCountersRequest) (*rdsdv1.GetCountersResponse, error) {
	remote, err := optionalAddr("remote", r.GetRemote())
	if err != nil {
		return nil, err
	}
	var s snapshot
	a.front.snapshot(&s)
	sum := s.Counters
	if remote.IsValid() {
		sum = stats.Counters{}
		found := false
		for i := range s.Peers {
			if s.Peers[i].Remote == remote {
				found = true
				sum.Add(&s.Peers[i].Counters)
			}
		}
		if !found {
			return nil, rdserr.With(rdserr.ErrNotFound, "no peer %v", remote)
		}
	}
	var list []*rdsdv1.Counter
	add := func(name, help string, v uint64) {
		c := &rdsdv1.Counter{}
		c.SetName(name)
		c.SetValue(v)
		c.SetHelp(help)
		list = append(list, c)
	}
	values := sum.Values(nil)
	for i, f := range stats.Fields {
		add(f.Name, f.Help, values[i])
	}
	if !remote.IsValid() {
		own := base.CounterTable.Read(nil, a.front.deps.Count)
		for i, d := range base.CounterTable.Descs() {
			add(d.Name, d.Help, own[i])
		}
		add("connections_refused", "connections of peers refused, for any reason", s.RefusedLinks)
	}
	resp := &rdsdv1.GetCountersResponse{}
	resp.SetCounter(list)
	return resp, nil
}
