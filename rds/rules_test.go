package rds

import (
	"slices"
	"testing"

	"github.com/rdsd/rdsd/conn"
)

// holds looks after every step of a drawn program at what must hold whatever happened:
// whoever waits stands where somebody looks, what is counted is there, and a timer runs
// for everything that no event ends.
func (e *Engine) holds(t testing.TB) {
	for _, pe := range append([]*Peer{e.loop}, e.order...) {
		pe.holds(t)
	}
	for i, s := range e.bound {
		if s.boundAt != i+1 {
			t.Errorf("%v: number %d of the sockets, and thinks itself %d", s.Addr(), i+1, s.boundAt)
		}
		s.holds(t)
	}
	for i, s := range e.recvWaiters {
		if s.recvWaitAt != i+1 || !s.SendersWait() {
			t.Errorf("%v: number %d of those that starve, and thinks itself %d; pressed %v", s.Addr(), i+1, s.recvWaitAt, s.SendersWait())
		}
	}
	for i, s := range e.sendWaiters {
		if s.sendWaitAt != i+1 {
			t.Errorf("%v: number %d of those whose sends lack memory, and thinks itself %d", s.Addr(), i+1, s.sendWaitAt)
		}
	}
	for i, s := range e.monitors {
		if s.monAt != i+1 {
			t.Errorf("%v: number %d of those that watch, and thinks itself %d", s.Addr(), i+1, s.monAt)
		}
	}
	for _, l := range [][]*Socket{e.bound, e.recvWaiters, e.sendWaiters, e.monitors} {
		for _, s := range l {
			if s.closed {
				t.Errorf("%v is closed, and still looked after", s.Addr())
			}
		}
	}
	// Somebody lets paused links go on: a socket that has no room, or a port that is held.
	resumed := len(e.full) == 0 || len(e.held.owner)+len(e.held.bound) > 0
	for _, s := range e.bound {
		resumed = resumed || s.wasFull
	}
	if !resumed {
		t.Errorf("%d peers wait for room, and every socket has some", len(e.full))
	}
	for port := range e.held.owner { // nobody sends there, and looks whether it is held
		if !e.cmap.Congested(port) {
			t.Errorf("port %d is held, and not congested", port)
		}
	}
	named := map[uint32]int{}
	for _, pe := range e.order {
		if pe.origin.named && !pe.answered {
			named[pe.origin.uid]++
		}
		if pe.isFull != slices.Contains(e.full, pe) {
			t.Errorf("%v: waits for room: %v", pe.addr, pe.isFull)
		}
	}
	owed, socks := 0, map[*Socket]bool{}
	for _, pe := range append([]*Peer{e.loop}, e.order...) {
		owed += int(pe.owed)
		pe.flows.each(byPeer, func(f *flow) { socks[f.s] = true })
	}
	for s := range socks { // also closed ones
		owed -= s.undecided + s.waiting
	}
	if owed != 0 {
		t.Errorf("%d datagrams more are counted that peers are to have than sockets have", owed)
	}
	asked := 0
	for _, pe := range e.order {
		asked += int(pe.asked)
	}
	if asked != e.asked {
		t.Errorf("%d answers of peers' readers are due, and %d are counted", asked, e.asked)
	}
	for uid, of := range e.named {
		if of.peers != named[uid] {
			t.Errorf("user %d: %d peers are counted that it named and that never answered, and %d are there", uid, of.peers, named[uid])
		}
		delete(named, uid)
	}
	if len(named) > 0 {
		t.Errorf("peers that users named are not counted: %v", named)
	}
	runs := func(what string, wanted bool, tm *timer) {
		if wanted && tm.t == nil {
			t.Errorf("%s, and no timer runs for it", what)
		}
	}
	runs("sockets lack memory", len(e.recvWaiters)+len(e.sendWaiters) > 0, &e.memoryTm)
	runs("groups of ports became clear", e.groups != 0, &e.groupsTm)
	runs("peers are being told of a change", e.walk.next > 0 || e.walk.again, &e.walk.tm)
}

