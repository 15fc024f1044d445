package rtrs

import (
	"math/rand"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Client is one session as a client. The kernel calls it struct rtrs_clt_sess
// (drivers/infiniband/ulp/rtrs/rtrs-clt.h).
//
// A request has a permit while the server may still be using its chunk: from
// when it is sent until it is answered, or until the epoch it was last sent in
// is fenced, even if it failed meanwhile.
type Client struct {
	cfg  ClientConfig
	env  ClientEnv
	rnd  *rand.Rand
	uuid [rtrswire.UUIDLen]byte
	now  time.Duration // of the current call; it never goes back
	due  time.Duration // when Tick is to be called, or earlier
	late lateness
	// busy is the depth of calls: the environment may call back from within one. Waiting
	// requests are sent at the end of the outermost.
	busy int

	// Paths (clientpath.go; docs/protocol.md, "The life of a path").
	//
	// Invariant: connected is how many of paths are Connected.

	paths     []*ClientPath // in the order they were added
	connected int
	choosers  []chooser // of a path for each request, by policy
	// creator is the path whose attempt may create the session at the server, while no
	// path was ever connected. The others wait for how that ends.
	creator *ClientPath
	// resumed says that requests without Admin run: the user has called Resume since Up.
	// Before that the volumes they name at the server may have changed.
	resumed bool
	// kernel is whether the server is one, as it said when a path was last connected.
	kernel bool
	lostAt time.Duration // since when no path is connected
	// resting is the path on which the server was promised that nothing is sent, since
	// restedAt, so that it can give the pages of its chunks back.
	restPath *ClientPath
	restAt   time.Duration

	// Permits: one for each chunk of the present session that this side uses.
	//
	// Invariant: of Depth() permits each is in free, or in slots with the request that
	// is in flight with it, or with a stranded request, or in the permits of the epoch
	// that a failed request was sent in.

	generation uint32          // of the session at the server, 0: unknown
	session    uint32          // counts the sessions at the server: permits of another one are void
	chunks     rtrswire.Chunks // Depth 0: not known yet
	slots      []*Req          // by permit
	free       []uint32        // the last given back is used first, so few chunks are touched

	// Requests. Each that is not done is in all, and by its state in queue or admin,
	// in the flight of its path, or in an epoch (Req.at).

	queue  list // wait for a permit or a path, submitted first at first
	admin  list // likewise, those with Admin
	all    list // by age
	epochs []*epoch
	// ghosts are writes that failed and may still happen: nothing is sent
	// until their epochs are fenced. It is the sum of the epochs' ghosts.
	ghosts int

	fatal  error // why nothing is taken any more
	closed bool  // Close was called
	told   bool  // and ClientEnv.Closed too

	stats ClientStats
	op    transport.Op // of the post being made, used again by the next
	tail  [transport.MaxTail]byte
}

// NewClient returns a session without a path. Its UUID comes from rnd.
func NewClient(cfg ClientConfig, env ClientEnv, rnd *rand.Rand, now time.Duration) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, env: env, rnd: rnd, now: now, due: Never, lostAt: now, all: list{kind: byAge}, choosers: choosers()}
	c.newUUID(&c.uuid)
	return c, nil
}

