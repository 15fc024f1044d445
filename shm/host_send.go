package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/crash"
	"github.com/rdsd/rdsd/wire"
)

// Post is a send descriptor that was claimed and checked.
type Post struct {
	wire.Train        // its Body is in the region; the client may still be writing to it
	Open       bool   // only to open the flow: no datagrams, no event
	Tag        uint64 // of the first datagram
	Cookie     uint32
	Flow       uint32 // an entry of the flow table
	Gen        uint32
	Want       bool   // the outcome is waited for
	Only       bool   // there was no other when the ring was looked at
	Word       uint64 // as it was claimed
	Slot       uint64 // offset of Body in the send arena
	at         uint64 // the slot as the descriptor names it: where the payloads begin, if they are mixed
	Bad        error  // not nil: it cannot be sent; take it without accepting and answer Refused

	id uint32 // set by Taken
}

// sendSide is the Host's part for the send ring.
type sendSide struct {
	sendHead uint64 // descriptors taken
	sendTail uint64 // the client's, as last read and checked
	// Lags says that Growth or Unsure has something to tell. This end alone changes it.
	Lags    bool
	half    bool // the word of cur is claimed and cur was read, its body not looked for
	claimed bool // cur is claimed and not taken
	cur     Post
	sends   sendTable
	taken   uint64 // datagrams of all descriptors taken
	entries uint32 // of the send table that can be used
	growth  uint8  // whether more of them are being allocated
}

// Values of growth.
const (
	growthNone   = iota
	growthWanted // Growth tells the owner
	growthBegun  // the owner is to call Grown
	growthFailed // until an id is free again
)

// sendTable holds the descriptors taken whose last event is not published, by id.
type sendTable struct {
	info      []sendInfo
	freed     uint32 // list of free ids through next
	n         int
	datagrams int // without an event
	bytes     int
	nowhere   uint64 // the cell of those that have no ledger
}

type sendInfo struct {
	bytes  uint32
	cookie uint32
	next   uint32
	count  uint16 // datagrams; 0: the id is free
	left   uint16 // without an event, be it queued
	put    uint16 // with an event in the ring
	shown  uint16 // with an event that is published
	marked bool   // in eventSide.touched
}

// What a page of a Growth takes, which is for GrowthEntries more descriptors under way: the page
// of the ledger and, at this end, for each its entry, its place among the touched and an
// event that waits for room, where half as many again have gone and keep their places.
const (
	GrowthEntries = sendsPerPage
	GrowthBytes   = 4096 + GrowthEntries*(infoBytes+touchedBytes) + GrowthEntries*3/2*queuedBytes

	infoBytes    = 24
	touchedBytes = 4
	queuedBytes  = 64
)

func (h *Host) initSend() {
	h.sends.freed = none
	h.entries = MaxOutstanding
	if h.led != nil {
		h.entries = sendsPerPage
	}
	h.overflow.most = int(h.entries) * 3 / 2
}

// Entries is how many descriptors may be under way, up to the next Grown.
func (h *Host) Entries() int { return int(h.entries) }

// roomFor makes room for one more in s: for twice as many, up to most.
func roomFor[T any](s []T, most int) []T {
	if len(s) < cap(s) || len(s) >= most {
		return s
	}
	return append(make([]T, 0, min(max(2*len(s), 16), most)), s...)
}

// low notes that the usable part of the ledger's send table is nearly spent: the
// rest must be allocated, which is a system call and so not the reactor's.
func (h *Host) low() {
	t := &h.sends
	if h.growth == growthNone && h.entries < MaxOutstanding && t.n+int(h.entries/4) >= int(h.entries) {
		h.growth, h.Lags = growthWanted, true
	}
}

