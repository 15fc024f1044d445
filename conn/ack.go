package conn

import (
	"errors"
	"time"

	"github.com/rdsd/rdsd/wire"
)

var errAckAhead = errors.New("it acknowledges or refuses what was never sent")

// ackable is the highest sequence of which we can say that it and everything
// before it is placed, or refused and the refusal sent on this link (D5).
func (p *Lane) ackable() uint64 {
	a := max(p.expected, 1) - 1
	// The sender takes everything up to an acknowledgement for delivered, so none may pass a
	// refused sequence before its refusal is on the way, on the same link and before it.
	if p.unsentRef != 0 && p.unsentRef <= a {
		a = p.unsentRef - 1
	}
	return a
}

// Received is the highest sequence received in order, 0 when nothing was.
func (p *Lane) Received() uint64 {
	return max(p.expected, 1) - 1
}

// ack takes the peer's acknowledgement of everything up to and including a.
func (p *Lane) ack(now time.Duration, a uint64) error {
	// A message that was never sent cannot have arrived (docs/protocol.md,
	// "Acknowledgement"): the peer speaks of another stream, and everything it says about
	// ours is in doubt.
	if a >= p.nextSeq {
		return errAckAhead
	}
	if p.search != nil && len(p.search.late) > 0 {
		// Refusals wait for Wrote, and this acknowledgement may cover the messages they
		// refuse.
		p.lateAck = max(p.lateAck, a)
		return nil
	}
	// retrans too: after the loss of a link the handshake's acknowledgement spares what
	// arrived on it from being sent again.
	for _, l := range [...]*list{&p.retrans, &p.unacked} {
		refusal := false
		for l.head != nil && l.head.seq <= a {
			m := l.head
			l.remove(m)
			if l == &p.retrans {
				p.c.ctr.SendDropAcked += uint64(m.Datagrams())
				refusal = refusal || m.Kind == MsgRefuse
			}
			if len(p.holds) > 0 {
				p.settled(now, m)
			}
			p.c.done(p, m, Delivered, WhyNone)
		}
		if refusal {
			// The peer has it already, so that it holds no acknowledgement of ours up.
			p.nextRefusal()
		}
	}
	// The peer was quicker than our write call, whose buffers these still are: Wrote takes it.
	if p.inwrite.head != nil && p.inwrite.head.seq <= a {
		p.lateAck = max(p.lateAck, a)
	}
	return nil
}

// Acked tells how many bytes of the link of attempt the peer's TCP has acknowledged. Kernel
// peers acknowledge no other way (net/rds/tcp_send.c, rds_tcp_is_acked).
func (p *Lane) Acked(now time.Duration, attempt uint64, bytes uint64) {
	if attempt != p.attempt || p.state != Up {
		return
	}
	was := p.txAcked
	p.ackTCP(now, bytes)
	p.believe(now)
	if p.txAcked > was {
		p.vain = 0
	} else {
		p.vain = min(p.vain+1, vainMost)
	}
	// Nothing is left to ask TCP about; the next batch begins again (Wrote).
	p.pollAt = Never
	if p.awaitsTCP() {
		p.pollSoon(now)
	}
}

// awaitsTCP reports whether the acknowledgement of the peer's TCP decides something: what a
// message that is not decided becomes, or whether there may be more lanes (tryGrow).
func (p *Lane) awaitsTCP() bool {
	return p.state == Up && (p.unacked.head != nil || p.inwrite.head != nil || p.c.grow != 0 && p.txAcked < p.msgOff)
}

// pollSoon has the shell ask for it, unless that is due already.
func (p *Lane) pollSoon(now time.Duration) {
	if p.pollAt == Never {
		p.pollAt = now + p.pollEvery()
		p.c.rearm(p.pollAt)
	}
}

// pollEvery grows by half of AckPoll with each answer that told nothing new: an outcome is known later
// by a part of the time it took, and a peer that acknowledges nothing costs a few questions a second.
func (p *Lane) pollEvery() time.Duration { return p.c.cfg.AckPoll * time.Duration(2+p.vain) / 2 }

// vainMost has TCP asked at least in 64 times AckPoll.
const vainMost = 126

func (p *Lane) ackTCP(now time.Duration, bytes uint64) {
	// An rdsd acknowledges by itself; TCP's acknowledgement also covers bytes that lie
	// unread in the peer's socket and are lost with it. What waits for Wrote to be taken back
	// (requeue) was sent on a former link, whose offsets say nothing about this one.
	if p.c.kind == KindRdsd || bytes > p.txOff || p.requeue {
		return
	}
	// Where a newer kernel was may be an rdsd that drops what comes before a Hello. A kernel sends a map
	// for each lane that is connected anew, on that or on another: until one came on a link that is up,
	// an acknowledgement of TCP does not mean that the kernel is there.
	if p.c.kind == KindKernel && !p.heardOf() {
		return
	}
	// A legacy kernel that still believes the former link up closes a new one with bytes in
	// it that TCP has taken and nobody has read (rds_tcp_accept_one). Its congestion map,
	// the first frame of every link, shows that it has a place for this one; until then an
	// acknowledgement of TCP does not mean that the kernel has the message. If this process stood
	// still, what the kernel said meanwhile is read first.
	if p.c.kind == KindKernelLegacy && !p.heard && (now-p.upAt < p.c.cfg.ProbeTimeout || now < p.c.grace) {
		return
	}
	p.txAcked = max(p.txAcked, bytes)
	// Far fewer than 2^31 bytes are unacknowledged, so the difference is right modulo 2^32.
	for p.unacked.head != nil && int32(p.unacked.head.end-uint32(bytes)) <= 0 {
		m := p.unacked.pop()
		// A kernel does not answer on its further lanes: the arrival of the null message
		// opens the lane.
		if m.Kind == MsgNull && p.state == Up && p.probed && !p.ready {
			p.become(now)
		}
		if m.Kind == MsgProbe {
			p.pings.arrived++
		}
		p.c.done(p, m, Delivered, WhyNone)
	}
	p.c.tryGrow(now)
}

// heardOf reports whether a frame has come on the link, or on another of the peer that is up.
func (p *Lane) heardOf() (yes bool) {
	p.c.EachLane(func(x *Lane) { yes = yes || x.heard && (x == p || x.state == Up) })
	return yes
}

// creditFloor is how many credits a peer keeps although memory is short: enough for the largest frame. Others
// may hold that memory for as long as they like, and each frame that comes is still judged by itself.
const creditFloor = wire.MaxDatagram / creditUnit

// grantable is how many of the credits that are owed may be given back now.
func (p *Lane) grantable() int {
	switch {
	case p.refusalsWait():
		return 0
	case p.c.owner.MayGrant():
		return p.owed
	}
	return max(0, min(p.owed, creditFloor-p.granted))
}

// creditsToGrant is how many credits to put into the next frame.
func (p *Lane) creditsToGrant(now time.Duration) uint8 {
	if p.owed <= 0 {
		return 0
	}
	n := p.grantable()
	if n < p.owed {
		p.c.ctr.CreditWithheld++
		// No call announces that memory is free again, so look a little later.
		p.c.rearm(now + p.c.cfg.AckDelay*4)
	}
	return uint8(min(n, 255))
}
