package rdsd

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// The words of each enum, by its value.
var (
	kindWords         = []VolumeKind{"", KindFile, KindBlockDevice, KindMemory}
	accessWords       = []VolumeAccess{"", AccessReadOnly, AccessReadWrite, AccessMigration}
	attachWords       = []VolumeAttach{"", AttachSocket, AttachNBD}
	policyWords       = []VolumePolicy{"", PolicyRoundRobin, PolicyMinInflight, PolicyMinLatency}
	onLossWords       = []VolumeOnLoss{"", OnLossWait, OnLossError}
	unfencedWords     = []VolumeUnfenced{"", UnfencedAfter, UnfencedNow, UnfencedWait}
	roleWords         = []VolumeRole{"", RoleClient, RoleServer}
	originWords       = []VolumeOrigin{"", OriginConfig, OriginCall, OriginRoot}
	exportStateWords  = []ExportState{"", ExportOpen, ExportClosed, ExportFailed}
	mappingStateWords = []MappingState{"", MappingInit, MappingOpen, MappingClosed, MappingUnmapped}
	pathStateWords    = []PathState{"", PathConnecting, PathConnected, PathReconnecting, PathDisconnected, PathClosing, PathFencing, PathRemoved}
	severityWords     = []Severity{"", SeverityOK, SeverityWarning, SeverityError}
	eventWords        = []EventKind{"", EventGap, EventSession, EventPath, EventMapping, EventExport, EventFailover, EventResize, EventError}
)

// setPolicy asks for a policy. The daemon knows the policies and their short forms; the
// number is for a daemon that knows only those with a number.
func setPolicy(m interface {
	SetPolicyName(string)
	SetPolicy(rdsdv1.VolumePolicy)
}, p VolumePolicy) {
	number, err := word[rdsdv1.VolumePolicy]("the policy", policyWords, p)
	if err != nil {
		number = rdsdv1.VolumePolicy_VOLUME_POLICY_NAMED
	}
	m.SetPolicyName(string(p))
	m.SetPolicy(number)
}

// policyOf is the way back.
func policyOf(m interface {
	GetPolicyName() string
	GetPolicy() rdsdv1.VolumePolicy
}) VolumePolicy {
	if name := m.GetPolicyName(); name != "" {
		return VolumePolicy(name)
	}
	return wordOf(policyWords, m.GetPolicy())
}

func exportToProto(s *ExportSpec) (*rdsdv1.VolumeExportRequest, error) {
	kind, err := word[rdsdv1.VolumeKind]("the kind", kindWords, s.Kind)
	if err != nil {
		return nil, err
	}
	m := &rdsdv1.VolumeExportRequest{}
	m.SetName(s.Name)
	m.SetKind(kind)
	m.SetPath(s.Path)
	m.SetSizeBytes(s.Size)
	m.SetCreate(s.Create)
	m.SetReadOnly(s.ReadOnly)
	m.SetShared(s.Shared)
	m.SetLogicalBlockBytes(s.LogicalBlock)
	m.SetAllowAddress(all(s.AllowAddresses, netip.Prefix.String))
	m.SetAllowSession(s.AllowSessions)
	m.SetPersist(s.Persist)
	return m, nil
}

func mapToProto(s *MapSpec) (*rdsdv1.VolumeMapRequest, error) {
	attach, err := word[rdsdv1.VolumeAttach]("the attachment", attachWords, s.Attach)
	if err != nil {
		return nil, err
	}
	access, err := word[rdsdv1.VolumeAccess]("the access", accessWords, s.Access)
	if err != nil {
		return nil, err
	}
	onLoss, err := word[rdsdv1.VolumeOnLoss]("what to do on loss", onLossWords, s.OnLoss)
	if err != nil {
		return nil, err
	}
	unfenced, err := word[rdsdv1.VolumeUnfenced]("what to do without a fence", unfencedWords, s.Unfenced)
	if err != nil {
		return nil, err
	}
	// What is zero is the daemon's default there as here.
	m := &rdsdv1.VolumeMapRequest{}
	m.SetNode(s.Node)
	m.SetName(s.Name)
	m.SetId(s.ID)
	m.SetAttach(attach)
	m.SetPath(pathsToProto(s.Paths))
	setPolicy(m, s.Policy)
	m.SetAccess(access)
	m.SetIoTimeoutNs(int64(s.IOTimeout))
	m.SetLossTimeoutNs(int64(s.LossTimeout))
	m.SetOnLoss(onLoss)
	m.SetPersist(s.Persist)
	m.SetSocketPath(s.SocketPath)
	m.SetDevice(s.Device)
	m.SetSession(s.Session)
	m.SetQueueDepth(s.QueueDepth)
	m.SetUnfenced(unfenced)
	m.SetUnfencedAfterNs(int64(s.UnfencedAfter))
	m.SetMaxReconnectAttempts(int32(s.MaxReconnectAttempts))
	return m, nil
}

