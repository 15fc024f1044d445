package soft

import (
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// Bounds of one call.
const (
	outMsgs   = 64   // messages
	outPieces = 1024 // pieces of memory in all
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
		n, err := sendmmsg(s.fd, o.msgs[o.first:o.n])
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

// skip gives the first message that is left up.
func (o *outbox) skip() { o.first++ }

// reset lets go of all memory.
func (o *outbox) reset() {
	clear(o.iov[:o.pieces])
	o.n, o.first, o.pieces = 0, 0, 0
}
