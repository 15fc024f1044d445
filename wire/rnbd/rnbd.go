package rnbd

import (
	"encoding/binary"
	"errors"
)

// Numbers of RNBD, block devices over RTRS (drivers/block/rnbd/rnbd-proto.h,
// Linux 6.1). All its integers are little-endian.
const (
	Version    = 2   // major; the minor is not on the wire
	NameLen    = 255 // bytes of a device name's field, with the NUL at its end
	SectorSize = 512 // bytes, the unit of every sector number and count
)

// Lengths of the messages in bytes, the user headers and answers of RTRS.
const (
	SessInfoLen = 36 // and its answer
	OpenLen     = 264
	OpenRspLen  = 56
	CloseLen    = 8
	IOLen       = 32
	hdrLen      = 4
	ioMinLen    = 24 // before there was a priority
)

// Type is the type in the first two bytes of an RNBD message.
type Type uint16

// Types of message.
const (
	SessInfo Type = iota
	SessInfoRsp
	OpenType
	OpenRspType
	IOType
	CloseType
)

var typeNames = [...]string{"sess-info", "sess-info-rsp", "open", "open-rsp", "io", "close"}

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "unknown"
}

// Errors of RNBD messages, returned as they are, without allocation.
var (
	ErrShort  = errors.New("wire: RNBD message shorter than its type implies")
	ErrType   = errors.New("wire: RNBD message of another type than expected here")
	ErrAccess = errors.New("wire: RNBD access mode is none of ro, rw and migration")
	ErrName   = errors.New("wire: RNBD device name is not 1 to 254 bytes ended by a NUL")
	ErrOp     = errors.New("wire: RNBD operation unknown")
	ErrDir    = errors.New("wire: RNBD operation carried by the wrong RTRS request")
	ErrSize   = errors.New("wire: RNBD size differs from the data of the RTRS request")
)

// Kind reads the type of the message in b, to choose its parser.
func Kind(b []byte) (Type, error) {
	if len(b) < hdrLen {
		return 0, ErrShort
	}
	return Type(binary.LittleEndian.Uint16(b)), nil
}

// expect judges length and type.
func expect(b []byte, t Type, size int) error {
	switch k, err := Kind(b); {
	case err != nil:
		return err
	case k != t:
		return ErrType
	case len(b) < size:
		return ErrShort
	}
	return nil
}

func appendHdr(b []byte, t Type) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(t)), 0, 0)
}

// AppendSessInfo appends the 36 bytes of a SESS_INFO or, by type, of its
// answer (struct rnbd_msg_sess_info and rnbd_msg_sess_info_rsp). ver is the
// major version of the sender; the answer has the smaller one of both sides.
func AppendSessInfo(b []byte, t Type, ver uint8) []byte {
	if t != SessInfo && t != SessInfoRsp {
		panic("wire: session info of type " + t.String())
	}
	return append(append(appendHdr(b, t), ver), make([]byte, 31)...)
}

// ParseSessInfo reads the version from a message of type t, SessInfo or
// SessInfoRsp.
func ParseSessInfo(b []byte, t Type) (ver uint8, err error) {
	if err := expect(b, t, SessInfoLen); err != nil {
		return 0, err
	}
	return b[4], nil
}
