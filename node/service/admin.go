package service

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rdserr"
)

// adminServer is the service Admin. Reading needs no right beyond the socket;
// changing needs root, the daemon's own user or one of api.admin_uids.
type adminServer struct {
	rdsdv1.UnimplementedAdminServer
	front *Front
}

// mayChange refuses a caller who is no administrator.
func (f *Front) mayChange(ctx context.Context, what string) error {
	id := identityFrom(ctx)
	if f.deps.Conf().IsAdmin(id, uint32(os.Getuid())) {
		f.deps.Log.Info("administration", "call", what, "uid", id.UID, "pid", id.PID)
		return nil
	}
	f.deps.Count.AdminDenied.Add(1)
	f.deps.Log.Warn("administration refused", "call", what, "uid", id.UID, "pid", id.PID)
	if id.Remote {
		return rdserr.With(rdserr.ErrPerm, "%s is for administrators; remote clients have no identity, use the Unix socket", what)
	}
	return rdserr.With(rdserr.ErrPerm, "%s is for administrators; uid %d is not root, the daemon's user or one of api.admin_uids%s", what, id.UID, id.NoName())
}

// GetStatus describes the node as a whole.
func (a *adminServer) GetStatus(ctx context.Context, _ *rdsdv1.GetStatusRequest) (*rdsdv1.Status, error) {
	return a.front.status.get(ctx, a.front.makeStatus)
}

func (f *Front) makeStatus() *rdsdv1.Status {
	var s snapshot
	f.snapshot(&s)
	st := &rdsdv1.Status{}
	st.SetVersion(base.Version())
	st.SetInstance(f.deps.Instance)
	st.SetUptimeNs(uint64(time.Since(f.deps.Started)))
	st.SetState(f.deps.State())
	var locals [][]byte
	for _, l := range f.deps.Config.RDS.Addresses {
		locals = append(locals, l.AsSlice())
	}
	st.SetLocalAddress(locals)
	st.SetRdsPort(uint32(f.deps.Config.RDS.Port))
	st.SetPeers(uint32(len(s.Peers)))
	up := 0
	for i := range s.Peers {
		if s.Peers[i].Up {
			up++
		}
	}
	st.SetPeersUp(uint32(up))
	st.SetSockets(uint32(s.sockets))
	st.SetConfigFile(f.deps.Config.File())
	var list []*rdsdv1.Budget
	for _, b := range append(s.Budgets, s.holders...) {
		if b.Name == "memory" {
			st.SetMemoryUsedBytes(b.Used)
			st.SetMemoryBudgetBytes(b.Limit)
		}
		x := &rdsdv1.Budget{}
		x.SetName(b.Name)
		x.SetUsed(b.Used)
		x.SetLimit(b.Limit)
		x.SetRefused(b.Refused)
		list = append(list, x)
	}
	st.SetBudget(list)
	f.examine(&s, st)
	return st
}

// Ping measures a round trip to another node.
func (a *adminServer) Ping(ctx context.Context, r *rdsdv1.PingRequest) (*rdsdv1.PingResponse, error) {
	local, err := optionalAddr("local", r.GetLocal())
	if err != nil {
		return nil, err
	}
	remote, err := address("remote", r.GetRemote())
	if err != nil {
		return nil, err
	}
	timeout := time.Duration(r.GetTimeoutNs())
	switch {
	case timeout < 0:
		return nil, rdserr.With(rdserr.ErrInvalid, "timeout_ns is %d; want 0 (5 s) or more", r.GetTimeoutNs())
	case timeout == 0:
		timeout = 5 * time.Second
	}
	leave, err := a.front.pings.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	id := identityFrom(ctx)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	by := datagram.Pinger{UID: id.UID, May: a.front.deps.Conf().Bindable(id)}
	from, rtt, err := a.front.deps.Host.Ping(ctx, by, local, remote)
	if err != nil {
		return nil, err
	}
	resp := &rdsdv1.PingResponse{}
	resp.SetLocal(from.AsSlice())
	resp.SetRttNs(uint64(rtt))
	return resp, nil
}

