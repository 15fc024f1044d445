package conn

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// ErrPause: the receiver of this datagram is full and the peer is a kernel,
// which cannot be refused a datagram. The frame was not taken: offer it again
// after ActResume. The whole link pauses meanwhile (D9).
var ErrPause = transport.ErrPause

var (
	errChecksum  = errors.New("wrong header checksum")
	errCredits   = errors.New("more frames than credits")
	errOldSeq    = errors.New("an old sequence that is no retransmission")
	errTooLong   = errors.New("a datagram of more than 1 MiB")
	errMapLength = errors.New("a congestion map that is not 8192 bytes long")
	errTrain     = errors.New("a train, which it was not told we take")
	errRefusals  = errors.New("it does not acknowledge what was refused, and sends on")
	errGone      = errors.New("the link is being dropped")
)

// Receive takes one frame of link gen. ErrPause asks for it again later. Any
// other error has already dropped the path: read and throw away what still
// comes. Call ReceivedAll after the last frame of a read.
func (p *Path) Receive(now time.Duration, gen uint64, f *transport.Frame) error {
	if gen != p.gen || p.state != Up {
		if gen != p.gen || p.state != Disconnecting || p.c.kind == KindRdsd {
			return errGone
		}
		// A kernel forgot these bytes when TCP acknowledged them: take them
		// even though we are closing.
	}
	err := p.receive(now, f)
	if err == nil || err == ErrPause {
		return err
	}
	p.c.ctr.ProtocolError++
	err = fmt.Errorf("protocol error: %w", err)
	p.Drop(now, err)
	return err
}

func (p *Path) receive(now time.Duration, f *transport.Frame) error {
	c := p.c
	var h wire.Header
	if err := h.Parse(f.Raw); err != nil {
		return err
	}
	rdsd := c.kind == KindRdsd
	if rdsd && h.Csum != 0 && !wire.ChecksumOK(f.Raw) {
		c.ctr.RecvDropBadChecksum++
		return errChecksum
	}
	if h.Len > wire.MaxDatagram {
		return errTooLong
	}
	kind := h.Kind(rdsd)
	if !p.heard {
		p.heard = true
		if rdsd && kind != wire.KindProbe && kind != wire.KindProbeReply {
			c.changed(now)
			return errPeerChanged
		}
	}
	p.lastRx = now
	if p.asked != 0 {
		c.rtt = now - p.asked
		c.owner.MeasuredRTT(c.rtt)
		p.asked = 0
		// The next call is for the end of the silence that this frame has ended.
		c.rearm(p.heartbeatAt())
	}
	if !c.may().takes(kind) {
		return errUnidentified
	}
	if !rdsd && kind != KindCongMapFrame && p.mustWait() && !hello(&h, kind) {
		p.paused = true
		return ErrPause
	}
	switch kind {
	case KindCongMapFrame:
		if len(f.Payload) != 8192 {
			if rdsd {
				return errMapLength
			}
			break // a kernel reads and ignores it, so do we
		}
		c.ctr.CongUpdateReceived++
		c.owner.CongestionMap(now, f.Payload)
	case wire.KindProbe, wire.KindProbeReply:
		return p.receiveHandshake(now, &h, f, kind == wire.KindProbeReply)
	}
	if rdsd {
		if err := p.receiveRdsd(now, &h, kind); err != nil {
			return err
		}
		if h.Seq == 0 {
			if kind == wire.KindControl {
				p.count(f)
				return p.onControl(now, &h, f)
			}
			if kind == wire.KindAckOnly || kind == KindCongMapFrame {
				p.count(f)
				return nil
			}
		}
	} else if kind == KindCongMapFrame {
		p.count(f)
		return nil
	}
	return p.receiveSequenced(now, &h, kind, f)
}

func hello(h *wire.Header, kind wire.Kind) bool {
	return (kind == wire.KindProbe || kind == wire.KindProbeReply) && wire.ParseHandshake(&h.Ext).Hello.Version != 0
}

// KindCongMapFrame is wire.KindCongMap under a name that does not clash with
// the kinds of peers in this package.
const KindCongMapFrame = wire.KindCongMap

func (p *Path) count(f *transport.Frame) {
	n := uint64(len(f.Raw) + len(f.Payload))
	p.recvB += n
	p.c.ctr.ReceivedBytes += n
	p.c.ctr.ReceivedFrames++
}

