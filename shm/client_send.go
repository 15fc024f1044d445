package shm

import (
	"sync/atomic"

	"github.com/rdsd/rdsd/rdserr"
)

// Sender is the sending half: see client.go.
//
// A slot is grabbed (memory in the arena, a cookie, a place in the send ring),
// filled, and posted or dropped. From Post on it is the daemon's until the event
// with EventLast for its cookie, which NextEvent takes into account.
type Sender struct {
	bell
	r     *Region
	arena *Arena
	tail  uint64 // descriptors posted
	head  uint64 // the daemon's, as last read
	held  uint64 // slots grabbed and not posted: each has its place in the ring

	sndBuf int
	spent  int // payload bytes of slots without outcome

	slots []slotAccount // by cookie
	free  []uint32      // cookies
	out   int           // slots grabbed, without last event
	count int           // datagrams in them

	touched uint64 // of the send arena: everything below it has been

	last  openDesc
	block int // bytes of the next block that datagrams may gather in
	mixes mixes

	flows flowTable

	evNext uint64        // events taken
	evTail uint64        // the daemon's, as last read
	evHead atomic.Uint64 // evNext as published; read by waiting threads
}

// slotAccount is this end's account of a slot that is out.
type slotAccount struct {
	flow   *Flow
	off    uint64
	bytes  int // payload bytes that count against SndBuf
	count  int // datagrams
	each   int // bytes of each datagram, -1: different ones
	posted bool
}

// openDesc is the descriptor posted last, while datagrams may be appended to it.
type openDesc struct {
	word   *atomic.Uint64 // nil: none
	is     Word
	cookie uint32
	flow   *Flow
	each   int    // bytes of each datagram, -1: different ones
	at     []byte // the rest of its block
	table  []byte // before its payloads, for lengths; their end is the beginning
	tag    uint64 // of its last datagram
	more   mixing
}

// NewSender begins with a region as the daemon made it. daemonBell is the
// eventfd that wakes the daemon; it stays the caller's.
func NewSender(r *Region, daemonBell int) *Sender {
	return &Sender{bell: bell{r, daemonBell}, r: r, arena: NewArena(r.SendArenaBytes), sndBuf: int(min(r.SndBuf, 1<<40))}
}

// Room is how many payload bytes may still be sent. The last datagram may pass
// it: while it is above 0 one more may go.
func (s *Sender) Room() int { return s.sndBuf - s.spent }

// Most is how many datagrams may be in the next descriptor.
func (s *Sender) Most() int { return min(MaxTrain, MaxOutstandingDatagrams-s.count) }

// Out is how many slots are grabbed or on their way.
func (s *Sender) Out() int { return s.out }

// Head returns the daemon's head as it was last read: after ErrRing a caller waits until it
// changes.
func (s *Sender) Head() uint64 { return s.head }

func (s *Sender) ringRoom() bool {
	n := uint64(s.r.Sends)
	if s.tail+s.held-s.head < n {
		return true
	}
	head := s.r.SendHead().Load()
	if s.tail-head > s.tail-s.head { // it went back, or past the tail
		return false
	}
	s.head = head
	return s.tail+s.held-s.head < n
}

// put fills the next descriptor and shows it.
func (s *Sender) put(w Word, d *SendDesc) {
	s.r.PutSend(s.tail, w, d)
	s.tail++
	s.r.SendTail().Store(s.tail)
	s.wake(DaemonWaitsSend)
}

// Nudge tells the daemon that a pair has news for a reader that sleeps (Pair.Awaken).
func (s *Sender) Nudge() {
	s.r.Nudges().Add(1)
	s.wake(DaemonWaitsSend)
}

// The errors of a send that lacks room, all rdserr.ErrWouldBlock: ErrRing lasts until
// SendHead moves, the others until events free something.
var (
	ErrRing  = rdserr.With(rdserr.ErrWouldBlock, "the send ring is full")
	ErrArena = rdserr.With(rdserr.ErrWouldBlock, "the send arena has no room")
	ErrMany  = rdserr.With(rdserr.ErrWouldBlock, "too many datagrams under way")
	ErrFlows = rdserr.With(rdserr.ErrWouldBlock, "too many destinations with datagrams under way")
)

// Slot is a place for a body in the send arena.
type Slot struct {
	Body   []byte
	table  []byte // before Body
	cookie uint32
}

// Want is how many bytes a slot is to have.
type Want struct {
	Body  int
	Table int // for lengths of datagrams, LengthBytes each (Slot.SetLength)
}

// Grab takes a slot for a body of n bytes, or says ErrRing, ErrArena or ErrMany. The
// send buffer and the number of datagrams are for the caller to look at, with
// Room and Most.
func (s *Sender) Grab(f *Flow, n int) (Slot, error) { return s.GrabFor(f, Want{Body: n}) }

