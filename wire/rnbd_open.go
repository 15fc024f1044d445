package wire

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// RNBDAccess is how a device is opened.
type RNBDAccess uint8

// Access modes.
const (
	RNBDReadOnly  RNBDAccess = iota // any number at once
	RNBDReadWrite                   // no other writer
	RNBDMigration                   // writes, next to one other writer
)

var rnbdAccessNames = [...]string{"ro", "rw", "migration"}

func (a RNBDAccess) String() string {
	if int(a) < len(rnbdAccessNames) {
		return rnbdAccessNames[a]
	}
	return "unknown"
}

// RNBDOpen asks for a device by name (struct rnbd_msg_open). What names mean,
// and which are refused, is the server's to say.
type RNBDOpen struct {
	Access RNBDAccess
	Name   string
}

// Append appends the 264 bytes of o to b, nothing if o is not possible.
func (o *RNBDOpen) Append(b []byte) ([]byte, error) {
	switch {
	case o.Access > RNBDMigration:
		return b, ErrRNBDAccess
	case o.Name == "" || len(o.Name) >= RNBDNameLen || strings.IndexByte(o.Name, 0) >= 0:
		return b, ErrRNBDName
	}
	b = append(appendRNBDHdr(b, RNBDOpenType), byte(o.Access), 0)
	b = append(b, o.Name...)
	return zeros(b, RNBDOpenLen-6-len(o.Name)), nil
}

// ParseRNBDOpen reads an OPEN. A kernel leaves what its stack held in the bytes
// that have no meaning, those behind the name's NUL among them.
func ParseRNBDOpen(b []byte) (RNBDOpen, error) {
	if err := rnbdExpect(b, RNBDOpenType, RNBDOpenLen); err != nil {
		return RNBDOpen{}, err
	}
	a := RNBDAccess(b[4])
	if a > RNBDMigration {
		return RNBDOpen{}, ErrRNBDAccess
	}
	name := b[6 : 6+RNBDNameLen]
	end := bytes.IndexByte(name, 0)
	if end <= 0 {
		return RNBDOpen{}, ErrRNBDName
	}
	return RNBDOpen{a, string(name[:end])}, nil
}

// RNBDCache is the cache policy of a device.
type RNBDCache uint8

// Bits of the cache policy.
const (
	RNBDCacheFUA       RNBDCache = 1 << 0 // a write can be made durable by itself
	RNBDCacheWriteBack RNBDCache = 1 << 1 // a flush has something to do
)

// RNBDOpenRsp describes the device that was opened (struct rnbd_msg_open_rsp).
type RNBDOpenRsp struct {
	DeviceID           uint32 // of this device in this session
	Sectors            uint64
	MaxHWSectors       uint32 // of one request
	MaxWriteZeroes     uint32 // sectors; 0: not offered. Kernels before 6.8: for WRITE_SAME, 0
	MaxDiscard         uint32 // sectors; 0: not offered
	DiscardGranularity uint32 // bytes
	DiscardAlignment   uint32 // bytes
	PhysicalBlock      uint16 // bytes
	LogicalBlock       uint16 // bytes; a kernel refuses 0
	MaxSegments        uint16
	SecureDiscard      uint16 // not 0: offered
	Rotational         uint8  // 0 since Linux 6.0
	Cache              RNBDCache
}

// Append appends the 56 bytes of r to b.
func (r *RNBDOpenRsp) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = appendRNBDHdr(b, RNBDOpenRspType)
	b = le.AppendUint32(b, r.DeviceID)
	b = le.AppendUint64(b, r.Sectors)
	for _, v := range [...]uint32{r.MaxHWSectors, r.MaxWriteZeroes, r.MaxDiscard, r.DiscardGranularity, r.DiscardAlignment} {
		b = le.AppendUint32(b, v)
	}
	for _, v := range [...]uint16{r.PhysicalBlock, r.LogicalBlock, r.MaxSegments, r.SecureDiscard} {
		b = le.AppendUint16(b, v)
	}
	return zeros(append(b, r.Rotational, byte(r.Cache)), 10)
}

// ParseRNBDOpenRsp reads an OPEN_RSP. Whether a device like that can be worked
// with is for the caller to judge.
func ParseRNBDOpenRsp(b []byte) (RNBDOpenRsp, error) {
	if err := rnbdExpect(b, RNBDOpenRspType, RNBDOpenRspLen); err != nil {
		return RNBDOpenRsp{}, err
	}
	le := binary.LittleEndian
	return RNBDOpenRsp{DeviceID: le.Uint32(b[4:]), Sectors: le.Uint64(b[8:]),
		MaxHWSectors: le.Uint32(b[16:]), MaxWriteZeroes: le.Uint32(b[20:]), MaxDiscard: le.Uint32(b[24:]),
		DiscardGranularity: le.Uint32(b[28:]), DiscardAlignment: le.Uint32(b[32:]),
		PhysicalBlock: le.Uint16(b[36:]), LogicalBlock: le.Uint16(b[38:]),
		MaxSegments: le.Uint16(b[40:]), SecureDiscard: le.Uint16(b[42:]),
		Rotational: b[44], Cache: RNBDCache(b[45])}, nil
}

// AppendRNBDClose appends the 8 bytes of a CLOSE (struct rnbd_msg_close).
func AppendRNBDClose(b []byte, deviceID uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendRNBDHdr(b, RNBDCloseType), deviceID)
}

// ParseRNBDClose reads the device of a CLOSE.
func ParseRNBDClose(b []byte) (deviceID uint32, err error) {
	if err := rnbdExpect(b, RNBDCloseType, RNBDCloseLen); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[4:]), nil
}
