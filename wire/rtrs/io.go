package rtrs

import (
	"encoding/binary"
	"fmt"
)

// Req is the RTRS message of a request, at the end of what the client
// writes into a chunk (struct rtrs_msg_rdma_write and rtrs_msg_rdma_read).
type Req struct {
	Type   Type   // Write or Read
	UsrLen uint16 // bytes of the user header before this message
	// The other fields are a READ's alone.
	Flags uint16 // NeedInval; others are ignored
	SGCnt uint16 // 1: Desc is where the answer goes; 0: there is none
	Desc  Desc   // of the client's memory
}

// Len is the bytes of the message.
func (r *Req) Len() int {
	if r.Type == Write {
		return WriteLen
	}
	return ReadLen + int(r.SGCnt)*DescLen
}

// NeedInval reports whether the client's key is to be revoked before the answer, whatever
// the outcome.
func (r *Req) NeedInval() bool { return r.SGCnt == 1 && r.Flags&NeedInval != 0 }

// Append appends the message to b. SGCnt is 0 or 1.
func (r *Req) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(r.Type))
	b = le.AppendUint16(b, r.UsrLen)
	switch {
	case r.Type == Write:
		return b
	case r.Type != Read || r.SGCnt > 1:
		panic(fmt.Sprintf("wire: request of type %d with %d descriptors", r.Type, r.SGCnt))
	}
	b = le.AppendUint16(b, r.Flags)
	b = le.AppendUint16(b, r.SGCnt)
	if r.SGCnt == 1 {
		b = r.Desc.Append(b)
	}
	return b
}

// Layout says where the parts of a request lie in its chunk, in bytes from the chunk's
// beginning: data [0,Usr), user header [Usr,Msg), message [Msg,End). A WRITE transmits all
// of it; a READ [Usr,End), and the answer's data takes the place of the omitted part.
type Layout struct{ Usr, Msg, End uint32 }

// DataLen is the bytes of data, to write or to read.
func (l Layout) DataLen() uint32 { return l.Usr }

// Start is the first byte that a request of type t transmits.
func (l Layout) Start(t Type) uint32 {
	if t == Read {
		return l.Usr
	}
	return 0
}

// Layout lays a request with dataLen bytes of data into a chunk, as a client
// has to: ErrDataLen or ErrHdrLen when it does not fit.
func (c Chunks) Layout(r *Req, dataLen uint32) (Layout, error) {
	hdr := uint32(r.UsrLen) + uint32(r.Len())
	switch {
	case dataLen > c.MaxIO:
		return Layout{}, ErrDataLen
	case hdr > c.MaxHdr:
		return Layout{}, ErrHdrLen
	case r.SGCnt == 1 && (r.Desc.Len == 0 || r.Desc.Len > dataLen):
		return Layout{}, ErrDescLen
	}
	return Layout{dataLen, dataLen + uint32(r.UsrLen), dataLen + hdr}, nil
}

// ParseRequest reads the request whose message begins at byte off of chunk, as a server has
// to. The client may still be able to write there: each field is read once, the results
// have been checked, and no part of the message may be read from the chunk again.
//
// A kernel silently drops some of the requests that are errors here, which costs its client
// a chunk. They can be answered, as off came with the chunk's number; only ErrType closes a
// kernel's path. A descriptor longer than the data asked for would send the client old
// content.
func (c Chunks) ParseRequest(chunk []byte, off uint32) (r Req, l Layout, err error) {
	if size := uint64(c.Size()); uint64(len(chunk)) > size {
		chunk = chunk[:size]
	}
	// In 64 bits, where no offset of a peer can make the sum small again.
	if uint64(off)+WriteLen > uint64(len(chunk)) {
		return Req{}, Layout{}, ErrOff
	}
	// Each field is read once: the client may still be able to write into the chunk.
	le, b := binary.LittleEndian, chunk[off:]
	r = Req{Type: Type(le.Uint16(b)), UsrLen: le.Uint16(b[2:])}
	switch r.Type {
	case Write:
	case Read:
		if err = r.parseRead(b); err != nil {
			return Req{}, Layout{}, err
		}
	default:
		return Req{}, Layout{}, ErrType
	}
	if uint32(r.UsrLen) > off {
		return Req{}, Layout{}, ErrUsrLen
	}
	l = Layout{off - uint32(r.UsrLen), off, off + uint32(r.Len())}
	switch {
	case l.DataLen() > c.MaxIO:
		return Req{}, Layout{}, ErrDataLen
	// Longer than the data asked for, it would be answered with old content of the chunk.
	case r.SGCnt == 1 && (r.Desc.Len == 0 || r.Desc.Len > l.DataLen()):
		return Req{}, Layout{}, ErrDescLen
	}
	return r, l, nil
}

// parseRead reads the fields that only a READ has.
func (r *Req) parseRead(b []byte) error {
	if len(b) < ReadLen {
		return ErrOff
	}
	r.Flags, r.SGCnt = binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])
	switch {
	case r.SGCnt > 1:
		return ErrSGCount
	case len(b) < r.Len():
		return ErrOff
	case r.SGCnt == 1:
		r.Desc = parseDesc(b[ReadLen:])
	}
	return nil
}

// RKeyRsp brings the new key of a chunk with the answer that used it
// (struct rtrs_msg_rkey_rsp).
type RKeyRsp struct {
	BufID uint16 // the chunk; the answer's immediate names the same
	Key   uint32
}

// Append appends the 8 bytes of r to b.
func (r RKeyRsp) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(RKeyRspType))
	b = le.AppendUint16(b, r.BufID)
	return le.AppendUint32(b, r.Key)
}

// ParseRKeyRsp reads an RKEY_RSP.
func ParseRKeyRsp(b []byte) (RKeyRsp, error) {
	if len(b) < RKeyRspLen {
		return RKeyRsp{}, ErrShort
	}
	le := binary.LittleEndian
	if Type(le.Uint16(b)) != RKeyRspType {
		return RKeyRsp{}, ErrType
	}
	return RKeyRsp{le.Uint16(b[2:]), le.Uint32(b[4:])}, nil
}
