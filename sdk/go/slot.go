package rdsd

import (
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/rdsd/rdsd/rdserr"
)

// Slot is room for one datagram in the send buffer, to be filled in place: see
// Reserve. It is for one goroutine at a time.
type Slot struct {
	fe   frontEnd
	dst  netip.AddrPort
	buf  []byte
	used atomic.Bool // committed or aborted
	ring ringSlot    // with rings
}

// Reserve waits for room for a datagram of at most n bytes to dst, as Send does,
// and returns it. The caller writes the payload into Bytes and ends with Commit
// or Abort; until then the bytes count against the send buffer. Over rings that
// memory is shared with the daemon and nothing is copied.
//
// Errors are those of Send.
func (s *Socket) Reserve(ctx context.Context, dst netip.AddrPort, n int) (*Slot, error) {
	dst = unmap(dst)
	if err := s.misuse(ctx, "reserve", dst); err != nil {
		return nil, err
	}
	switch {
	case n < 0:
		return nil, s.opErr("reserve", dst, rdserr.With(rdserr.ErrInvalid, "a slot of %d bytes", n))
	case ctx.Err() != nil:
		return nil, s.opErr("reserve", dst, ctxError(ctx, nil))
	}
	sl, err := s.fe.reserve(ctx, dst, n)
	return sl, s.opErr("reserve", dst, err)
}

// Bytes returns the room, of the size that was asked for. It is not cleared and must not be
// touched after Commit or Abort.
func (sl *Slot) Bytes() []byte {
	if sl == nil || sl.used.Load() {
		return nil
	}
	return sl.buf
}

// Commit sends the first n bytes and returns the tag by which Outcomes names
// the datagram. Over rings it does not wait; over a stream it does what Send
// does, without a deadline. When the daemon was restarted since Reserve,
// the error is rdserr.ErrShutdown and the datagram was not accepted. The datagram
// takes its place in the order now, not when it was reserved. An n that does not
// fit is rdserr.ErrTooLarge and leaves the slot as it was.
func (sl *Slot) Commit(n int) (tag uint64, err error) {
	if sl == nil || sl.fe == nil {
		return 0, opError("commit", netip.AddrPort{}, netip.AddrPort{}, errNoSlot)
	}
	if n < 0 || n > len(sl.buf) {
		return 0, sl.fe.opErr("commit", sl.dst, rdserr.With(rdserr.ErrTooLarge, "%d bytes of a slot of %d", n, len(sl.buf)))
	}
	if !sl.used.CompareAndSwap(false, true) {
		return 0, sl.fe.opErr("commit", sl.dst, rdserr.With(rdserr.ErrInvalid, "the slot was committed or aborted before"))
	}
	return sl.fe.commit(sl, n)
}

// Abort gives the room back unused. After Commit it does nothing, so that it can
// be deferred.
func (sl *Slot) Abort() {
	if sl != nil && sl.fe != nil && sl.used.CompareAndSwap(false, true) {
		sl.fe.abort(sl)
	}
}

// reserve over a stream: the bytes are in the process until Commit sends them.
func (s *stream) reserve(_ context.Context, dst netip.AddrPort, n int) (*Slot, error) {
	s.mu.Lock()
	err := s.refuseLocked(dst, n)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return &Slot{fe: s, dst: dst, buf: make([]byte, n)}, nil
}

func (s *stream) commit(sl *Slot, n int) (uint64, error) {
	return s.sendOne(context.Background(), "commit", sl.dst, sl.buf[:n], true)
}

func (s *stream) abort(*Slot) {}
