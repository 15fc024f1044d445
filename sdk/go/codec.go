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
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
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

// marshal lays out ClientMessage{send: b}. It takes the blob from b.
func (b *batch) marshal() mem.BufferSlice {
	blob := b.blob
	b.blob = nil
	// Packed fields have their length in front, so it is computed before anything is
	// written.
	lengthBytes, indexBytes := fastwire.SizeUint32s(b.lengths), 0
	manyDests := len(b.dests) > 1
	if manyDests {
		indexBytes = fastwire.SizeUint32s(b.index)
	}
	// Every fixed field and length prefix at its largest.
	need := lengthBytes + indexBytes + fastwire.SizeEndpoints(b.dests) + 96
	buf := msgpool.Pool.Get(need)
	// The outer length is known only at the end: it is a varint of fixed width,
	// padded with continuation bits, which every decoder accepts.
	const room = 1 + 5
	h := (*buf)[:room]
	h = append(h, fastwire.SendID)
	h = binary.AppendUvarint(h, b.id)
	h = fastwire.AppendUint32s(h, fastwire.SendLength, b.lengths, lengthBytes)
	h = fastwire.AppendEndpoints(h, fastwire.SendDestination, b.dests)
	if manyDests {
		h = fastwire.AppendUint32s(h, fastwire.SendIndex, b.index, indexBytes)
	}
	if b.firstTag != 0 {
		h = append(h, fastwire.SendFirstTag)
		h = binary.AppendUvarint(h, b.firstTag)
	}
	if b.wantOutcomes {
		h = append(h, fastwire.SendWantOutcomes, 1)
	}
	if b.wait || b.posted {
		h = append(h, fastwire.SendWait, 1)
		if t := b.timeoutNs(); t > 0 {
			h = append(h, fastwire.SendTimeout)
			h = binary.AppendUvarint(h, uint64(t))
		}
		if b.resultLater {
			h = append(h, fastwire.SendResultLater, 1)
		}
	}
	payloadBytes := 0
	if blob != nil {
		payloadBytes = len(*blob)
	}
	// The payload is the last field: its bytes are the second buffer, and are not copied
	// again.
	h = append(h, fastwire.SendPayload)
	h = binary.AppendUvarint(h, uint64(payloadBytes))

	h[0] = fastwire.ClientSend
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
		body, rest, ok := fastwire.Cut(data[1:])
		if ok && len(rest) == 0 {
			switch data[0] {
			case fastwire.ServerRecv:
				b := &inBatch{}
				if b.parse(body) {
					in.recv = b
					return nil
				}
			case fastwire.ServerSendResult:
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
		case fastwire.ResultID:
			id = v
		case fastwire.ResultAccepted:
		default:
			return 0, false
		}
		p = p[1+n:]
	}
	return id, true
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
