package conn

import (
	"errors"
	"fmt"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// ErrPause says that the receiver of this datagram is full and that the peer is a kernel,
// which cannot be refused a datagram. The frame was not taken: the shell offers it again
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

// Receive takes one frame of the link of attempt. With ErrPause the shell offers it again
// later. Any other error has already dropped the lane: the shell reads and throws away what
// still comes. It calls ReceivedAll after the last frame of a read.
func (p *Lane) Receive(now time.Duration, attempt uint64, f *transport.Frame) error {
	if attempt != p.attempt || p.state != Up {
		if attempt != p.attempt || p.state != Disconnecting || p.c.kind == KindRdsd {
			return errGone
		}
		// Nor is anything taken of a link on which an rdsd had shown its Hello, before it became something
		// else: its trains are no kernel's datagrams.
		if p.window > 0 {
			return errGone
		}
		// A kernel forgot these bytes when TCP acknowledged them: take them
		// even though we are closing.
	}
	err := p.receive(now, f)
	if err == nil || err == ErrPause {
		return err
	}
	if err == errWrongLane && p.c.kind != KindRdsd {
		// No rule was broken: we took its link for another lane's. It ends, but a kernel forgot
		// what it had sent on it when TCP acknowledged that, so the rest of it is taken.
		p.Drop(now, err)
		return nil
	}
	p.c.ctr.ProtocolError++
	// TCP has brought the peer's bytes unchanged: a peer that breaks a rule here
	// understands the stream in another way than we do, and only a new link can put that
	// right.
	err = fmt.Errorf("protocol error: %w", err)
	p.Drop(now, err)
	return err
}

func (p *Lane) receive(now time.Duration, f *transport.Frame) error {
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
	// Kernels accept frames of any length, but send none above this one.
	if h.Len > wire.MaxDatagram {
		return errTooLong
	}
	kind := h.Kind(rdsd)
	if !p.heard {
		p.heard = true
		// An rdsd's first frame is a handshake with its Hello, so this is a kernel at its address, or a
		// stranger: our state of its sequences is not about this peer.
		if rdsd && !carriesHello(&h, kind) {
			err := c.turned(now)
			if err != errPeerChanged || !c.may().place {
				return err
			}
			// Where kernels are allowed no rule was broken. The link ends with the former life's, but a
			// kernel forgot what it had sent on it when TCP acknowledged that: all of it is taken.
			return p.receive(now, f)
		}
	}
	if b := p.backlog; b != nil {
		switch {
		case !b.read && !p.paused:
			b.begin(now)
		case b.read && (now >= b.end || p.recvB >= b.to):
			p.backlog = nil
		}
	}
	p.lastRx = now
	if p.asked != 0 {
		c.measured(now - p.asked)
		p.asked = 0
		// The next call is for the end of the silence that this frame has ended.
		c.rearm(p.heartbeatAt())
	}
	// This comes before anything of the frame has an effect. A kernel cannot prove its
	// identity, and where none is allowed nothing is taken from a peer that has not shown
	// its Hello.
	if !c.may().takes(kind) {
		return errUnidentified
	}
	// A kernel without lanes may have connected again on what we took for another lane. Its
	// sequence goes on there, so its messages on the older link are read first. A Hello
	// settles the question, so it does not wait.
	if !rdsd && kind != wire.KindCongMap && p.mustWait() && !carriesHello(&h, kind) {
		p.pause()
		return ErrPause
	}
	switch kind {
	case wire.KindCongMap:
		if len(f.Payload) != 8192 {
			if rdsd {
				return errMapLength
			}
			break // a kernel reads and ignores it, so do we
		}
		c.ctr.CongUpdateReceived++
		if err := c.owner.Told(now, p.mapTopic(), f.Payload); err != nil {
			return err
		}
	case wire.KindProbe, wire.KindProbeReply:
		return p.receiveHandshake(now, &h, f, kind == wire.KindProbeReply)
	}
	if rdsd {
		if err := p.receiveRdsd(now, &h, kind); err != nil {
			return err
		}
		// A frame without a sequence is complete here: it is neither placed nor
		// acknowledged.
		if h.Seq == 0 {
			if kind == wire.KindControl {
				p.count(f)
				return p.onControl(now, &h, f)
			}
			if kind == wire.KindAckOnly || kind == wire.KindCongMap {
				p.count(f)
				return nil
			}
		}
	} else if kind == wire.KindCongMap {
		p.count(f)
		return nil
	}
	return p.receiveSequenced(now, &h, kind, f)
}

func carriesHello(h *wire.Header, kind wire.Kind) bool {
	return (kind == wire.KindProbe || kind == wire.KindProbeReply) && wire.ParseHandshake(&h.Ext).Hello.Version != 0
}

func (p *Lane) count(f *transport.Frame) {
	n := uint64(len(f.Raw) + f.Len())
	p.recvB += n
	p.c.ctr.ReceivedBytes += n
	p.c.ctr.ReceivedFrames++
}

// receiveHandshake takes a frame that carries a hello or a ping. Between two rdsd a
// handshake stands outside the sequence.
func (p *Lane) receiveHandshake(now time.Duration, h *wire.Header, f *transport.Frame, reply bool) error {
	p.c.ctr.ReceivedFrames++
	if h.Seq != 0 && !p.otherLife(h) && !p.inSequence(h) {
		return nil
	}
	// This is read before onHandshake, which may start the peer's sequence from 1.
	seq := h.Seq
	err := p.onHandshake(now, h, f, reply)
	if err == nil && seq != 0 && p.c.kind != KindRdsd {
		// An rdsd that did not know us yet: its ping's sequence counts for the
		// lane it thought of, which may not be this one.
		p.moveOn(seq)
	}
	return err
}

// otherLife reports whether a handshake shows that the kernel has booted again, so that its sequence says
// nothing beside that of the life before: sent again, it would be dropped as old, and so would all that
// the kernel has sent since, which it forgets. A link that a later one has overtaken shows nothing.
func (p *Lane) otherLife(h *wire.Header) bool {
	gen := wire.ParseHandshake(&h.Ext).GenNum
	return p.c.peerGen != 0 && gen != 0 && gen != p.c.peerGen && p.serial >= p.rx().serial
}

// receiveRdsd takes the parts of a header that only another rdsd uses.
func (p *Lane) receiveRdsd(now time.Duration, h *wire.Header, kind wire.Kind) error {
	if h.Credit != 0 {
		// We never have more credits than were granted at first, whatever the peer sends.
		p.credits = min(p.credits+int(h.Credit), p.window)
	}
	if kind == wire.KindControl && h.Ext[0] == wire.CtlRefuse {
		// The acknowledgement may cover refused messages, so refusals go first. They are
		// taken in receiveSequenced; the ack follows there.
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

// inSequence applies the kernel's receive rule (net/rds/recv.c, rds_recv_incoming): a
// message below the expected sequence that is flagged as retransmitted is a duplicate; any
// other is new.
func (p *Lane) inSequence(h *wire.Header) bool {
	// A kernel may count this link's frames in the sequence of another of our lanes.
	r := p.rx()
	// A kernel begins a link with what it has sent of that lane already, or with the next. One
	// that begins beyond has no lanes and used another of ours in between.
	if p.c.kind == KindUnknown && (p.expected == 0 || h.Seq > p.expected && p.readSerial != p.serial) {
		p.inherit()
	}
	// A frame of a stale link below the expected sequence is no restart of a kernel, though
	// it bears no flag: a later link of the peer has gone on from there.
	old := h.Flags&wire.FlagRetransmitted != 0 || p.serial < r.serial
	if h.Seq < r.expected && old {
		p.c.ctr.RecvDropOldSeq++
		return false
	}
	return true
}

func (p *Lane) receiveSequenced(now time.Duration, h *wire.Header, kind wire.Kind, f *transport.Frame) error {
	c := p.c
	rdsd := c.kind == KindRdsd
	if rdsd && p.expected != 0 && h.Seq < p.expected && h.Flags&wire.FlagRetransmitted == 0 {
		// Its restart would have brought a new incarnation.
		return errOldSeq
	}
	fresh := p.inSequence(h)
	p.again = h.Flags&wire.FlagRetransmitted != 0
	// Duplicates cost as many credits as new messages: the sender has paid for them before
	// it could know.
	if rdsd && !(kind == wire.KindControl && h.Ext[0] == wire.CtlRefuse) {
		cost := min(creditCost(f.Len()), 1<<c.cfg.CreditLog2)
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
			if c.owner.Deliver(p.arrival(h, wire.One(f.Payload), f)) != Placed {
				c.ctr.RecvDropNoSock++
			}
		case wire.KindPing:
			p.pong(h)
		case wire.KindControl:
			// The refusals go first, then the acknowledgement in the same header, which may cover
			// the refused messages.
			if err := p.onControl(now, h, f); err != nil {
				return err
			}
			if err := p.ack(now, h.Ack); err != nil {
				return err
			}
		}
		// After it was dealt with: a frame that a full receiver pauses is offered again, and
		// must not look like a duplicate then.
		p.moveOn(h.Seq)
	} else if rdsd && kind == wire.KindControl {
		if err := p.ack(now, h.Ack); err != nil {
			return err
		}
	}
	p.count(f)
	return nil
}

// moveOn records that the message with sequence seq has been dealt with.
func (p *Lane) moveOn(seq uint64) {
	r := p.rx()
	r.expected, r.readSerial = seq+1, p.serial
}

// place delivers a datagram, or refuses it to an rdsd, or pauses a kernel.
func (p *Lane) place(h *wire.Header, f *transport.Frame) error {
	c := p.c
	rdsd := c.kind == KindRdsd
	t := wire.One(f.Payload)
	// A kernel's extension space may hold anything in a data frame, and it sends no trains.
	if f.Skipped > 0 {
		t = wire.Train{Count: wire.TrainCount(&h.Ext)}
	} else if rdsd && h.Ext[0] == wire.ExtTrain {
		var err error
		if t, err = wire.ParseTrain(&h.Ext, f.Payload); err != nil {
			return err
		}
		if !c.cfg.Trains {
			return errTrain
		}
	}
	n := t.Count
	if rdsd && len(p.refusing) > 0 {
		// There may be room again, but the datagram that found none is still with the sender,
		// and this one was sent behind it.
		if _, ok := p.refusing[h.DPort]; ok {
			if h.Flags&wire.FlagResume == 0 {
				return p.refuse(h.Seq, n, wire.ReasonNoRoom)
			}
			delete(p.refusing, h.DPort)
		}
	}
	switch c.owner.Deliver(p.arrival(h, t, f)) {
	case NoPort:
		c.ctr.RecvDropNoSock += uint64(n)
		if rdsd {
			return p.refuse(h.Seq, n, wire.ReasonNoPort)
		}
	case NoRoom:
		// A kernel forgets a message that TCP has acknowledged, so dropping it would lose it.
		// Not reading on makes TCP stop the kernel, with everything else on this link: only
		// between daemons a full reader stops no other.
		if !rdsd {
			if !p.paused {
				p.pause()
				c.ctr.ReadPaused++
			}
			return ErrPause
		}
		if p.refusing == nil {
			p.refusing = make(map[uint16]struct{})
		}
		p.refusing[h.DPort] = struct{}{}
		return p.refuse(h.Seq, n, wire.ReasonNoRoom)
	}
	return nil
}

// arrival is what the frame brings for a port of ours.
func (p *Lane) arrival(h *wire.Header, t wire.Train, f *transport.Frame) Arrival {
	return Arrival{Lane: p.rx(), Seq: h.Seq, SPort: h.SPort, DPort: h.DPort, Train: t, Buf: f.Buf, Skipped: f.Skipped}
}

// maxPongs bounds the answers that wait on one lane, and mostPongsOut those that the peer has not
// acknowledged.
const (
	maxPongs     = 64
	mostPongsOut = 128
)

// pong answers a ping: an empty message from port 0 to the ping's port.
func (p *Lane) pong(h *wire.Header) {
	c := p.c
	c.ctr.RecvPing++
	if !c.cfg.Ping {
		c.ctr.RecvDropNoSock++
		return
	}
	// A ping costs its sender 48 bytes and us a message that waits: a peer that does not
	// read its answers must not fill the queue, nor one that does not acknowledge them our memory.
	if p.pongs >= maxPongs || p.pongsOut >= mostPongsOut {
		c.ctr.PongDropped++
		return
	}
	p.pongs++
	m := c.com.NewMsg()
	m.Kind = MsgPong
	m.SPort, m.DPort = wire.PortPing, h.SPort
	c.ctr.SendPong++
	p.control.push(m)
}

// answered counts m, which was sent and ends, if it is a pong.
func (p *Lane) answered(m *Msg) {
	if m.Kind == MsgPong {
		p.pongsOut--
	}
}

// ReceivedAll ends a read of the link of attempt: acknowledgements that were asked for, or
// that are worth a frame by now, are sent.
func (p *Lane) ReceivedAll(now time.Duration, attempt uint64) {
	p.c.ctr.TCPDataReady++
	if attempt != p.attempt || p.state != Up {
		return
	}
	// A part of a large frame is a sign of life too.
	p.lastRx = now
	if p.c.kind == KindRdsd && p.ready {
		// A quarter of the window is owed: it goes back before the peer has nothing left and
		// stops, also when no other frame goes that way.
		if p.owed >= p.window0()/4 {
			if p.ackable() != p.ackedRx || p.grantable() > 0 {
				p.ackPending = true
			} else { // a frame that says nothing new would be answered by one like it, without end
				p.c.rearm(now + p.c.cfg.AckDelay*4)
			}
		}
		// The peer did not ask, so the acknowledgement may wait for a frame to ride on.
		if !p.ackPending && p.ackDue == Never && p.ackable() != p.ackedRx {
			p.ackDue = now + p.c.cfg.AckDelay
			p.c.rearm(p.ackDue)
		}
	}
	if p.more() {
		p.kick()
	}
}

// Alive tells that the peer's TCP took bytes of a batch that does not fit into the link's
// buffer at once: while a large frame goes out slowly no heartbeat can be sent.
func (p *Lane) Alive(now time.Duration, attempt uint64) {
	p.c.ctr.TCPWriteSpace++
	if attempt == p.attempt && p.state == Up {
		p.lastRx, p.tookAt = now, now
	}
}

func (p *Lane) window0() int { return 1 << p.c.cfg.CreditLog2 }

// A kernel sends its map on any of its lanes, and maps have no numbers. One that stands unread, be it
// behind a datagram which a full receiver holds up, on a link that waits for its predecessor's end, or
// for want of memory, is older than one that comes by another lane meanwhile, and would have a port
// that is clear by now congested until the next change, which may never come. So maps that stood there
// only clear ports. They have all been read when the lane has been read for backlogFor, or when
// backlogBytes have come: that is more than both ends' sockets hold.
const (
	backlogFor   = 5 * time.Second
	backlogBytes = 64 << 20
)

// backlog is what stood unread on a lane when another one brought a map.
type backlog struct {
	to   uint64        // it is over at so many bytes received
	read bool          // the lane is read
	end  time.Duration // then it is over at that time, too
	left time.Duration // else when it has been read for so long
}

// mark notes that another lane has brought a map, while what came before stands unread on p.
func (p *Lane) mark() { p.backlog = &backlog{to: p.recvB + backlogBytes, left: backlogFor} }

func (b *backlog) begin(now time.Duration) { b.read, b.end = true, now+b.left }

// pause stops the reading of the link.
func (p *Lane) pause() {
	p.paused = true
	if b := p.backlog; b != nil {
		b.read, b.left = false, backlogFor
	}
}

// Shut tells whether the link of attempt is left unread for want of memory.
func (p *Lane) Shut(now time.Duration, attempt uint64, on bool) {
	if attempt != p.attempt {
		return
	}
	p.shut = on
	switch b := p.backlog; {
	case b == nil:
	case on && b.read: // memory may come and go for hours, and what was read meanwhile was read
		b.read, b.left = false, max(b.end-now, 0)
	case !on && !p.paused:
		b.begin(now) // there may be nothing, of which no frame tells
	}
}

// mapTopic is what a whole map that has come on the lane is to the owner.
func (p *Lane) mapTopic() Topic {
	p.c.EachLane(func(q *Lane) {
		if q.paused || q.shut {
			q.mark()
		}
		for i := range q.waiting {
			q.waiting[i].behind = q != p || q.waiting[i].behind // its own came later
		}
	})
	if p.backlog != nil {
		return ToldOldMap
	}
	return ToldMap
}

// Resume tells that a receiver has room again.
func (p *Lane) Resume() {
	if p.paused {
		p.paused = false
		p.emit(ActResume)
	}
}

// Paused reports whether the link's reading is stopped by a full receiver.
func (p *Lane) Paused() bool { return p.paused }

// Awaits reports whether the header raw, read from the link of attempt, is of a datagram
// that would be offered to the owner, and for which port. It is a hint: Receive judges the
// frame.
func (p *Lane) Awaits(attempt uint64, raw []byte) (dport uint16, ok bool) {
	var h wire.Header
	rdsd := p.c.kind == KindRdsd
	if attempt != p.attempt || p.state != Up && (rdsd || p.state != Disconnecting) || h.Parse(raw) != nil {
		return 0, false
	}
	// A frame that will be dropped or refused needs no place. An rdsd's old sequence is an
	// error even without the flag; a kernel's is then a restart, and is placed.
	old := h.Seq < p.rx().expected && (rdsd || h.Flags&wire.FlagRetransmitted != 0)
	if old || h.Kind(rdsd) != wire.KindData || rdsd && !wire.ChecksumOK(raw) {
		return 0, false
	}
	if _, refusing := p.refusing[h.DPort]; refusing && h.Flags&wire.FlagResume == 0 {
		return 0, false
	}
	return h.DPort, true
}

// Skips reports whether the header raw is of a message that can be refused, or dropped, without
// its payload (transport.Frame.Skipped): a datagram of an rdsd that has shown its Hello on this link.
func (p *Lane) Skips(raw []byte) bool {
	var h wire.Header
	return p.c.kind == KindRdsd && p.window > 0 && h.Parse(raw) == nil && h.Kind(true) == wire.KindData && wire.ChecksumOK(raw)
}
