package rds

import (
	"time"
)

// A socket that meets the end of the node's memory waits in a list of its engine: in
// recvWaiters if it could not take a datagram that arrived, in sendWaiters if its send was
// refused. The memory is shared with the engines of other addresses, which have locks of
// their own and cannot call here, so each engine with a socket in these lists looks at the
// budget every memoryEvery.
//
// Memory may not come back by itself: a client that has released datagrams in the memory it
// shares with its daemon rings only if it was asked to, and it does not ring for those it
// released long ago. Therefore sockets in recvWaiters say that they want room
// (Sink.WantRoom), and the shell is asked to collect the releases of all clients of the
// node (Orders.Collect): the memory this socket lacks may be held by any other. It is asked as well
// while credits are withheld (Peer.MayGrant), which happens before a socket is refused anything.

// memoryEvery is how often the budget is looked at for sockets that wait for it.
const memoryEvery = 20 * time.Millisecond

// awaitRecvMemory marks the port because cost bytes more would pass the node's memory; the port
// may have to be cleared although its own client reads nothing. Of all that is refused meanwhile the
// smallest is waited for: it fits first, and what is larger is only refused once more then.
func (s *Socket) awaitRecvMemory(now time.Duration, cost int) {
	if s.recvWaitAt == 0 {
		s.recvNeeds = cost
		s.e.recvWaiters = append(s.e.recvWaiters, s)
		s.recvWaitAt = len(s.e.recvWaiters)
		s.e.armMemoryTimer(now)
	}
	s.recvNeeds = min(s.recvNeeds, cost)
	s.full(now)
}

// awaitSendMemory notes that n bytes could not be accepted for sending because the node's
// memory is spent. Of all that is refused meanwhile the smallest is waited for, as in awaitRecvMemory.
func (s *Socket) awaitSendMemory(n int) {
	if s.sendWaitAt == 0 {
		s.sendNeeds = n
		s.e.sendWaiters = append(s.e.sendWaiters, s)
		s.sendWaitAt = len(s.e.sendWaiters)
		s.e.armMemoryTimer(s.e.now)
	}
	s.sendNeeds = min(s.sendNeeds, n)
}

// armMemoryTimer asks the shell to collect the releases of clients, and looks at the budget
// again later.
func (e *Engine) armMemoryTimer(now time.Duration) {
	if e.memoryTm.t == nil {
		e.collect = true
		e.arm(&e.memoryTm, (*memoryTicker)(e), now+memoryEvery)
	}
}

// leaveRecvWaiters takes s out of recvWaiters.
func (s *Socket) leaveRecvWaiters() {
	if s.recvWaitAt > 0 {
		s.e.recvWaiters = leave(s.e.recvWaiters, s.recvWaitAt, func(o *Socket, at int) { o.recvWaitAt = at })
		s.recvWaitAt = 0
	}
}

// leaveSendWaiters takes s out of sendWaiters.
func (s *Socket) leaveSendWaiters() {
	if s.sendWaitAt > 0 {
		s.e.sendWaiters = leave(s.e.sendWaiters, s.sendWaitAt, func(o *Socket, at int) { o.sendWaitAt = at })
		s.sendWaitAt = 0
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

// waitersAtOnce bounds how many sockets are looked at in one tick.
const waitersAtOnce = 256

type memoryTicker Engine

func (t *memoryTicker) tick(now time.Duration) {
	e := (*Engine)(t)
	e.memoryTm.t = nil
	e.dropPaid()
	n := e.serveRecvWaiters(now, waitersAtOnce)
	e.serveSendWaiters(waitersAtOnce)
	switch {
	case n == waitersAtOnce:
		e.arm(&e.memoryTm, t, now+time.Millisecond) // the others, after other threads have had the lock
	case len(e.recvWaiters)+len(e.sendWaiters) > 0:
		e.collect = true
		e.arm(&e.memoryTm, t, now+memoryEvery)
	}
}

// serveRecvWaiters lets sockets in recvWaiters take datagrams again, and returns how many. It looks at
// no more than most of them. While little memory is free only those go on whose refused datagram
// fits: memory held by a reader that has stopped may never come back. It begins where it ended the last
// time, so that sockets that need much do not stand before the others, and are not always behind them.
func (e *Engine) serveRecvWaiters(now time.Duration, most int) (n int) {
	plenty := e.mayGrant()
	room, _, _ := e.room(nil, 0)
	for most = min(most, len(e.recvWaiters)); most > 0; most-- {
		if e.recvWaitersNext >= len(e.recvWaiters) {
			e.recvWaitersNext = 0
		}
		s := e.recvWaiters[e.recvWaitersNext]
		// No more than would fit if each sent again what was refused: the others would only be
		// refused once more.
		if int64(s.recvNeeds) > room && !plenty {
			e.recvWaitersNext++
			continue
		}
		room -= int64(s.recvNeeds)
		s.leaveRecvWaiters()
		s.unmark(now)
		s.relax()
		n++
	}
	if n > 0 {
		e.roomAgain()
	}
	return n
}

// serveSendWaiters lets sockets send whose refused datagram has room now. It looks at no
// more than most of them, beginning where it ended the last time, so that sockets that need
// much do not stand before the others.
func (e *Engine) serveSendWaiters(most int) {
	_, room, _ := e.room(nil, 0)
	for most = min(most, len(e.sendWaiters)); most > 0; most-- {
		if e.sendWaitersNext >= len(e.sendWaiters) {
			e.sendWaitersNext = 0
		}
		s := e.sendWaiters[e.sendWaitersNext]
		if s.sendNeeds > room {
			e.sendWaitersNext++
			continue
		}
		room -= s.sendNeeds
		s.leaveSendWaiters()
		if s.waiting > 0 {
			s.hasSpace()
		}
		s.news(EvWritable)
	}
}
