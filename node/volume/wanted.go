package volume

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// A path of a mapping that an earlier Host had is wanted also where its address cannot be had at
// the start: a name server may answer later, a network be there later. The session does without it
// and tries it again. A name server that is silent is not waited for either: until the resolver gives
// a name up a minute may pass, and that again for the next attempt.

// lookUpSoon is how long a name is waited for where the session has another path.
const lookUpSoon = 2 * time.Second

// sought is how it has gone with a path that is wanted.
type sought struct {
	since time.Duration // it is wanted
	tried int           // times without success
	err   error         // the last time, which ended at
	at    time.Duration
}

var errSilent = rdserr.With(rdserr.ErrTimeout, "no name server has answered yet")

// found is where a path leads, or why that is not known.
type found struct {
	spec PathSpec
	endpoints
	err error
}

// findPaths finds the addresses of a session's paths. strict: all have to have one. Else one of them has
// to, and the others are waited for no longer than lookUpSoon.
func (h *Host) findPaths(ctx context.Context, paths []PathSpec, strict bool) ([]found, error) {
	list := make([]found, len(paths))
	if strict {
		for i, p := range paths {
			e, err := h.resolve(ctx, p)
			if err != nil {
				return nil, err
			}
			list[i] = found{p, e, nil}
		}
		return list, nil
	}
	ctx, cancel := h.machine.Timeout(ctx, mapTimeout)
	defer cancel()
	// All at once, so that one whose server is silent takes no time from the others.
	var mu sync.Mutex
	told := make(chan struct{}, len(paths))
	for i, p := range paths {
		list[i] = found{p, endpoints{}, errSilent}
		h.work.Go(func() { // ends when the name is looked up, or nobody waits for it any more
			defer func() { told <- struct{}{} }()
			defer h.guard.Recover(guard.Volume, nil)
			e, err := h.resolve(ctx, p)
			mu.Lock()
			list[i] = found{p, e, err}
			mu.Unlock()
		})
	}
	wait := Forever
	for range paths {
		if h.machine.Wait(wait, told, ctx.Done()) != 0 {
			break
		}
		mu.Lock()
		if slices.ContainsFunc(list, func(f found) bool { return f.err == nil }) {
			wait = lookUpSoon
		}
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	if wait == Forever {
		return nil, list[0].err
	}
	return slices.Clone(list), nil // what is told later is looked up again
}

// want has a path of the session tried again until it is there, is removed, or the session ends.
func (c *client) want(p PathSpec, why error) {
	now := c.lock(c.clock())
	c.wants(p, why)
	c.finish(now)
}

// wants is what want does, with the lock.
func (c *client) wants(p PathSpec, why error) {
	if slices.Contains(c.wanted, p) || slices.Contains(c.struck, p) {
		return
	}
	c.wanted = append(c.wanted, p)
	if c.sought == nil {
		c.sought = map[PathSpec]*sought{}
	}
	maps.DeleteFunc(c.sought, func(p PathSpec, _ *sought) bool { return !slices.Contains(c.wanted, p) })
	now := c.clock()
	c.sought[p] = &sought{since: now, tried: 1, err: why, at: now}
	if !slices.Contains(c.spec.Paths, p) {
		c.spec.Paths = append(slices.Clone(c.spec.Paths), p)
	}
	c.event(Event{Kind: EventPath, Role: RoleClient, Session: c.spec.Session, Path: p, State: stateText(rtrs.Reconnecting), Err: why, Text: "path " + p.String() + " cannot be made yet"})
	if c.seeking {
		return
	}
	c.seeking = true
	c.work.Go(func() { // ends when none is wanted, or with the session
		defer c.h.guard.Recover(guard.Step, nil)
		c.seek()
	})
}

// seek tries the wanted paths.
func (c *client) seek() {
	for pause := restoreMin; c.h.machine.Wait(pause, c.done) != 0; pause = min(2*pause, restoreMax) {
		done := c.look()
		list := slices.Clone(c.wanted)
		c.seeking = len(list) > 0
		done()
		for _, p := range list {
			ctx, cancel := c.h.machine.Timeout(c.h.ctx, mapTimeout)
			if err := c.hasPath(ctx, p, forKept); err == nil {
				c.unwant(p)
			} else {
				c.soughtInVain(p, err)
			}
			cancel()
		}
		if len(list) == 0 {
			return
		}
	}
}

// hasPath adds a path of a mapping, unless it is there.
func (c *client) hasPath(ctx context.Context, p PathSpec, who asker) error {
	if _, err := c.addPath(ctx, p, who); rdserr.Errno(err) != rtrs.ErrExists.Errno {
		return err
	}
	return nil
}

// hasOrWants adds a path that was kept, or has it wanted. One that the session has, or wants, already
// is not looked up again, nor one that was removed.
func (c *client) hasOrWants(ctx context.Context, p PathSpec) error {
	done := c.look()
	known := slices.Contains(c.spec.Paths, p) || slices.Contains(c.struck, p)
	done()
	if known {
		return nil
	}
	soon, cancel := c.h.machine.Timeout(ctx, lookUpSoon)
	defer cancel()
	err := c.hasPath(soon, p, forKept)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case soon.Err() != nil:
		err = errSilent
	}
	c.want(p, err)
	return nil
}

