package volume

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// client is the shell of one session as a client.
type client struct {
	shell
	h    *Host
	id   string
	rt   *rtrs.Client
	rn   *rnbd.Client
	done chan struct{} // closed when rt has ended

	// Guarded by Host.mu.
	refs   int  // mappings and questions that use it; 0: it is about to be closed
	mapped bool // a mapping does, or has: what it is like was asked for

	// Guarded by mu. Of spec, what is the session's: Session, Node, Policy ...
	spec    MapSpec
	since   time.Time // it is up, or not
	up      bool
	ever    bool                          // it has been up
	pending []*volumeDevice               // wait for the first path
	whys    map[*rtrs.ClientPath]string   // why a path could not be connected, as it was told
	made    map[*rtrs.ClientPath]PathSpec // what they were asked for as
	wanted  []PathSpec                    // are not there, and tried again
	sought  map[PathSpec]*sought          // how that went, of each of wanted
	struck  []PathSpec                    // were removed, and come back for nobody but who asks for them anew
	seeking bool                          // seek runs
}

// batches are rooms for requests on their way to or from a device.
var batches = sync.Pool{New: func() any { return new([batchSize]*blk.Request) }}

// newClient makes a session without a path.
func newClient(h *Host, id string, s MapSpec) (*client, error) {
	policy, err := rtrs.ParsePolicy(s.Policy)
	if err != nil {
		return nil, err
	}
	onLoss := rtrs.Wait
	if s.OnLoss == OnLossError {
		onLoss = rtrs.Error
	}
	c := &client{h: h, id: id, spec: s, since: h.machine.Wall(), done: make(chan struct{}), whys: map[*rtrs.ClientPath]string{}, made: map[*rtrs.ClientPath]PathSpec{}}
	cfg := &h.cfg
	rc := rtrs.ClientConfig{
		Name: s.Session, Conns: 1 + cfg.Connections, QueueDepth: s.QueueDepth,
		HeartbeatEvery: cfg.Heartbeat, MissedLimit: cfg.MissedLimit,
		ReconnectMin: cfg.ReconnectMin, ReconnectMax: cfg.ReconnectMax,
		Policy: policy, IOTimeout: s.IOTimeout, OnLoss: onLoss, LossTimeout: s.LossTimeout,
		Unfenced: unfenced(s.Unfenced), UnfencedAfter: s.UnfencedAfter, MaxReconnects: reconnects(s.MaxReconnects),
	}
	if h.machine.Tune != nil {
		h.machine.Tune(&rc, nil)
	}
	c.rt, err = rtrs.NewClient(rc, (*clientEnv)(c), h.random(), h.now())
	if err != nil {
		return nil, rdserr.With(rdserr.ErrInvalid, "session %s: %v", s.Session, err)
	}
	c.rn = rnbd.NewClient(rnbd.ClientConfig{OnLoss: onLoss, LossTimeout: s.LossTimeout, IOTimeout: s.IOTimeout, Notes: cfg.StateDir != ""}, (*volumeEnv)(c), c.rt)
	c.init(h, func(now time.Duration) {
		c.rt.Tick(now)
		c.rn.Tick(now)
	}, func() time.Duration { return min(c.rt.Next(), c.rn.Next()) }, func() {
		now := c.lock(c.clock())
		c.due(now)
		c.finish(now)
	})
	return c, nil
}

// finish ends a step, with mu held, and completes what it has brought.
func (c *client) finish(now time.Duration) {
	room := batches.Get().(*[batchSize]*blk.Request)
	for {
		c.tellCore()
		done := c.rn.Finished(room[:0])
		var f flushes
		c.settle(now, &f)
		c.mu.Unlock()
		f.run()
		more := len(done) == len(room)
		if len(done) > 0 {
			blk.Complete(done)
			clear(done)
		}
		if !more {
			break
		}
		now = c.lock(c.clock())
	}
	batches.Put(room)
}

// session finds the session a MapSpec names, or makes it. raw is the MapSpec as
// it was given: what it asks for must be what an existing session has. nil: it is for a
// question, which takes a session as it is. strict: every path has to have an address, else one
// that has none is wanted. It is undone by release.
func (h *Host) session(ctx context.Context, s, raw *MapSpec, strict bool) (*client, error) {
	if h.store.unread {
		// A mapping of before may have users that go on with it after the next start. To the server they and this session would be
		// one: nobody would tell them what was written here, and a close here would end what it knows of them.
		return nil, fmt.Errorf("what is mapped already is not known: %w", h.store.aside)
	}
	asked := s.Paths
	for {
		c, err := h.join(ctx, s, raw, strict)
		if (err == errQuestioned || err == errEnding) && h.machine.Wait(askAgain, ctx.Done()) != 0 {
			continue // which is over in a moment
		}
		if c != nil || err != nil {
			return c, err
		}
		paths, err := h.findPaths(ctx, s.Paths, strict && slices.Equal(s.Paths, asked)) // else they are of one that is not back
		if err != nil {
			return nil, err
		}
		c, err = h.enterSession(s, raw != nil)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue // another was faster
		}
		var firstErr error
		now := c.lock(h.now())
		for _, p := range paths {
			if p.err != nil {
				c.wants(p.spec, p.err)
			} else if _, err := c.newPath(now, p.spec, p.endpoints); err != nil && firstErr == nil {
				firstErr = err
			}
		}
		c.finish(now)
		if firstErr != nil && strict {
			h.release(c)
			return nil, firstErr
		}
		return c, nil
	}
}