// receiveHandshake: between two rdsd it stands outside the sequence.
func (p *Path) receiveHandshake(now time.Duration, h *wire.Header, f *transport.Frame, reply bool) error {
	p.c.ctr.ReceivedFrames++
	if h.Seq != 0 && !p.inSequence(h) {
		return nil
	}
	seq := h.Seq
	err := p.onHandshake(now, h, f, reply)
	if err == nil && seq != 0 && p.c.kind != KindRdsd {
		// An rdsd that did not know us yet: its ping's sequence counts for the
		// path it thought of, which may not be this one.
		p.moveOn(seq)
	}
	return err
}

// receiveRdsd takes what only another rdsd puts into a header.
func (p *Path) receiveRdsd(now time.Duration, h *wire.Header, kind wire.Kind) error {
	if h.Credit != 0 {
		p.credits = min(p.credits+int(h.Credit), p.window)
	}
	if kind == wire.KindControl && h.Ext[0] == wire.CtlRefuse {
		// Its acknowledgement may cover what it refuses: refusals first. They
		// are taken in receiveSequenced; the ack follows there.
	} else if h.Ack != p.ackSeen {
		if err := p.ack(now, h.Ack); err != nil {
			return err
		}
		p.ackSeen = h.Ack
	}
	if h.Flags&wire.FlagAckRequired != 0 && h.Flags != wire.FlagCongBitmap {
		p.c.ctr.RecvAckRequired++
		p.ackPending = true
	}
	if kind == wire.KindAckOnly {
		p.c.ctr.AckOnlyReceived++
	}
	return nil
}

// inSequence applies the kernel's receive rule (net/rds/recv.c, rds_recv_incoming):
// below what is expected and flagged as retransmitted is a duplicate; anything
// else is new.
func (p *Path) inSequence(h *wire.Header) bool {
	r := p.rx()
	if p.c.kind == KindUnknown && p.expected == 0 {
		p.inherit()
	}
	old := h.Flags&wire.FlagRetransmitted != 0 || p.born < r.born // what a stale link brings is no restart
	if h.Seq < r.expected && old {
		p.c.ctr.RecvDropOldSeq++
		return false
	}
	return true
}

func (p *Path) receiveSequenced(now time.Duration, h *wire.Header, kind wire.Kind, f *transport.Frame) error {
	c := p.c
	rdsd := c.kind == KindRdsd
	if rdsd && p.expected != 0 && h.Seq < p.expected && h.Flags&wire.FlagRetransmitted == 0 {
		return errOldSeq // its restart would have brought a new incarnation
	}
	fresh := p.inSequence(h)
	p.again = h.Flags&wire.FlagRetransmitted != 0
	if rdsd && !(kind == wire.KindControl && h.Ext[0] == wire.CtlRefuse) {
		cost := min(creditCost(len(f.Payload)), 1<<c.cfg.CreditLog2)
		if p.granted -= cost; p.granted < 0 {
			return errCredits
		}
		p.owed += cost
	}
	if fresh {
		switch kind {
		case wire.KindData:
			if err := p.place(h, f); err != nil {
				return err
			}
		case wire.KindPong:
			if c.owner.Deliver(p.rx(), h.Seq, h.SPort, h.DPort, wire.Train{}, f) != Placed {
				c.ctr.RecvDropNoSock++
			}
		case wire.KindPing:
			p.pong(h)
		case wire.KindControl:
			if err := p.onControl(now, h, f); err != nil {
				return err
			}
			if err := p.ack(now, h.Ack); err != nil {
				return err
			}
		}
		p.moveOn(h.Seq)
	} else if rdsd && kind == wire.KindControl {
		if err := p.ack(now, h.Ack); err != nil {
			return err
		}
	}
	p.count(f)
	return nil
}

// moveOn: seq has been dealt with.
func (p *Path) moveOn(seq uint64) {
	r := p.rx()
	r.expected, r.read = seq+1, p.born
}