// GrabFor is Grab of a slot that may have a table.
func (s *Sender) GrabFor(f *Flow, want Want) (Slot, error) {
	n, table := want.Body, (want.Table+UnitBytes-1)&^(UnitBytes-1)
	switch {
	case s.out >= MaxOutstanding || s.count >= MaxOutstandingDatagrams:
		return Slot{}, ErrMany
	case !s.ringRoom():
		return Slot{}, ErrRing
	}
	off, ok := s.arena.Alloc(table + n)
	if !ok {
		return Slot{}, ErrArena
	}
	s.touch(off + uint64(BlockBytes(table+n)))
	c := s.cookie()
	s.slots[c] = slotAccount{flow: f, off: off}
	f.out++
	s.out++
	s.held++
	mem := s.r.sendArena[off:][: table+n : table+n]
	return Slot{Body: mem[table:], table: mem[:table:table], cookie: c}, nil
}

// touch makes the arena up to end memory of this process: the daemon takes no body that its
// client has not touched, and a slot may be posted with parts that were never written.
func (s *Sender) touch(end uint64) {
	for ; s.touched < end; s.touched += touchBytes {
		s.r.word64(s.r.SendArenaOff + s.touched).Load()
	}
}

// Count has n bytes of a slot that is not posted yet count against the send
// buffer.
func (s *Sender) Count(sl *Slot, n int) {
	a := &s.slots[sl.cookie]
	s.spent += n - a.bytes
	a.bytes = n
}

func (s *Sender) cookie() uint32 {
	if n := len(s.free); n > 0 {
		c := s.free[n-1]
		s.free = s.free[:n-1]
		return c
	}
	s.slots = append(s.slots, slotAccount{})
	return uint32(len(s.slots) - 1)
}

// Drop gives a slot back that was not posted.
func (s *Sender) Drop(sl *Slot) {
	s.held--
	s.freeSlot(sl.cookie)
}

// Post sends count datagrams that lie in the slot: kind is KindEach, KindTable or
// KindMixed, bytes the length of the body, payload that of the datagrams. tag is
// the first one's.
func (s *Sender) Post(sl *Slot, kind, bytes, count, payload int, tag uint64, want bool) {
	a := &s.slots[sl.cookie]
	s.spent += payload - a.bytes
	s.count += count
	a.bytes, a.count, a.each, a.posted = payload, count, -1, true
	w := MakeWord(kind, bytes, count)
	d := SendDesc{Tag: tag, Slot: a.off + uint64(len(sl.table)), Flow: a.flow.index, Gen: a.flow.gen, Cookie: sl.cookie}
	if want {
		d.Flags = FlagWant
	}
	s.closeLast()
	if kind == KindEach {
		a.each = bytes / count
	}
	if kind != KindTable && bytes < MaxTrainBytes {
		block := uint64(BlockBytes(len(sl.table)+cap(sl.Body)) - len(sl.table))
		s.last = openDesc{
			word: s.r.SendWord(s.tail), is: w, cookie: sl.cookie, flow: a.flow, each: a.each, table: sl.table,
			at: s.r.sendArena[d.Slot+uint64(bytes) : d.Slot+min(block, MaxTrainBytes)], tag: tag + uint64(count) - 1,
		}
	}
	s.held--
	s.put(w, &d)
}

// Append adds a datagram to the descriptor posted last, if Behind or Mix has room for it and
// the daemon has not claimed it yet.
func (s *Sender) Append(f *Flow, p []byte, tag uint64) bool {
	if s.last.each != len(p) {
		return s.Mix(f, len(p), tag) && s.Add(p) && s.Added() == 1
	}
	body, n := s.Behind(f, len(p), 1, tag)
	if n == 0 {
		return false
	}
	copy(body, p)
	return s.Appended(1)
}

// Behind returns the memory behind the datagrams of the descriptor posted last, and how many
// of n datagrams of each bytes may be put there: none unless they are to the same flow, of the
// same length and have the next tags. They are not announced before Appended, which has to be
// the next call.
func (s *Sender) Behind(f *Flow, each, n int, tag uint64) (body []byte, fit int) {
	o := &s.last
	n = min(n, MaxTrain-o.is.Count(), MaxOutstandingDatagrams-s.count)
	if o.word == nil || o.flow != f || o.each != each || o.tag+1 != tag || n <= 0 {
		return nil, 0
	}
	if each > 0 && n*each > len(o.at) {
		n = len(o.at) / each
		if !Word(o.word.Load()).Claimed() {
			s.wider()
		}
		if n == 0 {
			s.closeLast()
			return nil, 0
		}
	}
	return o.at[: n*each : n*each], n
}

// Appended announces n datagrams that were put where Behind said. It reports false if the
// daemon has claimed the descriptor: then they are not part of it.
func (s *Sender) Appended(n int) bool {
	bytes := n * s.last.each
	return s.announce(s.last.is.Grow(n, bytes), n, bytes)
}

