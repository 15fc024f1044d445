package roce

import "net/netip"

// MaxBurst is the most packets of a burst, and maxBurstBytes the most bytes: what one system
// call with UDP_SEGMENT takes.
const (
	MaxBurst      = 64
	maxBurstBytes = 65507
)

// maxTail is the padding of a payload and the CRC.
const maxTail = 3 + icrcLen

// Burst is what one system call sends: packets of one destination, in their order. If it is to be
// cut (Cut) all of them are Size bytes long but the last, which may be shorter, and the
// kernel cuts them (UDP_SEGMENT). Without, each is a datagram of its own, of any size.
//
// A Burst is large, and its caller keeps one for all calls of Device.Fill.
type Burst struct {
	To   netip.AddrPort
	N    int // packets
	Size int // of the first one, in bytes

	packets [MaxBurst]BurstPacket
	bytes   int  // of all packets
	spare   int  // bytes that are kept for an acknowledgement, which is one packet
	gso     bool // Cut
	closed  bool // the last packet is shorter than the first, so that nothing can follow
	qp      *QP  // whose memory is referred to
}

// BurstPacket is one packet of a burst, in pieces that are to be sent one after the other.
// The payload is memory of a work request or of a key, and so of its owner.
type BurstPacket struct {
	Payload [3][]byte // some may be empty

	head    [MaxHeader]byte
	tail    [maxTail]byte
	headLen uint8
	tailLen uint8
	region  *region // that the payload is part of, when the peer READs it
}

// Cut reports whether the kernel is to cut the burst: with Config.GSO, unless bursts to this peer do
// not arrive.
func (b *Burst) Cut() bool { return b.gso }

// Packet is the i-th packet, from 0 to N-1.
func (b *Burst) Packet(i int) *BurstPacket { return &b.packets[i] }

// Head is all headers of the packet.
func (p *BurstPacket) Head() []byte { return p.head[:p.headLen] }

// Tail is the padding of the payload, and the CRC.
func (p *BurstPacket) Tail() []byte { return p.tail[:p.tailLen] }

// Len is the length of the packet, which is that of a UDP datagram's payload.
func (p *BurstPacket) Len() int {
	return int(p.headLen) + len(p.Payload[0]) + len(p.Payload[1]) + len(p.Payload[2]) + int(p.tailLen)
}

// Append appends a copy of the packet.
func (p *BurstPacket) Append(b []byte) []byte {
	b = append(b, p.Head()...)
	for _, piece := range p.Payload {
		b = append(b, piece...)
	}
	return append(b, p.Tail()...)
}

// packetLen is the length of a packet with n bytes of payload.
func packetLen(op Opcode, n int) int { return op.Header() + n + pad(n) + icrcLen }

// ackLen is the length of an acknowledgement.
const ackLen = bthLen + aethLen + icrcLen

// room reports whether a packet of size bytes may follow.
func (b *Burst) room(size int) bool {
	n := b.N + 1
	if b.spare > 0 {
		n++
	}
	switch {
	case n > MaxBurst:
		return false
	case !b.gso || b.N == 0:
		return true
	}
	return !b.closed && size <= b.Size && b.bytes+size+b.spare <= maxBurstBytes
}

// add appends a packet of p's headers and payload, for which there is room. f is the flow
// that it leaves on.
func (b *Burst) add(f *Flow, p *Packet, payload [3][]byte) *BurstPacket {
	t := &b.packets[b.N]
	n := len(payload[0]) + len(payload[1]) + len(payload[2])
	t.Payload = payload
	t.region = nil
	t.headLen = uint8(len(p.AppendHeader(t.head[:0], n)))
	padding := pad(n)
	t.tail = [maxTail]byte{}
	ident := uint16(0)
	if b.gso {
		ident = uint16(b.N)
	}
	sum := f.ICRC(ident, t.Head(), payload[0], payload[1], payload[2], t.tail[:padding])
	t.tailLen = uint8(len(AppendICRC(t.tail[:padding], sum)))
	size := t.Len()
	if b.N == 0 {
		b.Size = size
	}
	b.closed = size < b.Size
	b.bytes += size
	b.N++
	return t
}

// clear makes b empty and lets go of the memory that it refers to.
func (b *Burst) clear() {
	for i := range b.packets[:b.N] {
		p := &b.packets[i]
		p.Payload = [3][]byte{}
		p.region = nil
	}
	b.N, b.Size, b.bytes, b.spare, b.closed, b.qp = 0, 0, 0, 0, false, nil
}