// Growth tells the owner, once, that entries of the ledger's send table run out: the owner
// calls LedgerRegion.Grow(from, pages) where that may block, and then Grown. Until then
// posts may have to wait. It takes GrowthBytes for each page.
func (h *Host) Growth() (from uint32, pages int, wanted bool) {
	if h.growth != growthWanted {
		return 0, 0, false
	}
	h.growth, h.Lags = growthBegun, h.asking == askWanted
	pages = min(int(h.entries), MaxOutstanding-int(h.entries)) / sendsPerPage
	return h.entries, pages, true
}

// Growing reports whether Growth has been told and Grown not called yet.
func (h *Host) Growing() bool { return h.growth == growthBegun }

// Grown ends a Growth: so many pages are usable, 0 when there was no room. It
// is tried again once a descriptor has ended. Ask Due afterwards.
func (h *Host) Grown(pages int) {
	h.growth = growthNone
	if pages == 0 {
		h.growth = growthFailed
	}
	h.entries += uint32(pages) * sendsPerPage
	h.overflow.most = int(h.entries) * 3 / 2
	h.led.pages += uint32(pages)
	h.refresh()
}

// Next claims and checks the next descriptor; the same one again until Taken. ok
// is false when there is none, or none may be taken now. err: the client is
// hostile, close its socket.
func (h *Host) Next(p *Post) (ok bool, err error) {
	if h.err != nil {
		return false, h.err
	}
	if !h.claimed {
		n := h.sendHead
		if h.dead {
			return false, nil
		}
		if n == h.sendTail {
			// The tail is the client's, and is read once: every later decision is about this
			// value.
			t := h.sendTailW.Load()
			if t-n > uint64(h.r.Sends) {
				return false, h.hostile("send tail %d with %d taken of a ring of %d", t, n, h.r.Sends)
			}
			if h.sendTail = t; t == n {
				return false, nil
			}
		}
		// A descriptor that is claimed must be taken, so the room for it is looked at first.
		if h.stored&viewTake == 0 {
			return false, nil
		}
		// The read may have been done in an earlier turn that then found a page missing.
		if !h.half {
			if ok, err := h.read(n); !ok {
				return false, err
			}
		}
		// The flow entry and the body are memory of the client. A page that it has not touched
		// would be charged to the daemon by the first read.
		c := &h.cur
		if !h.clientHas(h.r.FlowOff+uint64(c.Flow)*entryBytes, entryBytes) || len(c.Body) > 0 && c.Bad == nil && !h.clientHas(h.r.SendArenaOff+c.Slot, uint64(len(c.Body))) {
			return false, nil
		}
		h.half, h.claimed = false, true
	}
	*p = h.cur
	p.Only = h.sendTail-h.sendHead == 1
	return true, nil
}

// claimTries is how often a client may append between a load and the claim
// before the daemon turns to something else.
const claimTries = 16

// read claims descriptor n and reads it into cur.
func (h *Host) read(n uint64) (bool, error) {
	at := n & uint64(h.r.Sends-1)
	if !h.clientHas(h.r.SendOff+at*entryBytes, entryBytes) {
		return false, nil
	}
	e := &h.r.sends[at]
	word := (*atomic.Uint64)(unsafe.Pointer(e))
	w := word.Load()
	for try := 0; !word.CompareAndSwap(w, w|uint64(WordClaimed)); w = word.Load() {
		if try++; try == claimTries {
			return false, nil // it is appending all the time; later
		}
	}
	if crash.Armed {
		crash.Point("ring.claim")
	}
	if err := h.r.readPost(n, e, Word(w), &h.cur); err != nil {
		return false, h.hostile("%v", err)
	}
	h.half = true
	return true, nil
}

