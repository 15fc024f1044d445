package service

import (
	"fmt"
	"strings"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// The words of node/volume, by the values of the API's enums. Path policies beyond
// those that have a number go by name alone.
var (
	volumeKinds      = []string{"", volume.KindFile, volume.KindBlock, volume.KindMemory}
	volumeAccesses   = []string{"", volume.AccessRO, volume.AccessRW, volume.AccessMigration}
	volumeAttaches   = []string{"", volume.AsSocket, volume.AsNBD}
	volumePolicies   = []string{"", rtrs.RoundRobin.String(), rtrs.MinInflight.String(), rtrs.MinLatency.String()}
	volumeOnLosses   = []string{"", volume.OnLossWait, volume.OnLossError}
	volumeUnfenced   = []string{"", volume.UnfencedAfter, volume.UnfencedNow, volume.UnfencedWait}
	volumeRoles      = []string{"", volume.RoleClient, volume.RoleServer}
	volumeOrigins    = []string{"", volume.OriginConfig, volume.OriginCall, volume.OriginRoot}
	exportStates     = []string{"", "open", "closed", "failed"}
	mappingStates    = []string{"", volume.StateInit, volume.StateOpen, volume.StateClosed, volume.StateUnmapped}
	volumePathStates = []string{"", "connecting", "connected", "reconnecting", "disconnected", "closing", "fencing", "removed"}
	volumeSeverities = []string{"", volume.SeverityOK, volume.SeverityWarning, volume.SeverityError}
	volumeEvents     = []string{"", volume.EventGap, volume.EventSession, volume.EventPath, volume.EventMapping,
		volume.EventExport, volume.EventFailover, volume.EventResize, volume.EventError}
)

// volumePolicy is the policy that a request asks for, by name or by number; "" is
// the default. Which names there are is rtrs's to say.
func volumePolicy(m interface {
	GetPolicyName() string
	GetPolicy() rdsdv1.VolumePolicy
}) (string, error) {
	if name := m.GetPolicyName(); name != "" {
		return name, nil
	}
	return volumeWord("policy", volumePolicies, m.GetPolicy())
}

// setVolumePolicy is the way back.
func setVolumePolicy(m interface {
	SetPolicyName(string)
	SetPolicy(rdsdv1.VolumePolicy)
}, name string) {
	number := volumeEnum[rdsdv1.VolumePolicy](volumePolicies, name)
	if number == 0 && name != "" {
		number = rdsdv1.VolumePolicy_VOLUME_POLICY_NAMED
	}
	m.SetPolicyName(name)
	m.SetPolicy(number)
}

// volumeWord is the word of an enum value a client sent.
func volumeWord[E interface {
	~int32
	fmt.Stringer
}](field string, words []string, e E) (string, error) {
	if e < 0 || int(e) >= len(words) {
		return "", rdserr.With(rdserr.ErrInvalid, "%s is %d; want 0 (the default) to %d", field, int32(e), len(words)-1)
	}
	return words[e], nil
}

// volumeEnum is the way back; 0 for a word the API does not know.
func volumeEnum[E ~int32](words []string, word string) E {
	for i, w := range words {
		if w == word {
			return E(i)
		}
	}
	return 0
}

// lasted is how long ago t was, in nanoseconds, 0 when it never was.
func lasted(now, t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(max(now.Sub(t), 0))
}

// text makes text of a string that another node or a directory may have chosen: names of
// sessions, volumes and files are any bytes, and the API carries nothing but UTF-8.
func text(s string) string { return strings.ToValidUTF8(s, "?") }

func texts(list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, text(s))
	}
	return out
}

func pathSpec(m *rdsdv1.VolumePathSpec) volume.PathSpec {
	return volume.PathSpec{Src: m.GetSource(), Dst: m.GetDestination(), Transport: m.GetTransport()}
}

func pathSpecs(list []*rdsdv1.VolumePathSpec) []volume.PathSpec {
	var out []volume.PathSpec
	for _, m := range list {
		out = append(out, pathSpec(m))
	}
	return out
}

// pathSpecPB is nil for no path.
func pathSpecPB(p volume.PathSpec) *rdsdv1.VolumePathSpec {
	if p == (volume.PathSpec{}) {
		return nil
	}
	m := &rdsdv1.VolumePathSpec{}
	m.SetSource(text(p.Src))
	m.SetDestination(text(p.Dst))
	m.SetTransport(text(p.Transport))
	return m
}

