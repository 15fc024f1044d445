package rnbd

import (
	"encoding/binary"
	"fmt"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Op is the operation of an I/O.
type Op uint8

// Operations.
const (
	Read Op = iota
	Write
	Flush
	Discard
	SecureErase
	WriteZeroes // since Linux 6.8; WRITE_SAME before, which was never sent
)

var opNames = [...]string{"read", "write", "flush", "discard", "secure-erase", "write-zeroes"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

// Flags are the bits of IO.RW above the operation. Unknown ones are
// ignored by servers.
type Flags uint32

// Flags of an I/O.
const (
	Sync     Flags = 1 << 8  // a caller waits for it
	FUA      Flags = 1 << 9  // durable before the answer; kernels set it on every flush
	Preflush Flags = 1 << 10 // protocol 2.1: earlier writes, too
	NoUnmap  Flags = 1 << 11 // protocol 2.2: zeroes that keep their space
	opMask         = 0xff
)

// NoSector is the sector of a kernel's flush.
const NoSector = 1<<64 - 1

// IO is a request to an open device (struct rnbd_msg_io).
type IO struct {
	DeviceID uint32
	Sector   uint64
	RW       uint32 // operation and flags
	Size     uint32 // bytes; 0 for a flush
	Prio     uint16 // the kernel's I/O priority: class<<13 + level; 0 is none
}

// RW puts an operation and flags together for IO.RW.
func RW(op Op, f Flags) uint32 { return uint32(op) | uint32(f&^opMask) }

// Op is the operation.
func (o *IO) Op() Op { return Op(o.RW & opMask) }

// Flags are the flags, unknown ones among them.
func (o *IO) Flags() Flags { return Flags(o.RW &^ opMask) }

// Append appends the 32 bytes of o to b.
func (o *IO) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = appendHdr(b, IOType)
	b = le.AppendUint32(b, o.DeviceID)
	b = le.AppendUint64(b, o.Sector)
	b = le.AppendUint32(b, o.RW)
	b = le.AppendUint32(b, o.Size)
	b = le.AppendUint16(b, o.Prio)
	return append(b, 0, 0, 0, 0, 0, 0)
}

// ParseIO copies an IO out of b, each field read once. A message that ends
// before its 32 bytes, as of the first kernels, has no priority.
func ParseIO(b []byte) (o IO, err error) {
	if err := expect(b, IOType, ioMinLen); err != nil {
		return IO{}, err
	}
	le := binary.LittleEndian
	o = IO{DeviceID: le.Uint32(b[4:]), Sector: le.Uint64(b[8:]), RW: le.Uint32(b[16:]), Size: le.Uint32(b[20:])}
	if len(b) >= IOLen {
		o.Prio = le.Uint16(b[24:])
	}
	return o, nil
}

// Carrier is the RTRS request that bears an operation. A flush is a READ without data.
func (o Op) Carrier() rtrswire.Type {
	if o == Read || o == Flush {
		return rtrswire.Read
	}
	return rtrswire.Write
}

// HasData reports whether Size bytes go along with the operation, one way or the other.
func (o Op) HasData() bool { return o == Read || o == Write }

// Check says whether o belongs to an RTRS request of type t with dataLen bytes
// of data, which a server has to ask before it believes Size. Sectors, block
// sizes and the right to write are the device's to judge.
func (o *IO) Check(t rtrswire.Type, dataLen uint32) error {
	op := o.Op()
	var want uint32
	if op.HasData() {
		want = o.Size
	}
	switch {
	case op > WriteZeroes:
		return ErrOp
	case op.Carrier() != t:
		return ErrDir
	case want != dataLen || op.HasData() && want == 0:
		return ErrSize
	}
	return nil
}

func (o *IO) String() string {
	return fmt.Sprintf("%v dev=%d sector=%d bytes=%d flags=%#x prio=%#x", o.Op(), o.DeviceID, o.Sector, o.Size, uint32(o.Flags()), o.Prio)
}
