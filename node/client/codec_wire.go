package client

import (
	"encoding/binary"
	"net/netip"
)

// Field numbers and wire types of rdsd.proto, for the messages that are read
// and written by hand. codec_test.go compares them with the generated code.
const (
	wireVarint = 0
	wireBytes  = 2

	tagClientSend = 2<<3 | wireBytes

	tagSendID           = 1<<3 | wireVarint
	tagSendPayload      = 2<<3 | wireBytes
	tagSendLength       = 3<<3 | wireBytes
	tagSendDestination  = 4<<3 | wireBytes
	tagSendIndex        = 5<<3 | wireBytes
	tagSendFirstTag     = 6<<3 | wireVarint
	tagSendWantOutcomes = 7<<3 | wireVarint
	tagSendWait         = 8<<3 | wireVarint
	tagSendTimeout      = 9<<3 | wireVarint

	tagServerSendResult = 2<<3 | wireBytes
	tagServerRecv       = 3<<3 | wireBytes

	tagResultID       = 1<<3 | wireVarint
	tagResultAccepted = 2<<3 | wireVarint

	tagRecvPayload = 1<<3 | wireBytes
	tagRecvLength  = 2<<3 | wireBytes
	tagRecvSource  = 3<<3 | wireBytes
	tagRecvIndex   = 4<<3 | wireBytes

	tagEndpointAddress = 1<<3 | wireBytes
	tagEndpointPort    = 2<<3 | wireVarint
)

// cutBytes splits a length-delimited field body from what follows.
func cutBytes(p []byte) (body, rest []byte, ok bool) {
	l, n := binary.Uvarint(p)
	if n <= 0 || l > uint64(len(p)-n) {
		return nil, nil, false
	}
	end := n + int(l)
	return p[n:end], p[end:], true
}

// appendVarints decodes packed 32-bit varints.
func appendVarints(dst []uint32, p []byte) ([]uint32, bool) {
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

// parseEndpoint reads an Endpoint. Whether address and port make sense is for
// the caller to say; the raw address is kept by its length.
func parseEndpoint(p []byte) (e rawEndpoint, ok bool) {
	for len(p) > 0 {
		switch p[0] {
		case tagEndpointAddress:
			body, rest, ok := cutBytes(p[1:])
			if !ok {
				return e, false
			}
			e.setAddress(body)
			p = rest
		case tagEndpointPort:
			v, n := binary.Uvarint(p[1:])
			if n <= 0 || v > 1<<32-1 {
				return e, false
			}
			e.port = uint32(v)
			p = p[1+n:]
		default:
			return e, false
		}
	}
	return e, true
}

// rawEndpoint is an Endpoint as a client wrote it.
type rawEndpoint struct {
	addr    netip.Addr // invalid unless addrLen is 4 or 16
	addrLen int
	port    uint32
}

func (e *rawEndpoint) setAddress(b []byte) {
	e.addrLen = len(b)
	e.addr, _ = netip.AddrFromSlice(b)
	e.addr = e.addr.Unmap()
}

func sizeVarint(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

func endpointSize(a netip.AddrPort) int {
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
	h = append(h, tagEndpointAddress)
	if a.Addr().Is4() {
		raw := a.Addr().As4()
		h = append(append(h, 4), raw[:]...)
	} else {
		raw := a.Addr().As16()
		h = append(append(h, 16), raw[:]...)
	}
	if a.Port() != 0 {
		h = append(h, tagEndpointPort)
		h = binary.AppendUvarint(h, uint64(a.Port()))
	}
	return h
}