// volumeInfoPB is nil for a volume that has not been open.
func volumeInfoPB(i *blk.Info) *rdsdv1.VolumeInfo {
	if i.LogicalBlock == 0 {
		return nil
	}
	m := &rdsdv1.VolumeInfo{}
	m.SetSizeBytes(i.Size)
	m.SetLogicalBlockBytes(i.LogicalBlock)
	m.SetPhysicalBlockBytes(i.PhysicalBlock)
	m.SetMaxIoBytes(i.MaxBytes)
	m.SetMaxSegments(uint32(i.MaxSegments))
	m.SetMaxDiscardBytes(i.MaxDiscard)
	m.SetDiscardGranularityBytes(i.DiscardGranularity)
	m.SetDiscardAlignmentBytes(i.DiscardAlignment)
	m.SetMaxWriteZeroesBytes(i.MaxWriteZeroes)
	m.SetFastZero(i.FastZero)
	m.SetRotational(i.Rotational)
	m.SetReadOnly(i.ReadOnly)
	m.SetWriteCache(i.WriteCache)
	m.SetFua(i.FUA)
	m.SetMultiConn(i.MultiConn)
	return m
}

func opsPB(ops []volume.OpCounters) []*rdsdv1.VolumeOpCounters {
	var list []*rdsdv1.VolumeOpCounters
	for _, o := range ops {
		m := &rdsdv1.VolumeOpCounters{}
		m.SetOperation(o.Op)
		m.SetSubmitted(o.Submitted)
		m.SetCompleted(o.Completed)
		m.SetErrors(o.Errors)
		m.SetBytes(o.Bytes)
		m.SetTimeNs(uint64(o.Time))
		m.SetP50Ns(uint64(o.P50))
		m.SetP99Ns(uint64(o.P99))
		m.SetP999Ns(uint64(o.P999))
		list = append(list, m)
	}
	return list
}

func exportPB(e *volume.ExportInfo, now time.Time) *rdsdv1.VolumeExport {
	m := &rdsdv1.VolumeExport{}
	m.SetName(text(e.Name))
	m.SetKind(volumeEnum[rdsdv1.VolumeKind](volumeKinds, e.Kind))
	m.SetPath(text(e.Path))
	m.SetReadOnly(e.ReadOnly)
	m.SetShared(e.Shared)
	var allow []string
	for _, p := range e.Allow {
		allow = append(allow, p.String())
	}
	m.SetAllowAddress(allow)
	m.SetAllowSession(texts(e.Sessions))
	m.SetPersist(e.Persist)
	m.SetOrigin(volumeEnum[rdsdv1.VolumeOrigin](volumeOrigins, e.Origin))
	m.SetState(volumeEnum[rdsdv1.VolumeExportState](exportStates, e.State))
	m.SetStateNs(lasted(now, e.Since))
	m.SetError(text(e.Error))
	m.SetInfo(volumeInfoPB(&e.Info))
	var users []*rdsdv1.VolumeUser
	for _, u := range e.Users {
		x := &rdsdv1.VolumeUser{}
		x.SetSession(text(u.Session))
		x.SetPeer(peerBytes(u.Peer))
		x.SetAccess(volumeEnum[rdsdv1.VolumeAccess](volumeAccesses, u.Access))
		x.SetOpenNs(lasted(now, u.Since))
		x.SetKernel(u.Kernel)
		users = append(users, x)
	}
	m.SetUser(users)
	m.SetOperation(opsPB(e.Ops))
	return m
}

func mappingPB(i *volume.MappingInfo, now time.Time) *rdsdv1.VolumeMapping {
	m := &rdsdv1.VolumeMapping{}
	m.SetId(text(i.ID))
	m.SetDevice(text(i.Device))
	m.SetUri(text(i.URI))
	m.SetAttach(volumeEnum[rdsdv1.VolumeAttach](volumeAttaches, i.As))
	m.SetNode(text(i.Node))
	m.SetName(text(i.Name))
	m.SetState(volumeEnum[rdsdv1.VolumeMappingState](mappingStates, i.State))
	m.SetStateNs(lasted(now, i.Since))
	m.SetLastError(text(i.LastError))
	m.SetInfo(volumeInfoPB(&i.Info))
	m.SetAccess(volumeEnum[rdsdv1.VolumeAccess](volumeAccesses, i.Access))
	m.SetSession(text(i.Session))
	m.SetSessionId(text(i.SessionID))
	var paths []*rdsdv1.VolumePathSpec
	for _, p := range i.Paths {
		paths = append(paths, pathSpecPB(p))
	}
	m.SetPath(paths)
	setVolumePolicy(m, i.Policy)
	m.SetQueueDepth(uint32(i.QueueDepth))
	m.SetIoTimeoutNs(int64(i.IOTimeout))
	m.SetLossTimeoutNs(int64(i.LossTimeout))
	m.SetOnLoss(volumeEnum[rdsdv1.VolumeOnLoss](volumeOnLosses, i.OnLoss))
	m.SetUnfenced(volumeEnum[rdsdv1.VolumeUnfenced](volumeUnfenced, i.Unfenced))
	m.SetUnfencedAfterNs(int64(i.UnfencedAfter))
	m.SetMaxReconnectAttempts(int32(i.MaxReconnects))
	m.SetPersist(i.Persist)
	m.SetUsers(uint32(i.Users))
	m.SetWaiting(uint32(i.Waiting))
	m.SetPaths(uint32(i.PathCount))
	m.SetPathsUp(uint32(i.PathsUp))
	m.SetAddress(pathSpecPB(i.Address))
	m.SetOperation(opsPB(i.Ops))
	return m
}

