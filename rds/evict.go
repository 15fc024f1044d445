package rds

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// The table of peers has MaxPeers places. A client makes a peer by naming a destination, a
// stranger by connecting, and neither may keep others out of the table. When it is full,
// the peer that has been idle longest, of some that are looked at, makes room: one without
// a link, without a datagram of ours that is queued or undecided, and without a socket that
// waits for it or has a destination there open. What it has not acknowledged of our answers
// and refusals keeps nobody: one ping would be a place for ever. A peer that never identified itself goes
// before all others.
//
// With it the peer's incarnation and the sequences of both directions are forgotten.
// Towards an rdsd this is a new incarnation of ours: none of our messages is undecided, and
// the outcome of its own unacknowledged messages becomes unknown, so nothing is delivered
// twice (D1, D11). A kernel may send messages again for which it has no TCP
// acknowledgement, as after a restart of this daemon; therefore peers that have sent
// something are kept for a while before they go.
//
// Peers that clients named and that never answered are counted by user; a user may have
// three quarters of the places. The daemon tries to connect to each of them, so a user who
// has that share and goes on naming others may replace only so many a second: all users
// share the machine's network, and thousands of attempts a second would take it.

const (
	evictLook  = 128                  // peers looked at for one place, whatever was looked at before
	evictSpare = 4 * time.Microsecond // that one more look is earned in, up to one at each peer of the table
	evictAfter = 10 * time.Second     // that a peer whose sequences are forgotten has rested
	evictEvery = 5 * time.Millisecond // one of a user's share makes room for another of the same user
)

// share counts the places of the table that a user has.
type share struct {
	peers int           // named, and without an answer
	next  time.Duration // when one of them may make room for another
}

// idleSince reports whether pe may be forgotten, and since when nothing has happened.
func (pe *Peer) idleSince(now time.Duration) (since time.Duration, ok bool) {
	if pe.busy > 0 || pe.blockedPorts > 0 || pe.isFull {
		return 0, false
	}
	since, ok = pe.c.Idle()
	if ok && pe.c.Known() && now-since < evictAfter {
		return 0, false
	}
	return since, ok
}

// makeRoom finds a place for one more peer, which uid names if named is true.
func (e *Engine) makeRoom(now time.Duration, o origin) error {
	most := e.cfg.MaxPeers
	if of, part := e.named[o.uid], max(1, most-most/4); o.named && of.peers >= part {
		if now < of.next || !e.evict(now, false, func(pe *Peer) bool { return pe.origin == o && !pe.answered }) {
			e.noPlace++
			return rdserr.With(rdserr.ErrNoMemory, "user %d has named %d destinations that never answered, its share of limits.max_peers (%d), of which one in %v makes room", o.uid, part, most, evictEvery)
		}
		of = e.named[o.uid] // without the one that went
		of.next = now + evictEvery
		e.named[o.uid] = of
	}
	if len(e.order) >= most && !e.Evict(now) {
		e.noPlace, e.fullAt = e.noPlace+1, now
		return rdserr.With(rdserr.ErrNoMemory, "the limit of %d peers (limits.max_peers) is reached, and none of those looked at rests", most)
	}
	return nil
}

// NoPlace counts the peers that MaxPeers refused, and tells when the last one was refused
// because none of the others rested; 0: none was.
func (e *Engine) NoPlace() (n uint64, full time.Duration) { return e.noPlace, e.fullAt }

// The memory of a peer, and of each of its lanes: an idle peer with two lanes was measured
// with 6.7 KiB (row idle of make bench).
const (
	peerBytes = 4 << 10
	laneBytes = 2 << 10
)

// peerCost is the memory of a peer with all the lanes it may come to have.
const peerCost = peerBytes + wire.MaxLanes*laneBytes

