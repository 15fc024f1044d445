package transport

import (
	"fmt"

	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// Frame is one received message. It is valid during the call that brings it;
// a receiver that wants to keep the payload copies it, or, when Buf is set,
// takes a reference to Buf.
type Frame struct {
	Raw     []byte // the 48 bytes of the header
	Payload []byte
	Buf     *buf.Buf // not nil: Payload lies in it, alone
	Skipped int      // bytes of a payload that was not kept (Skipper), which Payload then is not
}

// Len is how many bytes of payload have come.
func (f *Frame) Len() int { return len(f.Payload) + f.Skipped }

// DirectLen is the payload size, in bytes, from which a Framer wants a payload
// read straight into a buffer of its own rather than copied later.
const DirectLen = 8 << 10

// Framer cuts a byte stream into frames. It holds at most one partial header
// and one partial payload; a length above Max is refused before anything is
// allocated for it. The zero Framer with Max set is ready.
type Framer struct {
	Max int // largest payload accepted, in bytes
	// Place, if set, is asked for memory for a payload of n bytes (DirectLen or more) whose
	// header is raw. If it returns nil, memory of the pool is taken.
	Place func(raw []byte, n int) *buf.Buf

	// Want is where the stream's next bytes belong while a large payload is partly there, nil
	// otherwise. Who reads n bytes into it calls Filled(n); nobody else changes it.
	Want []byte

	hdr  [wire.HeaderLen]byte
	nhdr int
	cur  *buf.Buf // partial payload, the rest of which is Want
	skip int      // bytes that are still to come of a payload that is not kept
	size int      // bytes of all that payload
	fr   Frame    // the frame given to sink; here, so that a call allocates nothing
}

// ErrTooLong says that a header announces a payload above the limit. The stream cannot be
// followed any further.
type ErrTooLong struct{ Len, Max uint32 }

func (e *ErrTooLong) Error() string {
	return fmt.Sprintf("a header announces a payload of %d bytes; at most %d are taken", e.Len, e.Max)
}

// Filled tells that n bytes were read into Want. When that completes the
// payload, sink gets the frame.
func (f *Framer) Filled(n int, sink func(*Frame) error) error {
	if f.Want = f.Want[n:]; len(f.Want) > 0 {
		return nil
	}
	b := f.cur
	f.cur, f.Want, f.nhdr = nil, nil, 0
	f.fr = Frame{Raw: f.hdr[:], Payload: b.B, Buf: b}
	err := sink(&f.fr)
	b.Release()
	return err
}

// Feed takes stream bytes and calls sink for each complete frame. It consumes
// all of p unless sink or a length fails; consumed says how much of p was
// used up then (a frame whose sink failed counts as used).
func (f *Framer) Feed(p []byte, sink func(*Frame) error) (consumed int, err error) {
	total := len(p)
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(len(p), f.skip)
			p = p[n:]
			if f.skip -= n; f.skip > 0 {
				break
			}
			f.nhdr = 0
			f.fr = Frame{Raw: f.hdr[:], Skipped: f.size}
			if err := sink(&f.fr); err != nil {
				return total - len(p), err
			}
			continue
		}
		if f.cur != nil {
			n := copy(f.Want, p)
			p = p[n:]
			if err := f.Filled(n, sink); err != nil {
				return total - len(p), err
			}
			continue
		}
		raw := p
		if f.nhdr > 0 || len(p) < wire.HeaderLen {
			n := copy(f.hdr[f.nhdr:], p)
			p = p[n:]
			if f.nhdr += n; f.nhdr < wire.HeaderLen {
				return total, nil
			}
			raw = f.hdr[:]
		} else {
			p = p[wire.HeaderLen:]
		}
		n := wire.PayloadLen(raw)
		// Before a buffer of that length is taken.
		if n > uint32(f.Max) {
			return total - len(p), &ErrTooLong{n, uint32(f.Max)}
		}
		// The whole payload is in the read buffer, and small: it is handed out there,
		// without a copy.
		if int(n) <= len(p) && n < DirectLen {
			f.nhdr = 0
			f.fr = Frame{Raw: raw[:wire.HeaderLen], Payload: p[:n]}
			p = p[n:]
			if err := sink(&f.fr); err != nil {
				return total - len(p), err
			}
			continue
		}
		// The payload goes on beyond p, or is large: give it its own place.
		if f.nhdr == 0 {
			copy(f.hdr[:], raw)
		}
		f.nhdr = wire.HeaderLen
		f.cur = f.buffer(int(n))
		f.Want = f.cur.B
	}
	return total, nil
}

// buffer finds memory for the payload of the frame f.hdr begins.
func (f *Framer) buffer(n int) *buf.Buf {
	if f.Place != nil && n >= DirectLen {
		if b := f.Place(f.hdr[:], n); b != nil {
			if len(b.B) != n {
				panic(fmt.Sprintf("transport: placed %d bytes of payload in %d of memory", n, len(b.B)))
			}
			return b
		}
	}
	return buf.Get(n)
}

// Skip gives the memory of a partial payload back. What is still to come of it is dropped,
// and then sink gets the frame without it (Frame.Skipped).
func (f *Framer) Skip() {
	if f.cur == nil {
		return
	}
	f.skip, f.size = len(f.Want), len(f.cur.B)
	f.cur.Release()
	f.cur, f.Want = nil, nil
}

// Partial reports whether part of a frame is held.
func (f *Framer) Partial() bool { return f.nhdr > 0 || f.cur != nil }

// Close releases a partial payload.
func (f *Framer) Close() {
	if f.cur != nil {
		f.cur.Release()
	}
	f.cur, f.Want, f.nhdr, f.skip, f.fr = nil, nil, 0, 0, Frame{}
}
