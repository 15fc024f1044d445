package ib

import (
	"fmt"

	"github.com/rdsd/rdsd/transport"
)

// sendQueue is what the owner of a link has posted and the device has not completed, in
// order. The caller locks.
//
// Work requests have a place in a ring that is as long as the device's queue, where they stay
// as they were handed over until they have completed: the device is given pieces of the ring,
// and nothing is copied. Operations for which there is no place wait behind it, in late.
//
// Invariant: done <= handed <= placed <= done + len(ring), all counted from the first on; the
// number of a work request is its ID.
type sendQueue struct {
	ring                 []WR
	marks                []mark // beside it
	placed, handed, done uint64

	tails byteRing // copies of tails
	// copies are copies of data that the device cannot read where it is; without memory if it
	// can read all.
	copies byteRing
	own    *extents // what it can read, then

	late late
}

// mark is what the queue notes about a work request.
type mark struct {
	tails, copies uint64 // where its copies end
}

const (
	// tailRoom is how many bytes of tails there are for each work request, on average: header
	// and message of an RTRS request have 56.
	tailRoom = 64
	// copyRoom is the memory for copies of data, and so the longest write of what has to be
	// copied: in parts the peer would learn the length of the last one.
	copyRoom = 1 << 20
)

// tailBytes is the memory for the tails of n work requests. The longest one has to fit
// wherever the next begins.
func tailBytes(n int) int { return max(n*tailRoom, 2*transport.MaxTail) }

// init gives q its rings, for n work requests.
func (q *sendQueue) init(n int, tails, copies []byte, own *extents) {
	q.ring, q.marks = make([]WR, n), make([]mark, n)
	q.tails.mem, q.copies.mem, q.own = tails, copies, own
}

var workOps = [...]Op{transport.OpWrite: Write, transport.OpWriteImm: WriteImm,
	transport.OpSend: Send, transport.OpSendImm: SendImm, transport.OpSendInval: SendInval}

// check returns an error for an operation beyond the limits.
func (q *sendQueue) check(op *transport.Op) error {
	n := len(op.Data) + len(op.Tail)
	switch {
	case op.Kind < transport.OpWrite || op.Kind > transport.OpSendInval:
		return fmt.Errorf("ib: posted an operation of kind %d; there are %d to %d", op.Kind, transport.OpWrite, transport.OpSendInval)
	case len(op.Tail) > transport.MaxTail:
		return fmt.Errorf("ib: posted a tail of %d bytes; at most %d are copied", len(op.Tail), transport.MaxTail)
	case op.Kind >= transport.OpSend && n > transport.MaxSend:
		return fmt.Errorf("ib: posted a send of %d bytes; at most %d are taken", n, transport.MaxSend)
	case len(op.Data) > copyRoom && q.copied(op.Data):
		return fmt.Errorf("ib: posted a write of %d bytes that the device cannot read where they are; at most %d are copied", n, copyRoom)
	}
	return nil
}

// post places op, or has it wait behind those that wait. grow is asked before more memory is
// used for that; its error is post's.
func (q *sendQueue) post(op transport.Op, grow func(n int) error) error {
	if q.late.first == nil && q.place(&op) {
		return nil
	}
	return q.late.push(&op, grow)
}

// refill places what waits, as far as there is room. free is told of memory that is not used
// any more.
func (q *sendQueue) refill(free func(n int)) {
	for op := q.late.peek(); op != nil && q.place(op); op = q.late.peek() {
		q.late.pop(free)
	}
}

// place makes op a work request. false: there is no room.
func (q *sendQueue) place(op *transport.Op) bool {
	if q.placed-q.done == uint64(len(q.ring)) {
		return false
	}
	tails, copies := q.tails, q.copies
	tail, ok := q.tails.add(op.Tail)
	data := op.Data
	if ok && q.copied(data) {
		data, ok = q.copies.add(data)
	}
	if !ok {
		q.tails, q.copies = tails, copies
		return false
	}
	i := q.placed % uint64(len(q.ring))
	wr := &q.ring[i]
	wr.ID, wr.Op, wr.Flags, wr.Imm, wr.Key, wr.Addr = q.placed, workOps[op.Kind], 0, op.Imm, op.Key, op.Addr
	wr.Piece[0], wr.Piece[1] = data, tail
	q.marks[i] = mark{q.tails.end, q.copies.end}
	q.placed++
	return true
}

// copied reports whether data has to be.
func (q *sendQueue) copied(data []byte) bool {
	return len(q.copies.mem) > 0 && len(data) > 0 && !q.own.has(data)
}

// next hands over the work requests that can be posted together: a run that the end of the
// ring may cut. The last one asks for a completion, so that all of them are heard of, and so
// does one in each quarter of the ring, so that places become free while others are worked on.
func (q *sendQueue) next() []WR {
	size := uint64(len(q.ring))
	at := q.handed % size
	n := min(q.placed-q.handed, size-at)
	if n == 0 {
		return nil
	}
	run := q.ring[at : at+n]
	if quarter := size / 4; quarter > 1 {
		for i := quarter - 1; i < n; i += quarter {
			run[i].Flags |= Signal
		}
	}
	run[n-1].Flags |= Signal
	q.handed += n
	return run
}

// untake takes back the last n of a run, for which the device had no place.
func (q *sendQueue) untake(n int) { q.handed -= uint64(n) }

// complete ends the work requests up to id. It returns how many operations have ended, and
// false if the device cannot mean that.
func (q *sendQueue) complete(id uint64) (ops int, ok bool) {
	if id < q.done || id >= q.handed {
		return 0, false
	}
	for ; q.done <= id; q.done++ {
		i := q.done % uint64(len(q.ring))
		q.ring[i].Piece = [MaxPieces][]byte{} // for the collector
		q.tails.done, q.copies.done = q.marks[i].tails, q.marks[i].copies
		ops++
	}
	return ops, true
}

// idle reports whether the device has nothing of q.
func (q *sendQueue) idle() bool { return q.done == q.handed }

// drop forgets all of it, when it is idle.
func (q *sendQueue) drop(free func(n int)) {
	for q.late.first != nil {
		q.late.pop(free)
	}
	*q = sendQueue{}
}

// byteRing is memory for copies that are given up in the order in which they were made. end is
// where the next one begins, and done where the oldest does that is in use, both counted
// without wrapping.
type byteRing struct {
	mem       []byte
	end, done uint64
}

// add copies b, in one piece. false: there is no room.
func (r *byteRing) add(b []byte) (copied []byte, ok bool) {
	if len(b) == 0 {
		return nil, true
	}
	size := uint64(len(r.mem))
	if left := size - r.end%size; r.end == r.done && left < size {
		r.end += left // all of it, from the beginning
		r.done = r.end
	}
	at := r.end
	if left := size - at%size; left < uint64(len(b)) { // it stays empty
		at += left
	}
	end := at + uint64(len(b))
	if end-r.done > size {
		return nil, false
	}
	r.end = end
	copied = r.mem[at%size:][:len(b):len(b)]
	copy(copied, b)
	return copied, true
}
