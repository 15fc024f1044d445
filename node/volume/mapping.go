package volume

import (
	"syscall"
	"time"

	"github.com/rdsd/rdsd/blk"
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

// What becomes of requests that were in flight on a lost path to a kernel's server, which
// cannot be asked to end them (rtrs.Unfenced).
const (
	UnfencedAfter = "after" // they go to another path after MapSpec.UnfencedAfter
	UnfencedNow   = "now"   // they go to another path at once
	UnfencedWait  = "wait"  // they wait until the same path is back
)

// PathSpec is one path. Both are addresses or host names; Dst may have a port.
type PathSpec struct {
	Src string `json:"src,omitempty"` // "": a local address of the destination's family
	Dst string `json:"dst"`
	// Transport is the name of TCP or of one of Deps.Others; "": TCP.
	Transport string `json:"transport,omitempty"`
}

// String names the path as the command line does.
func (p PathSpec) String() string {
	s := "to " + p.Dst
	if p.Src != "" {
		s = "from " + p.Src + " " + s
	}
	if p.Transport != "" {
		s += " over " + p.Transport
	}
	return s
}

// MapSpec asks for a mapping. Zero values mean the configuration's default.
type MapSpec struct {
	Node string // host name or address, perhaps with a port; where Paths is empty it is the path's destination
	Name string // of the volume there

	As     string // AsSocket, AsNBD; "": AsSocket
	Socket string // path of the socket; "": in Config.SocketDir
	Device string // with AsNBD: "/dev/nbd3"; "": a free one
	ID     string // what the mapping is called; "": chosen

	Session    string // name of the session; "": Config.Name and Node. Mappings of one session share its paths
	Paths      []PathSpec
	Policy     string
	QueueDepth int // requests of the session in flight at most; 0: what the server offers

	Access      string        // AccessRW
	IOTimeout   time.Duration // a request that takes longer is told of, and gives a path up that may not live
	LossTimeout time.Duration // with OnLossError
	OnLoss      string        // OnLossWait, OnLossError
	Persist     bool          // map it again when the daemon starts

	Unfenced      string        // UnfencedAfter, UnfencedNow, UnfencedWait
	UnfencedAfter time.Duration // with UnfencedAfter: so long after the lost path's links were closed
	MaxReconnects int           // attempts in a row to connect a lost path, NoLimit: without end
}

// NoLimit is MapSpec.MaxReconnects without end.
const NoLimit = -1

// States of a mapping, those of the kernel's client.
const (
	StateInit     = "init"     // has not been open yet, or has no device here yet
	StateOpen     = "open"     // requests are carried out
	StateClosed   = "closed"   // no path, or the server has closed it: it is opened again by itself, or by Remap
	StateUnmapped = "unmapped" // on its way out
)

// MappingInfo describes a mapping.
type MappingInfo struct {
	MapSpec // all defaults filled in; Device is what programs open: /dev/nbdN, or the path of the socket; "": there is none

	URI       string // of a socket: nbd+unix:///NAME?socket=PATH
	State     string
	Since     time.Time // it has this state
	LastError string
	SessionID string
	Info      blk.Info // MaxBytes: what travels in one piece
	Users     int      // NBD connections of a socket; 1 of a kernel device
	Waiting   int      // requests of its session that wait for a path or a permit
	PathCount int      // of its session
	PathsUp   int
	Address   PathSpec      // of a connected path
	Ops       []OpCounters  // by operation, since it was mapped
	Oldest    time.Duration // its oldest request is not answered for so long; 0: there is none

	Errno     syscall.Errno // of LastError; 0: there is none
	Here      bool          // that is of this node: what is persistent cannot be written, and no other is asked before
	NoDevice  bool          // that is of this node, too: it cannot make a device or a socket of the volume, which is open
	Left      bool          // it could not be taken up at the start, and is not tried again before the next
	FailedAgo time.Duration // a request failed last; 0: none did
	FailedWhy string        // and why; LastError may be of something else, such as a path that was lost since
	SyncLost  bool          // completed writes may be lost, and no flush succeeds until it is mapped anew
}

// Pending are requests to it that have not completed: without a path, those that wait for one. Waiting are those of its session,
// of which other mappings may have their part.
func (i *MappingInfo) Pending() (n uint64) {
	for _, o := range i.Ops {
		n += o.Submitted - o.Completed
	}
	return n
}

// How long a request may take before that is a problem, and one to an export before it is an error: clients
// have their own limits (MapSpec.IOTimeout).
const (
	StallGrace = 10 * time.Second
	StallLong  = 30 * time.Second
)

// Stalled reports whether a request takes too long though a path is connected.
func (i *MappingInfo) Stalled() bool {
	return i.State == StateOpen && i.Oldest >= min(StallGrace, i.IOTimeout) && i.Oldest > 0
}

// VolumeInfo is what a node says of a volume.
type VolumeInfo struct {
	Node, Name string
	Info       blk.Info
	QueueDepth int // of the session
}
