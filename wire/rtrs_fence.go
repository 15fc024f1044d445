package wire

import "encoding/binary"

// What rdsd adds to RTRS: messages of their own types, sends on connection 0,
// and marks in bytes that a kernel leaves zero and ignores. They are used only
// between two ends that have both shown the mark RTRSFences.
const (
	RTRSFenceType   RTRSType = 0x8001 // to the server: end what is left of a path's older life
	RTRSFencedType  RTRSType = 0x8002 // to the client: it has ended
	RTRSRefusedType RTRSType = 0x8003 // to the client: why there is no INFO_RSP, or why the session ends
	RTRSRestType    RTRSType = 0x8004 // to the client: do you need your chunks?
	RTRSRestedType  RTRSType = 0x8005 // to the server: no, and nothing is sent until RTRSWakeType; or an errno: yes
	RTRSWakeType    RTRSType = 0x8006 // to the client: go on

	RTRSFenceLen  = 24 // bytes of FENCE and FENCED
	RTRSNoticeLen = 8  // bytes of the others

	// RTRSFences in the flags of a CON_RSP: the server understands FENCE, and
	// its INFO_RSP has a generation.
	RTRSFences = 1 << 2

	rtrsFencesAt  = 44 // of a CON_REQ
	rtrsFencesBit = 1 << 1
)

// RTRSFence names one life of a path: all up to this attempt to connect it.
type RTRSFence struct {
	Type    RTRSType // RTRSFenceType or RTRSFencedType
	Attempt uint16   // of the path to connect, as its CON_REQ had it
	Errno   uint16   // FENCED: why not, 0: done
	Path    [RTRSUUIDLen]byte
}

// Append appends the 24 bytes of f to b.
func (f *RTRSFence) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(f.Type))
	b = le.AppendUint16(b, f.Attempt)
	b = le.AppendUint16(b, f.Errno)
	return append(append(b, 0, 0), f.Path[:]...)
}

// ParseRTRSFence reads a FENCE or a FENCED.
func ParseRTRSFence(b []byte) (f RTRSFence, err error) {
	if len(b) < RTRSFenceLen {
		return f, ErrRTRSShort
	}
	le := binary.LittleEndian
	f = RTRSFence{RTRSType(le.Uint16(b)), le.Uint16(b[2:]), le.Uint16(b[4:]), [RTRSUUIDLen]byte(b[8:])}
	if f.Type != RTRSFenceType && f.Type != RTRSFencedType {
		return RTRSFence{}, ErrRTRSType
	}
	return f, nil
}

// RTRSNotice is a message that has nothing but a type and an errno: REFUSED,
// REST, RESTED, WAKE.
type RTRSNotice struct {
	Type  RTRSType
	Errno uint16
}

// Append appends the 8 bytes of n to b.
func (n RTRSNotice) Append(b []byte) []byte {
	le := binary.LittleEndian
	return append(le.AppendUint16(le.AppendUint16(b, uint16(n.Type)), n.Errno), 0, 0, 0, 0)
}

// ParseRTRSNotice reads one of them.
func ParseRTRSNotice(b []byte) (RTRSNotice, error) {
	if len(b) < RTRSNoticeLen {
		return RTRSNotice{}, ErrRTRSShort
	}
	n := RTRSNotice{RTRSType(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint16(b[2:])}
	if n.Type < RTRSRefusedType || n.Type > RTRSWakeType {
		return RTRSNotice{}, ErrRTRSType
	}
	return n, nil
}

// RTRSMessageType is the type of the message that b begins with.
func RTRSMessageType(b []byte) (RTRSType, error) {
	if len(b) < 2 {
		return 0, ErrRTRSShort
	}
	return RTRSType(binary.LittleEndian.Uint16(b)), nil
}

// SetRTRSFences marks the CON_REQ b: its client understands what is here.
func SetRTRSFences(b []byte) { b[:RTRSConnLen][rtrsFencesAt] |= rtrsFencesBit }

// RTRSFencesSet says whether the CON_REQ b has that mark.
func RTRSFencesSet(b []byte) bool {
	return len(b) >= RTRSConnLen && b[rtrsFencesAt]&rtrsFencesBit != 0
}

// SetRTRSGeneration writes into the INFO_RSP b which life of the session at the
// server it is: while it is the same, the server has forgotten nothing. A
// kernel's is 0.
func SetRTRSGeneration(b []byte, g uint32) { binary.LittleEndian.PutUint32(b[4:RTRSInfoRspLen], g) }

// RTRSGeneration reads it from an INFO_RSP that ParseRTRSInfoRsp accepts.
func RTRSGeneration(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:RTRSInfoRspLen]) }
