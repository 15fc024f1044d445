package cli

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// fakeAdmin is the admin service of a daemon with a fixed story: one rdsd peer
// that is up, one kernel peer that is connecting, a congested port here and
// one there.
type fakeAdmin struct {
	rdsdv1.UnimplementedAdminServer
}

func ep(s string) *rdsdv1.Endpoint {
	a := netip.MustParseAddrPort(s)
	return rdsdv1.Endpoint_builder{Address: a.Addr().AsSlice(), Port: uint32(a.Port())}.Build()
}

func ip(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// serveFake serves it at path, in the way of more, until the function it returns is called.
func serveFake(path string, more ...grpc.ServerOption) (func(), error) {
	os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer(append(more, grpc.UnaryInterceptor(rdsdv1.UnaryErrno), grpc.StreamInterceptor(rdsdv1.StreamErrno))...)
	rdsdv1.RegisterAdminServer(s, fakeAdmin{})
	v, err := newFakeVolumes(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	rdsdv1.RegisterVolumeServiceServer(s, v)
	go s.Serve(l) // ended by Stop
	return func() { s.Stop(); v.stop() }, nil
}

func (fakeAdmin) GetStatus(context.Context, *rdsdv1.GetStatusRequest) (*rdsdv1.Status, error) {
	return rdsdv1.Status_builder{
		Version: "1.2.3", Instance: 0xabc, UptimeNs: 90e9, State: "serving",
		LocalAddress: [][]byte{ip("10.0.0.1"), ip("fd00::1")}, RdsPort: 16385, Peers: 2, PeersUp: 1, Sockets: 1,
		MemoryUsedBytes: 3 << 20, MemoryBudgetBytes: 1 << 30, ConfigFile: "/etc/rdsd/rdsd.toml",
		Budget: []*rdsdv1.Budget{
			rdsdv1.Budget_builder{Name: "memory", Used: 3 << 20, Limit: 1 << 30}.Build(),
			rdsdv1.Budget_builder{Name: "peers", Used: 2, Limit: 4096, Refused: 7}.Build(),
		},
		HttpAddress: "127.0.0.1:16386", Severity: rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_ERROR,
		Problem: []*rdsdv1.Problem{
			rdsdv1.Problem_builder{
				Code: "peer-down", Severity: rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_ERROR, Subject: "peer 10.0.0.3", SinceNs: 12e9,
				Text: "10.0.0.3 cannot be reached: connection refused; 8 datagrams waiting", Remedy: "start rdsd on 10.0.0.3",
			}.Build(),
			rdsdv1.Problem_builder{
				Code: "no-ledger", Severity: rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_NOTE, Subject: "api.ledger", Text: "there is no ledger", Remedy: `api.ledger = ""`,
			}.Build(),
		},
	}.Build(), nil
}

func (fakeAdmin) ListPeers(_ context.Context, req *rdsdv1.ListPeersRequest) (*rdsdv1.ListPeersResponse, error) {
	all := []*rdsdv1.Peer{
		rdsdv1.Peer_builder{
			Local: ip("10.0.0.1"), Remote: ip("10.0.0.2"), Kind: rdsdv1.PeerKind_PEER_KIND_RDSD, Incarnation: 9, Lanes: 2, RttNs: 123456,
			Path: []*rdsdv1.Path{
				rdsdv1.Path_builder{State: rdsdv1.PathState_PATH_STATE_UP, NextTxSeq: 41, NextRxSeq: 17, LocalEndpoint: "10.0.0.1:40000", RemoteEndpoint: "10.0.0.2:16385", UpSinceNs: 60e9, Reconnects: 1, SentBytes: 4096, ReceivedBytes: 2048, SendCredits: 64}.Build(),
				rdsdv1.Path_builder{Index: 1, State: rdsdv1.PathState_PATH_STATE_CONNECTING}.Build(),
			},
			VolumePath: []*rdsdv1.VolumePath{
				rdsdv1.VolumePath_builder{Session: "n1@n2", Role: rdsdv1.VolumeRole_VOLUME_ROLE_CLIENT, Source: "10.0.0.1:40112", Destination: "10.0.0.2:16388",
					State: rdsdv1.VolumePathState_VOLUME_PATH_STATE_CONNECTED, StateNs: 30e9, Reads: 2, ReadBytes: 8192, Writes: 1, WriteBytes: 512}.Build(),
				rdsdv1.VolumePath_builder{Session: "n2@n1", Role: rdsdv1.VolumeRole_VOLUME_ROLE_SERVER, Source: "10.0.0.2:40113", Destination: "10.0.0.1:16388",
					State: rdsdv1.VolumePathState_VOLUME_PATH_STATE_RECONNECTING, StateNs: 1e9, LastError: "connection reset"}.Build(),
			},
		}.Build(),
		rdsdv1.Peer_builder{
			Local: ip("10.0.0.1"), Remote: ip("10.0.0.3"), Kind: rdsdv1.PeerKind_PEER_KIND_KERNEL_LEGACY, Lanes: 1,
			Queued: 5, QueuedBytes: 5000, Unacked: 3, CongestedPorts: 1,
			Path: []*rdsdv1.Path{rdsdv1.Path_builder{State: rdsdv1.PathState_PATH_STATE_ERROR, LastError: "connection refused", ErrorAgeNs: 3e9, Attempts: 4, RetryInNs: 2e9}.Build()},
		}.Build(),
	}
	all = slices.DeleteFunc(all, func(p *rdsdv1.Peer) bool {
		return len(req.GetRemote()) > 0 && string(p.GetRemote()) != string(req.GetRemote())
	})
	return rdsdv1.ListPeersResponse_builder{Peer: all}.Build(), nil
}

func (fakeAdmin) ListSockets(context.Context, *rdsdv1.ListSocketsRequest) (*rdsdv1.ListSocketsResponse, error) {
	return rdsdv1.ListSocketsResponse_builder{Socket: []*rdsdv1.SocketInfo{rdsdv1.SocketInfo_builder{
		Local: ep("10.0.0.1:4000"), Uid: 1000, Pid: 77, Label: "db", SendBufferBytes: 1 << 20, RecvBufferBytes: 65536, RecvQueuedBytes: 70000,
		RecvQueued: 70, Congested: true, Accepted: 100, Delivered: 90, Cancelled: 1, Failed: 2, Unknown: 3, InFlight: 4, Received: 12, Inode: 33,
	}.Build()}}.Build(), nil
}

func (fakeAdmin) ListQueue(_ context.Context, req *rdsdv1.ListQueueRequest) (*rdsdv1.ListQueueResponse, error) {
	all := []*rdsdv1.QueuedDatagram{
		rdsdv1.QueuedDatagram_builder{Kind: rdsdv1.QueueKind_QUEUE_KIND_SEND, Local: ep("10.0.0.1:4000"), Remote: ep("10.0.0.3:4001"), Seq: 42, Bytes: 1000}.Build(),
		rdsdv1.QueuedDatagram_builder{Kind: rdsdv1.QueueKind_QUEUE_KIND_RETRANS, Local: ep("10.0.0.1:4000"), Remote: ep("10.0.0.3:4001"), Seq: 41, Bytes: 1000, Lane: 3}.Build(),
		rdsdv1.QueuedDatagram_builder{Kind: rdsdv1.QueueKind_QUEUE_KIND_RECV, Local: ep("10.0.0.1:4000"), Remote: ep("10.0.0.2:9"), Seq: 7, Bytes: 5}.Build(),
	}
	all = slices.DeleteFunc(all, func(d *rdsdv1.QueuedDatagram) bool { return req.GetKind() != 0 && d.GetKind() != req.GetKind() })
	return rdsdv1.ListQueueResponse_builder{Datagram: all, Truncated: req.GetLimit() == 3}.Build(), nil
}

func (fakeAdmin) GetCounters(_ context.Context, req *rdsdv1.GetCountersRequest) (*rdsdv1.GetCountersResponse, error) {
	if len(req.GetRemote()) > 0 && string(req.GetRemote()) != string(ip("10.0.0.2")) {
		return nil, rdserr.With(rdserr.ErrNotFound, "%s is not a peer of this daemon", addrOf(req.GetRemote()))
	}
	return rdsdv1.GetCountersResponse_builder{Counter: []*rdsdv1.Counter{
		rdsdv1.Counter_builder{Name: "conn_reset", Value: 2, Help: "connections reset"}.Build(),
		rdsdv1.Counter_builder{Name: "recv_drop_old_seq", Help: "duplicates dropped"}.Build(),
	}}.Build(), nil
}

func (fakeAdmin) ListErrors(context.Context, *rdsdv1.ListErrorsRequest) (*rdsdv1.ListErrorsResponse, error) {
	return rdsdv1.ListErrorsResponse_builder{Forgotten: 2, Error: []*rdsdv1.LoggedError{
		rdsdv1.LoggedError_builder{Warning: true, Message: "connection refused", Subject: "peer=10.0.0.9", Error: "no rule", FirstUnixNs: 1e18, LastUnixNs: 1e18 + 5e9, Count: 7}.Build(),
	}}.Build(), nil
}

func (fakeAdmin) GetConfig(context.Context, *rdsdv1.GetConfigRequest) (*rdsdv1.GetConfigResponse, error) {
	return rdsdv1.GetConfigResponse_builder{Toml: "version = 1  # default\n"}.Build(), nil
}

func (fakeAdmin) ListCongestion(context.Context, *rdsdv1.ListCongestionRequest) (*rdsdv1.ListCongestionResponse, error) {
	return rdsdv1.ListCongestionResponse_builder{LeftOut: 7, Port: []*rdsdv1.CongestedPort{
		rdsdv1.CongestedPort_builder{
			Endpoint: ep("10.0.0.1:4000"), Local: true, SinceNs: 3e9, QueuedBytes: 70000, ReaderUid: 1000, ReaderPid: 77,
			Culprit: []*rdsdv1.Culprit{
				rdsdv1.Culprit_builder{Source: ep("10.0.0.2:5000"), QueuedDatagrams: 60, QueuedBytes: 60000}.Build(),
				rdsdv1.Culprit_builder{Source: ep("10.0.0.3:5001"), QueuedDatagrams: 10, QueuedBytes: 10000}.Build(),
			},
		}.Build(),
		rdsdv1.CongestedPort_builder{Endpoint: ep("10.0.0.3:4001"), SinceNs: 1e9, WaitingSenders: 2, Blocked: 9}.Build(),
	}}.Build(), nil
}

func (fakeAdmin) GetCongestionHistory(_ context.Context, r *rdsdv1.GetCongestionHistoryRequest) (*rdsdv1.CongestionHistory, error) {
	h := rdsdv1.CongestionHistory_builder{EndUnixNs: 1e18, SlotNs: 5e9, Slots: 720, KeptNs: 3600e9,
		Port: []*rdsdv1.PortHistory{
			rdsdv1.PortHistory_builder{Endpoint: ep("10.0.0.1:4000"), Local: true, Congested: true, CongestedNs: 96e9, Times: 3, ReaderUid: 1000, ReaderPid: 77, ReaderProgram: "db",
				Slot: []uint32{0, 360, 695, 696, 719}, SlotMs: []uint32{1000, 5000, 60000, 30000, 0}, Culprit: []*rdsdv1.Culprit{rdsdv1.Culprit_builder{Source: ep("10.0.0.2:5000"), QueuedDatagrams: 70, QueuedBytes: 70000}.Build()}}.Build(),
			rdsdv1.PortHistory_builder{Endpoint: ep("10.0.0.3:4001"), CongestedNs: 1e9, Times: 1, Slot: []uint32{3}, SlotMs: []uint32{1000}}.Build(),
		}, Others: rdsdv1.PortHistory_builder{CongestedNs: 7e9, CongestedPorts: 2}.Build()}
	if r.HasEndpoint() {
		h.Port = slices.DeleteFunc(h.Port, func(p *rdsdv1.PortHistory) bool { return p.GetEndpoint().GetPort() != r.GetEndpoint().GetPort() })
		h.Others = nil
	}
	return h.Build(), nil
}

func (fakeAdmin) WatchCongestion(_ *rdsdv1.WatchCongestionRequest, s grpc.ServerStreamingServer[rdsdv1.CongestionNotice]) error {
	for _, on := range []bool{true, false} {
		if err := s.Send(rdsdv1.CongestionNotice_builder{UnixNs: 1e18, Endpoint: ep("10.0.0.3:4001"), Congested: on}.Build()); err != nil {
			return err
		}
	}
	return rdserr.With(rdserr.ErrShutdown, "the daemon is draining")
}

func (fakeAdmin) Ping(_ context.Context, req *rdsdv1.PingRequest) (*rdsdv1.PingResponse, error) {
	switch addrOf(req.GetRemote()).String() {
	case "10.0.0.2":
		return rdsdv1.PingResponse_builder{Local: ip("10.0.0.1"), RttNs: 250000}.Build(), nil
	case "10.0.0.9":
		return nil, rdserr.With(rdserr.ErrHostDown, "10.0.0.9 is not allowed as a peer; add a [[peers]] rule")
	}
	return nil, rdserr.With(rdserr.ErrTimeout, "no pong within %dms", req.GetTimeoutNs()/1e6)
}

func (fakeAdmin) DropPath(_ context.Context, req *rdsdv1.DropPathRequest) (*rdsdv1.DropPathResponse, error) {
	if addrOf(req.GetRemote()).String() != "10.0.0.2" {
		return nil, rdserr.With(rdserr.ErrNotFound, "no connection to %s", addrOf(req.GetRemote()))
	}
	if !req.GetAllLanes() {
		return rdsdv1.DropPathResponse_builder{Dropped: 1}.Build(), nil
	}
	return rdsdv1.DropPathResponse_builder{Dropped: 2}.Build(), nil
}

func (fakeAdmin) CancelSent(_ context.Context, req *rdsdv1.CancelSentRequest) (*rdsdv1.CancelSentResponse, error) {
	if req.GetLocal().GetPort() != 4000 {
		return nil, rdserr.With(rdserr.ErrPerm, "uid 1000 is not an administrator")
	}
	return rdsdv1.CancelSentResponse_builder{Cancelled: 5, InFlight: 3}.Build(), nil
}

func (fakeAdmin) CloseSocket(_ context.Context, req *rdsdv1.CloseSocketRequest) (*rdsdv1.CloseSocketResponse, error) {
	if req.GetLocal().GetPort() != 4000 {
		return nil, rdserr.With(rdserr.ErrNotFound, "nobody has bound port %d", req.GetLocal().GetPort())
	}
	return &rdsdv1.CloseSocketResponse{}, nil
}

// Trace tells of two datagrams from a node that nobody asks: a train that was read and one
// that was not, and then waits.
func (fakeAdmin) Trace(r *rdsdv1.TraceRequest, s grpc.ServerStreamingServer[rdsdv1.TraceReport]) error {
	start := rdsdv1.TraceReport_builder{Start: rdsdv1.TraceStart_builder{Clock: "boot", LocalAddress: [][]byte{ip("10.0.0.1")}}.Build()}.Build()
	at := func(stage rdsdv1.TraceStage, seq uint64, ns int64) *rdsdv1.TraceEvent {
		return rdsdv1.TraceEvent_builder{Stage: stage, UnixNs: 1e18 + ns, Source: ep("10.0.0.1:4000"), Destination: ep("10.0.0.2:4000"), Lane: 1, Sequence: seq,
			Incarnation: 9, Datagrams: 3, Member: uint32(seq % 3), Bytes: 60}.Build()
	}
	var list []*rdsdv1.TraceEvent
	for seq := uint64(1); seq <= 20; seq++ {
		left := at(rdsdv1.TraceStage_TRACE_STAGE_LEFT, seq, 3000)
		left.SetPostedUnixNs(1e18 + 1000)
		left.SetAcceptedUnixNs(1e18 + 2000)
		done := at(rdsdv1.TraceStage_TRACE_STAGE_DONE, seq, 50000)
		if done.SetOutcome(rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED); seq == 2 {
			done.SetOutcome(rdsdv1.OutcomeKind_OUTCOME_KIND_FAILED)
			done.SetReason("no such port")
		}
		list = append(list, left, done)
	}
	for _, m := range []*rdsdv1.TraceReport{start, rdsdv1.TraceReport_builder{Event: list, Dropped: 4}.Build()} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}
