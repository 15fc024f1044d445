package wire

import (
	"encoding/binary"
	"errors"
)

// Numbers of RNBD, block devices over RTRS (drivers/block/rnbd/rnbd-proto.h,
// Linux 6.1). All its integers are little-endian.
const (
	RNBDVersion    = 2   // major; the minor is not on the wire
	RNBDNameLen    = 255 // bytes of a device name's field, with the NUL at its end
	RNBDSectorSize = 512 // bytes, the unit of every sector number and count
)

// Lengths of the messages in bytes, the user headers and answers of RTRS.
const (
	RNBDSessInfoLen = 36 // and its answer
	RNBDOpenLen     = 264
	RNBDOpenRspLen  = 56
	RNBDCloseLen    = 8
	RNBDIOLen       = 32
	rnbdHdrLen      = 4
	rnbdIOMinLen    = 24 // before there was a priority
)

// RNBDType is the type in the first two bytes of an RNBD message.
type RNBDType uint16

// Types of message.
const (
	RNBDSessInfo RNBDType = iota
	RNBDSessInfoRsp
	RNBDOpenType
	RNBDOpenRspType
	RNBDIOType
	RNBDCloseType
)

var rnbdTypeNames = [...]string{"sess-info", "sess-info-rsp", "open", "open-rsp", "io", "close"}

func (t RNBDType) String() string {
	if int(t) < len(rnbdTypeNames) {
		return rnbdTypeNames[t]
	}
	return "unknown"
}

// What can be wrong with an RNBD message. Returned as they are, without
// allocation.
var (
	ErrRNBDShort  = errors.New("wire: RNBD message shorter than its type implies")
	ErrRNBDType   = errors.New("wire: RNBD message of another type than expected here")
	ErrRNBDAccess = errors.New("wire: RNBD access mode is none of ro, rw and migration")
	ErrRNBDName   = errors.New("wire: RNBD device name is not 1 to 254 bytes ended by a NUL")
	ErrRNBDOp     = errors.New("wire: RNBD operation unknown")
	ErrRNBDDir    = errors.New("wire: RNBD operation carried by the wrong RTRS request")
	ErrRNBDSize   = errors.New("wire: RNBD size differs from the data of the RTRS request")
)

// RNBDKind reads the type of the message in b, to choose its parser.
func RNBDKind(b []byte) (RNBDType, error) {
	if len(b) < rnbdHdrLen {
		return 0, ErrRNBDShort
	}
	return RNBDType(binary.LittleEndian.Uint16(b)), nil
}

// rnbdExpect judges length and type.
func rnbdExpect(b []byte, t RNBDType, size int) error {
	switch k, err := RNBDKind(b); {
	case err != nil:
		return err
	case k != t:
		return ErrRNBDType
	case len(b) < size:
		return ErrRNBDShort
	}
	return nil
}

func appendRNBDHdr(b []byte, t RNBDType) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(t)), 0, 0)
}

// AppendRNBDSessInfo appends the 36 bytes of a SESS_INFO or, by type, of its
// answer (struct rnbd_msg_sess_info and rnbd_msg_sess_info_rsp). ver is the
// major version of the sender; the answer has the smaller one of both sides.
func AppendRNBDSessInfo(b []byte, t RNBDType, ver uint8) []byte {
	if t != RNBDSessInfo && t != RNBDSessInfoRsp {
		panic("wire: session info of type " + t.String())
	}
	return zeros(append(appendRNBDHdr(b, t), ver), 31)
}

// ParseRNBDSessInfo reads the version from a message of type t, RNBDSessInfo or
// RNBDSessInfoRsp.
func ParseRNBDSessInfo(b []byte, t RNBDType) (ver uint8, err error) {
	if err := rnbdExpect(b, t, RNBDSessInfoLen); err != nil {
		return 0, err
	}
	return b[4], nil
}
