package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Handshake. Every new link begins with a handshake ping from both sides (port 1 to port
// 0), which kernels answer with a handshake pong whether or not they keep several lanes.
// NPATHS is 1 until the peer has shown that it can keep lanes apart; Hello stands behind
// it, where every kernel stops reading.
//
//   - An answer, or a ping, with Hello: the peer is an rdsd. Nothing of ours
//     appears on a connection before that.
//   - An answer, or a ping, without Hello: the peer is a kernel; with SPORT_IDX one that
//     keeps lanes apart.
//   - No answer in ProbeTimeout although something else came: a kernel with its pings switched off,
//     where kernels are allowed (mayTable). When nothing came at all the peer may be an rdsd that
//     is stopped: taken for a kernel, the messages that its TCP acknowledges would be reported as
//     delivered. The link is given up and another tried.
//
// An rdsd's first frame on a link is a handshake. Anything else shows that the
// peer is no rdsd any more.
//
// Between two rdsd the handshake stands outside the sequence (sequence 0), so
// that it can go before retransmissions, and only the answer's ack is
// meaningful: the peer has seen our incarnation by then. Datagrams wait for the
// answer. To a peer of unknown kind the ping takes a sequence, unflagged, which
// also tells a kernel that outlived our restart where our numbers begin;
// without that our first retransmission would be below what it expects and
// dropped as old.

var (
	errPeerChanged   = errors.New("the peer changed between kernel and rdsd")
	errPeerRestarted = errors.New("the peer restarted")
	errNoKernel      = errors.New("the peer is a kernel, and kernel peers are not allowed at this address")
	errWrongLane     = errors.New("a link of another lane")
	errAddressLost   = errors.New("our address was taken from this node")
	errNoAnswer      = errors.New("the peer did not answer the handshake")
)

// probe queues our handshake ping, or on further lanes of a kernel a message that it
// ignores and whose arrival TCP confirms.
func (p *Lane) probe(now time.Duration) {
	p.probed, p.probedAt = true, now
	m := p.c.com.NewMsg()
	m.Kind = MsgProbe
	if p.c.kind.kernel() && p.idx > 0 {
		m.Kind = MsgNull
	}
	p.control.push(m)
	p.c.rearm(now + p.c.cfg.ProbeTimeout)
}

// handshake fills in a handshake message when it is sent and returns its
// extensions.
func (p *Lane) handshake(m *Msg) [wire.ExtLen]byte {
	c := p.c
	x := wire.Handshake{NPaths: 1}
	switch {
	case c.kind == KindKernel:
		// NPATHS and Hello would fill the space: behind SPORT_IDX there is no room for a Hello,
		// and a kernel that has shown itself needs none.
		x.NPaths, x.SportIdx = uint16(c.kernelLanes()), c.cfg.Lanes > 1
	// The peer has shown that it is a kernel without lanes: it gets NPATHS 1.
	case c.kind == KindKernelLegacy && m.Kind == MsgAnswer:
	default:
		x.Hello = wire.Hello{Version: wire.HelloVersion, Lanes: uint8(c.cfg.Lanes), CreditLog2: c.cfg.CreditLog2, Incarnation: c.inc}
		if c.cfg.Trains {
			x.Hello.Caps |= wire.CapTrains
		}
	}
	c.told = x.NPaths
	m.SPort, m.DPort = wire.PortProbe, wire.PortPing
	if m.Kind == MsgAnswer {
		m.SPort, m.DPort = wire.PortPing, wire.PortProbe
	}
	c.ctr.SendPong++
	return x.Encode()
}

// onHandshake takes the peer's handshake ping or answer.
func (p *Lane) onHandshake(now time.Duration, h *wire.Header, f *transport.Frame, reply bool) error {
	c := p.c
	x := wire.ParseHandshake(&h.Ext)
	var err error
	if x.Hello.Version != 0 {
		err = p.onHello(now, &x)
	} else {
		err = p.onKernel(now, &x, reply)
	}
	// Links that waited until the peer is known (mustWait) are read on.
	c.EachLane((*Lane).Resume)
	if err != nil {
		return err
	}
	if !reply {
		c.ctr.RecvPing++
		// One answer serves all pings that came before it leaves. An rdsd has no use for a link
		// without one, whatever becomes of plain pings.
		if !p.answer && (c.cfg.Ping || c.kind == KindRdsd) {
			p.answer = true
			m := c.com.NewMsg()
			m.Kind = MsgAnswer
			p.control.push(m)
		}
		p.kick()
		return nil
	}
	if c.kind != KindRdsd {
		p.onAnswer(now)
	} else if p.probed && !p.ready && p.state == Up {
		c.measured(now - p.probedAt)
		// This is the first acknowledgement of a link that counts: the peer has seen our
		// incarnation by now, so it is about this one. It takes the messages that arrived on
		// the former link out of retrans, before anything is sent again.
		if err := p.ack(now, h.Ack); err != nil {
			return err
		}
		p.settleCancelled(now, f.Payload)
		p.become(now)
	}
	return nil
}

func (p *Lane) onHello(now time.Duration, x *wire.Handshake) error {
	c := p.c
	// Another sort of peer at the same address: its numbers and ours mean nothing to each
	// other.
	if c.kind.kernel() {
		return c.turned(now)
	}
	if c.peerInc != 0 && c.peerInc != x.Hello.Incarnation {
		// The messages that wait for this peer were sorted again just now, for another
		// incarnation of it. A peer that makes us do that all the time is not let in.
		if now < c.restartAt {
			return errRestarts
		}
		c.ctr.PeerRestarted++
		c.overtaken(now, p)
		c.restart(now, p, WhyPeerRestarted)
		if p.ready {
			// A new incarnation begins with new links. On this one, whose handshake is
			// over, pending messages would wait for ever.
			c.peerInc = x.Hello.Incarnation
			return errPeerRestarted
		}
	}
	if c.kind == KindUnknown {
		// The map we have is of a kernel, or of somebody who had the address and did not show
		// what it was: an rdsd sends its own behind its Hello, and none when it is empty.
		c.owner.Told(now, ToldMap, noCongestion[:])
	}
	c.kind, c.peerInc = KindRdsd, x.Hello.Incarnation
	lanes, trains := min(c.cfg.Lanes, int(x.Hello.Lanes)), c.cfg.Trains && x.Hello.Caps&wire.CapTrains != 0
	if c.nlanes != 0 && (c.nlanes != lanes || c.trains != trains) {
		// Only a new incarnation may change its mind; restart has set nlanes to 0.
		return c.turned(now)
	}
	c.nlanes, c.trains = lanes, trains
	// We did not know how many lanes the peer wants when this one was connected, or who it is (Accept).
	if p.idx >= lanes {
		if !c.active {
			c.ctr.AcceptRefused++
		}
		return errWrongLane
	}
	// Once in a link: another Hello on it renews nothing, or the peer would hand out
	// credits twice.
	if p.window == 0 {
		p.window = 1 << x.Hello.CreditLog2
		p.credits = p.window
	}
	return nil
}

// kernelLanes returns how many lanes to agree on with a kernel: 1, 2, 4 or 8. A kernel
// connects lane i from a port that is i mod 8 and accepts by the port modulo the number of
// lanes; only for these numbers is that the same.
func (c *Conn) kernelLanes() int { return 1 << (bits.Len(uint(c.cfg.Lanes)) - 1) }

func (p *Lane) onKernel(now time.Duration, x *wire.Handshake, reply bool) error {
	c := p.c
	// See onHello.
	if c.kind == KindRdsd {
		return c.turned(now)
	}
	if !c.may().place {
		return errNoKernel
	}
	if c.kind == KindKernel && !x.SportIdx {
		// An older kernel is there by now, with one lane: each handshake of a newer one has SPORT_IDX. This
		// link ends with the others and is read on (legacy), and what was taken of it is not taken again.
		e := uint64(0)
		if r := p.rx(); r.readSerial == p.serial {
			e = r.expected
		}
		if err := c.turned(now); err != errPeerChanged {
			return err
		}
		p.expected, p.readSerial = e, p.serial
	}
	if x.GenNum != 0 {
		// It has booted again: messages that its former incarnation acknowledged, and did
		// not read, are gone (net/rds/recv.c, rds_recv_hs_exthdrs).
		if c.peerGen != 0 && c.peerGen != x.GenNum {
			if now < c.restartAt {
				return errRestarts
			}
			c.ctr.PeerRestarted++
			c.restart(now, nil, WhyPeerRestarted)
			// What it has taken of this link, and of others, has our former numbers. A message with a new one
			// that is lost with its link would be sent again below these, and dropped as old: so the
			// next links begin with an unflagged one that it confirms.
			c.EachLane(func(q *Lane) { q.synced = false })
			c.peerGen = x.GenNum
			if c.kind == KindKernel && !reply {
				p.becomeLane0() // as below: what has come on this link, and is read yet, counts there
			}
			return nil
		}
		c.peerGen = x.GenNum
	}
	if x.SportIdx && c.kind != KindKernel {
		c.kind = KindKernel
	}
	p.tellLanes()
	if c.kind != KindKernel && !p.legacy(now) {
		return errWrongLane
	}
	if c.kind == KindKernel && !reply && p.idx != 0 {
		// A kernel pings on its lane 0 only: it took this connection for it.
		q := c.lane(0)
		// Lane 0 has a history with the kernel, so this link is lane 0's too: its frames
		// count there, and it is given up.
		if q.expected > 0 {
			p.seqOwner = q
			return errWrongLane
		}
		p.becomeLane0()
		if q.state == Up || q.state == Disconnecting {
			q.seqOwner = p // its link was made for lane 0
			q.Drop(now, errWrongLane)
		}
	}
	n := 1
	if c.kind == KindKernel {
		n = max(1, min(c.kernelLanes(), int(x.NPaths)))
	}
	// The lanes of a kernel are never reduced.
	if c.nlanes == 0 {
		c.nlanes = n
		if p.ready { // it restarted behind a link that is in use
			c.spread(now)
		}
	} else if n > c.nlanes {
		c.grow = max(c.grow, n)
		c.tryGrow(now)
	}
	return nil
}

// tryGrow takes up more lanes of a kernel once everything sent on the few is acknowledged:
// a flow that changes its lane must not overtake itself (D2). Messages accepted meanwhile
// wait, so it is called wherever the last message that was under way may have ended: by an
// acknowledgement, on the next link, or because it was cancelled or given up.
func (c *Conn) tryGrow(now time.Duration) {
	if c.grow == 0 {
		return
	}
	busy := false
	c.EachLane(func(p *Lane) {
		// A message that was given up may be on its way still, so the bytes of a link count too, up to
		// the last message: a local port that flips has a map on its way at any time.
		busy = busy || p.queue.n+p.inwrite.n+p.unacked.n+p.retrans.n > 0 || p.state == Disconnecting && p.txAcked < p.msgOff
		if p.awaitsTCP() {
			busy = true
			p.pollSoon(now)
		}
	})
	if busy {
		return
	}
	c.nlanes, c.grow = c.grow, 0
	c.forgetFlows()
	c.openLanes(now)
	c.spread(now)
}

// openLanes connects all lanes of a kernel, because it may send on any of them.
func (c *Conn) openLanes(now time.Duration) {
	if c.kind != KindKernel || !c.active {
		return
	}
	for i := 1; i < wire.MaxLanes; i++ {
		// A lane beyond the number the kernel has been told would be mapped to another of its
		// lanes, unless the kernel itself has asked for it.
		if (i >= c.nlanes || i >= c.known) && c.asked&(1<<i) == 0 {
			continue
		}
		switch q := c.lane(i); {
		case q.state == Down:
			q.event(now, EvWant)
		case q.state == Connecting && q.dialled == notDialled && c.lane(0).leads():
			q.since = now
			q.dial(now)
		}
	}
}

// become makes the link usable. Unacknowledged messages go first.
func (p *Lane) become(now time.Duration) {
	c := p.c
	p.ready, p.synced, p.wasUp = true, true, true
	if p.tryErr { // a reader of the list of peers would take it for the link's
		p.lastErr, p.tryErr = nil, false
	}
	// Messages that waited in one line, because no lane could be used, are given to their
	// lanes.
	c.tryGrow(now)
	c.spread(now)
	if p.idx == 0 {
		c.openLanes(now)
	}
	// The peer answers: the other lanes need not sit out their backoff.
	c.hurry(now)
	p.kick()
}

// settleCancelled decides the messages that were cancelled on an earlier link. The payload
// of the answer is the last sequence that the peer has received; messages above it never
// arrived. Messages up to it are placed or refused, and the acknowledgement or the refusal
// is still to come: they stay, and are sent again like the rest, as duplicates.
func (p *Lane) settleCancelled(now time.Duration, payload []byte) {
	p.sweepAt = Never
	p.through = math.MaxUint64
	if len(payload) == receivedLen {
		p.through = binary.BigEndian.Uint64(payload)
	}
	if p.cancelled == 0 {
		return
	}
	p.retrans.each(func(m *Msg) bool {
		if m.cancelled && (m.seq > p.through || len(payload) != receivedLen) {
			p.settled(now, m)
			if len(payload) == receivedLen {
				p.c.ctr.SendCancelled += uint64(m.Datagrams())
				p.c.done(p, m, Cancelled, WhyApp)
			} else {
				p.c.done(p, m, Unknown, WhyCancelledSent)
			}
			return true
		}
		return false
	})
}

// receivedLen is the payload of an answer between two rdsd: the highest
// sequence received, 8 bytes. The header's ack may be lower, for refusals are
// acknowledged only after they have been sent on the same link.
const receivedLen = 8

// whyNoAnswer says what is known of a link without an answer: whoever has to find out why
// wants to know which way nothing went.
func (p *Lane) whyNoAnswer() error {
	switch {
	case p.txOff == 0:
		return fmt.Errorf("%w: nothing was sent to it", errNoAnswer)
	case p.writing:
		return fmt.Errorf("%w: what was sent to it has not left", errNoAnswer)
	case p.mute:
		return fmt.Errorf("%w: TCP does not say that it has what was sent to it", errNoAnswer)
	case p.heard:
		return fmt.Errorf("%w: something else came from it", errNoAnswer)
	}
	return fmt.Errorf("%w: nothing came from it", errNoAnswer)
}

// noAnswer ends the wait for a handshake when ProbeTimeout has passed. A kernel need not answer, but has to have
// our ping, as with an answer (onAnswer): that is waited for once more as long.
func (p *Lane) noAnswer(now time.Duration) {
	c := p.c
	if p.mute {
		p.Drop(now, p.whyNoAnswer())
		return
	}
	c.ctr.HandshakeTimeout++
	switch {
	case !c.may().mute || c.kind == KindUnknown && !p.heard:
		// Nothing came at all, so it may be an rdsd that is stopped. Taken for a kernel, what
		// its TCP acknowledges would be reported as delivered.
		p.Drop(now, p.whyNoAnswer())
	default:
		if c.kind != KindKernel && !p.legacy(now) {
			p.Drop(now, errWrongLane)
			return
		}
		c.nlanes = max(c.nlanes, 1)
		if p.mute, p.probedAt = true, now; p.pings.arrived == 0 {
			p.emit(ActPoll)
		}
		p.believe(now)
	}
}

// turned is changed as often as a peer may have it: like another incarnation (onHello), each
// change sorts again all that waits for the peer.
func (c *Conn) turned(now time.Duration) error {
	if now < c.restartAt {
		return errRestarts
	}
	c.changed(now)
	return errPeerChanged
}

// changed starts over with a peer that turned into another sort of peer:
// everything it may have is undecidable, everything else waits for the new one.
func (c *Conn) changed(now time.Duration) {
	c.ctr.PeerKindChanged++
	c.restart(now, nil, WhyPeerChanged)
	c.kind, c.peerInc, c.peerGen = KindUnknown, 0, 0
	c.inc = 0
	for c.inc == 0 {
		c.inc = c.com.Rng.Uint64()
	}
	c.EachLane(func(p *Lane) { p.synced = false; p.Drop(now, errPeerChanged) })
}

// AddressLost ends our incarnation towards the peer because our address has left this
// machine. Another machine that has the address meanwhile starts new sequences, and when
// the address comes back our old numbers mean something else to the peer. The outcome of
// messages that were sent and not acknowledged is unknown; the others wait for the address
// and get new numbers, which a kernel learns from an unflagged handshake and an rdsd from a
// new incarnation.
//
// The receive side stays: a kernel goes on with its numbers, and a message that it sends
// again, flagged, and that we had is still a duplicate.
func (c *Conn) AddressLost(now time.Duration) {
	var expected [wire.MaxLanes]uint64
	c.EachLane(func(p *Lane) {
		expected[p.idx] = p.expected
		p.Drop(now, errAddressLost)
	})
	c.restart(now, nil, WhyAddressLost)
	c.inc = 0
	for c.inc == 0 {
		c.inc = c.com.Rng.Uint64()
	}
	c.EachLane(func(p *Lane) {
		p.synced = false
		if c.kind != KindRdsd {
			p.expected = expected[p.idx]
		}
	})
}

// restart forgets the peer's protocol state (D11): messages that were sent and not
// acknowledged become unknown, those that were never sent or certainly refused stay queued,
// and receiving starts afresh. Links other than keep's are dropped: they belong to the
// former incarnation.
func (c *Conn) restart(now time.Duration, keep *Lane, why Why) {
	c.EachLane(func(p *Lane) {
		p.refuses.clear()
		// It is unknown whether the former incarnation received these, and sending them to the
		// new one could deliver them twice. Messages that were never sent or certainly refused
		// go to the new one below.
		for _, l := range []*list{&p.retrans, &p.unacked} {
			l.each(func(m *Msg) bool {
				if m.Owner == nil {
					p.answered(m)
					c.com.FreeMsg(m)
				} else {
					p.c.done(p, m, Unknown, why)
				}
				return true
			})
		}
		p.search, p.lateAck, p.ackSeen = nil, 0, 0
		if p.writing {
			// The shell is reading the payloads: Wrote ends them.
			p.forget = why
		}
		p.nextSeq, p.expected = 1, 0
		p.refusing, p.refused, p.refusals, p.unsentRef = nil, nil, 0, 0
		p.sweepAt = Never
		// Refusals name sequences of the former incarnation, and pongs answer it.
		p.control.each(func(m *Msg) bool {
			if m.Kind == MsgRefuse || m.Kind == MsgPong {
				if m.Kind == MsgPong {
					p.pongs--
				}
				c.com.FreeMsg(m)
				return true
			}
			return false
		})
		// A link of the former incarnation could still bring its bytes into the new one.
		if p != keep {
			p.Drop(now, errPeerRestarted)
		}
	})
	c.forgotRefusals()
	if c.kind == KindRdsd {
		// A new incarnation of an rdsd does not send an empty map (fillCongestion): ports of
		// the former one would stay congested for ever.
		c.owner.Told(now, ToldMap, noCongestion[:])
	}
	if n := c.gather(); n > heldFew {
		c.restartAt = now + time.Duration(n)*moveTime
	}
	c.nlanes, c.trains, c.grow, c.known = 0, false, 0, 0
	c.forgetFlows()
	if c.pending.head != nil {
		c.lane(0).want(now)
	}
}

// overtaken gives up the links of an rdsd that were made before than's and have not begun:
// those that wait for their turn, and dials whose end the shell has not told. Such a link may
// bring a Hello of the incarnation that than's has shown to be over, which would be taken for
// the next one: our numbers would begin anew under a peer that keeps those it has. The peer
// sends again what it sent there.
func (c *Conn) overtaken(now time.Duration, than *Lane) {
	c.EachLane(func(p *Lane) {
		p.waiting = slices.DeleteFunc(p.waiting, func(w waiting) bool {
			older := w.serial < than.serial
			if older {
				c.order(Action{Kind: ActAbort, Lane: p, Attempt: w.attempt})
			}
			return older
		})
		if c.active && p.state == Connecting {
			p.blame(now, errPeerRestarted)
			p.tryErr = true
			p.event(now, EvFail)
		}
	})
}

var noCongestion [8192]byte

// onControl takes a control message of another rdsd.
func (p *Lane) onControl(now time.Duration, h *wire.Header, f *transport.Frame) error {
	switch h.Ext[0] {
	case wire.CtlCongDelta:
		p.c.ctr.CongUpdateReceived++
		return p.c.owner.Told(now, ToldPorts, f.Payload)
	case wire.CtlRefuse:
		defer p.searched()
		return wire.ParseRefusals(f.Payload, func(r wire.Refusal) error { return p.onRefusal(now, r) })
	case wire.CtlAskPorts:
		return p.c.owner.Told(now, ToldAsk, f.Payload)
	case wire.CtlTellPort:
		return p.c.owner.Told(now, ToldReader, f.Payload)
	}
	return nil // a control message of a later version: skip it
}
