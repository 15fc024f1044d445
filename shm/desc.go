package shm

import (
	"net/netip"
	"sync/atomic"
)

// Word is the first word of a descriptor (docs/shm.md, "Descriptor word").
type Word uint64

// Kinds of descriptors.
const (
	KindNothing = iota
	KindEach    // datagrams of one length
	KindTable   // datagrams behind a table of their lengths
	KindOpen    // open a flow
	KindMixed   // datagrams of any length, whose lengths stand reversed before the slot
)

// Bits of a Word.
const (
	WordNoAppend Word = 1 << 62
	WordClaimed  Word = 1 << 63

	wordCountShift = 24
	wordKindShift  = 40
	wordReserved   = Word(1<<62 - 1<<44)
)

// MakeWord returns the word of a descriptor with a body of bytes, holding
// count datagrams.
func MakeWord(kind, bytes, count int) Word {
	return Word(bytes) | Word(count)<<wordCountShift | Word(kind)<<wordKindShift
}

// Bytes is the length of the body.
func (w Word) Bytes() int { return int(w & (1<<24 - 1)) }

// Count is the number of datagrams.
func (w Word) Count() int { return int(w >> wordCountShift & (1<<16 - 1)) }

// Kind is KindEach and so on.
func (w Word) Kind() int { return int(w >> wordKindShift & 15) }

// Claimed reports whether the daemon has taken it.
func (w Word) Claimed() bool { return w&WordClaimed != 0 }

// Grow is w with n datagrams of so many bytes more.
func (w Word) Grow(n, bytes int) Word { return w + Word(bytes) + Word(n)<<wordCountShift }

// FlagWant in a send descriptor: the outcome is waited for.
const FlagWant = 1

// SendDesc is a send descriptor without its word, of which it has what get finds there: its kind,
// and its number of datagrams and bytes.
type SendDesc struct {
	Kind, Count, Bytes int

	Tag    uint64
	Slot   uint64
	Flow   uint32
	Gen    uint32
	Cookie uint32
	Flags  uint32
}

// desc is the memory of one 64-byte entry, as words.
type entry = [entryBytes / 8]uint64

func (d *SendDesc) put(e *entry) {
	e[1], e[2] = d.Tag, d.Slot
	e[3] = uint64(d.Flow) | uint64(d.Gen)<<32
	e[4] = uint64(d.Cookie) | uint64(d.Flags)<<32
	e[5], e[6], e[7] = 0, 0, 0
}

// get reads each word once, but for the first, which was w when it was claimed.
func (d *SendDesc) get(e *entry, w Word) {
	d.Kind, d.Count, d.Bytes = int(w>>wordKindShift&15), int(w>>wordCountShift&(1<<16-1)), int(w&(1<<24-1))
	d.Tag, d.Slot = atomic.LoadUint64(&e[1]), atomic.LoadUint64(&e[2])
	f, c := atomic.LoadUint64(&e[3]), atomic.LoadUint64(&e[4])
	d.Flow, d.Gen = uint32(f), uint32(f>>32)
	d.Cookie, d.Flags = uint32(c), uint32(c>>32)
}

// RecvDesc is a receive descriptor.
type RecvDesc struct {
	Word Word
	Slot uint64
	Src  netip.AddrPort
	Lane uint32
	Seq  uint64 // of the last datagram
}

// NoLane in RecvDesc.Lane: it came over no lane.
const NoLane = 0xffffffff

func (d *RecvDesc) put(e *entry) {
	e[0], e[1] = uint64(d.Word), d.Slot
	var family uint8
	e[2], e[3], family = addrWords(d.Src.Addr())
	e[4] = uint64(d.Src.Port()) | uint64(family)<<16 | uint64(d.Lane)<<32
	e[5], e[6], e[7] = d.Seq, 0, 0
}

// get reads each word once. The source is not valid when its family is neither 4 nor 6.
func (d *RecvDesc) get(e *entry) {
	d.Word, d.Slot = Word(atomic.LoadUint64(&e[0])), atomic.LoadUint64(&e[1])
	p := atomic.LoadUint64(&e[4])
	d.Src = netip.AddrPort{}
	if a, ok := wordsAddr(atomic.LoadUint64(&e[2]), atomic.LoadUint64(&e[3]), uint8(p>>16)); ok {
		d.Src = netip.AddrPortFrom(a, uint16(p))
	}
	d.Lane, d.Seq = uint32(p>>32), atomic.LoadUint64(&e[5])
}

// FlowEntry is an entry of the flow table.
type FlowEntry struct {
	Dst netip.AddrPort
	Gen uint32 // odd
}