func pathSpecToProto(p PathSpec) *rdsdv1.VolumePathSpec {
	m := &rdsdv1.VolumePathSpec{}
	m.SetSource(p.Src)
	m.SetDestination(p.Dst)
	m.SetTransport(p.Transport)
	return m
}

func pathsToProto(ps []PathSpec) []*rdsdv1.VolumePathSpec { return all(ps, pathSpecToProto) }

func pathSpecFromProto(m *rdsdv1.VolumePathSpec) PathSpec {
	return PathSpec{Src: m.GetSource(), Dst: m.GetDestination(), Transport: m.GetTransport()}
}

// optionalPath is nil for a message that is not there.
func optionalPath(m *rdsdv1.VolumePathSpec) *PathSpec {
	if m == nil {
		return nil
	}
	p := pathSpecFromProto(m)
	return &p
}

func infoFromProto(m *rdsdv1.VolumeInfo) *VolumeInfo {
	if m == nil {
		return nil
	}
	return &VolumeInfo{
		Size: m.GetSizeBytes(), LogicalBlock: m.GetLogicalBlockBytes(), PhysicalBlock: m.GetPhysicalBlockBytes(),
		MaxIO: m.GetMaxIoBytes(), MaxSegments: m.GetMaxSegments(),
		MaxDiscard: m.GetMaxDiscardBytes(), DiscardGranularity: m.GetDiscardGranularityBytes(), DiscardAlignment: m.GetDiscardAlignmentBytes(),
		MaxWriteZeroes: m.GetMaxWriteZeroesBytes(), FastZero: m.GetFastZero(),
		Rotational: m.GetRotational(), ReadOnly: m.GetReadOnly(), WriteCache: m.GetWriteCache(), FUA: m.GetFua(), MultiConn: m.GetMultiConn(),
	}
}

func opFromProto(m *rdsdv1.VolumeOpCounters) VolumeOp {
	return VolumeOp{
		Op: m.GetOperation(), Submitted: m.GetSubmitted(), Completed: m.GetCompleted(), Errors: m.GetErrors(), Bytes: m.GetBytes(),
		Time: time.Duration(m.GetTimeNs()), P50: time.Duration(m.GetP50Ns()), P99: time.Duration(m.GetP99Ns()), P999: time.Duration(m.GetP999Ns()),
	}
}

