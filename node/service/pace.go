package service

import (
	"net"
	"sync"
	"time"
)

// A call that is refused for its user's rate has cost what most calls cost: a
// stream of HTTP/2, a goroutine, an answer. So beside the limiter, which refuses,
// stands a pace at which what costs so much is read at all, for all connections of
// a user together: twice the calls it may make. Who goes faster is held up by its
// own socket, and what others of the node want has the processor meanwhile. Whoever
// sends messages and no calls is never held up.
//
// What was read is handed on when all that the user's connections brought before is paid for. To
// wait before the next read instead would let the first read of each connection pass, which has room
// for thousands of calls, and a user may connect as often as it likes.

// What a frame costs, in parts of a call. gRPC's clients ping once a round trip to
// find out how much fits into it, so pings are cheap here.
const (
	paceCall  = 32 // HEADERS, CONTINUATION, SETTINGS
	paceSmall = 1  // whatever else is neither DATA nor WINDOW_UPDATE, and either of them if it is empty or on no stream
)

const (
	paceTimes = 2   // the calls that are read, of those that are not refused
	paceLeast = 100 // calls a second a user is thought to be allowed at least: a refusal is told in time
	paceBurst = 64  // calls that are read at once
	// paceRead bounds what a connection that has calls reads at once, so that it owes no
	// more than some dozens.
	paceRead = 4 << 10
	// paceLook is how soon who waits sees that its connection is closed.
	paceLook = 100 * time.Millisecond
)

// pace is that of a user: the time at which all that was read is paid for.
type pace struct {
	mu    sync.Mutex
	paid  time.Time // guarded by mu
	conns int       // that use it; guarded by paces.mu
}

// callTime is how long a call keeps its user from others.
func callTime(perSecond float64) time.Duration {
	return time.Duration(float64(time.Second) / (paceTimes * max(perSecond, paceLeast)))
}

// pay adds the cost of what was read, and returns how long it waits for what was read before.
func (p *pace) pay(cost int, perSecond float64, now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Of one who has paid nothing yet the time is the zero one, from which to now is more than
	// a Duration holds.
	if p.paid.Before(now) {
		p.paid = now
	}
	wait = p.paid.Sub(now) - paceBurst*callTime(perSecond)
	p.paid = p.paid.Add(costTime(cost, perSecond))
	return wait
}

// refund takes back the cost of what was read and is handed on to nobody.
func (p *pace) refund(cost int, perSecond float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paid = p.paid.Add(-costTime(cost, perSecond))
}

// due is how long it is until all that was read is paid for but a burst.
func (p *pace) due(perSecond float64, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	owed := time.Duration(0)
	if p.paid.After(now) {
		owed = p.paid.Sub(now)
	}
	return owed - paceBurst*callTime(perSecond)
}

func costTime(cost int, perSecond float64) time.Duration {
	return time.Duration(cost) * callTime(perSecond) / paceCall
}

// paces are those of the users that have connections.
type paces struct {
	mu    sync.Mutex
	users map[uint32]*pace // guarded by mu
}

func (l *paces) join(uid uint32) *pace {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.users[uid]
	if p == nil {
		if l.users == nil {
			l.users = map[uint32]*pace{}
		}
		p = &pace{}
		l.users[uid] = p
	}
	p.conns++
	return p
}

// leave is for each join.
func (l *paces) leave(p *pace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.conns--
}

// sweep forgets users without connections who owe nothing any more: to connect anew
// pays for nothing.
func (l *paces) sweep(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, p := range l.users {
		if p.conns == 0 && p.due(paceLeast, now) <= 0 {
			delete(l.users, uid)
		}
	}
}

// costOf is what a frame of a client costs beside its bytes.
func costOf(f *frames, size int) int {
	switch f.kind {
	case frameData, frameWindowUpdate:
		if size > 0 && f.stream != 0 {
			return 0
		}
	case frameHeaders, frameContinuation, frameSettings:
		return paceCall
	}
	return paceSmall
}

// mayRead is how much of a buffer of most bytes is read at once.
func (c *callConn) mayRead(most int) int {
	if c.table.perSecond == nil || !c.called {
		return most
	}
	return min(most, paceRead)
}

// keepPace waits, with calls that were read, until what their user had read before is paid for.
// An error: the connection was closed meanwhile.
func (c *callConn) keepPace(cost int) error {
	perSecond := c.table.perSecond()
	now := time.Now()
	for until := now.Add(c.pace.pay(cost, perSecond, now)); ; now = time.Now() {
		left := until.Sub(now)
		if left <= 0 {
			return nil
		}
		if c.closed() {
			c.pace.refund(cost, perSecond)
			return net.ErrClosed
		}
		time.Sleep(min(left, paceLook))
	}
}

func (c *callConn) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams == nil
}
