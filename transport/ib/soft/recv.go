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

// read reads once, and calls f for each packet, in order. It returns how many messages and
// bytes there were.
func (in *inbox) read(s *socket, f func(from netip.AddrPort, pkt []byte)) (msgs, bytes int, err error) {
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
	n, err := recvmmsg(s.fd, in.msgs[:want])
	if err != nil {
		return 0, 0, err
	}
	for i := range n {
		m := &in.msgs[i]
		bytes += int(m.n)
		if m.hdr.Flags&unix.MSG_TRUNC != 0 {
			continue // longer than any that carries packets of RoCE
		}
		from := get(&in.from[i])
		pkt := in.stage[i*slotBytes:][:m.n]
		size := in.ctl[i].segment(uint64(m.hdr.Controllen), len(pkt))
		for len(pkt) > 0 {
			k := min(size, len(pkt))
			f(from, pkt[:k:k])
			pkt = pkt[k:]
		}
	}
	in.large = bytes > n*slotBytes/4
	return n, bytes, nil
}