// words is never nil, so that JSON has [] and not null.
func words(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func exportFromProto(m *rdsdv1.VolumeExport) *Export {
	e := &Export{
		Name: m.GetName(), Kind: wordOf(kindWords, m.GetKind()), Path: m.GetPath(), ReadOnly: m.GetReadOnly(), Shared: m.GetShared(),
		AllowAddresses: []netip.Prefix{}, AllowSessions: words(m.GetAllowSession()), Persist: m.GetPersist(), Origin: wordOf(originWords, m.GetOrigin()),
		State: wordOf(exportStateWords, m.GetState()), StateFor: time.Duration(m.GetStateNs()), Error: m.GetError(),
		Info: infoFromProto(m.GetInfo()), Users: all(m.GetUser(), userFromProto), Ops: all(m.GetOperation(), opFromProto),
	}
	for _, s := range m.GetAllowAddress() {
		if p, err := netip.ParsePrefix(s); err == nil {
			e.AllowAddresses = append(e.AllowAddresses, p)
		}
	}
	return e
}

func userFromProto(m *rdsdv1.VolumeUser) VolumeUser {
	peer, _ := netip.AddrFromSlice(m.GetPeer())
	return VolumeUser{Session: m.GetSession(), Peer: peer.Unmap(), Access: wordOf(accessWords, m.GetAccess()), OpenFor: time.Duration(m.GetOpenNs()), Kernel: m.GetKernel()}
}

func mappingFromProto(m *rdsdv1.VolumeMapping) *Mapping {
	return &Mapping{
		ID: m.GetId(), Device: m.GetDevice(), URI: m.GetUri(), Attach: wordOf(attachWords, m.GetAttach()), Node: m.GetNode(), Name: m.GetName(),
		State: wordOf(mappingStateWords, m.GetState()), StateFor: time.Duration(m.GetStateNs()), LastError: m.GetLastError(),
		Info: infoFromProto(m.GetInfo()), Access: wordOf(accessWords, m.GetAccess()), Persist: m.GetPersist(),
		Session: m.GetSession(), SessionID: m.GetSessionId(), Paths: all(m.GetPath(), pathSpecFromProto), Policy: policyOf(m),
		QueueDepth: m.GetQueueDepth(), IOTimeout: time.Duration(m.GetIoTimeoutNs()), LossTimeout: time.Duration(m.GetLossTimeoutNs()),
		OnLoss: wordOf(onLossWords, m.GetOnLoss()), Unfenced: wordOf(unfencedWords, m.GetUnfenced()), UnfencedAfter: time.Duration(m.GetUnfencedAfterNs()),
		MaxReconnectAttempts: int(m.GetMaxReconnectAttempts()), Users: int(m.GetUsers()), Waiting: int(m.GetWaiting()),
		PathCount: int(m.GetPaths()), PathsUp: int(m.GetPathsUp()), Address: optionalPath(m.GetAddress()), Ops: all(m.GetOperation(), opFromProto),
	}
}

func sessionFromProto(m *rdsdv1.VolumeSession) VolumeSession {
	return VolumeSession{
		ID: m.GetId(), Name: m.GetName(), UUID: m.GetUuid(), Role: wordOf(roleWords, m.GetRole()), Peer: m.GetPeer(),
		Up: m.GetUp(), Kernel: m.GetKernel(), StateFor: time.Duration(m.GetStateNs()), Policy: policyOf(m), OnLoss: wordOf(onLossWords, m.GetOnLoss()),
		Volumes: words(m.GetVolume()), Paths: int(m.GetPaths()), PathsUp: int(m.GetPathsUp()), QueueDepth: m.GetQueueDepth(),
		InFlight: m.GetInFlight(), Waiting: m.GetWaiting(), MaxIO: m.GetMaxIoBytes(), Memory: m.GetMemoryBytes(),
		Unfenced: wordOf(unfencedWords, m.GetUnfenced()), UnfencedAfter: time.Duration(m.GetUnfencedAfterNs()), UnfencedFailovers: m.GetUnfencedFailovers(),
		MaxReconnectAttempts: int(m.GetMaxReconnectAttempts()),
	}
}

func pathFromProto(m *rdsdv1.VolumePath) VolumePath {
	return VolumePath{
		Session: m.GetSession(), SessionID: m.GetSessionId(), Role: wordOf(roleWords, m.GetRole()), Src: m.GetSource(), Dst: m.GetDestination(),
		State: wordOf(pathStateWords, m.GetState()), StateFor: time.Duration(m.GetStateNs()), Epoch: m.GetEpoch(), Connections: int(m.GetConnections()),
		LastError: m.GetLastError(), ErrorAge: time.Duration(m.GetErrorAgeNs()), Attempts: m.GetAttempts(), RetryIn: time.Duration(m.GetRetryInNs()),
		Transport: m.GetTransport(), Device: m.GetDevice(), Port: m.GetPort(),
		CurLatency: time.Duration(m.GetCurLatencyNs()),
		Reconnects: m.GetReconnects(), ReconnectsFailed: m.GetReconnectsFailed(),
		Reads: m.GetReads(), ReadBytes: m.GetReadBytes(), Writes: m.GetWrites(), WriteBytes: m.GetWriteBytes(),
		InFlight: m.GetInFlight(), Failovers: m.GetFailovers(),
	}
}

func findingFromProto(m *rdsdv1.VolumeFinding) VolumeFinding {
	return VolumeFinding{Severity: wordOf(severityWords, m.GetSeverity()), What: m.GetWhat(), Text: m.GetText(), Remedy: m.GetRemedy()}
}

func eventFromProto(m *rdsdv1.VolumeEvent) *VolumeEvent {
	e := &VolumeEvent{
		Number: m.GetNumber(), Time: time.Unix(0, m.GetUnixNs()), Kind: wordOf(eventWords, m.GetKind()), Role: wordOf(roleWords, m.GetRole()),
		Session: m.GetSession(), Path: optionalPath(m.GetPath()), Mapping: m.GetMapping(), Export: m.GetExport(), State: m.GetState(),
		Count: m.GetCount(), Size: m.GetSizeBytes(), Took: time.Duration(m.GetTookNs()), Text: m.GetText(),
		Instance: m.GetInstance(),
	}
	e.Err = eventError(syscall.Errno(m.GetErrno()), m.GetError())
	return e
}

func eventError(n syscall.Errno, text string) error {
	switch s, ok := rdserr.FromErrno(n).(*rdserr.Error); {
	case n == 0 && text == "":
		return nil
	case n == 0:
		return rdserr.With(rdserr.ErrIO, "%s", text)
	case text == "":
		return rdserr.FromErrno(n)
	case ok:
		return rdserr.With(s, "%s", text)
	}
	return fmt.Errorf("%s: %w", text, n)
}
