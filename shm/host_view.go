package shm

import "sync/atomic"

// The reactor asks its questions of every turn, and before it sleeps, without the owner's
// lock: HasPosts, HasReleases, HasRoom, Sleep and Wake read the region, fields that the
// reactor's thread alone changes (sendHead, claimed, relHead, dead), and view, the state
// that the holders of the lock publish.

// Bits of view.
const (
	viewErr      = 1 << iota // the region is not served any more
	viewTake                 // a post may be taken
	viewWant                 // the owner waits for releases
	viewRing                 // the receive ring was full
	viewArena                // no slot was to be had
	viewMany                 // many slots are out
	viewOverflow             // events wait for room
	viewUnsure               // nothing is taken from the client until Sure

	viewRoom = viewWant | viewRing | viewArena | viewMany | viewOverflow
)

type viewSide struct {
	view      atomic.Uint32
	stored    uint32 // view as it was stored; with the lock
	due       bool   // something turned on since Due was asked; with the lock
	want      bool   // WantRoom; with the lock
	wanted    uint64 // the value the client was told, as RoomWanted; with the lock
	noRoomFor uint8  // viewRing, viewArena; with the lock
	// manySlots is of how many slots out the releases are to be taken even by a daemon that has
	// room: a client with a full release ring takes nothing more from the receive ring.
	manySlots int
	asleep    bool   // the last word was Sleep; the reactor's
	nudged    uint64 // nudges seen; the reactor's
}

// refresh brings view up to date. The lock is held. If a bit is set while the reactor
// sleeps, refresh also widens what the client must ring for. Work that the client left
// before that is found by Due.
func (h *Host) refresh() {
	v := uint32(h.noRoomFor)
	if h.err != nil {
		v |= viewErr
	}
	// Another descriptor may be taken: at most MaxOutstanding descriptors and
	// MaxOutstandingDatagrams are under way, and no more events than that wait for room. A
	// client that counts what it has under way never has to wait for this limit, even if it
	// reads no events.
	if t := &h.sends; h.asking == askNothing && h.overflow.n < MaxOutstanding && t.datagrams < MaxOutstandingDatagrams && (t.freed != none || len(t.info) < int(h.entries)) {
		v |= viewTake
	}
	if h.want {
		v |= viewWant
	}
	if h.nSlots > h.manySlots {
		v |= viewMany
	}
	if h.overflow.n > 0 {
		v |= viewOverflow
	}
	if h.asking != askNothing {
		v |= viewUnsure
	}
	// Only a change is stored: the reactor polls this word, and each store would take its
	// cache line away.
	if v == h.stored {
		return
	}
	if v&^h.stored != 0 {
		// A bit that turns on while the reactor sleeps was not asked for when it went to
		// sleep: Due makes it look.
		h.due = true
	}
	room := v&viewRoom != 0 && h.stored&viewRoom == 0
	h.stored = v
	h.view.Store(v)
	// The reactor's sleep word says what the client must ring for. If it sleeps for posts
	// alone, the client would release without a ring; the exchange fails harmlessly when it
	// is awake.
	if room && !h.dead {
		h.r.DaemonSleeps().CompareAndSwap(DaemonWaitsSend, DaemonWaitsSend|DaemonWaitsRoom)
	}
}

// Due reports, after Publish and with the lock, that a sleeping reactor must look at this
// region although its client does not ring: the condition that kept posts or room out of
// sight has just ended, or room is asked for and there is some.
func (h *Host) Due() bool {
	if !h.due {
		return false
	}
	h.due = false
	return h.HasPosts() || h.HasRoom()
}

// Look is what a reactor asks in each turn: HasPosts, HasRoom and HasNudges, which say what the
// answers mean, with the words that all of them read read once. On the reactor's thread.
func (h *Host) Look() (posts, room, nudges bool) {
	if h.dead {
		return false, false, false
	}
	v := h.view.Load()
	posts = v&viewErr != 0 || v&viewTake != 0 && !h.claimed && h.sendTailW.Load() != h.sendHead
	room = v&viewUnsure == 0 && h.releaseTailW.Load() != h.relHead || v&viewRing != 0 && h.r.RecvHead().Load() != h.recvHead.Load() ||
		v&viewOverflow != 0 && h.eventHeadW.Load() != h.eventHead.Load()
	return posts, room, h.nudgesW.Load() != h.nudged
}

