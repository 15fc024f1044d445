package roce

import (
	"net/netip"
	"time"
)

// Whether bursts to a peer may be cut by the system.
//
// The invariant CRC covers IPv4's identification. When Linux cuts a burst (UDP_SEGMENT) it
// numbers the packets 0, 1, 2 …, and their CRCs are computed for that. A network card that
// cuts by itself may number otherwise, and no plain socket can see it: a packet to ourselves
// does not pass the card. What shows it is the peer, which takes the first packet of each
// burst and no other. So a device watches how its bursts fare: when nearly each of a dozen to a peer
// was answered by a gap or by silence and the peer was heard afterwards, the next ones to it are
// packets sent one by one. (On a net that loses so much bursts are no gain either.) A peer that is not
// heard again says nothing about bursts: one of two networks that is cut silences many queue pairs at
// once, each several times, beside bursts that arrive. Over IPv6 there is no identification.
//
// Each peer is judged by itself, and again after a while: a peer can say what it likes of what has
// arrived, and two addresses are had as easily as one, so what peers say ends bursts to others never.
// With such a card each peer costs the trial once.
//
// That the system refuses a burst is of a route, as by IPsec, or of a moment, and so is judged likewise.

// Bursts to a peer that are judged together, and of them those that must have failed; fewer
// once they did, for each costs a timeout where the card is the reason.
const (
	trialBursts = 16
	trialFailed = 14
	againBursts = 6
	againFailed = 4
)

// restBursts is how long a peer gets no bursts at first; each time twice as long, up to restDoubled
// times.
const (
	restBursts  = time.Minute
	restDoubled = 6
)

// keptWays is how many peers are remembered to which bursts failed and that have no queue pair.
const keptWays = 1024

// way is how bursts to an address fare. Its queue pairs share it.
type way struct {
	addr   netip.Addr
	users  int           // queue pairs
	bursts int           // that were sent in this trial
	gaps   int           // that were closed meanwhile
	failed int           // trials
	until  time.Duration // no bursts before, if one failed
}

// useWay returns the way to addr for one queue pair more.
func (d *Device) useWay(addr netip.Addr) *way {
	w := d.ways[addr]
	switch {
	case w == nil:
		w = &way{addr: addr}
		d.ways[addr] = w
	case w.users == 0:
		d.kept--
	}
	w.users++
	return w
}

// leaveWay ends what useWay began, if it did.
func (q *QP) leaveWay() {
	w, d := q.way, q.dev
	q.way = nil
	if w == nil {
		return
	}
	if w.users--; w.users > 0 {
		return
	}
	if w.failed > 0 && d.kept < keptWays {
		d.kept++ // or whoever connects anew would have another trial each time
		return
	}
	delete(d.ways, w.addr)
}

// forgetTrials lets bursts be tried with all peers.
func (d *Device) forgetTrials() {
	for addr, w := range d.ways {
		w.bursts, w.gaps, w.failed = 0, 0, 0
		if w.users == 0 {
			delete(d.ways, addr)
		}
	}
	d.kept = 0
}

// takesBursts judges the bursts to w, and reports whether the next may be one.
func (d *Device) takesBursts(now time.Duration, w *way) bool {
	if w == nil {
		return true // nothing is sent without a peer
	}
	bursts, failed := trialBursts, trialFailed
	if w.failed > 0 {
		if now < w.until {
			return false
		}
		bursts, failed = againBursts, againFailed
	}
	if w.bursts < bursts {
		return true
	}
	if w.gaps < failed {
		w.bursts, w.gaps = 0, 0
		return true
	}
	w.rest(now)
	d.lost++
	d.lostTo = w.addr
	return false
}

// rest has w get no bursts for a while.
func (w *way) rest(now time.Duration) {
	w.bursts, w.gaps = 0, 0
	w.until = now + restBursts<<min(w.failed, restDoubled)
	w.failed++
}

// Refused says that the system did not take a burst to addr, for being one: addr has none for a while, as if
// they had not arrived there. It reports whether that is new.
func (d *Device) Refused(now time.Duration, addr netip.Addr) bool {
	w := d.ways[plain(addr)]
	if w == nil || w.failed > 0 && now < w.until {
		return false
	}
	w.rest(now)
	return true
}

// burst notes that one leaves.
func (w *way) burst() { w.bursts++ }

// gap notes that n were closed.
func (w *way) gap(n int) {
	if w.bursts > 0 {
		w.gaps += n
	}
}

// LostBursts is how often bursts to a peer were given up for a while, and to which one last.
func (d *Device) LostBursts() (n uint64, last netip.Addr) { return d.lost, d.lostTo }