// readPost reads send descriptor n, which lies in e and whose word was w. An error is one that
// ends the socket; see Bad for the others.
func (r *Region) readPost(n uint64, e *entry, w Word, p *Post) error {
	var d SendDesc
	// One copy out of the client's memory: what is checked below is what is used.
	w &^= WordClaimed
	d.get(e, w)
	kind, count, bytes := d.Kind, d.Count, d.Bytes
	// A client that follows docs/shm.md cannot write these, so they end the socket. Errors
	// that a correct client may make (Bad) fail the one descriptor.
	if kind < KindEach || kind > KindMixed {
		return fmt.Errorf("send descriptor %d is of kind %d", n, kind)
	}
	if d.Flow >= r.Flows {
		return fmt.Errorf("send descriptor %d names flow %d of %d", n, d.Flow, r.Flows)
	}
	*p = Post{Tag: d.Tag, Cookie: d.Cookie, Flow: d.Flow, Gen: d.Gen, Want: d.Flags&FlagWant != 0, Word: uint64(w), Slot: d.Slot, at: d.Slot, id: none}
	if kind == KindOpen {
		p.Open = true
		return nil
	}
	if count < 1 || count > MaxTrain {
		return fmt.Errorf("send descriptor %d holds %d datagrams", n, count)
	}
	if d.Slot%UnitBytes != 0 || d.Slot > r.SendArenaBytes || uint64(bytes) > r.SendArenaBytes-d.Slot {
		return fmt.Errorf("send descriptor %d has %d bytes at %d of an arena of %d", n, bytes, d.Slot, r.SendArenaBytes)
	}
	p.Count, p.Table, p.Reversed = count, kind == KindTable || kind == KindMixed, kind == KindMixed
	if p.Reversed {
		// Table and payloads are one stretch of the client's own memory, wherever that is.
		table := count * wire.TableEntry
		if uint64(table) > d.Slot {
			return fmt.Errorf("send descriptor %d has a table of %d bytes before %d", n, table, d.Slot)
		}
		p.Slot -= uint64(table)
		bytes += table
	}
	// The slice is bounded by its capacity too: nothing behind it can be reached through it.
	p.Body = r.sendArena[p.Slot:][:bytes:bytes]
	switch {
	case w&wordReserved != 0 || d.Flags&^FlagWant != 0:
		p.Bad = &Error{unix.EINVAL, fmt.Sprintf("a descriptor with unknown bits: word %#x, flags %#x", uint64(w), d.Flags)}
	// Of a socket with a small send buffer a train may be longer than a datagram may: it is bounded
	// by the room that its datagrams found one by one.
	case count == 1 && bytes > int(r.MaxDatagram) || count > 1 && bytes > MaxTrainBytes:
		p.Bad = &Error{unix.EMSGSIZE, fmt.Sprintf("%d bytes for %d datagrams; one has at most %d, several together at most %d", bytes, count, r.MaxDatagram, MaxTrainBytes)}
	case p.Table && 4*count > bytes:
		p.Bad = &Error{unix.EINVAL, fmt.Sprintf("a table of %d lengths in %d bytes", count, bytes)}
	case !p.Table && bytes%count != 0:
		p.Bad = &Error{unix.EINVAL, fmt.Sprintf("%d bytes are not %d datagrams of one length", bytes, count)}
	}
	return nil
}

