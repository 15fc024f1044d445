package cli

import (
	"net/netip"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// What --json prints of volumes, as in view.go.

type volumeInfoView struct {
	Size               bytesCount `json:"size_bytes"`
	LogicalBlock       uint32     `json:"logical_block_bytes"`
	PhysicalBlock      uint32     `json:"physical_block_bytes"`
	MaxIO              uint32     `json:"max_io_bytes"`
	MaxDiscard         uint64     `json:"max_discard_bytes"`
	DiscardGranularity uint32     `json:"discard_granularity_bytes"`
	MaxWriteZeroes     uint64     `json:"max_write_zeroes_bytes"`
	Rotational         bool       `json:"rotational"`
	ReadOnly           bool       `json:"read_only"`
	WriteCache         bool       `json:"write_cache"`
	FUA                bool       `json:"fua"`
	MultiConn          bool       `json:"multi_conn"`
}

func viewVolumeInfo(i *rdsd.VolumeInfo) *volumeInfoView {
	if i == nil {
		return nil
	}
	return &volumeInfoView{
		Size: bytesCount(i.Size), LogicalBlock: i.LogicalBlock, PhysicalBlock: i.PhysicalBlock, MaxIO: i.MaxIO,
		MaxDiscard: i.MaxDiscard, DiscardGranularity: i.DiscardGranularity, MaxWriteZeroes: i.MaxWriteZeroes,
		Rotational: i.Rotational, ReadOnly: i.ReadOnly, WriteCache: i.WriteCache, FUA: i.FUA, MultiConn: i.MultiConn,
	}
}

type volumeOpView struct {
	Op        string     `json:"operation"`
	Completed uint64     `json:"completed"`
	InFlight  uint64     `json:"in_flight"`
	Errors    uint64     `json:"errors"`
	Bytes     bytesCount `json:"bytes"`
	Mean      duration   `json:"mean_ns"`
	P50       duration   `json:"p50_ns"`
	P99       duration   `json:"p99_ns"`
	P999      duration   `json:"p999_ns"`
}

func viewOps(ops []rdsd.VolumeOp) []volumeOpView {
	out := []volumeOpView{}
	for _, o := range ops {
		out = append(out, volumeOpView{o.Op, o.Completed, o.InFlight(), o.Errors, bytesCount(o.Bytes), duration(o.Mean()), duration(o.P50), duration(o.P99), duration(o.P999)})
	}
	return out
}

var opColumns = []column[volumeOpView]{
	{"operation", func(o volumeOpView) any { return o.Op }},
	{"done", func(o volumeOpView) any { return o.Completed }},
	{"in flight", func(o volumeOpView) any { return o.InFlight }},
	{"errors", func(o volumeOpView) any { return o.Errors }},
	{"bytes", func(o volumeOpView) any { return o.Bytes }},
	{"mean", func(o volumeOpView) any { return o.Mean }},
	{"p50", func(o volumeOpView) any { return o.P50 }},
	{"p99", func(o volumeOpView) any { return o.P99 }},
	{"p99.9", func(o volumeOpView) any { return o.P999 }},
}

type exportView struct {
	Name          string          `json:"name"`
	Kind          string          `json:"kind"`
	Path          string          `json:"path"`
	State         string          `json:"state"`
	For           duration        `json:"state_ns"`
	Error         string          `json:"error"`
	ReadOnly      bool            `json:"read_only"`
	Shared        bool            `json:"shared"`
	Allow         []netip.Prefix  `json:"allow_addresses"`
	AllowSessions []string        `json:"allow_sessions"`
	Persist       bool            `json:"persist"`
	Origin        string          `json:"origin"`
	Info          *volumeInfoView `json:"info"`
	Users         []userView      `json:"users"`
	Ops           []volumeOpView  `json:"operations"`
}

type userView struct {
	Session string     `json:"session"`
	Peer    netip.Addr `json:"peer"`
	Access  string     `json:"access"`
	For     duration   `json:"open_ns"`
}

func viewExport(x *rdsd.Export) exportView {
	v := exportView{
		Name: x.Name, Kind: string(x.Kind), Path: x.Path, State: string(x.State), For: duration(x.StateFor), Error: x.Error,
		ReadOnly: x.ReadOnly, Shared: x.Shared, Allow: list(x.AllowAddresses), AllowSessions: list(x.AllowSessions),
		Persist: x.Persist, Origin: string(x.Origin), Info: viewVolumeInfo(x.Info), Users: []userView{}, Ops: viewOps(x.Ops),
	}
	for _, u := range x.Users {
		v.Users = append(v.Users, userView{u.Session, u.Peer, string(u.Access), duration(u.OpenFor)})
	}
	return v
}

// list is never nil, so that JSON has [] and not null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// storeText says what holds the bytes of an export.
func storeText(x *rdsd.Export) string {
	if x.Path == "" {
		return string(x.Kind)
	}
	return x.Path
}

type pathSpecView struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func viewPathSpec(p rdsd.PathSpec) pathSpecView { return pathSpecView{p.Src, p.Dst} }

type mappingView struct {
	ID          string          `json:"id"`
	Device      string          `json:"device"`
	URI         string          `json:"uri"`
	As          string          `json:"as"`
	Node        string          `json:"node"`
	Name        string          `json:"name"`
	State       string          `json:"state"`
	For         duration        `json:"state_ns"`
	LastError   string          `json:"last_error"`
	Access      string          `json:"access"`
	Persist     bool            `json:"persist"`
	Info        *volumeInfoView `json:"info"`
	Session     string          `json:"session"`
	SessionID   string          `json:"session_id"`
	Policy      string          `json:"policy"`
	Paths       []pathSpecView  `json:"paths"`
	PathCount   int             `json:"path_count"`
	PathsUp     int             `json:"paths_up"`
	QueueDepth  uint32          `json:"queue_depth"`
	IOTimeout   duration        `json:"io_timeout_ns"`
	LossTimeout duration        `json:"loss_timeout_ns"`
	OnLoss      string          `json:"on_loss"`
	Users       int             `json:"users"`
	Waiting     int             `json:"waiting"`
	Ops         []volumeOpView  `json:"operations"`
}

func viewMapping(m *rdsd.Mapping) mappingView {
	v := mappingView{
		ID: m.ID, Device: m.Device, URI: m.URI, As: string(m.Attach), Node: m.Node, Name: m.Name, State: string(m.State), For: duration(m.StateFor),
		LastError: m.LastError, Access: string(m.Access), Persist: m.Persist, Info: viewVolumeInfo(m.Info), Session: m.Session, SessionID: m.SessionID,
		Policy: string(m.Policy), Paths: []pathSpecView{}, PathCount: m.PathCount, PathsUp: m.PathsUp, QueueDepth: m.QueueDepth,
		IOTimeout: duration(m.IOTimeout), LossTimeout: duration(m.LossTimeout), OnLoss: string(m.OnLoss),
		Users: m.Users, Waiting: m.Waiting, Ops: viewOps(m.Ops),
	}
	for _, p := range m.Paths {
		v.Paths = append(v.Paths, viewPathSpec(p))
	}
	return v
}

type volumeSessionView struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	UUID       string     `json:"uuid"`
	Role       string     `json:"role"`
	Peer       string     `json:"peer"`
	Up         bool       `json:"up"`
	For        duration   `json:"state_ns"`
	Policy     string     `json:"policy"`
	OnLoss     string     `json:"on_loss"`
	Volumes    []string   `json:"volumes"`
	Paths      int        `json:"paths"`
	PathsUp    int        `json:"paths_up"`
	QueueDepth uint32     `json:"queue_depth"`
	InFlight   uint32     `json:"in_flight"`
	Waiting    uint32     `json:"waiting"`
	MaxIO      bytesCount `json:"max_io_bytes"`
	Memory     bytesCount `json:"memory_bytes"`
}

