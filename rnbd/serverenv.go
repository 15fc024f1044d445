package rnbd

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// ServerEnv carries out what a Server decides. It is called from within the Server's
// methods, with the lock held; it does not block and does not call back.
type ServerEnv interface {
	// Open has o.Do called, beside the work of the Server, then Server.Opened.
	Open(o *Opening)
	// Close has c closed in the same way: a device that is no longer used and has nothing
	// in flight, or a Root. It was opened at the place (Opening.Place).
	Close(place any, c Closer)
	// Note has what Past and Held tell now written down, so that it outlives the machine, and then
	// Server.Noted called in the same way. Only asked for with ServerConfig.Notes.
	Note(o *Opening)
	// Keep says that there is something new in Past or Held, to be written down soon.
	Keep()
	// Hold charges a volume that a session opens to the peer it is opened from, or says why it may
	// have no more. let is called once, when nothing of it is left.
	Hold(from netip.Addr) (let func(), err error)
	// Event tells what happened, for logs and watchers.
	Event(e ServerEvent)
}

// Closer is a blk.Device or a *Root.
type Closer interface{ Close() error }

// Replier answers requests: an *rtrs.Server.
type Replier interface {
	// Reply ends r. READ: its first n bytes of Data are filled.
	Reply(now time.Duration, r *rtrs.ServerReq, n int, err error)
}

// ServerEventKind says what happened.
type ServerEventKind uint8

// Kinds of event.
const (
	ServerOpened   ServerEventKind = iota // a session opened a volume, in mode Access
	ServerClosed                          // it closed it, or was lost, or the volume was taken from it (Err)
	ServerRefused                         // it may not, or could not be: Err
	ServerIOError                         // the store failed a request: Op, Err. The first of a volume, then the first after a success
	ServerSyncLost                        // a sync failed: completed writes may be lost, Err
	numServerEvents
)

var serverEventNames = [numServerEvents]string{"opened", "closed", "refused", "io-error", "sync-lost"}

func (k ServerEventKind) String() string {
	if k < numServerEvents {
		return serverEventNames[k]
	}
	return "unknown"
}

// ServerEvent is something that happened, as far as it has a meaning for its kind.
type ServerEvent struct {
	Kind    ServerEventKind
	Name    string // of the volume, as the client asked for it
	Session string
	Access  rnbdwire.Access
	Op      blk.Op
	Err     error
}

// ServerConfig is a server's configuration; zero means the default.
type ServerConfig struct {
	// Boot is a number of this start of the machine, the same for every daemon until it is
	// started again (a hash of the kernel's boot id). Clients learn by it that the page
	// cache was lost. 0 means that it is unknown; a random number is taken.
	Boot uint64
	// Past is the result of Server.Past from before the daemon was started again: a failed
	// sync is told to clients that were away, and a session that was away while another
	// wrote does not go on writing.
	Past []Past
	// Forgot is the result of Server.Forgot, likewise.
	Forgot uint32
	// Held is the result of Server.Held, likewise: a session that was away does not go on
	// where its name leads to another store now.
	Held []Held
	// Notes says that the environment keeps Past and Held (ServerEnv.Note). A session that was not
	// the last to write is let in when that is written down, and not before: a daemon or a
	// machine that ends in between would let the former writer's waiting writes go over it.
	Notes bool
	// MaxOpen is the most volumes one session has open; 1024.
	MaxOpen int
	// MaxVolumes is the most exports, with the stores that are open below roots; 0: no limit.
	MaxVolumes int
	// FirstID is the number of the first device opened, RandomID a random one. Numbers are
	// not used again soon, in any session: a request for a device that is closed does not
	// reach another one. RandomID is right but for tests.
	FirstID uint32
}

// RandomID asks for a random first device number.
const RandomID = 0

// OpenInfo describes a volume that a session has open.
type OpenInfo struct {
	Session  *rtrs.ServerSession
	Name     string // as the client asked for it
	Export   *Export
	Root     *Root // it was found below; Export is nil
	Access   rnbdwire.Access
	Device   blk.Device
	DeviceID uint32
	Inflight int           // requests at the store
	Since    time.Duration // it is open
	Forced   bool          // it was taken from the session, which has not closed it yet
}