// Taken takes the descriptor that Next showed: the head moves on. If it is accepted it has
// an outcome from here on, id names it until the last Outcome, and cell is where its
// lane<<56|sequence is to be stored when it is sent. If it is not, the caller calls
// Refused, with the same p, unless it only opens a flow.
func (h *Host) Taken(p *Post, dst Target, accepted bool) (id uint32, cell *uint64) {
	if !h.claimed {
		h.bug("a descriptor was taken that was not shown")
		return none, &h.sends.nowhere
	}
	h.claimed = false
	n := h.sendHead
	h.sendHead = n + 1
	// Opening a flow has no outcome and so no id, but it is a descriptor of the ring like
	// others.
	if p.Open {
		if h.led != nil {
			h.led.took(n, h.taken)
		}
		h.sendHeadW.Store(h.sendHead)
		h.news |= ClientWaitsSendRoom
		return none, nil
	}
	t := &h.sends
	// Ids are used again from a list through the free entries: the table is as long as the
	// most descriptors there ever were at a time.
	id = t.freed
	if id != none {
		t.freed = t.info[id].next
	} else {
		id = uint32(len(t.info))
		t.info = append(roomFor(t.info, int(h.entries)), sendInfo{})
	}
	t.info[id] = sendInfo{bytes: uint32(len(p.Body)), cookie: p.Cookie, count: uint16(p.Count), left: uint16(p.Count)}
	t.n++
	t.datagrams += p.Count
	t.bytes += len(p.Body)
	h.taken += uint64(p.Count)
	p.id = id
	// Without a ledger the sequence is stored where nobody reads it, so that senders need
	// not ask.
	cell = &t.nowhere
	if h.led != nil {
		flags := uint8(0)
		if p.Want {
			flags = FlagWant
		}
		if !accepted {
			flags |= FlagRefusing
		}
		e := &h.led.sends[id]
		s := SendRecord{Order: n + 1, Slot: p.at, Word: Word(p.Word), Tag: p.Tag, Cookie: p.Cookie, Dst: dst, Flags: flags}
		s.put(e)
		if crash.Armed {
			crash.Point("ring.accept.entry")
		}
		// The ledger before the region's head: a daemon that dies in between finds the
		// descriptor taken there, and Recover moves the head (docs/shm.md, "Accepting").
		h.led.took(n, h.taken)
		cell = &e[0]
	}
	h.sendHeadW.Store(h.sendHead)
	h.news |= ClientWaitsSendRoom
	if crash.Armed {
		crash.Point("ring.accept.head")
	}
	if uint32(t.n) > h.entries/2 {
		h.low()
	}
	// It may have been the last for which there is room: the view changes then, and else not.
	if t.datagrams >= MaxOutstandingDatagrams || t.freed == none && len(t.info) >= int(h.entries) {
		h.refresh()
	}
	return id, cell
}

// Taking is the number of the descriptor that is taken next: so many were taken.
// On the reactor's thread.
func (h *Host) Taking() uint64 { return h.sendHead }

// Posted reads the send tail, once: how many descriptors the client has posted by
// now. On the reactor's thread. (A tail that cannot be is for Next to complain of.)
func (h *Host) Posted() uint64 {
	if h.dead {
		return h.sendHead
	}
	t := h.sendTailW.Load()
	if t-h.sendHead > uint64(h.r.Sends) {
		return h.sendHead
	}
	return t
}

// Fence ends appending to what was posted before point, if that is not taken yet: the client appends to
// the newest descriptor alone, and what it appends from now on comes behind point. On the reactor's thread,
// with the lock.
func (h *Host) Fence(point uint64) {
	n := point - 1
	if h.dead || h.err != nil || n-h.sendHead >= uint64(h.r.Sends) || n == h.sendHead && (h.half || h.claimed) {
		return
	}
	at := n & uint64(h.r.Sends-1)
	off := h.r.SendOff + at*entryBytes
	// Nobody asks the client for a page that it has not touched: it has posted nothing there.
	if page := off &^ (pageBytes - 1); !h.known.has(page>>pageShift) && !h.r.resident(page, pageBytes) {
		return
	}
	word := (*atomic.Uint64)(unsafe.Pointer(&h.r.sends[at]))
	for range claimTries {
		if w := word.Load(); word.CompareAndSwap(w, w|uint64(WordClaimed)) {
			return
		}
	}
}

// Outstanding is the number of descriptors taken whose last event is not
// published yet.
func (h *Host) Outstanding() int { return h.sends.n }

// OutstandingBytes and OutstandingDatagrams return what they hold.
func (h *Host) OutstandingBytes() int     { return h.sends.bytes }
func (h *Host) OutstandingDatagrams() int { return h.sends.datagrams }

// free gives an id to others.
func (t *sendTable) free(id uint32) {
	i := &t.info[id]
	t.n--
	t.bytes -= int(i.bytes)
	*i = sendInfo{next: t.freed}
	t.freed = id
}
