package volume

import "time"

// Roles of a session's end.
const (
	RoleClient = "client" // it maps
	RoleServer = "server" // it exports
)

// SessionInfo describes a session of RTRS.
type SessionInfo struct {
	ID     string // of this daemon, "c" or "s" and a number
	Name   string
	UUID   string
	Role   string
	Peer   string // address and port of the node
	Up     bool   // a path is connected
	Kernel bool   // the other end is a kernel; false as long as a client does not know
	Policy string // of a client
	OnLoss string // of a client
	// Of a client; see MapSpec. UnfencedFailovers counts lost paths whose requests went to
	// another one without a fence.
	Unfenced          string
	UnfencedAfter     time.Duration
	UnfencedFailovers uint64
	MaxReconnects     int
	Volumes           []string // IDs of mappings, names of exports
	Paths             int
	PathsUp           int
	Depth             int       // requests in flight at most
	InFlight          int       // now
	Waiting           int       // requests that wait for a permit or a path
	MaxIO             uint32    // bytes
	Memory            uint64    // bytes of chunks that are in memory, of a server
	Since             time.Time // it is up, or not
	Timeouts          uint64    // of a client: times that a request passed the I/O timeout (rtrs.ClientStats)
}

// PathInfo describes a path of a session.
type PathInfo struct {
	PathSpec // address and port of both ends, Src the client's
	// Device is the RDMA device of this node that it goes over, DevicePort the port of that
	// (hca_name, hca_port); "" and 0: none.
	Device     string
	DevicePort int
	Session    string // name
	SessionID  string
	Role       string
	State      string // "connecting", "connected", "reconnecting", "disconnected", "closing"
	Epoch      uint16 // how often it has been connected
	Conns      int    // connections
	LastError  string
	ErrorAt    time.Time // when that was
	Attempts   int       // to connect, that failed in a row
	RetryAt    time.Time // when it is tried again; zero: it does not wait for that
	Since      time.Time // it has this state
	Down       time.Time // of a client's: since when it is not connected, through all attempts; zero: it is
	PathStats
	GivenUp  bool // "disconnected" because it is out of attempts
	Unmade   bool // it is not there, because its address, or one of this node to come from, cannot be had yet; Src and Dst are as it was asked for
	Replaced bool // another session of this name took the place of its session, which is over
}

// PathStats count since the path was made or its statistics were reset.
type PathStats struct {
	ReconnectsOK, ReconnectsFailed uint64
	Reads, ReadBytes               uint64
	Writes, WriteBytes             uint64
	InFlight                       int
	Failovers                      uint64        // requests it took over from others
	Latency                        time.Duration // of the last heartbeat; 0: not measured
}
