package fastwire

import (
	"encoding/binary"
	"net/netip"
)

// Cut splits the body of a field that has its length in front from what follows it. It
// reports false if p ends before the body does.
func Cut(p []byte) (body, rest []byte, ok bool) {
	l, n := binary.Uvarint(p)
	if n <= 0 || l > uint64(len(p)-n) {
		return nil, nil, false
	}
	end := n + int(l)
	return p[n:end], p[end:], true
}

// Uint32s appends the packed numbers of p to dst. It reports false if one of them is cut
// off or has more than 32 bits.
func Uint32s(dst []uint32, p []byte) ([]uint32, bool) {
	for len(p) > 0 {
		if p[0] < 0x80 { // most lengths and nearly all indices
			dst = append(dst, uint32(p[0]))
			p = p[1:]
			continue
		}
		v, n := binary.Uvarint(p)
		if n <= 0 || v > 1<<32-1 {
			return dst, false
		}
		dst = append(dst, uint32(v))
		p = p[n:]
	}
	return dst, true
}

// SizeUint32s returns how many bytes list takes when it is packed, without its tag and
// length.
func SizeUint32s(list []uint32) int {
	size := 0
	for _, v := range list {
		size += sizeVarint(uint64(v))
	}
	return size
}

// AppendUint32s appends a packed field of size bytes (SizeUint32s).
func AppendUint32s(h []byte, tag byte, list []uint32, size int) []byte {
	h = append(h, tag)
	h = binary.AppendUvarint(h, uint64(size))
	for _, v := range list {
		h = binary.AppendUvarint(h, uint64(v))
	}
	return h
}

// SizeEndpoints returns how many bytes list takes as repeated fields with a tag each.
func SizeEndpoints(list []netip.AddrPort) int {
	size := 0
	for _, a := range list {
		n := sizeEndpoint(a)
		size += 1 + sizeVarint(uint64(n)) + n
	}
	return size
}

// AppendEndpoints appends an Endpoint under tag for each of list.
func AppendEndpoints(h []byte, tag byte, list []netip.AddrPort) []byte {
	for _, a := range list {
		h = append(h, tag)
		h = binary.AppendUvarint(h, uint64(sizeEndpoint(a)))
		h = appendEndpoint(h, a)
	}
	return h
}

// ParseEndpoint reads the body of an Endpoint. Whether address and port make sense is for
// the caller to say: address is as long as it was sent, and port has up to 32 bits. It
// reports false for what is cut off and for a field that it does not know.
func ParseEndpoint(p []byte) (address []byte, port uint32, ok bool) {
	for len(p) > 0 {
		switch p[0] {
		case EndpointAddress:
			if address, p, ok = Cut(p[1:]); !ok {
				return nil, 0, false
			}
		case EndpointPort:
			v, n := binary.Uvarint(p[1:])
			if n <= 0 || v > 1<<32-1 {
				return nil, 0, false
			}
			port, p = uint32(v), p[1+n:]
		default:
			return nil, 0, false
		}
	}
	return address, port, true
}

func sizeVarint(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

func sizeEndpoint(a netip.AddrPort) int {
	n := 2 + 16
	if a.Addr().Is4() {
		n = 2 + 4
	}
	if a.Port() != 0 {
		n += 1 + sizeVarint(uint64(a.Port()))
	}
	return n
}

func appendEndpoint(h []byte, a netip.AddrPort) []byte {
	h = append(h, EndpointAddress)
	if a.Addr().Is4() {
		raw := a.Addr().As4()
		h = append(append(h, 4), raw[:]...)
	} else {
		raw := a.Addr().As16()
		h = append(append(h, 16), raw[:]...)
	}
	if a.Port() != 0 {
		h = append(h, EndpointPort)
		h = binary.AppendUvarint(h, uint64(a.Port()))
	}
	return h
}
