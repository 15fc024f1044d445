package nbd

import (
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
)

// faultPatience is how long the lock of a connection is waited for after a panic in its
// work: it is held for a few instructions, so by then its holder will not come back.
const faultPatience = 2 * time.Second

// fault ends the connection after a panic in its work. Requests may have been lost with
// that, so it does not wait for all of them to come back.
func (c *conn) fault(error) {
	c.fail()
	lock(&c.mu)
	c.faulted = true
	c.room.Broadcast()
	c.mu.Unlock()
}

// lock takes a lock that a panic may have left held, and panics if that is so: the guarded
// state is half changed, and no smaller part can be ended in its place.
func lock(mu *sync.Mutex) {
	for until := time.Now().Add(faultPatience); !mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			panic("a panic has left a connection of a volume locked")
		}
	}
}

// forgive is deferred by the holder of the transmit token: a panic ends the connection, and
// gives the token up.
func (c *conn) forgive(done *bool) {
	g := c.srv.opts.Guard
	if g == nil {
		return
	}
	if v := recover(); v != nil {
		c.fault(g.Caught(guard.Volume, v))
		c.vec, c.sent = nil, opList{} // the pieces being sent have no owner now
		c.stuck.end()
		c.mu.Lock()
		c.sending = false
		c.room.Broadcast()
		c.mu.Unlock()
		*done = true
	}
}
