package volume

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// serverEnv is what the RTRS server needs done, with mu held.
type serverEnv server

var _ rtrs.ServerEnv = (*serverEnv)(nil)

func (e *serverEnv) life(p *rtrs.ServerPath) *life { return e.lifeOver(p, &e.h.transports[0]) }

// lifeOver makes it a life over via, if p has none yet.
func (e *serverEnv) lifeOver(p *rtrs.ServerPath, via *Transport) *life {
	f, _ := p.Ctx.(*life)
	if f == nil {
		s := (*server)(e)
		f = newLife(&s.shell, s, p, via, via.Provider.NewDomain())
		if d, ok := f.domain.(transport.Guarded); ok {
			d.Guard(s.mayPlace)
			d.DeferReads(s.rest)
		}
		p.Ctx = f
	}
	return f
}

func (e *serverEnv) Accept(c *rtrs.ServerCon, attr transport.LinkAttr, rsp []byte) {
	a, num := c.Ctx.(*arrival), c.Num
	// The domain of another transport's connection of the same path is refused by its provider.
	f := e.lifeOver(c.Path, a.via)
	l, err := a.Accept(f.domain, attr, rsp)
	if err != nil {
		no := rtrswire.Reject(uint16(rdserr.Errno(err)))
		a.Reject(no.Append(nil))
		a.leave()
		e.tell = append(e.tell, func() {
			if !f.hung {
				f.path.Lost(e.last, num, err)
			}
		})
		return
	}
	k := f.take(num, l)
	k.closed = a.leave
	if a.path.paid != nil {
		f.charge, a.path = a.path, pathCharge{}
	}
	l.Start(k, c.RecvBytes())
}

func (e *serverEnv) Reject(c *rtrs.ServerCon, rsp []byte) {
	a := c.Ctx.(*arrival)
	a.Reject(rsp)
	a.leave()
}

func (e *serverEnv) Hang(p *rtrs.ServerPath) { e.life(p).hang() }

func (e *serverEnv) Post(p *rtrs.ServerPath, conn int, op *transport.Op) { e.life(p).post(conn, op) }

func (e *serverEnv) Register(p *rtrs.ServerPath, b []byte) (uint32, uint64) {
	return e.life(p).domain.Register(b)
}

func (e *serverEnv) Grant(p *rtrs.ServerPath, conn int, b []byte, at uint64) (uint32, uint64) {
	return e.life(p).grant(conn, b, at)
}

func (e *serverEnv) Revoke(p *rtrs.ServerPath, key uint32) transport.Revocation {
	return e.life(p).domain.Revoke(key)
}

// Adopt also begins to charge for the chunks of a session: by the page, when it is touched,
// or all of them at once if a device keeps them, or cannot tell when a peer writes there.
func (e *serverEnv) Adopt(p *rtrs.ServerPath, mem []byte) (pinned bool, err error) {
	s := (*server)(e)
	prov := e.life(p).via.Provider
	caps := prov.OneSidedCaps()
	pinned = caps.Pinned || !caps.Guards
	s.count(mem, p.Remote.Addr().Unmap())
	if pinned {
		if err := s.touch(mem); err != nil {
			return false, err
		}
	}
	if slices.ContainsFunc(s.adopted, func(a adoption) bool { return a.by == prov && a.of(mem) }) {
		return pinned, nil
	}
	release, err := prov.Adopt(mem)
	if err != nil {
		return false, err
	}
	s.adopted = append(s.adopted, adoption{mem, prov, release})
	return pinned, nil
}

// adoption is the chunks of a session that the links of a provider use.
type adoption struct {
	mem     []byte
	by      transport.OneSidedProvider
	release func()
}

func (a *adoption) of(mem []byte) bool { return unsafe.SliceData(a.mem) == unsafe.SliceData(mem) }

func (e *serverEnv) Alloc(n int) []byte {
	e.chunks = e.h.machine.Chunks.Alloc(n)
	return e.chunks
}

func (e *serverEnv) Free(b []byte) {
	if len(e.chunks) > 0 && len(b) > 0 && &e.chunks[0] == &b[0] {
		e.chunks = nil
	}
	for _, x := range e.sessions {
		if len(x.chunks) > 0 && len(b) > 0 && &x.chunks[0] == &b[0] {
			x.chunks = nil
		}
	}
	(*server)(e).uncount(b)
	var releases []func()
	e.adopted = slices.DeleteFunc(e.adopted, func(a adoption) bool {
		mine := a.of(b)
		if mine {
			releases = append(releases, a.release)
		}
		return mine
	})
	// To give up 100 MiB that were in use takes the kernel milliseconds, in which
	// neither this thread nor the lock is to be held. No link is left that writes there.
	e.work.Go(func() { // ends when the kernel is done
		defer e.h.guard.Recover(guard.Volume, nil)
		for _, release := range releases {
			release()
		}
		e.h.machine.Chunks.Free(b)
	})
}

