package shm

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// The client's end of a region: the rules of docs/shm.md for a client, without any waiting.
// A Sender has the send ring, the events, the flows and the send arena, a Receiver the
// receive ring and the release ring. Neither has a lock: each is for one goroutine at a
// time, and the two are independent of each other.
//
// The daemon is trusted, unlike a client, but the client's own process may scribble over a
// region. So the daemon's values are checked as far as a wrong one would lead outside the
// mapping or the tables kept here; that is EBADMSG, and the region is to be given up.

// bell rings the daemon if it sleeps and waits for the store that the caller has just made.
// That store was sequentially consistent, as all of sync/atomic are.
type bell struct {
	r  *Region
	fd int
}

func (b *bell) wake(what uint32) {
	w := b.r.DaemonSleeps()
	if w.Load()&what != 0 && w.Swap(0) != 0 {
		Ring(b.fd)
	}
}

// The release ring needs an entry for every slot that is out. ErrBorrowed says that all of them are
// needed, or that the slots that are out take the room of those to come (Starved). ErrReleases says
// that the daemon, which was woken, has to read some first.
var (
	ErrBorrowed = rdserr.With(rdserr.ErrWouldBlock, "too much is borrowed for more to come: release some")
	ErrReleases = rdserr.With(rdserr.ErrWouldBlock, "the release ring is full")
)

// Receiver is the receiving half.
type Receiver struct {
	bell
	r     *Region
	head  uint64 // descriptors taken
	shown uint64 // head as published
	tail  uint64 // the daemon's, as last read

	out     uint64 // slots taken and not released
	relTail uint64 // releases published
	relHead uint64 // the daemon's, as last read

	single uint32 // the value ClientSingle was set to
	dead   bool   // the daemon is gone and reads no releases
}

// NewReceiver begins with a region as the daemon made it. daemonBell is the
// eventfd that wakes the daemon; it stays the caller's.
func NewReceiver(r *Region, daemonBell int) *Receiver {
	return &Receiver{bell: bell{r, daemonBell}, r: r}
}

// Peek reads the next descriptor and leaves it there. ok is false when there is
// none; the error is EBADMSG, ErrBorrowed or ErrReleases.
func (x *Receiver) Peek(d *RecvDesc) (ok bool, err error) {
	if x.head == x.tail {
		// The tail is in memory that the daemon writes: one load for many descriptors keeps
		// its cache line with the daemon.
		x.tail = x.r.RecvTail().Load()
		if x.tail == x.head {
			return false, nil
		}
		if x.tail-x.head > uint64(x.r.Receives) {
			return false, badMsg("receive tail %d with head %d in a ring of %d", x.tail, x.head, x.r.Receives)
		}
	}
	if x.out+x.relTail-x.relHead >= uint64(x.r.Releases) && !x.dead {
		// Every slot that is out will need an entry of the release ring, so no more may be
		// out than it has. The daemon's head is read only when the old one does not suffice.
		x.relHead = x.r.ReleaseHead().Load()
		n := x.relTail - x.relHead
		switch {
		case n > uint64(x.r.Releases):
			return false, badMsg("release head %d with tail %d in a ring of %d", x.relHead, x.relTail, x.r.Releases)
		case x.out >= uint64(x.r.Releases):
			return false, ErrBorrowed
		case x.out+n >= uint64(x.r.Releases):
			Ring(x.fd)
			return false, ErrReleases
		}
	}
	// The process itself may have scribbled over the region: the descriptor is copied once,
	// and must lie within the arena before its slot is used.
	x.r.GetRecv(x.head, d)
	n, bytes := d.Word.Count(), d.Word.Bytes()
	switch {
	case n == 0 || n > MaxTrain || bytes > MaxDatagram || !d.Src.IsValid(),
		d.Slot > x.r.RecvArenaBytes || uint64(bytes) > x.r.RecvArenaBytes-d.Slot:
	case d.Word.Kind() == KindEach && bytes%n == 0, d.Word.Kind() == KindTable && bytes >= 4*n:
		return true, nil
	}
	return false, badMsg("receive descriptor %d: %d datagrams of kind %d in %d bytes at %d of %d, from %v",
		x.head, n, d.Word.Kind(), bytes, d.Slot, x.r.RecvArenaBytes, d.Src)
}