// DropPath gives up links, which then reconnect.
func (a *adminServer) DropPath(ctx context.Context, r *rdsdv1.DropPathRequest) (*rdsdv1.DropPathResponse, error) {
	if err := a.front.mayChange(ctx, "DropPath"); err != nil {
		return nil, err
	}
	local, err := optionalAddr("local", r.GetLocal())
	if err != nil {
		return nil, err
	}
	remote, err := address("remote", r.GetRemote())
	if err != nil {
		return nil, err
	}
	lane := -1
	if !r.GetAllLanes() {
		if lane = int(r.GetLane()); lane > 7 {
			return nil, rdserr.With(rdserr.ErrInvalid, "lane is %d; want 0 to 7, or all_lanes", lane)
		}
	}
	known := false
	for _, h := range a.front.deps.Host.Locals() {
		if local.IsValid() && h.Addr() != local {
			continue
		}
		e, _ := h.Lock()
		known = known || e.Known(remote) != nil
		h.Unlock()
	}
	if !known {
		return nil, rdserr.With(rdserr.ErrNotFound, "no peer %v%s", remote, fromLocal(local))
	}
	resp := &rdsdv1.DropPathResponse{}
	resp.SetDropped(uint32(a.front.deps.Host.DropLane(local, remote, lane)))
	return resp, nil
}

// CancelSent is cancel_sent_to on somebody's socket.
func (a *adminServer) CancelSent(ctx context.Context, r *rdsdv1.CancelSentRequest) (*rdsdv1.CancelSentResponse, error) {
	if err := a.front.mayChange(ctx, "CancelSent"); err != nil {
		return nil, err
	}
	local, err := client.Endpoint("local", r.GetLocal())
	if err != nil {
		return nil, err
	}
	dst, err := client.Endpoint("destination", r.GetDestination())
	if err != nil {
		return nil, err
	}
	h, err := a.front.deps.Host.Local(local.Addr())
	if err != nil {
		return nil, err
	}
	e, _ := h.Lock()
	s := e.Socket(local.Port())
	h.Unlock()
	if s == nil {
		return nil, rdserr.With(rdserr.ErrNotFound, "no socket is bound to %v", local)
	}
	cancelled, begun, err := client.Cancel(ctx, h, s, dst)
	if err != nil {
		return nil, err
	}
	resp := &rdsdv1.CancelSentResponse{}
	resp.SetCancelled(uint64(cancelled))
	resp.SetInFlight(uint64(begun))
	return resp, nil
}

// CloseSocket takes a socket away from its owner.
func (a *adminServer) CloseSocket(ctx context.Context, r *rdsdv1.CloseSocketRequest) (*rdsdv1.CloseSocketResponse, error) {
	if err := a.front.mayChange(ctx, "CloseSocket"); err != nil {
		return nil, err
	}
	local, err := client.Endpoint("local", r.GetLocal())
	if err != nil {
		return nil, err
	}
	h, err := a.front.deps.Host.Local(local.Addr())
	if err != nil {
		return nil, err
	}
	e, _ := h.Lock()
	s := e.Socket(local.Port())
	h.Unlock()
	// Not ErrClosed, which clients take for their own Close: they would drop what is unread, and the words.
	if s == nil || !client.End(s, rdserr.With(rdserr.ErrReset, "closed by an administrator (uid %d)", identityFrom(ctx).UID)) {
		return nil, rdserr.With(rdserr.ErrNotFound, "no application's socket is bound to %v", local)
	}
	return &rdsdv1.CloseSocketResponse{}, nil
}

// address checks a bare address; field is its name in the message.
func address(field string, b []byte) (netip.Addr, error) {
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return addr, rdserr.With(rdserr.ErrInvalid, "%s has %d bytes; want 4 (IPv4) or 16 (IPv6)", field, len(b))
	}
	return addr.Unmap(), nil
}

// optionalAddr is address for a field that may be empty.
func optionalAddr(field string, b []byte) (netip.Addr, error) {
	if len(b) == 0 {
		return netip.Addr{}, nil
	}
	return address(field, b)
}

func fromLocal(local netip.Addr) string {
	if !local.IsValid() {
		return ""
	}
	return fmt.Sprintf(" of local address %v", local)
}
