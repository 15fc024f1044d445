package rdsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

var (
	hereAddr  = netip.MustParseAddr("10.0.0.1")
	thereAddr = netip.MustParseAddr("fd00::2")
	hereEnd   = netip.MustParseAddrPort("10.0.0.1:4000")
	thereEnd  = netip.MustParseAddrPort("[fd00::2]:65535")
)

// adminCall is one call of Admin: what it asks for, what the daemon answers, and
// what the SDK makes of that.
type adminCall struct {
	op     string
	call   func(context.Context, *Admin) (any, error)
	req    proto.Message
	answer proto.Message
	want   any
}

// aPortHistory has something of its own in every field; readPortHistory is the same.
var (
	aPortHistory = rdsdv1.PortHistory_builder{
		Endpoint: endpointToProto(thereEnd), Local: true, Congested: true, CongestedNs: 5, Times: 6, Slot: []uint32{7, 8}, SlotMs: []uint32{9, 10},
		ReaderUid: 11, ReaderPid: 12, ReaderProgram: "reader", CongestedPorts: 13,
		Culprit: []*rdsdv1.Culprit{rdsdv1.Culprit_builder{Source: endpointToProto(hereEnd), QueuedDatagrams: 14, QueuedBytes: 15}.Build()},
	}.Build()
	readPortHistory = PortHistory{
		Endpoint: thereEnd, Local: true, Congested: true, CongestedFor: 5, Times: 6, Slots: []PortSlot{{7, 9 * time.Millisecond}, {8, 10 * time.Millisecond}},
		ReaderUID: 11, ReaderPID: 12, ReaderProgram: "reader", CongestedPorts: 13, Culprits: []Culprit{{hereEnd, 14, 15}},
	}
)

// aVolumePath has something of its own in every field.
var aVolumePath = rdsdv1.VolumePath_builder{
	Session: "session", SessionId: "id", Role: rdsdv1.VolumeRole_VOLUME_ROLE_SERVER, Source: "src", Destination: "dst",
	State: rdsdv1.VolumePathState_VOLUME_PATH_STATE_CONNECTED, StateNs: 21, Epoch: 22, Connections: 23, CurLatencyNs: 24, Reconnects: 25, ReconnectsFailed: 26,
	Reads: 27, ReadBytes: 28, Writes: 29, WriteBytes: 30, InFlight: 31, Failovers: 32, LastError: "broken", ErrorAgeNs: 33, Attempts: 34, RetryInNs: 35,
	Transport: "ib", Device: "soft-10.0.0.1", Port: 36,
}.Build()

// TestPeerForVolumes: the state of a peer is that of its lanes; one that has nothing but
// paths of volumes has theirs.
func TestPeerForVolumes(t *testing.T) {
	path := func(s rdsdv1.VolumePathState) *rdsdv1.VolumePath {
		return rdsdv1.VolumePath_builder{State: s, LastError: "why"}.Build()
	}
	up, again, gone := path(rdsdv1.VolumePathState_VOLUME_PATH_STATE_CONNECTED), path(rdsdv1.VolumePathState_VOLUME_PATH_STATE_RECONNECTING), path(rdsdv1.VolumePathState_VOLUME_PATH_STATE_DISCONNECTED)
	for _, c := range []struct {
		lanes   []*rdsdv1.Path
		volumes []*rdsdv1.VolumePath
		want    PeerState
	}{
		{nil, nil, StateUnknown},
		{nil, []*rdsdv1.VolumePath{gone}, StateDown},
		{nil, []*rdsdv1.VolumePath{gone, again}, StateConnecting},
		{nil, []*rdsdv1.VolumePath{up, again}, StateUp},
		{[]*rdsdv1.Path{rdsdv1.Path_builder{State: rdsdv1.PathState_PATH_STATE_ERROR}.Build()}, []*rdsdv1.VolumePath{up}, StateError},
	} {
		p := peerFromProto(rdsdv1.Peer_builder{Path: c.lanes, VolumePath: c.volumes}.Build())
		if p.State != c.want || (p.LastError == "why") != (len(c.lanes) == 0 && len(c.volumes) > 0) {
			t.Errorf("%d lanes, volumes %v: %s, %q; want %s", len(c.lanes), c.volumes, p.State, p.LastError, c.want)
		}
	}
}