// put fills the entry, the generation last.
func (f *FlowEntry) put(e *entry) {
	var family uint8
	e[0], e[1], family = addrWords(f.Dst.Addr())
	e[3], e[4], e[5], e[6], e[7] = 0, 0, 0, 0, 0
	atomic.StoreUint64(&e[2], uint64(f.Dst.Port())|uint64(family)<<16|uint64(f.Gen)<<32)
}

// get reads each word once; ok is false when the family is neither 4 nor 6.
func (f *FlowEntry) get(e *entry) (ok bool) {
	w := atomic.LoadUint64(&e[2])
	a, ok := wordsAddr(atomic.LoadUint64(&e[0]), atomic.LoadUint64(&e[1]), uint8(w>>16))
	f.Dst, f.Gen = netip.AddrPortFrom(a, uint16(w)), uint32(w>>32)
	return ok
}

// States of a flow.
const (
	FlowUnknown   = iota // not looked at
	FlowClear            // send
	FlowCongested        // wait
	FlowRefused          // never
)

// FlowState is the word the daemon keeps for each flow.
type FlowState uint64

// MakeFlowState puts a state together.
func MakeFlowState(gen uint32, state, errno uint16) FlowState {
	return FlowState(errno) | FlowState(state)<<16 | FlowState(gen)<<32
}

// Gen is the generation of the flow it belongs to.
func (s FlowState) Gen() uint32 { return uint32(s >> 32) }

// State is FlowClear and so on.
func (s FlowState) State() uint16 { return uint16(s >> 16) }

// Errno says why a flow is refused.
func (s FlowState) Errno() uint16 { return uint16(s) }

// Kinds of events.
const (
	EventOutcome = iota + 1
	EventRefused
	EventCongestion
	EventFreed
)

// Outcomes in events, the numbers of conn.Outcome.
const (
	Delivered = iota + 1
	Cancelled
	Failed
	Unknown
)

// Flags of events.
const (
	EventLast      = 1 // outcome, refused: the slot of this cookie is free
	EventCongested = 1 // congestion changed: it is congested now
)

// Event is an entry of the event ring.
type Event struct {
	Kind    uint8
	Outcome uint8
	Why     uint8
	Flags   uint8
	Count   uint32
	Tag     uint64 // EventFreed: the mask of groups
	Cookie  uint32
	Errno   uint32         // EventRefused
	Dst     netip.AddrPort // EventCongestion
}

func (v *Event) put(e *entry) {
	e[0] = uint64(v.Kind) | uint64(v.Outcome)<<8 | uint64(v.Why)<<16 | uint64(v.Flags)<<24 | uint64(v.Count)<<32
	e[1] = v.Tag
	e[2] = uint64(v.Cookie) | uint64(v.Errno)<<32
	e[3], e[4], e[5], e[6], e[7] = 0, 0, 0, 0, 0
	if v.Dst.IsValid() {
		var family uint8
		e[3], e[4], family = addrWords(v.Dst.Addr())
		e[5] = uint64(v.Dst.Port()) | uint64(family)<<16
	}
}

// get reads each word once.
func (v *Event) get(e *entry) {
	w, c := atomic.LoadUint64(&e[0]), atomic.LoadUint64(&e[2])
	*v = Event{Kind: uint8(w), Outcome: uint8(w >> 8), Why: uint8(w >> 16), Flags: uint8(w >> 24), Count: uint32(w >> 32),
		Tag: atomic.LoadUint64(&e[1]), Cookie: uint32(c), Errno: uint32(c >> 32)}
	if v.Kind == EventCongestion {
		p := atomic.LoadUint64(&e[5])
		if a, ok := wordsAddr(atomic.LoadUint64(&e[3]), atomic.LoadUint64(&e[4]), uint8(p>>16)); ok {
			v.Dst = netip.AddrPortFrom(a, uint16(p))
		}
	}
}

// addrWords is an address as two words of memory: IPv4 in the first 4 bytes.
func addrWords(a netip.Addr) (lo, hi uint64, family uint8) {
	if a.Is4() {
		v := a.As4()
		return uint64(le.Uint32(v[:])), 0, 4
	}
	v := a.As16()
	return le.Uint64(v[:]), le.Uint64(v[8:]), 6
}

func wordsAddr(lo, hi uint64, family uint8) (netip.Addr, bool) {
	switch family {
	case 4:
		var v [4]byte
		le.PutUint32(v[:], uint32(lo))
		return netip.AddrFrom4(v), true
	case 6:
		var v [16]byte
		le.PutUint64(v[:], lo)
		le.PutUint64(v[8:], hi)
		return netip.AddrFrom16(v), true
	}
	return netip.Addr{}, false
}
