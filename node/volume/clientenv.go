package volume

import (
	"errors"
	"fmt"
	"io"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
)

// homes is a provider whose domains can be put on a reactor.
type homes interface {
	NewDomainOn(*reactor.Reactor) (transport.Domain, error)
}

// clientEnv is what the RTRS client needs done, with mu held.
type clientEnv client

var _ rtrs.ClientEnv = (*clientEnv)(nil)

// life is the present one of a path; after Gone the next is another one.
func (e *clientEnv) life(p *rtrs.ClientPath) *life {
	f, _ := p.Ctx.(*life)
	if f == nil || f.told {
		c := (*client)(e)
		via := c.h.transportOf(p.Ctx)
		d, home := c.newDomain(via.Provider)
		f = newLife(&c.shell, c, p, via, d)
		f.home = home
		p.Ctx = f
	}
	return f
}

// newDomain makes the domain of a path: of the first at home, where the devices
// are served as well, so that one thread does all of a request; of others where
// the provider likes. mu is held.
func (c *client) newDomain(prov transport.OneSidedProvider) (d transport.Domain, home bool) {
	for f := range c.lives {
		home = home || f.home
	}
	p, ok := prov.(homes)
	if !home && ok && c.home != nil {
		if d, err := p.NewDomainOn(c.home); err == nil {
			return d, true
		}
	}
	return prov.NewDomain(), false
}

func (e *clientEnv) Dial(p *rtrs.ClientPath, conn int, attr transport.LinkAttr, req []byte) {
	f := e.life(p)
	f.dialing++
	e.work.Go(func() { // ends when it is connected, refused, or hung up
		defer e.h.guard.Recover(guard.Step, nil) // beside the attempt this is a step
		(*client)(e).dial(f, p, conn, attr, req)
	})
}

func (c *client) dial(f *life, p *rtrs.ClientPath, conn int, attr transport.LinkAttr, req []byte) {
	var l transport.OneSided
	var rsp []byte
	var err error
	if e := c.h.guard.Do(guard.Dial, func() {
		l, rsp, err = f.via.Provider.DialOneSided(f.ctx, p.Local, p.Remote, f.domain, attr, req)
	}); e != nil {
		l, err = nil, e
	}
	now := c.lock(c.clock())
	f.dialing--
	switch {
	case f.hung:
		if err == nil {
			l.Close()
		}
		f.check()
	case err != nil:
		if r, ok := errors.AsType[*transport.Refused](err); ok {
			rsp = r.Private
		}
		p.Refused(now, conn, rsp, err)
	default:
		k := f.take(conn, l)
		p.Dialed(now, conn, rsp)
		l.Start(k, p.RecvBytes(conn)) // after its Close too, if the answer was wrong
	}
	c.finish(now)
}

func (e *clientEnv) Hang(p *rtrs.ClientPath) { e.life(p).hang() }

func (e *clientEnv) Post(p *rtrs.ClientPath, conn int, op *transport.Op) { e.life(p).post(conn, op) }

func (e *clientEnv) Grant(p *rtrs.ClientPath, conn int, b []byte) (uint32, uint64) {
	return e.life(p).grant(conn, b, 0)
}

func (e *clientEnv) Take(p *rtrs.ClientPath, key uint32) (int, transport.Revocation) {
	f, _ := p.Ctx.(*life)
	if f == nil || f.told { // its domain is closed, and with it all keys have ended
		return transport.Unfilled, transport.Idle
	}
	return f.domain.Take(key)
}

func (e *clientEnv) Up() {
	e.up, e.ever, e.since = true, true, e.h.machine.Wall()
	e.rn.Up(e.last)
}

func (e *clientEnv) Down() {
	e.up, e.since = false, e.h.machine.Wall()
	e.rn.Down(e.last)
}

func (e *clientEnv) Done(r *rtrs.Req) { e.rn.Done(e.last, r) }

func (e *clientEnv) Closed() {
	e.end()
	close(e.done)
	e.posts = append(e.posts, e.work.Done) // when this step has begun all that it begins
}

func (e *clientEnv) Event(x rtrs.Event) {
	if told := e.h.machine.Session; told != nil {
		e.posts = append(e.posts, func() { told(x) })
	}
	if !passing(&x) && !e.said(&x) {
		e.event(sessionEvent(&x, RoleClient))
	}
	if x.Kind == rtrs.EventPath && x.Err != nil && !e.ever {
		e.tell = append(e.tell, (*client)(e).hopeless)
	}
}

// said tells whether an event is the failure of an attempt to connect like the
// one before, which need not be told.
func (e *clientEnv) said(x *rtrs.Event) bool {
	if x.Kind != rtrs.EventPath || x.Client == nil {
		return false
	}
	why := ""
	if x.To == rtrs.Reconnecting && x.Err != nil {
		why = x.Err.Error()
	}
	was := e.whys[x.Client]
	if why == "" {
		delete(e.whys, x.Client)
	} else {
		e.whys[x.Client] = why
	}
	return why != "" && why == was
}

