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
	if err := s.misuse(ctx, "recv", netip.AddrPort{}); err != nil {
		return Datagram{}, err
	}
	if d, ok := s.fe.rest(); ok {
		return d, nil
	}
	one := onePool.Get().(*[1]Datagram)
	_, _, err := s.fe.receive(ctx, one[:], ownMemory)
	d := one[0]
	one[0] = Datagram{}
	onePool.Put(one)
	if err != nil {
		return Datagram{}, s.opErr("recv", netip.AddrPort{}, err)
	}
	return d, nil
}

var onePool = sync.Pool{New: func() any { return new([1]Datagram) }}

// RecvInto waits for the next datagram and copies it to buf: it allocates nothing. A
// datagram of more than len(buf) bytes stays where it is, and the error is
// rdserr.ErrTooLarge; PeekSize tells how large it is. Otherwise it is like Recv.
func (s *Socket) RecvInto(ctx context.Context, buf []byte) (n int, from netip.AddrPort, err error) {
	if err := s.misuse(ctx, "recv", netip.AddrPort{}); err != nil {
		return 0, netip.AddrPort{}, err
	}
	if n, from, ok := s.fe.restInto(buf); ok {
		return n, from, nil
	}
	one := onePool.Get().(*[1]Datagram)
	if buf == nil {
		buf = []byte{}
	}
	one[0].Payload = buf[:0:len(buf)]
	_, _, err = s.fe.receive(ctx, one[:], givenOnly)
	n, from = len(one[0].Payload), one[0].Addr
	one[0] = Datagram{}
	onePool.Put(one)
	if err != nil {
		return 0, netip.AddrPort{}, s.opErr("recv", netip.AddrPort{}, err)
	}
	return n, from, nil
}

// RecvBatch waits for at least one datagram and returns all that are there, at most
// len(into), which must not be 0. A payload is copied to the memory that its element of into
// has in Payload, whatever its length, if the capacity is enough: a loop that gives the same
// into again allocates nothing, and who keeps a payload sets the element's Payload to nil.
// Elsewhere it has memory of its own. After the end of ctx the error is rdserr.ErrTimeout or
// ErrCanceled; nothing is lost by it. With a ctx that has ended already it does not wait:
// it returns the datagrams that are there, or that error.
func (s *Socket) RecvBatch(ctx context.Context, into []Datagram) (int, error) {
	if err := s.misuse(ctx, "recv", netip.AddrPort{}); err != nil {
		return 0, err
	}
	if len(into) == 0 {
		return 0, nil
	}
	n, _, err := s.fe.receive(ctx, into, givenMemory)
	return n, s.opErr("recv", netip.AddrPort{}, err)
}

// Borrow is RecvBatch without a copy. Over rings the payloads stay where the daemon has
// placed them, in memory shared with it, over a stream in the message that brought them:
// they may be read and changed until l.Release, and not after it. Over rings borrowed
// datagrams count as unread, against the receive buffer: release them soon, in any order,
// from any goroutine.
func (s *Socket) Borrow(ctx context.Context, into []Datagram) (n int, l Lease, err error) {
	if err := s.misuse(ctx, "recv", netip.AddrPort{}); err != nil {
		return 0, Lease{}, err
	}
	if len(into) == 0 {
		return 0, Lease{}, nil
	}
	n, l, err = s.fe.receive(ctx, into, inPlace)
	return n, l, s.opErr("recv", netip.AddrPort{}, err)
}

// Messages receives until ctx ends or the socket is closed, which is the error of the
// last round. Payloads are lent, as by Borrow, until the next round or the end of the loop,
// and taken back then: clone what is kept, or use All.
func (s *Socket) Messages(ctx context.Context) iter.Seq2[Datagram, error] {
	return func(yield func(Datagram, error) bool) {
		if err := s.misuse(ctx, "recv", netip.AddrPort{}); err != nil {
			yield(Datagram{}, err)
			return
		}
		one := onePool.Get().(*[1]Datagram)
		defer func() {
			one[0] = Datagram{}
			onePool.Put(one)
		}()
		for {
			// The end of ctx goes before what is there, or a loop over a busy socket would never see it.
			if ctx.Err() != nil {
				yield(Datagram{}, s.opErr("recv", netip.AddrPort{}, ctxError(ctx, nil)))
				return
			}
			_, l, err := s.fe.receive(ctx, one[:], inPlace)
			if err != nil {
				yield(Datagram{}, s.opErr("recv", netip.AddrPort{}, err))
				return
			}
			if !s.message(one[0], l, yield) {
				return
			}
		}
	}
}

// message is one round of Messages.
func (s *Socket) message(d Datagram, l Lease, yield func(Datagram, error) bool) bool {
	defer l.Release() // also when the round panics
	return yield(d, nil)
}

// All receives until ctx ends or the socket is closed, which is the error of
// the last round. Payloads may be kept.
func (s *Socket) All(ctx context.Context) iter.Seq2[Datagram, error] {
	return func(yield func(Datagram, error) bool) {
		if err := s.misuse(ctx, "recv", netip.AddrPort{}); err != nil {
			yield(Datagram{}, err)
			return
		}
		for {
			if ctx.Err() != nil { // as in Messages
				yield(Datagram{}, s.opErr("recv", netip.AddrPort{}, ctxError(ctx, nil)))
				return
			}
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
