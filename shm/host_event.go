package shm

import (
	"maps"
	"net/netip"
	"sync/atomic"

	"github.com/rdsd/rdsd/internal/crash"
)

// eventSide is the Host's part for the event ring.
type eventSide struct {
	eventTail uint64        // events in the ring
	eventPub  uint64        // those the client sees
	eventHead atomic.Uint64 // the client's, as last read and checked
	finished  uint64        // datagrams of all events in the ring so far
	last      Event         // the newest event in the ring, while it is not published
	lastID    uint32
	touched   []uint32 // ids with an event that is not published
	overflow  overflow
}

// overflow holds events that found no room, in order. Outcomes in it are bounded by the
// outstanding descriptors, as nothing is taken while it holds MaxOutstanding.
type overflow struct {
	q     []queued // those from first on; there are n
	first int
	n     int
	most  int                    // it is no longer while its outcomes are one for each descriptor; 0: as long as it likes
	base  int                    // entries that stood before q[0] and are gone
	freed int                    // base + index of the EventFreed in q
	dsts  map[netip.AddrPort]int // base + index of EventCongestion in q
}

type queued struct {
	v  Event
	id uint32
}

// maxQueuedChanges bounds EventCongestion in the overflow. So many are part of what a socket is
// charged with, as that many descriptors are: of those before them, the ring is full.
const maxQueuedChanges = 64

// Refused reports that nothing of p can be sent. p was taken and not accepted.
func (h *Host) Refused(p *Post, errno uint16) {
	if !p.Open {
		h.Ended(p.id, p.Count, true, &Event{Kind: EventRefused, Tag: p.Tag, Errno: uint32(errno)})
	}
}

// Ended reports the outcome of count datagrams of id: v tells it but for what this end knows
// itself, their number, cookie and flags. In an EventOutcome Tag is that of the first of them,
// Outcome is Delivered and so on, and Why a number of conn.Why. With last none are left, the slot
// is the client's again and id is free.
func (h *Host) Ended(id uint32, count int, last bool, v *Event) {
	t := &h.sends
	if id >= uint32(len(t.info)) || count < 1 || count > int(t.info[id].left) || last != (count == int(t.info[id].left)) {
		h.bug("%d datagrams (last: %v) ended of descriptor %d, which has not so many", count, last, id)
		return
	}
	i := &t.info[id]
	i.left -= uint16(count)
	t.datagrams -= count
	if h.dead {
		if last {
			t.free(id)
		}
		return
	}
	v.Count, v.Cookie = uint32(count), i.cookie
	if last {
		v.Flags = EventLast
	}
	h.push(v, id)
	if h.stored&viewTake == 0 { // fewer datagrams are under way
		h.refresh()
	}
}

// Changed reports that a destination became congested or clear.
func (h *Host) Changed(dst netip.AddrPort, congested bool) {
	v := Event{Kind: EventCongestion, Dst: dst}
	if congested {
		v.Flags = EventCongested
	}
	h.push(&v, none)
}

// Freed reports groups of ports (port mod 64) that became clear.
func (h *Host) Freed(mask uint64) {
	h.push(&Event{Kind: EventFreed, Tag: mask}, none)
}

// eventRoom is how many events the ring has room for. The client's head is
// read only when it must be.
func (h *Host) eventRoom() int {
	n := uint64(h.r.Events)
	if h.eventTail-h.eventHead.Load() >= n {
		head := h.eventHeadW.Load()
		if h.eventPub-head > n {
			h.hostile("event head %d with %d published in a ring of %d", head, h.eventPub, n)
			return 0
		}
		h.eventHead.Store(head)
	}
	room := int(n - (h.eventTail - h.eventHead.Load()))
	if room > 0 && !h.affordEntry(h.r.EventOff, h.eventTail, n) {
		return 0
	}
	return room
}

// Backlog is how many of the events that wait for room Publish will find some for.
func (h *Host) Backlog() int {
	if h.overflow.n == 0 {
		return 0
	}
	room := int(uint64(h.r.Events) - (h.eventTail - h.eventsRead()))
	return max(min(h.overflow.n, room), 0)
}

// push puts an event into the ring, or behind those that wait for room there.
func (h *Host) push(v *Event, id uint32) {
	if h.dead {
		return
	}
	o := &h.overflow
	if o.n == 0 {
		if h.eventTail != h.eventPub && h.lastID == id && join(&h.last, v) {
			h.write(h.eventTail-1, id, int(v.Count))
			return
		}
		if h.eventRoom() > 0 {
			h.put(v, id)
			return
		}
	}
	// Of what waits the view tells that there is some, and that there is too much to go on.
	if o.add(v, id); o.n == 1 || o.n >= MaxOutstanding {
		h.refresh()
	}
}

