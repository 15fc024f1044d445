package shm

import (
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A page of a memfd belongs to the control group of the process that touches it first, and
// stays until a hole is punched there or the memfd is closed everywhere. So the daemon
// knows which pages it touches first (docs/shm.md, "Pages"):
//
//   - In the client's part none. Memory that a client points to has to be there already, or
//     the socket is closed: a client has written the bodies that it posts.
//   - In the daemon's part those that it writes. Each is paid for before it is touched, and
//     free ones are given back when memory is short.

// Payer pays for pages of a region. It is called with the owner's lock.
type Payer interface {
	// Take pays for so many bytes more, or says that they cannot be had.
	Take(bytes int) bool
	// Give gives them back.
	Give(bytes int)
	// Keep pays for so many bytes more of the accounts of what is in them, which are this end's own, or says
	// that they cannot be had. Below 0 it gives them back.
	Keep(bytes int) bool
}

var (
	pageBytes = uint64(os.Getpagesize())
	pageShift = bits.TrailingZeros64(pageBytes)
	pageOrder = uint8(pageShift - bits.TrailingZeros64(UnitBytes)) // in the arena
	// pageMask tells the first entry of a ring on a page.
	pageMask = pageBytes/entryBytes - 1
)

// pageSet is a set of pages, by their number from where it begins.
type pageSet struct{ bits []uint64 }

func (s *pageSet) has(i uint64) bool {
	return s.from(i, i) != i
}

// from is the first page from lo to hi, hi included, that is not in the set; else the one behind
// hi.
func (s *pageSet) from(lo, hi uint64) uint64 {
	for lo <= hi && lo>>6 < uint64(len(s.bits)) && s.bits[lo>>6]&(1<<(lo&63)) != 0 {
		lo++
	}
	return lo
}

// missing counts the pages from lo to hi, hi included, that are not in the set.
func (s *pageSet) missing(lo, hi uint64) (n int) {
	for ; lo <= hi; lo++ {
		if !s.has(lo) {
			n++
		}
	}
	return n
}

func (s *pageSet) add(lo, hi uint64) {
	if n := hi>>6 + 1; n > uint64(len(s.bits)) {
		s.bits = append(s.bits, make([]uint64, n-uint64(len(s.bits)))...)
	}
	for ; lo <= hi; lo++ {
		s.bits[lo>>6] |= 1 << (lo & 63)
	}
}

// remove takes the pages from lo to hi out, hi included, and tells how many there were.
func (s *pageSet) remove(lo, hi uint64) (n int) {
	for ; lo <= hi; lo++ {
		if s.has(lo) {
			s.bits[lo>>6] &^= 1 << (lo & 63)
			n++
		}
	}
	return n
}

// next is the first page of the set from i on, below end.
func (s *pageSet) next(i, end uint64) (uint64, bool) {
	for end = min(end, uint64(len(s.bits))<<6); i < end; {
		if w := s.bits[i>>6] >> (i & 63); w != 0 {
			i += uint64(bits.TrailingZeros64(w))
			return i, i < end
		}
		i = (i | 63) + 1
	}
	return 0, false
}

// pageSide is the Host's part for the pages of its region.
type pageSide struct {
	known   pageSet // of the client's part: they have been touched
	asked   span    // of the client's part: whether it has been touched is being found out (Unsure)
	asking  uint8
	used    atomic.Int64 // bytes of pages in known and mine
	payer   Payer        // nil: pages are not paid for
	mine    pageSet      // of the daemon's part, and paid for
	paid    int          // bytes
	leaving span         // of the daemon's part: pages that are being given back
	kept    int          // bytes of accounts that are paid for beside
	lacked  bool         // something could not be paid for
}

// span is a range of a region, in bytes.
type span struct{ off, n uint64 }

// Values of asking.
const (
	askNothing = iota
	askWanted  // Unsure tells the owner
	askBegun   // the owner is to call Sure
)

// Pay sets the payer of the pages that this end touches first. It is called before anything
// else.
func (h *Host) Pay(p Payer) { h.payer = p }

// clientHas reports whether the n bytes of the client's memory at off have been touched, by
// any process but not by this end. If it is not certain, nothing is taken from the client
// until the owner, told by Unsure, has found out.
func (h *Host) clientHas(off, n uint64) bool {
	lo, hi := off>>pageShift, (off+max(n, 1)-1)>>pageShift
	if lo = h.known.from(lo, hi); lo > hi {
		return true
	}
	if h.asking != askNothing {
		return false
	}
	off, n = lo<<pageShift, (hi-lo+1)<<pageShift
	if h.r.resident(off, n) {
		h.knows(lo, hi)
		return true
	}
	h.asking, h.asked, h.Lags = askWanted, span{off, n}, true
	h.refresh()
	return false
}

// knows notes pages that the client has touched.
func (h *Host) knows(lo, hi uint64) {
	h.used.Add(int64(h.known.missing(lo, hi)) << pageShift)
	h.known.add(lo, hi)
}

// Used is how much of the region is in use as far as this end has seen, in bytes. It may be
// called without the owner's lock.
func (h *Host) Used() uint64 { return uint64(h.used.Load()) }

// Unsure tells the owner, once, of memory that the client has not touched, or that the kernel
// has moved elsewhere: the owner calls Region.Written where that may block, and then Sure.
func (h *Host) Unsure() (off, n uint64, wanted bool) {
	if h.asking != askWanted {
		return 0, 0, false
	}
	h.asking, h.Lags = askBegun, h.growth == growthWanted
	return h.asked.off, h.asked.n, true
}

// Finding reports whether Unsure has been told and Sure not called yet.
func (h *Host) Finding() bool { return h.asking == askBegun }

// Sure ends an Unsure. Memory that was never written ends the socket: it would be the
// daemon's that touches it first. Ask Due afterwards.
func (h *Host) Sure(written bool) {
	h.asking = askNothing
	lo := h.asked.off >> pageShift
	if written {
		h.knows(lo, lo+h.asked.n>>pageShift-1)
	} else if !h.dead {
		h.hostile("it points to %d bytes at %#x that it has never touched", h.asked.n, h.asked.off)
	}
	h.due = true // releases were out of sight, too
	h.refresh()
}

// resident reports whether pages are in memory, without touching them. It does not wait for
// a process that changes the file.
func (r *Region) resident(off, n uint64) bool {
	var vec [MaxDatagram/4096 + 1]byte
	pages := vec[:n>>pageShift]
	if len(pages) == 0 || !mincore(r.mem[off:off+n], pages) {
		return false
	}
	for _, v := range pages {
		if v&1 == 0 {
			return false
		}
	}
	return true
}

// Written reports whether the client's part has memory at off, n bytes of it. What is swapped
// out it has read in, which takes a while: where there is swap (Swaps), a caller that is told no
// asks again a few times. It may wait, so a reactor must not call it.
func (r *Region) Written(off, n uint64) bool {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	n = (n + pageBytes - 1) &^ (pageBytes - 1)
	if r.mem == nil || r.private {
		return false
	}
	if r.resident(off, n) {
		return true
	}
	// Of shared memory it reads in what is swapped out, and makes no page where there is none
	// (mm/madvise.c, madvise_willneed); mincore tells when it has come.
	_ = unix.Madvise(r.mem[off:off+n], unix.MADV_WILLNEED)
	return r.resident(off, n)
}

// Swaps reports whether this system has memory to swap out to.
func Swaps() bool {
	var s unix.Sysinfo_t
	return unix.Sysinfo(&s) != nil || s.Totalswap != 0
}

// afford pays for the pages of the daemon's part at off, n bytes of it, that this end has
// not touched. It returns false if that is not possible now; Lacks tells that.
func (h *Host) afford(off, n uint64) bool {
	if n == 0 {
		return true
	}
	off -= h.r.DaemonOff
	lo, hi := off>>pageShift, (off+n-1)>>pageShift
	if lo == hi && h.mine.has(lo) {
		return true
	}
	k := h.mine.missing(lo, hi) << pageShift
	if k == 0 {
		return true
	}
	// A page that is being given back is gone a moment later, with everything written to
	// it.
	going := off < h.leaving.off+h.leaving.n && h.leaving.off < off+n
	if going || h.payer != nil && !h.payer.Take(k) {
		h.lacked = true
		return false
	}
	h.paid += k
	h.used.Add(int64(k))
	h.mine.add(lo, hi)
	return true
}

// affordEntry pays for the page that entry n of a ring at off begins, if it begins one.
func (h *Host) affordEntry(off, n, entries uint64) bool {
	at := n & (entries - 1)
	return at&pageMask != 0 || h.afford(off+at*entryBytes, min(pageBytes, entries*entryBytes))
}

// keptFree is what accounts a socket has without paying for them: its own price has them.
const keptFree = 4 << 10

// affordAccounts pays for what the accounts of the receive side take, and for more bytes of them that are about
// to be made.
func (h *Host) affordAccounts(more int) bool {
	n := h.arena.accountsBytes() + cap(h.slots)*slotBytes + more - keptFree - h.kept
	if n <= 0 {
		return true
	}
	if h.payer != nil && !h.payer.Keep(n) {
		h.lacked = true
		return false
	}
	h.kept += n
	return true
}

// lessAccounts gives back what accounts are not needed any more: the arena's while none of its pages are
// touched. Those of a block that was freed behind a look would not be found without.
func (h *Host) lessAccounts(untouched bool) {
	if untouched {
		h.arena.renew()
	}
	if h.nSlots == 0 {
		h.slots, h.freeSlots = nil, none
	}
	n := h.kept - max(h.arena.accountsBytes()+cap(h.slots)*slotBytes-keptFree, 0)
	if n <= 0 {
		return
	}
	h.kept -= n
	if h.payer != nil {
		h.payer.Keep(-n)
	}
}

// affordBlock takes a block of the receive arena and pays for its pages.
func (h *Host) affordBlock(n int) (off uint64, ok bool) {
	off, ok = h.arena.Alloc(n)
	if ok && !(h.affordAccounts(0) && h.afford(h.r.RecvArenaOff+off, uint64(BlockBytes(n)))) {
		h.arena.Free(off)
		ok = false
	}
	return off, ok
}

// Lacked reports whether something found none since Lacks was asked.
func (h *Host) Lacked() bool { return h.lacked }

// Lacks reports, once, that something found no memory that could be paid for. The owner
// calls Fed when there may be some.
func (h *Host) Lacks() bool {
	l := h.lacked
	h.lacked = false
	return l
}

// MemoryAgain says that there may be memory again. Waiting work goes on with Publish, Due
// and the next Place.
func (h *Host) MemoryAgain() {
	h.noRoomFor &^= viewArena | viewRing
	h.refresh()
}

// Paid is how many bytes are paid for.
func (h *Host) Paid() int { return h.paid }

// Spared is a result of Spare: a range of the daemon's part that is not needed.
type Spared struct {
	span
	block uint64 // of the receive arena, taken out of it; noBlock: none
	pages int
}

const noBlock = ^uint64(0)

// spareMost bounds the bytes given back in one step.
const spareMost = 256 << 10

// Spare finds memory of the daemon's part that is paid for and not needed, from
// *at on, and takes it out of use, also of a region that its client has left: the owner
// has Region.Remove take the pages away, without its lock, and then calls Restore. *at is
// where to go on. ok is false when there is no more.
func (h *Host) Spare(at *uint64) (s Spared, ok bool) {
	if h.leaving.n > 0 || h.r.mem == nil {
		return s, false
	}
	for _, ring := range [2]struct{ off, entries, head, tail uint64 }{
		{h.r.EventOff, uint64(h.r.Events), h.eventsRead(), h.eventTail},
		{h.r.RecvOff, uint64(h.r.Receives), h.recvsRead(), h.recvTail},
	} {
		if s, ok = h.spareRing(at, ring.off, ring.entries, ring.head, ring.tail); ok {
			h.leaving = s.span
			return s, true
		}
	}
	return h.spareBlock(at)
}

// spareRing finds pages of a ring that hold none of the entries from head to tail, nor
// those that are written next without a look at their page.
func (h *Host) spareRing(at *uint64, off, entries, head, tail uint64) (s Spared, ok bool) {
	off -= h.r.DaemonOff
	first, end := off>>pageShift, (off+entries*entryBytes+pageBytes-1)>>pageShift
	for p := max(*at, first); p < end; p++ {
		*at = p + 1
		if h.mine.has(p) && !h.live(p-first, entries, head, tail) {
			s.off, s.n, s.block = p<<pageShift, pageBytes, noBlock
			s.pages = h.mine.remove(p, p)
			return s, true
		}
	}
	return s, false
}

// live reports whether page i of a ring holds one of the entries from head to tail, or is
// the one that tail stands in the middle of: its rest is written without a look.
func (h *Host) live(i, entries, head, tail uint64) bool {
	per := pageMask + 1
	if per > entries {
		return true
	}
	for n := head &^ pageMask; n < tail; n += per {
		if n&(entries-1)/per == i {
			return true
		}
	}
	return false
}

// spareBlock finds a touched page that lies in a free block of the receive arena, and
// takes that block out.
func (h *Host) spareBlock(at *uint64) (s Spared, ok bool) {
	arena := h.r.RecvArenaOff - h.r.DaemonOff
	first, end := arena>>pageShift, (arena+h.r.RecvArenaBytes)>>pageShift
	if *at <= first { // also when the ring before it ends there
		*at = first
		h.arena.merge()
	}
	for {
		p, found := h.mine.next(*at, end)
		if !found {
			*at = end
			_, left := h.mine.next(first, end)
			h.lessAccounts(!left)
			return s, false
		}
		*at = p + 1
		if off, n, free := h.arena.Claim(p<<pageShift-arena, spareMost); free {
			s.off, s.n, s.block = arena+off, n, off
			lo, hi := s.off>>pageShift, (s.off+n-1)>>pageShift
			s.pages = h.mine.remove(lo, hi)
			*at = max(*at, hi+1)
			return s, true
		}
	}
}

// eventsRead and recvsRead are the client's heads, if they can be believed.
func (h *Host) eventsRead() uint64 {
	if head := h.r.EventHead().Load(); h.eventPub-head <= uint64(h.r.Events) {
		h.eventHead.Store(head)
	}
	return h.eventHead.Load()
}

func (h *Host) recvsRead() uint64 {
	if head := h.r.RecvHead().Load(); h.recvPub-head <= uint64(h.r.Receives) {
		h.recvHead.Store(head)
	}
	return h.recvHead.Load()
}

// Restore ends a Spare: the pages that are gone are not paid for any more and may be used
// again. It returns their bytes.
func (h *Host) Restore(s Spared) (bytes int) {
	if s.block == noBlock {
		h.leaving = span{}
	} else {
		h.arena.Unclaim(s.block)
	}
	if h.payer == nil {
		return 0
	}
	bytes = s.pages << pageShift
	h.paid -= bytes
	h.used.Add(int64(-bytes))
	h.payer.Give(bytes)
	return bytes
}

// PaidOff ends the payments: no process has the daemon's part any more.
func (h *Host) PaidOff() {
	if h.payer != nil {
		h.payer.Give(h.paid)
		h.payer, h.paid = nil, 0
	}
}

// Remove frees pages of the daemon's part that Spare found. It may take long.
func (r *Region) Remove(s Spared) error {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	if r.mem == nil || r.private && !r.held {
		return nil
	}
	return unix.Madvise(r.mem[r.DaemonOff+s.off:][:s.n], unix.MADV_REMOVE)
}

// Hold has the daemon's part stay mapped here when the region is closed, with what the client
// may read there still, until Drop.
func (r *Region) Hold() {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	r.held = true
}

// Drop frees all pages of the daemon's part, whoever else has it mapped, and unmaps it if the
// region is held and closed, or when it is. It may take long.
func (r *Region) Drop() {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	r.dropped = true
	switch {
	case r.rest != nil:
		r.dropRest()
	case r.mem != nil && (!r.private || r.held):
		_ = unix.Madvise(r.mem[r.DaemonOff:], unix.MADV_REMOVE)
	}
}

// dropRest frees and unmaps what is left of a region that is closed.
func (r *Region) dropRest() {
	if r.rest == nil {
		return
	}
	_ = unix.Madvise(r.rest, unix.MADV_REMOVE) // the range is mapped to write, and not sealed
	r.unmapRest()
}

func (r *Region) unmapRest() {
	if r.rest != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(r.rest)), uintptr(len(r.rest)))
		r.rest = nil
	}
}

// Disown closes the daemon's part here, even if other processes have it, and leaves its pages
// to them.
func (r *Region) Disown() {
	r.files.Lock()
	closeOnce(&r.ownFD)
	r.files.Unlock()
	r.mapping.Lock()
	defer r.mapping.Unlock()
	r.held = false
	r.unmapRest()
}

// Abandoned reports whether no other process has the daemon's part any more, mapped or as a
// descriptor, and then closes it here: only then is its memory free. certain is false when
// that cannot be known on this system; then it is closed as well. A reactor must not call it.
func (r *Region) Abandoned() (gone, certain bool) {
	r.files.Lock()
	defer r.files.Unlock()
	return abandoned(&r.ownFD)
}

// abandoned is Region.Abandoned of a descriptor.
func abandoned(own *int) (gone, certain bool) {
	if *own < 0 {
		return true, true
	}
	// A lease to write is only given for the one open file (fs/locks.c, check_conflicting_open).
	_, err := unix.FcntlInt(uintptr(*own), unix.F_SETLEASE, unix.F_WRLCK)
	if err == unix.EAGAIN {
		return false, true
	}
	closeOnce(own)
	return true, err == nil
}
