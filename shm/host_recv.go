package shm

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/rdsd/rdsd/internal/crash"
	"github.com/rdsd/rdsd/wire"
)

// recvSide is the Host's part for the receive and release rings.
type recvSide struct {
	arena    *Arena
	recvTail uint64        // descriptors placed
	recvPub  uint64        // those the client sees
	recvHead atomic.Uint64 // the client's, as last read and checked
	relHead  uint64        // releases taken
	inCommit bool          // in the commit record being written

	slots     []slot
	freeSlots uint32   // list through next
	nSlots    int      // in use
	ring      []uint32 // slot of each entry of the receive ring that may be unread; a power of two
	ringFrom  uint64   // the oldest entry in it
	train     train
}

// slot is a block of the receive arena that is out. The arena's mark is its index.
type slot struct {
	src   netip.AddrPort
	off   uint64
	n     uint64 // number of the descriptor
	bytes uint32 // payload
	cost  uint32 // of the arena
	count uint32 // datagrams
	next  uint32
	state uint8
}

const slotBytes = int(unsafe.Sizeof(slot{}))

const (
	slotFree = iota
	slotReserved
	slotPlaced
	slotShown
)

// train is the newest descriptor while others may be appended to it: it is not
// published and its datagrams have one length.
type train struct {
	open bool
	slot uint32
	each int // bytes of each datagram
	used int // bytes
	cap  int // bytes of the block
	d    RecvDesc
}

const maxRelease = 1024 // releases taken in one call

func (h *Host) initRecv() {
	h.arena = NewArena(h.r.RecvArenaBytes)
	h.freeSlots = none
}

// firstRing is how many entries ring has at first: an idle socket needs none.
const firstRing = 16

// slotOf is where the slot of entry n of the receive ring stands.
func (h *Host) slotOf(n uint64) *uint32 { return &h.ring[n&uint64(len(h.ring)-1)] }

// roomInRing makes room in ring for another entry. The client's head is believed as far as it
// can be: one that is too far ahead has entries forgotten that it says it has read.
func (h *Host) roomInRing() {
	from := max(h.ringFrom, h.recvHead.Load())
	if head := h.r.RecvHead().Load(); h.recvPub-head <= h.recvPub-from {
		from = head
	}
	h.ringFrom = from
	if h.recvTail-from < uint64(len(h.ring)) {
		return
	}
	was := h.ring
	h.ring = make([]uint32, max(2*len(was), min(firstRing, int(h.r.Receives))))
	for n := from; n != h.recvTail; n++ {
		*h.slotOf(n) = was[n&uint64(len(was)-1)]
	}
}

// Placed is how many descriptors of the receive ring were ever filled, those included that the
// client does not see yet. With the lock.
func (h *Host) Placed() uint64 { return h.recvTail }

// recvRoom reports whether the receive ring takes another descriptor.
func (h *Host) recvRoom() bool {
	n := uint64(h.r.Receives)
	return (h.recvTail-h.recvHead.Load() < n || h.recvTaken()) && h.affordEntry(h.r.RecvOff, h.recvTail, n)
}

// recvTaken reads how far the client is, and reports whether the ring is not full.
func (h *Host) recvTaken() bool {
	head := h.r.RecvHead().Load()
	if h.recvPub-head > uint64(h.r.Receives) {
		h.hostile("receive head %d with %d published in a ring of %d", head, h.recvPub, h.r.Receives)
		return false
	}
	h.recvHead.Store(head)
	return h.recvTail-head < uint64(h.r.Receives)
}

func (h *Host) newSlot(off uint64, state uint8) uint32 {
	i := h.freeSlots
	if i != none {
		h.freeSlots = h.slots[i].next
	} else {
		i = uint32(len(h.slots))
		h.slots = append(h.slots, slot{}) // there is room: roomForSlot
	}
	h.slots[i] = slot{off: off, state: state}
	h.arena.SetMark(off, i)
	h.nSlots++
	if h.stored&viewMany == 0 && h.nSlots > h.manySlots {
		h.refresh()
	}
	return i
}

func (h *Host) freeSlot(i uint32) {
	h.arena.Free(h.slots[i].off)
	h.slots[i] = slot{next: h.freeSlots}
	h.freeSlots = i
	h.nSlots--
}