// chargePeer charges one more peer to its account. When memory is spent, one idle peer
// makes room for it, whose memory it has then: also where others hold all of the rest, a
// peer that nobody knew is let in.
func (e *Engine) chargePeer(now time.Duration, addr netip.Addr) (*quota.Account, error) {
	if e.cfg.PeerAccount == nil {
		return nil, nil
	}
	a := e.cfg.PeerAccount(addr)
	err := a.Take(quota.Peers, peerCost)
	if err != nil && e.Evict(now) {
		err = a.Replace(quota.Peers, peerCost)
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// evict forgets the peer that has rested longest of the next ones that fit, or with far the first one
// behind them, as far as looks were earned.
func (e *Engine) evict(now time.Duration, far bool, fits func(*Peer) bool) bool {
	var best *Peer
	var rested time.Duration
	// The search is bounded and goes on where the last one ended: the table may be large, and
	// strangers decide how often it is searched. But a user can have most of its places in a row with
	// peers that do not rest: so it goes farther now and then, for all that search together.
	for n := 0; n < len(e.order) && (n < evictLook || far && best == nil && e.earned(now)); n++ {
		if e.evictAt >= len(e.order) {
			e.evictAt = 0
		}
		pe := e.order[e.evictAt]
		e.evictAt++
		since, ok := pe.idleSince(now)
		if !ok || !fits(pe) {
			continue
		}
		if known, was := pe.c.Known(), best != nil && best.c.Known(); best == nil || was && !known || was == known && since < rested {
			best, rested = pe, since
		}
	}
	if best != nil {
		e.forgetPeer(best)
	}
	return best != nil
}

// earned takes one of the looks beyond evictLook, if there is one.
func (e *Engine) earned(now time.Duration) bool {
	if n := (now - e.lookedAt) / evictSpare; n > 0 {
		e.looks = int(min(time.Duration(e.looks)+n, time.Duration(len(e.order))))
		e.lookedAt += n * evictSpare
	}
	if e.looks == 0 {
		return false
	}
	e.looks--
	return true
}

// Evict forgets an idle peer, if there is one among some that are looked at, so that its memory
// can be had for something that is not this engine's. It reports whether one was forgotten.
func (e *Engine) Evict(now time.Duration) bool {
	return e.evict(now, true, func(*Peer) bool { return true })
}

// forgetPeer ends an idle peer.
func (e *Engine) forgetPeer(pe *Peer) {
	for pe.flows.n > 0 {
		pe.flows.head.forget()
	}
	// With its map no port of it is congested any more, and nothing will say so.
	if note := pe.noteMany(); note != nil {
		port, on := pe.cmap.Next(0)
		for n := 0; on && n <= noteMost; n++ {
			note(port, false)
			port, on = pe.cmap.Next(int(port) + 1)
		}
	}
	// Reports of the shell about its links are late from now on.
	pe.c.End()
	for _, tm := range []*timer{&pe.tm, &pe.lateTm} {
		if tm.t != nil {
			e.timers.Delete(*tm)
			tm.t = nil
		}
	}
	pe.answer()
	e.asked -= int(pe.asked)
	pe.asked = 0
	e.unorder(pe.at)
	delete(e.peers, pe.addr)
	if pe.account != nil {
		pe.account.Give(quota.Peers, peerCost)
		pe.account.Close()
	}
	if e.lastPeer == pe {
		e.lastPeer = nil
	}
	// Counters never go back: the peer's counts stay in the sum.
	e.ctr.Add(&pe.ctr)
	e.ctr.PeersEvicted++
	e.evicted = append(e.evicted, pe.c)
}

// unorder takes the peer at a place out of the order: the last one takes its place. A walk that is
// under way (peerWalk) neither misses one nor begins again, which those who have others evicted
// would have it do for ever: of those it has told the last one takes the place, and leaves its own.
func (e *Engine) unorder(at int) {
	put := func(pe *Peer, at int) { e.order[at], pe.at = pe, at }
	if at < e.walk.next {
		e.walk.next--
		put(e.order[e.walk.next], at)
		at = e.walk.next
	}
	last := len(e.order) - 1
	if at < last {
		put(e.order[last], at)
	}
	e.order[last] = nil
	e.order = e.order[:last]
}

// origin says who made a peer known: the user of a client, or none if the peer connected by
// itself.
type origin struct {
	uid   uint32
	named bool
}

// answer notes that there is a node at the peer's address: the peer no longer counts for
// the user that named it.
func (pe *Peer) answer() {
	if pe.answered {
		return
	}
	pe.answered = true
	if o := pe.origin; o.named {
		pe.e.count(o.uid, -1)
	}
}

// count changes how many peers a user has named that never answered.
func (e *Engine) count(uid uint32, by int) {
	of := e.named[uid]
	if of.peers += by; of.peers == 0 {
		delete(e.named, uid)
	} else {
		e.named[uid] = of
	}
}
