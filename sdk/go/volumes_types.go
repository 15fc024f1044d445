package rdsd

import (
	"encoding/json"
	"net/netip"
	"time"
)

// The words of volumes are strings; "" is the daemon's default where one is
// asked for, and "not known" where one is told.
type (
	VolumeKind   string // the store of an export
	VolumeAccess string // how a volume is opened
	VolumeAttach string // how programs of this node use a mapping
	VolumePolicy string // how requests are spread over the paths of a session: any that the daemon has, by its name or short form
	VolumeOnLoss string // how requests end while no path is up
	// VolumeUnfenced is what becomes of requests in flight on a lost path to a kernel's server, which cannot be asked to end them.
	VolumeUnfenced string
	VolumeRole     string // of this node in a session
	VolumeOrigin   string // where an export comes from
	ExportState    string
	MappingState   string // in the words of the kernel's RNBD client
	PathState      string // of a path of a session
	Severity       string // of a VolumeFinding, a Problem or a LoggedError
	EventKind      string // of a VolumeEvent
)

// The words and their meanings.
const (
	KindFile        VolumeKind = "file"
	KindBlockDevice VolumeKind = "block"
	KindMemory      VolumeKind = "memory" // gone when the daemon ends

	AccessReadOnly  VolumeAccess = "ro"        // any number at a time
	AccessReadWrite VolumeAccess = "rw"        // one writer, unless the export is shared
	AccessMigration VolumeAccess = "migration" // writes, beside one other writer

	AttachSocket VolumeAttach = "socket" // an NBD export on a Unix socket
	AttachNBD    VolumeAttach = "nbd"    // a kernel device, /dev/nbdN

	PolicyRoundRobin  VolumePolicy = "round-robin"  // or "rr"
	PolicyMinInflight VolumePolicy = "min-inflight" // or "mi"
	PolicyMinLatency  VolumePolicy = "min-latency"  // or "ml"

	OnLossWait  VolumeOnLoss = "wait"
	OnLossError VolumeOnLoss = "error" // wait for the loss timeout, then fail

	UnfencedAfter VolumeUnfenced = "after" // they go to another path when the server has ended the lost one by itself
	UnfencedNow   VolumeUnfenced = "now"   // they go to another path at once: an old write may go over a newer one
	UnfencedWait  VolumeUnfenced = "wait"  // they wait until the same path is back

	RoleClient VolumeRole = "client" // this node maps
	RoleServer VolumeRole = "server" // this node exports

	OriginConfig VolumeOrigin = "config" // the configuration file
	OriginCall   VolumeOrigin = "call"   // Volumes.Export
	OriginRoot   VolumeOrigin = "root"   // found below an export root

	ExportOpen   ExportState = "open"   // its store is
	ExportClosed ExportState = "closed" // the store is opened when a client comes
	ExportFailed ExportState = "failed" // the store could not be opened

	MappingInit     MappingState = "init"   // has not been open yet
	MappingOpen     MappingState = "open"   // requests are carried out
	MappingClosed   MappingState = "closed" // no path, or the other node has closed it; opened again by itself
	MappingUnmapped MappingState = "unmapped"

	PathConnecting   PathState = "connecting"
	PathConnected    PathState = "connected"
	PathReconnecting PathState = "reconnecting" // lost, or never there; tried again
	PathDisconnected PathState = "disconnected" // by an administrator, or given up
	PathClosing      PathState = "closing"
	PathFencing      PathState = "fencing" // earlier requests are being ended; connected next
	PathRemoved      PathState = "removed"

	SeverityOK      Severity = "ok"
	SeverityNote    Severity = "note" // worth knowing; nothing fails. Of a Problem alone
	SeverityWarning Severity = "warning"
	SeverityError   Severity = "error"

	EventGap      EventKind = "gap"      // Count events are missing here
	EventSession  EventKind = "session"  // came up, went down, was refused
	EventPath     EventKind = "path"     // changed its state
	EventMapping  EventKind = "mapping"  // changed its state
	EventExport   EventKind = "export"   // added, removed, opened, closed
	EventFailover EventKind = "failover" // Count requests moved to another path
	EventResize   EventKind = "resize"
	EventError    EventKind = "error" // a request or the store failed
)