// Starved reports whether no datagram can come until a slot that is out is released: the
// receive ring is empty, and the daemon, which has taken all releases, lacks room.
func (x *Receiver) Starved() bool {
	return x.out > 0 && !x.dead && RoomWanted(x.r) && x.r.RecvTail().Load() == x.head
}

// RoomWanted is the part of Starved that stands in the region; any goroutine may ask.
func RoomWanted(r *Region) bool {
	v := r.RoomWanted().Load()
	return v != 0 && v == 1+r.ReleaseTail().Load()
}

// Take ends a Peek: the slot is the caller's until Release.
func (x *Receiver) Take() {
	x.head++
	x.out++
}

// Taken shows the daemon how much was taken, wakes it if that is the room it lacks, and
// returns the head.
func (x *Receiver) Taken() uint64 {
	if x.shown != x.head {
		x.shown = x.head
		x.r.RecvHead().Store(x.head)
		x.wake(DaemonWaitsRoom)
	}
	return x.head
}

// Head is how many descriptors were taken.
func (x *Receiver) Head() uint64 { return x.head }

// Body is the memory of a descriptor that Peek found good.
func (x *Receiver) Body(d *RecvDesc) []byte {
	n := uint64(d.Word.Bytes())
	return x.r.recvArena[d.Slot : d.Slot+n : d.Slot+n]
}

// Release gives a slot back; Released shows it to the daemon.
func (x *Receiver) Release(slot uint64) {
	x.r.PutRelease(x.relTail, slot)
	x.relTail++
	x.out--
}

// Released publishes releases and wakes a daemon that lacks room.
func (x *Receiver) Released() {
	x.r.ReleaseTail().Store(x.relTail)
	x.wake(DaemonWaitsRoom)
}

// Abandon is for a region whose daemon is gone: datagrams in the receive ring can still be
// taken, and releases have no effect.
func (x *Receiver) Abandon() { x.dead = true }

// Out is how many slots are taken and not released.
func (x *Receiver) Out() int { return int(x.out) }

// Single tells the daemon whether datagrams are read one by one.
func (x *Receiver) Single(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	if v != x.single {
		x.single = v
		x.r.ClientSingle().Store(v)
	}
}

// Lengths walks the bodies of datagrams in one body. The zero value is at its end.
type Lengths struct {
	table []byte // with KindTable: the rest of the table
	each  int
	left  int
}

// Walk begins a walk over the body of a descriptor and returns where the
// payloads begin in it.
func Walk(w Word, body []byte) (Lengths, []byte) {
	n := w.Count()
	if w.Kind() == KindEach {
		return Lengths{each: len(body) / n, left: n}, body
	}
	return Lengths{table: body[: 4*n : 4*n], left: n}, body[4*n:]
}

// Clone returns the same walk without the body's memory.
func (l *Lengths) Clone() Lengths {
	c := *l
	c.table = bytes.Clone(l.table)
	return c
}

// Left is how many datagrams are still to come.
func (l *Lengths) Left() int { return l.left }

// Each is the length of all that are left, when it is one, -1 else.
func (l *Lengths) Each() int {
	if l.table != nil {
		return -1
	}
	return l.each
}

// Skip passes n datagrams of one length.
func (l *Lengths) Skip(n int) { l.left -= n }

// Peek returns the length of the next datagram, when rest bytes are left.
func (l *Lengths) Peek(rest int) int {
	if l.table == nil {
		return min(l.each, rest)
	}
	return int(min(uint32(l.table[0])<<24|uint32(l.table[1])<<16|uint32(l.table[2])<<8|uint32(l.table[3]), uint32(rest)))
}

// Next is Peek and passes it.
func (l *Lengths) Next(rest int) int {
	n := l.Peek(rest)
	l.left--
	if l.table != nil {
		l.table = l.table[4:]
	}
	return n
}

// Bad reports whether err says that the region cannot be trusted any more.
func Bad(err error) bool { return rdserr.Errno(err) == unix.EBADMSG }
