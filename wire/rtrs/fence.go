package rtrs

import "encoding/binary"

// The additions of rdsd to RTRS: messages of their own types, sends on connection 0, and
// marks in bytes that a kernel leaves zero and ignores. They are used only between two ends
// that have both shown the mark Fences.
const (
	FenceType   Type = 0x8001 // to the server: end the older attempts of a path
	FencedType  Type = 0x8002 // to the client: they have ended
	RefusedType Type = 0x8003 // to the client: why there is no INFO_RSP, or why the session ends
	RestType    Type = 0x8004 // to the client: do you need your chunks?
	RestedType  Type = 0x8005 // to the server: no, and nothing is sent until WakeType; or an errno: yes
	WakeType    Type = 0x8006 // to the client: go on

	FenceLen  = 24 // bytes of FENCE and FENCED
	NoticeLen = 8  // bytes of the others

	// Fences in the flags of a CON_RSP: the server understands FENCE, and
	// its INFO_RSP has a generation.
	Fences = 1 << 2

	fencesAt  = 44 // of a CON_REQ
	fencesBit = 1 << 1
)

// Fence names the attempts to connect a path, up to this one.
type Fence struct {
	Type    Type   // FenceType or FencedType
	Attempt uint16 // of the path to connect, as its CON_REQ had it
	Errno   uint16 // FENCED: why not, 0: done
	Path    [UUIDLen]byte
}

// Append appends the 24 bytes of f to b.
func (f *Fence) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(f.Type))
	b = le.AppendUint16(b, f.Attempt)
	b = le.AppendUint16(b, f.Errno)
	return append(append(b, 0, 0), f.Path[:]...)
}

// ParseFence reads a FENCE or a FENCED.
func ParseFence(b []byte) (f Fence, err error) {
	if len(b) < FenceLen {
		return f, ErrShort
	}
	le := binary.LittleEndian
	f = Fence{Type(le.Uint16(b)), le.Uint16(b[2:]), le.Uint16(b[4:]), [UUIDLen]byte(b[8:])}
	if f.Type != FenceType && f.Type != FencedType {
		return Fence{}, ErrType
	}
	return f, nil
}

// Notice is a message that has nothing but a type and an errno: REFUSED,
// REST, RESTED, WAKE.
type Notice struct {
	Type  Type
	Errno uint16
}

// Append appends the 8 bytes of n to b.
func (n Notice) Append(b []byte) []byte {
	le := binary.LittleEndian
	return append(le.AppendUint16(le.AppendUint16(b, uint16(n.Type)), n.Errno), 0, 0, 0, 0)
}

// ParseNotice reads one of them.
func ParseNotice(b []byte) (Notice, error) {
	if len(b) < NoticeLen {
		return Notice{}, ErrShort
	}
	n := Notice{Type(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint16(b[2:])}
	if n.Type < RefusedType || n.Type > WakeType {
		return Notice{}, ErrType
	}
	return n, nil
}

// MessageType is the type of the message that b begins with.
func MessageType(b []byte) (Type, error) {
	if len(b) < 2 {
		return 0, ErrShort
	}
	return Type(binary.LittleEndian.Uint16(b)), nil
}

// SetFences marks the CON_REQ b: its client understands these additions.
func SetFences(b []byte) { b[:ConnLen][fencesAt] |= fencesBit }

// FencesSet says whether the CON_REQ b has that mark.
func FencesSet(b []byte) bool {
	return len(b) >= ConnLen && b[fencesAt]&fencesBit != 0
}

// SetGeneration writes the generation of the session at the server into the INFO_RSP b:
// while it is the same, the server has forgotten nothing. A kernel's is 0.
func SetGeneration(b []byte, g uint32) { binary.LittleEndian.PutUint32(b[4:InfoRspLen], g) }

// Generation reads it from an INFO_RSP that ParseInfoRsp accepts.
func Generation(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:InfoRspLen]) }
