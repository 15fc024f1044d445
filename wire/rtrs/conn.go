package rtrs

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ConnReq is the private data of a CM REQ (struct rtrs_msg_conn_req): one
// connection of a path asks to be let in. Its first two bytes are sent as 0,
// because a connection manager that does not add its own header would read
// its versions there.
type ConnReq struct {
	Minor     uint8  // of the version; 0 today, not compared
	Conn      uint16 // number of this connection, from 0
	Conns     uint16 // connections of this path, 1 to MaxConns
	Attempt   uint16 // of the path to connect, from 1
	Path      [UUIDLen]byte
	Session   [UUIDLen]byte
	FirstConn bool // create the session if it is not known
}

// Append appends the 56 bytes of r to b.
func (r *ConnReq) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, 0, 0)
	b = le.AppendUint16(b, Magic)
	b = append(b, r.Minor, VersionMajor)
	b = le.AppendUint16(b, r.Conn)
	b = le.AppendUint16(b, r.Conns)
	b = le.AppendUint16(b, r.Attempt)
	b = append(b, r.Path[:]...)
	b = append(b, r.Session[:]...)
	var first byte
	if r.FirstConn {
		first = 1
	}
	return append(append(b, first), make([]byte, 11)...)
}

// ParseConnReq reads a CON_REQ. Bytes behind its 56 are ignored, and so are reserved ones.
func ParseConnReq(b []byte) (r ConnReq, err error) {
	if len(b) < ConnLen {
		return r, fmt.Errorf("%w: CON_REQ of %d bytes, %d are needed", ErrShort, len(b), ConnLen)
	}
	if err := checkMagic(b[2:]); err != nil {
		return r, err
	}
	le := binary.LittleEndian
	conn, conns := le.Uint16(b[6:]), le.Uint16(b[8:])
	if conns > MaxConns || conn >= conns {
		return r, fmt.Errorf("%w: connection %d of %d, a path has 1 to %d counted from 0", ErrConn, conn, conns, MaxConns)
	}
	return ConnReq{Minor: b[4], Conn: conn, Conns: conns, Attempt: le.Uint16(b[10:]),
		Path: [UUIDLen]byte(b[12:]), Session: [UUIDLen]byte(b[28:]), FirstConn: b[44]&1 != 0}, nil
}

// ConnRsp is the private data of a CM REP, or of a CM REJ with reason 28
// (struct rtrs_msg_conn_rsp). Of a rejection only Status has a meaning, and
// of an acceptance only connection 0's numbers have.
type ConnRsp struct {
	Minor      uint8 // of the version; 0 today, not compared
	Status     int16 // 0 accepted, else an errno as a negative number
	QueueDepth uint16
	MaxIOSize  uint32 // bytes of data in a chunk
	MaxHdrSize uint32 // bytes of a chunk beyond them, for the headers
	Flags      uint32 // NewRKey; others are ignored
}

// Reject is the answer that refuses a connection with errno, a positive one.
func Reject(errno uint16) ConnRsp {
	if errno == 0 || errno > math.MaxInt16 {
		panic(fmt.Sprintf("wire: rejection with errno %d", errno))
	}
	return ConnRsp{Status: -int16(errno)}
}

// Errno is the positive errno of a rejection, 0 of an acceptance.
func (r *ConnRsp) Errno() uint16 {
	if r.Status < 0 {
		return uint16(-int32(r.Status))
	}
	return uint16(r.Status)
}

// Append appends the 56 bytes of r to b.
func (r *ConnRsp) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, Magic)
	b = append(b, r.Minor, VersionMajor)
	b = le.AppendUint16(b, uint16(r.Status))
	b = le.AppendUint16(b, r.QueueDepth)
	b = le.AppendUint32(b, r.MaxIOSize)
	b = le.AppendUint32(b, r.MaxHdrSize)
	b = le.AppendUint32(b, r.Flags)
	return append(b, make([]byte, 36)...)
}

// ParseConnRsp reads a CON_RSP, which arrives with many bytes behind it. Chunks reports
// whether its numbers can be used.
func ParseConnRsp(b []byte) (r ConnRsp, err error) {
	if len(b) < ConnLen {
		return r, fmt.Errorf("%w: CON_RSP of %d bytes, %d are needed", ErrShort, len(b), ConnLen)
	}
	if err := checkMagic(b); err != nil {
		return r, err
	}
	le := binary.LittleEndian
	return ConnRsp{Minor: b[2], Status: int16(le.Uint16(b[4:])), QueueDepth: le.Uint16(b[6:]),
		MaxIOSize: le.Uint32(b[8:]), MaxHdrSize: le.Uint32(b[12:]), Flags: le.Uint32(b[16:])}, nil
}

// Chunks is the geometry that connection 0's answer announces.
func (r *ConnRsp) Chunks() (Chunks, error) {
	return NewChunks(uint32(r.QueueDepth), r.MaxIOSize, r.MaxHdrSize)
}

// checkMagic judges the magic and the version at b[:4].
func checkMagic(b []byte) error {
	if m := binary.LittleEndian.Uint16(b); m != Magic {
		return fmt.Errorf("%w but %#04x", ErrMagic, m)
	}
	if b[3] != VersionMajor {
		return fmt.Errorf("%w: %d.%d", ErrVersion, b[3], b[2])
	}
	return nil
}
