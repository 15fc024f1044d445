package rdsd

import "github.com/rdsd/rdsd/rdserr"

// place says where received payloads are to be.
type place uint8

const (
	ownMemory   place = iota // in memory of their own, the caller's for good
	givenMemory              // in the payloads that the caller gives, where they have room; else as ownMemory
	givenOnly                // in those alone: what does not fit is not taken
	inPlace                  // where they are, until the lease is released
)

// Small payloads are cut from slabs: memory of its own for each would cost more than all
// the rest of receiving it. What is kept of a slab keeps all of it.
const (
	slabBytes = 16 << 10
	slabShare = 8 // what takes more than this part of a slab has memory of its own
)

// slab is the rest of one. Guarded by the lock of whoever has it.
type slab []byte

// clone copies p to memory that is not used again.
func (s *slab) clone(p []byte) []byte {
	n := len(p)
	if n > slabBytes/slabShare {
		// append clears no memory that it is about to write, as make would: a pass over the
		// payload less.
		garbage.add(n)
		return append([]byte(nil), p...)[:n:n]
	}
	if len(*s) < n || *s == nil {
		*s = make([]byte, slabBytes)
		garbage.add(slabBytes)
	}
	c := (*s)[:n:n]
	*s = (*s)[n:]
	copy(c, p)
	return c
}

// hasRoom reports whether n bytes fit in what the caller gave for a payload.
func (d *Datagram) hasRoom(n int) bool { return d.Payload != nil && !d.lent && cap(d.Payload) >= n }

// copyIn copies p to where how wants it.
func (d *Datagram) copyIn(p []byte, how place, own *slab) {
	if how == ownMemory || !d.hasRoom(len(p)) {
		d.Payload, d.lent = own.clone(p), false
		return
	}
	d.Payload = d.Payload[:len(p)]
	copyBytes(d.Payload, p)
}

// errRoom refuses a datagram of n bytes for a buffer of size.
func errRoom(n, size int) error {
	return rdserr.With(rdserr.ErrTooLarge, "the next datagram has %d bytes, the buffer %d: it was left there; PeekSize tells the size", n, size)
}

// copyBytes is copy in pieces that the processor's caches like.
func copyBytes(dst, src []byte) {
	const piece = 128 << 10
	for len(src) > piece {
		copy(dst, src[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	copy(dst, src)
}
