package client

import (
	"math"
	"sync/atomic"

	"google.golang.org/grpc/mem"

	"github.com/rdsd/rdsd/internal/msgpool"
	"github.com/rdsd/rdsd/internal/quota"
)

// outPool lends buffers for what a socket is sent, in the name of its user: what
// a client does not read stands there. gRPC drops what is still queued when a
// stream ends without giving it back, so what is out then is settled by close.
type outPool struct {
	account *quota.Account
	out     atomic.Int64 // bytes; far below 0 once the pool is closed
}

var _ mem.BufferPool = (*outPool)(nil)

func (p *outPool) Get(n int) *[]byte {
	b := msgpool.Pool.Get(n)
	size := charged(b)
	p.account.Grow(quota.Calls, size)
	if p.out.Add(size) < 0 { // it is closed: nobody would give it back
		p.account.Give(quota.Calls, size)
	}
	return b
}

func (p *outPool) Put(b *[]byte) {
	size := charged(b)
	if p.out.Add(-size) >= 0 {
		p.account.Give(quota.Calls, size)
	}
	msgpool.Pool.Put(b)
}

// charged is what is charged for a buffer. For a small one it is nothing: mem.NewBuffer
// makes of it a slice that the collector takes and nobody gives back, so that a charge
// would stay as long as the stream. What waits of those for a client that does not read
// is little: gRPC takes no more than 64 KiB for a stream ahead of its transport.
func charged(b *[]byte) int64 {
	if mem.IsBelowBufferPoolingThreshold(cap(*b)) {
		return 0
	}
	return int64(cap(*b))
}

// outClosed is further below 0 than buffers can bring a pool up again.
const outClosed = math.MinInt64 / 2

// close gives back what is out. Buffers may come later; they are no matter of
// the account any more.
func (p *outPool) close() { p.account.Give(quota.Calls, p.out.Swap(outClosed)) }
