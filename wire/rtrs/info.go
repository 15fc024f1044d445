package rtrs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// CheckName says whether name can be a session's: 1 to 254 bytes without
// NUL, '/' and '.', which would not stand as one name in a sysfs.
func CheckName(name string) error {
	switch i := strings.IndexAny(name, "/.\x00"); {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case len(name) >= NameLen:
		return fmt.Errorf("%w: %d bytes, at most %d are possible", ErrName, len(name), NameLen-1)
	case i >= 0:
		return fmt.Errorf("%w: %q has %q in it, a name has no '/', '.' and NUL", ErrName, name, name[i])
	}
	return nil
}

// AppendInfoReq appends the 272 bytes of an INFO_REQ, which names the
// session (struct rtrs_msg_info_req). A name that cannot be one appends nothing.
func AppendInfoReq(b []byte, name string) ([]byte, error) {
	if err := CheckName(name); err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(InfoReqType))
	b = append(b, name...)
	return append(b, make([]byte, InfoReqLen-2-len(name))...), nil
}

// ParseInfoReq reads the session's name from an INFO_REQ.
func ParseInfoReq(b []byte) (name string, err error) {
	if len(b) < InfoReqLen {
		return "", fmt.Errorf("%w: INFO_REQ of %d bytes, %d are needed", ErrShort, len(b), InfoReqLen)
	}
	if t := Type(binary.LittleEndian.Uint16(b)); t != InfoReqType {
		return "", fmt.Errorf("%w: %d where an INFO_REQ (%d) has to be", ErrType, t, InfoReqType)
	}
	field := b[2 : 2+NameLen]
	end := bytes.IndexByte(field, 0)
	if end < 0 {
		return "", fmt.Errorf("%w: no NUL within its %d bytes", ErrName, NameLen)
	}
	name = string(field[:end])
	if err := CheckName(name); err != nil {
		return "", err
	}
	return name, nil
}

// AppendInfoRsp appends an INFO_RSP, which says where the chunks lie
// (struct rtrs_msg_info_rsp): 8 bytes and 16 for each of at most 65535 descriptors.
func AppendInfoRsp(b []byte, descs []Desc) []byte {
	if len(descs) > MaxDepth {
		panic(fmt.Sprintf("wire: INFO_RSP of %d descriptors", len(descs)))
	}
	le := binary.LittleEndian
	b = le.AppendUint16(b, uint16(InfoRspType))
	b = le.AppendUint16(b, uint16(len(descs)))
	b = append(b, 0, 0, 0, 0)
	for _, d := range descs {
		b = d.Append(b)
	}
	return b
}

// ParseInfoRsp reads an INFO_RSP about chunks c. The descriptors it returns
// cover the chunks exactly; Spread makes one of each chunk of them.
func ParseInfoRsp(b []byte, c Chunks) ([]Desc, error) {
	if len(b) < InfoRspLen {
		return nil, fmt.Errorf("%w: INFO_RSP of %d bytes, %d are needed", ErrShort, len(b), InfoRspLen)
	}
	le := binary.LittleEndian
	if t := Type(le.Uint16(b)); t != InfoRspType {
		return nil, fmt.Errorf("%w: %d where an INFO_RSP (%d) has to be", ErrType, t, InfoRspType)
	}
	n := uint32(le.Uint16(b[2:]))
	// Each number is the peer's, and the client will write where these descriptors say:
	// numbers that do not add up to the chunks are refused.
	if n == 0 || c.Depth%n != 0 {
		return nil, fmt.Errorf("%w: %d of them for %d chunks", ErrDescs, n, c.Depth)
	}
	if need := InfoRspLen + int(n)*DescLen; len(b) < need {
		return nil, fmt.Errorf("%w: INFO_RSP of %d bytes, %d are needed for %d descriptors", ErrShort, len(b), need, n)
	}
	descs, sum, size := make([]Desc, n), uint64(0), c.Size()
	for i := range descs {
		d := parseDesc(b[InfoRspLen+i*DescLen:])
		if d.Len == 0 || d.Len%size != 0 {
			return nil, fmt.Errorf("%w: descriptor %d has %d bytes, no multiple of a chunk's %d", ErrDescs, i, d.Len, size)
		}
		if d.Addr+uint64(d.Len-1) < d.Addr {
			return nil, fmt.Errorf("%w: descriptor %d, %d bytes at %#x, passes the end of all addresses", ErrDescs, i, d.Len, d.Addr)
		}
		descs[i], sum = d, sum+uint64(d.Len)
	}
	if want := uint64(c.Depth) * uint64(size); sum != want {
		return nil, fmt.Errorf("%w: %d bytes for %d chunks of %d", ErrDescs, sum, c.Depth, size)
	}
	return descs, nil
}

// Spread appends one descriptor for each chunk, in the order of their numbers,
// from descriptors that cover them as ParseInfoRsp's do.
func (c Chunks) Spread(to, descs []Desc) []Desc {
	size := c.Size()
	for _, d := range descs {
		for at := uint32(0); at < d.Len; at += size {
			to = append(to, Desc{d.Addr + uint64(at), d.Key, size})
		}
	}
	return to
}
