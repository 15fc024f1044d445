package shm

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Host is the daemon's end of a region. It has no lock and no goroutine: the owner's lock
// is held by the caller of every method, except those that the reactor's thread may call
// without (host_view.go), which say so. Next, Taken, Releases and Leave are that thread's
// too, with the lock.
//
// It keeps its own heads, tails, slots and descriptors in private memory, writes them out
// and never reads them back. The client's values are read once, checked, then used; a value
// that no client writes that follows docs/shm.md ends the socket (EBADMSG, from Next or
// Releases).
//
// A step of the owner is: Next and Taken, Ended, Place and so on, then Publish (after
// Ledger.PublishBoth when datagrams of a path were placed), then Ring the client's doorbell
// if Publish says so, with the lock released.
type Host struct {
	r    *Region
	led  *LedgerRegion // nil: none
	err  error         // why this end is finished
	dead bool          // Leave was called: the region is not touched any more

	news uint32 // bits of ClientWaits*, stored since Publish looked

	// Words of the region that are looked at for each datagram, where they are.
	sendTailW, sendHeadW, eventHeadW, releaseTailW, nudgesW *atomic.Uint64

	viewSide
	sendSide
	eventSide
	recvSide
	pageSide
}

// NewHost makes the daemon's end of a new region. led may be nil.
func NewHost(r *Region, led *LedgerRegion) *Host {
	h := &Host{r: r, led: led, sendTailW: r.SendTail(), sendHeadW: r.SendHead(), eventHeadW: r.EventHead(), releaseTailW: r.ReleaseTail(), nudgesW: r.Nudges()}
	h.manySlots = int(r.Releases) / 2
	h.initSend()
	h.initRecv()
	h.refresh()
	return h
}

// Region is the region.
func (h *Host) Region() *Region { return h.r }

// Err is why the region is not served any more; nil while it is.
func (h *Host) Err() error { return h.err }

// hostile ends the socket: the client did what the layout does not allow.
func (h *Host) hostile(format string, args ...any) error {
	if h.err == nil {
		h.err = badMsg("the client of %v (uid %d, pid %d): %s", h.r.Local, h.r.UID, h.r.PID, fmt.Sprintf(format, args...))
		h.refresh()
	}
	return h.err
}

// bug ends the socket: the daemon contradicts itself about it.
func (h *Host) bug(format string, args ...any) {
	if h.err == nil {
		h.err = &Error{unix.EIO, fmt.Sprintf("accounts of %v: %s", h.r.Local, fmt.Sprintf(format, args...))}
		h.refresh()
	}
}

// Publish makes events and received datagrams visible and says whether the client sleeps and waits
// for any of it, a changed flow state or room in the send ring: then its doorbell must be written.
// Ask Due after it. Datagrams of a path have to be published by Ledger.PublishBoth before; Publish
// alone does not record that they came.
func (h *Host) Publish() (ring bool) {
	if h.dead {
		return false
	}
	h.publishEvents()
	h.publishRecv()
	h.tellWant() // behind the placed datagrams: a client that sees this word sees them, too
	if h.news == 0 {
		return false
	}
	// The news was stored with full barriers.
	w := h.r.ClientSleeps()
	news := h.news
	h.news = 0
	return w.Load()&news != 0 && w.Swap(0) != 0
}

// SetFlow tells the client the state of flow i in its generation gen (FlowClear
// and so on; errno for FlowRefused).
func (h *Host) SetFlow(i, gen uint32, state, errno uint16) {
	if h.dead || i >= h.r.Flows {
		return
	}
	h.r.FlowState(i).Store(uint64(MakeFlowState(gen, state, errno)))
	h.news |= ClientWaitsFlow
}

// FlowEntry reads entry i of the flow table, once. ok is false when there is no
// such entry or it holds no address.
func (h *Host) FlowEntry(i uint32) (dst netip.AddrPort, gen uint32, ok bool) {
	if h.dead || i >= h.r.Flows {
		return dst, 0, false
	}
	var f FlowEntry
	ok = f.get(h.r.flow(i))
	return f.Dst, f.Gen, ok
}

// CloseWord tells the client that its socket is closed, and why: the first reason
// stays. Ring its doorbell, whatever Publish says.
func (h *Host) CloseWord(errno unix.Errno) {
	if !h.dead {
		h.r.Closed().CompareAndSwap(0, uint32(errno))
	}
}

// Leave is for a client that is gone: this end no longer reads or writes the region. The
// bodies of descriptors under way still are, by others, and so are their cells in the
// ledger. It makes no system call; Region.Evacuate then may take the memory away from the
// client, and Close comes when nothing is under way any more.
func (h *Host) Leave() {
	if !h.dead {
		h.dead = true
		h.led.gone()
	}
}

// Discard forgets the descriptors without a last outcome, for a socket that is closed: no
// client is told any more, and nothing reads their bodies or writes their cells.
func (h *Host) Discard() { h.sends.n = 0 }

// Close unmaps the region and gives its place in the ledger free. Every descriptor must
// have its last outcome, every reserved slot be placed or given back. It makes system calls
// that may last, so it is for a goroutine that no other waits for, without the owner's
// lock: no other method may be called any more.
func (h *Host) Close() error {
	if n := h.Outstanding(); n > 0 {
		return &Error{unix.EBUSY, fmt.Sprintf("the region of %v still has %d descriptors on their way", h.r.Local, n)}
	}
	if !h.dead { // a reactor may still ask, of one that it has left
		h.dead = true
	}
	h.led.Free()
	h.led = nil
	h.arena, h.slots, h.ring = nil, nil, nil // its owner may have it for as long as its client keeps the region
	return h.r.Close()
}
