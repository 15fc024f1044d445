package transport

import (
	"context"
	"errors"
	"net/netip"

	"github.com/rdsd/rdsd/internal/buf"
)

// ErrPause, returned by Handler.Frame, keeps that frame and the bytes behind it: nothing
// more is read until Link.Resume.
var ErrPause = errors.New("transport: paused by the receiver")

// Link is a live channel to a peer. Its methods may be called from any
// goroutine and do not block; Send is called by one at a time.
type Link interface {
	// Send writes b. If done is true all of it is in the link's hands. If it is false and
	// the error nil, the link keeps b, goes on by itself as the peer takes bytes, and calls
	// Handler.Written when it is done with b. With an error the link is dead;
	// Handler.Closed follows or has been called.
	Send(b *Batch) (done bool, err error)
	// Start begins to read and to call h, which is not called before.
	Start(h Handler)
	// Resume goes on reading after ErrPause.
	Resume()
	// Acked returns how many sent bytes the other end's transport has acknowledged; 0 where
	// the transport does not tell.
	Acked() uint64
	// Close ends the link in good order: frames that were sent still arrive, and frames of
	// the peer are still read and brought to the handler, for a bounded time. After Abort
	// it does nothing. Handler.Closed follows if Start was called.
	Close()
	// Abort ends the link at once, also one that is being closed. Handler.Closed
	// follows if Start was called.
	Abort()
	// LocalAddr and RemoteAddr are the transport's endpoints.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// Handler is the owner of a link. Its methods are called one at a time, on the
// thread that reads the link: Begin, then any number of Frame, then End; the
// others outside of that.
type Handler interface {
	Begin()
	// Frame brings one message. The handler returns ErrPause (see there), or another error
	// if it has given the link up; later bytes are read and thrown away then.
	Frame(f *Frame) error
	End()
	// Progress tells that the peer took part of the batch that Send kept.
	Progress()
	// Written tells that the batch that Send kept is written, or that the link failed
	// (err).
	Written(b *Batch, err error)
	// Closed is called once, last: nothing more will be read. acked is the
	// final count of Link.Acked.
	Closed(err error, acked uint64)
}

// MostBehind is how many bytes a link holds at most, while it is paused (ErrPause), of what it has read
// behind the frame that was not taken.
const MostBehind = 68 << 10

// Placer is a Handler that may have a place for a large payload before it is read.
type Placer interface {
	// Buffer is called between Begin and End, when the header (raw, 48 bytes) of
	// a payload of n bytes, DirectLen or more, has come: memory of exactly n
	// bytes to read it into, with one reference that the link gives up after
	// Frame or when it ends; nil: nothing in particular. raw is the call's alone
	// and has not been checked.
	Buffer(raw []byte, n int) *buf.Buf
}

// Gate is a Handler that may have its link not read for want of memory.
type Gate interface {
	// MayRead is asked on the link's thread before each read. Where it says no the link is
	// asked again soon, and TCP stops the peer meanwhile.
	MayRead() bool
}

// Skipper is a Link that can give up the memory of a payload which is partly read.
type Skipper interface {
	// Skip is called from within Handler.End. The rest of the payload is read and thrown
	// away; then Handler.Frame gets its frame with Skipped set.
	Skip()
}

// Provider makes links of one kind.
type Provider interface {
	// Dial connects local to remote. lane is shown to the peer where the
	// transport can (TCP: source port mod 8).
	Dial(ctx context.Context, local, remote netip.AddrPort, lane int) (Link, error)
	// Listen accepts on local until the listener is closed. accept is called
	// for each connection, one at a time, and owns the link.
	Listen(local netip.AddrPort, accept func(Link)) (Listener, error)
}

// Listener is the result of Listen.
type Listener interface {
	Addr() netip.AddrPort
	Close() error
}
