package datagram

import (
	"context"
	"errors"
	"time"

	"github.com/rdsd/rdsd/conn"
)

var errLeaving = errors.New("the daemon is shutting down")

const (
	quiesceTime = 1500 * time.Millisecond // for links of kernels to be read to their end
	readTime    = 500 * time.Millisecond  // for applications to read what has been placed
	quiesceLook = 2 * time.Millisecond
)

// Quiesce ends the links of kernels while the sockets are still there. A kernel
// has forgotten what our TCP acknowledged: our side is shut, and what it has sent
// is read to its end and placed. What it does not get rid of it keeps for the next
// daemon; nothing listens any more, and nothing is dialled.
//
// Links of rdsds stay until Close. When kernels' are read nothing more is placed: an rdsd keeps
// what it has for the next life, as for ports that are held. What is placed was reported as
// delivered, and goes with the daemon if it is not read.
//
// Its time is its own: one datagram for a node that is gone uses up all that Drain has.
func (a *Host) Quiesce() {
	for _, h := range a.list {
		h.leave()
	}
	end, cancel := context.WithTimeout(context.Background(), quiesceTime)
	awaitAll(end, (*Local).endForeign, a.list)
	cancel()
	for _, h := range a.list {
		e, now := h.Lock()
		e.Leave(now)
		h.Unlock()
	}
	a.ports.freeze() // what is closed from here on is bound again in the next life
	end, cancel = context.WithTimeout(context.Background(), readTime)
	awaitAll(end, (*Local).unread, a.list)
	cancel()
}

// awaitAll looks at all hosts until all are done, or ctx ends; at the end of a daemon's life
// a few milliseconds do not matter.
func awaitAll(ctx context.Context, left func(*Local) int, list []*Local) {
	for {
		n := 0
		for _, h := range list {
			n += left(h)
		}
		if n == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(quiesceLook):
		}
	}
}

// leave ends the listening and the dialling.
func (h *Local) leave() {
	h.mu.Lock()
	l := h.listener
	h.leaving = true
	h.mu.Unlock()
	if l != nil {
		l.Close()
	}
}

// endForeign ends the links to kernels, and to peers that may be some, and counts those that have
// not ended yet. One that was parked, or under way, comes up after others have ended: it is called
// until there is none.
func (h *Local) endForeign() (n int) {
	e, now := h.Lock()
	for _, pe := range e.Peers() {
		if pe.Conn().Kind() == conn.KindRdsd {
			continue
		}
		var lanes []*conn.Lane
		pe.Conn().EachLane(func(p *conn.Lane) { lanes = append(lanes, p) })
		for _, p := range lanes {
			p.Drop(now, errLeaving)
			n += len(h.laneOf(p).links)
		}
	}
	h.Unlock()
	return n
}

// unread counts datagrams that their applications have not read.
func (h *Local) unread() (n int) {
	e, _ := h.Lock()
	for _, s := range e.Sockets() {
		n += s.Info().RecvN
	}
	h.Unlock()
	return n
}
