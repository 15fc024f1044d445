package rdsd

import (
	"context"
	"iter"
	"net/netip"
	"sync"
)

// Recv waits for the next datagram. It goes on waiting while the daemon is
// restarted. After Close it returns rdserr.ErrClosed.
func (s *Socket) Recv(ctx context.Context) (Datagram, error) {
	one := onePool.Get().(*[1]Datagram)
	_, _, err := s.fe.receive(ctx, one[:], false)
	d := one[0]
	one[0] = Datagram{}
	onePool.Put(one)
	if err != nil {
		return Datagram{}, s.opErr("recv", netip.AddrPort{}, err)
	}
	return d, nil
}

var onePool = sync.Pool{New: func() any { return new([1]Datagram) }}

// RecvBatch waits for at least one datagram and returns all that are there, at most
// len(into), which must not be 0. After the end of ctx the error is rdserr.ErrTimeout or
// ErrCanceled; nothing is lost by it. With a ctx that has ended already it does not wait:
// it returns the datagrams that are there, or that error.
func (s *Socket) RecvBatch(ctx context.Context, into []Datagram) (int, error) {
	if len(into) == 0 {
		return 0, nil
	}
	n, _, err := s.fe.receive(ctx, into, false)
	return n, s.opErr("recv", netip.AddrPort{}, err)
}

// Borrow is RecvBatch without a copy. Over rings the payloads stay where the daemon has
// placed them, in memory shared with it, over a stream in the message that brought them:
// they may be read and changed until l.Release, and not after it. Over rings borrowed
// datagrams count as unread, against the receive buffer: release them soon, in any order,
// from any goroutine.
func (s *Socket) Borrow(ctx context.Context, into []Datagram) (n int, l Lease, err error) {
	if len(into) == 0 {
		return 0, Lease{}, nil
	}
	n, l, err = s.fe.receive(ctx, into, true)
	return n, l, s.opErr("recv", netip.AddrPort{}, err)
}

// All receives until ctx ends or the socket is closed, which is the error of
// the last round.
func (s *Socket) All(ctx context.Context) iter.Seq2[Datagram, error] {
	return func(yield func(Datagram, error) bool) {
		for {
			d, err := s.Recv(ctx)
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// Lease is the right to the payloads of one Borrow. The zero Lease holds nothing.
type Lease struct {
	of   lender
	turn uint64 // of it, which is used again
}

// lender keeps the payloads of one Borrow.
type lender interface {
	// release gives it back, once in each turn.
	release(turn uint64)
}

// Release gives the memory of the borrowed payloads back. Releasing twice is no
// error.
func (l Lease) Release() {
	if l.of != nil {
		l.of.release(l.turn)
	}
}