// VolumeInfo describes a volume: its size, its limits and what it can do.
// Lengths are in bytes.
type VolumeInfo struct {
	Size               uint64 `json:"size_bytes"`
	LogicalBlock       uint32 `json:"logical_block_bytes"`  // every offset and length is a multiple of it
	PhysicalBlock      uint32 `json:"physical_block_bytes"` // the unit that can be written without reading first
	MaxIO              uint32 `json:"max_io_bytes"`         // largest read or write that travels whole
	MaxSegments        uint32 `json:"max_segments"`         // 0: it does not matter
	MaxDiscard         uint64 `json:"max_discard_bytes"`    // 0: no discard
	DiscardGranularity uint32 `json:"discard_granularity_bytes"`
	DiscardAlignment   uint32 `json:"discard_alignment_bytes"`
	MaxWriteZeroes     uint64 `json:"max_write_zeroes_bytes"` // 0: not supported
	FastZero           bool   `json:"fast_zero"`
	Rotational         bool   `json:"rotational"`
	ReadOnly           bool   `json:"read_only"`
	WriteCache         bool   `json:"write_cache"` // a completed write is durable only after a flush
	FUA                bool   `json:"fua"`
	MultiConn          bool   `json:"multi_conn"` // a flush covers what completed for any of its users
}

// VolumeOp counts the requests of one operation. Latencies are at most a quarter too high.
// Its JSON has InFlight and Mean too, as in_flight and mean_ns.
type VolumeOp struct {
	Op        string        `json:"operation"` // "read", "write", "flush", "discard", "write zeroes"
	Submitted uint64        `json:"submitted"`
	Completed uint64        `json:"completed"`
	Errors    uint64        `json:"errors"`  // of the completed
	Bytes     uint64        `json:"bytes"`   // of those without error
	Time      time.Duration `json:"time_ns"` // sum of all
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	P999      time.Duration `json:"p999_ns"`
}

// InFlight is how many requests have not completed.
func (o VolumeOp) InFlight() uint64 { return max(o.Submitted, o.Completed) - o.Completed }

// Mean is the mean duration, 0 when none has completed.
func (o VolumeOp) Mean() time.Duration {
	if o.Completed == 0 {
		return 0
	}
	return o.Time / time.Duration(o.Completed)
}

// MarshalJSON adds the computed values.
func (o VolumeOp) MarshalJSON() ([]byte, error) {
	type fields VolumeOp // without this method
	return json.Marshal(struct {
		fields
		InFlight uint64        `json:"in_flight"`
		Mean     time.Duration `json:"mean_ns"`
	}{fields(o), o.InFlight(), o.Mean()})
}

// ExportSpec asks for an export.
type ExportSpec struct {
	// Name is its name for other nodes: relative, without "." and ".." in it, at most 254
	// bytes.
	Name string
	Kind VolumeKind // "": chosen by Path; memory without a Path
	Path string     // file or block device of the daemon's node, absolute; "" for memory

	Size   uint64 // bytes: of memory; of a file that Create makes
	Create bool   // make the file if there is none, sparse; one that is there is not changed

	ReadOnly       bool
	Shared         bool           // several sessions may write at a time
	LogicalBlock   uint32         // 512 or 4096, of a file or memory; 0: 512
	AllowAddresses []netip.Prefix // peers that may open it; none: all that may connect
	AllowSessions  []string       // names of sessions that may, with * and ?; none: all
	Persist        bool           // export it again when the daemon starts
}

// Export is a volume this node offers.
type Export struct {
	Name           string         `json:"name"`
	Kind           VolumeKind     `json:"kind"`
	Path           string         `json:"path"`
	State          ExportState    `json:"state"`
	StateFor       time.Duration  `json:"state_ns"`
	Error          string         `json:"error"` // of the store, the last; why it could not be opened
	ReadOnly       bool           `json:"read_only"`
	Shared         bool           `json:"shared"`
	AllowAddresses []netip.Prefix `json:"allow_addresses"`
	AllowSessions  []string       `json:"allow_sessions"`
	Persist        bool           `json:"persist"`
	Origin         VolumeOrigin   `json:"origin"`
	Info           *VolumeInfo    `json:"info"` // of the store when it was last open; nil before
	Users          []VolumeUser   `json:"users"`
	Ops            []VolumeOp     `json:"operations"` // since the store was opened
}

// VolumeUser is a session that has an export open.
type VolumeUser struct {
	Session string        `json:"session"` // name
	Peer    netip.Addr    `json:"peer"`
	Access  VolumeAccess  `json:"access"`
	OpenFor time.Duration `json:"open_ns"`
	// Kernel says that it is a kernel's, which learns another size of the volume only when it opens it again.
	Kernel bool `json:"kernel"`
}

