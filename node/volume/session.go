package volume

import "time"

// Roles of a session's end.
const (
	RoleClient = "client" // it maps
	RoleServer = "server" // it exports
)

// SessionInfo describes a session of RTRS.
type SessionInfo struct {
	ID       string // of this daemon, "c" or "s" and a number
	Name     string
	UUID     string
	Role     string
	Peer     string // address and port of the node
	State    string // "up", "down", "closing"
	Policy   string // of a client
	OnLoss   string // of a client
	Volumes  []string
	Paths    int
	PathsUp  int
	Depth    int    // requests in flight at most
	InFlight int    // now
	Waiting  int    // requests that wait for a permit or a path
	MaxIO    uint32 // bytes
	Memory   uint64 // bytes of chunks that are in memory, of a server
	Since    time.Time
}

// PathInfo describes a path of a session.
type PathInfo struct {
	ID        string // of this daemon: the session's ID, "/" and a number
	Session   string // ID
	Name      string // the session's name
	Role      string
	Src, Dst  string // from the client's point of view
	State     string
	Epoch     uint16 // connected for the how-many-th time
	Conns     int    // connections
	LastError string
	Since     time.Time // it has this state
	PathStats
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
