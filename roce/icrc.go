package roce

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// Port is the UDP port that RoCEv2 is received on.
const Port = 4791

// MaxPayload is the most that a packet carries: the largest MTU of InfiniBand.
const MaxPayload = 4096

// maxPacket is the longest packet that is checked, without its CRC.
const maxPacket = MaxPayload + MaxHeader

// Flow computes the invariant CRC (ICRC) of packets from one address and port to another. It
// is CRC-32 as Ethernet has it over eight bytes of ones, the IP header, the UDP header and
// the packet, with everything a router may change taken as ones.
//
// Over IPv4 the identification is covered. Nobody else knows it who has a plain socket, and
// these rules follow:
//
//   - A socket that is not connected and has IP_MTU_DISCOVER = DO or PROBE sends identification 0
//     with the don't-fragment bit. A burst of one system call (UDP_SEGMENT) that the kernel
//     cuts has identification i in its i-th packet, from 0 on. So a sender knows it.
//   - A receiver is not told. Check finds the identification with which the CRC is right;
//     with one of 2^16 there is one by chance.
//
// Another sender is taken to set the don't-fragment bit, as rxe does.
//
// A Flow is used by one caller at a time: it holds the headers as they are hashed, since what
// is given to hash/crc32 must not be made anew for each packet.
//
// Of what stands before the packet only a length and the identification change, and in a burst, and in
// all bursts of a message, the lengths are the same. So the CRC up to there is remembered for
// each of the first identifications. The first header of the packet follows, twelve bytes, for
// which hash/crc32 would go byte by byte; the rest it hashes by carry-less multiplication.
type Flow struct {
	head   [maxPrefix]byte // ones, IP, UDP
	ip     int             // where BTH begins
	v4     bool
	before [MaxBurst]prefix // by identification
	next   uint16           // identification that a packet is likely to have: of the burst's next one
}

// prefix is the CRC of what stands before a packet of a length: its register, not inverted.
type prefix struct {
	udp int // the length in UDP's header; 0: nothing is remembered
	sum uint32
}

const (
	onesLen   = 8
	ipv4Len   = 20
	ipv6Len   = 40
	udpLen    = 8
	maxPrefix = onesLen + ipv6Len + udpLen

	protocolUDP  = 17
	dontFragment = 0x40 // of the byte behind the identification
)

// Places in Flow.head.
const (
	ipv4Total = onesLen + 2
	ipv4Ident = onesLen + 4
	ipv6Total = onesLen + 4
)

// ErrFamily says that two addresses cannot be the ends of one packet.
var ErrFamily = errors.New("roce: the addresses of a flow are not of one family")

// NewFlow makes the flow of packets from src to dst. IPv4 addresses in IPv6 are IPv4.
func NewFlow(src, dst netip.AddrPort) (*Flow, error) {
	f := &Flow{}
	if err := f.set(src, dst); err != nil {
		return nil, err
	}
	return f, nil
}

// set makes f the flow of packets from src to dst. It fails with ErrFamily.
func (f *Flow) set(src, dst netip.AddrPort) error {
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	if !from.IsValid() || !to.IsValid() || from.Is4() != to.Is4() {
		return ErrFamily
	}
	f.before, f.next = [MaxBurst]prefix{}, 0
	f.v4 = from.Is4()
	// What no router leaves alone stays at ones: class of service, time to live, flow
	// label, both checksums.
	for i := range f.head {
		f.head[i] = 0xff
	}
	h := f.head[onesLen:]
	if f.v4 {
		h[0] = 0x45
		h[6], h[7] = dontFragment, 0
		h[9] = protocolUDP
		a, b := from.As4(), to.As4()
		copy(h[12:], a[:])
		copy(h[16:], b[:])
		f.ip = onesLen + ipv4Len + udpLen
	} else {
		h[0] = 0x6f
		h[6] = protocolUDP
		a, b := from.As16(), to.As16()
		copy(h[8:], a[:])
		copy(h[24:], b[:])
		f.ip = onesLen + ipv6Len + udpLen
	}
	udp := f.head[f.ip-udpLen:]
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	return nil
}

// ICRC is the CRC of a packet that consists of its headers, which are head and hold at least
// the first one, and of up to three pieces and padding, which are body. It leaves with the
// identification ident: its place in its burst. Over IPv6 there is none.
//
// AppendICRC puts the result behind a packet.
func (f *Flow) ICRC(ident uint16, head []byte, body ...[]byte) uint32 {
	n := len(head)
	for _, b := range body {
		n += len(b)
	}
	sum := ^bthSum(f.prefix(ident, udpLen+n+icrcLen), head)
	if len(head) > bthLen {
		sum = crc32.Update(sum, crc32.IEEETable, head[bthLen:])
	}
	for _, b := range body {
		if len(b) > 0 { // most pieces are empty
			sum = crc32.Update(sum, crc32.IEEETable, b)
		}
	}
	return sum
}

