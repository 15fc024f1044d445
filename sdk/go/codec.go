package rdsd

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec named "proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/msgpool"
)

// The stream's codec. The bytes are those of rdsd.proto and the other side
// needs nothing special; only the three hot messages are written and read here
// by hand:
//
//   - SendBatch goes out as two buffers, the fields and the payload blob, so
//     that a payload is copied once, from the caller's slice into the blob;
//   - RecvBatch is kept as the bytes that arrived: payloads are handed out as
//     slices of them, lengths and sources are read as Recv goes along;
//   - SendResult without errors is two varints.
//
// Everything else, and every other layout of these, goes through package proto.
// codec_test.go compares both ways.

type streamCodec struct{}

var protoCodec = encoding.GetCodecV2("proto")

func (streamCodec) Name() string { return "proto" }

func (streamCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*batch)
	if !ok {
		return protoCodec.Marshal(v)
	}
	return b.marshal(), nil
}

func (streamCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inbound)
	if !ok {
		return protoCodec.Unmarshal(data, v)
	}
	if !in.lend {
		return in.unmarshal(data.Materialize())
	}
	b := data.MaterializeToBuffer(msgpool.Pool)
	err := in.unmarshal(b.ReadOnlyData())
	if in.recv != nil {
		in.recv.mem = b
	} else {
		b.Free()
	}
	return err
}

// Field numbers and wire types of rdsd.proto.
const (
	wireVarint = 0
	wireBytes  = 2

	tagClientSend = 2<<3 | wireBytes

	tagSendID           = 1<<3 | wireVarint
	tagSendPayload      = 2<<3 | wireBytes
	tagSendLength       = 3<<3 | wireBytes
	tagSendDestination  = 4<<3 | wireBytes
	tagSendIndex        = 5<<3 | wireBytes
	tagSendFirstTag     = 6<<3 | wireVarint
	tagSendWantOutcomes = 7<<3 | wireVarint
	tagSendWait         = 8<<3 | wireVarint
	tagSendTimeout      = 9<<3 | wireVarint

	tagServerSendResult = 2<<3 | wireBytes
	tagServerRecv       = 3<<3 | wireBytes

	tagResultID       = 1<<3 | wireVarint
	tagResultAccepted = 2<<3 | wireVarint

	tagRecvPayload = 1<<3 | wireBytes
	tagRecvLength  = 2<<3 | wireBytes
	tagRecvSource  = 3<<3 | wireBytes
	tagRecvIndex   = 4<<3 | wireBytes

	tagEndpointAddress = 1<<3 | wireBytes
	tagEndpointPort    = 2<<3 | wireVarint
)

// marshal lays out ClientMessage{send: b}. It takes the blob from b.
func (b *batch) marshal() mem.BufferSlice {
	blob := b.blob
	b.blob = nil
	// Packed fields have their length in front, so it is computed before anything is
	// written.
	lengthBytes, indexBytes, destBytes := 0, 0, 0
	for _, n := range b.lengths {
		lengthBytes += sizeVarint(uint64(n))
	}
	manyDests := len(b.dests) > 1
	if manyDests {
		for _, n := range b.index {
			indexBytes += sizeVarint(uint64(n))
		}
	}
	for _, d := range b.dests {
		n := endpointSize(d)
		destBytes += 1 + sizeVarint(uint64(n)) + n
	}
	// Every fixed field and length prefix at its largest.
	need := lengthBytes + indexBytes + destBytes + 96
	buf := msgpool.Pool.Get(need)
	// The outer length is known only at the end: it is a varint of fixed width,
	// padded with continuation bits, which every decoder accepts.
	const room = 1 + 5
	h := (*buf)[:room]
	h = append(h, tagSendID)
	h = binary.AppendUvarint(h, b.id)
	h = append(h, tagSendLength)
	h = binary.AppendUvarint(h, uint64(lengthBytes))
	for _, n := range b.lengths {
		h = binary.AppendUvarint(h, uint64(n))
	}
	for _, d := range b.dests {
		h = append(h, tagSendDestination)
		h = binary.AppendUvarint(h, uint64(endpointSize(d)))
		h = appendEndpoint(h, d)
	}
	if manyDests {
		h = append(h, tagSendIndex)
		h = binary.AppendUvarint(h, uint64(indexBytes))
		for _, n := range b.index {
			h = binary.AppendUvarint(h, uint64(n))
		}
	}
	if b.firstTag != 0 {
		h = append(h, tagSendFirstTag)
		h = binary.AppendUvarint(h, b.firstTag)
	}
	if b.wantOutcomes {
		h = append(h, tagSendWantOutcomes, 1)
	}
	if b.wait {
		h = append(h, tagSendWait, 1)
		if t := b.timeoutNs(); t > 0 {
			h = append(h, tagSendTimeout)
			h = binary.AppendUvarint(h, uint64(t))
		}
	}
	payloadBytes := 0
	if blob != nil {
		payloadBytes = len(*blob)
	}
	// The payload is the last field: its bytes are the second buffer, and are not copied
	// again.
	h = append(h, tagSendPayload)
	h = binary.AppendUvarint(h, uint64(payloadBytes))

	h[0] = tagClientSend
	outer := uint64(len(h) - room + payloadBytes)
	for i := 1; i < room-1; i++ {
		h[i] = byte(outer) | 0x80
		outer >>= 7
	}
	h[room-1] = byte(outer)
	*buf = h
	head := mem.NewBuffer(buf, msgpool.Pool)
	if payloadBytes == 0 {
		if blob != nil {
			msgpool.Pool.Put(blob)
		}
		return mem.BufferSlice{head}
	}
	return mem.BufferSlice{head, mem.NewBuffer(blob, msgpool.Pool)}
}