// announce exchanges the word of the descriptor posted last for w, by which it has n datagrams of so
// many bytes more; false: the daemon has claimed it, and they are not part of it.
func (s *Sender) announce(w Word, n, bytes int) bool {
	// Bodies and lengths first, then the word that announces them: the daemon reads the descriptor
	// when it claims the word, and whichever of the two exchanges comes first decides whether the
	// datagrams are part of it.
	o := &s.last
	if !o.word.CompareAndSwap(uint64(o.is), uint64(w)) {
		s.claimed()
		return false
	}
	o.is, o.at = w, o.at[bytes:]
	a := &s.slots[o.cookie]
	a.bytes += bytes
	a.count += n
	s.count += n
	s.spent += bytes
	o.tag += uint64(n)
	return true
}

// wider notes that a block was full before the daemon came: there is a use for larger ones.
func (s *Sender) wider() {
	s.block = min(max(4*s.last.is.Bytes(), 4*UnitBytes), MaxTrainBytes)
}

// claimed ends appending to a descriptor that the daemon has claimed meanwhile: it keeps up,
// so smaller blocks will do.
func (s *Sender) claimed() {
	if s.last.is.Bytes() < s.block/4 {
		s.block /= 2
	}
	s.closeLast()
}

// closeLast ends appending to the descriptor posted last and gives the rest of
// its block back.
func (s *Sender) closeLast() {
	o := &s.last
	if o.word == nil {
		return
	}
	o.word = nil
	s.mixes.closed(o)
	if len(o.at) >= UnitBytes {
		s.arena.Shrink(s.slots[o.cookie].off, len(o.table)+o.is.Bytes())
	}
}

// Block is how large a slot to grab for a datagram of n bytes that others may be
// appended to.
func (s *Sender) Block(n int) int {
	if n > MaxTrainBytes/2 {
		return n
	}
	return max(n, s.block)
}

// Plan is Block for a slot that has a table if others of any length are likely to be.
func (s *Sender) Plan(least Want) Want {
	w := Want{Body: s.Block(least.Body), Table: least.Table}
	if w.Body <= MaxTrainBytes && least.Body <= MaxTrainBytes/2 && s.TakesMixed() {
		w.Table = max(w.Table, s.mixes.table(w.Body))
	}
	return w
}

// NextEvent takes an event and updates the accounts of the slot it is about.
// ok is false when there is none; the error is EBADMSG.
func (s *Sender) NextEvent(v *Event) (ok bool, err error) {
	if s.evNext == s.evTail {
		// The tail is the daemon's memory: it is loaded only when the events known so far are
		// taken.
		s.evTail = s.r.EventTail().Load()
		if s.evTail == s.evNext {
			return false, nil
		}
		if s.evTail-s.evNext > uint64(s.r.Events) {
			return false, badMsg("event tail %d with head %d in a ring of %d", s.evTail, s.evNext, s.r.Events)
		}
	}
	s.r.GetEvent(s.evNext, v)
	s.evNext++
	if v.Kind == 0 {
		return false, badMsg("event %d is of no kind", s.evNext-1)
	}
	if v.Kind != EventOutcome && v.Kind != EventRefused || v.Cookie == noCookie {
		return true, nil
	}
	// The cookie picks a slot of ours, so it is checked before it is used.
	if int(v.Cookie) >= len(s.slots) || !s.slots[v.Cookie].posted {
		return false, badMsg("event %d is about cookie %d, which is not out", s.evNext-1, v.Cookie)
	}
	if v.Flags&EventLast != 0 {
		s.freeSlot(v.Cookie)
		return true, nil
	}
	a := &s.slots[v.Cookie]
	// A train may have its outcomes in several events; the slot itself is free with the
	// last.
	n := min(int(v.Count), a.count)
	a.count -= n
	s.count -= n
	if a.each > 0 {
		n = min(n*a.each, a.bytes)
		a.bytes -= n
		s.spent -= n
	}
	return true, nil
}

// freeSlot ends the accounts of a slot with its last outcome.
func (s *Sender) freeSlot(cookie uint32) {
	a := &s.slots[cookie]
	if s.last.word != nil && s.last.cookie == cookie {
		s.last.word = nil
	}
	s.arena.Free(a.off)
	s.spent -= a.bytes
	s.count -= a.count
	s.out--
	f := a.flow
	*a = slotAccount{}
	s.free = append(s.free, cookie)
	f.out--
	if f.away {
		s.flowIdle(f)
	}
}

// EventsTaken shows the daemon how many events were taken and wakes it if it lacks that
// room.
func (s *Sender) EventsTaken() {
	if s.evNext == s.evHead.Load() {
		return
	}
	s.evHead.Store(s.evNext)
	s.r.EventHead().Store(s.evNext)
	s.wake(DaemonWaitsRoom)
}

// EventsWait reports whether events are there. Any goroutine may ask, as long
// as the region is mapped.
func (s *Sender) EventsWait() bool { return s.r.EventTail().Load() != s.evHead.Load() }