// newUUID fills in a random UUID (version 4, as the kernel's are).
func (c *Client) newUUID(u *[rtrswire.UUIDLen]byte) {
	c.rnd.Read(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
}

// enter and leave are around every call from outside.
func (c *Client) enter(now time.Duration) {
	c.now = max(c.now, now)
	c.busy++
}

func (c *Client) leave() {
	if c.busy == 1 {
		c.pump()
		c.finishClose()
	}
	c.busy--
}

// arm sees to it that Tick is called at t or earlier.
func (c *Client) arm(t time.Duration) { c.due = min(c.due, max(t, c.now)) }

// Submit takes r. If it returns nil, Done follows, perhaps before Submit returns, and at
// the latest when the limits of the configuration say so. A request that cannot be sent
// now, because no permit is free or no path is connected, waits in order. With an error r
// was not taken.
func (c *Client) Submit(now time.Duration, r *Req) error {
	switch {
	case c.fatal != nil:
		return c.fatal
	case len(r.Usr) > MaxUsr:
		return rdserr.With(ErrTooLarge, "a user header of %d bytes, %d are possible", len(r.Usr), MaxUsr)
	case c.chunks.Depth != 0 && len(r.Data) > int(c.chunks.MaxIO):
		return rdserr.With(ErrTooLarge, "a request of %d bytes, %d are possible", len(r.Data), c.chunks.MaxIO)
	case r.at != idle:
		panic("rtrs: a request submitted twice")
	}
	c.enter(now)
	r.Err, r.at, r.submitted, r.expired, r.recalled, r.again = nil, queued, c.now, false, nil, nil
	// Its time began when the user first submitted it: a request that is cancelled and
	// submitted again gains no time.
	if r.Since != 0 {
		r.submitted = min(r.Since, c.now)
	}
	c.all.push(r)
	c.waiting(r).push(r)
	// With Wait nothing has a limit while there is no path.
	if c.cfg.OnLoss == Error {
		c.arm(c.limit(r))
		if c.connected == 0 {
			c.arm(c.lostAt + c.cfg.LossTimeout)
		}
	}
	c.leave()
	return nil
}

// waiting is the list that r waits in.
func (c *Client) waiting(r *Req) *list {
	if r.Admin {
		return &c.admin
	}
	return &c.queue
}

// finish ends r, which is in no list by state any more.
func (c *Client) finish(r *Req, err error) {
	c.all.remove(r)
	r.at, r.Err, r.path, r.epoch, r.again = idle, err, nil, nil, nil
	if err == nil {
		c.stats.Done++
	} else {
		c.stats.Failed++
	}
	c.env.Done(r)
}

// giveUp ends r with err as soon as its memory is not used any more, which for
// a request in flight is when its path is gone; the caller hangs that up.
func (c *Client) giveUp(r *Req, err error) {
	switch r.at {
	case queued:
		c.waiting(r).remove(r)
		c.finish(r, err)
	case inFlight:
		// The server may still write into its memory or read it, so it is done only when its
		// links are closed (makeEpoch). The first reason stays.
		if !r.expired {
			r.expired, r.Err = true, err
		}
	case stranded:
		r.epoch.takeFailed(r)
		c.finish(r, err)
	case unsent:
		// It has its outcome, and is done when its memory is free.
	}
}

// Resume lets requests without Admin run, after Up.
func (c *Client) Resume(now time.Duration) {
	c.enter(now)
	c.resumed = true
	c.leave()
}

// Each calls f for every request that is not done, in the order of submission. Between Up
// and Resume none without Admin is being sent, so f may change their Usr, and give them to
// Cancel.
func (c *Client) Each(f func(r *Req)) { c.each(c.all.n, f) }

// each calls f for the first n, so that requests which Done submits meanwhile are left out.
func (c *Client) each(n int, f func(r *Req)) {
	r := c.all.first
	for ; n > 0; n-- {
		// f may end r, and then its place in the list is gone.
		next := r.next(byAge)
		f(r)
		r = next
	}
}

// Cancel ends r with err, one that was sent on a path that is given up when the links of that
// are closed. It returns false if r is being sent and cannot be cancelled.
func (c *Client) Cancel(now time.Duration, r *Req, err error) bool {
	if r.at != queued && r.at != stranded && (r.at != inFlight || r.path.state != Closing) {
		return false
	}
	c.enter(now)
	c.giveUp(r, err)
	c.leave()
	return true
}

// Recall is Cancel for a request that is to come back, or whose user does not wait for it: one that may still happen is
// done with err when that is impossible. So others are sent meanwhile, as they are while it waits to be sent again.
func (c *Client) Recall(now time.Duration, r *Req, err error) bool {
	if r.Op != Write || r.at != stranded && (r.at != inFlight || r.path.state != Closing) {
		return c.Cancel(now, r, err)
	}
	r.recalled = err
	return true
}

// Close ends the session: every path is hung up, every request done with
// ErrClosed as soon as its memory is not used any more, then ClientEnv.Closed.
func (c *Client) Close(now time.Duration) {
	if c.closed {
		return
	}
	c.enter(now)
	c.closed = true
	c.end(ErrClosed, remove)
	c.leave()
}

// end takes nothing more, gives every request up with err and has every path
// obey o, disconnect or remove.
func (c *Client) end(err error, o order) {
	if c.fatal == nil {
		c.fatal = err
	}
	// Requests go first: those that wait end at once, and the paths find only those in
	// flight.
	c.Each(func(r *Req) { c.giveUp(r, err) })
	// From the last: a path that ends takes itself out of the list.
	for i := len(c.paths) - 1; i >= 0; i-- {
		_ = c.paths[i].order(o) // one that does not take it is on its way there, or further
	}
}

func (c *Client) finishClose() {
	if c.closed && !c.told && len(c.paths) == 0 {
		c.told, c.due = true, Never
		c.env.Closed()
	}
}

// AddPath adds a path and begins to connect it. Its Ctx is ctx from the beginning.
func (c *Client) AddPath(now time.Duration, ctx any, local, remote netip.AddrPort) (*ClientPath, error) {
	switch {
	case c.fatal != nil:
		return nil, c.fatal
	case !remote.IsValid() || remote.Port() == 0:
		return nil, rdserr.With(rdserr.ErrInvalid, "a path to %v: the server's address and port are needed", remote)
	case len(c.paths) >= rtrswire.MaxPaths:
		return nil, ErrTooMany
	}
	for _, p := range c.paths {
		if p.Local == local && p.Remote == remote && p.want != Dead {
			return nil, ErrExists
		}
	}
	c.enter(now)
	p := &ClientPath{Local: local, Remote: remote, Ctx: ctx, c: c, since: c.now, down: c.now}
	c.newUUID(&p.uuid)
	c.paths = append(c.paths, p)
	p.startAt(c.now)
	// At once, unless another path is creating the session at the server.
	p.tick(c.now)
	c.leave()
	return p, nil
}

// Remove ends p for good; its requests go on on other paths.
func (c *Client) Remove(now time.Duration, p *ClientPath) error { return c.order(now, p, remove) }

// Disconnect ends p until Reconnect.
func (c *Client) Disconnect(now time.Duration, p *ClientPath) error {
	return c.order(now, p, disconnect)
}

// Reconnect connects p again: at once if it waits for its next attempt or was disconnected;
// a connected path is given up first.
func (c *Client) Reconnect(now time.Duration, p *ClientPath) error {
	if c.fatal != nil {
		return c.fatal
	}
	return c.order(now, p, reconnect)
}

func (c *Client) order(now time.Duration, p *ClientPath, o order) error {
	c.enter(now)
	err := p.order(o)
	c.leave()
	return err
}

// SetPolicy changes how requests choose a path.
func (c *Client) SetPolicy(p Policy) error {
	if err := p.check(); err != nil {
		return err
	}
	c.cfg.Policy = p
	return nil
}

// SetUnfenced changes what becomes of requests that were in flight on a lost path of a kernel's
// server, those that wait already included. after is the UnfencedAfter from now on, 0: what it is.
func (c *Client) SetUnfenced(now time.Duration, u Unfenced, after time.Duration) error {
	if err := checkUnfenced(u, after); err != nil {
		return err
	}
	c.enter(now)
	c.cfg.Unfenced = u
	if after != 0 {
		c.cfg.UnfencedAfter = after
	}
	if c.lapse() {
		c.fence()
	}
	c.leave()
	return nil
}

// SetMaxReconnects changes how often in a row a path that is lost is tried again, as
// ClientConfig has it. It counts from the next attempt that fails.
func (c *Client) SetMaxReconnects(n int) error {
	if n < -1 || n > maxReconnects {
		return rdserr.With(rdserr.ErrInvalid, "%d attempts to reconnect, 0 (without end), -1 (none) or 1 to %d are possible", n, maxReconnects)
	}
	c.cfg.MaxReconnects = n
	return nil
}

// exhausted reports whether a path of which so many attempts in a row have failed is not tried
// again.
func (c *Client) exhausted(failures int) bool {
	switch n := c.cfg.MaxReconnects; {
	case n < 0:
		return true
	case n > 0:
		return failures >= n
	}
	return false
}

// Policy is how requests choose a path.
func (c *Client) Policy() Policy { return c.cfg.Policy }

// Paths are the paths in the order they were added. The slice is the Client's.
func (c *Client) Paths() []*ClientPath { return c.paths }

// Kernel reports whether the server is a kernel, which understands none of our own messages;
// false before the first Up.
func (c *Client) Kernel() bool { return c.kernel }

// Name is the session's name; UUID the number that is shown to the server.
func (c *Client) Name() string   { return c.cfg.Name }
func (c *Client) UUID() [16]byte { return c.uuid }

// MaxIO returns the most bytes of data in a request, 0 before the first Up. It can change
// when the session comes Up again.
func (c *Client) MaxIO() int { return int(c.chunks.MaxIO) }

// Depth is how many requests are in flight at most, 0 before the first Up.
func (c *Client) Depth() int {
	if d := int(c.chunks.Depth); c.cfg.QueueDepth == 0 || d < c.cfg.QueueDepth {
		return d
	}
	return c.cfg.QueueDepth
}

// Err is why nothing is taken any more, nil while it is.
func (c *Client) Err() error { return c.fatal }

// Stats are the numbers of the session.
func (c *Client) Stats() ClientStats {
	s := c.stats
	s.Up, s.Depth, s.MaxIO, s.Queued = c.connected > 0, c.Depth(), c.MaxIO(), c.queue.n+c.admin.n
	for _, p := range c.paths {
		s.Inflight += p.flight.n
	}
	for _, e := range c.epochs {
		s.Stranded += e.reqs.n
	}
	return s
}

// Next is when Tick is to be called; it may be earlier than the last Tick said.
func (c *Client) Next() time.Duration { return c.due }

// limit returns when r fails at the latest.
func (c *Client) limit(r *Req) time.Duration {
	return r.submitted + c.cfg.IOTimeout + c.cfg.LossTimeout
}

// Tick carries out everything that is due. It returns when to call it next, unless another
// call makes something due earlier: Next tells that time.
func (c *Client) Tick(now time.Duration) (next time.Duration) {
	c.enter(now)
	// This process stood still. Messages that came meanwhile are read before a path counts
	// as silent.
	if c.late.tick(&c.due, c.now, c.cfg.HeartbeatEvery) {
		c.leave()
		return c.due
	}
	// All later timers are armed again below.
	c.due = Never
	if c.lapse() {
		c.fence()
	}
	for i := len(c.paths) - 1; i >= 0; i-- {
		c.paths[i].tick(c.now)
	}
	if c.cfg.OnLoss == Error {
		c.deadlines()
	}
	c.leave()
	return c.due
}

// deadlines fails requests that have waited too long.
func (c *Client) deadlines() {
	if c.connected == 0 && c.fatal == nil && c.all.n > 0 {
		if t := c.lostAt + c.cfg.LossTimeout; t > c.now {
			c.arm(t)
		} else {
			n := 0
			c.Each(func(r *Req) {
				if !r.expired && !r.Abandoned && r.at != unsent {
					c.giveUp(r, ErrNoPath)
					n++
				}
			})
			c.lost(n, ErrNoPath)
		}
	}
	n := 0
	c.Each(func(r *Req) {
		t := c.limit(r)
		switch {
		case r.expired:
		case t > c.now:
			c.arm(t)
		case r.at == unsent:
			// It was answered. What it waits for is that its link does not read its memory any
			// more, as it does until the peer has said that all has come: the end of the path is
			// the other way to that.
			if r.path.state == Connected {
				r.path.overdue = true
			}
		case r.Abandoned:
		default:
			// The path is not given up here: that would move requests while this loop walks
			// over them.
			if r.at == inFlight && r.path.state == Connected {
				r.path.overdue = true
			}
			c.giveUp(r, ErrTimeout)
			n++
		}
	})
	c.lost(n, ErrTimeout)
	for i := len(c.paths) - 1; i >= 0; i-- {
		if p := c.paths[i]; p.overdue {
			p.timeout()
		}
	}
}

func (c *Client) lost(n int, err error) {
	if n > 0 {
		c.event(Event{Kind: EventLost, N: n, Err: err})
	}
}

func (c *Client) event(e Event) {
	e.Name = c.cfg.Name
	c.env.Event(e)
}