// closedTries is how often in a row a server may close a path that is being made before it is held to
// be not to be had. A kernel's server closes it as long as it has not taken down the session of that
// name that was ended a moment ago (drivers/infiniband/ulp/rtrs/rtrs-srv.c, process_info_req: "pathname
// is duplicated"), which whoever unmaps a volume and maps it again is not to notice.
const closedTries = 5

// hopeless tells those who wait for the first path of the session when every
// path has failed.
func (c *client) hopeless() {
	for _, p := range c.rt.Paths() {
		i, most := p.Info(), 1
		if errors.Is(i.Err, io.EOF) {
			most = closedTries
		}
		if i.Attempts < most {
			return
		}
	}
	err := c.unreached()
	if err == nil || c.ever {
		return
	}
	for _, d := range c.pending {
		d.answer(err)
	}
}

// volumeEnv is what the RNBD client tells, with mu held.
type volumeEnv client

var _ rnbd.ClientEnv = (*volumeEnv)(nil)

func (e *volumeEnv) Mapped(v *rnbd.Volume, err error) {
	d, _ := v.Ctx.(*volumeDevice)
	if d == nil {
		return // openVolume looks by itself
	}
	if err == nil {
		d.SetInfo(v.Info())
	}
	d.answer(err)
}

func (e *volumeEnv) Unmapped(v *rnbd.Volume) {
	if d, _ := v.Ctx.(*volumeDevice); d != nil {
		close(d.unmapped)
	}
}

func (e *volumeEnv) Changed(v *rnbd.Volume, info *blk.Info) {
	d, _ := v.Ctx.(*volumeDevice)
	if d == nil {
		return
	}
	d.SetInfo(info)
	if d.m != nil {
		e.posts = append(e.posts, d.m.resized)
	}
}

func (e *volumeEnv) Keep(v *rnbd.Volume) {
	if d, _ := v.Ctx.(*volumeDevice); d != nil && d.m != nil {
		e.posts = append(e.posts, func() {
			if d.m.keep(d) {
				d.m.h.saver.mark()
			}
		})
	}
}

func (e *volumeEnv) Note(v *rnbd.Volume) {
	d, _ := v.Ctx.(*volumeDevice)
	if d == nil || d.m == nil {
		return // it is not mapped again, and nothing is asked of it
	}
	e.work.Go(func() { // ends when the state is written, or the Host ends
		defer e.h.guard.Recover(guard.Step, nil) // the server would have it open until the session ends
		if !d.m.keep(d) {
			return // the next Host asks again
		}
		for e.h.saver.soon() != nil {
			if e.h.machine.Wait(retryMin, e.h.ctx.Done()) == 0 {
				return
			}
		}
		now := d.c.lock(d.c.clock())
		d.v.Noted(now)
		d.c.finish(now)
	})
}

func (e *volumeEnv) Event(x rnbd.ClientEvent) {
	ev := Event{Kind: EventMapping, Role: RoleClient, Session: e.spec.Session, Err: x.Err}
	d, _ := x.Volume.Ctx.(*volumeDevice)
	if d == nil || d.m == nil {
		return
	}
	m := d.m
	ev.Mapping = m.id
	name := fmt.Sprintf("%s (%s of %s)", m.id, x.Volume.Name(), m.spec.Node)
	switch x.Kind {
	case rnbd.VolumeState:
		ev.State = x.To.String()
		switch {
		case x.To == rnbd.Open: // Remap waits for it
			d.forgetOutcome()
			d.answer(nil)
		case x.From == rnbd.Closed && x.To == rnbd.Closed:
			d.forgetOutcome()
			d.answer(x.Err)
		}
		ev.Text = fmt.Sprintf("mapping %s is %v", name, x.To)
	case rnbd.VolumeResized:
		ev.Kind, ev.Size = EventResize, x.Size
		ev.Text = fmt.Sprintf("mapping %s has %d bytes", name, x.Size)
	default:
		ev.Kind, ev.State = EventError, x.Kind.String()
		ev.Text = fmt.Sprintf("mapping %s: a %v failed", name, x.Op)
		m.failErr = x.Err
		if x.Kind == rnbd.VolumeSyncLost {
			ev.Text = fmt.Sprintf("mapping %s: completed writes may be lost", name)
		}
	}
	if errors.Is(x.Err, rtrs.ErrNoPath) && x.Kind == rnbd.VolumeState { // which the session's events tell
		ev.Err = nil
		ev.Text += ": there is no path"
	} else if x.Err != nil {
		m.lastErr = x.Err
	}
	e.event(ev)
}