func (e *serverEnv) Trim(b []byte) {
	e.h.machine.Chunks.Trim(b)
	if l := e.pages.Load(); l != nil {
		for _, c := range *l {
			if off, ok := c.at(b); ok {
				c.trimmed(off, len(b))
			}
		}
	}
}

func (e *serverEnv) Up(s *rtrs.ServerSession) {
	e.lastID++
	x := &serverSession{id: fmt.Sprintf("s%d", e.lastID), since: e.h.machine.Wall(), chunks: e.chunks}
	if l := s.Paths(); len(l) > 0 {
		x.peer = l[0].Remote
	}
	e.chunks = nil
	e.sessions[s] = x
	e.rn.Up(s)
}

func (e *serverEnv) Down(s *rtrs.ServerSession) {
	(*server)(e).kernelDown(s)
	e.rn.Down(e.last, s)
	delete(e.sessions, s)
}

func (e *serverEnv) Stale(s *rtrs.ServerSession) { e.rn.Stale(e.last, s) }

func (e *serverEnv) Request(r *rtrs.ServerReq) {
	switch err := (*server)(e).touch(r.Data); { // what a read fills
	case errors.Is(err, quota.ErrRationed), errors.Is(err, rdserr.ErrNoMemory) && len((*server)(e).rationed) < rationMost:
		(*server)(e).ration(r)
		return
	case err != nil:
		e.rt.Reply(e.last, r, 0, err)
		return
	}
	e.rn.Request(e.last, r)
}

func (e *serverEnv) Closed() {
	e.end()
	e.posts = append(e.posts, e.work.Done) // when this step has begun all that it begins
}

func (e *serverEnv) Event(x rtrs.Event) {
	if told := e.h.machine.Session; told != nil {
		e.posts = append(e.posts, func() { told(x) })
	}
	if !passing(&x) {
		e.event(sessionEvent(&x, RoleServer))
	}
}

// exportEnv is what the RNBD server needs done, with mu held.
type exportEnv server

var _ rnbd.ServerEnv = (*exportEnv)(nil)

func (e *exportEnv) Open(o *rnbd.Opening) { (*server)(e).open(o) }

func (e *exportEnv) Close(place any, c rnbd.Closer) {
	s := (*server)(e)
	s.fold(c)
	s.at(place, visit{close: c})
}

func (e *exportEnv) Keep() { e.h.keepPast() }

// What a peer may have open in all its sessions, and what each takes.
const (
	maxOpenOfPeer = 4096
	openBytes     = 512
)

func (e *exportEnv) Hold(from netip.Addr) (let func(), err error) {
	from = from.Unmap()
	if n := e.opened[from]; n >= maxOpenOfPeer {
		return nil, rdserr.With(rdserr.ErrTooMany, "%v has %d volumes open, at most %d", from, n, maxOpenOfPeer)
	}
	paid := func() {}
	if e.h.memory != nil {
		account := e.h.memory.Account(quota.Peer(from))
		if err := account.Take(quota.Peers, openBytes); err != nil {
			account.Close()
			return nil, err
		}
		paid = func() {
			account.Give(quota.Peers, openBytes)
			account.Close()
		}
	}
	e.opened[from]++
	return func() {
		if e.opened[from]--; e.opened[from] == 0 {
			delete(e.opened, from)
		}
		paid()
	}, nil
}

// Note waits for the disk beside everything else: whoever opens the volume waits for it.
func (e *exportEnv) Note(o *rnbd.Opening) {
	s := (*server)(e)
	s.work.Go(func() { // ends when the state is written, or cannot be
		defer s.h.guard.Recover(guard.Step, nil) // the volume would be opening for ever
		err := s.h.saver.soon()
		now := s.lock(s.clock())
		s.rn.Noted(now, o, err)
		s.finish(now)
	})
}

func (e *exportEnv) Event(x rnbd.ServerEvent) {
	if told := e.h.machine.Export; told != nil {
		e.posts = append(e.posts, func() { told(x) })
	}
	ev := Event{Kind: EventExport, Role: RoleServer, Session: x.Session, Export: x.Name, State: x.Kind.String(), Err: x.Err}
	switch x.Kind {
	case rnbd.ServerOpened, rnbd.ServerClosed:
		if x.Kind == rnbd.ServerOpened {
			(*server)(e).kernelOpened(x.Session)
		}
		ev.Text = fmt.Sprintf("session %s has %v volume %s (%v)", x.Session, x.Kind, x.Name, x.Access)
		if x.Err != nil {
			ev.Text = fmt.Sprintf("volume %s (%v) was taken from session %s", x.Name, x.Access, x.Session)
		}
	case rnbd.ServerRefused:
		ev.Text = fmt.Sprintf("session %s may not open volume %s (%v)", x.Session, x.Name, x.Access)
	default:
		ev.Kind = EventError
		ev.Text = fmt.Sprintf("the store of volume %s failed a %v", x.Name, x.Op)
		e.posts = append(e.posts, func() { e.h.storeFailed(x.Name, x.Err) })
	}
	e.event(ev)
}
