package volume

import (
	"io/fs"
	"net/netip"
	"time"
)

// When to listen.
const (
	ListenAuto   = "auto" // while there is an export or a root
	ListenAlways = "always"
	ListenNever  = "never"
)

// DefaultPort is the TCP port of RTRS, where peers reach the exports. 16385 is
// that of RDS; the two behind it are the daemon's own (HTTP, remote gRPC).
const DefaultPort = 16388

// Config is the daemon's configuration of volumes, section [volumes]. The zero
// value of a field means its default; a negative Duration is never right. The
// names of the keys stand behind the fields.
type Config struct {
	// Addresses are the node's own: exports are offered at each of them, and
	// paths leave from them. Without one nothing listens, and the system
	// chooses where paths leave from. (rds.addresses)
	Addresses []netip.Addr
	Port      uint16 // port: to listen on, and of peers that name none; DefaultPort

	Listen string // listen: ListenAuto

	// Name is this node's part of a session's name: the session to a node is
	// NAME-ADDRESS unless a mapping says otherwise. The host's name, with what
	// RTRS does not allow replaced. (name)
	Name string

	StateDir   string      // state_dir: of what is persistent; "": nothing can be
	SocketDir  string      // socket_dir: where sockets of mappings appear that name none; StateDir
	SocketMode fs.FileMode // socket_mode: permissions of those; 0600

	// Sessions as a server.
	QueueDepth       int            // queue_depth: requests of a session in flight; 512
	MaxIO            int            // max_io_bytes: the largest request; 256 KiB
	AlwaysInvalidate *bool          // always_invalidate: a chunk's key ends with each request; true
	Allow            []netip.Prefix // allow: who may connect at all; empty: everybody
	MaxSessions      int            // max_sessions: at a time; 256
	MaxConnections   int            // max_connections: of all sessions, half of them from one address; 32 Ki

	// Sessions as a client.
	Connections  int           // connections: of a path, beside its first; 1
	Heartbeat    time.Duration // heartbeat_interval; 200 ms
	MissedLimit  int           // heartbeat_missed: so many intervals of silence end a path; 4
	ReconnectMin time.Duration // reconnect_min: longest first pause, with full jitter; 100 ms
	ReconnectMax time.Duration // reconnect_max; 5 s
	IOTimeout    time.Duration // io_timeout: a request that takes longer is told of, and gives a path up that may not live; 30 s
	LossTimeout  time.Duration // loss_timeout: with on_loss "error", requests wait so long for a path; 30 s
	OnLoss       string        // on_loss: "wait" for a path, or fail with "error"; "wait"
	// Unfenced and UnfencedAfter say what becomes of requests that were in flight on a lost path
	// to a kernel's server.
	Unfenced      string        // unfenced: UnfencedAfter
	UnfencedAfter time.Duration // unfenced_after; 40 s
	MaxReconnects int           // max_reconnect_attempts: in a row, of a lost path; NoLimit
	Policy        string        // policy: min-inflight
	Attach        string        // attach: how a mapping appears that does not say; AsSocket
	// NBDTimeout is how long a request of a kernel device may take before the
	// kernel gives its connection up and sends it again, where nothing asks for
	// longer. That costs little (nbd.Server.ServeDevice), but what was under way when
	// a daemon died is sent to the next one only then. The default is long enough
	// for as many requests as the kernel has under way over a slow network.
	NBDTimeout  time.Duration // nbd_timeout; 10 s
	DeadTimeout time.Duration // nbd_dead_timeout: a kernel device waits so long for a daemon that is gone; 1 min
	MaxMappings int           // max_mappings: at a time; 256

	MaxExports int // max_exports: at a time, those found below roots included; 1024

	Exports []ExportSpec // [[volumes.exports]]
	Roots   []RootSpec   // [[volumes.roots]]
}

// RootSpec is a directory below which clients find files and block devices by
// name.
type RootSpec struct {
	// Path is the directory; {session} and %SESSNAME% in it stand for the
	// session's name.
	Path     string
	ReadOnly bool           // nothing below it is written
	Shared   bool           // several writers of one volume at a time
	Allow    []netip.Prefix // addresses that may open; empty: all that may connect
	Sessions []string       // names of sessions that may open, with * and ?; empty: all
}
