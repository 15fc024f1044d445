package rdsd

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"testing"
	"time"
)

// What is in front of the payload is written into one buffer of the pool, which
// goes back there: none is too small, grows, and is the collector's.
func TestMarshalRoom(t *testing.T) {
	for _, n := range []int{1, 2, 9, 60, 300, 1000, maxBatchDatagrams} {
		b := newBatch()
		b.id, b.firstTag = math.MaxUint64, math.MaxUint64
		b.wantOutcomes, b.wait, b.deadline = true, true, time.Now().Add(time.Hour)
		payload := make([]byte, 200)
		raw := [16]byte{0: 0x20}
		for i := range n {
			binary.BigEndian.PutUint32(raw[12:], uint32(i))
			b.add(netip.AddrPortFrom(netip.AddrFrom16(raw), 0xffff), payload, n*len(payload))
		}
		out := b.marshal()
		head := out[0].ReadOnlyData()
		if c := cap(head); bits.OnesCount(uint(c)) != 1 {
			t.Errorf("%d destinations: %d bytes in a buffer of %d, which is none of the pool", n, len(head), c)
		}
		out.Free()
		b.recycle()
	}
}
