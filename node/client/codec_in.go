package client

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
)

// maxBatchDatagrams bounds what one SendBatch makes the daemon do.
const maxBatchDatagrams = 65536

// inBatch is a SendBatch. Its slices are reused.
type inBatch struct {
	id       uint64
	payload  []byte
	lengths  []uint32
	dests    []rawEndpoint
	index    []uint32 // empty: all to dests[0]
	firstTag uint64
	want     bool
	wait     bool
	timeout  time.Duration
	later    bool // the result may wait

	message int64 // what the message that it came in takes until it is released; 0: little

	refused error // why it was not read, and many is how many datagrams it has
	many    int
}

func (b *inBatch) reset() {
	*b = inBatch{lengths: b.lengths[:0], dests: b.dests[:0], index: b.index[:0]}
}

// parse reads the usual layout; false means that package proto has to look.
func (b *inBatch) parse(p []byte) bool {
	b.reset()
	for len(p) > 0 {
		tag := p[0]
		p = p[1:]
		if tag&7 == fastwire.Varint {
			v, n := binary.Uvarint(p)
			if n <= 0 {
				return false
			}
			p = p[n:]
			switch tag {
			case fastwire.SendID:
				b.id = v
			case fastwire.SendFirstTag:
				b.firstTag = v
			case fastwire.SendWantOutcomes:
				b.want = v != 0
			case fastwire.SendWait:
				b.wait = v != 0
			case fastwire.SendTimeout:
				b.timeout = time.Duration(v)
			case fastwire.SendResultLater:
				b.later = v != 0
			default:
				return false
			}
			continue
		}
		body, rest, ok := fastwire.Cut(p)
		if !ok {
			return false
		}
		p = rest
		switch tag {
		case fastwire.SendPayload:
			b.payload = body
		case fastwire.SendLength:
			b.lengths, ok = fastwire.Uint32s(b.lengths, body)
		case fastwire.SendIndex:
			b.index, ok = fastwire.Uint32s(b.index, body)
		case fastwire.SendDestination:
			var e rawEndpoint
			e, ok = parseEndpoint(body)
			b.dests = append(b.dests, e)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

// fromProto is the slow way in.
func (b *inBatch) fromProto(m *rdsdv1.SendBatch) {
	b.reset()
	b.id, b.payload, b.firstTag = m.GetId(), m.GetPayload(), m.GetFirstTag()
	b.want, b.wait, b.timeout = m.GetWantOutcomes(), m.GetWait(), time.Duration(m.GetTimeoutNs())
	b.later = m.GetResultMayWait()
	b.lengths = append(b.lengths, m.GetLength()...)
	b.index = append(b.index, m.GetDestinationIndex()...)
	for _, d := range m.GetDestination() {
		e := rawEndpoint{port: d.GetPort()}
		e.setAddress(d.GetAddress())
		b.dests = append(b.dests, e)
	}
}

// check says what makes the batch as a whole unusable, "" when nothing does.
func (b *inBatch) check() string {
	n := len(b.lengths)
	switch {
	case n == 0:
		return "send.length is empty; a batch has at least one datagram"
	case n > maxBatchDatagrams:
		return fmt.Sprintf("send.length has %d entries; a batch has at most %d datagrams", n, maxBatchDatagrams)
	case len(b.dests) == 0:
		return "send.destination is empty; a batch has at least one"
	case len(b.dests) > n:
		return fmt.Sprintf("send.destination has %d entries for %d datagrams", len(b.dests), n)
	case len(b.index) != 0 && len(b.index) != n:
		return fmt.Sprintf("send.destination_index has %d entries for %d datagrams; want none or one each", len(b.index), n)
	case b.timeout < 0:
		return fmt.Sprintf("send.timeout_ns is %d; want 0 (for ever) or more", int64(b.timeout))
	case b.firstTag > math.MaxUint64-uint64(n):
		return fmt.Sprintf("send.first_tag %d leaves no room for %d tags", b.firstTag, n)
	}
	var sum uint64
	for _, l := range b.lengths {
		sum += uint64(l)
	}
	if sum != uint64(len(b.payload)) {
		return fmt.Sprintf("send.length adds up to %d bytes and send.payload has %d", sum, len(b.payload))
	}
	for i, x := range b.index {
		if int(x) >= len(b.dests) {
			return fmt.Sprintf("send.destination_index[%d] is %d and there are %d destinations", i, x, len(b.dests))
		}
	}
	return ""
}

// problem says what is wrong with an endpoint that must name a port, "" when
// nothing is. field is its name in the message.
func (e *rawEndpoint) problem(field string) string {
	switch {
	case e.addrLen != 4 && e.addrLen != 16:
		return fmt.Sprintf("%s.address has %d bytes; want 4 (IPv4) or 16 (IPv6)", field, e.addrLen)
	case e.port > math.MaxUint16:
		return fmt.Sprintf("%s.port is %d; want at most 65535", field, e.port)
	}
	return ""
}
