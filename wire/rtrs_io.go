package wire

import (
	"encoding/binary"
	"fmt"
)

// RTRSReq is the RTRS message of a request, at the end of what the client
// writes into a chunk (struct rtrs_msg_rdma_write and rtrs_msg_rdma_read).
type RTRSReq struct {
	Type   RTRSType // RTRSWrite or RTRSRead
	UsrLen uint16   // bytes of the user header before this message
	// The rest is a READ's alone.
	Flags uint16   // RTRSNeedInval; others are ignored
	SGCnt uint16   // 1: Desc is where the answer goes; 0: there is none
	Desc  RTRSDesc // of the client's memory
}

// Len is the bytes of the message.
func (r *RTRSReq) Len() int {
	if r.Type == RTRSWrite {
		return RTRSWriteLen
	}
	return RTRSReadLen + int(r.SGCnt)*RTRSDescLen
}

// NeedInval: the client's key is to be revoked before the answer, whatever
// the outcome.
func (r *RTRSReq) NeedInval() bool { return r.SGCnt == 1 && r.Flags&RTRSNeedInval != 0 }

// Append appends the message to b. SGCnt is 0 or 1.
func (r *RTRSReq) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(r.Type))
	b = le.AppendUint16(b, r.UsrLen)
	switch {
	case r.Type == RTRSWrite:
		return b
	case r.Type != RTRSRead || r.SGCnt > 1:
		panic(fmt.Sprintf("wire: request of type %d with %d descriptors", r.Type, r.SGCnt))
	}
	b = le.AppendUint16(b, r.Flags)
	b = le.AppendUint16(b, r.SGCnt)
	if r.SGCnt == 1 {
		b = r.Desc.Append(b)
	}
	return b
}

// RTRSLayout says where the parts of a request lie in its chunk, in bytes from
// the chunk's beginning: data [0,Usr), user header [Usr,Msg), message
// [Msg,End). A WRITE transmits all of it; a READ [Usr,End), and the answer's
// data takes the place of what was left out.
type RTRSLayout struct{ Usr, Msg, End uint32 }

// DataLen is the bytes of data, to write or to read.
func (l RTRSLayout) DataLen() uint32 { return l.Usr }

// Start is the first byte that a request of type t transmits.
func (l RTRSLayout) Start(t RTRSType) uint32 {
	if t == RTRSRead {
		return l.Usr
	}
	return 0
}

// Layout lays a request with dataLen bytes of data into a chunk, as a client
// has to: ErrRTRSDataLen or ErrRTRSHdrLen when it does not fit.
func (c RTRSChunks) Layout(r *RTRSReq, dataLen uint32) (RTRSLayout, error) {
	hdr := uint32(r.UsrLen) + uint32(r.Len())
	switch {
	case dataLen > c.MaxIO:
		return RTRSLayout{}, ErrRTRSDataLen
	case hdr > c.MaxHdr:
		return RTRSLayout{}, ErrRTRSHdrLen
	case r.SGCnt == 1 && (r.Desc.Len == 0 || r.Desc.Len > dataLen):
		return RTRSLayout{}, ErrRTRSDescLen
	}
	return RTRSLayout{dataLen, dataLen + uint32(r.UsrLen), dataLen + hdr}, nil
}

// ParseRequest reads the request whose message begins at byte off of chunk, as
// a server has to. The client may still be able to write there: each field is
// read once, what is returned has been checked, and nothing of the message is
// to be read from the chunk again.
//
// A kernel drops some of the requests that are errors here without a word,
// which costs its client a chunk. They can be answered, as off came with the
// chunk's number; only ErrRTRSType closes a kernel's path. A descriptor longer
// than the data asked for would send the client bytes that nobody put there.
func (c RTRSChunks) ParseRequest(chunk []byte, off uint32) (r RTRSReq, l RTRSLayout, err error) {
	if size := uint64(c.Size()); uint64(len(chunk)) > size {
		chunk = chunk[:size]
	}
	if uint64(off)+RTRSWriteLen > uint64(len(chunk)) {
		return RTRSReq{}, RTRSLayout{}, ErrRTRSOff
	}
	le, b := binary.LittleEndian, chunk[off:]
	r = RTRSReq{Type: RTRSType(le.Uint16(b)), UsrLen: le.Uint16(b[2:])}
	switch r.Type {
	case RTRSWrite:
	case RTRSRead:
		if err = r.parseRead(b); err != nil {
			return RTRSReq{}, RTRSLayout{}, err
		}
	default:
		return RTRSReq{}, RTRSLayout{}, ErrRTRSType
	}
	if uint32(r.UsrLen) > off {
		return RTRSReq{}, RTRSLayout{}, ErrRTRSUsrLen
	}
	l = RTRSLayout{off - uint32(r.UsrLen), off, off + uint32(r.Len())}
	switch {
	case l.DataLen() > c.MaxIO:
		return RTRSReq{}, RTRSLayout{}, ErrRTRSDataLen
	case r.SGCnt == 1 && (r.Desc.Len == 0 || r.Desc.Len > l.DataLen()):
		return RTRSReq{}, RTRSLayout{}, ErrRTRSDescLen
	}
	return r, l, nil
}

// parseRead reads what only a READ has.
func (r *RTRSReq) parseRead(b []byte) error {
	if len(b) < RTRSReadLen {
		return ErrRTRSOff
	}
	r.Flags, r.SGCnt = binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])
	switch {
	case r.SGCnt > 1:
		return ErrRTRSSGCount
	case len(b) < r.Len():
		return ErrRTRSOff
	case r.SGCnt == 1:
		r.Desc = parseRTRSDesc(b[RTRSReadLen:])
	}
	return nil
}

// RTRSRKeyRsp brings the new key of a chunk with the answer that used it
// (struct rtrs_msg_rkey_rsp).
type RTRSRKeyRsp struct {
	BufID uint16 // the chunk; the answer's immediate names the same
	Key   uint32
}

// Append appends the 8 bytes of r to b.
func (r RTRSRKeyRsp) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(RTRSRKeyRspType))
	b = le.AppendUint16(b, r.BufID)
	return le.AppendUint32(b, r.Key)
}

// ParseRTRSRKeyRsp reads an RKEY_RSP.
func ParseRTRSRKeyRsp(b []byte) (RTRSRKeyRsp, error) {
	if len(b) < RTRSRKeyRspLen {
		return RTRSRKeyRsp{}, ErrRTRSShort
	}
	le := binary.LittleEndian
	if RTRSType(le.Uint16(b)) != RTRSRKeyRspType {
		return RTRSRKeyRsp{}, ErrRTRSType
	}
	return RTRSRKeyRsp{le.Uint16(b[2:]), le.Uint32(b[4:])}, nil
}
