package rtrs

import (
	"fmt"
	"slices"
	"time"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Failover. When a path is lost, the fate of the requests in flight on it is unknown: they
// may be in a socket's buffer on the way, or at the store. Were they simply sent again on
// another path, the first copy could be carried out later, even after a newer write to the
// same place had been acknowledged. So each attempt of a path that was connected is an
// epoch, and before a request of it is sent again the server is told to end it: it closes
// the links, drops requests that it did not begin, waits for those at the store, and
// answers. That costs a round trip on a working path, or nothing when the same path comes
// back first, because the server connects it only when its older attempts have ended.
//
// A kernel's server cannot be told. It connects the path again only when the older attempt
// has ended, and it ends an attempt by itself when it has heard nothing for 35 s at most:
// when UnfencedAfter has passed, the epoch counts as ended (RetryAfter); or at once (RetryNow), which
// is what kernels do to each other. With RetryNever it does when the same path is back; one that is removed
// never is, so what was in flight there fails when UnfencedAfter has passed: were a write to fail earlier,
// nothing could be sent until then.
//
// A request that fails by its limit meanwhile has its outcome, but if it is a write it may
// still happen; so nothing at all is sent until that epoch is fenced. Its permit stays
// taken for as long.
//
// Tried and dropped: sending only requests that do not overlap. The client of a
// block device cannot be asked what a discard or a flush overlaps with.

// epoch holds the requests of a path's attempt that has ended.
type epoch struct {
	c       *Client
	from    *ClientPath // it may be removed, or have a newer attempt
	path    [rtrswire.UUIDLen]byte
	attempt uint16        // which attempt of path it was
	able    bool          // the server could be asked to end it, when it lived
	since   time.Duration // when its links were closed

	reqs    list     // to be sent again
	permits []uint32 // of requests that failed: their chunks may still be read
	session uint32   // of the Client, whose permits these are
	ghosts  int      // writes that failed and may still happen, and a promise to send nothing (REST)

	// via is where the fence was sent, nil: nowhere yet, or that path is lost. fenced
	// says that nothing of the epoch can happen at the server any more.
	via    *ClientPath
	fenced bool
	lapsed bool // it counts as fenced, because its time has passed (lapse)
}

// makeEpoch makes an epoch of the requests in flight on p, whose links are closed.
func (p *ClientPath) makeEpoch() {
	c := p.c
	// The promise to send nothing was made on this path; the server may still act upon it.
	rest := c.restPath == p
	if rest {
		c.restPath = nil
	}
	// They were answered, and now nothing reads their memory any more.
	for r := p.unsent.pop(); r != nil; r = p.unsent.pop() {
		c.finish(r, r.outcome)
	}
	if p.flight.n == 0 && !rest {
		return
	}
	e := &epoch{c: c, from: p, path: p.uuid, attempt: p.attempt, able: p.fences(), since: c.now, session: c.session}
	if rest { // the server may take us at our word later
		e.ghosts++
		c.ghosts++
	}
	c.epochs = append(c.epochs, e)
	for r := p.flight.pop(); r != nil; r = p.flight.pop() {
		// Its links are closed, so nothing writes there any more: the key may go. So has one
		// whose end was Pending, and will not be told.
		if r.hasKey {
			p.revoke(r)
		}
		r.revoking = false
		if r.session == c.session {
			c.slots[r.permit] = nil
		}
		// It keeps its permit: the server may still be using the chunk.
		r.at, r.again, r.epoch, r.path = stranded, p, e, nil
		e.reqs.push(r)
	}
	c.event(Event{Kind: EventFailover, Client: p, N: e.reqs.n})
	for r := e.reqs.first; r != nil; {
		next := r.next(byState)
		// It has failed before, and only waited until its memory was free.
		if r.expired {
			e.takeFailed(r)
			c.finish(r, r.Err)
		}
		r = next
	}
}

// takeFailed takes r, which fails, out of e.
func (e *epoch) takeFailed(r *Req) {
	e.reqs.remove(r)
	if r.session == e.c.session {
		e.permits = append(e.permits, r.permit)
	}
	// It has its outcome, and may happen nevertheless, after a newer write to the same place:
	// nothing is sent until that is impossible.
	if r.Op == Write {
		e.ghosts++
		e.c.ghosts++
	}
}

// fence gets every epoch fenced, as far as there is a path to ask on.
func (c *Client) fence() {
	for i := 0; i < len(c.epochs); {
		e := c.epochs[i]
		if e.fenced {
			c.epochs = append(c.epochs[:i], c.epochs[i+1:]...)
			e.end()
			continue
		}
		i++
		// It was asked already, or is a kernel, which ends an epoch only by connecting its
		// path again.
		if e.via != nil || !e.able {
			continue
		}
		for _, p := range c.paths {
			if p.state == Connected && p.fences() {
				e.via = p
				f := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: e.attempt, Path: e.path}
				p.notice(f.Append(c.tail[:0]))
				break
			}
		}
	}
}

// lapses is when e, of a server that cannot be asked to end it, counts as ended.
func (e *epoch) lapses() time.Duration {
	switch cfg := &e.c.cfg; {
	case cfg.Unfenced == RetryNow:
		return e.since
	case cfg.Unfenced == RetryNever && e.from.state != Dead:
		return Never
	default:
		return e.since + cfg.UnfencedAfter
	}
}

// lapse ends the epochs of servers that cannot be asked to, when their time has passed. It
// reports whether there was one: then fence is to be called.
func (c *Client) lapse() (ended bool) {
	for _, e := range c.epochs {
		switch t := e.lapses(); {
		case e.able || e.fenced:
		case t > c.now:
			c.arm(t)
		default:
			e.fenced, e.lapsed, ended = true, true, true
		}
	}
	return ended
}

// end is called when e is fenced. Requests that are left of it are sent again, before those
// that wait; or they fail, where only their path could have fenced them and was removed.
func (e *epoch) end() {
	c := e.c
	if e.lapsed {
		c.stats.Unfenced++
	} else {
		c.stats.Fences++
	}
	c.ghosts -= e.ghosts
	if e.session == c.session {
		c.free = append(c.free, e.permits...)
	}
	forsaken := e.lapsed && c.cfg.Unfenced == RetryNever
	// From the last one on, each goes before the others: so they stand in their old order,
	// before requests submitted since.
	var back []*Req
	for r := e.reqs.last; r != nil; r = e.reqs.last {
		e.reqs.remove(r)
		if r.session == c.session {
			c.free = append(c.free, r.permit)
		}
		if forsaken && r.recalled == nil {
			r.recalled = ErrNoPath
		}
		if r.recalled != nil {
			back = append(back, r)
			continue
		}
		r.at, r.epoch = queued, nil
		c.waiting(r).insert(r, nil)
	}
	for _, r := range slices.Backward(back) {
		c.finish(r, r.recalled)
	}
}

// fenced takes the answer to a fence.
func (p *ClientPath) fenced(data []byte) error {
	f, err := rtrswire.ParseFence(data)
	if err != nil {
		return err
	}
	if f.Errno != 0 {
		return fmt.Errorf("%w: errno %d to a fence", ErrProtocol, f.Errno)
	}
	for _, e := range p.c.epochs {
		// via: an answer on another path is to an older question.
		if e.path == f.Path && e.attempt == f.Attempt && e.via == p {
			e.fenced = true
		}
	}
	p.c.fence()
	return nil
}