func viewVolumeSession(s rdsd.VolumeSession) volumeSessionView {
	return volumeSessionView{
		s.ID, s.Name, s.UUID, string(s.Role), s.Peer, s.Up, duration(s.StateFor), string(s.Policy), string(s.OnLoss), list(s.Volumes),
		s.Paths, s.PathsUp, s.QueueDepth, s.InFlight, s.Waiting, bytesCount(s.MaxIO), bytesCount(s.Memory),
	}
}

type volumePathView struct {
	Session          string     `json:"session"`
	SessionID        string     `json:"session_id"`
	Role             string     `json:"role"`
	Source           string     `json:"source"`
	Destination      string     `json:"destination"`
	State            string     `json:"state"`
	For              duration   `json:"state_ns"`
	Epoch            uint32     `json:"epoch"`
	Connections      int        `json:"connections"`
	LastError        string     `json:"last_error"`
	Latency          duration   `json:"cur_latency_ns"`
	Reconnects       uint64     `json:"reconnects"`
	ReconnectsFailed uint64     `json:"reconnects_failed"`
	Reads            uint64     `json:"reads"`
	ReadBytes        bytesCount `json:"read_bytes"`
	Writes           uint64     `json:"writes"`
	WriteBytes       bytesCount `json:"write_bytes"`
	InFlight         uint32     `json:"in_flight"`
	Failovers        uint64     `json:"failovers"`
}

func viewVolumePath(p rdsd.VolumePath) volumePathView {
	return volumePathView{
		p.Session, p.SessionID, string(p.Role), p.Src, p.Dst, string(p.State), duration(p.StateFor), p.Epoch, p.Connections, p.LastError,
		duration(p.CurLatency), p.Reconnects, p.ReconnectsFailed, p.Reads, bytesCount(p.ReadBytes), p.Writes, bytesCount(p.WriteBytes), p.InFlight, p.Failovers,
	}
}

type findingView struct {
	Severity string `json:"severity"`
	What     string `json:"what"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy"`
}

type volumeEventView struct {
	Number  uint64        `json:"number"`
	Time    time.Time     `json:"time"`
	Kind    string        `json:"kind"`
	Role    string        `json:"role,omitempty"`
	Session string        `json:"session,omitempty"`
	Path    *pathSpecView `json:"path,omitempty"`
	Mapping string        `json:"mapping,omitempty"`
	Export  string        `json:"export,omitempty"`
	State   string        `json:"state,omitempty"`
	Count   uint64        `json:"count,omitempty"`
	Size    uint64        `json:"size_bytes,omitempty"`
	Took    duration      `json:"took_ns,omitempty"`
	Error   string        `json:"error,omitempty"`
	Text    string        `json:"text"`
}

func viewVolumeEvent(e *rdsd.VolumeEvent) volumeEventView {
	v := volumeEventView{
		Number: e.Number, Time: e.Time, Kind: string(e.Kind), Role: string(e.Role), Session: e.Session, Mapping: e.Mapping, Export: e.Export,
		State: e.State, Count: e.Count, Size: e.Size, Took: duration(e.Took), Text: e.Text,
	}
	if e.Path != nil {
		v.Path = new(viewPathSpec(*e.Path))
	}
	if e.Err != nil {
		v.Error = e.Err.Error()
	}
	return v
}

// orDash is "-" for nothing.
func orDash[T comparable](v T) any {
	var zero T
	if v == zero {
		return "-"
	}
	return v
}

// sizeOf is "-" while a volume was not open.
func sizeOf(i *volumeInfoView) any {
	if i == nil {
		return "-"
	}
	return i.Size
}
