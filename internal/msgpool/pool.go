package msgpool

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// pool has a size for each power of two.
type pool struct {
	tiers [maxTier - minTier + 1]sync.Pool
}

const (
	minTier = 7  // 128 B
	maxTier = 22 // 4 MiB: the largest message
)

// Pool is the one pool of the process.
var Pool mem.BufferPool = &pool{}

// Get returns a buffer of n bytes with unspecified content.
func (p *pool) Get(n int) *[]byte {
	tier := max(bits.Len(uint(max(n, 1)-1)), minTier)
	if tier > maxTier {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.tiers[tier-minTier].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<tier)
	return &b
}

// Put takes a buffer back. One whose capacity is none of ours is left to the collector.
func (p *pool) Put(b *[]byte) {
	c := cap(*b)
	tier := bits.Len(uint(c)) - 1
	if c == 0 || c != 1<<tier || tier < minTier || tier > maxTier {
		return
	}
	*b = (*b)[:c]
	p.tiers[tier-minTier].Put(b)
}
