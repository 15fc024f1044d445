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
// Payload is charged to whoever connected before there is memory for it. What a
// connection has anyway, and small requests, is charged when it is opened, so that
// those cost nothing more; beyond that it takes and gives back in steps. Who is
// refused is not read until there is room: its own requests that end make some, and
// where others hold it all it asks again after a moment. One request of a server is
// taken however little there is, one after the other: requests then are slow, but
// none waits for ever. Who has that place and has been waited for, for the rest of its
// request and for taking the answer, makes room for others after a while; how long the
// store takes is not its fault.

// Charge is the account of one connection. Any thread may call it; nothing in it waits.
type Charge interface {
	Take(n int) bool // n bytes more, or false
	Grow(n int)      // n bytes more that cannot be refused
	Give(n int)      // n bytes less
	Close()          // everything has been given back
}

const (
	// connMemory is what an open connection is charged: a receive buffer, requests
	// without their payload, headers, and connFree for payload.
	connMemory = recvSize + 64<<10 + connFree
	connFree   = 64 << 10
	// chargeStep is in what portions more is taken and given back.
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
		c.srv.pressReserve(c)
		c.askAgain()
		return false
	}
	c.charged += more
	return true
}

// pressReserve ends the connection that has the reserve if others wait for it, and
// it has waited for its client for the time that Linger gives, since it has it.
func (s *Server) pressReserve(c *conn) {
	r := s.reserve.Load()
	if r == nil || r == c {
		return
	}
	if now := time.Since(start); r.half.time(now)+r.stuck.time(now) >= s.opts.Linger {
		r.fail()
	}
}

// awaited is how long a connection that has the reserve has waited for its client.
// Nobody else looks at the clock.
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
	if a.since.Load() != 0 { // by whoever began: there is only one
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

// start is what times are counted from, by a clock that nobody sets.
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
		c.loop.fed()
	})
}

// settle gives back what was charged and is not needed any more, in steps as well.
// Called with mu held.
func (c *conn) settle() {
	need := max(c.bytes-connFree, 0)
	if c.charged == 0 || need > 0 && c.charged-need < 2*chargeStep {
		return
	}
	c.charge.Give(c.charged - need)
	c.charged = need
	if need == 0 {
		c.srv.reserve.CompareAndSwap(c, nil)
	}
}
