package load

import (
	"encoding/binary"
	"hash/crc32"
)

// HeaderBytes is the smallest datagram: what the other end needs to check and
// answer it.
const HeaderBytes = 32

const magic = 0x7264734c // "rdsL"

const (
	kindOneWay = iota + 1 // no answer wanted
	kindRequest
	kindAck
)

const flagDamaged = 1 // in an ack: the request failed its checks

// header is at the head of every datagram, big-endian.
type header struct {
	kind, flags uint8
	seq         uint64 // of this task's requests, from 0
	sentNs      int64  // the sender's clock, echoed
	sum         uint32 // CRC-32C of the rest
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h header) put(b []byte, sum bool) {
	be := binary.BigEndian
	be.PutUint32(b, magic)
	b[4], b[5], b[6], b[7] = h.kind, h.flags, 0, 0
	be.PutUint64(b[8:], h.seq)
	be.PutUint64(b[16:], uint64(h.sentNs))
	be.PutUint32(b[28:], 0)
	if sum {
		b[6] = 1
		h.sum = crc32.Checksum(b[HeaderBytes:], castagnoli)
	}
	be.PutUint32(b[24:], h.sum)
}

// parse reads a header; intact is false when a checksum is there and wrong.
func parse(b []byte) (h header, intact, ok bool) {
	be := binary.BigEndian
	if len(b) < HeaderBytes || be.Uint32(b) != magic {
		return h, false, false
	}
	h = header{kind: b[4], flags: b[5], seq: be.Uint64(b[8:]), sentNs: int64(be.Uint64(b[16:])), sum: be.Uint32(b[24:])}
	return h, b[6] == 0 || crc32.Checksum(b[HeaderBytes:], castagnoli) == h.sum, true
}

// fill writes what follows the header: bytes that differ from datagram to
// datagram, so that one delivered in place of another shows.
func fill(b []byte, seq uint64) {
	x := seq*0x9e3779b97f4a7c15 + 1
	for i := HeaderBytes; i < len(b); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}