// adminCalls are all calls but the watch. Each field of an answer has a value that no
// other field of the same type in it has.
var adminCalls = []adminCall{
	{
		"status", func(ctx context.Context, a *Admin) (any, error) { return a.Status(ctx) },
		&rdsdv1.GetStatusRequest{},
		rdsdv1.Status_builder{
			Version: "1.2.3", Instance: 1, UptimeNs: 2, State: "serving", LocalAddress: [][]byte{hereAddr.AsSlice(), thereAddr.AsSlice()},
			RdsPort: 16385, Peers: 3, PeersUp: 4, Sockets: 5, MemoryUsedBytes: 6, MemoryBudgetBytes: 7, ConfigFile: "/etc/rdsd.toml",
			Budget:      []*rdsdv1.Budget{rdsdv1.Budget_builder{Name: "memory", Used: 8, Limit: 9, Refused: 10}.Build()},
			HttpAddress: "127.0.0.1:16386", Healthy: true, Severity: rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_NOTE,
			Problem: []*rdsdv1.Problem{rdsdv1.Problem_builder{
				Code: "peer-down", Severity: rdsdv1.ProblemSeverity_PROBLEM_SEVERITY_ERROR, Subject: "peer", Text: "text", Remedy: "remedy", SinceNs: 11,
			}.Build()},
		}.Build(),
		&Status{
			Version: "1.2.3", Instance: 1, Uptime: 2, State: "serving", LocalAddresses: []netip.Addr{hereAddr, thereAddr},
			RDSPort: 16385, Peers: 3, PeersUp: 4, Sockets: 5, MemoryUsedBytes: 6, MemoryBudgetBytes: 7, ConfigFile: "/etc/rdsd.toml",
			Budgets:     []Budget{{Name: "memory", Used: 8, Limit: 9, Refused: 10}},
			HTTPAddress: "127.0.0.1:16386", Healthy: true, Severity: SeverityNote,
			Problems: []Problem{{Code: "peer-down", Severity: SeverityError, Subject: "peer", Text: "text", Remedy: "remedy", Since: 11}},
		},
	},
	{
		"list peers", func(ctx context.Context, a *Admin) (any, error) { return a.Peers(ctx, PeerFilter{hereAddr, thereAddr}) },
		rdsdv1.ListPeersRequest_builder{Local: hereAddr.AsSlice(), Remote: thereAddr.AsSlice()}.Build(),
		rdsdv1.ListPeersResponse_builder{Peer: []*rdsdv1.Peer{rdsdv1.Peer_builder{
			Local: hereAddr.AsSlice(), Remote: thereAddr.AsSlice(), Kind: rdsdv1.PeerKind_PEER_KIND_KERNEL, Authenticated: true, Incarnation: 1,
			Lanes: 2, Queued: 3, QueuedBytes: 4, Unacked: 5, UnackedBytes: 6, CongestedPorts: 7, RttNs: 8, Held: 9,
			Path: []*rdsdv1.Path{rdsdv1.Path_builder{
				Index: 1, State: rdsdv1.PathState_PATH_STATE_UP, NextTxSeq: 11, NextRxSeq: 12, LocalEndpoint: "here", RemoteEndpoint: "there", UpSinceNs: 13,
				Reconnects: 14, LastError: "why", SentBytes: 15, ReceivedBytes: 16, SendCredits: 17, ReadPaused: true, ErrorAgeNs: 18, Attempts: 19, RetryInNs: 20,
			}.Build()},
			VolumePath: []*rdsdv1.VolumePath{aVolumePath},
		}.Build()}}.Build(),
		[]Peer{{
			Local: hereAddr, Remote: thereAddr, Kind: PeerKernel, Authenticated: true, State: StateUp, Incarnation: 1,
			Lanes: 2, Queued: 3, QueuedBytes: 4, Unacked: 5, UnackedBytes: 6, CongestedPorts: 7, RTT: 8, Held: 9, LastError: "why",
			Paths: []PeerPath{{
				Index: 1, State: StateUp, NextTxSeq: 11, NextRxSeq: 12, LocalEndpoint: "here", RemoteEndpoint: "there", UpFor: 13,
				Reconnects: 14, LastError: "why", SentBytes: 15, ReceivedBytes: 16, SendCredits: 17, ReadPaused: true, ErrorAge: 18, Attempts: 19, RetryIn: 20,
			}},
			VolumePaths: []VolumePath{pathFromProto(aVolumePath)},
		}},
	},
	{
		"list sockets", func(ctx context.Context, a *Admin) (any, error) { return a.Sockets(ctx) },
		&rdsdv1.ListSocketsRequest{},
		rdsdv1.ListSocketsResponse_builder{Socket: []*rdsdv1.SocketInfo{rdsdv1.SocketInfo_builder{
			Local: endpointToProto(hereEnd), Uid: 1, Pid: 2, Label: "db", SendBufferBytes: 3, SendQueuedBytes: 4, RecvBufferBytes: 5, RecvQueuedBytes: 6,
			RecvHardLimitBytes: 7, RecvQueued: 8, Congested: true, Accepted: 9, Delivered: 10, Cancelled: 11, Failed: 12, Unknown: 13, InFlight: 14,
			Received: 15, WaitingSends: 16, Inode: 17, RingBytes: 18, RingMaxBytes: 19, Program: "postgres",
		}.Build()}}.Build(),
		[]SocketInfo{{
			Local: hereEnd, UID: 1, PID: 2, Label: "db", SendBufferBytes: 3, SendQueuedBytes: 4, RecvBufferBytes: 5, RecvQueuedBytes: 6,
			RecvHardLimitBytes: 7, RecvQueued: 8, Congested: true, Accepted: 9, Delivered: 10, Cancelled: 11, Failed: 12, Unknown: 13, InFlight: 14,
			Received: 15, WaitingSends: 16, Inode: 17, RingBytes: 18, RingMaxBytes: 19, Program: "postgres",
		}},
	},
	{
		"list queue", func(ctx context.Context, a *Admin) (any, error) {
			l, truncated, err := a.Queue(ctx, QueueRetrans, 7)
			if truncated != (err == nil) {
				err = fmt.Errorf("there is more: %v (%w)", truncated, err)
			}
			return l, err
		},
		rdsdv1.ListQueueRequest_builder{Kind: rdsdv1.QueueKind_QUEUE_KIND_RETRANS, Limit: 7}.Build(),
		rdsdv1.ListQueueResponse_builder{Truncated: true, Datagram: []*rdsdv1.QueuedDatagram{rdsdv1.QueuedDatagram_builder{
			Kind: rdsdv1.QueueKind_QUEUE_KIND_RECV, Local: endpointToProto(hereEnd), Remote: endpointToProto(thereEnd), Seq: 1, Bytes: 2, Lane: 3,
		}.Build()}}.Build(),
		[]QueuedDatagram{{Queue: QueueRecv, Local: hereEnd, Remote: thereEnd, Seq: 1, Bytes: 2, Lane: 3}},
	},
	{
		"counters", func(ctx context.Context, a *Admin) (any, error) { return a.Counters(ctx, thereAddr) },
		rdsdv1.GetCountersRequest_builder{Remote: thereAddr.AsSlice()}.Build(),
		rdsdv1.GetCountersResponse_builder{Counter: []*rdsdv1.Counter{rdsdv1.Counter_builder{Name: "conn_reset", Value: 1, Help: "resets"}.Build()}}.Build(),
		[]Counter{{Name: "conn_reset", Value: 1, Help: "resets"}},
	},
	{
		"list congestion", func(ctx context.Context, a *Admin) (any, error) {
			l, leftOut, err := a.Congestion(ctx)
			if err == nil && leftOut != 9 {
				err = fmt.Errorf("%d are left out, want 9", leftOut)
			}
			return l, err
		},
		&rdsdv1.ListCongestionRequest{},
		rdsdv1.ListCongestionResponse_builder{LeftOut: 9, Port: []*rdsdv1.CongestedPort{rdsdv1.CongestedPort_builder{
			Endpoint: endpointToProto(hereEnd), Local: true, SinceNs: 1, QueuedBytes: 2, ReaderUid: 3, ReaderPid: 4, WaitingSenders: 5, Blocked: 6,
			Culprit: []*rdsdv1.Culprit{rdsdv1.Culprit_builder{Source: endpointToProto(thereEnd), QueuedDatagrams: 7, QueuedBytes: 8}.Build()},
		}.Build()}}.Build(),
		[]CongestedPort{{
			Endpoint: hereEnd, Local: true, CongestedFor: 1, QueuedBytes: 2, ReaderUID: 3, ReaderPID: 4, WaitingSenders: 5, Blocked: 6,
			Culprits: []Culprit{{Source: thereEnd, QueuedDatagrams: 7, QueuedBytes: 8}},
		}},
	},
	{
		"list errors", func(ctx context.Context, a *Admin) (any, error) { return a.Errors(ctx) },
		&rdsdv1.ListErrorsRequest{},
		rdsdv1.ListErrorsResponse_builder{Forgotten: 1, Error: []*rdsdv1.LoggedError{rdsdv1.LoggedError_builder{
			Warning: true, Message: "refused", Subject: "peer=10.0.0.2", Error: "no rule", FirstUnixNs: 2, LastUnixNs: 3, Count: 4,
		}.Build()}}.Build(),
		&ErrorLog{Forgotten: 1, Errors: []LoggedError{{
			Severity: SeverityWarning, Message: "refused", Subject: "peer=10.0.0.2", Error: "no rule",
			First: time.Unix(0, 2).UTC(), Last: time.Unix(0, 3).UTC(), Count: 4,
		}}},
	},
	{
		"congestion history", func(ctx context.Context, a *Admin) (any, error) { return a.CongestionHistory(ctx, thereEnd) },
		rdsdv1.GetCongestionHistoryRequest_builder{Endpoint: endpointToProto(thereEnd)}.Build(),
		rdsdv1.CongestionHistory_builder{EndUnixNs: 1, SlotNs: 2, Slots: 3, KeptNs: 4,
			Port: []*rdsdv1.PortHistory{aPortHistory}, Others: aPortHistory}.Build(),
		&CongestionHistory{End: time.Unix(0, 1).UTC(), Slot: 2, Slots: 3, Kept: 4,
			Ports: []PortHistory{readPortHistory}, Others: readPortHistory},
	},
	{
		"congestion maps", func(ctx context.Context, a *Admin) (any, error) { return a.CongestionMaps(ctx, thereAddr) },
		rdsdv1.ListCongestionMapsRequest_builder{Remote: thereAddr.AsSlice()}.Build(),
		rdsdv1.ListCongestionMapsResponse_builder{LeftOut: 18, Map: []*rdsdv1.CongestionMap{rdsdv1.CongestionMap_builder{
			Address: thereAddr.AsSlice(), Local: true, SeenFrom: hereAddr.AsSlice(), Ports: 3, FirstPort: 65520, Bitmap: []byte{0x41, 0x80, 0xff}}.Build()}}.Build(),
		&CongestionMaps{Maps: []CongestionMap{{Node: thereAddr, Local: true, SeenFrom: hereAddr, Ports: []uint16{65520, 65526, 65535}}}, LeftOut: 18},
	},
	{
		"configuration", func(ctx context.Context, a *Admin) (any, error) { return a.Config(ctx) },
		&rdsdv1.GetConfigRequest{},
		rdsdv1.GetConfigResponse_builder{Toml: "version = 1"}.Build(),
		"version = 1",
	},
	{
		"ping", func(ctx context.Context, a *Admin) (any, error) {
			return a.Ping(ctx, PingSpec{Remote: thereAddr, Local: hereAddr, Timeout: 3})
		},
		rdsdv1.PingRequest_builder{Local: hereAddr.AsSlice(), Remote: thereAddr.AsSlice(), TimeoutNs: 3}.Build(),
		rdsdv1.PingResponse_builder{Local: hereAddr.AsSlice(), RttNs: 1}.Build(),
		&Pong{Local: hereAddr, RTT: 1},
	},
	{
		"drop", func(ctx context.Context, a *Admin) (any, error) {
			return a.DropPaths(ctx, PeerFilter{hereAddr, thereAddr})
		},
		rdsdv1.DropPathRequest_builder{Local: hereAddr.AsSlice(), Remote: thereAddr.AsSlice(), AllLanes: true}.Build(),
		rdsdv1.DropPathResponse_builder{Dropped: 8}.Build(),
		8,
	},
	{
		"drop", func(ctx context.Context, a *Admin) (any, error) {
			return a.DropPath(ctx, PeerFilter{hereAddr, thereAddr}, 5)
		},
		rdsdv1.DropPathRequest_builder{Local: hereAddr.AsSlice(), Remote: thereAddr.AsSlice(), Lane: 5}.Build(),
		rdsdv1.DropPathResponse_builder{Dropped: 1}.Build(),
		1,
	},
	{
		"cancel", func(ctx context.Context, a *Admin) (any, error) { return a.CancelSent(ctx, hereEnd, thereEnd) },
		rdsdv1.CancelSentRequest_builder{Local: endpointToProto(hereEnd), Destination: endpointToProto(thereEnd)}.Build(),
		rdsdv1.CancelSentResponse_builder{Cancelled: 1, InFlight: 2}.Build(),
		CancelResult{Cancelled: 1, InFlight: 2},
	},
	{
		"close socket", func(ctx context.Context, a *Admin) (any, error) { return nil, a.CloseSocket(ctx, hereEnd) },
		rdsdv1.CloseSocketRequest_builder{Local: endpointToProto(hereEnd)}.Build(),
		&rdsdv1.CloseSocketResponse{},
		nil,
	},
}

