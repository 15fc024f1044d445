package shm

import (
	"sync/atomic"
	"unsafe"
)

// The data of a pair is a ring of records: a word of 8 bytes, and a body, which fills up to
// a multiple of 8 and does not pass the end of the ring. The word is that of a descriptor, of
// these kinds.
const (
	pairDatagrams = KindEach     // the body is datagrams of one length
	pairPad       = KindNothing  // the body is nothing: the ring goes on at its beginning
	pairMark      = KindOpen     // the body is a mark, for all that follows
	pairWord      = 8            // bytes of the word
	pairMarkBytes = pairWord + 8 // of the record of a mark
)

func pairRecord(body int) uint64 { return pairWord + (uint64(body)+7)&^7 }

// PairSender is the sender's end. It is for one goroutine at a time.
//
// Invariant: head <= the reader's head <= tail <= head + Bytes, head being the last that
// was read and found possible.
type PairSender struct {
	p      *Pair
	tail   uint64 // put so far
	head   uint64 // the reader's, as last read
	next   uint64 // the tail with the record under way
	marked uint64 // the mark that was put last, +1; 0: none
	mark   uint64 // likewise, with the record under way
	sent   uint64 // datagrams
	bytes  uint64
	over   bool // nothing more gets in
	full   bool // given up until there is some room again
}

// NewPairSender begins with a pair that is new.
func NewPairSender(p *Pair) *PairSender { return &PairSender{p: p} }

// Awaken is Pair.Awaken.
func (s *PairSender) Awaken() bool { return s.p.Awaken() }

// GiveUp is for a sender that found no room: Ready is false until a quarter is free, so that
// not every datagram looks for room, and few changes of the way are made.
func (s *PairSender) GiveUp() { s.full = true }

// Ready reports whether the pair may be tried.
func (s *PairSender) Ready() bool {
	if s.full && s.Free(s.p.Bytes/4) >= s.p.Bytes/4 {
		s.full = false
	}
	return !s.over && !s.full
}

// May reports whether a datagram of n bytes may go by the pair now, with so many of its flow at the
// daemon without their last event: which would be read first is not known for what is not
// placed yet, as the mark is that of the last that is.
func (s *PairSender) May(out, n int) bool { return out == 0 && n <= s.Most() && s.Ready() }

// Last is for a pair that the daemon has closed, with so many descriptors placed in the receive ring
// since: what stands behind a mark beyond them no sender has put there, and its turn would not come.
func (x *PairReceiver) Last(placed uint64) {
	if _, ok := x.Peek(placed); !ok && x.head != x.tail {
		x.spoil()
	}
}

// Over reports whether the pair was found closed.
func (s *PairSender) Over() bool { return s.over }

// Most is the largest body that a pair takes: two of them fit.
func (s *PairSender) Most() int { return int(s.p.Bytes/2) - pairWord - pairMarkBytes }

// Free returns how many bytes are free, as far as is known without a look at the reader's
// head, and looks if that is less than want.
func (s *PairSender) Free(want uint64) uint64 {
	free := s.p.Bytes - (s.tail - s.head)
	if free >= want {
		return free
	}
	// The reader's word: a value that cannot be is as if nothing had been read.
	if head := s.p.head().Load(); head-s.head <= s.tail-s.head {
		s.head = head
	}
	return s.p.Bytes - (s.tail - s.head)
}

// Begin takes room for a record with a body of n bytes, at most Most, and returns it to be
// filled; nil: there is none now, or the pair is closed. Nobody sees it before Put.
func (s *PairSender) Begin(n int) []byte {
	if s.over {
		return nil
	}
	mark := s.p.word64(offPairMark).Load() + 1
	// What stands before the record: a mark where it has changed, and padding before each of
	// the two that would pass the end.
	at := s.tail
	var pad [2]uint64
	markAt := at
	if mark != s.marked {
		pad[0] = s.padding(at, pairMarkBytes)
		markAt = at + pad[0]
		at = markAt + pairMarkBytes
	}
	pad[1] = s.padding(at, pairRecord(n))
	bodyAt := at + pad[1]
	next := bodyAt + pairRecord(n)
	if need := next - s.tail; need > s.Free(need) {
		return nil
	}
	s.pad(s.tail, pad[0])
	if mark != s.marked {
		s.store(markAt, MakeWord(pairMark, 8, 1))
		*(*uint64)(s.at(markAt + pairWord)) = mark - 1
	}
	s.pad(at, pad[1])
	s.next, s.mark = next, mark
	off := bodyAt & (s.p.Bytes - 1)
	return s.p.data[off+pairWord : off+pairWord+uint64(n) : off+pairWord+uint64(n)]
}

// padding is what has to be left out at position at so that a record of size bytes does not pass the
// end of the ring.
func (s *PairSender) padding(at, size uint64) uint64 {
	if rest := s.p.Bytes - at&(s.p.Bytes-1); rest < size {
		return rest
	}
	return 0
}

