package datagram

import (
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
)

// A payload that is partly there holds memory for all of it: its header tells a
// length, and nothing says that the rest will come. After the read that left it
// so, its link charges the peer; a link that cannot is closed, for what it was
// sending is sent again, and so is one on which nothing more of it comes.

// A kernel's link that is not read, because a receiver is full, holds the frame that found no
// room and what was read behind it. TCP has acknowledged that, and the kernel has forgotten it:
// so it is charged to the peer, whether that has a share left or not, and waits as long as the receiver does.

const (
	// partialMost is how long a payload may take, however steadily it drips.
	partialMost = 5 * time.Minute
	// heldBehind is what a link has read at most behind a frame that found no room
	// (transport/tcp, stageBytes and aheadBytes).
	heldBehind = 68 << 10
)

// partials is the links in the middle of a large payload.
type partials struct {
	mu    sync.Mutex // nothing is called with it held
	links map[*laneLink]*partial
}

type partial struct{ since, seen time.Time }

// settlePartial brings up to date what the link is charged for, at the end of a
// read. Local.mu is held. Most payloads are whole by then, and cost nothing here.
func (l *laneLink) settlePartial() {
	whole := l.partial + l.held
	if whole == 0 && l.charged == 0 {
		return
	}
	t := &l.h.all.partials
	memory := l.h.all.deps.Memory
	if d := whole - l.charged; d > 0 {
		account := memory.Account(quota.Peer(l.p.Conn().Remote()))
		var err error
		if l.held > 0 {
			account.Grow(quota.Partial, d)
		} else {
			err = account.Take(quota.Partial, d)
		}
		account.Close()
		if err != nil {
			l.h.log.Warn("link closed in the middle of a payload", "peer", l.p.Conn().Remote(), "why", err)
			link := l.link
			l.h.all.machine.Aside(link.Abort) // not from within its own read
			l.partial = l.charged
			return
		}
	} else if d < 0 {
		account := memory.Account(quota.Peer(l.p.Conn().Remote()))
		account.Give(quota.Partial, -d)
		account.Close()
	}
	was := l.charged
	l.charged = whole
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
		t.links[l] = &partial{now, now}
	case was != l.charged: // the next one
		*p = partial{now, now}
	default:
		p.seen = now
	}
}

// sweep closes links on which a payload does not go on.
func (t *partials) sweep(now time.Time, silent time.Duration) {
	var stuck []*laneLink
	t.mu.Lock()
	for l, p := range t.links {
		if now.Sub(p.seen) > silent || now.Sub(p.since) > partialMost {
			stuck = append(stuck, l)
		}
	}
	t.mu.Unlock()
	for _, l := range stuck {
		l.h.log.Warn("link closed in the middle of a payload", "peer", l.link.RemoteAddr().Addr(), "why", "nothing more of it has come")
		l.link.Abort()
	}
}