// place delivers a datagram, or refuses it to an rdsd, or pauses a kernel.
func (p *Path) place(h *wire.Header, f *transport.Frame) error {
	c := p.c
	rdsd := c.kind == KindRdsd
	var t wire.Train
	if rdsd && h.Ext[0] == wire.ExtTrain {
		var err error
		if t, err = wire.ParseTrain(&h.Ext, len(f.Payload)); err != nil {
			return err
		}
		if !c.cfg.Trains {
			return errTrain
		}
	}
	n := max(1, int(t.Count))
	if p.refusals >= p.refusalsMost() {
		return errRefusals
	}
	if rdsd && len(p.refusing) > 0 {
		if _, ok := p.refusing[h.DPort]; ok {
			if h.Flags&wire.FlagResume == 0 {
				p.refuse(h.Seq, n, wire.ReasonNoRoom)
				return nil
			}
			delete(p.refusing, h.DPort)
		}
	}
	switch c.owner.Deliver(p.rx(), h.Seq, h.SPort, h.DPort, t, f) {
	case NoPort:
		c.ctr.RecvDropNoSock += uint64(n)
		if rdsd {
			p.refuse(h.Seq, n, wire.ReasonNoPort)
		}
	case NoRoom:
		if !rdsd {
			if !p.paused {
				p.paused = true
				c.ctr.ReadPaused++
			}
			return ErrPause
		}
		if p.refusing == nil {
			p.refusing = make(map[uint16]struct{})
		}
		p.refusing[h.DPort] = struct{}{}
		p.refuse(h.Seq, n, wire.ReasonNoRoom)
	}
	return nil
}

// maxPongs bounds the answers that wait on one path.
const maxPongs = 64

// pong answers a ping: an empty message from port 0 to the ping's port.
func (p *Path) pong(h *wire.Header) {
	c := p.c
	c.ctr.RecvPing++
	if !c.cfg.Ping {
		c.ctr.RecvDropNoSock++
		return
	}
	if p.pongs >= maxPongs {
		c.ctr.PongDropped++
		return
	}
	p.pongs++
	m := c.owner.NewMsg()
	m.Kind = MsgPong
	m.SPort, m.DPort = wire.PortPing, h.SPort
	c.ctr.SendPong++
	p.control.push(m)
}

// ReceivedAll ends a read of link gen: acknowledgements that were asked for,
// or that are worth a frame by now, are sent.
func (p *Path) ReceivedAll(now time.Duration, gen uint64) {
	if gen != p.gen || p.state != Up {
		return
	}
	p.lastRx = now // part of a large frame is a sign of life too
	if p.c.kind == KindRdsd && p.ready {
		if p.owed >= p.window0()/4 {
			if p.ackable() != p.ackedRx || p.mayGrant() {
				p.ackPending = true
			} else { // a frame that says nothing new would be answered by one like it, without end
				p.c.rearm(now + p.c.cfg.AckDelay*4)
			}
		}
		if !p.ackPending && p.ackDue == Never && p.ackable() != p.ackedRx {
			p.ackDue = now + p.c.cfg.AckDelay
			p.c.rearm(p.ackDue)
		}
	}
	if p.more() {
		p.kick()
	}
}

// Alive tells that the peer's TCP took bytes of a batch that does not fit into
// the link's buffer at once: while a large frame goes out slowly nothing else
// can ask for a sign of life.
func (p *Path) Alive(now time.Duration, gen uint64) {
	if gen == p.gen && p.state == Up {
		p.lastRx, p.tookAt = now, now
	}
}

func (p *Path) window0() int { return 1 << p.c.cfg.CreditLog2 }

// Resume tells that a receiver has room again.
func (p *Path) Resume() {
	if p.paused {
		p.paused = false
		p.emit(ActResume)
	}
}

// Paused reports whether the link's reading is stopped by a full receiver.
func (p *Path) Paused() bool { return p.paused }

// Awaits reports whether the header raw, read from link gen, is of a datagram
// that would be offered to the owner, and for which port. It is a hint: Receive
// judges the frame.
func (p *Path) Awaits(gen uint64, raw []byte) (dport uint16, ok bool) {
	var h wire.Header
	rdsd := p.c.kind == KindRdsd
	if gen != p.gen || p.state != Up && (rdsd || p.state != Disconnecting) || h.Parse(raw) != nil {
		return 0, false
	}
	old := h.Seq < p.rx().expected && (rdsd || h.Flags&wire.FlagRetransmitted != 0)
	if old || h.Kind(rdsd) != wire.KindData || rdsd && !wire.ChecksumOK(raw) {
		return 0, false
	}
	if _, refusing := p.refusing[h.DPort]; refusing && h.Flags&wire.FlagResume == 0 {
		return 0, false
	}
	return h.DPort, true
}
