package nbd

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// Design notes.
//
// Payload is charged to the client of the connection before memory is taken for it. The
// memory that every connection has, and that of small requests, is charged when it is
// opened, so that those cost nothing more; beyond that it takes and gives back in steps. A
// connection that is refused memory is not read until there is room: its own requests make
// room when they end, and if others hold all of it, it asks again after a moment. One
// request of a server is taken however little there is, one after the other: requests then
// are slow, but none waits for ever. A client in that place that keeps the server waiting,
// for the rest of its request or for taking the answer, makes room for others after a
// while; the time of the store does not count.

// Charge is the account of one connection. Any thread may call it; nothing in it waits.
type Charge interface {
	Take(n int) bool // n bytes more, or false
	Grow(n int)      // n bytes more that cannot be refused
	Give(n int)      // n bytes less
	Close()          // everything has been given back
}

const (
	// connMemory is the charge of an open connection: a receive buffer, requests without
	// their payload, headers, and connFree for payload.
	connMemory = recvSize + 64<<10 + connFree
	connFree   = 64 << 10
	// chargeStep is the portion in which more is taken and given back.
	chargeStep = 256 << 10
	// chargeAgain is after how long a connection that was refused asks again.
	chargeAgain = 5 * time.Millisecond
)

// account opens the account of a connection, which is one of open. The only one is
// not refused.
func (s *Server) account(nc net.Conn, open int) (Charge, error) {
	if s.opts.Charge == nil {
		return nil, nil
	}
	a := s.opts.Charge(nc)
	switch {
	case a.Take(connMemory):
	case open == 1:
		a.Grow(connMemory)
	default:
		a.Close()
		return nil, rdserr.With(rdserr.ErrNoMemory, "there is no memory for a connection's %d bytes", connMemory)
	}
	return a, nil
}

// afford tells whether n bytes more are charged for, and charges for them if they
// are not. Called with mu held.
func (c *conn) afford(n int) bool {
	need := c.bytes + n - connFree
	if c.charge == nil || need <= c.charged {
		return true
	}
	more := need - c.charged
	step := (more + chargeStep - 1) / chargeStep * chargeStep
	switch {
	case c.charge.Take(step):
		more = step
	case c.charge.Take(more):
	case c.inFlight == 0 && c.srv.reserve.CompareAndSwap(nil, c):
		c.charge.Grow(more)
		c.half.forget()
		c.stuck.forget()
	default:
		c.srv.reclaimReserve(c)
		c.askAgain()
		return false
	}
	c.charged += more
	return true
}

// reclaimReserve ends the connection that has the reserve if others wait for it, and it has
// waited for its client for the time that Linger gives, since it got it.
func (s *Server) reclaimReserve(c *conn) {
	r := s.reserve.Load()
	if r == nil || r == c {
		return
	}
	if now := time.Since(start); r.half.time(now)+r.stuck.time(now) >= s.opts.Linger {
		r.fail()
	}
}

// awaited is how long a connection that has the reserve has waited for its client. Only
// such a connection looks at the clock.
type awaited struct {
	since atomic.Int64 // it waits from then on, in ns after start; 0: it does not
	spent atomic.Int64 // ns, waits that are over
}

func (a *awaited) begin(c *conn) {
	if c.srv.reserve.Load() == c {
		a.since.Store(int64(time.Since(start)))
	}
}

func (a *awaited) end() {
	if a.since.Load() != 0 { // by the waiter: there is only one
		a.spent.Add(int64(time.Since(start)) - a.since.Swap(0))
	}
}

// time never counts a wait twice: one that ends meanwhile is not counted yet.
func (a *awaited) time(now time.Duration) time.Duration {
	spent, since := a.spent.Load(), a.since.Load()
	if since != 0 {
		spent += max(int64(now)-since, 0)
	}
	return time.Duration(spent)
}

func (a *awaited) forget() {
	a.since.Store(0)
	a.spent.Store(0)
}

// start is the origin of times, by the monotonic clock.
var start = time.Now()

// askAgain has the reader look again in a moment, for nothing of its own may come
// back. Called with mu held.
func (c *conn) askAgain() {
	if c.asking {
		return
	}
	c.asking = true
	time.AfterFunc(chargeAgain, func() { // touches nothing but c, which may have ended
		defer c.srv.opts.Guard.Recover(guard.Volume, c.faultFn)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asking = false
		c.room.Broadcast()
		c.loop.resumeRead()
	})
}

// returnCharge gives back charged memory that is not needed any more, in steps as well. What
// the reader was promised is needed: on a reactor it takes that without waiting. It is called
// with mu held.
func (c *conn) returnCharge() {
	need := max(c.bytes+c.promised-connFree, 0)
	if c.charged == 0 || need > 0 && c.charged-need < 2*chargeStep {
		return
	}
	c.charge.Give(c.charged - need)
	c.charged = need
	if need == 0 {
		c.srv.reserve.CompareAndSwap(c, nil)
	}
}