// prefix is the register of the CRC before a packet with an identification, where UDP's header says
// that udp bytes come.
func (f *Flow) prefix(ident uint16, udp int) uint32 {
	var known *prefix
	if int(ident) < len(f.before) {
		known = &f.before[ident]
		if known.udp == udp {
			return known.sum
		}
	}
	if f.v4 {
		binary.BigEndian.PutUint16(f.head[ipv4Total:], uint16(ipv4Len+udp))
		binary.BigEndian.PutUint16(f.head[ipv4Ident:], ident)
	} else {
		binary.BigEndian.PutUint16(f.head[ipv6Total:], uint16(udp))
	}
	binary.BigEndian.PutUint16(f.head[f.ip-4:], uint16(udp))
	sum := ^crc32.ChecksumIEEE(f.head[:f.ip])
	if known != nil {
		*known = prefix{udp, sum}
	}
	return sum
}

// bthTables have for each byte of the first header what it adds to the CRC behind that header, so
// that none waits for the one before.
var bthTables = func() (t [bthLen][256]uint32) {
	last := &t[bthLen-1]
	for b := range last {
		last[b] = crc32.IEEETable[b]
	}
	for i := bthLen - 2; i >= 0; i-- {
		for b := range t[i] {
			v := t[i+1][b]
			t[i][b] = v>>8 ^ last[v&0xff]
		}
	}
	return t
}()

// bthSum is the register of the CRC behind the first header, which head begins with. Its byte with
// the congestion marks is hashed as ones.
func bthSum(sum uint32, head []byte) uint32 {
	h, t := (*[bthLen]byte)(head), &bthTables
	sum ^= binary.LittleEndian.Uint32(h[:])
	return t[0][sum&0xff] ^ t[1][sum>>8&0xff] ^ t[2][sum>>16&0xff] ^ t[3][sum>>24] ^
		t[variantByte][0xff] ^ t[5][h[5]] ^ t[6][h[6]] ^ t[7][h[7]] ^
		t[8][h[8]] ^ t[9][h[9]] ^ t[10][h[10]] ^ t[11][h[11]]
}

// AppendICRC appends a CRC as it stands in a packet: it alone is little-endian.
func AppendICRC(b []byte, sum uint32) []byte { return binary.LittleEndian.AppendUint32(b, sum) }

// CheckIdent reports whether the CRC at the end of pkt is right if its identification is
// ident.
func (f *Flow) CheckIdent(pkt []byte, ident uint16) bool {
	d, ok := f.difference(pkt, ident)
	return ok && d == 0
}

// Check reports whether the CRC at the end of pkt is right for some identification, and for
// which. Over IPv6 there is none, and the check is a full one.
func (f *Flow) Check(pkt []byte) (ident uint16, ok bool) {
	if !f.v4 {
		d, ok := f.difference(pkt, 0)
		return 0, ok && d == 0
	}
	guess := f.next
	if int(guess) >= len(f.before) {
		guess = 0
	}
	d, ok := f.difference(pkt, guess)
	if !ok {
		return 0, false
	}
	if ident = guess; d != 0 {
		// The CRC is linear: d is the remainder of what the identification and the guess differ by,
		// and the zeros behind it. Moved back by those zeros it is that itself, or not of 16 bits.
		v := multiply(d, unshift[(len(pkt)-icrcLen)/4])
		if v>>16 != 0 {
			return 0, false
		}
		ident ^= bits.ReverseBytes16(uint16(v))
	}
	f.next = ident + 1
	return ident, true
}

// difference is by what the CRC at the end of pkt differs from the one it would have with an
// identification. It is not ok if pkt is no packet.
func (f *Flow) difference(pkt []byte, ident uint16) (d uint32, ok bool) {
	n := len(pkt) - icrcLen
	if n < bthLen || n > maxPacket || n%4 != 0 {
		return 0, false
	}
	return f.ICRC(ident, pkt[:n]) ^ binary.LittleEndian.Uint32(pkt[n:]), true
}

// Polynomials modulo that of the CRC have the bit order of the CRC: bit 31 is x^0.
const one = 1 << 31

// unshift has for a packet of 4i bytes x to the power of minus the bits from the first of the
// identification to its end: two bytes of it, 14 of the IP header behind it, UDP, packet.
var unshift = func() (t [maxPacket/4 + 1]uint32) {
	v := uint32(one)
	for range 8 * (2 + 14 + udpLen) {
		v = divideX(v)
	}
	for i := range t {
		t[i] = v
		for range 32 {
			v = divideX(v)
		}
	}
	return t
}()

// divideX is v / x.
func divideX(v uint32) uint32 {
	if v&one != 0 { // the polynomial has a term x^0, so this takes v's away
		return (v^crc32.IEEE)<<1 | 1
	}
	return v << 1
}

// multiply is a * b.
func multiply(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		p ^= b & -(a >> 31)
		b = b>>1 ^ crc32.IEEE&-(b&1) // times x
	}
	return p
}
