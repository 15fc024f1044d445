package soft

import (
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
)

// Bounds of one call.
const (
	burstPieces = roce.MaxBurst * 5  // of the longest burst
	outMsgs     = 32 + roce.MaxBurst // messages
	outPieces   = 32 + burstPieces   // pieces of memory in all
	flushBytes  = 512 << 10          // that one call of flush sends, about

	// smallBytes is what a burst may have that is copied, so that it goes along with others: the
	// core has one burst in use at a time. That is an acknowledgement, an answer, or the first
	// packet of a write, which is longer than those behind it and so no part of their burst. A
	// copy of 4 KiB costs 0.3 µs; of messages of 4 KiB in packets of 1 KiB a tenth less
	// processor time was used than with a call for each burst.
	smallBytes = 4400
	outCopied  = 64 << 10 // bytes of such bursts
)

// outbox is what one call sends: messages, each a packet or a burst of packets that the
// kernel cuts. Nothing is copied; the memory stays the sender's until the call is over.
type outbox struct {
	msgs   [outMsgs]mmsghdr
	iov    [outPieces]unix.Iovec
	to     [outMsgs]sockaddr
	ctl    [outMsgs]control
	n      int // messages
	first  int // of them, that are sent
	pieces int
}

// message begins a message. With size > 0 it is a burst of packets of so many bytes.
func (o *outbox) message(to netip.AddrPort, scope uint32, size int) {
	h := &o.msgs[o.n].hdr
	h.Name = (*byte)(pointer(&o.to[o.n]))
	h.Namelen = put(&o.to[o.n], to, scope)
	h.Iov = &o.iov[o.pieces]
	h.SetIovlen(0)
	h.Control = nil
	h.SetControllen(0)
	if size > 0 {
		h.Control = &o.ctl[o.n].b[0]
		h.SetControllen(o.ctl[o.n].putSegment(size))
	}
	o.n++
}

// piece adds memory to the message that was begun last.
func (o *outbox) piece(p []byte) {
	if len(p) == 0 {
		return
	}
	v := &o.iov[o.pieces]
	v.Base = &p[0]
	v.SetLen(len(p))
	o.pieces++
	h := &o.msgs[o.n-1].hdr
	h.SetIovlen(int(h.Iovlen) + 1)
}

// room reports whether as many messages and pieces can be added.
func (o *outbox) room(msgs, pieces int) bool {
	return o.n+msgs <= outMsgs && o.pieces+pieces <= outPieces
}

// send sends what there is until one message is refused, which is the first one left then. The
// caller skips it, or calls again later.
func (o *outbox) send(s *socket) error {
	for o.first < o.n {
		if s.fault != nil {
			if err := s.fault(); err != nil {
				return err
			}
		}
		n, err := s.sendmmsg(o.msgs[o.first:o.n])
		runtime.KeepAlive(o)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		o.first += n
	}
	return nil
}

// isBurst reports whether the first message that is left is to be cut.
func (o *outbox) isBurst() bool { return o.msgs[o.first].hdr.Control != nil }

// skip gives the first message that is left up.
func (o *outbox) skip() { o.first++ }

// reset lets go of all memory.
func (o *outbox) reset() {
	clear(o.iov[:o.pieces])
	o.n, o.first, o.pieces = 0, 0, 0
}

// sender sends what the core of queue pairs has to send. Whoever finds nobody else doing so
// does it for all, so that bursts form while a call is under way.
type sender struct {
	gso     bool         // bursts are cut by the kernel, to peers where it takes them and they arrive; guarded by Device.mu
	busy    bool         // somebody has the fields below; guarded by Device.mu
	full    bool         // nobody does, but the socket took no more of them; guarded by Device.mu
	closing []*queuePair // to be freed once the burst was sent; guarded by Device.mu

	box     outbox
	burst   roce.Burst
	held    bool // the box refers to the burst
	copied  [outCopied]byte
	used    int // of copied
	bytes   int
	bursts  int          // of more than one packet
	failed  Stats        // of messages that could not be sent
	refused bool         // there was one
	cut     []netip.Addr // to whom a burst was refused as such
	lost    uint64       // times that bursts did not arrive, so far as it was said; guarded by Device.mu
}

