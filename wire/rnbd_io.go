package wire

import (
	"encoding/binary"
	"fmt"
)

// RNBDOp is what an I/O asks for.
type RNBDOp uint8

// Operations.
const (
	RNBDRead RNBDOp = iota
	RNBDWrite
	RNBDFlush
	RNBDDiscard
	RNBDSecureErase
	RNBDWriteZeroes // since Linux 6.8; WRITE_SAME before, which nobody sent
)

var rnbdOpNames = [...]string{"read", "write", "flush", "discard", "secure-erase", "write-zeroes"}

func (o RNBDOp) String() string {
	if int(o) < len(rnbdOpNames) {
		return rnbdOpNames[o]
	}
	return "unknown"
}

// RNBDFlags are the bits of RNBDIO.RW above the operation. Unknown ones are
// ignored by servers.
type RNBDFlags uint32

// Flags of an I/O.
const (
	RNBDSync     RNBDFlags = 1 << 8  // somebody waits for it
	RNBDFUA      RNBDFlags = 1 << 9  // durable before the answer; kernels set it on every flush
	RNBDPreflush RNBDFlags = 1 << 10 // protocol 2.1: what was written before, too
	RNBDNoUnmap  RNBDFlags = 1 << 11 // protocol 2.2: zeroes that keep their space
	rnbdOpMask             = 0xff
)

// RNBDNoSector is the sector of a kernel's flush.
const RNBDNoSector = 1<<64 - 1

// RNBDIO is a request to an open device (struct rnbd_msg_io).
type RNBDIO struct {
	DeviceID uint32
	Sector   uint64
	RW       uint32 // operation and flags
	Size     uint32 // bytes; 0 for a flush
	Prio     uint16 // the kernel's I/O priority: class<<13 + level; 0 is none
}

// RNBDRW puts an operation and flags together for RNBDIO.RW.
func RNBDRW(op RNBDOp, f RNBDFlags) uint32 { return uint32(op) | uint32(f&^rnbdOpMask) }

// Op is the operation.
func (o *RNBDIO) Op() RNBDOp { return RNBDOp(o.RW & rnbdOpMask) }

// Flags are the flags, unknown ones among them.
func (o *RNBDIO) Flags() RNBDFlags { return RNBDFlags(o.RW &^ rnbdOpMask) }

// Append appends the 32 bytes of o to b.
func (o *RNBDIO) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = appendRNBDHdr(b, RNBDIOType)
	b = le.AppendUint32(b, o.DeviceID)
	b = le.AppendUint64(b, o.Sector)
	b = le.AppendUint32(b, o.RW)
	b = le.AppendUint32(b, o.Size)
	b = le.AppendUint16(b, o.Prio)
	return append(b, 0, 0, 0, 0, 0, 0)
}

// ParseRNBDIO copies an IO out of b, each field read once. A message that ends
// before its 32 bytes, as of the first kernels, has no priority.
func ParseRNBDIO(b []byte) (o RNBDIO, err error) {
	if err := rnbdExpect(b, RNBDIOType, rnbdIOMinLen); err != nil {
		return RNBDIO{}, err
	}
	le := binary.LittleEndian
	o = RNBDIO{DeviceID: le.Uint32(b[4:]), Sector: le.Uint64(b[8:]), RW: le.Uint32(b[16:]), Size: le.Uint32(b[20:])}
	if len(b) >= RNBDIOLen {
		o.Prio = le.Uint16(b[24:])
	}
	return o, nil
}

// Carrier is the RTRS request that bears an operation. A flush is a READ
// without data, whatever one might expect.
func (o RNBDOp) Carrier() RTRSType {
	if o == RNBDRead || o == RNBDFlush {
		return RTRSRead
	}
	return RTRSWrite
}

// HasData: Size bytes go along, one way or the other.
func (o RNBDOp) HasData() bool { return o == RNBDRead || o == RNBDWrite }

// Check says whether o belongs to an RTRS request of type t with dataLen bytes
// of data, which a server has to ask before it believes Size. Sectors, block
// sizes and the right to write are the device's to judge.
func (o *RNBDIO) Check(t RTRSType, dataLen uint32) error {
	op := o.Op()
	var want uint32
	if op.HasData() {
		want = o.Size
	}
	switch {
	case op > RNBDWriteZeroes:
		return ErrRNBDOp
	case op.Carrier() != t:
		return ErrRNBDDir
	case want != dataLen || op.HasData() && want == 0:
		return ErrRNBDSize
	}
	return nil
}

func (o *RNBDIO) String() string {
	return fmt.Sprintf("%v dev=%d sector=%d bytes=%d flags=%#x prio=%#x", o.Op(), o.DeviceID, o.Sector, o.Size, uint32(o.Flags()), o.Prio)
}
