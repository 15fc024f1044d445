package shm

import "math/bits"

// The arena is a buddy allocator with lazy merging (after Lee and Barkley): a freed block
// first goes to a short list of its size as it is, from where the next of that size is
// taken: a push and a pop, and memory that is warm. Only blocks that do not fit into that
// list are merged with their buddies; so the work of Alloc and Free is bounded by the
// number of sizes, except when an Alloc finds nothing and merges the short lists first,
// which are bounded too.
//
// The accounts lie in private memory beside the arena, never in it: 9 bytes for each unit
// of 64, in leaves that are made when a block first begins in one. The part of the arena in use
// begins small and doubles when no block is left: an idle socket costs little, and a step to
// more is a list of leaves that is twice as long.

// Arena divides a range of n units of UnitBytes, n a power of two. It has no lock.
type Arena struct {
	units uint32 // of the whole
	max   uint8  // order of the whole
	top   uint8  // order of the part in use, from 0 on
	leafs []*leaf
	n     int             // leaves that there are
	lazy  [maxOrders]list // freed, not merged
	free  [maxOrders]list // no two of one order are buddies
	slack [maxOrders]uint32
	used  uint64 // units in blocks that are out
}

const (
	maxOrders = 33
	none      = ^uint32(0)

	// state of a unit: 0 when no block begins there.
	stateOut   = 0x80 // | order
	stateFree  = 0x40
	stateLazy  = 0x60
	stateTaken = 0x20 // by Claim
	orderMask  = 0x1f
)

// firstOrder is that of the part in use at first: a page, the least that Claim finds.
var firstOrder = pageOrder

type links struct{ prev, next uint32 }

// leaf is the accounts of leafUnits units.
type leaf struct {
	link  [leafUnits]links
	state [leafUnits]uint8
}

const (
	leafUnits = 64
	leafBytes = leafUnits * 9
)

// list is a stack of blocks, linked both ways so that a buddy can leave it.
type list struct{ head, n uint32 }

// NewArena makes an arena of bytes, a power of two from UnitBytes to 128 GiB.
func NewArena(bytes uint64) *Arena {
	n := bytes / UnitBytes
	if n == 0 || n&(n-1) != 0 || n >= 1<<31 {
		panic("shm: an arena's size must be a power of two")
	}
	a := &Arena{units: uint32(n), max: uint8(bits.TrailingZeros64(n))}
	for o := range a.free {
		a.free[o].head, a.lazy[o].head = none, none
		if o <= int(a.max) {
			a.slack[o] = min(512, a.units>>o>>3)
		}
	}
	a.begin()
	return a
}

// begin has the first part in use, all of it free.
func (a *Arena) begin() {
	a.top = min(a.max, firstOrder)
	a.leafs, a.n = make([]*leaf, max(1, 1<<a.top/leafUnits)), 0
	a.push(&a.free[a.top], 0, stateFree|a.top)
}

// leaf is that of unit u, made if there is none.
func (a *Arena) leaf(u uint32) *leaf {
	l := a.leafs[u/leafUnits]
	if l == nil {
		l = new(leaf)
		a.leafs[u/leafUnits] = l
		a.n++
	}
	return l
}

// stateOf is the state of unit u of the part in use.
func (a *Arena) stateOf(u uint32) uint8 {
	if l := a.leafs[u/leafUnits]; l != nil {
		return l.state[u%leafUnits]
	}
	return 0
}

func (a *Arena) setState(u uint32, state uint8) { a.leaf(u).state[u%leafUnits] = state }

// link is that of a unit that a block begins at.
func (a *Arena) link(u uint32) *links { return &a.leafs[u/leafUnits].link[u%leafUnits] }

// accountsBytes is what the accounts take.
func (a *Arena) accountsBytes() int { return a.n*leafBytes + len(a.leafs)*8 }

// forget lets go of the leaves behind the first of a block, in which no other begins.
func (a *Arena) forget(u uint32, o uint8) {
	for i := u/leafUnits + 1; i < (u+1<<o)/leafUnits; i++ {
		if a.leafs[i] != nil {
			a.leafs[i] = nil
			a.n--
		}
	}
}

// renew lets go of all accounts if nothing is out, nor taken by Claim, and the short lists are empty.
func (a *Arena) renew() {
	if a.stateOf(0) == stateFree|a.top && a.top > firstOrder {
		a.free[a.top] = list{head: none}
		a.begin()
	}
}

// Bytes is the size of the arena.
func (a *Arena) Bytes() uint64 { return uint64(a.units) * UnitBytes }

// Used is the size of the blocks that are out, which are as large as the
// power of two that Alloc rounded to.
func (a *Arena) Used() uint64 { return a.used * UnitBytes }

// Alloc takes a block of at least n bytes (0 counts as 1) and returns its offset.
func (a *Arena) Alloc(n int) (off uint64, ok bool) {
	o := order(n)
	if o > a.max {
		return 0, false
	}
	u, ok := a.take(o)
	if !ok {
		a.merge()
		for u, ok = a.take(o); !ok; u, ok = a.take(o) {
			if a.top == a.max {
				return 0, false
			}
			a.grow()
		}
	}
	a.setState(u, stateOut|o)
	a.used += 1 << o
	return uint64(u) * UnitBytes, true
}

// order is the size class of n bytes.
func order(n int) uint8 {
	if n <= UnitBytes {
		return 0
	}
	return uint8(bits.Len64(uint64(n-1) / UnitBytes))
}

// BlockBytes is the size of the block that Alloc(n) takes.
func BlockBytes(n int) int { return UnitBytes << order(n) }

