package volume

import (
	"time"
)

// How a mapped volume appears on this node.
const (
	AsSocket = "socket" // an NBD export on a Unix socket
	AsNBD    = "nbd"    // /dev/nbdN of the kernel
)

// Access modes.
const (
	AccessRO        = "ro"        // any number at a time
	AccessRW        = "rw"        // no other writer unless the export is shared
	AccessMigration = "migration" // writes, beside one other writer
)

// What requests do while no path is up.
const (
	OnLossWait  = "wait"  // wait
	OnLossError = "error" // wait for LossTimeout, then fail
)

// Policies of choosing a path, with the kernel's short forms.
const (
	PolicyRoundRobin  = "round-robin"  // rr
	PolicyMinInflight = "min-inflight" // mi
	PolicyMinLatency  = "min-latency"  // ml
)

// PathSpec is one path. Both are addresses or host names; Dst may have a port.
type PathSpec struct {
	Src string `json:"src,omitempty"` // "": a local address of the destination's family
	Dst string `json:"dst"`
}

// MapSpec asks for a mapping. Zero values mean the configuration's default.
type MapSpec struct {
	Node string // host name or address, perhaps with a port; where Paths is empty it is the path's destination
	Name string // of the volume there

	As     string // AsSocket, AsNBD; "": AsSocket
	Socket string // path of the socket; "": in Config.SocketDir
	Device int    // with AsNBD: number of the device, from 1 on; 0: any

	Session    string // name of the session; "": Config.Name and Node. Mappings of one session share its paths
	Paths      []PathSpec
	Policy     string
	QueueDepth int // requests of the session in flight at most; 0: what the server offers

	Access      string        // AccessRW
	IOTimeout   time.Duration // a request gives its path up after this
	LossTimeout time.Duration // with OnLossError
	OnLoss      string        // OnLossWait, OnLossError
	Persist     bool          // map it again when the daemon starts
}

// States of a mapping.
const (
	MappingConnecting = "connecting" // there has been no path yet, or the volume is being opened
	MappingOpen       = "open"
	MappingClosed     = "closed"    // no path; opened again when one is there
	MappingFailed     = "failed"    // the server refused to open it again; Remap tries again
	MappingUnmapping  = "unmapping" // on its way out
)

// MappingInfo describes a mapping. Sizes are in bytes.
type MappingInfo struct {
	ID     string // of this daemon, "v" and a number; the same after a restart if persistent
	Device string // what programs open: /dev/nbdN, or the path of the socket
	URI    string // of a socket: nbd+unix:///NAME?socket=PATH

	Node       string
	Name       string
	As         string
	Access     string
	Session    string // name
	SessionID  string
	OnLoss     string
	Persist    bool
	State      string
	Error      string // why State is not open
	Size       uint64
	ReadOnly   bool
	FUA        bool
	WriteCache bool

	LogicalBlock, PhysicalBlock uint32
	MaxIO                       uint32 // largest request that travels whole

	Clients int          // NBD connections now, of AsSocket
	Ops     []OpCounters // by operation
	Since   time.Time
}

// VolumeInfo is what a node says of a volume. Sizes are in bytes.
type VolumeInfo struct {
	Node, Name                  string
	Size                        uint64
	LogicalBlock, PhysicalBlock uint32
	MaxIO                       uint32
	Discard                     bool
	DiscardGranularity          uint32
	WriteZeroes                 bool
	WriteCache, FUA, Rotational bool
	ReadOnly                    bool
}