// TestAdminCalls: every call asks for what it was told, and brings every field of the
// answer.
func TestAdminCalls(t *testing.T) {
	f := &fakeAdmin{}
	a := newFakeAdmin(t, f)
	ctx := volumeContext(t)
	for _, c := range adminCalls {
		f.answer = c.answer
		got, err := c.call(ctx, a)
		if err != nil {
			t.Errorf("%s: %v", c.op, err)
			continue
		}
		same(t, f.req, c.req)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s brings\n%+v, want\n%+v", c.op, got, c.want)
		}
		// The table itself leaves nothing out: no field of the message, whatever is added
		// to it, and none of the type.
		whole(t, c.answer.ProtoReflect())
		if c.want != nil {
			nonZero(t, c.op, reflect.ValueOf(c.want))
			distinct(t, c.op, reflect.ValueOf(c.want))
		}
	}
}

// whole wants every field of a message, and of the messages in it, to be set.
func whole(t *testing.T, m protoreflect.Message) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case !m.Has(f):
			t.Errorf("%s is not set", f.FullName())
		case f.IsList() && f.Message() != nil:
			whole(t, m.Get(f).List().Get(0).Message())
		case !f.IsList() && f.Message() != nil:
			whole(t, m.Get(f).Message())
		}
	}
}

