package volume

import (
	"context"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// corePath is a path of rtrs, of a client or of the server.
type corePath interface {
	Lost(now time.Duration, conn int, err error)
	Gone(now time.Duration)
	Sent(now time.Duration, conn int, n int)
	Written(now time.Duration, conn int, w transport.Placed) error
	Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) error
	Invalidated(now time.Duration, conn int, key uint32, filled int) error
	Revoked(now time.Duration, conn int, key uint32, filled int) error
}

// stepper is a shell with what it does beyond settling.
type stepper interface {
	// finish ends a step: it settles, lets the lock go and does what is to be done.
	finish(now time.Duration)
}

// life is one life of a path: its links, from the first dial or request until
// all have ended after it was hung up.
type life struct {
	sh     *shell
	of     stepper
	path   corePath
	via    *Transport // what its links are
	domain transport.Domain
	home   bool            // its links are read by the session's reactor
	ctx    context.Context // of its dials
	cancel context.CancelFunc

	// Guarded by shell.mu.
	links   []*link // by connection; nil: there has been none
	dialing int
	open    int // links that have not said Closed
	hung    bool
	told    bool // the core was told, or will be at the end of the step
	charge  pathCharge
}

func newLife(sh *shell, of stepper, path corePath, via *Transport, domain transport.Domain) *life {
	f := &life{sh: sh, of: of, path: path, via: via, domain: domain}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	sh.lives[f] = true
	return f
}

// take takes a link as connection conn, which is to be started then; mu is held.
func (f *life) take(conn int, l transport.OneSided) *link {
	for conn >= len(f.links) {
		f.links = append(f.links, nil)
	}
	k := &link{life: f, conn: conn, l: l}
	f.links[conn] = k
	f.open++
	return k
}

// post is called by the core, with mu held.
func (f *life) post(conn int, op *transport.Op) {
	if conn >= len(f.links) || f.links[conn] == nil {
		return // as after the end of a link
	}
	k := f.links[conn]
	k.l.Post(op)
	if !k.dirty {
		k.dirty = true
		f.sh.dirty = append(f.sh.dirty, k)
	}
}

// grant is called by the core, with mu held.
func (f *life) grant(conn int, b []byte, at uint64) (key uint32, addr uint64) {
	if conn >= len(f.links) || f.links[conn] == nil {
		return 0, at // nobody can use it
	}
	return f.links[conn].l.Grant(b, at)
}

// hang closes everything; the core hears Gone at the end of the step or later.
// mu is held.
func (f *life) hang() {
	if f.hung {
		return
	}
	f.hung = true
	f.cancel()
	for _, k := range f.links {
		if k != nil {
			k.l.Close()
		}
	}
	f.check()
}

// check tells the core, through settle, when all has ended. mu is held.
func (f *life) check() {
	if f.hung && f.open == 0 && f.dialing == 0 && !f.told {
		f.told = true
		f.sh.tell = append(f.sh.tell, func() {
			f.domain.Close()
			delete(f.sh.lives, f)
			f.path.Gone(f.sh.last)
			f.charge.give()
		})
	}
}

// link is one connection. Its methods are called by the transport, on the
// thread that reads it.
type link struct {
	life  *life
	conn  int
	l     transport.OneSided
	now   time.Duration // of the turn; owned by that thread
	sent  int           // operations that were sent and that the core is not told of yet; owned by that thread
	dirty bool          // it is in shell.dirty; guarded by shell.mu
	// closed is called when the link has ended; nil: nobody is told. Guarded by shell.mu.
	closed func()
}

func (k *link) Begin() { k.now = k.life.sh.clock() }

// Sent is told to the core with the event that follows, or at the end of the turn: so it
// takes no lock of its own.
func (k *link) Sent(n int) { k.sent += n }

// step begins a step of the turn.
func (k *link) step() (now time.Duration) {
	now = k.life.sh.lock(k.now)
	if k.sent > 0 {
		k.life.path.Sent(now, k.conn, k.sent)
		k.sent = 0
	}
	return now
}

func (k *link) Written(w transport.Placed) error {
	f, now := k.life, k.step()
	err := f.path.Written(now, k.conn, w)
	f.sh.mu.Unlock()
	return err
}

func (k *link) Received(data []byte, imm uint32, hasImm bool) error {
	f, now := k.life, k.step()
	err := f.path.Received(now, k.conn, data, imm, hasImm)
	f.sh.mu.Unlock()
	return err
}

func (k *link) Invalidated(key uint32, filled int) error {
	f, now := k.life, k.step()
	err := f.path.Invalidated(now, k.conn, key, filled)
	f.sh.mu.Unlock()
	return err
}

func (k *link) Revoked(key uint32, filled int) error {
	f, now := k.life, k.step()
	err := f.path.Revoked(now, k.conn, key, filled)
	f.sh.mu.Unlock()
	return err
}

func (k *link) End() {
	k.life.of.finish(k.step())
}

func (k *link) Closed(err error) {
	f := k.life
	now := f.sh.lock(f.sh.clock())
	f.open--
	if k.closed != nil {
		k.closed()
	}
	if !f.hung {
		f.path.Lost(now, k.conn, err)
	}
	f.check()
	f.of.finish(now)
}