// HasPosts reports whether Next would bring a descriptor that it has not
// shown before, or an error. On the reactor's thread or with the lock.
func (h *Host) HasPosts() bool {
	v := h.view.Load()
	if h.dead {
		return false
	}
	if v&viewErr != 0 {
		return true
	}
	return v&viewTake != 0 && !h.claimed && h.sendTailW.Load() != h.sendHead
}

// HasNudges reports whether the client has asked, since the last TakeNudges, for readers of
// its pairs to be rung awake. On the reactor's thread.
func (h *Host) HasNudges() bool { return !h.dead && h.nudgesW.Load() != h.nudged }

// TakeNudges comes before the pairs are looked at. On the reactor's thread.
func (h *Host) TakeNudges() {
	if !h.dead {
		h.nudged = h.nudgesW.Load()
	}
}

// HasReleases reports whether Releases would bring something. On the reactor's
// thread or with the lock.
func (h *Host) HasReleases() bool {
	return !h.dead && h.view.Load()&viewUnsure == 0 && h.releaseTailW.Load() != h.relHead
}

// HasRoom reports whether the client released slots, took descriptors from a
// receive ring that was full, or read events that others wait behind. The daemon
// then calls Releases and Publish, and lets those go on that Place or
// Reserve had no room for. On the reactor's thread or with the lock.
func (h *Host) HasRoom() bool {
	if h.dead {
		return false
	}
	v := h.view.Load()
	return h.HasReleases() ||
		v&viewRing != 0 && h.r.RecvHead().Load() != h.recvHead.Load() ||
		v&viewOverflow != 0 && h.eventHeadW.Load() != h.eventHead.Load()
}

// Sleep declares the daemon asleep in this region and looks once more: if there is work it
// returns false, and the daemon counts as awake. A post that Next has shown and that was
// not taken is not work: the caller that left it knows when it can go on. It is called on
// the reactor's thread.
func (h *Host) Sleep() bool {
	if h.dead {
		return true
	}
	h.asleep = true
	var bits uint32
	for {
		bits = sleepBits(h.view.Load())
		h.r.DaemonSleeps().Store(bits)
		if sleepBits(h.view.Load())&^bits == 0 { // else another thread found no room just now
			break
		}
	}
	if h.HasPosts() || h.HasNudges() || bits&DaemonWaitsRoom != 0 && h.HasRoom() {
		h.Wake()
		return false
	}
	return true
}

func sleepBits(view uint32) uint32 {
	if view&viewRoom != 0 {
		return DaemonWaitsSend | DaemonWaitsRoom
	}
	return DaemonWaitsSend
}

// Wake declares the daemon awake. On the reactor's thread.
func (h *Host) Wake() {
	h.asleep = false
	if !h.dead {
		h.r.DaemonSleeps().Store(0)
	}
}

// Asleep reports whether Sleep was the last word. On the reactor's thread.
func (h *Host) Asleep() bool { return h.asleep }

// WantRoom says that the owner wants to be woken for releases, because the
// socket is congested, or not any more. Ask Due afterwards.
func (h *Host) WantRoom(on bool) {
	h.want = on
	h.refresh()
}

// tellWant tells the client whether the daemon lacks room although it has taken all
// releases so far. If the receive ring is empty then, only a reader that has borrowed slots
// can help.
func (h *Host) tellWant() {
	v := uint64(0)
	if h.want || h.noRoomFor&viewArena != 0 {
		v = 1 + h.relHead
	}
	if v == h.wanted {
		return
	}
	h.wanted = v
	h.r.RoomWanted().Store(v)
	if v != 0 {
		h.news |= ClientWaitsRecv
	}
}

// noteNoRoom notes that a datagram found no room. The caller takes Releases then, or asks
// Due.
func (h *Host) noteNoRoom(what uint8) {
	h.noRoomFor |= what
	h.refresh()
}
