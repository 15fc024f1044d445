package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Numbers of the protocol (net/rds/rds.h, net/rds/tcp.h).
const (
	HeaderLen   = 48
	ExtLen      = 16
	TCPPort     = 16385
	MaxDatagram = 1 << 20 // bytes; the largest message a kernel sends
	MaxLanes    = 8       // RDS_MPATH_WORKERS

	PortPing  = 0 // a message to it is answered by an empty one
	PortProbe = 1 // source of handshakes; cannot be bound
	PortFirst = 2 // first port that can be bound
)

// Flags of the header. The first three are the kernel's; the rest appear only
// on links whose two ends are rdsd.
const (
	FlagCongBitmap    = 0x01
	FlagAckRequired   = 0x02
	FlagRetransmitted = 0x04
	// FlagResume marks the first datagram to a port after refused ones; the receiver stops
	// refusing that flow.
	FlagResume = 0x40
	// FlagControl marks a frame that is not a datagram; Ext[0] says what its payload means.
	FlagControl = 0x80
)

// Header is the 48-byte header that precedes every message
// (struct rds_header, net/rds/rds.h).
type Header struct {
	Seq    uint64
	Ack    uint64
	Len    uint32 // payload bytes
	SPort  uint16
	DPort  uint16
	Flags  uint8
	Credit uint8
	Csum   uint16
	Ext    [ExtLen]byte
}

// ErrShort is returned for fewer bytes than a header has.
var ErrShort = errors.New("wire: fewer than 48 bytes for a header")

// Put writes h into b[:48], with the checksum h.Csum as it is.
func (h *Header) Put(b []byte) {
	h.PutSummed(b)
	binary.BigEndian.PutUint16(b[30:], h.Csum)
}

// PutSummed writes h into b[:48] with its checksum, whatever h.Csum is.
func (h *Header) PutSummed(b []byte) {
	_ = b[HeaderLen-1]
	be := binary.BigEndian
	// In whole words, which are summed before they are written: a processor that has just written
	// the fields one by one waits for all of them when it reads a word back.
	ports := uint64(h.Len)<<32 | uint64(h.SPort)<<16 | uint64(h.DPort)
	flags := uint64(h.Flags)<<56 | uint64(h.Credit)<<48
	ext, rest := be.Uint64(h.Ext[:]), be.Uint64(h.Ext[8:])
	be.PutUint64(b, h.Seq)
	be.PutUint64(b[8:], h.Ack)
	be.PutUint64(b[16:], ports)
	be.PutUint64(b[24:], flags|uint64(checksum(h.Seq, h.Ack, ports, flags, ext, rest)))
	be.PutUint64(b[32:], ext)
	be.PutUint64(b[40:], rest)
}

// Append appends the 48 bytes of h to b.
func (h *Header) Append(b []byte) []byte {
	var t [HeaderLen]byte
	h.Put(t[:])
	return append(b, t[:]...)
}

// Parse reads h from b[:48]. Any 48 bytes are a header; the caller judges their meaning.
func (h *Header) Parse(b []byte) error {
	if len(b) < HeaderLen {
		return ErrShort
	}
	be := binary.BigEndian
	h.Seq = be.Uint64(b)
	h.Ack = be.Uint64(b[8:])
	h.Len = be.Uint32(b[16:])
	h.SPort = be.Uint16(b[20:])
	h.DPort = be.Uint16(b[22:])
	h.Flags = b[24]
	h.Credit = b[25]
	h.Csum = be.Uint16(b[30:])
	copy(h.Ext[:], b[32:HeaderLen])
	return nil
}

// Checksum computes the Internet checksum of the 48 bytes in b, its own field
// (bytes 30 and 31) counted as zero. Zero, which on the wire means "not
// computed", is returned as 0xffff, its equal in one's complement.
func Checksum(b []byte) uint16 {
	_ = b[HeaderLen-1]
	be := binary.BigEndian
	return checksum(be.Uint64(b), be.Uint64(b[8:]), be.Uint64(b[16:]), be.Uint64(b[24:])&^0xffff, be.Uint64(b[32:]), be.Uint64(b[40:]))
}

// checksum is Checksum of six words, big-endian.
func checksum(seq, ack, ports, flags, ext, rest uint64) uint16 {
	// One's complement addition does not care for the width of the words, as long as the carries
	// come back in (RFC 1071, section 2).
	s, c := bits.Add64(seq, ack, 0)
	s, c = bits.Add64(s, ports, c)
	s, c = bits.Add64(s, flags, c)
	s, c = bits.Add64(s, ext, c)
	s, c = bits.Add64(s, rest, c)
	s += c // the last carry leaves none: a sum with a carry is at most 2^64 - 2
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	if sum := ^uint16(s); sum != 0 {
		return sum
	}
	return 0xffff
}

// SetChecksum computes the checksum of the header in b[:48] and stores it there.
func SetChecksum(b []byte) { binary.BigEndian.PutUint16(b[30:], Checksum(b)) }

// ChecksumOK verifies the header in b[:48]. A stored zero means "not computed"
// and is accepted, as the kernel accepts it (net/rds/message.c).
func ChecksumOK(b []byte) bool {
	stored := binary.BigEndian.Uint16(b[30:])
	return stored == 0 || stored == Checksum(b)
}

// Kind is the kind of message that a header announces.
type Kind uint8

// Kinds of message (section "kinds of message" of docs/protocol.md).
const (
	KindData Kind = iota
	KindCongMap
	KindPing
	KindPong
	KindProbe      // handshake ping, port 1 to 0
	KindProbeReply // handshake pong, port 0 to 1
	KindAckOnly    // ports 0 and 0, sequence 0; rdsd and IB only
	KindControl    // FlagControl; rdsd only
	KindNull       // ports 0 and 0 with a sequence: ignored, but counted
)

var kindNames = [...]string{"data", "congestion-map", "ping", "pong", "handshake-ping", "handshake-pong", "ack-only", "control", "null"}

func (k Kind) String() string { return kindNames[k] }

// Kind classifies h as the kernel does over TCP; rdsd says whether the frame
// came on a link where the additions of rdsd are spoken.
func (h *Header) Kind(rdsd bool) Kind {
	switch {
	case h.Flags == FlagCongBitmap:
		return KindCongMap
	case rdsd && h.Flags&FlagControl != 0:
		return KindControl
	case h.DPort >= PortFirst && h.SPort != 0:
		return KindData
	case h.DPort == PortPing && h.SPort == PortProbe:
		return KindProbe
	case h.DPort == PortProbe && h.SPort == 0:
		return KindProbeReply
	case h.DPort == PortPing && h.SPort == 0:
		if rdsd && h.Seq == 0 {
			return KindAckOnly
		}
		return KindNull
	case h.DPort == PortPing:
		return KindPing
	case h.SPort == 0:
		return KindPong
	}
	return KindData // to port 1 from a bound port: no socket has it
}

func (h *Header) String() string {
	return fmt.Sprintf("%s seq=%d ack=%d len=%d %d>%d flags=%#02x credit=%d", h.Kind(true), h.Seq, h.Ack, h.Len, h.SPort, h.DPort, h.Flags, h.Credit)
}

// PayloadLen reads the payload length, in bytes, from the header in b[:48].
func PayloadLen(b []byte) uint32 { return binary.BigEndian.Uint32(b[16:]) }
