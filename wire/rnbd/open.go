package rnbd

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// Access is how a device is opened.
type Access uint8

// Access modes.
const (
	ReadOnly  Access = iota // any number at once
	ReadWrite               // no other writer
	Migration               // writes, next to one other writer
)

var accessNames = [...]string{"ro", "rw", "migration"}

func (a Access) String() string {
	if int(a) < len(accessNames) {
		return accessNames[a]
	}
	return "unknown"
}

// Open asks for a device by name (struct rnbd_msg_open). The server decides the meaning of
// names, and which are refused.
type Open struct {
	Access Access
	Name   string
}

// Append appends the 264 bytes of o to b, nothing if o is not possible.
func (o *Open) Append(b []byte) ([]byte, error) {
	switch {
	case o.Access > Migration:
		return b, ErrAccess
	case o.Name == "" || len(o.Name) >= NameLen || strings.IndexByte(o.Name, 0) >= 0:
		return b, ErrName
	}
	b = append(appendHdr(b, OpenType), byte(o.Access), 0)
	b = append(b, o.Name...)
	return append(b, make([]byte, OpenLen-6-len(o.Name))...), nil
}

// ParseOpen reads an OPEN. A kernel leaves old content of its stack in the bytes that have
// no meaning, those behind the name's NUL among them.
func ParseOpen(b []byte) (Open, error) {
	if err := expect(b, OpenType, OpenLen); err != nil {
		return Open{}, err
	}
	a := Access(b[4])
	if a > Migration {
		return Open{}, ErrAccess
	}
	name := b[6 : 6+NameLen]
	end := bytes.IndexByte(name, 0)
	if end <= 0 {
		return Open{}, ErrName
	}
	return Open{a, string(name[:end])}, nil
}

// Cache is the cache policy of a device.
type Cache uint8

// Bits of the cache policy.
const (
	CacheFUA       Cache = 1 << 0 // a write can be made durable by itself
	CacheWriteBack Cache = 1 << 1 // a flush has something to do
)

// OpenRsp describes the device that was opened (struct rnbd_msg_open_rsp).
type OpenRsp struct {
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
	Cache              Cache
}

// Append appends the 56 bytes of r to b.
func (r *OpenRsp) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = appendHdr(b, OpenRspType)
	b = le.AppendUint32(b, r.DeviceID)
	b = le.AppendUint64(b, r.Sectors)
	for _, v := range [...]uint32{r.MaxHWSectors, r.MaxWriteZeroes, r.MaxDiscard, r.DiscardGranularity, r.DiscardAlignment} {
		b = le.AppendUint32(b, v)
	}
	for _, v := range [...]uint16{r.PhysicalBlock, r.LogicalBlock, r.MaxSegments, r.SecureDiscard} {
		b = le.AppendUint16(b, v)
	}
	return append(append(b, r.Rotational, byte(r.Cache)), make([]byte, 10)...)
}

// ParseOpenRsp reads an OPEN_RSP. Whether a device like that can be worked
// with is for the caller to judge.
func ParseOpenRsp(b []byte) (OpenRsp, error) {
	if err := expect(b, OpenRspType, OpenRspLen); err != nil {
		return OpenRsp{}, err
	}
	le := binary.LittleEndian
	return OpenRsp{DeviceID: le.Uint32(b[4:]), Sectors: le.Uint64(b[8:]),
		MaxHWSectors: le.Uint32(b[16:]), MaxWriteZeroes: le.Uint32(b[20:]), MaxDiscard: le.Uint32(b[24:]),
		DiscardGranularity: le.Uint32(b[28:]), DiscardAlignment: le.Uint32(b[32:]),
		PhysicalBlock: le.Uint16(b[36:]), LogicalBlock: le.Uint16(b[38:]),
		MaxSegments: le.Uint16(b[40:]), SecureDiscard: le.Uint16(b[42:]),
		Rotational: b[44], Cache: Cache(b[45])}, nil
}

// AppendClose appends the 8 bytes of a CLOSE (struct rnbd_msg_close).
func AppendClose(b []byte, deviceID uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendHdr(b, CloseType), deviceID)
}

// ParseClose reads the device of a CLOSE.
func ParseClose(b []byte) (deviceID uint32, err error) {
	if err := expect(b, CloseType, CloseLen); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[4:]), nil
}