// errQuestioned says that the session is there for questions alone, and is not what a
// mapping asks for, which would have the question's limits and paths for good.
var errQuestioned = rdserr.With(rdserr.ErrTimeout, "the session is there for a question, with other limits or paths")

// errEnding says that the session is about to be closed. The next of its name begins when that was said to
// it, and not before: a server that sees the two of them alive at a time takes one of
// them for the one to stay, whichever it is.
var errEnding = rdserr.With(rdserr.ErrTimeout, "the session is being closed")

// join takes part in an existing session; nil: there is none. strict is that of session.
func (h *Host) join(ctx context.Context, s, raw *MapSpec, strict bool) (*client, error) {
	h.mu.Lock()
	c := h.clients[s.Session]
	if c != nil && c.refs == 0 {
		h.mu.Unlock()
		return nil, errEnding
	}
	if raw != nil && strict && (c == nil || !c.mapped) {
		if err := h.heeds(s, raw); err != nil {
			h.mu.Unlock()
			return nil, err
		}
	}
	if c != nil && !c.mapped && raw != nil && (c.fits(s) != nil || !c.goes(s.Paths)) {
		h.mu.Unlock()
		return nil, errQuestioned
	}
	if c != nil {
		c.refs++
		c.mapped = c.mapped || raw != nil
	}
	h.mu.Unlock()
	if c != nil && strict { // what is restored was let in before, and its names may not be known just now
		if err := c.leads(ctx, s); err != nil {
			h.release(c)
			return nil, err
		}
	}
	if c == nil || raw == nil {
		return c, nil
	}
	err := c.fits(raw)
	for _, p := range raw.Paths {
		if err != nil {
			break
		}
		if strict {
			err = c.hasPath(ctx, p, forMap)
		} else {
			err = c.hasOrWants(ctx, p)
		}
	}
	if err != nil {
		h.release(c)
		return nil, err
	}
	return c, nil
}

// heeds has s, by which Map is about to make a session, be what mappings have of that session that an earlier Host had and that are
// not back yet, but for what raw asks for and must not: they join it whatever it is, and would go on as another mapping asks,
// or with the volume of another node. By which node they go is what NODE says, word for word, since names may not be known just now:
// one that goes by two names is refused, and the paths that raw names are taken to be that node's, as whoever maps says. mu is held.
func (h *Host) heeds(s, raw *MapSpec) error {
	for _, o := range h.notBack(s.Session) {
		host, port, _ := splitNode(s.Node, h.cfg.Port) // both were checked
		if of, p, _ := splitNode(o.Node, h.cfg.Port); of != host || p != port {
			return rdserr.With(rdserr.ErrInvalid, "session %s is that of mapping %s with %s, which is not back yet; name another session for %s, or the node as it does", s.Session, o.ID, o.Node, s.Node)
		}
		if err := o.fits(raw); err != nil {
			return err
		}
		paths := s.Paths
		o.shares(s)
		if len(raw.Paths) > 0 {
			s.Paths = paths
		}
	}
	return nil
}

// notBack are the mappings of a session that an earlier Host had and that have not joined it. mu is held.
func (h *Host) notBack(session string) (list []*MapSpec) {
	for _, m := range h.mappings {
		if m.waits() && m.spec.Session == session {
			list = append(list, &m.spec)
		}
	}
	for _, l := range h.left() {
		if l.mapping == nil || l.mapping.Session != session {
			continue
		}
		if o, err := l.mapping.spec(); err == nil && h.cfg.complete(&o) == nil {
			list = append(list, &o)
		}
	}
	return list
}

// waits reports whether m was an earlier Host's and has not joined its session yet. Host.mu is held.
func (m *mapping) waits() bool { return m.restored && m.c == nil && !m.ending }

// fits tells whether the session is what a MapSpec asks for.
func (c *client) fits(raw *MapSpec) error {
	done := c.look()
	s := c.spec
	done()
	return s.fits(raw)
}

