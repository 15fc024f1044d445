package rds

import (
	"net/netip"
	"time"
)

// Two sockets of this address may exchange the datagrams of a flow by memory that they share
// (docs/pairs.md). The engine sees none of these. It sets room aside for what may lie there,
// and hears, behind the event, how many there were: each was accepted and delivered at once.

// PairedUnread is what lies in pairs of a socket and was not read, when somebody looked last.
type PairedUnread struct{ Datagrams, Bytes int }

// Paired is a Sink whose client also reads memory of pairs.
type Paired interface {
	// EachPaired calls f for every flow of which something lies there.
	EachPaired(f func(src netip.AddrPort, u PairedUnread))
}

// eachPaired calls f for what lies in each pair of the socket.
func (s *Socket) eachPaired(f func(src netip.AddrPort, u PairedUnread)) {
	if p, ok := s.sink.(Paired); ok {
		p.EachPaired(f)
	}
}

// pairedListed bounds the datagrams of one pair that EachQueued tells: what they say may be anything. It is
// more than a list takes (service.maxQueueLimit), so that one that lacks something says so.
const pairedListed = 1 << 15

// EachQueued calls f for every datagram that is placed and not read until it returns false, and before them
// for what lies in pairs, as far as figures tell.
func (s *Socket) EachQueued(f func(src netip.AddrPort, bytes int) bool) {
	more := true
	s.eachPaired(func(src netip.AddrPort, u PairedUnread) {
		for n := min(u.Datagrams, pairedListed); n > 0 && more; n-- {
			more = f(src, u.Bytes/u.Datagrams)
		}
	})
	if more {
		s.sink.Each(f)
	}
}

// soft is the soft limit of what the engine itself queues.
func (s *Socket) soft() int { return s.opt.RcvBufBytes - s.aside }

// SetAside takes n bytes more off the receive buffer, for a pair; with a negative n it gives
// them back. It reports false, and does nothing, when that would leave less than half of what is left now,
// or more is queued already than may be afterwards.
func (s *Socket) SetAside(now time.Duration, n int) bool {
	if n > 0 && (s.closed || n > s.soft()/2 || s.queued > s.soft()-n) {
		return false
	}
	s.aside += n
	if n < 0 && !s.closed {
		s.ReadAll(now) // with more room the port may be clear
	}
	return true
}

// PairRoom is how many bytes SetAside may take.
func (s *Socket) PairRoom() int { return s.soft() / 2 }

// PairedSent counts datagrams that this socket has put into a pair.
func (s *Socket) PairedSent(datagrams, bytes uint64) {
	e := s.e
	s.Stats.Accepted += datagrams
	s.Stats.Delivered += datagrams
	e.ctr.SendQueued += datagrams
	e.ctr.CopyFromUser += bytes
	e.ctr.OutcomeDelivered += datagrams
	e.loop.ctr.RecvQueued += datagrams
	e.loop.ctr.RecvBytesAdded += bytes
}

// PairedRead counts datagrams that this socket's client has taken out of a pair.
func (s *Socket) PairedRead(datagrams, bytes uint64) {
	e := s.e
	s.Stats.Received += datagrams
	s.Stats.ReceivedBytes += bytes
	e.ctr.RecvDelivered += datagrams
	e.ctr.CopyToUser += bytes
	e.ctr.RecvBytesFreed += bytes
}

// PairedDropped counts datagrams that were in a pair when its reader let go of it.
func (s *Socket) PairedDropped(datagrams uint64) { s.e.ctr.RecvDropDeadSock += datagrams }

// SetPaired says what lies in the socket's pairs.
func (s *Socket) SetPaired(u PairedUnread) { s.paired = u }