// flush sends what can be sent, within bounds: what is left has the next turn.
func (d *Device) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := &d.out
	for bytes := 0; !o.busy && !d.shut; bytes += o.bytes {
		if bytes > flushBytes {
			d.r.DoFor(d, d.next)
			return
		}
		now := d.m.Clock()
		any := o.collect(d, now)
		d.leave(now)
		if !any {
			return
		}
		o.busy = true
		if !d.carry() {
			return
		}
	}
}

// resume goes on after the socket was full.
func (d *Device) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.out.full {
		return
	}
	d.out.full = false
	_ = d.r.Modify(d.sock.fd, unix.EPOLLIN) // it is there
	if d.carry() {
		d.flushLater()
	}
}

// carry sends what was collected, and reports whether all of it has left. mu is held, but not
// while it sends.
func (d *Device) carry() bool {
	o := &d.out
	d.mu.Unlock()
	full := o.push(d.sock)
	d.mu.Lock()
	d.stats.addSends(&o.failed)
	o.failed = Stats{}
	if !d.gone {
		d.restGSO(o.cut)
	}
	o.cut = o.cut[:0]
	if full && !d.shut {
		o.full = true
		d.stats.SendFull++
		_ = d.r.Modify(d.sock.fd, unix.EPOLLIN|unix.EPOLLOUT)
		return false
	}
	d.stats.SendCalls++
	d.stats.SentBytes += uint64(o.bytes)
	d.stats.SentBursts += uint64(o.bursts)
	d.judgeGSO()
	o.sent(d)
	d.leave(d.m.Clock())
	return true
}

// sent ends what collect began. mu is held.
func (o *sender) sent(d *Device) {
	o.box.reset()
	if o.held {
		o.held = false
		if o.refused {
			d.dev.Unsent(&o.burst)
		} else {
			d.dev.Sent(&o.burst)
		}
	}
	o.busy, o.refused = false, false
	for i, q := range o.closing {
		o.closing[i] = nil
		if q.rq.Close() == nil {
			delete(d.qps, q.rq)
		}
	}
	o.closing = o.closing[:0]
}

// collect takes what is to be sent, and reports whether there is anything. mu is held.
func (o *sender) collect(d *Device, now time.Duration) bool {
	o.used, o.bytes, o.bursts = 0, 0, 0
	for o.box.room(roce.MaxBurst, burstPieces) && o.used+smallBytes <= outCopied && d.dev.Fill(now, &o.burst) {
		if o.burst.N > 1 && o.burst.Cut() {
			o.bursts++
		}
		n := 0
		for i := range o.burst.N {
			n += o.burst.Packet(i).Len()
		}
		o.bytes += n
		small := n <= smallBytes
		o.add(d.sock.scope, small)
		if !small {
			o.held = true
			break
		}
		d.dev.Sent(&o.burst)
	}
	return o.box.n > 0
}

// add makes messages of the burst.
func (o *sender) add(scope uint32, small bool) {
	b := &o.burst
	for i := range b.N {
		switch {
		case !b.Cut():
			o.box.message(b.To, scope, 0)
		case i == 0 && b.N > 1:
			o.box.message(b.To, scope, b.Size)
		case i == 0:
			o.box.message(b.To, scope, 0)
		}
		p := b.Packet(i)
		if small {
			c := p.Append(o.copied[o.used:o.used])
			o.used += len(c)
			o.box.piece(c)
			continue
		}
		o.box.piece(p.Head())
		for _, v := range p.Payload {
			o.box.piece(v)
		}
		o.box.piece(p.Tail())
	}
}

// push sends what was collected, and reports whether the socket is full before the end. A
// message that cannot be sent is lost, as it might be on its way: it is for its queue pair to
// repeat it, and nobody else waits for that.
func (o *sender) push(s *socket) (full bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 {
		return false
	}
	kept := false
	for {
		err := o.box.send(s)
		switch err {
		case nil:
			return false
		case unix.EAGAIN:
			return true
		case unix.ECONNREFUSED:
			// What the socket has kept of an earlier packet: this one was not tried.
			if !kept {
				kept = true
				continue
			}
		case unix.EINVAL, unix.EIO:
			if o.box.isBurst() {
				o.cut = append(o.cut, get(&o.box.to[o.box.first]).Addr())
			}
		}
		o.failed.noteSend(err)
		o.refused = true
		o.box.skip()
	}
}
