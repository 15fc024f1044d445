package rtrs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Imm is the immediate value of an RTRS message: 4 bits of type, 28 of
// payload. It is the one number of RTRS that is big-endian on the wire.
type Imm uint32

// ImmType is the type of an immediate.
type ImmType uint8

// Types of immediate. Others are ignored, as a kernel does.
const (
	IOReq        ImmType = 0 // to the server: a request lies in a chunk
	IORsp        ImmType = 1 // to the client: the request is done
	IORspInv     ImmType = 2 // likewise, and the client's key has been revoked
	Heartbeat    ImmType = 8 // either way: answer
	HeartbeatAck ImmType = 9 // the answer
)

// The two immediates that have nothing but a type.
const (
	ImmHeartbeat    = Imm(Heartbeat) << payloadBits
	ImmHeartbeatAck = Imm(HeartbeatAck) << payloadBits
)

// MaxErrno is the largest status an answer can bear: it has 9 bits.
const MaxErrno = 1<<9 - 1

const (
	msgIDBits = 19
	errnoEIO  = 5 // EIO on every Linux
)

// Type is the upper 4 bits.
func (i Imm) Type() ImmType { return ImmType(i >> payloadBits) }

// Append appends the 4 bytes of i to b, big-endian.
func (i Imm) Append(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(i)) }

// ParseImm reads an immediate from b[:4].
func ParseImm(b []byte) (Imm, error) {
	if len(b) < 4 {
		return 0, ErrShort
	}
	return Imm(binary.BigEndian.Uint32(b)), nil
}

// Done is the immediate of the answer to the request in chunk msgID; errno
// is 0 or a positive errno, inv says that the client's key has been revoked.
// An errno that does not fit becomes EIO: cut to 9 bits it might read as success.
func Done(msgID uint32, errno uint16, inv bool) Imm {
	if msgID >= 1<<msgIDBits {
		panic(fmt.Sprintf("wire: answer to chunk %d", msgID))
	}
	if errno > MaxErrno {
		errno = errnoEIO
	}
	t := IORsp
	if inv {
		t = IORspInv
	}
	return Imm(t)<<payloadBits | Imm(errno)<<msgIDBits | Imm(msgID)
}

// Done reads the immediate of an answer, IORsp or IORspInv by type.
// Whether msgID is a chunk that was asked with is for the caller to judge.
func (i Imm) Done() (msgID uint32, errno uint16, inv bool) {
	return uint32(i) & (1<<msgIDBits - 1), uint16(i >> msgIDBits & MaxErrno), i.Type() == IORspInv
}

func (i Imm) String() string {
	switch t := i.Type(); t {
	case IOReq:
		return fmt.Sprintf("io-req %#07x", uint32(i))
	case IORsp, IORspInv:
		id, errno, inv := i.Done()
		if inv {
			return fmt.Sprintf("io-rsp-inv msg=%d errno=%d", id, errno)
		}
		return fmt.Sprintf("io-rsp msg=%d errno=%d", id, errno)
	case Heartbeat:
		return "heartbeat"
	case HeartbeatAck:
		return "heartbeat-ack"
	default:
		return fmt.Sprintf("unknown %d %#07x", t, uint32(i&maxPayload))
	}
}

// Chunks is the geometry of a session's chunks, from a CON_RSP. Make it by
// NewChunks.
type Chunks struct {
	Depth   uint32 // chunks
	MaxIO   uint32 // bytes of data in a chunk
	MaxHdr  uint32 // bytes for the headers behind them
	memBits uint8
}

// NewChunks checks that the number of a chunk and an offset in it fit
// together into an immediate: ceil(log2 depth) + ceil(log2 (maxIO + maxHdr))
// is at most 28.
func NewChunks(depth, maxIO, maxHdr uint32) (Chunks, error) {
	var none Chunks
	if depth < 1 || depth > MaxDepth {
		return none, fmt.Errorf("%w: queue depth %d, 1 to %d are possible", ErrChunks, depth, MaxDepth)
	}
	if maxIO == 0 || maxHdr < ReadLen+DescLen {
		return none, fmt.Errorf("%w: %d bytes of data and %d of headers, at least 1 and %d are needed", ErrChunks, maxIO, maxHdr, ReadLen+DescLen)
	}
	memBits := payloadBits - bits.Len32(depth-1)
	if size := uint64(maxIO) + uint64(maxHdr); size > 1<<memBits {
		return none, fmt.Errorf("%w: chunks of %d bytes, at most %d go with a queue depth of %d", ErrChunks, size, 1<<memBits, depth)
	}
	return Chunks{depth, maxIO, maxHdr, uint8(memBits)}, nil
}

// Size is the bytes of one chunk.
func (c Chunks) Size() uint32 { return c.MaxIO + c.MaxHdr }

// MemBits is how many bits of an immediate are the offset in the chunk.
func (c Chunks) MemBits() int { return int(c.memBits) }

// Req is the immediate of a request whose message begins at byte off of chunk
// memID.
func (c Chunks) Req(memID, off uint32) Imm {
	if memID >= c.Depth || off >= c.Size() {
		panic(fmt.Sprintf("wire: request at byte %d of chunk %d, there are %d chunks of %d bytes", off, memID, c.Depth, c.Size()))
	}
	return Imm(memID<<c.memBits | off)
}

// ParseReq reads the immediate of a request, IOReq by type. Its errors,
// ErrMemID and ErrOff, leave nothing that could be answered: the path
// is to be closed.
func (c Chunks) ParseReq(i Imm) (memID, off uint32, err error) {
	p := uint32(i & maxPayload)
	memID, off = p>>c.memBits, p&(1<<c.memBits-1)
	switch {
	case i.Type() != IOReq:
		return 0, 0, ErrType
	case memID >= c.Depth:
		return 0, 0, ErrMemID
	case off >= c.Size():
		return 0, 0, ErrOff
	}
	return memID, off, nil
}