// take finds a block of order o and splits a larger one when it must.
func (a *Arena) take(o uint8) (uint32, bool) {
	if a.lazy[o].n > 0 {
		return a.pop(&a.lazy[o]), true
	}
	for k := o; k <= a.top; k++ {
		l := &a.free[k]
		if l.n == 0 {
			if k == o || a.lazy[k].n == 0 {
				continue
			}
			l = &a.lazy[k]
		}
		u := a.pop(l)
		for ; k > o; k-- { // keep the lower half
			a.push(&a.free[k-1], u+1<<(k-1), stateFree|(k-1))
		}
		return u, true
	}
	return 0, false
}

// Free gives a block back and returns its size; ok is false when no block that
// is out begins there.
func (a *Arena) Free(off uint64) (size int, ok bool) {
	u, o, ok := a.out(off)
	if !ok {
		return 0, false
	}
	a.used -= 1 << o
	if a.lazy[o].n < a.slack[o] {
		a.push(&a.lazy[o], u, stateLazy|o)
	} else {
		a.join(u, o)
	}
	return UnitBytes << o, true
}

// Claim takes the free block that holds the page at off out of use, or a part of it of at most
// most bytes that has the page, until Unclaim. ok is false when a block on the page is out.
func (a *Arena) Claim(off, most uint64) (at, n uint64, ok bool) {
	u := uint32(off / UnitBytes)
	if u>>a.top != 0 {
		return 0, 0, false
	}
	for o := pageOrder; o <= a.top; o++ {
		// A block's state stands at its first unit alone, so the block of each size that
		// could hold the page is looked up there. A block that is out, or a part of a larger
		// one, has another state.
		b := u &^ (1<<o - 1)
		switch a.stateOf(b) {
		case stateFree | o:
			a.remove(&a.free[o], b)
		case stateLazy | o:
			a.remove(&a.lazy[o], b)
		default:
			continue
		}
		for ; o > pageOrder && UnitBytes<<o > most; o-- {
			// Split until the piece is small enough; the half without the page stays free.
			half := uint32(1) << (o - 1)
			other := b + half
			if u >= other {
				b, other = other, b
			}
			a.push(&a.free[o-1], other, stateFree|(o-1))
		}
		a.setState(b, stateTaken|o)
		a.forget(b, o)
		return uint64(b) * UnitBytes, UnitBytes << o, true
	}
	return 0, 0, false
}

// Unclaim frees a block that Claim took.
func (a *Arena) Unclaim(at uint64) {
	u := uint32(at / UnitBytes)
	a.join(u, a.stateOf(u)&orderMask)
}

// Size is the size of the block at off; ok is false when none is out there.
func (a *Arena) Size(off uint64) (size int, ok bool) {
	_, o, ok := a.out(off)
	return UnitBytes << o, ok
}

// Shrink gives back the part of a block beyond n bytes and returns its new size.
func (a *Arena) Shrink(off uint64, n int) (size int) {
	u, o, ok := a.out(off)
	if !ok {
		return 0
	}
	want := order(n)
	if want >= o {
		return UnitBytes << o
	}
	a.used -= 1<<o - 1<<want
	for o > want {
		o--
		a.push(&a.free[o], u+1<<o, stateFree|o) // its buddy is this block
	}
	a.setState(u, stateOut|o)
	return UnitBytes << o
}

// SetMark and Mark keep a number of the caller's with a block that is out.
func (a *Arena) SetMark(off uint64, m uint32) { a.link(uint32(off / UnitBytes)).next = m }

// Mark returns it; ok is false when no block that is out begins at off.
func (a *Arena) Mark(off uint64) (m uint32, ok bool) {
	u, _, ok := a.out(off)
	if !ok {
		return 0, false
	}
	return a.link(u).next, true
}

func (a *Arena) out(off uint64) (u uint32, o uint8, ok bool) {
	if off%UnitBytes != 0 || off >= a.Bytes() {
		return 0, 0, false
	}
	u = uint32(off / UnitBytes)
	if u>>a.top != 0 {
		return 0, 0, false
	}
	s := a.stateOf(u)
	return u, s & orderMask, s&stateOut != 0
}

// grow doubles the part in use.
func (a *Arena) grow() {
	n := uint32(1) << a.top
	if have := max(1, 2*n/leafUnits); int(have) > len(a.leafs) {
		a.leafs = append(make([]*leaf, 0, have), a.leafs...)[:have]
	}
	a.top++
	a.join(n, a.top-1)
}

// merge empties the short lists.
func (a *Arena) merge() {
	for o := range a.top + 1 {
		for a.lazy[o].n > 0 {
			a.join(a.pop(&a.lazy[o]), o)
		}
	}
}

// join frees a block and merges it with its buddy as far as that is free.
func (a *Arena) join(u uint32, o uint8) {
	for ; o < a.top; o++ {
		buddy := u ^ 1<<o
		if a.stateOf(buddy) != stateFree|o {
			break
		}
		a.remove(&a.free[o], buddy)
		a.setState(u, 0)
		u &^= 1 << o
	}
	a.push(&a.free[o], u, stateFree|o)
}

func (a *Arena) push(l *list, u uint32, state uint8) {
	f := a.leaf(u)
	f.state[u%leafUnits] = state
	f.link[u%leafUnits] = links{none, l.head}
	if l.head != none {
		a.link(l.head).prev = u
	}
	l.head = u
	l.n++
}

func (a *Arena) pop(l *list) uint32 {
	u := l.head
	a.remove(l, u)
	return u
}

func (a *Arena) remove(l *list, u uint32) {
	f := a.leafs[u/leafUnits]
	k := f.link[u%leafUnits]
	if k.prev == none {
		l.head = k.next
	} else {
		a.link(k.prev).next = k.next
	}
	if k.next != none {
		a.link(k.next).prev = k.prev
	}
	l.n--
	f.state[u%leafUnits] = 0
}