// unwant forgets a wanted path.
func (c *client) unwant(p PathSpec) {
	defer c.look()()
	c.wanted = slices.DeleteFunc(c.wanted, func(w PathSpec) bool { return w == p })
}

// soughtInVain notes that a wanted path could still not be made.
func (c *client) soughtInVain(p PathSpec, err error) {
	defer c.look()()
	if s := c.sought[p]; s != nil {
		s.tried, s.err, s.at = s.tried+1, err, c.clock()
	}
}

// wantedInfos are the paths that are not there. Whoever looks for what is down has to find them: nothing else says that a
// mapping has fewer paths than it was given. mu is held.
func (c *client) wantedInfos() []PathInfo {
	var list []PathInfo
	for _, p := range c.wanted {
		i := PathInfo{PathSpec: p, Session: c.rt.Name(), SessionID: c.id, Role: RoleClient, State: stateText(rtrs.Reconnecting), Unmade: true}
		if i.Transport == "" {
			i.Transport = TransportTCP
		}
		if s := c.sought[p]; s != nil {
			i.Since, i.Down = c.h.wall(s.since), c.h.wall(s.since)
			i.LastError, i.ErrorAt, i.Attempts = s.err.Error(), c.h.wall(s.at), s.tried
		}
		list = append(list, i)
	}
	return list
}

// strike takes a path from those that the session is to have, for good: neither seek, which may be
// looking it up, nor a mapping that was restored and joins later brings it back. mu is held.
func (c *client) strike(p PathSpec) {
	is := func(o PathSpec) bool { return o == p }
	c.wanted = slices.DeleteFunc(c.wanted, is)
	c.spec.Paths = slices.DeleteFunc(slices.Clone(c.spec.Paths), is)
	if !slices.Contains(c.struck, p) {
		c.struck = append(c.struck, p)
	}
}

// strikeMade strikes a path that is there: as what it was asked for, and what else leads there and to no
// other path. mu is held.
func (c *client) strikeMade(cp *rtrs.ClientPath) {
	_, dst, via := c.ends(cp)
	was := c.made[cp]
	delete(c.made, cp)
	others := map[PathSpec]bool{}
	for _, s := range c.made {
		others[s] = true
	}
	for _, s := range c.spec.Paths {
		leads := matches(s.Dst, dst) && (s.Src == "" || matches(s.Src, cp.Local)) && s.Transport == via.kind()
		if s == was || leads && !others[s] {
			c.strike(s)
		}
	}
}

// removeWanted takes a path that is not there from those that a session wants and has written
// down, or returns err.
func (h *Host) removeWanted(ctx context.Context, session string, p PathSpec, err error) error {
	c, _ := h.clientSession(session)
	if c == nil {
		return err
	}
	done := c.look()
	list := c.meant(p)
	switch len(list) {
	case 0:
	case 1:
		c.strike(list[0])
		err = nil
	default:
		err = manyPaths(session, len(list), p)
	}
	done()
	if err == nil {
		h.keepPaths(ctx, c)
	}
	return err
}

// meant are the wanted paths that p may mean. mu is held.
func (c *client) meant(p PathSpec) []PathSpec {
	var list, own []PathSpec
	for _, w := range c.wanted {
		if w.Dst == p.Dst && (p.Src == "" || w.Src == p.Src) && (p.Transport == "" || p.Transport == w.Transport || p.Transport == TransportTCP && w.Transport == "") {
			list = append(list, w)
			if w.Src == p.Src { // of one without a source nobody can say more
				own = append(own, w)
			}
		}
	}
	if len(own) > 0 {
		return own
	}
	return list
}
