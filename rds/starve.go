package rds

import (
	"time"
)

// Whoever is refused something because the node's memory is spent waits in a
// list of its engine: in starved a socket that could not take what arrived, in
// thirsty one whose send was refused. The memory is shared with the engines of
// other addresses, which have locks of their own and cannot call here, so each
// engine that has somebody in these lists looks at the budget every starveEvery.
//
// Nobody may be about to give anything back on its own: a client that has read
// and released into memory it shares with its daemon rings only if it was asked
// to, and what it released long ago it will not ring for any more. Therefore
// sockets that starve say that they want room (Sink.WantRoom), and the shell is
// asked to collect what all clients of the node have released (Collect): the
// memory this socket lacks may be held by any other.

// starveEvery is how often the budget is looked at for those who wait for it.
const starveEvery = 20 * time.Millisecond

// starve marks the port because cost bytes more would pass the node's memory; it may have to be
// cleared although nobody reads from this socket.
func (s *Socket) starve(now time.Duration, cost int) {
	if s.hunger = cost; s.starved == 0 {
		s.e.starved = append(s.e.starved, s)
		s.starved = len(s.e.starved)
		s.e.hunger(now)
	}
	s.full(now)
}

// parch notes that n bytes could not be accepted for sending because the node's
// memory is spent.
func (s *Socket) parch(n int) {
	if s.thirst = n; s.thirsty == 0 {
		s.e.thirsty = append(s.e.thirsty, s)
		s.thirsty = len(s.e.thirsty)
		s.e.hunger(s.e.now)
	}
}

// hunger asks for what clients have released, and looks again.
func (e *Engine) hunger(now time.Duration) {
	if e.starveTm.t == nil {
		e.collect = true
		e.arm(&e.starveTm, (*starveTicker)(e), now+starveEvery)
	}
}

// Collect reports, once, that memory of the node is waited for. The shell then
// takes what the clients of all its engines have given back (Socket.Freed and
// Socket.ReadAll), whether or not they said so.
func (e *Engine) Collect() bool {
	c := e.collect
	e.collect = false
	return c
}

// fed takes s out of those that starve.
func (s *Socket) fed() {
	if s.starved > 0 {
		s.e.starved = leave(s.e.starved, s.starved, func(o *Socket, at int) { o.starved = at })
		s.starved = 0
	}
}

// quench takes s out of those whose sends lack memory.
func (s *Socket) quench() {
	if s.thirsty > 0 {
		s.e.thirsty = leave(s.e.thirsty, s.thirsty, func(o *Socket, at int) { o.thirsty = at })
		s.thirsty = 0
	}
}

// leave takes the socket at position at, from 1, out of l; the last one moves
// there and is told.
func leave(l []*Socket, at int, moved func(*Socket, int)) []*Socket {
	last := len(l) - 1
	l[at-1] = l[last]
	moved(l[at-1], at)
	l[last] = nil
	return l[:last]
}

// starvedAtOnce bounds how many sockets are looked at in one tick.
const starvedAtOnce = 256

type starveTicker Engine

func (t *starveTicker) tick(now time.Duration) {
	e := (*Engine)(t)
	e.starveTm.t = nil
	n := e.feed(now, starvedAtOnce)
	e.quenchAll(starvedAtOnce)
	switch {
	case n == starvedAtOnce:
		e.arm(&e.starveTm, t, now+time.Millisecond) // the others after those who wait for the lock
	case len(e.starved)+len(e.thirsty) > 0:
		e.collect = true
		e.arm(&e.starveTm, t, now+starveEvery)
	}
}

// feed lets sockets that starve take datagrams again, most of them at a time, and
// reports how many. While little memory is free it is those whose refused datagram
// fits: what a reader that stopped holds may never be given back.
func (e *Engine) feed(now time.Duration, most int) (n int) {
	plenty, room := e.loop.MayGrant(), e.room()
	for ; n < most && len(e.starved) > 0; n++ {
		s := e.starved[0]
		// No more than would fit if each sent again what was refused: the others would only be
		// refused once more.
		if room -= int64(s.hunger); room < 0 && !plenty {
			break
		}
		s.fed()
		s.unmark(now)
		s.relax()
	}
	if n > 0 {
		e.roomAgain()
	}
	return n
}

// quenchAll lets those send for whose refused datagram there is room. It looks
// at most of them, beginning where it ended the last time: those that ask for
// much do not stand before the others.
func (e *Engine) quenchAll(most int) {
	room := e.sendRoom()
	for most = min(most, len(e.thirsty)); most > 0; most-- {
		if e.quenchAt >= len(e.thirsty) {
			e.quenchAt = 0
		}
		s := e.thirsty[e.quenchAt]
		if s.thirst > room {
			e.quenchAt++
			continue
		}
		room -= s.thirst
		s.quench()
		if s.waiting > 0 {
			s.hasSpace()
		}
		s.news(EvWritable)
	}
}
