package roce

import (
	"encoding/binary"
	"errors"
)

// DefaultPKey is the partition that every port belongs to.
const DefaultPKey = 0xffff

// Packet is a packet in parts. The opcode says which fields are on the wire; the others are
// zero when it was parsed, and not looked at when it is written.
type Packet struct {
	Op        Opcode
	Solicited bool // the receiver is to be woken
	Migrated  bool // set by cards, not by rxe, which ignores it
	FECN      bool // the network was congested on the way; not covered by the CRC
	BECN      bool // it was on the way back; likewise
	AckReq    bool // an acknowledgement is asked for
	PKey      uint16
	Dest      uint32 // queue pair of the receiver, 24 bits
	PSN       PSN

	QKey   uint32 // DETH
	Source uint32 // queue pair of the sender of a datagram, 24 bits

	Addr uint64 // RETH, AtomicETH
	Key  uint32 // likewise
	Len  uint32 // RETH: of the whole message

	Swap    uint64 // AtomicETH: what is stored, or added
	Compare uint64 // likewise: what has to be there
	Prior   uint64 // AtomicAckETH: what was there

	Syndrome Syndrome // AETH
	MSN      PSN      // likewise: messages that the responder has completed

	Imm   uint32
	Inval uint32 // IETH: the key that is invalidated

	Payload []byte // without the padding
}

// Why a packet is not one.
var (
	ErrShort   = errors.New("roce: a packet is shorter than its headers")
	ErrLength  = errors.New("roce: a packet's length is no multiple of four")
	ErrOpcode  = errors.New("roce: an opcode that is not known")
	ErrVersion = errors.New("roce: a transport header of another version")
	ErrPad     = errors.New("roce: more padding than payload")
	ErrPayload = errors.New("roce: a payload where none belongs")
)

// Bits of the first header.
const (
	bthSolicited = 1 << 7
	bthMigrated  = 1 << 6
	bthPadShift  = 4
	bthPadMask   = 3
	bthVersion   = 0x0f
	bthFECN      = 1 << 7
	bthBECN      = 1 << 6
	bthAckReq    = 1 << 7

	variantByte = 4 // of the header: congestion marks, which change on the way
)

// pad is how many bytes make n a multiple of four.
func pad(n int) int { return -n & 3 }

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// set is bit if on is true.
func set(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

// AppendHeader appends p's headers, for a payload of n bytes that follows them. What follows
// that is pad(n) zeros and the CRC.
func (p *Packet) AppendHeader(b []byte, n int) []byte {
	b = append(b, byte(p.Op),
		set(p.Solicited, bthSolicited)|set(p.Migrated, bthMigrated)|byte(pad(n)<<bthPadShift),
		byte(p.PKey>>8), byte(p.PKey),
		set(p.FECN, bthFECN)|set(p.BECN, bthBECN), byte(p.Dest>>16), byte(p.Dest>>8), byte(p.Dest),
		set(p.AckReq, bthAckReq), byte(p.PSN>>16), byte(p.PSN>>8), byte(p.PSN))
	has, be := opcodes[p.Op].has, binary.BigEndian
	// The order of the headers is the same for all opcodes; it is that of the bits of has.
	if has&hasDETH != 0 {
		b = be.AppendUint32(b, p.QKey)
		b = be.AppendUint32(b, p.Source&psnMask)
	}
	// READs and WRITEs begin theirs as atomics do.
	if has&(hasRETH|hasAtomicETH) != 0 {
		b = be.AppendUint64(b, p.Addr)
		b = be.AppendUint32(b, p.Key)
	}
	if has&hasRETH != 0 {
		b = be.AppendUint32(b, p.Len)
	}
	if has&hasAtomicETH != 0 {
		b = be.AppendUint64(b, p.Swap)
		b = be.AppendUint64(b, p.Compare)
	}
	if has&hasAETH != 0 {
		b = be.AppendUint32(b, uint32(p.Syndrome)<<psnBits|uint32(p.MSN&psnMask))
	}
	if has&hasAtomicAck != 0 {
		b = be.AppendUint64(b, p.Prior)
	}
	// No opcode has both of these.
	if has&hasImm != 0 {
		b = be.AppendUint32(b, p.Imm)
	}
	if has&hasIETH != 0 {
		b = be.AppendUint32(b, p.Inval)
	}
	return b
}

// Append appends p up to its CRC, which is the flow's to compute.
func (p *Packet) Append(b []byte) []byte {
	b = p.AppendHeader(b, len(p.Payload))
	b = append(b, p.Payload...)
	return append(b, make([]byte, pad(len(p.Payload)))...)
}

// Parse takes a datagram apart that ends with a CRC, which it does not look at. The payload
// refers to b. Reserved bits and the padding's content are not looked at either.
func (p *Packet) Parse(b []byte) error {
	if len(b) < bthLen+icrcLen {
		return ErrShort
	}
	op := Opcode(b[0])
	h := op.Header()
	n := len(b) - icrcLen - h // payload and padding
	padding := int(b[1] >> bthPadShift & bthPadMask)
	// In this order: a version that is not ours has opcodes that are not ours, and an opcode
	// decides how long the headers are.
	switch {
	case b[1]&bthVersion != 0:
		return ErrVersion
	case !op.Valid():
		return ErrOpcode
	case n < 0:
		return ErrShort
	case n%4 != 0:
		return ErrLength
	case padding > n:
		return ErrPad
	case n > 0 && opcodes[op].has&hasPayload == 0:
		return ErrPayload
	}
	*p = Packet{
		Op:        op,
		Solicited: b[1]&bthSolicited != 0, Migrated: b[1]&bthMigrated != 0,
		PKey: binary.BigEndian.Uint16(b[2:]),
		FECN: b[variantByte]&bthFECN != 0, BECN: b[variantByte]&bthBECN != 0,
		Dest: get24(b[5:]), AckReq: b[8]&bthAckReq != 0, PSN: PSN(get24(b[9:])),
		Payload: b[h:][: n-padding : n-padding],
	}
	p.parseExtensions(b[bthLen:h])
	return nil
}

// parseExtensions reads the headers of p.Op, which b is long enough for.
func (p *Packet) parseExtensions(b []byte) {
	has, be := opcodes[p.Op].has, binary.BigEndian
	if has&hasDETH != 0 {
		p.QKey, p.Source = be.Uint32(b), get24(b[5:])
		b = b[dethLen:]
	}
	if has&hasRETH != 0 {
		p.Addr, p.Key, p.Len = be.Uint64(b), be.Uint32(b[8:]), be.Uint32(b[12:])
		b = b[rethLen:]
	}
	if has&hasAtomicETH != 0 {
		p.Addr, p.Key = be.Uint64(b), be.Uint32(b[8:])
		p.Swap, p.Compare = be.Uint64(b[12:]), be.Uint64(b[20:])
		b = b[atomicETHLen:]
	}
	if has&hasAETH != 0 {
		p.Syndrome, p.MSN = Syndrome(b[0]), PSN(get24(b[1:]))
		b = b[aethLen:]
	}
	if has&hasAtomicAck != 0 {
		p.Prior = be.Uint64(b)
		b = b[atomicAckLen:]
	}
	if has&hasImm != 0 {
		p.Imm = be.Uint32(b)
		b = b[immLen:]
	}
	if has&hasIETH != 0 {
		p.Inval = be.Uint32(b)
	}
}
