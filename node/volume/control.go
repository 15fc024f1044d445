package volume

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
)

// Unmap ends a mapping, by ID, by the device's path, its URI, or by NODE:NAME. While a
// program is connected to its socket, or its kernel device is mounted or held by another
// device, this is refused with EBUSY, also where that cannot be told; with force what is in
// flight fails, and it returns within seconds whatever the server does.
func (h *Host) Unmap(ctx context.Context, what string, force bool) error {
	h.mu.Lock()
	m, err := h.find(what)
	var f Front
	var both error
	if err == nil {
		f, both = m.front, h.alsoLeft(what, m)
	}
	h.mu.Unlock()
	if both != nil {
		return both
	}
	if err != nil {
		if err := h.endLeft(what, err); err != nil {
			return err
		}
		return h.saveDone(ctx, "mapping %s has ended", what)
	}
	if !force && f != nil {
		busy, unknown := false, error(nil)
		if err := h.do(ctx, "mapping "+m.id, func() error { busy, unknown = f.Busy(); return nil }); err != nil {
			return fmt.Errorf("is mapping %s in use? %w", m.id, err)
		}
		if unknown != nil {
			return rdserr.With(rdserr.ErrBusy, "whether mapping %s is in use cannot be told: %v; let the daemon open it (packaging/volumes.conf), or see that nothing uses it and force it (--force)", m.id, unknown)
		}
		if busy {
			return rdserr.With(rdserr.ErrBusy, "mapping %s is in use; close what uses it, or force it (--force)", m.id)
		}
	}
	h.mu.Lock()
	switch {
	case m.ending:
		err = rdserr.With(rdserr.ErrBusy, "mapping %s is being unmapped", m.id)
	case h.closing:
		err = rdserr.ErrShutdown
	default:
		m.ending = true
		// What a start has left of that name was the same.
		h.dropLeft(func(l *leftover) bool { return l.mapping != nil && l.mapping.ID == m.id })
		h.work.Go(func() { // ends within seconds
			defer h.guard.Recover(guard.Volume, nil)
			m.end(force)
		})
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if h.machine.Wait(Forever, m.gone, ctx.Done()) != 0 {
		h.saver.mark() // it is not taken back
		return rdserr.With(rdserr.ErrTimeout, "mapping %s is on its way out", m.id)
	}
	h.ev.add(Event{Kind: EventMapping, Role: RoleClient, Session: m.spec.Session, Mapping: m.id, State: StateUnmapped, Text: "mapping " + m.id + " has ended"})
	return h.saveDone(ctx, "mapping %s has ended", m.id)
}

// volume finds the volume of a mapping.
func (h *Host) volume(what string) (*mapping, *volumeDevice, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.find(what)
	if err != nil {
		return nil, nil, err
	}
	if m.dev == nil || m.ending {
		return nil, nil, rdserr.With(rdserr.ErrBusy, "mapping %s is not open yet, or not any more", m.id)
	}
	return m, m.dev, nil
}

// Remap opens a mapping again that is closed, also one the server has refused or
// lost. It returns when that is done.
func (h *Host) Remap(ctx context.Context, what string) (MappingInfo, error) {
	m, d, err := h.volume(what)
	if err != nil {
		return MappingInfo{}, err
	}
	ctx, end, err := h.call(ctx)
	if err != nil {
		return MappingInfo{}, err
	}
	defer end()
	c := d.c
	for {
		now := c.lock(h.now())
		d.forgetOutcome()
		asking := d.v.Asking() || d.v.Ending() // it is being closed, or opened by itself
		if !asking {
			err = d.v.Remap(now)
		}
		c.finish(now)
		if !asking {
			break
		}
		if h.machine.Wait(askAgain, ctx.Done()) == 0 {
			return MappingInfo{}, rdserr.With(rdserr.ErrTimeout, "remap %s: the server has not answered in time", m.id)
		}
	}
	if err == nil {
		got := h.machine.Wait(Forever, d.answered, d.unmapped, ctx.Done())
		now := c.lock(h.now())
		switch why := d.v.Err(); {
		case got == 0:
			err = d.outcome // of the event
			d.answer(err)   // another Remap may wait for it too
		case got == 1:
			err = rdserr.With(rdserr.ErrNotFound, "it was unmapped meanwhile")
		case why != nil:
			err = why
		default:
			err = rdserr.With(rdserr.ErrTimeout, "the server has not opened it in time")
		}
		c.finish(now)
	}
	if err != nil {
		return MappingInfo{}, fmt.Errorf("remap %s: %w", m.id, err)
	}
	m.keep(d)     // that it was taken as it is
	h.saveBy(ctx) // an error is told by the saver, which tries again
	return h.Mapping(m.id)
}

// askAgain is how often a call looks whether the answer it waits for is there,
// askWait how long.
const (
	askAgain = 2 * time.Millisecond
	askWait  = 5 * time.Second
)

// ask asks the server for the present size and waits for the answer.
func (d *volumeDevice) ask(ctx context.Context) (uint64, error) {
	c := d.c
	ctx, cancel := c.h.machine.Timeout(ctx, askWait)
	defer cancel()
	for asked := false; ; {
		now := c.lock(c.clock())
		state, _ := d.v.State()
		busy, info, why := d.v.Asking(), d.v.Info(), d.v.AskErr()
		if state == rnbd.Open && !busy && !asked {
			d.v.Ask(now)
			asked, busy = true, d.v.Asking()
		}
		c.finish(now)
		switch {
		case state == rnbd.Unmapped:
			return 0, rdserr.With(rdserr.ErrNotFound, "it was unmapped meanwhile")
		case asked && !busy && why != nil && rdserr.Errno(why) == rtrs.ErrNoPath.Errno:
			asked = false // the answer went with the paths
		case asked && !busy && info != nil:
			return d.Info().Size, why
		}
		if c.h.machine.Wait(askAgain, ctx.Done()) == 0 {
			return 0, rdserr.With(rdserr.ErrTimeout, "the server has not answered in time; the volume is %v", state)
		}
	}
}

// ResizeMapping takes the size the server says a volume has now. size is what it
// has to be, else it is left as it is (EINVAL); 0: any.
func (h *Host) ResizeMapping(ctx context.Context, what string, size uint64) (uint64, error) {
	m, d, err := h.volume(what)
	if err != nil {
		return 0, err
	}
	is, err := d.ask(ctx)
	if err != nil {
		return 0, fmt.Errorf("mapping %s: %w", m.id, err)
	}
	if size != 0 && is != size {
		return is, rdserr.With(rdserr.ErrInvalid, "mapping %s: the server says %d bytes, not %d; change the export there", m.id, is, size)
	}
	return is, nil
}

// pathOf finds a path of a client's session by its ends. mu is held.
func pathOf[P any](list []P, session string, p PathSpec, ends func(P) (src, dst netip.AddrPort, via *Transport)) (found P, err error) {
	n := 0
	for _, x := range list {
		src, dst, via := ends(x)
		if p.names(src, dst, via) {
			found = x
			n++
		}
	}
	switch {
	case n == 1:
		return found, nil
	case n == 0:
		return found, rdserr.With(rdserr.ErrNotFound, "session %s has no path %v", session, p)
	}
	return found, manyPaths(session, n, p)
}

func manyPaths(session string, n int, p PathSpec) error {
	return rdserr.With(rdserr.ErrInvalid, "session %s has %d paths %v; name both ends, and tcp: or ib:", session, n, p)
}

// names tells whether p may mean the path from src to dst over via.
func (p PathSpec) names(src, dst netip.AddrPort, via *Transport) bool {
	return matches(p.Src, src) && matches(p.Dst, dst) && (p.Transport == "" || p.Transport == via.Name)
}

// matches tells whether s, an address with or without a port, or nothing, names a.
func matches(s string, a netip.AddrPort) bool {
	if s == "" {
		return true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap() == a.Addr().Unmap() && (ap.Port() == a.Port() || a.Port() == 0)
	}
	ip, err := netip.ParseAddr(s)
	return err == nil && ip.Unmap() == a.Addr().Unmap()
}

func (c *client) ends(p *rtrs.ClientPath) (src, dst netip.AddrPort, via *Transport) {
	src = p.Local
	if f, _ := p.Ctx.(*life); f != nil && len(f.links) > 0 && f.links[0] != nil {
		src = f.links[0].l.LocalAddr()
	}
	return src, p.Remote, c.h.transportOf(p.Ctx)
}

func (s *server) ends(p *rtrs.ServerPath) (src, dst netip.AddrPort, via *Transport) {
	x := p.Info()
	return x.Remote, x.Local, s.h.transportOf(p.Ctx)
}

// clientSession finds a client's session by name or ID.
func (h *Host) clientSession(name string) (*client, error) {
	for _, c := range h.allClients() {
		if c.id == name || c.rt.Name() == name {
			return c, nil
		}
	}
	return nil, rdserr.With(rdserr.ErrNotFound, "there is no session %q as a client", name)
}

// withPath does something to a path of a client's session.
func (h *Host) withPath(session string, p PathSpec, do func(c *client, now time.Duration, cp *rtrs.ClientPath) error) error {
	c, err := h.clientSession(session)
	if err != nil {
		return err
	}
	now := c.lock(h.now())
	cp, err := pathOf(c.rt.Paths(), session, p, c.ends)
	if err == nil {
		err = do(c, now, cp)
	}
	c.finish(now)
	return err
}

// AddPath adds a path to a client's session, named by name or ID.
func (h *Host) AddPath(ctx context.Context, session string, p PathSpec) (PathInfo, error) {
	c, err := h.clientSession(session)
	if err != nil {
		return PathInfo{}, err
	}
	cp, err := c.addPath(ctx, p, forAdd)
	if err != nil {
		return PathInfo{}, err
	}
	h.keepPaths(ctx, c)
	defer c.look()()
	return c.pathInfo(cp), nil
}

// keepPaths writes down which paths a session has now. What was removed goes, too, from mappings that are
// being restored and have not joined it yet; if it was all they had they get those of the session. Those that were left get
// them in any case: one may be the only one of the session at the next start.
func (h *Host) keepPaths(ctx context.Context, c *client) {
	h.mu.Lock()
	done := c.look()
	paths, struck := slices.Clone(c.spec.Paths), slices.Clone(c.struck)
	done()
	without := func(list []PathSpec, not []PathSpec) []PathSpec {
		return slices.DeleteFunc(slices.Clone(list), func(p PathSpec) bool { return slices.Contains(not, p) })
	}
	for _, m := range h.mappings {
		switch {
		case m.c == c:
			m.spec.Paths = paths
		case m.c == nil && m.restored && m.spec.Session == c.spec.Session:
			if m.spec.Paths = without(m.spec.Paths, struck); len(m.spec.Paths) == 0 {
				m.spec.Paths = paths
			}
		}
	}
	for _, l := range h.leftovers {
		if m := l.mapping; m != nil && m.Session == c.spec.Session {
			m.Paths = append(slices.Clone(paths), without(without(m.Paths, struck), paths)...)
		}
	}
	h.mu.Unlock()
	h.saveBy(ctx) // an error is told by the saver, which tries again
}

// RemovePath takes a path from a client's session; its requests move to others.
// A path is named by its ends; Src, ports, or both may be left out where what is
// left fits one path only; one that has no address yet (client.want) as it was asked for. The last
// path stays (EBUSY): unmap instead.
func (h *Host) RemovePath(ctx context.Context, session string, p PathSpec) error {
	var of *client
	err := h.withPath(session, p, func(c *client, now time.Duration, cp *rtrs.ClientPath) error {
		// One that is on its way out is none to go on by.
		if !slices.ContainsFunc(c.rt.Paths(), func(o *rtrs.ClientPath) bool { return o != cp && !o.Removed() }) {
			return rdserr.With(rdserr.ErrBusy, "it is the last path of session %s; unmap what uses it instead, or disconnect it", session)
		}
		err := c.rt.Remove(now, cp)
		if err == nil {
			of = c
			c.strikeMade(cp)
		}
		return err
	})
	if rdserr.Errno(err) == rdserr.ErrNotFound.Errno {
		return h.removeWanted(ctx, session, p, err)
	}
	if err == nil {
		h.keepPaths(ctx, of)
	}
	return err
}

// DisconnectPath closes a path. A client's stays so until ReconnectPath; that of
// a server comes back if the client wants it to.
func (h *Host) DisconnectPath(ctx context.Context, session string, p PathSpec) error {
	if _, err := h.clientSession(session); err != nil {
		return h.srv.disconnect(session, p)
	}
	return h.withPath(session, p, func(c *client, now time.Duration, cp *rtrs.ClientPath) error { return c.rt.Disconnect(now, cp) })
}

// disconnect closes a path of a session of the server.
func (s *server) disconnect(session string, p PathSpec) error {
	now := s.lock(s.clock())
	err := s.disconnects(now, session, p)
	s.finish(now)
	return err
}

// disconnects is what disconnect does, with the lock.
func (s *server) disconnects(now time.Duration, session string, p PathSpec) error {
	for _, e := range s.rt.Sessions() {
		if x := s.sessions[e]; e.Name != session && (x == nil || x.id != session) {
			continue
		}
		sp, err := pathOf(e.Paths(), session, p, s.ends)
		if err == nil {
			s.rt.Disconnect(now, sp)
		}
		return err
	}
	return rdserr.With(rdserr.ErrNotFound, "there is no session %q", session)
}

// ReconnectPath connects a client's path anew, now.
func (h *Host) ReconnectPath(ctx context.Context, session string, p PathSpec) error {
	return h.withPath(session, p, func(c *client, now time.Duration, cp *rtrs.ClientPath) error { return c.rt.Reconnect(now, cp) })
}

// ResetStats sets the statistics of a path to 0; with an empty session of all
// sessions, with an empty path of all paths.
func (h *Host) ResetStats(ctx context.Context, session string, p PathSpec) error {
	n := 0
	for _, c := range h.allClients() {
		if session != "" && c.id != session && c.rt.Name() != session {
			continue
		}
		now := c.lock(h.now())
		for _, cp := range c.rt.Paths() {
			if src, dst, via := c.ends(cp); p.names(src, dst, via) {
				cp.ResetStats()
				n++
			}
		}
		c.finish(now)
	}
	s := h.srv
	now := s.lock(h.now())
	for _, sp := range s.rt.Paths() {
		i := s.pathInfo(sp)
		if session != "" && i.Session != session && i.SessionID != session {
			continue
		}
		if src, dst, via := s.ends(sp); p.names(src, dst, via) {
			sp.ResetStats()
			n++
		}
	}
	s.finish(now)
	if n == 0 && (session != "" || p != PathSpec{}) {
		return rdserr.With(rdserr.ErrNotFound, "there is no path from %q to %q of session %q", p.Src, p.Dst, session)
	}
	return nil
}