// Reserve takes a slot of n bytes in the receive arena, to be filled and
// placed, or unreserved. ok is false when there is no room: take Releases and
// try once more before giving up; the client will wake a sleeping daemon when there is some.
func (h *Host) Reserve(n int) (off uint64, b []byte, ok bool) {
	if n < 0 || n > MaxDatagram || h.dead || h.err != nil {
		return 0, nil, false
	}
	if off, ok = h.alloc(n); !ok {
		return 0, nil, false
	}
	h.newSlot(off, slotReserved)
	return off, h.r.recvArena[off:][:n:n], true
}

// alloc takes a block. A well-behaved client holds at most one slot for each entry of the
// receive ring (unread) and of the release ring (read, not released).
func (h *Host) alloc(n int) (off uint64, ok bool) {
	if h.roomForSlot() {
		off, ok = h.affordBlock(n)
	}
	if !ok {
		h.noteNoRoom(viewArena)
	}
	return off, ok
}

// roomForSlot makes room for another slot, and reports whether there is some.
func (h *Host) roomForSlot() bool {
	n, most := cap(h.slots), int(h.r.Receives)+int(h.r.Releases)
	switch {
	case h.nSlots >= most:
		return false
	case h.freeSlots != none || len(h.slots) < n:
		return true
	case !h.affordAccounts((min(max(2*n, 16), most) - n) * slotBytes):
		return false
	}
	h.slots = roomFor(h.slots, most)
	return true
}

// Unreserve gives a slot back that was not placed.
func (h *Host) Unreserve(off uint64) {
	i, ok := h.arena.Mark(off)
	if !ok || h.slots[i].state != slotReserved {
		h.bug("slot %d was given back and was not reserved", off)
		return
	}
	h.freeSlot(i)
	if h.stored&viewMany != 0 && h.nSlots <= h.manySlots {
		h.refresh()
	}
}

// Place puts the train whose body was read into the slot at off, which Reserve gave, into
// the receive ring; Publish or PublishAll shows it. lane (LedgerLane.Index or NoLane) and seq
// are where it comes from. cost is the arena's memory it takes until it is released. ok is
// false when the ring is full; the slot stays reserved then.
func (h *Host) Place(src netip.AddrPort, off uint64, t wire.Train, lane uint32, seq uint64) (cost int, ok bool) {
	n := len(t.Body)
	i, ok := h.arena.Mark(off)
	if !ok || h.slots[i].state != slotReserved || !fits(t) {
		h.bug("%d bytes (%d datagrams) were placed at %d, which was not reserved", n, t.Count, off)
		return 0, false
	}
	if size, _ := h.arena.Size(off); n > size {
		h.bug("%d bytes were placed into the %d at %d", n, size, off)
		return 0, false
	}
	// A train that is open would come behind this descriptor if it were appended to any
	// more.
	h.closeTrain()
	if h.dead || h.err != nil {
		return 0, false
	}
	if !h.recvRoom() {
		h.noteNoRoom(viewRing)
		return 0, false
	}
	d := RecvDesc{Word: trainWord(t), Slot: off, Src: src, Lane: lane, Seq: seq}
	cost = h.arena.Shrink(off, n)
	h.enter(i, &d, t, cost)
	// The entry is written, and not yet published: Publish moves the tail over it.
	d.put(h.r.recvEntry(h.recvTail - 1))
	crash.Point("ring.receive.place")
	return cost, true
}

// fits reports whether a receive descriptor can hold t.
func fits(t wire.Train) bool {
	if len(t.Body) > MaxDatagram || t.Count < 1 || t.Count > MaxTrain {
		return false
	}
	if t.Table {
		return t.PayloadBytes() >= 0
	}
	return len(t.Body)%t.Count == 0
}

// trainWord is the word of the descriptor of t.
func trainWord(t wire.Train) Word {
	kind := KindEach
	if t.Table {
		kind = KindTable
	}
	return MakeWord(kind, len(t.Body), t.Count)
}

