package rdsd

import (
	"net/netip"
	"time"
)

// The words of volumes are strings; "" is the daemon's default where one is
// asked for, and "not known" where one is told.
type (
	VolumeKind   string // what holds the bytes of an export
	VolumeAccess string // how a volume is opened
	VolumeAttach string // what a mapping gives to the programs of this node
	VolumePolicy string // how requests are spread over the paths of a session: any that the daemon has, by its name or short form
	VolumeOnLoss string // what requests do while no path is up
	VolumeRole   string // of this node in a session
	VolumeOrigin string // where an export comes from
	ExportState  string
	MappingState string // in the words of the kernel's RNBD client
	PathState    string // of a path of a session
	Severity     string // of a VolumeFinding
	EventKind    string // of a VolumeEvent
)

// What the words are.
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
	PathFencing      PathState = "fencing" // what was under way before is being ended; connected next
	PathRemoved      PathState = "removed"

	SeverityOK      Severity = "ok"
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
	Size               uint64
	LogicalBlock       uint32 // every offset and length is a multiple of it
	PhysicalBlock      uint32 // what can be written without reading first
	MaxIO              uint32 // largest read or write that travels whole
	MaxSegments        uint32 // 0: it does not matter
	MaxDiscard         uint64 // 0: no discard
	DiscardGranularity uint32
	DiscardAlignment   uint32
	MaxWriteZeroes     uint64 // 0: not supported
	FastZero           bool
	Rotational         bool
	ReadOnly           bool
	WriteCache         bool // a completed write is durable only after a flush
	FUA                bool
	MultiConn          bool // a flush covers what completed for any of its users
}

