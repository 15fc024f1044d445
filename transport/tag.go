package transport

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Tagged frames carry one-sided operations over a byte stream (docs/protocol.md, "One-sided
// links over TCP"): a header, and behind it the bytes to be placed.

// TagLen is the size of a tagged frame's header, in bytes.
const TagLen = 32

// TagVersion is the version of the framing, shown in TagConnect.
const TagVersion = 1

// Frames of the handshake: the first in each direction. The others have the
// numbers of OpKind.
const (
	TagConnect OpKind = 16 + iota
	TagAccept
	TagReject
)

// tagMagic stands where an address would in frames of the handshake: "rdsd-tag".
const tagMagic = 0x6761742d64736472

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Tag is the header of a tagged frame.
type Tag struct {
	Kind OpKind
	Seq  uint32 // counts the link's frames of one direction, the handshake's being 0
	Len  uint32 // bytes that follow
	Key  uint32
	Imm  uint32
	Addr uint64
}

// Put writes the header into b, 32 bytes.
func (t *Tag) Put(b []byte) {
	_ = b[TagLen-1]
	binary.LittleEndian.PutUint32(b[4:], uint32(t.Kind))
	binary.LittleEndian.PutUint32(b[8:], t.Seq)
	binary.LittleEndian.PutUint32(b[12:], t.Len)
	binary.LittleEndian.PutUint32(b[16:], t.Key)
	binary.LittleEndian.PutUint32(b[20:], t.Imm)
	binary.LittleEndian.PutUint64(b[24:], t.Addr)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:TagLen], castagnoli))
}

// Parse reads the header from b, 32 bytes, and refuses one that is damaged, of
// no known kind, or longer than its kind may be. seq is the number it must have.
func (t *Tag) Parse(b []byte, seq uint32) error {
	_ = b[TagLen-1]
	// This comes before any field is used: in a stream that has lost its place the length
	// would be that of other bytes.
	if sum := crc32.Checksum(b[4:TagLen], castagnoli); sum != binary.LittleEndian.Uint32(b) {
		return &TagError{fmt.Sprintf("its checksum is %#x, its bytes sum to %#x", binary.LittleEndian.Uint32(b), sum)}
	}
	kind := binary.LittleEndian.Uint32(b[4:])
	*t = Tag{
		Kind: OpKind(kind),
		Seq:  binary.LittleEndian.Uint32(b[8:]),
		Len:  binary.LittleEndian.Uint32(b[12:]),
		Key:  binary.LittleEndian.Uint32(b[16:]),
		Imm:  binary.LittleEndian.Uint32(b[20:]),
		Addr: binary.LittleEndian.Uint64(b[24:]),
	}
	// A frame that is missing, or there twice, cannot come about by itself on a connection.
	if t.Seq != seq {
		return &TagError{fmt.Sprintf("it is number %d of its link, and %d is due", t.Seq, seq)}
	}
	switch kind {
	case uint32(OpWrite), uint32(OpWriteImm): // the region is the limit
		return nil
	case uint32(OpSend), uint32(OpSendImm), uint32(OpSendInval):
		return t.limit("a send", MaxSend)
	case uint32(TagConnect), uint32(TagAccept), uint32(TagReject):
		if t.Addr != tagMagic {
			return &TagError{fmt.Sprintf("a handshake without the magic number: %#x", t.Addr)}
		}
		return t.limit("private data", uint32(maxPrivate(t.Kind)))
	}
	return &TagError{fmt.Sprintf("no frame is of kind %d", kind)}
}

func (t *Tag) limit(what string, most uint32) error {
	if t.Len > most {
		return &TagError{fmt.Sprintf("it announces %s of %d bytes; at most %d are taken", what, t.Len, most)}
	}
	return nil
}

// maxPrivate is how much private data a frame of a handshake may have.
func maxPrivate(kind OpKind) int {
	switch kind {
	case TagConnect:
		return MaxConnect
	case TagReject:
		return MaxReject
	}
	return MaxAccept
}

// AppendHandshake appends the frame of a handshake.
func AppendHandshake(b []byte, kind OpKind, private []byte) ([]byte, error) {
	if most := maxPrivate(kind); len(private) > most {
		return b, fmt.Errorf("transport: %d bytes of private data; at most %d can be shown here", len(private), most)
	}
	n := len(b)
	b = append(b, make([]byte, TagLen)...)
	(&Tag{Kind: kind, Len: uint32(len(private)), Key: TagVersion, Addr: tagMagic}).Put(b[n:])
	return append(b, private...), nil
}

// TagError describes a header that no peer sends that keeps to the protocol. The stream
// cannot be followed any further.
type TagError struct{ Why string }

func (e *TagError) Error() string { return "transport: a bad frame header: " + e.Why }

// AccessError says that a peer asked for memory it has no right to.
type AccessError struct {
	Kind OpKind
	Key  uint32
	Addr uint64
	Len  uint32
	Why  string
}

func (e *AccessError) Error() string {
	if e.Kind == OpSendInval {
		return fmt.Sprintf("transport: the peer revokes key %#x: %s", e.Key, e.Why)
	}
	return fmt.Sprintf("transport: the peer writes %d bytes at %#x with key %#x: %s", e.Len, e.Addr, e.Key, e.Why)
}