func sizeVarint(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

func endpointSize(a netip.AddrPort) int {
	n := 2 + 16
	if a.Addr().Is4() {
		n = 2 + 4
	}
	if a.Port() != 0 {
		n += 1 + sizeVarint(uint64(a.Port()))
	}
	return n
}

func appendEndpoint(h []byte, a netip.AddrPort) []byte {
	h = append(h, tagEndpointAddress)
	if a.Addr().Is4() {
		raw := a.Addr().As4()
		h = append(append(h, 4), raw[:]...)
	} else {
		raw := a.Addr().As16()
		h = append(append(h, 16), raw[:]...)
	}
	if a.Port() != 0 {
		h = append(h, tagEndpointPort)
		h = binary.AppendUvarint(h, uint64(a.Port()))
	}
	return h
}

// inbound is one message of the daemon: recv, isResult or msg is set.
type inbound struct {
	lend     bool // set by the receiving call: payloads are lent, in memory of the pool
	recv     *inBatch
	isResult bool // result without errors
	resultID uint64
	msg      *rdsdv1.ServerMessage
}

func (in *inbound) unmarshal(data []byte) error {
	*in = inbound{lend: in.lend}
	if len(data) > 0 {
		// The two messages of every datagram, alone in their ServerMessage and in the usual
		// layout, are read by hand; everything else, also what the parsers below decline,
		// goes through package proto.
		body, rest, ok := cutBytes(data[1:])
		if ok && len(rest) == 0 {
			switch data[0] {
			case tagServerRecv:
				b := &inBatch{}
				if b.parse(body) {
					in.recv = b
					return nil
				}
			case tagServerSendResult:
				if id, ok := parsePlainResult(body); ok {
					in.isResult, in.resultID = true, id
					return nil
				}
			}
		}
	}
	// What parse declined may still be right: protobuf allows other layouts.
	m := &rdsdv1.ServerMessage{}
	if err := proto.Unmarshal(data, m); err != nil {
		return fmt.Errorf("rdsd: message of the daemon: %w", err)
	}
	if m.WhichBody() == rdsdv1.ServerMessage_Recv_case {
		b, err := batchFromProto(m.GetRecv())
		if err != nil {
			return err
		}
		in.recv = b
		return nil
	}
	in.msg = m
	return nil
}

// parsePlainResult reads a SendResult that has no errors.
func parsePlainResult(p []byte) (id uint64, ok bool) {
	for len(p) > 0 {
		tag := p[0]
		v, n := binary.Uvarint(p[1:])
		if n <= 0 {
			return 0, false
		}
		switch tag {
		case tagResultID:
			id = v
		case tagResultAccepted:
		default:
			return 0, false
		}
		p = p[1+n:]
	}
	return id, true
}

// cutBytes splits a length-delimited field body from the bytes behind it.
func cutBytes(p []byte) (body, rest []byte, ok bool) {
	l, n := binary.Uvarint(p)
	if n <= 0 || l > uint64(len(p)-n) {
		return nil, nil, false
	}
	end := n + int(l)
	return p[n:end], p[end:], true
}

func endpointToProto(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	if a.Addr().IsValid() {
		e.SetAddress(a.Addr().Unmap().AsSlice())
	}
	e.SetPort(uint32(a.Port()))
	return e
}

func endpointFromProto(e *rdsdv1.Endpoint) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(e.GetAddress())
	return netip.AddrPortFrom(addr, uint16(e.GetPort()))
}
