package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// CheckRTRSName says whether name can be a session's: 1 to 254 bytes without
// NUL, '/' and '.', which would not stand as one name in a sysfs.
func CheckRTRSName(name string) error {
	switch i := strings.IndexAny(name, "/.\x00"); {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrRTRSName)
	case len(name) >= RTRSNameLen:
		return fmt.Errorf("%w: %d bytes, at most %d are possible", ErrRTRSName, len(name), RTRSNameLen-1)
	case i >= 0:
		return fmt.Errorf("%w: %q has %q in it, a name has no '/', '.' and NUL", ErrRTRSName, name, name[i])
	}
	return nil
}

// AppendRTRSInfoReq appends the 272 bytes of an INFO_REQ, which names the
// session (struct rtrs_msg_info_req). A name that cannot be one appends nothing.
func AppendRTRSInfoReq(b []byte, name string) ([]byte, error) {
	if err := CheckRTRSName(name); err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(RTRSInfoReqType))
	b = append(b, name...)
	return zeros(b, RTRSInfoReqLen-2-len(name)), nil
}

// ParseRTRSInfoReq reads the session's name from an INFO_REQ.
func ParseRTRSInfoReq(b []byte) (name string, err error) {
	if len(b) < RTRSInfoReqLen {
		return "", fmt.Errorf("%w: INFO_REQ of %d bytes, %d are needed", ErrRTRSShort, len(b), RTRSInfoReqLen)
	}
	if t := RTRSType(binary.LittleEndian.Uint16(b)); t != RTRSInfoReqType {
		return "", fmt.Errorf("%w: %d where an INFO_REQ (%d) has to be", ErrRTRSType, t, RTRSInfoReqType)
	}
	field := b[2 : 2+RTRSNameLen]
	end := bytes.IndexByte(field, 0)
	if end < 0 {
		return "", fmt.Errorf("%w: no NUL within its %d bytes", ErrRTRSName, RTRSNameLen)
	}
	name = string(field[:end])
	if err := CheckRTRSName(name); err != nil {
		return "", err
	}
	return name, nil
}

// AppendRTRSInfoRsp appends an INFO_RSP, which says where the chunks lie
// (struct rtrs_msg_info_rsp): 8 bytes and 16 for each of at most 65535 descriptors.
func AppendRTRSInfoRsp(b []byte, descs []RTRSDesc) []byte {
	if len(descs) > RTRSMaxDepth {
		panic(fmt.Sprintf("wire: INFO_RSP of %d descriptors", len(descs)))
	}
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(RTRSInfoRspType))
	b = le.AppendUint16(b, uint16(len(descs)))
	b = append(b, 0, 0, 0, 0)
	for _, d := range descs {
		b = d.Append(b)
	}
	return b
}

// ParseRTRSInfoRsp reads an INFO_RSP about chunks c. The descriptors it returns
// cover the chunks exactly; Spread makes one of each chunk of them.
func ParseRTRSInfoRsp(b []byte, c RTRSChunks) ([]RTRSDesc, error) {
	if len(b) < RTRSInfoRspLen {
		return nil, fmt.Errorf("%w: INFO_RSP of %d bytes, %d are needed", ErrRTRSShort, len(b), RTRSInfoRspLen)
	}
	le := binary.LittleEndian
	if t := RTRSType(le.Uint16(b)); t != RTRSInfoRspType {
		return nil, fmt.Errorf("%w: %d where an INFO_RSP (%d) has to be", ErrRTRSType, t, RTRSInfoRspType)
	}
	n := uint32(le.Uint16(b[2:]))
	if n == 0 || c.Depth%n != 0 {
		return nil, fmt.Errorf("%w: %d of them for %d chunks", ErrRTRSDescs, n, c.Depth)
	}
	if need := RTRSInfoRspLen + int(n)*RTRSDescLen; len(b) < need {
		return nil, fmt.Errorf("%w: INFO_RSP of %d bytes, %d are needed for %d descriptors", ErrRTRSShort, len(b), need, n)
	}
	descs, sum, size := make([]RTRSDesc, n), uint64(0), c.Size()
	for i := range descs {
		d := parseRTRSDesc(b[RTRSInfoRspLen+i*RTRSDescLen:])
		if d.Len == 0 || d.Len%size != 0 {
			return nil, fmt.Errorf("%w: descriptor %d has %d bytes, no multiple of a chunk's %d", ErrRTRSDescs, i, d.Len, size)
		}
		if d.Addr+uint64(d.Len-1) < d.Addr {
			return nil, fmt.Errorf("%w: descriptor %d, %d bytes at %#x, passes the end of all addresses", ErrRTRSDescs, i, d.Len, d.Addr)
		}
		descs[i], sum = d, sum+uint64(d.Len)
	}
	if want := uint64(c.Depth) * uint64(size); sum != want {
		return nil, fmt.Errorf("%w: %d bytes for %d chunks of %d", ErrRTRSDescs, sum, c.Depth, size)
	}
	return descs, nil
}

// Spread appends one descriptor for each chunk, in the order of their numbers,
// from descriptors that cover them as ParseRTRSInfoRsp's do.
func (c RTRSChunks) Spread(to, descs []RTRSDesc) []RTRSDesc {
	size := c.Size()
	for _, d := range descs {
		for at := uint32(0); at < d.Len; at += size {
			to = append(to, RTRSDesc{d.Addr + uint64(at), d.Key, size})
		}
	}
	return to
}