// PathSpec is a path from an address of this node to one of another. Both are
// addresses or host names, perhaps with a port. A path that is there already is
// named by its ends: Src, ports, or both may be left out where what is left fits
// one path only.
type PathSpec struct {
	Src string `json:"source"` // "": chosen by the system
	Dst string `json:"destination"`
	// Transport is TransportTCP or TransportIB; "": TCP, and of a path that is there already, either.
	Transport string `json:"transport,omitempty"`
}

// MapSpec asks for a mapping. Zero values mean the daemon's defaults.
type MapSpec struct {
	Node   string // where the volume is: address or host name, perhaps with a port
	Name   string // of the export there
	ID     string // name of the mapping; "": chosen
	Attach VolumeAttach

	SocketPath string // for AttachSocket; "": chosen
	Device     string // for AttachNBD, "/dev/nbd3"; "": a free one

	Session    string // name; mappings of one session share its paths. "": made of the names of the two nodes
	Paths      []PathSpec
	Policy     VolumePolicy
	QueueDepth uint32 // requests of the session in flight; 0: as many as the other node offers

	Access      VolumeAccess // "": AccessReadWrite
	IOTimeout   time.Duration
	LossTimeout time.Duration // with OnLossError
	OnLoss      VolumeOnLoss
	Persist     bool // map it again when the daemon starts

	Unfenced             VolumeUnfenced
	UnfencedAfter        time.Duration // with UnfencedAfter, since the lost path's links were closed
	MaxReconnectAttempts int           // in a row, after which a lost path is left disconnected; -1: without end
}

// Mapping is a volume of another node that is a block device here.
type Mapping struct {
	ID     string       `json:"id"`
	Device string       `json:"device"` // path that programs open: "/dev/nbd3", or the path of the Unix socket; "": there is none yet
	URI    string       `json:"uri"`    // of a socket: "nbd+unix:///disk?socket=/run/rdsd/volumes/v1.sock"
	Attach VolumeAttach `json:"as"`
	Node   string       `json:"node"`
	Name   string       `json:"name"`

	State     MappingState  `json:"state"`
	StateFor  time.Duration `json:"state_ns"`
	LastError string        `json:"last_error"`
	Access    VolumeAccess  `json:"access"`
	Persist   bool          `json:"persist"`
	Info      *VolumeInfo   `json:"info"` // nil before it has been open

	Session     string        `json:"session"` // name
	SessionID   string        `json:"session_id"`
	Policy      VolumePolicy  `json:"policy"`
	Paths       []PathSpec    `json:"paths"`      // as asked for
	PathCount   int           `json:"path_count"` // of its session
	PathsUp     int           `json:"paths_up"`
	Address     *PathSpec     `json:"address"`     // of a connected path; nil without one
	QueueDepth  uint32        `json:"queue_depth"` // as asked for
	IOTimeout   time.Duration `json:"io_timeout_ns"`
	LossTimeout time.Duration `json:"loss_timeout_ns"`
	OnLoss      VolumeOnLoss  `json:"on_loss"`

	Unfenced             VolumeUnfenced `json:"unfenced"`
	UnfencedAfter        time.Duration  `json:"unfenced_after_ns"`
	MaxReconnectAttempts int            `json:"max_reconnect_attempts"` // -1: without end

	Users   int        `json:"users"`   // connections to its socket; 1 of an attached kernel device
	Waiting int        `json:"waiting"` // requests of its session that wait for a path or a permit
	Ops     []VolumeOp `json:"operations"`
}

// RemoteVolume is a volume as another node describes it.
type RemoteVolume struct {
	Node       string     `json:"node"`
	Name       string     `json:"name"`
	QueueDepth uint32     `json:"queue_depth"` // of the session
	Info       VolumeInfo `json:"info"`
}

// VolumeSession is one end of a session between two nodes.
type VolumeSession struct {
	ID         string        `json:"id"` // "c1" of a client, "s1" of a server
	Name       string        `json:"name"`
	UUID       string        `json:"uuid"`
	Role       VolumeRole    `json:"role"`
	Peer       string        `json:"peer"`   // address and port of the other node
	Up         bool          `json:"up"`     // a path is connected
	Kernel     bool          `json:"kernel"` // the other end is a kernel
	StateFor   time.Duration `json:"state_ns"`
	Policy     VolumePolicy  `json:"policy"`  // of a client
	OnLoss     VolumeOnLoss  `json:"on_loss"` // of a client
	Volumes    []string      `json:"volumes"` // ids of mappings, names of exports
	Paths      int           `json:"paths"`
	PathsUp    int           `json:"paths_up"`
	QueueDepth uint32        `json:"queue_depth"`
	InFlight   uint32        `json:"in_flight"`
	Waiting    uint32        `json:"waiting"`      // requests that wait for a permit or a path
	MaxIO      uint32        `json:"max_io_bytes"` // bytes
	Memory     uint64        `json:"memory_bytes"` // bytes of chunks that are in memory, of a server

	// Of a client. UnfencedFailovers counts lost paths whose requests went to another one without a fence.
	Unfenced             VolumeUnfenced `json:"unfenced"`
	UnfencedAfter        time.Duration  `json:"unfenced_after_ns"`
	UnfencedFailovers    uint64         `json:"unfenced_failovers"`
	MaxReconnectAttempts int            `json:"max_reconnect_attempts"` // -1: without end
}