func (s *PairSender) pad(at, n uint64) {
	if n > 0 {
		s.store(at, MakeWord(pairPad, int(n-pairWord), 0))
	}
}

func (s *PairSender) at(pos uint64) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(s.p.data)), pos&(s.p.Bytes-1))
}

func (s *PairSender) store(at uint64, w Word) { *(*uint64)(s.at(at)) = uint64(w) }

// Put shows the record of the last Begin, whose body of n bytes is count datagrams of one
// length. It reports whether it got in: from then on they are where their reader can read them. If not, the
// pair is closed, and they have to go another way.
func (s *PairSender) Put(n, count int) bool {
	s.store(s.next-pairRecord(n), MakeWord(pairDatagrams, n, count))
	// The figures before the tail: whoever sees the record finds it counted.
	s.sent, s.bytes = s.sent+uint64(count), s.bytes+uint64(n)
	s.p.word64(offPairSent).Store(s.sent)
	s.p.word64(offPairSentBytes).Store(s.bytes)
	if !s.p.tail().CompareAndSwap(s.tail, s.next) {
		s.over = true
		s.sent, s.bytes = s.sent-uint64(count), s.bytes-uint64(n)
		s.p.word64(offPairSent).Store(s.sent)
		s.p.word64(offPairSentBytes).Store(s.bytes)
		return false
	}
	s.tail, s.marked = s.next, s.mark
	return true
}

// PairReceiver is the reader's end. It is for one goroutine at a time.
//
// Invariant: head <= tail <= head + Bytes, whatever stands in the words.
type PairReceiver struct {
	p      *Pair
	head   uint64
	tail   uint64 // as last read and found possible
	raw    uint64 // the word it was read from
	mark   uint64
	read   uint64 // datagrams
	bytes  uint64
	broken bool // the sender does not keep to the layout
}

// NewPairReceiver begins with a pair that is new.
func NewPairReceiver(p *Pair) *PairReceiver { return &PairReceiver{p: p} }

// PairRecord is datagrams that lie in a pair. Their content may change as long as they are
// there.
type PairRecord struct {
	Word Word
	Body []byte
}

// maxBetween is how many records may stand before one with datagrams: padding, a mark, and
// padding again.
const maxBetween = 3

// Peek finds the next datagrams, if their turn has come: so many descriptors were taken from
// the receive ring. They stay where they are until Take.
func (x *PairReceiver) Peek(taken uint64) (rec PairRecord, ok bool) {
	for between := 0; !x.broken && between <= maxBetween; between++ {
		if x.head == x.tail && !x.look() {
			return rec, false
		}
		off := x.head & (x.p.Bytes - 1)
		w := Word(atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.p.data[off]))))
		n, count := w.Bytes(), w.Count()
		size := pairRecord(n)
		// Within what is shown and within the ring: nothing else is touched.
		if size > x.tail-x.head || size > x.p.Bytes-off {
			break
		}
		switch w.Kind() {
		case pairPad:
			x.head += size
			continue
		case pairMark:
			if n != 8 {
				break
			}
			x.mark = atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.p.data[off+pairWord])))
			x.head += size
			continue
		case pairDatagrams:
			if count == 0 || count > MaxTrain || n%count != 0 || n > MaxDatagram {
				break
			}
			if x.mark > taken {
				x.look() // who waits compares with what is there now
				return rec, false
			}
			return PairRecord{MakeWord(KindEach, n, count), x.p.data[off+pairWord : off+pairWord+uint64(n) : off+pairWord+uint64(n)]}, true
		}
		break
	}
	x.spoil()
	return rec, false
}

// look reads the tail, and reports whether there is more than was known.
func (x *PairReceiver) look() bool {
	x.raw = x.p.tail().Load()
	tail := x.raw &^ pairClosed
	if tail-x.head > x.p.Bytes || tail&7 != 0 {
		x.spoil()
		return false
	}
	x.tail = tail
	return x.tail != x.head
}

// spoil gives up a pair whose sender wrote what no sender writes. What was left in it is
// lost: it was the sender's own.
func (x *PairReceiver) spoil() {
	if !x.broken {
		x.broken = true
		x.p.Shut()
		x.tail = x.head
	}
	x.raw = x.p.Tail() // whatever it is: nobody waits for it any more
}

// Take ends a Peek: the room is the sender's again, and what was peeked must not be read any
// more.
func (x *PairReceiver) Take(rec *PairRecord) {
	x.head += pairRecord(len(rec.Body))
	x.read, x.bytes = x.read+uint64(rec.Word.Count()), x.bytes+uint64(len(rec.Body))
	x.p.word64(offPairRead).Store(x.read)
	x.p.word64(offPairReadBytes).Store(x.bytes)
	x.p.head().Store(x.head)
}

// Seen is the tail as it was last looked at: Pair.Tail differs when something has happened
// since.
func (x *PairReceiver) Seen() uint64 { return x.raw }

// Over reports whether the pair is closed and everything in it was taken.
func (x *PairReceiver) Over() bool {
	return x.broken || x.raw&pairClosed != 0 && x.head == x.tail
}