func (pe *Peer) holds(t testing.TB) {
	blocked, late := 0, 0
	for port, pp := range pe.ports {
		if pp.blocked > 0 {
			blocked++
		}
		if pp.late {
			late++
		}
		if pp.port != port || pp.concerned() == 1 && pp.blocked == 0 && !pp.late {
			t.Errorf("%v: port %d concerns nobody, and is kept", pe.addr, port)
		}
		of := func(what string, l *flowList, by int, is func(f *flow) bool) {
			n := 0
			l.each(by, func(f *flow) {
				if n++; f.pe != pe || f.dst.Port() != port || !f.links[by].on || !is(f) {
					t.Errorf("%v: a flow to %v stands with %s port %d", pe.addr, f.dst, what, port)
				}
			})
			if n != l.n {
				t.Errorf("%v: %d flows are counted that %s port %d, and %d are there", pe.addr, l.n, what, port, n)
			}
		}
		dests := int32(0)
		pp.opened.each(byOpened, func(f *flow) { dests += int32(len(f.dests)) })
		if dests != pp.dests {
			t.Errorf("%v: %d destinations are counted that are open to port %d, and %d are there", pe.addr, pp.dests, port, dests)
		}
		of("opened", &pp.opened, byOpened, func(f *flow) bool { return len(f.dests) > 0 })
		of("awaits", &pp.waiters, byWaiting, func(f *flow) bool { return f.awaitsPort && f.q.head != nil })
		of("was refused", &pp.refused, byRefused, func(f *flow) bool { return f.refused })
	}
	if blocked != pe.blockedPorts || late != len(pe.late) {
		t.Errorf("%v: %d ports are counted that sends were refused for, and %d late; %d and %d are there", pe.addr, pe.blockedPorts, len(pe.late), blocked, late)
	}
	if (late > 0 || pe.allLate) && pe.lateTm.t == nil {
		t.Errorf("%v: %d ports are to be told late, all %v, and no timer runs for it", pe.addr, late, pe.allLate)
	}
	busy, n := 0, 0
	pe.flows.each(byPeer, func(f *flow) {
		if n++; !f.links[byIdle].on {
			busy++
		}
	})
	if busy != pe.busy || n != pe.flows.n {
		t.Errorf("%v: %d flows of which %d are busy are counted, and %d and %d are there", pe.addr, pe.flows.n, pe.busy, n, busy)
	}
}

func (s *Socket) holds(t testing.TB) {
	waiting, held, refused, lined, free := 0, 0, 0, 0, 0
	first := conn.Never
	for dst, f := range s.flows {
		if f.links[byQueued].on != (f.q.head != nil) {
			t.Errorf("%v: something waits for %v %v, and it is listed %v", s.Addr(), dst, f.q.head != nil, f.links[byQueued].on)
		}
		for m := f.q.head; m != nil; m = m.Link() {
			if m.Owner != nil {
				held += m.Datagrams()
				continue
			}
			waiting++
			first = min(first, m.At)
		}
		switch f.fee {
		case within:
			free++
		case unpaid:
			waits := f.out.Messages() == 0 && len(f.dests) == 0 && !f.refused
			for m := f.q.head; m != nil; m = m.Link() {
				waits = waits && m.Owner == nil
			}
			if !waits {
				t.Errorf("%v: the flow to %v has something to do, and nobody pays for it", s.Addr(), dst)
			}
		}
		if f.refused {
			refused++
		}
		if f.links[byLined].on {
			lined++
		}
		if f.q.head != nil && f.awaitsPort == f.links[byLined].on {
			t.Errorf("%v: what waits for %v is lined up %v, and awaits its port %v", s.Addr(), dst, f.links[byLined].on, f.awaitsPort)
		}
		if !f.rests() && f.links[byIdle].on && f.out.Messages() == 0 {
			t.Errorf("%v: the flow to %v has something to do, and is said to be idle", s.Addr(), dst)
		}
		if f.rests() && !f.links[byIdle].on {
			t.Errorf("%v: the flow to %v rests, and is kept for ever", s.Addr(), dst)
		}
	}
	if waiting != s.waiting || held != s.held || refused != s.refused || lined != s.lined.n || len(s.batches)-len(s.batchFree) != waiting {
		t.Errorf("%v: counted are %d that wait, with %d batches, %d held, %d flows refused and %d lined up; there are %d, %d, %d and %d",
			s.Addr(), s.waiting, len(s.batches)-len(s.batchFree), s.held, s.refused, s.lined.n, waiting, held, refused, lined)
	}
	if free != s.flowsFree || free > freeFlows {
		t.Errorf("%v: %d flows are counted that cost nothing, and %d are there", s.Addr(), s.flowsFree, free)
	}
	if first != conn.Never && (s.tm.t == nil || s.tm.at > max(first, s.lookAt)) {
		t.Errorf("%v: a send waits until %v, and no timer runs for that: %v at %v", s.Addr(), first, s.tm.t != nil, s.tm.at)
	}
	undecided := 0
	flushes, before := 0, uint32(noEpoch)
	for at := s.firstEpoch; at != noEpoch; at = s.epochs[at].next {
		ep := s.epochs[at]
		undecided += ep.n
		for range ep.flushes {
			if flushes < len(s.flushes) && s.flushes[flushes].at != at {
				t.Errorf("%v: flush %d waits for another epoch than %d", s.Addr(), s.flushes[flushes].id, at)
			}
			flushes++
		}
		if last := at == s.lastEpoch; ep.prev != before || last != (ep.next == noEpoch) || !last && ep.n == 0 || last && ep.flushes > 0 {
			t.Errorf("%v: epoch %d is %+v behind %d; the last is %d", s.Addr(), at, ep, before, s.lastEpoch)
		}
		before = at
	}
	if flushes != len(s.flushes) {
		t.Errorf("%v: %d flushes wait, %d are counted", s.Addr(), len(s.flushes), flushes)
	}
	if undecided != s.undecided || s.used < 0 || s.mem < 0 {
		t.Errorf("%v: %d datagrams are undecided, %d by what flushes wait for; %d bytes under way, %d of memory", s.Addr(), s.undecided, undecided, s.used, s.mem)
	}
	if s.spaceListed { // the end of a step looks at them all
		t.Errorf("%v: its waiting sends were not looked at in this step", s.Addr())
	}
}
