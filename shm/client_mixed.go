package shm

import "encoding/binary"

// Mixed trains: datagrams of any length behind each other in one descriptor. Their lengths
// stand before the payloads, the first next to them, so that both can grow while the daemon
// has not come. A descriptor whose datagrams have one length so far becomes such a train by
// the exchange that appends the first of another length, which changes the kind as well; so a
// flow whose datagrams all have one length never pays for a table but with memory, and with
// that only where lengths have differed lately (mixes).

// mixing is datagrams that are put behind the last descriptor and not announced yet.
type mixing struct {
	count, bytes int
}

// mixes is what this end has seen of lengths that differ.
type mixes struct {
	left         int // blocks that still get a table
	bytes, count int // of descriptors lately, the last one most
}

// mixesLast is for how many blocks a table is kept after the last use of one.
const mixesLast = 16

// table is how many bytes of a table to keep before a block of n bytes.
func (m *mixes) table(n int) int {
	if m.left == 0 {
		return 0
	}
	// A quarter more than there would be of the usual length: a block that is full for want of
	// a length is memory lost.
	most := n/max(1, m.bytes/max(1, m.count)) + 1
	return min(LengthBytes*(most+most/4+UnitBytes/LengthBytes), MaxTrainBytes/4)
}

// closed takes note of a descriptor that nothing is appended to any more.
func (m *mixes) closed(o *openDesc) {
	m.bytes, m.count = m.bytes/2+o.is.Bytes(), m.count/2+o.is.Count()
	switch {
	case o.is.Kind() == KindMixed:
		m.left = mixesLast
	case len(o.table) > 0:
		m.left = max(m.left-1, 0)
	}
}

// LengthBytes is what a table has for each datagram.
const LengthBytes = 4

func putLength(table []byte, i, n int) {
	binary.BigEndian.PutUint32(table[len(table)-LengthBytes*(i+1):], uint32(n))
}

// SetLength has datagram i of a slot that is posted with KindMixed be of n bytes.
func (sl *Slot) SetLength(i, n int) { putLength(sl.table, i, n) }

// TakesMixed reports whether the daemon knows KindMixed.
func (s *Sender) TakesMixed() bool { return s.r.Takes&TakesMixed != 0 }

// Mix begins to put datagrams of any length, the first of n bytes, behind those of the
// descriptor posted last. It reports false if they cannot be: they are to another flow, have not
// the next tags, there is no room, or the daemon has claimed it or does not know of such. The
// next calls have to be Add, at least once, and Added.
func (s *Sender) Mix(f *Flow, n int, tag uint64) bool {
	o := &s.last
	if o.word == nil || o.flow != f || o.tag+1 != tag || !s.TakesMixed() {
		return false
	}
	if Word(o.word.Load()).Claimed() {
		s.claimed()
		return false
	}
	o.more = mixing{}
	count := o.is.Count()
	if !s.fits(n) {
		if s.mixes.left == 0 {
			s.mixes.left = mixesLast
		}
		if n <= MaxTrainBytes/2 {
			s.wider()
		}
		s.closeLast()
		return false
	}
	if o.is.Kind() == KindEach {
		for i := range count {
			putLength(o.table, i, o.each)
		}
	}
	return true
}

// fits reports whether one more datagram of n bytes can be put there.
func (s *Sender) fits(n int) bool {
	o := &s.last
	count, table := o.is.Count()+o.more.count, LengthBytes*(o.is.Count()+o.more.count+1)
	return table <= len(o.table) && o.more.bytes+n <= len(o.at) && count < MaxTrain && s.count+o.more.count < MaxOutstandingDatagrams &&
		table+o.is.Bytes()+o.more.bytes+n <= MaxTrainBytes
}

// Add puts a datagram there. It reports false if there is no room, which there is for the first.
func (s *Sender) Add(p []byte) bool {
	o := &s.last
	if !s.fits(len(p)) {
		return false
	}
	putLength(o.table, o.is.Count()+o.more.count, len(p))
	copy(o.at[o.more.bytes:], p)
	o.more.count++
	o.more.bytes += len(p)
	return true
}

// Added announces what was put there and returns how many datagrams that are: 0 if the daemon
// has claimed the descriptor, so that they are not part of it.
func (s *Sender) Added() int {
	o := &s.last
	n, bytes := o.more.count, o.more.bytes
	// With the same exchange a descriptor of one length gets its table.
	if !s.announce(MakeWord(KindMixed, o.is.Bytes()+bytes, o.is.Count()+n), n, bytes) {
		return 0
	}
	o.each, s.slots[o.cookie].each = -1, -1
	return n
}
