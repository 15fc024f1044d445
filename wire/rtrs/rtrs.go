package rtrs

import (
	"encoding/binary"
	"errors"
)

// Numbers of RTRS, the transport under RNBD (drivers/infiniband/ulp/rtrs/rtrs-pri.h,
// Linux 6.1). Its integers are little-endian, but for the immediate.
const (
	Port         = 1234 // in the port space of TCP
	Magic        = 0x1bbd
	VersionMajor = 2      // all that is compared
	MaxConns     = 4096   // connections of a path
	MaxPaths     = 128    // paths of a session
	MaxDepth     = 65535  // chunks of a session
	MaxSegments  = 128    // pages of 4 KiB in one request of a kernel
	NameLen      = 255    // bytes of a name's field, with the NUL at its end
	UUIDLen      = 16     // bytes
	Depth        = 512    // a kernel server's chunks unless told otherwise
	ChunkSize    = 131072 // bytes; likewise
	HdrSize      = 4096   // bytes of a chunk kept for headers; likewise
)

// Lengths of the messages in bytes; an INFO_RSP and a READ have descriptors
// behind theirs.
const (
	ConnLen     = 56 // CON_REQ and CON_RSP, the private data of the connection manager
	InfoReqLen  = 272
	InfoRspLen  = 8
	WriteLen    = 4
	ReadLen     = 8
	RKeyRspLen  = 8
	DescLen     = 16
	maxPayload  = 1<<payloadBits - 1
	payloadBits = 28
)

// Type is the type in the first two bytes of an RTRS message.
type Type uint16

// Types of message.
const (
	InfoReqType Type = iota
	InfoRspType
	Write
	Read
	RKeyRspType
)

var typeNames = [...]string{"info-req", "info-rsp", "write", "read", "rkey-rsp"}

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "unknown"
}

// Flags.
const (
	// NeedInval in a READ: revoke the key of the descriptor before the answer.
	NeedInval = 1 << 0
	// NewRKey in a CON_RSP: each answer brings the chunk's new key.
	NewRKey = 1 << 1
)

// Errors of RTRS messages. Those of a request (ErrOff and below) are returned as they are,
// without allocation; the others with the numbers that disagree.
var (
	ErrShort   = errors.New("wire: RTRS message shorter than its kind has to be")
	ErrType    = errors.New("wire: RTRS message of another type than expected here")
	ErrMagic   = errors.New("wire: no RTRS message: the magic is not 0x1bbd")
	ErrVersion = errors.New("wire: RTRS version of another major number than 2")
	ErrConn    = errors.New("wire: RTRS connection number out of range")
	ErrName    = errors.New("wire: RTRS session name not usable")
	ErrChunks  = errors.New("wire: RTRS queue depth and chunk size out of range")
	ErrDescs   = errors.New("wire: RTRS descriptors do not cover the chunks")

	ErrMemID   = errors.New("wire: RTRS immediate names a chunk beyond the queue depth")
	ErrOff     = errors.New("wire: RTRS message does not lie within its chunk")
	ErrUsrLen  = errors.New("wire: RTRS user header longer than what lies before the message")
	ErrDataLen = errors.New("wire: RTRS request with more data than the largest I/O")
	ErrHdrLen  = errors.New("wire: RTRS headers longer than the room for them in a chunk")
	ErrSGCount = errors.New("wire: RTRS read with more than one descriptor")
	ErrDescLen = errors.New("wire: RTRS read whose descriptor is empty or longer than the data asked for")
)

// Desc describes memory that the peer may write to (struct rtrs_sg_desc).
type Desc struct {
	Addr uint64
	Key  uint32
	Len  uint32 // bytes
}

// Append appends the 16 bytes of d to b.
func (d Desc) Append(b []byte) []byte {
	le := binary.LittleEndian
	return le.AppendUint32(le.AppendUint32(le.AppendUint64(b, d.Addr), d.Key), d.Len)
}

// parseDesc reads a descriptor from b[:16].
func parseDesc(b []byte) Desc {
	_ = b[DescLen-1]
	le := binary.LittleEndian
	return Desc{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
}