// SessionChange is what Volumes.SetSession changes. What is zero stays as it is.
type SessionChange struct {
	Policy               VolumePolicy
	Unfenced             VolumeUnfenced
	UnfencedAfter        time.Duration
	MaxReconnectAttempts int // -1: without end
}

// VolumePath is a path of a session, with its statistics since it was made or
// they were reset, named as in the kernel's sysfs.
type VolumePath struct {
	Session     string        `json:"session"` // name
	SessionID   string        `json:"session_id"`
	Role        VolumeRole    `json:"role"`
	Src         string        `json:"source"`      // address and port of the client
	Dst         string        `json:"destination"` // address and port of the server
	State       PathState     `json:"state"`
	StateFor    time.Duration `json:"state_ns"`
	Epoch       uint32        `json:"epoch"` // how often it has been connected
	Connections int           `json:"connections"`
	LastError   string        `json:"last_error"`
	ErrorAge    time.Duration `json:"error_age_ns"` // how long ago LastError was; 0 without one
	Attempts    uint32        `json:"attempts"`     // to connect, in a row, that failed
	RetryIn     time.Duration `json:"retry_in_ns"`  // when it is tried again; 0: now, or it does not wait for that
	Transport   string        `json:"transport"`
	Device      string        `json:"device"` // RDMA device of this node, the kernel's hca_name; "": none
	Port        uint32        `json:"port"`   // of the device, the kernel's hca_port; 0: none

	CurLatency       time.Duration `json:"cur_latency_ns"` // of the last heartbeat; 0: none yet
	Reconnects       uint64        `json:"reconnects"`     // that succeeded
	ReconnectsFailed uint64        `json:"reconnects_failed"`
	Reads            uint64        `json:"reads"`
	ReadBytes        uint64        `json:"read_bytes"`
	Writes           uint64        `json:"writes"`
	WriteBytes       uint64        `json:"write_bytes"`
	InFlight         uint32        `json:"in_flight"`
	Failovers        uint64        `json:"failovers"` // requests it took over from others
}

// VolumeFinding is one answer of Check.
type VolumeFinding struct {
	Severity Severity `json:"severity"`
	What     string   `json:"what"`   // id of a mapping, name of an export, "kernel", ...
	Text     string   `json:"text"`   // the finding
	Remedy   string   `json:"remedy"` // the remedy; "" when nothing needs to be done
}

// VolumeEvent is something that happened. What does not apply to its kind is
// empty, and not in its JSON. Of Err the JSON has the words, as error, and Err does
// not come back from it.
type VolumeEvent struct {
	Number  uint64        `json:"number"` // from 1, rising by one; from 1 again with each start of the daemon
	Time    time.Time     `json:"time"`
	Kind    EventKind     `json:"kind"`
	Role    VolumeRole    `json:"role,omitempty"`
	Session string        `json:"session,omitempty"` // name
	Path    *PathSpec     `json:"path,omitempty"`
	Mapping string        `json:"mapping,omitempty"` // id
	Export  string        `json:"export,omitempty"`  // name
	State   string        `json:"state,omitempty"`   // afterwards
	Count   uint64        `json:"count,omitempty"`
	Size    uint64        `json:"size_bytes,omitempty"`
	Took    time.Duration `json:"took_ns,omitempty"`
	Err     error         `json:"-"` // an rdserr sentinel or a syscall.Errno, with the daemon's words; nil: none
	Text    string        `json:"text"`

	// Instance of the daemon, another with each start; 0 of a daemon that does not tell it.
	Instance uint64 `json:"instance,omitempty"`
}

// MarshalJSON puts the words of Err in.
func (e VolumeEvent) MarshalJSON() ([]byte, error) {
	type fields VolumeEvent // without this method
	said := ""
	if e.Err != nil {
		said = e.Err.Error()
	}
	return json.Marshal(struct {
		fields
		Error string `json:"error,omitempty"`
	}{fields(e), said})
}
