package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// RTRSConnReq is the private data of a CM REQ (struct rtrs_msg_conn_req): one
// connection of a path asks to be let in. Its first two bytes are sent as 0,
// because a connection manager that does not add its own header would read
// its versions there.
type RTRSConnReq struct {
	Minor     uint8  // of the version; 0 today, not compared
	Conn      uint16 // number of this connection, from 0
	Conns     uint16 // connections of this path, 1 to RTRSMaxConns
	Attempt   uint16 // of the path to connect, from 1
	Path      [RTRSUUIDLen]byte
	Session   [RTRSUUIDLen]byte
	FirstConn bool // create the session if it is not known
}

// Append appends the 56 bytes of r to b.
func (r *RTRSConnReq) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, 0, 0)
	b = le.AppendUint16(b, RTRSMagic)
	b = append(b, r.Minor, RTRSVersionMajor)
	b = le.AppendUint16(b, r.Conn)
	b = le.AppendUint16(b, r.Conns)
	b = le.AppendUint16(b, r.Attempt)
	b = append(b, r.Path[:]...)
	b = append(b, r.Session[:]...)
	var first byte
	if r.FirstConn {
		first = 1
	}
	return zeros(append(b, first), 11)
}

// ParseRTRSConnReq reads a CON_REQ. What is behind its 56 bytes is ignored,
// as what is reserved in it.
func ParseRTRSConnReq(b []byte) (r RTRSConnReq, err error) {
	if len(b) < RTRSConnLen {
		return r, fmt.Errorf("%w: CON_REQ of %d bytes, %d are needed", ErrRTRSShort, len(b), RTRSConnLen)
	}
	if err := checkRTRSMagic(b[2:]); err != nil {
		return r, err
	}
	le := binary.LittleEndian
	conn, conns := le.Uint16(b[6:]), le.Uint16(b[8:])
	if conns > RTRSMaxConns || conn >= conns {
		return r, fmt.Errorf("%w: connection %d of %d, a path has 1 to %d counted from 0", ErrRTRSConn, conn, conns, RTRSMaxConns)
	}
	return RTRSConnReq{Minor: b[4], Conn: conn, Conns: conns, Attempt: le.Uint16(b[10:]),
		Path: [RTRSUUIDLen]byte(b[12:]), Session: [RTRSUUIDLen]byte(b[28:]), FirstConn: b[44]&1 != 0}, nil
}

// RTRSConnRsp is the private data of a CM REP, or of a CM REJ with reason 28
// (struct rtrs_msg_conn_rsp). Of a rejection only Status has a meaning, and
// of an acceptance only connection 0's numbers have.
type RTRSConnRsp struct {
	Minor      uint8 // of the version; 0 today, not compared
	Status     int16 // 0 accepted, else an errno as a negative number
	QueueDepth uint16
	MaxIOSize  uint32 // bytes of data in a chunk
	MaxHdrSize uint32 // bytes of a chunk beyond them, for the headers
	Flags      uint32 // RTRSNewRKey; others are ignored
}

// RTRSReject is the answer that refuses a connection with errno, a positive one.
func RTRSReject(errno uint16) RTRSConnRsp {
	if errno == 0 || errno > math.MaxInt16 {
		panic(fmt.Sprintf("wire: rejection with errno %d", errno))
	}
	return RTRSConnRsp{Status: -int16(errno)}
}

// Errno is the positive errno of a rejection, 0 of an acceptance.
func (r *RTRSConnRsp) Errno() uint16 {
	if r.Status < 0 {
		return uint16(-int32(r.Status))
	}
	return uint16(r.Status)
}

// Append appends the 56 bytes of r to b.
func (r *RTRSConnRsp) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, RTRSMagic)
	b = append(b, r.Minor, RTRSVersionMajor)
	b = le.AppendUint16(b, uint16(r.Status))
	b = le.AppendUint16(b, r.QueueDepth)
	b = le.AppendUint32(b, r.MaxIOSize)
	b = le.AppendUint32(b, r.MaxHdrSize)
	b = le.AppendUint32(b, r.Flags)
	return zeros(b, 36)
}

// ParseRTRSConnRsp reads a CON_RSP, which arrives with many bytes behind it.
// Chunks says whether what it promises can be worked with.
func ParseRTRSConnRsp(b []byte) (r RTRSConnRsp, err error) {
	if len(b) < RTRSConnLen {
		return r, fmt.Errorf("%w: CON_RSP of %d bytes, %d are needed", ErrRTRSShort, len(b), RTRSConnLen)
	}
	if err := checkRTRSMagic(b); err != nil {
		return r, err
	}
	le := binary.LittleEndian
	return RTRSConnRsp{Minor: b[2], Status: int16(le.Uint16(b[4:])), QueueDepth: le.Uint16(b[6:]),
		MaxIOSize: le.Uint32(b[8:]), MaxHdrSize: le.Uint32(b[12:]), Flags: le.Uint32(b[16:])}, nil
}

// Chunks is the geometry that connection 0's answer announces.
func (r *RTRSConnRsp) Chunks() (RTRSChunks, error) {
	return NewRTRSChunks(uint32(r.QueueDepth), r.MaxIOSize, r.MaxHdrSize)
}

// checkRTRSMagic judges the magic and the version at b[:4].
func checkRTRSMagic(b []byte) error {
	if m := binary.LittleEndian.Uint16(b); m != RTRSMagic {
		return fmt.Errorf("%w but %#04x", ErrRTRSMagic, m)
	}
	if b[3] != RTRSVersionMajor {
		return fmt.Errorf("%w: %d.%d", ErrRTRSVersion, b[3], b[2])
	}
	return nil
}
