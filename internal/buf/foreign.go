package buf

// Owner has memory of its own, a place in a client's ring for example, that
// is to be handed around like a buffer of the pools.
type Owner interface {
	// Free is called when no reference to b is left: once for each time it was lent, on the
	// thread that gave up the last one. From then on b may be lent again. It must not
	// block.
	Free(b *Buf)
}

// Foreign makes a buffer of mem, with one reference. It costs nothing in InUse.
// id is the owner's and comes back in Buf.ID.
func Foreign(mem []byte, owner Owner, id uint32) *Buf {
	b := new(Buf)
	b.Lend(mem, owner, id)
	return b
}

// Lend is Foreign without allocating: b is the zero Buf, or one whose owner was
// told Free.
func (b *Buf) Lend(mem []byte, owner Owner, id uint32) {
	if owner == nil {
		panic("buf: memory without an owner")
	}
	if b.B != nil && b.owner == nil || !b.refs.CompareAndSwap(0, 1) {
		panic("buf: lent while in use")
	}
	b.B, b.owner, b.ID = mem, owner, id
}

// Owner is whose memory it is; nil: the pools'.
func (b *Buf) Owner() Owner { return b.owner }
