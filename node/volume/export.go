package volume

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Kinds of store.
const (
	KindFile   = "file"   // a regular file
	KindBlock  = "block"  // a block device
	KindMemory = "memory" // memory of the daemon, gone with it
)

// ExportSpec asks for an export.
type ExportSpec struct {
	Name string // what clients ask for: relative, no "." or ".." in it, at most 254 bytes
	Kind string // KindFile, KindBlock, KindMemory; "": what Path names, memory without a Path
	Path string // of a file or block device, absolute

	// Size in bytes: of memory; of a file that Create makes.
	Size   uint64
	Create bool // make the file if there is none; it is not changed if there is one

	ReadOnly     bool
	Shared       bool           // several writers at a time (they must agree among themselves)
	LogicalBlock uint32         // bytes, 512 or 4096, of a file or memory; 512
	Allow        []netip.Prefix // addresses that may open; empty: all that may connect
	Sessions     []string       // names of sessions that may open, with * and ?; empty: all
	Persist      bool           // export it again when the daemon starts
}

// Where an export comes from.
const (
	OriginConfig = "config" // the configuration
	OriginCall   = "call"   // Host.Export
	OriginRoot   = "root"   // found below a root
)

// ExportInfo describes an export.
type ExportInfo struct {
	ExportSpec // Kind as it is now

	Origin    string
	State     string   // "open"; "closed": the store is opened when a client comes; "failed": it could not be, at the last attempt
	Error     string   // of the store, the last; of "failed": why it could not be opened
	Info      blk.Info // of the store; the zero value where it is not open
	Users     []ExportUser
	Ops       []OpCounters  // by operation, since the store was opened
	Since     time.Time     // it has this state
	Oldest    time.Duration // the oldest request to the store has not completed for so long; 0: there is none
	FailedAgo time.Duration // a request failed last; 0: none did
	Left      bool          // it could not be taken up at the start, and is not tried again before the next

	errno syscall.Errno // of Error, if it is Left
	key   storeKey      // what its stores are counted for
	files []blk.FileID  // that sessions have open; more than one where its path has come to lead to another
}

// Stalled reports whether a request to the store takes too long.
func (i *ExportInfo) Stalled() bool { return i.Oldest >= StallGrace }

// NotTaken is why an export that is Left is not there, and what mends that: its store may be in order.
func (i *ExportInfo) NotTaken() (text, fix string) {
	fix = "mend that on this node"
	if i.errno == rdserr.ErrTooMany.Errno {
		fix = "raise volumes.max_exports"
	}
	return "it was not taken up at the start: " + i.Error, fix + " and systemctl restart rdsd; or rdsd volume unexport " + i.Name
}

// ExportUser is a session that has an export open.
type ExportUser struct {
	Session string // its name
	Peer    netip.Addr
	Access  string
	Since   time.Time
	// Kernel says that it is a kernel's, which learns another size of the volume only when it
	// opens it again.
	Kernel bool
}

// OpCounters are what happened to the requests of one operation.
type OpCounters struct {
	Op             string // "read", "write", "flush", "discard", "write zeroes"
	Submitted      uint64
	Completed      uint64
	Errors         uint64        // of the completed
	Bytes          uint64        // of those without error
	Time           time.Duration // sum of all
	P50, P99, P999 time.Duration // at most a quarter too high
}
