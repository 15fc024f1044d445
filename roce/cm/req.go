package cm

import (
	"encoding/binary"
	"net/netip"

	"github.com/rdsd/rdsd/roce"
)

// req asks for a connection (InfiniBand, 12.6.5). The alternate path, at 96 to 139, is not
// used here, nor are end-to-end contexts.
type req struct {
	local         uint32 // 0
	service       uint64 // 8: who is asked
	guid          uint64 // 16: of the sender's device
	qpn           uint32 // 32, 24 bits
	readsIn       uint8  // 35: responder resources
	reads         uint8  // 39: initiator depth
	remoteTimeout uint8  // 43, bits 7-3: code of the time in which the receiver ought to answer
	transport     uint8  // 43, bits 2-1
	flowControl   bool   // 43, bit 0: end to end
	recvPSN       roce.PSN
	localTimeout  uint8 // 47, bits 7-3: code of the time in which the sender answers the REP
	retry         uint8 // 47, bits 2-0
	pkey          uint16
	mtu           uint8      // 50, bits 7-4: code
	rnrRetry      uint8      // 50, bits 2-0
	maxRetries    uint8      // 51, bits 7-4: times a message of the connection manager is repeated
	srq           bool       // 51, bit 3
	localLID      uint16     // 52: RoCE has no LIDs, and ffff in their places
	remoteLID     uint16     // 54
	localGID      netip.Addr // 56
	remoteGID     netip.Addr // 72
	flowLabel     uint32     // 88, 20 bits
	rate          uint8      // 91, low 6 bits
	class         uint8      // 92: traffic class
	hopLimit      uint8      // 93
	ackTimeout    uint8      // 95, bits 7-3: code
	header        ipHeader   // 140
	private       []byte     // 176: 56 bytes
}

// transportRC is a reliable connection, the only transport there is here.
const transportRC = 0

const (
	reqHeader  = 140 // where the private data of InfiniBand's REQ begins
	reqPrivate = reqHeader + ipHeaderLen
)

func (p *req) put(mad *[MADLen]byte, tid uint64) {
	b, be := start(mad, attrREQ, tid), binary.BigEndian
	be.PutUint32(b[atLocalID:], p.local)
	be.PutUint64(b[8:], p.service)
	be.PutUint64(b[16:], p.guid)
	put24(b[32:], p.qpn)
	b[35], b[39] = p.readsIn, p.reads
	b[43] = p.remoteTimeout<<3 | p.transport<<1 | set(p.flowControl, 1)
	put24(b[44:], uint32(p.recvPSN))
	b[47] = p.localTimeout<<3 | p.retry
	be.PutUint16(b[48:], p.pkey)
	b[50] = p.mtu<<4 | p.rnrRetry
	b[51] = p.maxRetries<<4 | set(p.srq, 1<<3)
	be.PutUint16(b[52:], p.localLID)
	be.PutUint16(b[54:], p.remoteLID)
	putAddr(b[56:], p.localGID)
	putAddr(b[72:], p.remoteGID)
	// The label's 20 bits, 6 reserved ones, and the 6 of the rate.
	be.PutUint32(b[88:], p.flowLabel<<12|uint32(p.rate))
	b[92], b[93], b[95] = p.class, p.hopLimit, p.ackTimeout<<3
	p.header.put(b[reqHeader:])
	copy(b[reqPrivate:], p.private)
}

// parse reads a REQ's body, to which p.private refers. It reports whether it has RDMA-CM's
// header: without that nobody can be meant here.
func (p *req) parse(b []byte) bool {
	be := binary.BigEndian
	*p = req{
		local: be.Uint32(b[atLocalID:]), service: be.Uint64(b[8:]), guid: be.Uint64(b[16:]),
		qpn: get24(b[32:]), readsIn: b[35], reads: b[39],
		remoteTimeout: b[43] >> 3, transport: b[43] >> 1 & 3, flowControl: b[43]&1 != 0,
		recvPSN:      roce.PSN(get24(b[44:])),
		localTimeout: b[47] >> 3, retry: b[47] & 7, pkey: be.Uint16(b[48:]),
		mtu: b[50] >> 4, rnrRetry: b[50] & 7, maxRetries: b[51] >> 4, srq: b[51]&(1<<3) != 0,
		localLID: be.Uint16(b[52:]), remoteLID: be.Uint16(b[54:]),
		localGID: getAddr(b[56:]), remoteGID: getAddr(b[72:]),
		flowLabel: be.Uint32(b[88:]) >> 12, rate: b[91] & 0x3f,
		class: b[92], hopLimit: b[93], ackTimeout: b[95] >> 3,
		private: b[reqPrivate:],
	}
	return p.header.parse(b[reqHeader:])
}

// ipHeader is what RDMA-CM puts before the private data of a REQ, so that the listener knows
// which address and port dialled it (InfiniBand, annex A11).
type ipHeader struct {
	port     uint16 // of the sender
	src, dst netip.Addr
}

const ipHeaderLen = 36

// The version of the addresses is in the high half of a byte; the low half is reserved.
const (
	ipVersion4 = 4
	ipVersion6 = 6
)

func (h *ipHeader) put(b []byte) {
	b[0], b[1] = 0, ipVersion6<<4
	if h.src.Is4() {
		b[1] = ipVersion4 << 4
	}
	binary.BigEndian.PutUint16(b[2:], h.port)
	for i, a := range []netip.Addr{h.src, h.dst} {
		at := b[4+16*i:][:16]
		if a.Is4() {
			// Of the sixteen bytes the last four; the others are zero, unlike in a GID.
			a4 := a.As4()
			copy(at[12:], a4[:])
		} else {
			putAddr(at, a)
		}
	}
}

// parse reports whether it is a header of a version that is known.
func (h *ipHeader) parse(b []byte) bool {
	*h = ipHeader{port: binary.BigEndian.Uint16(b[2:])}
	switch {
	case b[0] != 0:
		return false
	case b[1]>>4 == ipVersion4:
		h.src, h.dst = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[32:]))
	case b[1]>>4 == ipVersion6:
		h.src, h.dst = netip.AddrFrom16([16]byte(b[4:])), netip.AddrFrom16([16]byte(b[20:]))
	default:
		return false
	}
	return true
}

// putAddr puts an address as a GID: one of IPv4 in its mapped form.
func putAddr(b []byte, a netip.Addr) {
	g := a.As16()
	copy(b, g[:])
}

func getAddr(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

// portSpaceTCP is RDMA_PS_TCP, the port space of RTRS and RDS. The ID of a service is the
// port space and the port (include/rdma/rdma_cm.h, rdma_get_service_id).
const portSpaceTCP = 0x0106

func serviceID(port uint16) uint64 { return portSpaceTCP<<16 | uint64(port) }

// servicePort is the port that a service ID means, if it is one of the port space.
func servicePort(id uint64) (port uint16, ok bool) {
	return uint16(id), id>>16 == portSpaceTCP
}

// mtuCode is the code of a path's MTU (InfiniBand, 12.7.16), and mtuBytes the reverse: 0 if
// there is no such.
func mtuCode(mtu int) uint8 {
	for code := uint8(1); code <= 5; code++ {
		if mtuBytes(code) == mtu {
			return code
		}
	}
	return 0
}

func mtuBytes(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}