// distinct wants no number twice in a struct: fields that are mixed up would not show.
func distinct(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		distinct(t, name, v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			distinct(t, name, v.Index(i))
		}
	case reflect.Struct:
		seen := map[string]string{}
		for i := range v.NumField() {
			field, f := name+"."+v.Type().Field(i).Name, v.Field(i)
			switch {
			case !v.Type().Field(i).IsExported():
			case f.CanInt(), f.CanUint():
				number := fmt.Sprintf("%d", f.Interface())
				if other := seen[number]; other != "" {
					t.Errorf("%s and %s are both %s", field, other, number)
				}
				seen[number] = field
			default:
				distinct(t, field, f)
			}
		}
	}
}

// TestAdminErrors: each call brings the daemon's refusal as a sentinel with the
// daemon's words, in its own name, and nothing else.
func TestAdminErrors(t *testing.T) {
	f := &fakeAdmin{}
	a := newFakeAdmin(t, f)
	ctx := volumeContext(t)
	for errno, sentinel := range map[syscall.Errno]error{
		syscall.ENOENT: rdserr.ErrNotFound, syscall.EACCES: rdserr.ErrPerm, syscall.EINVAL: rdserr.ErrInvalid, syscall.EUSERS: rdserr.ErrRateLimited,
		syscall.ETIMEDOUT: rdserr.ErrTimeout, syscall.EHOSTUNREACH: rdserr.ErrHostDown, syscall.ESHUTDOWN: rdserr.ErrShutdown,
	} {
		f.err = rdserr.With(rdserr.FromErrno(errno).(*rdserr.Error), "the reason")
		for _, c := range adminCalls {
			got, err := c.call(ctx, a)
			if !errors.Is(err, sentinel) || !errors.Is(err, errno) || err.Error() != "rdsd: "+c.op+": the reason" {
				t.Errorf("%s: %v became %v", c.op, errno, err)
			}
			if _, ok := errors.AsType[*OpError](err); !ok {
				t.Errorf("%s: %T is no *OpError", c.op, err)
			}
			// A time that passed at the daemon is one like that of a context.
			if errors.Is(err, context.DeadlineExceeded) != (errno == syscall.ETIMEDOUT) {
				t.Errorf("%s: %v is a deadline: %v", c.op, errno, errors.Is(err, context.DeadlineExceeded))
			}
			if v := reflect.ValueOf(got); v.IsValid() && !v.IsZero() {
				t.Errorf("%s: refused, and brings %+v", c.op, got)
			}
		}
	}
	f.req = nil
	if _, _, err := a.Queue(ctx, "lost", 0); !errors.Is(err, rdserr.ErrInvalid) || f.req != nil {
		t.Errorf("a queue there is not: %v, and the daemon was asked for %v", err, f.req)
	}
}