// enter gives the slot the next number of the ring.
func (h *Host) enter(i uint32, d *RecvDesc, t wire.Train, cost int) {
	s := &h.slots[i]
	s.src, s.n, s.state = d.Src, h.recvTail, slotPlaced
	s.bytes, s.count, s.cost = uint32(t.PayloadBytes()), uint32(t.Count), uint32(cost)
	if h.recvTail-h.ringFrom == uint64(len(h.ring)) {
		h.roomInRing()
	}
	*h.slotOf(h.recvTail) = i
	h.recvTail++
}

// PlaceCopy copies the body of in into the receive arena and places it. While the
// newest descriptor is not published, datagrams of the same source, lane and
// length are appended to it. ok is false when there is no room, as for Reserve.
func (h *Host) PlaceCopy(src netip.AddrPort, in wire.Train, lane uint32, seq uint64) (cost int, ok bool) {
	n := len(in.Body)
	if !fits(in) {
		h.bug("%d bytes of %d datagrams were placed", n, in.Count)
		return 0, false
	}
	if h.dead || h.err != nil {
		return 0, false
	}
	t := &h.train
	// Small datagrams of one flow share a descriptor and a slot: that is one entry of the
	// ring, one release and one wake-up for many.
	if t.open && !in.Table && t.each*in.Count == n && t.d.Lane == lane && t.d.Src == src && t.used+n <= MaxTrainBytes && t.d.Word.Count()+in.Count <= MaxTrain {
		if cost, ok = h.append(in.Body, in.Count, seq); ok {
			return cost, true
		}
	}
	h.closeTrain()
	if !h.recvRoom() {
		h.noteNoRoom(viewRing)
		return 0, false
	}
	off, ok := h.alloc(n)
	if !ok {
		return 0, false
	}
	in.PutBody(h.r.recvArena[off:][:n])
	i := h.newSlot(off, slotReserved)
	cost = BlockBytes(n)
	t.d = RecvDesc{Word: trainWord(in), Slot: off, Src: src, Lane: lane, Seq: seq}
	h.enter(i, &t.d, in, cost)
	// The descriptor stays private until closeTrain writes it out, so that the client never
	// sees one that still grows.
	t.open, t.slot, t.used, t.cap = true, i, n, cost
	t.each = n / in.Count
	// Nothing could be appended: a table has its lengths in front, and two such bodies do
	// not fit into one slot.
	if in.Table || n > MaxTrainBytes/2 {
		h.closeTrain()
	}
	crash.Point("ring.receive.place")
	return cost, true
}

// append adds datagrams to the open train, in a larger block when it must be.
func (h *Host) append(body []byte, count int, seq uint64) (cost int, ok bool) {
	t := &h.train
	s := &h.slots[t.slot]
	need := t.used + len(body)
	if need > t.cap {
		// By four: a block is copied seldom, and closeTrain gives back the surplus.
		grown := min(4*t.cap, MaxTrainBytes)
		off, ok := h.affordBlock(max(need, grown))
		if !ok {
			return 0, false
		}
		copy(h.r.recvArena[off:], h.r.recvArena[s.off:][:t.used])
		h.arena.Free(s.off)
		// The slot keeps its number and moves with its bytes: the client has not seen either
		// offset yet.
		h.arena.SetMark(off, t.slot)
		s.off, t.d.Slot = off, off
		t.cap, _ = h.arena.Size(off)
	}
	copy(h.r.recvArena[s.off+uint64(t.used):][:len(body)], body)
	t.used = need
	t.d.Word += Word(len(body)) + Word(count)<<wordCountShift
	t.d.Seq = seq
	s.bytes, s.count = uint32(need), s.count+uint32(count)
	// The charge is for the block that closeTrain leaves, not for the larger one that is
	// being filled.
	cost = BlockBytes(need) - int(s.cost)
	s.cost += uint32(cost)
	return cost, true
}

// closeTrain writes the newest descriptor; nothing is appended to it any more.
func (h *Host) closeTrain() {
	t := &h.train
	if !t.open {
		return
	}
	t.open = false
	if t.cap > UnitBytes {
		h.arena.Shrink(t.d.Slot, t.used)
	}
	if !h.dead {
		t.d.put(h.r.recvEntry(h.recvTail - 1))
	}
}

