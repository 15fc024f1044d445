package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// RTRSImm is the immediate value of an RTRS message: 4 bits of type, 28 of
// payload. It is the one number of RTRS that is big-endian on the wire.
type RTRSImm uint32

// RTRSImmType is the type of an immediate.
type RTRSImmType uint8

// Types of immediate. Others are ignored, as a kernel does.
const (
	RTRSIOReq        RTRSImmType = 0 // to the server: a request lies in a chunk
	RTRSIORsp        RTRSImmType = 1 // to the client: it is done
	RTRSIORspInv     RTRSImmType = 2 // likewise, and the client's key has been revoked
	RTRSHeartbeat    RTRSImmType = 8 // either way: answer
	RTRSHeartbeatAck RTRSImmType = 9 // the answer
)

// The two immediates that have nothing but a type.
const (
	RTRSImmHeartbeat    = RTRSImm(RTRSHeartbeat) << rtrsPayloadBits
	RTRSImmHeartbeatAck = RTRSImm(RTRSHeartbeatAck) << rtrsPayloadBits
)

// RTRSMaxErrno is the largest status an answer can bear: it has 9 bits.
const RTRSMaxErrno = 1<<9 - 1

const (
	rtrsMsgIDBits = 19
	rtrsErrnoEIO  = 5 // EIO on every Linux
)

// Type is the upper 4 bits.
func (i RTRSImm) Type() RTRSImmType { return RTRSImmType(i >> rtrsPayloadBits) }

// Append appends the 4 bytes of i to b, big-endian.
func (i RTRSImm) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(i)) }

// ParseRTRSImm reads an immediate from b[:4].
func ParseRTRSImm(b []byte) (RTRSImm, error) {
	if len(b) < 4 {
		return 0, ErrRTRSShort
	}
	return RTRSImm(binary.BigEndian.Uint32(b)), nil
}

// RTRSDone is the immediate of the answer to the request in chunk msgID; errno
// is 0 or a positive errno, inv says that the client's key has been revoked.
// An errno that does not fit becomes EIO: cut to 9 bits it might read as success.
func RTRSDone(msgID uint32, errno uint16, inv bool) RTRSImm {
	if msgID >= 1<<rtrsMsgIDBits {
		panic(fmt.Sprintf("wire: answer to chunk %d", msgID))
	}
	if errno > RTRSMaxErrno {
		errno = rtrsErrnoEIO
	}
	t := RTRSIORsp
	if inv {
		t = RTRSIORspInv
	}
	return RTRSImm(t)<<rtrsPayloadBits | RTRSImm(errno)<<rtrsMsgIDBits | RTRSImm(msgID)
}

// Done reads the immediate of an answer, RTRSIORsp or RTRSIORspInv by type.
// Whether msgID is a chunk that was asked with is for the caller to judge.
func (i RTRSImm) Done() (msgID uint32, errno uint16, inv bool) {
	return uint32(i) & (1<<rtrsMsgIDBits - 1), uint16(i >> rtrsMsgIDBits & RTRSMaxErrno), i.Type() == RTRSIORspInv
}

func (i RTRSImm) String() string {
	switch t := i.Type(); t {
	case RTRSIOReq:
		return fmt.Sprintf("io-req %#07x", uint32(i))
	case RTRSIORsp, RTRSIORspInv:
		id, errno, inv := i.Done()
		if inv {
			return fmt.Sprintf("io-rsp-inv msg=%d errno=%d", id, errno)
		}
		return fmt.Sprintf("io-rsp msg=%d errno=%d", id, errno)
	case RTRSHeartbeat:
		return "heartbeat"
	case RTRSHeartbeatAck:
		return "heartbeat-ack"
	default:
		return fmt.Sprintf("unknown %d %#07x", t, uint32(i&rtrsMaxPayload))
	}
}

// RTRSChunks is the geometry of a session's chunks, from a CON_RSP. Make it by
// NewRTRSChunks.
type RTRSChunks struct {
	Depth   uint32 // chunks
	MaxIO   uint32 // bytes of data in a chunk
	MaxHdr  uint32 // bytes for the headers behind them
	memBits uint8
}

// NewRTRSChunks checks that the number of a chunk and an offset in it fit
// together into an immediate: ceil(log2 depth) + ceil(log2 (maxIO + maxHdr))
// is at most 28.
func NewRTRSChunks(depth, maxIO, maxHdr uint32) (RTRSChunks, error) {
	var none RTRSChunks
	if depth < 1 || depth > RTRSMaxDepth {
		return none, fmt.Errorf("%w: queue depth %d, 1 to %d are possible", ErrRTRSChunks, depth, RTRSMaxDepth)
	}
	if maxIO == 0 || maxHdr < RTRSReadLen+RTRSDescLen {
		return none, fmt.Errorf("%w: %d bytes of data and %d of headers, at least 1 and %d are needed", ErrRTRSChunks, maxIO, maxHdr, RTRSReadLen+RTRSDescLen)
	}
	memBits := rtrsPayloadBits - bits.Len32(depth-1)
	if size := uint64(maxIO) + uint64(maxHdr); size > 1<<memBits {
		return none, fmt.Errorf("%w: chunks of %d bytes, at most %d go with a queue depth of %d", ErrRTRSChunks, size, 1<<memBits, depth)
	}
	return RTRSChunks{depth, maxIO, maxHdr, uint8(memBits)}, nil
}

// Size is the bytes of one chunk.
func (c RTRSChunks) Size() uint32 { return c.MaxIO + c.MaxHdr }

// MemBits is how many bits of an immediate are the offset in the chunk.
func (c RTRSChunks) MemBits() int { return int(c.memBits) }

// Req is the immediate of a request whose message begins at byte off of chunk
// memID.
func (c RTRSChunks) Req(memID, off uint32) RTRSImm {
	if memID >= c.Depth || off >= c.Size() {
		panic(fmt.Sprintf("wire: request at byte %d of chunk %d, there are %d chunks of %d bytes", off, memID, c.Depth, c.Size()))
	}
	return RTRSImm(memID<<c.memBits | off)
}

// ParseReq reads the immediate of a request, RTRSIOReq by type. Its errors,
// ErrRTRSMemID and ErrRTRSOff, leave nothing that could be answered: the path
// is to be closed.
func (c RTRSChunks) ParseReq(i RTRSImm) (memID, off uint32, err error) {
	p := uint32(i & rtrsMaxPayload)
	memID, off = p>>c.memBits, p&(1<<c.memBits-1)
	switch {
	case i.Type() != RTRSIOReq:
		return 0, 0, ErrRTRSType
	case memID >= c.Depth:
		return 0, 0, ErrRTRSMemID
	case off >= c.Size():
		return 0, 0, ErrRTRSOff
	}
	return memID, off, nil
}
