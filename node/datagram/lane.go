package datagram

import (
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/transport"
)

// lane is what the shell knows of a conn.Lane: the links it has or is about to
// have. It hangs on conn.Lane.Data; Local.mu guards it.
type lane struct {
	links    []*laneLink
	lastTurn time.Duration // end of the last transmit turn

	ledger     *shm.LedgerLane // nil until it is needed
	unledgered bool            // the ledger had no room
}

// laneLink is one link of a lane; the transport's Handler.
type laneLink struct {
	h       *Local
	p       *conn.Lane
	attempt uint64
	link    transport.Link
	dead    bool             // guarded by Local.mu
	shake   *peers.Handshake // of an accepted link that has not identified itself; guarded by Local.mu
	noted   bool             // its peer is in the book of kernels, or need not be
	now     time.Duration

	// Guarded by Local.mu, see partial.go.
	partial  int64  // bytes of the large payload that is being read; 0: none
	held     int64  // bytes that a link keeps which is not read because a receiver is full; 0: it is read
	charged  int64  // of both
	watched  int64  // partial as it was after the last read
	payloads uint64 // large ones that have begun
	placed   bool   // partial is in the memory of its receiver, who is charged
	kernel   bool   // the peer is one; the link's thread alone
	shut     bool   // it may not be read, as the lane knows; the link's thread alone
	skips    bool   // partial can be refused without being kept
}

// Of tells which attempt of which lane l is the link of.
func (l *laneLink) Of() (p *conn.Lane, attempt uint64) { return l.p, l.attempt }

var (
	_ transport.Placer = (*laneLink)(nil)
	_ transport.Gate   = (*laneLink)(nil)
)

func (h *Local) laneOf(p *conn.Lane) *lane {
	l, _ := p.Data.(*lane)
	if l == nil {
		l = &lane{}
		p.Data = l
	}
	return l
}

// find is the link of an attempt, nil when there is none.
func (l *lane) find(attempt uint64) *laneLink {
	for _, k := range l.links {
		if k.attempt == attempt {
			return k
		}
	}
	return nil
}

// current is the link of an attempt, nil when there is none that works.
func (l *lane) current(attempt uint64) *laneLink {
	for _, k := range l.links {
		if k.attempt == attempt && !k.dead {
			return k
		}
	}
	return nil
}

func (l *lane) remove(k *laneLink) {
	for i, o := range l.links {
		if o == k {
			l.links = append(l.links[:i], l.links[i+1:]...)
			return
		}
	}
}

// Begin takes the lock for all frames of one read.
func (l *laneLink) Begin() {
	now := time.Duration(0)
	if w := l.h.all.here(); w != nil {
		now = w.thread.Now()
	} else {
		now = l.h.now()
	}
	_, l.now = l.h.LockAt(now)
}

// Frame gives one frame to the engine.
func (l *laneLink) Frame(f *transport.Frame) error {
	l.partial, l.held, l.placed = 0, 0, false
	err := l.p.Receive(l.now, l.attempt, f)
	if err == transport.ErrPause {
		l.held = int64(len(f.Payload)) + transport.MostBehind
	}
	return err
}

// MayRead implements transport.Gate. A kernel forgets what TCP has taken, so what was read of it
// is kept, whoever lacks memory; it is not read while there is no memory for the next.
func (l *laneLink) MayRead() bool {
	may := !l.kernel || l.partial > 0 || l.h.all.deps.Memory.Spare(quota.Partial, partialSure)
	if may == l.shut {
		l.shut = !may
		_, now := l.h.Lock()
		l.p.Shut(now, l.attempt, l.shut)
		l.h.Unlock()
	}
	return may
}

// Buffer finds a place for a large payload, in the ring it is for.
func (l *laneLink) Buffer(raw []byte, n int) *buf.Buf {
	b := l.h.e.Buffer(l.p, l.attempt, raw, n)
	l.payloads++
	l.partial, l.placed = int64(n), b != nil
	if b == nil {
		l.skips = l.p.Skips(raw)
	}
	return b
}

// End lets the lock go; acknowledgements and wake-ups follow in this thread.
func (l *laneLink) End() {
	kind := l.p.Conn().Kind()
	l.kernel = kind != conn.KindRdsd && kind != conn.KindUnknown
	l.settlePartial()
	l.p.ReceivedAll(l.now, l.attempt)
	l.h.commit(l.p)
	if !l.noted {
		l.note()
	}
	l.settled()
	l.h.Unlock()
}

// settled ends the handshake of an accepted link when it is over: the link is ready, however it
// became so, or a full receiver keeps it unread. That one is a kernel's or may be, and what TCP
// has acknowledged on it is lost if it is closed; it is charged to the peer, and a lane has but
// one such link. Local.mu is held.
func (l *laneLink) settled() {
	if l.shake != nil && (l.p.Ready() || l.held > 0) {
		l.identified()
	}
}

// note writes down, once it is known, that the peer is a kernel to which we are
// the one to connect.
func (l *laneLink) note() {
	c := l.p.Conn()
	if c.Kind() == conn.KindUnknown {
		return
	}
	l.noted = true
	if b := l.h.all.ports; b != nil && c.Active() && c.Kind() != conn.KindRdsd {
		b.noteKernel(l.h.addr, c.Remote(), true)
	}
}

// identified ends the handshake of an accepted link. Local.mu is held.
func (l *laneLink) identified() {
	l.shake.End()
	l.shake = nil
}

// Progress notes that the peer takes some of a large batch: one that does so slowly is
// alive.
func (l *laneLink) Progress() {
	_, now := l.h.Lock()
	l.p.Alive(now, l.attempt)
	l.h.Unlock()
}

// Written ends a batch that met a full link.
func (l *laneLink) Written(b *transport.Batch, err error) {
	b.Put()
	h := l.h
	_, now := h.Lock()
	if err != nil {
		l.dead = true
	}
	more := l.p.WroteLate(now, err)
	h.Unlock()
	if more && h.transmit(l.p, bytesATurn) {
		h.kick(l.p)
	}
}

// Closed ends the link.
func (l *laneLink) Closed(err error, acked uint64) {
	h := l.h
	_, now := h.Lock()
	h.laneOf(l.p).remove(l)
	l.identified()
	l.partial, l.held, l.placed = 0, 0, false
	l.settlePartial()
	l.p.Lost(now, l.attempt, acked, err)
	h.startParked(l.p)
	h.Unlock()
	h.links.Done()
}

// startParked begins to read an accepted link that waited for its
// predecessor's end. The lock is held.
func (h *Local) startParked(p *conn.Lane) {
	if k := h.laneOf(p).find(p.Attempt()); k != nil && (p.State() == conn.Up || p.State() == conn.Disconnecting) {
		k.link.Start(k)
	}
}

// LinkOf is the link that p sends on now, nil when it has none that works. The lock is
// held.
func (h *Local) LinkOf(p *conn.Lane) transport.Link {
	if k := h.laneOf(p).current(p.Attempt()); k != nil {
		return k.link
	}
	return nil
}