// TestAdminEnds: a call ends with its context, whatever the daemon does, and says how.
func TestAdminEnds(t *testing.T) {
	f := &fakeAdmin{hold: true}
	a := newFakeAdmin(t, f)
	for _, c := range adminCalls {
		ctx, cancel := context.WithCancel(volumeContext(t))
		go func() { // ends with the call
			<-f.held
			cancel()
		}()
		_, err := c.call(ctx, a)
		if !errors.Is(err, rdserr.ErrCanceled) || !errors.Is(err, context.Canceled) || ctx.Err() == nil {
			t.Errorf("%s, cancelled: %v", c.op, err)
		}
		cancel()
		ctx, cancel = context.WithDeadline(context.Background(), time.Now())
		_, err = c.call(ctx, a)
		cancel()
		if e, ok := errors.AsType[*OpError](err); !ok || !e.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, out of time: %v", c.op, err)
		}
	}
}

// TestAdminWithoutDaemon: nobody listens, and each call says so.
func TestAdminWithoutDaemon(t *testing.T) {
	c, err := Dial(filepath.Join(t.TempDir(), "nobody"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, call := range adminCalls {
		if _, err := call.call(volumeContext(t), c.Admin()); !errors.Is(err, rdserr.ErrShutdown) {
			t.Errorf("%s: %v", call.op, err)
		}
	}
}

// TestPeerState: a peer is in the best state of its paths, and has the first error of any.
func TestPeerState(t *testing.T) {
	for _, c := range []struct {
		paths []rdsdv1.PathState
		want  PeerState
	}{
		{nil, StateUnknown},
		{[]rdsdv1.PathState{0}, StateUnknown},
		{[]rdsdv1.PathState{99}, StateUnknown}, // a newer daemon's
		{[]rdsdv1.PathState{0, 99, rdsdv1.PathState_PATH_STATE_DOWN}, StateDown},
		{[]rdsdv1.PathState{rdsdv1.PathState_PATH_STATE_DOWN, rdsdv1.PathState_PATH_STATE_ERROR}, StateError},
		{[]rdsdv1.PathState{rdsdv1.PathState_PATH_STATE_DISCONNECTING, rdsdv1.PathState_PATH_STATE_ERROR}, StateDisconnecting},
		{[]rdsdv1.PathState{rdsdv1.PathState_PATH_STATE_DISCONNECTING, rdsdv1.PathState_PATH_STATE_CONNECTING}, StateConnecting},
		{[]rdsdv1.PathState{rdsdv1.PathState_PATH_STATE_UP, rdsdv1.PathState_PATH_STATE_CONNECTING}, StateUp},
	} {
		m := &rdsdv1.Peer{}
		for _, s := range c.paths {
			m.SetPath(append(m.GetPath(), rdsdv1.Path_builder{State: s}.Build()))
		}
		if got := peerFromProto(m).State; got != c.want {
			t.Errorf("paths %v: the peer is %s, want %s", c.paths, got, c.want)
		}
	}
	m := rdsdv1.Peer_builder{Path: []*rdsdv1.Path{{}, rdsdv1.Path_builder{LastError: "one"}.Build(), rdsdv1.Path_builder{LastError: "two"}.Build()}}.Build()
	if got := peerFromProto(m).LastError; got != "one" {
		t.Errorf("the last error is %q", got)
	}
}

// TestAdminOfAClosedClient holds that a call after Close speaks of the client and not of what is below it.
func TestAdminOfAClosedClient(t *testing.T) {
	c, err := Dial(filepath.Join(t.TempDir(), "nobody"))
	if err != nil {
		t.Fatal(err)
	}
	a, v := c.Admin(), c.Volumes()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, ofAdmin := a.Status(volumeContext(t))
	_, _, ofVolumes := v.List(volumeContext(t))
	for _, err := range []error{ofAdmin, ofVolumes} {
		if !errors.Is(err, rdserr.ErrClosed) || strings.Contains(err.Error(), "grpc") || !strings.Contains(err.Error(), "the client is closed") {
			t.Errorf("%v", err)
		}
	}
}

// TestAdminWords: each number of an enum has the word of its name, and one that is not
// specified has that for what is not known.
func TestAdminWords(t *testing.T) {
	for _, c := range []struct {
		enum   protoreflect.EnumDescriptor
		prefix string
		words  []string
	}{
		{rdsdv1.PeerKind(0).Descriptor(), "PEER_KIND_", plain(peerKindWords)},
		{rdsdv1.PathState(0).Descriptor(), "PATH_STATE_", plain(peerStateWords)},
		{rdsdv1.QueueKind(0).Descriptor(), "QUEUE_KIND_", plain(queueWords)},
		{rdsdv1.ProblemSeverity(0).Descriptor(), "PROBLEM_SEVERITY_", plain(problemWords)},
		{rdsdv1.TraceStage(0).Descriptor(), "TRACE_STAGE_", plain(traceStageWords)},
		{rdsdv1.OutcomeKind(0).Descriptor(), "OUTCOME_KIND_", plain(traceOutcomeWords)},
	} {
		values := c.enum.Values()
		if values.Len() != len(c.words) {
			t.Errorf("%s has %d values, and there are words for %d", c.enum.Name(), values.Len(), len(c.words))
			continue
		}
		for i := 1; i < values.Len(); i++ {
			name := strings.TrimPrefix(string(values.Get(i).Name()), c.prefix)
			if want := strings.ToLower(strings.ReplaceAll(name, "_", "-")); c.words[values.Get(i).Number()] != want {
				t.Errorf("%s is %q, want %q", values.Get(i).Name(), c.words[i], want)
			}
		}
	}
	if k, s, q := peerKindWords[0], peerStateWords[0], queueWords[0]; k != "unknown" || s != "unknown" || q != "" {
		t.Errorf("unspecified are %q, %q and %q", k, s, q)
	}
}

func plain[W ~string](words []W) []string {
	return all(words, func(w W) string { return string(w) })
}

// TestAdminWatch: notices arrive whole and in order, and the end says why it is one.
func TestAdminWatch(t *testing.T) {
	f := &fakeAdmin{notices: []*rdsdv1.CongestionNotice{
		rdsdv1.CongestionNotice_builder{UnixNs: 1, Endpoint: endpointToProto(hereEnd), Local: true}.Build(),
		rdsdv1.CongestionNotice_builder{UnixNs: 2, Endpoint: endpointToProto(thereEnd), Congested: true}.Build(),
	}}
	want := []CongestionNotice{
		{Time: time.Unix(0, 1), Endpoint: hereEnd, Local: true},
		{Time: time.Unix(0, 2), Endpoint: thereEnd, Congested: true},
	}
	a := newFakeAdmin(t, f)
	for _, end := range []error{nil, rdserr.With(rdserr.ErrShutdown, "draining"), rdserr.With(rdserr.ErrTooMany, "watches")} {
		f.err = end
		var got []CongestionNotice
		var last error
		for n, err := range a.WatchCongestion(volumeContext(t)) {
			if last = err; err == nil {
				got = append(got, n)
			}
		}
		sentinel := error(rdserr.ErrShutdown) // the daemon ends without a word
		if end != nil {
			sentinel = rdserr.FromErrno(rdserr.Errno(end))
		}
		if _, ok := errors.AsType[*OpError](last); !ok || !errors.Is(last, sentinel) || !reflect.DeepEqual(got, want) {
			t.Errorf("a daemon that ends with %v: %+v, then %v", end, got, last)
		}
	}
	same(t, f.req, &rdsdv1.WatchCongestionRequest{})
	f.watched.Store(false)
	if later := a.WatchCongestion(volumeContext(t)); !f.watched.Load() {
		t.Error("it returned before the daemon watched")
	} else {
		for range later {
			break
		}
	}
	for range a.WatchCongestion(volumeContext(t), WatchCurrent()) {
		break
	}
	same(t, f.req, rdsdv1.WatchCongestionRequest_builder{IncludeCurrent: true}.Build())
}

// TestAdminWatchEnds: a watch ends with its context, and its stream with the loop.
func TestAdminWatchEnds(t *testing.T) {
	f := &fakeAdmin{hold: true, released: make(chan struct{}, 1)}
	a := newFakeAdmin(t, f)
	ctx, cancel := context.WithCancel(volumeContext(t))
	go func() { // ends with the loop
		<-f.held
		cancel()
	}()
	var last error
	for _, err := range a.WatchCongestion(ctx) {
		last = err
	}
	if !errors.Is(last, rdserr.ErrCanceled) || !errors.Is(last, context.Canceled) {
		t.Errorf("cancelled: %v", last)
	}
	<-f.released

	f.notices = []*rdsdv1.CongestionNotice{{}}
	ctx = volumeContext(t) // goes on
	for range a.WatchCongestion(ctx) {
		break
	}
	select {
	case <-f.released:
	case <-ctx.Done():
		t.Error("the loop was left, and the daemon still watches")
	}
}
