package datagram

import (
	"errors"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/transport"
)

// A payload that is partly there holds memory for all of it: its header tells a
// length, and nothing says that the rest will come. After the read that left it
// so, its link charges the peer, but for what is read into the memory of its receiver. One that
// cannot be charged is read to its end without being kept, and refused as one that finds no room. A
// kernel's can be neither refused nor dropped: TCP has acknowledged what was read, and the kernel has
// forgotten it. So it is charged in any case, and the link is not read on to the next while the node
// has no memory for that (MayRead). Of others, which have not said who they are, the link is closed, and so is one
// on which nothing more of a payload comes.

// A kernel's link that is not read, because a receiver is full, holds the frame that found no
// room and what was read behind it. TCP has acknowledged that, and the kernel has forgotten it:
// so it is charged to the peer, whether that has a share left or not, and waits as long as the receiver does.

const (
	// partialMost is how long a payload may take, however steadily it drips.
	partialMost = 5 * time.Minute
	// partialSure is how much of a payload a lane is charged for whatever else its peer holds, while
	// the node has it: who holds much otherwise still gets its datagrams.
	partialSure = 64 << 10
)

// partials is the links in the middle of a large payload.
type partials struct {
	mu    sync.Mutex // nothing is called with it held
	links map[*laneLink]*partial
}

type partial struct {
	since, seen time.Time
	payload     uint64 // which of the link's it is (laneLink.payloads)
	stuck       bool   // the sweep before found that it does not go on
}

// settlePartial brings up to date what the link is charged for, at the end of a
// read. Local.mu is held. Most payloads are whole by then, and cost nothing here.
func (l *laneLink) settlePartial() {
	if l.partial == 0 && l.held == 0 && l.charged == 0 && l.watched == 0 {
		return
	}
	if !l.charge() {
		return
	}
	l.watched = l.partial
	t := &l.h.all.partials
	t.mu.Lock()
	defer t.mu.Unlock()
	now := l.h.all.machine.Wall()
	switch p := t.links[l]; {
	case l.partial == 0:
		delete(t.links, l)
	case p == nil:
		if t.links == nil {
			t.links = map[*laneLink]*partial{}
		}
		t.links[l] = &partial{since: now, seen: now, payload: l.payloads}
	case p.payload != l.payloads: // the next one, of whatever length
		*p = partial{since: now, seen: now, payload: l.payloads}
	default:
		p.seen = now
	}
}

// charge has the peer charged for what the link holds. Of what it may not hold the link lets go,
// or, if that cannot be, it is closed: false.
func (l *laneLink) charge() bool {
	whole := l.held
	if !l.placed {
		whole += l.partial
	}
	if whole == l.charged {
		return true
	}
	account := l.h.all.deps.Memory.Account(quota.Peer(l.p.Conn().Remote()))
	defer account.Close()
	d := whole - l.charged
	if d < 0 || l.held > 0 || l.kernel {
		account.Grow(quota.Partial, d)
		l.charged = whole
		return true
	}
	err := account.Take(quota.Partial, d)
	if err != nil && whole <= partialSure {
		err = account.Sure(quota.Partial, d)
	}
	if err == nil {
		l.charged = whole
		return true
	}
	if s, ok := l.link.(transport.Skipper); ok && l.skips {
		s.Skip()
		account.Give(quota.Partial, l.charged)
		l.charged = 0
		l.placed = true // it has no memory to be charged for
		return true
	}
	l.h.log.Warn("link closed in the middle of a payload", "peer", l.p.Conn().Remote(), "why", err)
	link := l.link
	l.h.all.machine.Aside(link.Abort) // not from within its own read
	l.charged = whole
	account.Grow(quota.Partial, d)
	return false
}

var errStuck = errors.New("nothing more of a payload came")

// sweep gives up links on which a payload does not go on, those that it found so in the sweep before
// as well: this process may have stood still, and what came meanwhile is read between the two.
func (t *partials) sweep(now time.Time, silent time.Duration) {
	var stuck []*laneLink
	t.mu.Lock()
	for l, p := range t.links {
		was := p.stuck
		p.stuck = now.Sub(p.seen) > silent || now.Sub(p.since) > partialMost
		if was && p.stuck {
			stuck = append(stuck, l)
			delete(t.links, l) // once; a read puts it back
		}
	}
	t.mu.Unlock()
	for _, l := range stuck {
		l.h.log.Warn("link closed in the middle of a payload", "peer", l.link.RemoteAddr().Addr(), "why", "nothing more of it has come")
		l.h.all.machine.Aside(l.giveUp) // who sweeps waits for no lock
	}
}

// giveUp has the link read to its end and closed. Its thread may have stood still for as long, with
// datagrams unread that a kernel has forgotten.
func (l *laneLink) giveUp() {
	_, now := l.h.Lock()
	if l.attempt == l.p.Attempt() { // else it ends already
		l.p.Drop(now, errStuck)
	}
	l.h.Unlock()
}
