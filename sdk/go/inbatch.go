package rdsd

import (
	"encoding/binary"
	"net/netip"

	"google.golang.org/grpc/mem"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/rdserr"
)

// inBatch is a received batch that Recv takes datagrams from, one after the
// other. Everything was checked when it arrived (check), so next cannot fail.
type inBatch struct {
	payload []byte           // the rest of it
	lengths []byte           // packed varints, the rest of them
	sources []netip.AddrPort // at least 1
	index   []byte           // packed varints; empty: all from sources[0]
	left    int              // datagrams

	mem  mem.Buffer // the message, when it is lent; nil: the collector's
	refs int        // leases on it; guarded by recvQueue.mu

	one [1]netip.AddrPort // backs sources in the common case
}

// giveBack gives the message back to the pool when it is read to its end and lent to no
// call. Called with recvQueue.mu held.
func (b *inBatch) giveBack() {
	if b.refs == 0 && b.left == 0 && b.mem != nil {
		b.mem.Free()
		b.mem = nil
	}
}

// next takes the first datagram. left must be at least 1.
func (b *inBatch) next() Datagram {
	l, n := binary.Uvarint(b.lengths)
	b.lengths = b.lengths[n:]
	d := Datagram{Addr: b.sources[0], Payload: b.payload[:l:l]}
	b.payload = b.payload[l:]
	if len(b.index) > 0 {
		i, n := binary.Uvarint(b.index)
		b.index = b.index[n:]
		d.Addr = b.sources[i]
	}
	b.left--
	return d
}

// nextSize is the size of the datagram next would take.
func (b *inBatch) nextSize() int {
	l, _ := binary.Uvarint(b.lengths)
	return int(l)
}

// parse reads a RecvBatch of the usual layout, keeping slices of p. It returns
// false for anything else, right or wrong: package proto decides then.
func (b *inBatch) parse(p []byte) bool {
	seen := 0
	b.sources = b.one[:0]
	for len(p) > 0 {
		tag := p[0]
		body, rest, ok := fastwire.Cut(p[1:])
		if !ok {
			return false
		}
		// The tags are of one byte, and each carries its number in the bits above 3.
		switch tag {
		case fastwire.RecvPayload, fastwire.RecvLength, fastwire.RecvIndex:
			if seen&(1<<(tag>>3)) != 0 {
				return false // packed fields may legally come in pieces
			}
			// A second packed field would be appended to the first by proto; parse keeps
			// slices and cannot.
			seen |= 1 << (tag >> 3)
			switch tag {
			case fastwire.RecvPayload:
				b.payload = body
			case fastwire.RecvLength:
				b.lengths = body
			default:
				b.index = body
			}
		case fastwire.RecvSource:
			a, ok := parseEndpoint(body)
			if !ok {
				return false
			}
			b.sources = append(b.sources, a)
		default:
			return false
		}
		p = rest
	}
	return b.check()
}

// check counts the datagrams and verifies that lengths, sources and payload
// agree.
func (b *inBatch) check() bool {
	var sum uint64
	n := 0
	for p := b.lengths; len(p) > 0; n++ {
		// Each length is bounded by the payload, so the sum cannot wrap around before it is
		// compared.
		l, used := binary.Uvarint(p)
		if used <= 0 || l > uint64(len(b.payload)) {
			return false
		}
		sum += l
		p = p[used:]
	}
	if n == 0 || sum != uint64(len(b.payload)) || len(b.sources) == 0 {
		return false
	}
	// Without an index all datagrams are of the first source.
	if len(b.index) > 0 {
		k := 0
		for p := b.index; len(p) > 0; k++ {
			i, used := binary.Uvarint(p)
			if used <= 0 || i >= uint64(len(b.sources)) {
				return false
			}
			p = p[used:]
		}
		if k != n {
			return false
		}
	}
	// From here on next reads without checks.
	b.left = n
	return true
}

// parseEndpoint reads an Endpoint. It reports false for what is none, right or wrong by
// protobuf: package proto decides then.
func parseEndpoint(p []byte) (netip.AddrPort, bool) {
	raw, port, ok := fastwire.ParseEndpoint(p)
	if !ok || port > 0xffff {
		return netip.AddrPort{}, false
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr, uint16(port)), true
}

// batchFromProto is the slow way in.
func batchFromProto(m *rdsdv1.RecvBatch) (*inBatch, error) {
	b := &inBatch{payload: m.GetPayload()}
	for _, n := range m.GetLength() {
		b.lengths = binary.AppendUvarint(b.lengths, uint64(n))
	}
	for _, i := range m.GetSourceIndex() {
		b.index = binary.AppendUvarint(b.index, uint64(i))
	}
	for _, e := range m.GetSource() {
		b.sources = append(b.sources, endpointFromProto(e))
	}
	if !b.check() {
		return nil, rdserr.With(rdserr.ErrProtocol, "the daemon sent a batch whose lengths, sources and payload disagree")
	}
	return b, nil
}

// singleBatch is a batch of one datagram that was taken out of another.
func singleBatch(d Datagram) *inBatch {
	b := &inBatch{payload: d.Payload, lengths: binary.AppendUvarint(nil, uint64(len(d.Payload))), left: 1}
	b.one[0] = d.Addr
	b.sources = b.one[:1]
	return b
}
