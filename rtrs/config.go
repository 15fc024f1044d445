package rtrs

import (
	"fmt"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// ClientConfig is a client's configuration; zero means the default.
type ClientConfig struct {
	Name       string // of the session: 1 to 254 bytes without '/', '.' and NUL
	Conns      int    // connections of a path, the service connection included, 2 to 64; 2
	QueueDepth int    // most requests in flight; 0: as many as the server has chunks

	HeartbeatEvery time.Duration // 10 ms to 1 min; 200 ms
	MissedLimit    int           // intervals of silence that end a path, 2 to 100; 4
	ConnTimeout    time.Duration // silence of one connection, asked, that ends its path; that of the heartbeats, and no shorter

	ConnectTimeout time.Duration // for all of a path's connections and the first messages, to an rdsd; 5 s
	Kernel         KernelTimes   // in their place on a path to a kernel
	ReconnectMin   time.Duration // longest first pause before reconnecting; 100 ms
	ReconnectMax   time.Duration // longest pause; 5 s. Each is chosen evenly from 0 to a bound that doubles
	// MaxReconnects is how many attempts in a row may fail before a path is left closed, -1: none is
	// made; 0: without end.
	MaxReconnects int

	Policy Policy // MinInflight

	IOTimeout   time.Duration // a request unanswered for so long gives its path up; 30 s
	OnLoss      OnLoss        // Wait
	LossTimeout time.Duration // OnLoss Error: requests wait so long for a path; 30 s

	Unfenced      Unfenced      // RetryAfter
	UnfencedAfter time.Duration // so long after the path's links were closed; 40 s

	RemoteInval bool // let the server revoke the key of a read's memory, as a kernel does, instead of revoking it here
}

// OnLoss says how requests end while no path is connected.
type OnLoss uint8

const (
	// Wait lets requests wait without end.
	Wait OnLoss = iota
	// Error fails requests when there was no path for LossTimeout, and in any case
	// IOTimeout + LossTimeout after they were submitted.
	Error
)

func (l OnLoss) String() string {
	if l == Error {
		return "error"
	}
	return "wait"
}

// Unfenced says what becomes of requests that were in flight on a path that is lost, when
// the server is a kernel and cannot be asked for a fence.
type Unfenced uint8

const (
	// RetryAfter sends them on another path when the kernel's server must have ended the lost
	// one by itself, which it does 30 to 35 s after the last sign of life: nothing on the way
	// can arrive any more. What its store still holds is bounded by the store's limits alone.
	RetryAfter Unfenced = iota
	// RetryNow sends them on another path at once, as a kernel's client does. What the lost path
	// still carries may be carried out later, over newer writes.
	RetryNow
	// RetryNever has them wait until the same path is connected again. If it is removed they fail, when
	// UnfencedAfter has passed.
	RetryNever
)

// checkUnfenced reports what is not possible.
func checkUnfenced(u Unfenced, after time.Duration) error {
	if u > RetryNever || after < 0 {
		return rdserr.With(rdserr.ErrInvalid, "without a fence %d after %v, a known policy and a time that is not negative are possible", u, after)
	}
	return nil
}

// maxReconnects is the kernel's limit of max_reconnect_attempts.
const maxReconnects = 9999

// withDefaults fills in fields that are zero, and returns an error for a wrong one.
func (c ClientConfig) withDefaults() (ClientConfig, error) {
	if err := rtrswire.CheckName(c.Name); err != nil {
		return c, err
	}
	def(&c.Conns, 2)
	def(&c.HeartbeatEvery, 200*time.Millisecond)
	def(&c.MissedLimit, 4)
	silence := c.HeartbeatEvery * time.Duration(c.MissedLimit)
	def(&c.ConnTimeout, silence)
	def(&c.ConnectTimeout, 5*time.Second)
	def(&c.ReconnectMin, 100*time.Millisecond)
	def(&c.ReconnectMax, max(5*time.Second, c.ReconnectMin))
	def(&c.IOTimeout, 30*time.Second)
	def(&c.LossTimeout, 30*time.Second)
	def(&c.UnfencedAfter, 40*time.Second)
	var err error
	if c.Kernel, err = c.Kernel.withDefaults(); err != nil {
		return c, err
	}
	switch {
	case c.Conns < 2 || c.Conns > maxConns:
		return c, fmt.Errorf("%d connections a path, 2 to %d are possible", c.Conns, maxConns)
	case c.QueueDepth < 0 || c.QueueDepth > rtrswire.MaxDepth:
		return c, fmt.Errorf("queue depth %d, 0 (the server's) to %d are possible", c.QueueDepth, rtrswire.MaxDepth)
	case c.ConnTimeout < silence:
		// A connection would be dead before the path that it belongs to.
		return c, fmt.Errorf("a connection's timeout of %v is shorter than that of the heartbeats, %v", c.ConnTimeout, silence)
	case c.ReconnectMin < 0 || c.ReconnectMax < c.ReconnectMin:
		return c, fmt.Errorf("pauses before reconnecting from %v to %v, the first has to be positive and the second not smaller", c.ReconnectMin, c.ReconnectMax)
	case c.MaxReconnects < -1 || c.MaxReconnects > maxReconnects:
		return c, fmt.Errorf("%d attempts to reconnect, 0 (without end), -1 (none) or 1 to %d are possible", c.MaxReconnects, maxReconnects)
	case c.Policy.check() != nil:
		return c, c.Policy.check()
	case c.OnLoss > Error:
		return c, fmt.Errorf("on loss %d is neither wait nor error", c.OnLoss)
	case c.ConnectTimeout < 0 || c.IOTimeout < 0 || c.LossTimeout < 0:
		return c, fmt.Errorf("timeouts of %v, %v, %v: none can be negative", c.ConnectTimeout, c.IOTimeout, c.LossTimeout)
	}
	if err := checkUnfenced(c.Unfenced, c.UnfencedAfter); err != nil {
		return c, err
	}
	return c, checkHeartbeat(c.HeartbeatEvery, c.MissedLimit)
}

// ServerConfig is a server's configuration; zero means the default.
type ServerConfig struct {
	QueueDepth   int  // chunks of a session, 1 to 4095; 512
	MaxIO        int  // bytes of data in a chunk; 256 KiB
	MaxHdr       int  // bytes of a chunk for headers; 4096
	NoInvalidate bool // leave the key of a chunk valid while its content is used

	HeartbeatEvery time.Duration // as ClientConfig's
	MissedLimit    int

	ConnectTimeout time.Duration // for all of a path's connections and the INFO_REQ, of an rdsd; 5 s
	Kernel         KernelTimes   // in their place on a path of a kernel
	TrimAfter      time.Duration // unused so long, a chunk's pages are given back; 10 s
	MaxSessions    int           // 256
	MaxPaths       int           // of a session, 1 to 128; 8
	// MaxConns is the most connections of all paths together, those made of unfinished paths
	// included, 1 to 1 Mi; 32 Ki. One address has at most half of them. Where there are as many,
	// the oldest path that has made some and said nothing makes room. A path may have as many as
	// the protocol has, 4096: a kernel makes one for each processor, and one.
	MaxConns int
}

func (c ServerConfig) withDefaults() (ServerConfig, rtrswire.Chunks, error) {
	def(&c.QueueDepth, rtrswire.Depth)
	def(&c.MaxIO, 256<<10)
	def(&c.MaxHdr, rtrswire.HdrSize)
	def(&c.HeartbeatEvery, 200*time.Millisecond)
	def(&c.MissedLimit, 4)
	def(&c.ConnectTimeout, 5*time.Second)
	def(&c.TrimAfter, 10*time.Second)
	def(&c.MaxSessions, 256)
	def(&c.MaxPaths, 8)
	def(&c.MaxConns, 32<<10)
	var none rtrswire.Chunks
	var err error
	if c.Kernel, err = c.Kernel.withDefaults(); err != nil {
		return c, none, err
	}
	switch {
	case c.QueueDepth < 1 || c.QueueDepth > maxDepth:
		return c, none, fmt.Errorf("queue depth %d, 1 to %d are possible", c.QueueDepth, maxDepth)
	// An upper limit too: depth and chunk together are the memory of each session.
	case c.MaxIO < 512 || c.MaxIO > 64<<20 || c.MaxHdr < 512 || c.MaxHdr > 64<<10:
		return c, none, fmt.Errorf("chunks of %d bytes of data and %d of headers, 512 to 64 MiB and 512 to 64 KiB are possible", c.MaxIO, c.MaxHdr)
	case c.ConnectTimeout < 0 || c.TrimAfter < 0:
		return c, none, fmt.Errorf("timeouts of %v, %v: none can be negative", c.ConnectTimeout, c.TrimAfter)
	case c.MaxSessions < 1 || c.MaxPaths < 1 || c.MaxPaths > rtrswire.MaxPaths || c.MaxConns < 1 || c.MaxConns > 1<<20:
		return c, none, fmt.Errorf("at most %d sessions, %d paths, %d connections: at least 1 of each, at most %d paths and %d connections are possible",
			c.MaxSessions, c.MaxPaths, c.MaxConns, rtrswire.MaxPaths, 1<<20)
	}
	chunks, err := rtrswire.NewChunks(uint32(c.QueueDepth), uint32(c.MaxIO), uint32(c.MaxHdr))
	if err != nil {
		return c, none, err
	}
	return c, chunks, checkHeartbeat(c.HeartbeatEvery, c.MissedLimit)
}

const (
	maxConns = 64                                                           // of a path of ours
	maxDepth = (transport.MaxSend - rtrswire.InfoRspLen) / rtrswire.DescLen // an INFO_RSP is one send
)

func checkHeartbeat(every time.Duration, missed int) error {
	if every < 10*time.Millisecond || every > time.Minute || missed < 2 || missed > 100 {
		return fmt.Errorf("heartbeats every %v with a limit of %d missed, 10ms to 1m and 2 to 100 are possible", every, missed)
	}
	return nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