func volumeSessionPB(i *volume.SessionInfo, now time.Time) *rdsdv1.VolumeSession {
	m := &rdsdv1.VolumeSession{}
	m.SetId(text(i.ID))
	m.SetName(text(i.Name))
	m.SetUuid(text(i.UUID))
	m.SetRole(volumeEnum[rdsdv1.VolumeRole](volumeRoles, i.Role))
	m.SetPeer(text(i.Peer))
	m.SetUp(i.Up)
	m.SetStateNs(lasted(now, i.Since))
	setVolumePolicy(m, i.Policy)
	m.SetOnLoss(volumeEnum[rdsdv1.VolumeOnLoss](volumeOnLosses, i.OnLoss))
	m.SetVolume(texts(i.Volumes))
	m.SetPaths(uint32(i.Paths))
	m.SetPathsUp(uint32(i.PathsUp))
	m.SetQueueDepth(uint32(i.Depth))
	m.SetInFlight(uint32(i.InFlight))
	m.SetWaiting(uint32(i.Waiting))
	m.SetMaxIoBytes(i.MaxIO)
	m.SetMemoryBytes(i.Memory)
	m.SetKernel(i.Kernel)
	m.SetUnfenced(volumeEnum[rdsdv1.VolumeUnfenced](volumeUnfenced, i.Unfenced))
	m.SetUnfencedAfterNs(int64(i.UnfencedAfter))
	m.SetUnfencedFailovers(i.UnfencedFailovers)
	m.SetMaxReconnectAttempts(int32(i.MaxReconnects))
	return m
}

func volumePathPB(i *volume.PathInfo, now time.Time) *rdsdv1.VolumePath {
	m := &rdsdv1.VolumePath{}
	m.SetSession(text(i.Session))
	m.SetSessionId(text(i.SessionID))
	m.SetRole(volumeEnum[rdsdv1.VolumeRole](volumeRoles, i.Role))
	m.SetSource(text(i.Src))
	m.SetDestination(text(i.Dst))
	m.SetState(volumeEnum[rdsdv1.VolumePathState](volumePathStates, i.State))
	m.SetStateNs(lasted(now, i.Since))
	m.SetEpoch(uint32(i.Epoch))
	m.SetConnections(uint32(i.Conns))
	m.SetCurLatencyNs(uint64(i.Latency))
	m.SetReconnects(i.ReconnectsOK)
	m.SetReconnectsFailed(i.ReconnectsFailed)
	m.SetReads(i.Reads)
	m.SetReadBytes(i.ReadBytes)
	m.SetWrites(i.Writes)
	m.SetWriteBytes(i.WriteBytes)
	m.SetInFlight(uint32(i.InFlight))
	m.SetFailovers(i.Failovers)
	m.SetLastError(text(i.LastError))
	if i.LastError != "" {
		m.SetErrorAgeNs(uint64(max(now.Sub(i.ErrorAt), 1)))
	}
	m.SetAttempts(uint32(i.Attempts))
	if !i.RetryAt.IsZero() {
		m.SetRetryInNs(uint64(max(i.RetryAt.Sub(now), 0)))
	}
	if m.SetTransport(text(i.Transport)); i.Transport == "" {
		m.SetTransport(volume.TransportTCP)
	}
	m.SetDevice(text(i.Device))
	m.SetPort(uint32(i.DevicePort))
	return m
}

func volumeEventPB(e *volume.Event) *rdsdv1.VolumeEvent {
	m := &rdsdv1.VolumeEvent{}
	m.SetNumber(e.Seq)
	m.SetUnixNs(e.Time.UnixNano())
	m.SetKind(volumeEnum[rdsdv1.VolumeEventKind](volumeEvents, e.Kind))
	m.SetRole(volumeEnum[rdsdv1.VolumeRole](volumeRoles, e.Role))
	m.SetSession(text(e.Session))
	m.SetPath(pathSpecPB(e.Path))
	m.SetMapping(text(e.Mapping))
	m.SetExport(text(e.Export))
	m.SetState(text(e.State))
	m.SetCount(e.Count)
	m.SetSizeBytes(e.Size)
	m.SetTookNs(uint64(max(e.Took, 0)))
	if e.Err != nil {
		m.SetErrno(int32(rdserr.Errno(e.Err)))
		m.SetError(text(e.Err.Error()))
	}
	m.SetText(text(e.Text))
	return m
}
