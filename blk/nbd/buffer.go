package nbd

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rdsd/rdsd/blk"
)

// Payload that is not lying in a receive buffer has a buffer of its own, from pools by
// size, powers of two from 4 KiB to blk.MaxIO. The garbage collector may take free ones.

const (
	minShift = 12
	maxShift = 25 // blk.MaxIO
)

var bufPools [maxShift - minShift + 1]sync.Pool

// bufSize returns the memory of a buffer of n bytes.
func bufSize(n int) int { return 1 << bufShift(n) }

func bufShift(n int) int { return max(minShift, bits.Len(uint(n-1))) }

// getBuf returns a buffer of n bytes, 1 to blk.MaxIO, with anything in it.
func getBuf(n int) []byte {
	shift := bufShift(n)
	if p, _ := bufPools[shift-minShift].Get().(*byte); p != nil {
		return unsafe.Slice(p, 1<<shift)[:n]
	}
	return make([]byte, 1<<shift)[:n]
}

// putBuf gives a buffer of getBuf back. A pointer to its beginning is all that
// is kept, for that costs no allocation.
func putBuf(b []byte) {
	shift := bufShift(cap(b))
	bufPools[shift-minShift].Put(unsafe.SliceData(b[:1]))
}

// recvSize is the size of a receive buffer: about thirty requests of 4 KiB.
const recvSize = 128 << 10

// recvBuf is a buffer that requests are read into. The payload of a write stays in it until
// the device has it; the last holder gives the buffer back.
type recvBuf struct {
	b    []byte
	refs atomic.Int32
	c    *conn
}

var recvPool = sync.Pool{New: func() any { return &recvBuf{b: make([]byte, recvSize)} }}

var _ = [1]struct{}{}[blk.MaxIO-1<<maxShift] // the classes reach as far as requests
