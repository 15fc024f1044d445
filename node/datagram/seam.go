package datagram

import (
	"time"

	"github.com/rdsd/rdsd/rds"
)

// Engine is an engine with its lock, as those who use its sockets see it. Unlock
// carries out what the step ordered and wakes the sockets that have news.
type Engine interface {
	Lock() (*rds.Engine, time.Duration)
	Unlock()
}

// Waker is what rds.SocketOptions.Data holds: who is told that a socket has
// news. News does not block and is called without the engine's lock. It reports
// whether that made a goroutine ready to run.
type Waker interface{ News() (goroutine bool) }

// Publisher is a socket's owner whose readers look at memory: what a step placed
// becomes visible to them before the lock is let go, and with that before any
// acknowledgement of it can leave. It must not block or call back.
type Publisher interface{ Publish() }