// fits tells whether a session that s describes is what raw asks for.
func (s *MapSpec) fits(raw *MapSpec) error {
	policy := raw.Policy
	if p, err := rtrs.ParsePolicy(policy); err == nil { // else it is "": the session's may be any
		policy = p.String()
	}
	for _, w := range []struct {
		what      string
		asked, is string
	}{
		{"policy", policy, s.Policy},
		{"on-loss", raw.OnLoss, s.OnLoss},
		{"I/O timeout", text(raw.IOTimeout), text(s.IOTimeout)},
		{"loss timeout", text(raw.LossTimeout), text(s.LossTimeout)},
		{"queue depth", number(raw.QueueDepth), number(s.QueueDepth)},
		{"without a fence", raw.Unfenced, s.Unfenced},
		{"without a fence after", text(raw.UnfencedAfter), text(s.UnfencedAfter)},
		{"attempts to reconnect", number(raw.MaxReconnects), number(s.MaxReconnects)},
	} {
		if w.asked != "" && w.asked != w.is {
			return rdserr.With(rdserr.ErrInvalid, "session %s is there already, with %s %q and not %q; leave that out, or name another session", s.Session, w.what, w.is, w.asked)
		}
	}
	return nil
}

// goes tells whether these are the paths of the session.
func (c *client) goes(paths []PathSpec) bool {
	defer c.look()()
	return slices.Equal(c.spec.Paths, paths)
}

// shares has a mapping of the session be what the session is, whatever was asked for with it. mu is held.
func (c *client) shares(s *MapSpec) { c.spec.shares(s) }

// shares has s be what is says of a session.
func (is *MapSpec) shares(s *MapSpec) {
	s.Paths, s.Policy, s.QueueDepth = slices.Clone(is.Paths), is.Policy, is.QueueDepth
	s.IOTimeout, s.LossTimeout, s.OnLoss = is.IOTimeout, is.LossTimeout, is.OnLoss
	s.Unfenced, s.UnfencedAfter, s.MaxReconnects = is.Unfenced, is.UnfencedAfter, is.MaxReconnects
}

func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// enterSession makes the session and adds it to the table; nil: there is one.
func (h *Host) enterSession(s *MapSpec, mapped bool) (*client, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, rdserr.ErrShutdown
	}
	if h.clients[s.Session] != nil {
		return nil, nil
	}
	h.lastClient++
	c, err := newClient(h, fmt.Sprintf("c%d", h.lastClient), *s)
	if err != nil {
		return nil, err
	}
	c.refs, c.mapped = 1, mapped
	h.clients[s.Session] = c
	h.work.Add(1) // until it has ended
	return c, nil
}

// release ends the use of a session; the last one ends the session, and waits a
// moment for that.
func (h *Host) release(c *client) {
	h.mu.Lock()
	c.refs--
	last := c.refs == 0
	h.mu.Unlock()
	if !last {
		return
	}
	c.close()
	h.mu.Lock()
	delete(h.clients, c.spec.Session)
	h.mu.Unlock()
	h.machine.Wait(sessionEnd, c.done)
}

// sessionEnd is how long to wait for the links of a session to close.
const sessionEnd = time.Second

func (c *client) close() {
	now := c.lock(c.clock())
	c.rt.Close(now)
	c.finish(now)
}

// asker is for whom a path is added.
type asker uint8

const (
	forKept asker = iota // a mapping that was restored: not if it was removed since
	forMap               // Map
	forAdd               // AddPath, who sees a source refused that is no address of this node now; one that was kept may come back
)

// addPath resolves and adds a path.
func (c *client) addPath(ctx context.Context, p PathSpec, who asker) (*rtrs.ClientPath, error) {
	if err := p.check(c.h.cfg.Port); err != nil {
		return nil, err
	}
	if p.Transport == TransportTCP {
		p.Transport = ""
	}
	e, err := c.h.resolve(ctx, p)
	if err != nil {
		return nil, err
	}
	if who == forAdd && p.Src != "" && e.via.kind() == "" && c.h.local != nil && !c.h.local(e.local.Addr()) {
		return nil, rdserr.With(rdserr.ErrAddrNotAvail, "path %q to %q: source %v is not an address of this node", p.Src, p.Dst, e.local.Addr())
	}
	now := c.lock(c.clock())
	paths := c.rt.Paths()
	// A path that is there is none too many: the session says below that it has it.
	there := slices.ContainsFunc(paths, func(p *rtrs.ClientPath) bool { return p.Local == e.local && p.Remote == e.remote })
	if len(paths) >= maxPaths && !there {
		c.finish(now)
		return nil, rdserr.With(rdserr.ErrTooMany, "session %s has %d paths already", c.spec.Session, maxPaths)
	}
	if who == forKept && slices.Contains(c.struck, p) {
		c.finish(now)
		return nil, rdserr.With(rdserr.ErrCanceled, "the path %v of session %s was removed meanwhile", p, c.spec.Session)
	}
	cp, err := c.newPath(now, p, e)
	if err == nil {
		if !slices.Contains(c.spec.Paths, p) {
			c.spec.Paths = append(slices.Clone(c.spec.Paths), p)
		}
		is := func(o PathSpec) bool { return o == p }
		c.wanted, c.struck = slices.DeleteFunc(c.wanted, is), slices.DeleteFunc(c.struck, is)
	}
	c.finish(now)
	return cp, err
}

