package soft

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Bounds of one turn of a socket.
const (
	inSlots   = 16        // messages of one call
	slotBytes = 64 << 10  // of one message: as much as the kernel puts together
	turnBytes = 256 << 10 // from one socket, before others have their turn
	turnCalls = 16        // likewise
)

// inbox is the memory that the sockets of one reactor are read into. Its thread owns it, and
// what was read is used up before the next call.
type inbox struct {
	stage []byte
	msgs  [inSlots]mmsghdr
	iov   [inSlots]unix.Iovec
	from  [inSlots]sockaddr
	ctl   [inSlots]control
	large bool // the last call brought large messages
}

func newInbox() *inbox {
	in := &inbox{stage: make([]byte, inSlots*slotBytes)}
	for i := range in.msgs {
		in.iov[i].Base = &in.stage[i*slotBytes]
		in.iov[i].SetLen(slotBytes)
		h := &in.msgs[i].hdr
		h.Iov = &in.iov[i]
		h.SetIovlen(1)
		h.Name = (*byte)(pointer(&in.from[i]))
		h.Control = &in.ctl[i].b[0]
	}
	return in
}

// read reads once. It returns how many messages there are, and whether there may be more.
func (in *inbox) read(s *socket) (n int, more bool, err error) {
	// Few large messages are used up while they are in the processor's cache.
	want := inSlots
	if in.large {
		want = 4
	}
	for i := range want {
		h := &in.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(segmentLen)
	}
	n, err = s.recvmmsg(in.msgs[:want])
	return n, n == want, err
}

// each calls f for each packet of the i-th message, in order, and returns how many bytes
// there were. A message that is not whole was longer than any that carries packets of RoCE.
func (in *inbox) each(i int, f func(from netip.AddrPort, pkt []byte)) (bytes int, whole bool) {
	m := &in.msgs[i]
	bytes = int(m.n)
	in.large = bytes > slotBytes/4
	if m.hdr.Flags&unix.MSG_TRUNC != 0 {
		return bytes, false
	}
	from := get(&in.from[i])
	pkt := in.stage[i*slotBytes:][:m.n]
	size := in.ctl[i].segment(uint64(m.hdr.Controllen), len(pkt))
	for {
		k := min(size, len(pkt))
		f(from, pkt[:k:k])
		if pkt = pkt[k:]; len(pkt) == 0 {
			return bytes, true
		}
	}
}
