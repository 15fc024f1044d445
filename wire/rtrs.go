package wire

import (
	"encoding/binary"
	"errors"
)

// Numbers of RTRS, the transport under RNBD (drivers/infiniband/ulp/rtrs/rtrs-pri.h,
// Linux 6.1). Its integers are little-endian, but for the immediate.
const (
	RTRSPort         = 1234 // in the port space of TCP
	RTRSMagic        = 0x1bbd
	RTRSVersionMajor = 2      // all that is compared
	RTRSMaxConns     = 4096   // connections of a path
	RTRSMaxPaths     = 128    // paths of a session
	RTRSMaxDepth     = 65535  // chunks of a session
	RTRSMaxSegments  = 128    // pages of 4 KiB in one request of a kernel
	RTRSNameLen      = 255    // bytes of a name's field, with the NUL at its end
	RTRSUUIDLen      = 16     // bytes
	RTRSDepth        = 512    // a kernel server's chunks unless told otherwise
	RTRSChunkSize    = 131072 // bytes; likewise
	RTRSHdrSize      = 4096   // bytes of a chunk kept for headers; likewise
)

// Lengths of the messages in bytes; an INFO_RSP and a READ have descriptors
// behind theirs.
const (
	RTRSConnLen     = 56 // CON_REQ and CON_RSP, the private data of the connection manager
	RTRSInfoReqLen  = 272
	RTRSInfoRspLen  = 8
	RTRSWriteLen    = 4
	RTRSReadLen     = 8
	RTRSRKeyRspLen  = 8
	RTRSDescLen     = 16
	rtrsMaxPayload  = 1<<rtrsPayloadBits - 1
	rtrsPayloadBits = 28
)

// RTRSType is the type in the first two bytes of an RTRS message.
type RTRSType uint16

// Types of message.
const (
	RTRSInfoReqType RTRSType = iota
	RTRSInfoRspType
	RTRSWrite
	RTRSRead
	RTRSRKeyRspType
)

var rtrsTypeNames = [...]string{"info-req", "info-rsp", "write", "read", "rkey-rsp"}

func (t RTRSType) String() string {
	if int(t) < len(rtrsTypeNames) {
		return rtrsTypeNames[t]
	}
	return "unknown"
}

// Flags.
const (
	// RTRSNeedInval in a READ: revoke the key of the descriptor before the answer.
	RTRSNeedInval = 1 << 0
	// RTRSNewRKey in a CON_RSP: each answer brings the chunk's new key.
	RTRSNewRKey = 1 << 1
)

// What can be wrong with an RTRS message. Those of a request (ErrRTRSOff and
// below) are returned as they are, without allocation; the others with the
// numbers that disagree.
var (
	ErrRTRSShort   = errors.New("wire: RTRS message shorter than its kind has to be")
	ErrRTRSType    = errors.New("wire: RTRS message of another type than expected here")
	ErrRTRSMagic   = errors.New("wire: no RTRS message: the magic is not 0x1bbd")
	ErrRTRSVersion = errors.New("wire: RTRS version of another major number than 2")
	ErrRTRSConn    = errors.New("wire: RTRS connection number out of range")
	ErrRTRSName    = errors.New("wire: RTRS session name not usable")
	ErrRTRSChunks  = errors.New("wire: RTRS queue depth and chunk size out of range")
	ErrRTRSDescs   = errors.New("wire: RTRS descriptors do not cover the chunks")

	ErrRTRSMemID   = errors.New("wire: RTRS immediate names a chunk beyond the queue depth")
	ErrRTRSOff     = errors.New("wire: RTRS message does not lie within its chunk")
	ErrRTRSUsrLen  = errors.New("wire: RTRS user header longer than what lies before the message")
	ErrRTRSDataLen = errors.New("wire: RTRS request with more data than the largest I/O")
	ErrRTRSHdrLen  = errors.New("wire: RTRS headers longer than the room for them in a chunk")
	ErrRTRSSGCount = errors.New("wire: RTRS read with more than one descriptor")
	ErrRTRSDescLen = errors.New("wire: RTRS read whose descriptor is empty or longer than the data asked for")
)

// RTRSDesc describes memory that the peer may write to (struct rtrs_sg_desc).
type RTRSDesc struct {
	Addr uint64
	Key  uint32
	Len  uint32 // bytes
}

// Append appends the 16 bytes of d to b.
func (d RTRSDesc) Append(b []byte) []byte {
	le := binary.LittleEndian
	return le.AppendUint32(le.AppendUint32(le.AppendUint64(b, d.Addr), d.Key), d.Len)
}

// parseRTRSDesc reads a descriptor from b[:16].
func parseRTRSDesc(b []byte) RTRSDesc {
	_ = b[RTRSDescLen-1]
	le := binary.LittleEndian
	return RTRSDesc{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
}

// zeros appends n zero bytes, for what is reserved: no byte of ours leaves
// with what a buffer held before.
func zeros(b []byte, n int) []byte {
	var z [RTRSInfoReqLen]byte
	return append(b, z[:n]...)
}