// VolumeOp is what happened to the requests of one operation. Latencies are at
// most a quarter too high.
type VolumeOp struct {
	Op             string // "read", "write", "flush", "discard", "write zeroes"
	Submitted      uint64
	Completed      uint64
	Errors         uint64        // of the completed
	Bytes          uint64        // of those without error
	Time           time.Duration // sum of all
	P50, P99, P999 time.Duration
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

// ExportSpec asks for an export.
type ExportSpec struct {
	// Name is what other nodes call it: relative, without "." and ".." in it,
	// at most 254 bytes.
	Name string
	Kind VolumeKind // "": what Path names; memory without a Path
	Path string     // file or block device of the daemon's node, absolute; "" for memory

	Size   uint64 // bytes: of memory; of a file that Create makes
	Create bool   // make the file if there is none, sparse; one that is there is not changed

	ReadOnly       bool
	Shared         bool           // several sessions may write at a time
	LogicalBlock   uint32         // 512 or 4096, of a file or memory; 0: 512
	AllowAddresses []netip.Prefix // who may open it; none: all that may connect
	AllowSessions  []string       // names of sessions that may, with * and ?; none: all
	Persist        bool           // export it again when the daemon starts
}

// Export is a volume this node offers.
type Export struct {
	Name           string
	Kind           VolumeKind
	Path           string
	ReadOnly       bool
	Shared         bool
	AllowAddresses []netip.Prefix
	AllowSessions  []string
	Persist        bool
	Origin         VolumeOrigin
	State          ExportState
	StateFor       time.Duration
	Error          string      // of the store, the last; why it could not be opened
	Info           *VolumeInfo // of the store when it was last open; nil before
	Users          []VolumeUser
	Ops            []VolumeOp // since the store was opened
}

// VolumeUser is a session that has an export open.
type VolumeUser struct {
	Session string // name
	Peer    netip.Addr
	Access  VolumeAccess
	OpenFor time.Duration
}

// PathSpec is a path from an address of this node to one of another. Both are
// addresses or host names, perhaps with a port. A path that is there already is
// named by its ends: Src, ports, or both may be left out where what is left fits
// one path only.
type PathSpec struct {
	Src string // "": chosen by the system
	Dst string
}

// MapSpec asks for a mapping. Zero values mean the daemon's defaults.
type MapSpec struct {
	Node   string // where the volume is: address or host name, perhaps with a port
	Name   string // of the export there
	ID     string // what the mapping is called; "": chosen
	Attach VolumeAttach

	SocketPath string // for AttachSocket; "": chosen
	Device     string // for AttachNBD, "/dev/nbd3"; "": a free one

	Session    string // name; mappings of one session share its paths. "": made of the names of the two nodes
	Paths      []PathSpec
	Policy     VolumePolicy
	QueueDepth uint32 // requests of the session in flight; 0: what the other node offers

	Access      VolumeAccess // "": AccessReadWrite
	IOTimeout   time.Duration
	LossTimeout time.Duration // with OnLossError
	OnLoss      VolumeOnLoss
	Persist     bool // map it again when the daemon starts
}

// Mapping is a volume of another node that is a block device here.
type Mapping struct {
	ID     string
	Device string // what programs open: "/dev/nbd3", or the path of the Unix socket
	URI    string // of a socket: "nbd+unix:///disk?socket=/run/rdsd/volumes/v1.sock"
	Attach VolumeAttach
	Node   string
	Name   string

	State     MappingState
	StateFor  time.Duration
	LastError string
	Info      *VolumeInfo // nil before it has been open
	Access    VolumeAccess
	Persist   bool

	Session     string // name
	SessionID   string
	Paths       []PathSpec // as asked for
	Policy      VolumePolicy
	QueueDepth  uint32 // as asked for
	IOTimeout   time.Duration
	LossTimeout time.Duration
	OnLoss      VolumeOnLoss

	Users     int // connections to its socket; 1 of an attached kernel device
	Waiting   int // requests of its session that wait for a path or a permit
	PathCount int // of its session
	PathsUp   int
	Address   *PathSpec // of a connected path; nil without one
	Ops       []VolumeOp
}

// RemoteVolume is what another node says of a volume.
type RemoteVolume struct {
	Node, Name string
	Info       VolumeInfo
	QueueDepth uint32 // of the session
}

// VolumeSession is one end of a session between two nodes.
type VolumeSession struct {
	ID         string // "c1" of a client, "s1" of a server
	Name       string
	UUID       string
	Role       VolumeRole
	Peer       string // address and port of the other node
	Up         bool   // a path is connected
	StateFor   time.Duration
	Policy     VolumePolicy // of a client
	OnLoss     VolumeOnLoss // of a client
	Volumes    []string     // ids of mappings, names of exports
	Paths      int
	PathsUp    int
	QueueDepth uint32
	InFlight   uint32
	Waiting    uint32 // requests that wait for a permit or a path
	MaxIO      uint32 // bytes
	Memory     uint64 // bytes of chunks that are in memory, of a server
}

// VolumePath is a path of a session, with its statistics since it was made or
// they were reset, named as in the kernel's sysfs.
type VolumePath struct {
	Session     string // name
	SessionID   string
	Role        VolumeRole
	Src, Dst    string // address and port of both ends, Src the client's
	State       PathState
	StateFor    time.Duration
	Epoch       uint32 // how often it has been connected
	Connections int
	LastError   string

	CurLatency       time.Duration // of the last heartbeat; 0: none yet
	Reconnects       uint64        // that succeeded
	ReconnectsFailed uint64
	Reads, ReadBytes uint64
	Writes           uint64
	WriteBytes       uint64
	InFlight         uint32
	Failovers        uint64 // requests it took over from others
}

// VolumeFinding is one answer of Check.
type VolumeFinding struct {
	Severity Severity
	What     string // id of a mapping, name of an export, "kernel", ...
	Text     string // what is so
	Remedy   string // what would be right; "" when nothing needs to be done
}

// VolumeEvent is something that happened. What does not apply to its kind is
// empty.
type VolumeEvent struct {
	Number  uint64 // from 1, rising by one; anew with each start of the daemon
	Time    time.Time
	Kind    EventKind
	Role    VolumeRole
	Session string // name
	Path    *PathSpec
	Mapping string // id
	Export  string // name
	State   string // afterwards
	Count   uint64
	Size    uint64 // bytes
	Took    time.Duration
	Err     error // an rdserr sentinel or a syscall.Errno, with the daemon's words; nil: none
	Text    string
}
