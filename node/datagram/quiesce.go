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
	awaitAll(end, func(h *Local) bool { return h.foreign() == 0 }, a.list)
	cancel()
	for _, h := range a.list {
		e, now := h.Lock()
		e.Leave(now)
		h.Unlock()
	}
	a.ports.freeze() // what is closed from here on is bound again in the next life
	end, cancel = context.WithTimeout(context.Background(), readTime)
	awaitAll(end, func(h *Local) bool { return h.unread() == 0 }, a.list)
	cancel()
}

// awaitAll looks until all hosts are done, or ctx ends; at the end of a daemon's life
// a few milliseconds do not matter.
func awaitAll(ctx context.Context, done func(*Local) bool, list []*Local) {
	for _, h := range list {
		for !done(h) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(quiesceLook):
			}
		}
	}
}

// leave ends the listening and the links to kernels, and to peers that may be
// some.
func (h *Local) leave() {
	h.mu.Lock()
	l := h.listener
	h.mu.Unlock()
	if l != nil {
		l.Close()
	}
	e, now := h.Lock()
	h.leaving = true
	for _, pe := range e.Peers() {
		if pe.Conn().Kind() == conn.KindRdsd {
			continue
		}
		var drop []*conn.Lane
		pe.Conn().EachLane(func(p *conn.Lane) { drop = append(drop, p) })
		for _, p := range drop {
			p.Drop(now, errLeaving)
		}
	}
	h.Unlock()
}

// foreign counts links to peers that are no rdsd.
func (h *Local) foreign() (n int) {
	e, _ := h.Lock()
	for _, pe := range e.Peers() {
		if pe.Conn().Kind() != conn.KindRdsd {
			pe.Conn().EachLane(func(p *conn.Lane) { n += len(h.laneOf(p).links) })
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
