package client

import (
	"encoding/binary"
	"net/netip"

	"google.golang.org/grpc/mem"

	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/internal/msgpool"
	"github.com/rdsd/rdsd/rds"
)

// outResult is a SendResult without errors.
type outResult struct {
	id       uint64
	accepted uint32
}

var (
	_ marshaler = (*outResult)(nil)
	_ marshaler = (*outBatch)(nil)
)

func (r *outResult) marshal() mem.BufferSlice {
	buf := msgpool.Pool.Get(64)
	h := (*buf)[:2] // ServerMessage tag and length, below 128
	if r.id != 0 {
		h = append(h, fastwire.ResultID)
		h = binary.AppendUvarint(h, r.id)
	}
	if r.accepted != 0 {
		h = append(h, fastwire.ResultAccepted)
		h = binary.AppendUvarint(h, uint64(r.accepted))
	}
	h[0], h[1] = fastwire.ServerSendResult, byte(len(h)-2)
	*buf = h
	return mem.BufferSlice{mem.NewBuffer(buf, msgpool.Pool)}
}

// outBatch is a RecvBatch under construction. It is reused.
type outBatch struct {
	lengths []uint32
	sources []netip.AddrPort
	index   []uint32
	pool    mem.BufferPool // of blob; nil: msgpool.Pool
	blob    *[]byte        // payload; nil while empty
	size    int
}

func (b *outBatch) reset() {
	b.lengths, b.sources, b.index, b.size = b.lengths[:0], b.sources[:0], b.index[:0], 0
	if b.blob != nil { // not sent
		b.from().Put(b.blob)
		b.blob = nil
	}
}

func (b *outBatch) from() mem.BufferPool {
	if b.pool == nil {
		return msgpool.Pool
	}
	return b.pool
}

// take makes the batch of a run of received datagrams; the payloads are copied.
func (b *outBatch) take(r *rds.Run) {
	b.reset()
	b.lengths = append(b.lengths, r.Lengths...)
	b.sources = append(b.sources, r.Sources...)
	b.index = append(b.index, r.Index...)
	if b.size = r.Bytes; b.size == 0 {
		return
	}
	b.blob = b.from().Get(b.size)
	out := (*b.blob)[:0]
	for _, s := range r.Spans {
		out = append(out, s.Payload...)
	}
	*b.blob = out
}

// marshal lays out ServerMessage{recv: b} and takes the blob with it.
func (b *outBatch) marshal() mem.BufferSlice {
	lengthBytes, indexBytes := fastwire.SizeUint32s(b.lengths), 0
	if len(b.sources) > 1 {
		indexBytes = fastwire.SizeUint32s(b.index)
	}
	// The outer length is known only at the end: leave room before it.
	const room = 1 + binary.MaxVarintLen64
	buf := msgpool.Pool.Get(room + lengthBytes + indexBytes + fastwire.SizeEndpoints(b.sources) + 48)
	h := (*buf)[:room]
	h = fastwire.AppendUint32s(h, fastwire.RecvLength, b.lengths, lengthBytes)
	h = fastwire.AppendEndpoints(h, fastwire.RecvSource, b.sources)
	if indexBytes > 0 {
		h = fastwire.AppendUint32s(h, fastwire.RecvIndex, b.index, indexBytes)
	}
	h = append(h, fastwire.RecvPayload)
	h = binary.AppendUvarint(h, uint64(b.size))

	var outer [room]byte
	o := append(outer[:0], fastwire.ServerRecv)
	o = binary.AppendUvarint(o, uint64(len(h)-room+b.size))
	start := room - len(o)
	copy(h[start:], o)
	*buf = h
	blob := b.blob
	b.blob = nil
	if len(h) < 1024 && start > 0 { // slicing costs an allocation, moving a few bytes does not
		*buf = h[:copy(h, h[start:])]
		start = 0
	}
	head := mem.NewBuffer(buf, msgpool.Pool)
	if start > 0 {
		whole := head
		head = whole.Slice(start, len(h))
		whole.Free()
	}
	if blob == nil {
		return mem.BufferSlice{head}
	}
	return mem.BufferSlice{head, mem.NewBuffer(blob, b.from())}
}
