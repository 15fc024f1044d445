package wire

import "encoding/binary"

// Extension types (enum in net/rds/rds.h). There is no length byte: the type
// implies it. A type a kernel does not know has length 0 for it if below 16,
// and ends the walk from 16 up.
const (
	ExtEnd      = 0
	ExtVersion  = 1
	ExtRDMA     = 2
	ExtRDMADest = 3
	ExtNPaths   = 5
	ExtGenNum   = 6
	ExtSportIdx = 8
	extKernel   = 16

	// ExtHello is rdsd's own: above 16, so that every kernel stops its walk
	// there. It is put behind the kernel's extensions in handshake messages.
	ExtHello = 0xd5
)

// extLen is the payload length the kernel's types imply; types absent here
// count as 0, as in kernel 6.1, except those newer kernels send.
var extLen = [extKernel]int{ExtVersion: 4, ExtRDMA: 4, ExtRDMADest: 8, 4: 8, ExtNPaths: 2, ExtGenNum: 4, 7: 4, ExtSportIdx: 1, 9: 5}

// Hello is the part of the handshake that one rdsd sends another.
type Hello struct {
	Version     uint8  // 1
	Lanes       uint8  // most lanes it wants, 1..8
	CreditLog2  uint8  // it grants 1<<CreditLog2 credits on each link to begin with
	Caps        uint8  // its abilities, Cap bits; unknown ones are ignored
	Incarnation uint64 // of its protocol state towards this peer; never 0
}

// CapTrains in Hello.Caps: it takes trains.
const CapTrains = 1 << 0

// HelloVersion is the version of the additions this package describes.
const HelloVersion = 1

const helloLen = 12

// MaxCreditLog2 bounds the credits a peer may claim to grant.
const MaxCreditLog2 = 20

// Handshake is the extension space of a handshake message.
type Handshake struct {
	NPaths   uint16 // 0: absent
	GenNum   uint32 // 0: absent
	SportIdx bool
	Hello    Hello // Version 0: absent
}

// Encode writes the extensions into a header's space: the kernel's types first, rdsd's
// last. GenNum, SportIdx and Hello do not fit together; Hello gives way.
func (x *Handshake) Encode() (e [ExtLen]byte) {
	n := 0
	if x.NPaths != 0 {
		e[n] = ExtNPaths
		binary.BigEndian.PutUint16(e[n+1:], x.NPaths)
		n += 3
	}
	if x.GenNum != 0 {
		e[n] = ExtGenNum
		binary.BigEndian.PutUint32(e[n+1:], x.GenNum)
		n += 5
	}
	if x.SportIdx {
		e[n] = ExtSportIdx
		n += 2
	}
	if x.Hello.Version != 0 && n+1+helloLen <= ExtLen {
		e[n] = ExtHello
		e[n+1], e[n+2], e[n+3], e[n+4] = x.Hello.Version, x.Hello.Lanes, x.Hello.CreditLog2, x.Hello.Caps
		binary.BigEndian.PutUint64(e[n+5:], x.Hello.Incarnation)
	}
	return e
}

// ParseHandshake walks the extension space by the kernel's rules: it stops at
// type 0, at a type it cannot size, or when a payload would pass the end.
// Nothing in it is an error; a Hello that makes no sense counts as absent.
func ParseHandshake(e *[ExtLen]byte) (x Handshake) {
	for n := 0; n < ExtLen; {
		t := e[n]
		n++
		if t == ExtHello {
			if n+helloLen <= ExtLen {
				x.Hello = parseHello(e[n : n+helloLen])
			}
			return x
		}
		if t == ExtEnd || t >= extKernel || n+extLen[t] > ExtLen {
			return x
		}
		switch p := e[n : n+extLen[t]]; t {
		case ExtNPaths:
			x.NPaths = binary.BigEndian.Uint16(p)
		case ExtGenNum:
			x.GenNum = binary.BigEndian.Uint32(p)
		case ExtSportIdx:
			x.SportIdx = true
		}
		n += extLen[t]
	}
	return x
}

func parseHello(p []byte) Hello {
	h := Hello{p[0], p[1], p[2], p[3], binary.BigEndian.Uint64(p[4:])}
	if h.Version == 0 || h.Lanes < 1 || h.Lanes > MaxLanes || h.CreditLog2 > MaxCreditLog2 || h.Incarnation == 0 {
		return Hello{}
	}
	return h
}