// volumeDevice is a volume mapped over a session as a blk.Device.
type volumeDevice struct {
	blk.State
	c        *client
	v        *rnbd.Volume  // its methods: with c.mu held
	m        *mapping      // nil: RemoteInfo asks
	answered chan struct{} // it was opened, or not; room for one
	outcome  error         // that answer; guarded by c.mu
	unmapped chan struct{} // closed when nothing of v is in flight any more
}

// openVolume begins to open a volume, for m if that is not nil, as former if that is not
// nil; the outcome follows. mu is held.
func (c *client) openVolume(now time.Duration, name, access string, m *mapping, former *rnbd.Kept) (*volumeDevice, error) {
	var v *rnbd.Volume
	var err error
	if former != nil {
		v, err = c.rn.MapAgain(now, name, wireAccess(access), *former)
	} else {
		v, err = c.rn.Map(now, name, wireAccess(access))
	}
	if err != nil {
		return nil, err
	}
	if state, _ := v.State(); state == rnbd.Unmapped { // refused within the call
		return nil, v.Err()
	}
	d := &volumeDevice{c: c, v: v, m: m, answered: make(chan struct{}, 1), unmapped: make(chan struct{})}
	v.Ctx = d
	return d, nil
}

// answer tells whoever waits for the outcome. c.mu is held.
func (d *volumeDevice) answer(err error) {
	select {
	case d.answered <- struct{}{}:
		d.outcome = err
	default:
	}
}

// forgetOutcome makes room for the next one. c.mu is held.
func (d *volumeDevice) forgetOutcome() {
	select {
	case <-d.answered:
	default:
	}
}

// wait waits for the outcome, and gives the volume up if it is an error.
func (d *volumeDevice) wait(ctx context.Context, strict bool) error {
	err, _ := d.await(ctx, strict)
	if err != nil {
		d.giveUp()
	}
	return err
}

// giveUp ends a volume that was not opened.
func (d *volumeDevice) giveUp() {
	now := d.c.lock(d.c.clock())
	d.v.ForceUnmap(now)
	d.c.finish(now)
}

// await waits for the outcome; answered: it is the server's. strict: it is an error if no
// path can be connected of a session that never had one.
func (d *volumeDevice) await(ctx context.Context, strict bool) (err error, answered bool) {
	c := d.c
	c.lock(c.clock())
	if strict && !c.ever {
		c.pending = append(c.pending, d)
		c.tell = append(c.tell, c.hopeless)
	}
	c.finish(c.last)
	got := c.h.machine.Wait(Forever, d.answered, ctx.Done())
	now := c.lock(c.clock())
	switch {
	case got == 0:
		err = d.outcome
	case ctx.Err() == context.Canceled:
		err = rdserr.With(rdserr.ErrCanceled, "it was given up meanwhile")
	default:
		err = rdserr.With(rdserr.ErrTimeout, "the server has not answered in time")
		if why := c.unreached(); why != nil && !c.ever {
			err = why
		}
	}
	c.pending = slices.DeleteFunc(c.pending, func(o *volumeDevice) bool { return o == d })
	c.finish(now)
	return err, got == 0
}

// unmap closes the volume and waits a moment for the server. With force it does
// not wait for it, but for what is in flight to come back, and reports false if that has not.
func (d *volumeDevice) unmap(force bool) bool {
	c := d.c
	now := c.lock(c.clock())
	if force {
		d.v.ForceUnmap(now)
	} else {
		d.v.Unmap(now)
	}
	c.finish(now)
	return c.h.machine.Wait(unmapWait, d.unmapped) == 0
}

// unmapWait is how long to wait for the server when a volume is closed.
const unmapWait = time.Second

// Submit hands requests to the session, in the caller's thread as far as its
// links take them.
func (d *volumeDevice) Submit(batch []*blk.Request) {
	now := d.c.lock(d.c.clock())
	d.v.Submit(now, batch)
	d.c.finish(now)
}

// Close does nothing: a mapping is ended by Host.Unmap.
func (d *volumeDevice) Close() error { return nil }

func wireAccess(s string) rnbdwire.Access {
	switch s {
	case AccessRO:
		return rnbdwire.ReadOnly
	case AccessMigration:
		return rnbdwire.Migration
	}
	return rnbdwire.ReadWrite
}