// join adds v to w when they are one event. They are of the same descriptor, or of none.
func join(w, v *Event) bool {
	if w.Kind == EventFreed && v.Kind == EventFreed {
		w.Tag |= v.Tag
		return true
	}
	if w.Kind != EventOutcome || v.Kind != EventOutcome || w.Outcome != v.Outcome || w.Why != v.Why || w.Tag+uint64(w.Count) != v.Tag {
		return false
	}
	w.Count += v.Count
	w.Flags |= v.Flags
	return true
}

// put appends an event to the ring.
func (h *Host) put(v *Event, id uint32) {
	h.last, h.lastID = *v, id
	h.eventTail++
	h.write(h.eventTail-1, id, int(v.Count))
}

// write writes h.last into entry n; count datagrams of id are new in it.
func (h *Host) write(n uint64, id uint32, count int) {
	h.last.put(h.r.eventEntry(n))
	if id == none {
		return
	}
	i := &h.sends.info[id]
	i.put += uint16(count)
	h.finished += uint64(count)
	if !i.marked {
		i.marked = true
		h.touched = append(roomFor(h.touched, int(h.entries)), id)
	}
	if h.led != nil {
		h.led.progress(id, int(i.shown), int(i.put))
	}
	if crash.Armed {
		crash.Point("ring.outcome.event")
	}
}

// add queues an event behind the others, or in one of them.
func (o *overflow) add(v *Event, id uint32) {
	if o.n == 0 {
		o.q, o.first, o.base, o.freed = o.q[:0], 0, 0, -1
		clear(o.dsts)
	} else if o.first > 64 && o.first > len(o.q)/2 || len(o.q) == o.most && o.first >= len(o.q)/3 {
		// Places are counted from the first event ever queued (base), so that dsts and freed
		// stay right when the list moves down.
		o.base += o.first
		o.q = o.q[:copy(o.q, o.q[o.first:])]
		o.first = 0
	}
	switch v.Kind {
	case EventOutcome:
		// Outcomes that follow each other for one descriptor become one event: what waits is
		// then bounded by the descriptors under way.
		if k := len(o.q) - 1; k >= o.first && o.q[k].id == id && join(&o.q[k].v, v) {
			return
		}
	case EventFreed:
		// One event is enough for all groups of ports that became clear.
		if k := o.freed - o.base; k >= o.first {
			o.q[k].v.Tag |= v.Tag
			return
		}
		o.freed = o.base + len(o.q)
	case EventCongestion:
		// Only the last state of a destination counts.
		if k, ok := o.dsts[v.Dst]; ok && k-o.base >= o.first {
			o.q[k-o.base].v.Flags = v.Flags
			return
		}
		if len(o.dsts) >= maxQueuedChanges {
			maps.DeleteFunc(o.dsts, func(_ netip.AddrPort, k int) bool { return k-o.base < o.first }) // they are in the ring
		}
		if len(o.dsts) >= maxQueuedChanges {
			// Too many to keep: every group may have changed, look again.
			o.add(&Event{Kind: EventFreed, Tag: ^uint64(0)}, none)
			return
		}
		if o.dsts == nil {
			o.dsts = map[netip.AddrPort]int{}
		}
		o.dsts[v.Dst] = o.base + len(o.q)
	}
	o.q = append(roomFor(o.q, o.most), queued{*v, id})
	o.n++
}

// publishEvents moves waiting events into the ring and shows them.
func (h *Host) publishEvents() {
	for o := &h.overflow; o.n > 0 && h.eventRoom() > 0; {
		e := &o.q[o.first]
		o.first++
		o.n--
		h.put(&e.v, e.id)
		if o.n == 0 && cap(o.q) > 1024 {
			o.q, o.first = nil, 0 // n is 0: add begins anew
		}
	}
	if h.eventTail == h.eventPub {
		return
	}
	// The ledger before the region: a daemon that dies between the two stores finds in the
	// ledger that the events were published, and Recover puts the tail into the region
	// (docs/shm.md, "Ledger").
	if h.led != nil {
		h.led.publish(h.eventTail, h.finished)
	}
	h.eventPub = h.eventTail
	h.r.EventTail().Store(h.eventPub)
	// From this store on the client may take the events and post again.
	h.news |= ClientWaitsEvent
	if crash.Armed {
		crash.Point("ring.outcome.tail")
	}
	for _, id := range h.touched {
		i := &h.sends.info[id]
		i.marked = false
		i.shown = i.put
		// Entries are freed behind the tail: before it a new descriptor with this id could be
		// taken for the one whose event was not published.
		last := i.shown == i.count
		if h.led != nil {
			h.led.finishEntry(id, int(i.shown), last)
		}
		if last {
			h.sends.free(id)
			if h.growth == growthFailed {
				h.growth = growthNone
			}
		}
	}
	h.touched = h.touched[:0]
	h.refresh()
}