// publishRecv makes the placed visible, recorded in the ledger first.
func (h *Host) publishRecv() {
	h.closeTrain()
	if h.recvTail == h.recvPub || h.dead {
		return
	}
	if h.led != nil {
		h.led.words[wordRecvTail].Store(h.recvTail)
	}
	h.showRecv()
}

func (h *Host) showRecv() {
	for n := h.recvPub; n != h.recvTail; n++ {
		h.slots[*h.slotOf(n)].state = slotShown
	}
	h.recvPub = h.recvTail
	if !h.dead {
		h.r.RecvTail().Store(h.recvPub)
		h.news |= ClientWaitsRecv
	}
}

// Releases takes slots that the client gave back, at most maxRelease in one call: It
// returns their payload bytes, their memory in the arena (the sum of the costs told) and
// their datagrams. With an error the client is hostile, and its socket is to be closed.
func (h *Host) Releases() (bytes, cost, datagrams int, err error) {
	if h.err != nil {
		return 0, 0, 0, h.err
	}
	if h.dead {
		return 0, 0, 0, nil
	}
	tail := h.releaseTailW.Load()
	if tail-h.relHead > uint64(h.r.Releases) {
		return 0, 0, 0, h.hostile("release tail %d with %d taken of a ring of %d", tail, h.relHead, h.r.Releases)
	}
	// The client has taken descriptors, which makes room in the receive ring without any
	// release.
	if h.noRoomFor&viewRing != 0 && h.recvRoom() {
		h.noRoomFor &^= viewRing
		h.refresh()
	}
	// The owner's lock is held: a client with a full ring of releases must not hold up
	// others for long.
	end := min(tail, h.relHead+maxRelease)
	if end == h.relHead {
		return 0, 0, 0, nil
	}
	h.noRoomFor &^= viewArena
	for ; h.relHead != end; h.relHead++ {
		// The entry is in the client's part: the daemon must not be the first to touch its
		// page.
		if at := h.r.ReleaseOff + h.relHead&uint64(h.r.Releases-1)*8; !h.clientHas(at, 8) {
			break
		}
		off := h.r.releaseEntry(h.relHead).Load()
		// Only an offset that the daemon itself has shown names a slot: a client cannot free
		// memory twice, or memory that was never its.
		i, ok := h.arena.Mark(off)
		if !ok || h.slots[i].state != slotShown {
			err = h.hostile("slot %#x was released and is not out", off)
			break
		}
		s := &h.slots[i]
		bytes, cost, datagrams = bytes+int(s.bytes), cost+int(s.cost), datagrams+int(s.count)
		h.freeSlot(i)
		crash.Point("ring.release")
	}
	// Behind the loop: from this store on the client may use the entries again.
	h.r.ReleaseHead().Store(h.relHead)
	h.refresh()
	return bytes, cost, datagrams, err
}

// Released is how many releases were ever taken. With the lock.
func (h *Host) Released() uint64 { return h.relHead }

// EachUnread calls f for the datagrams that the client has not taken from the receive ring,
// oldest first, until f returns false, with the source and the payload bytes of each. Of a
// train with a table, whose lengths lie where the client can write, each is shown with an
// equal share.
func (h *Host) EachUnread(f func(src netip.AddrPort, bytes int) bool) {
	if h.dead {
		return
	}
	head := h.r.RecvHead().Load()
	// The head is the client's word. This is only a report, so one that cannot be ends
	// nothing here.
	if h.recvPub-head > uint64(h.r.Receives) {
		return
	}
	// What is older than ringFrom it has said once that it has read.
	for n := h.recvTail - min(h.recvTail-head, h.recvTail-h.ringFrom); n != h.recvTail; n++ {
		i := *h.slotOf(n)
		if int(i) >= len(h.slots) { // all are released, also what was not read
			return
		}
		s := &h.slots[i]
		if s.state < slotPlaced || s.n != n {
			continue
		}
		rest := s.bytes
		for left := s.count; left > 0; left-- {
			// The bytes that are left are divided among the datagrams that are left, so that
			// the shares add up.
			share := rest / left
			if rest -= share; !f(s.src, int(share)) {
				return
			}
		}
	}
}
