package transport

import (
	"fmt"
	"math"
	"sync"
)

// Limits of the tagged frames in one system call.
const (
	tagPieces = 128      // pieces of memory (struct iovec)
	tagStage  = 16 << 10 // headers, tails, small data
	tagInline = 256      // data up to here is cheaper copied than referenced
)

// TagQueue is the sending half of a one-sided link over a byte stream: posted
// operations as tagged frames, whose large data is referenced. The caller locks.
//
// It is a list of blocks. Nothing is added to a block that is being written, so that the
// lock need not be held meanwhile.
type TagQueue struct {
	seq         uint32 // of the next frame
	first, last *TagBlock
	ops         int
}

// TagBlock is a run of frames that is written at once.
type TagBlock struct {
	unwritten
	stage []byte
	from  int // start in stage of the piece being built
	ops   int
	after *TagBlock
}

var tagBlocks = sync.Pool{New: func() any {
	return &TagBlock{stage: make([]byte, 0, tagStage), unwritten: unwritten{all: make([][]byte, 0, tagPieces)}}
}}

// NewTagQueue makes a queue whose first frame has the number seq.
func NewTagQueue(seq uint32) TagQueue { return TagQueue{seq: seq} }

// Post appends op. It returns an error, and queues nothing, if op is beyond the limits.
func (q *TagQueue) Post(op *Op) error {
	n := len(op.Data) + len(op.Tail)
	switch {
	case op.Kind < OpWrite || op.Kind > OpSendInval:
		return fmt.Errorf("transport: posted an operation of kind %d; there are %d to %d", op.Kind, OpWrite, OpSendInval)
	case len(op.Tail) > MaxTail:
		return fmt.Errorf("transport: posted a tail of %d bytes; at most %d are copied", len(op.Tail), MaxTail)
	case op.Kind >= OpSend && n > MaxSend:
		return fmt.Errorf("transport: posted a send of %d bytes; at most %d are taken", n, MaxSend)
	case uint64(n) > math.MaxUint32:
		return fmt.Errorf("transport: posted a write of %d bytes; at most %d can be said", n, uint32(math.MaxUint32))
	}
	t := Tag{Kind: op.Kind, Seq: q.seq, Len: uint32(n)}
	switch op.Kind {
	case OpWriteImm:
		t.Imm = op.Imm
		fallthrough
	case OpWrite:
		t.Key, t.Addr = op.Key, op.Addr
	case OpSendImm:
		t.Imm = op.Imm
	case OpSendInval:
		t.Key = op.Key
	}
	need := TagLen + len(op.Tail)
	// Small data is cheaper copied behind its header than as an entry of its own in the writev.
	inline := len(op.Data) <= tagInline
	if inline {
		need += len(op.Data)
	}
	b := q.room(need)
	k := len(b.stage)
	b.stage = b.stage[:k+TagLen]
	t.Put(b.stage[k:])
	if inline {
		b.stage = append(b.stage, op.Data...)
	} else {
		// The data stays where it is until the block is written (Op.Data): header, data and tail
		// are three entries of one writev.
		b.seal()
		b.all = append(b.all, op.Data)
	}
	b.stage = append(b.stage, op.Tail...)
	b.ops++
	q.ops++
	q.seq++
	return nil
}

// room is the block that takes an operation whose copied part has need bytes.
func (q *TagQueue) room(need int) *TagBlock {
	// Two pieces for the operation, one that ends the block.
	if b := q.last; b != nil && len(b.stage)+need <= cap(b.stage) && len(b.all)+3 <= tagPieces {
		return b
	}
	b := tagBlocks.Get().(*TagBlock)
	if q.last != nil {
		q.last.seal()
		q.last.after = b
	} else if q.first == nil {
		q.first = b
	} else { // the only block is being written
		q.first.after = b
	}
	q.last = b
	return b
}

// Ops is how many operations are queued, those being written included.
func (q *TagQueue) Ops() int { return q.ops }

// Next returns the block to write now, nil if there is none. It stays the first until Done.
func (q *TagQueue) Next() *TagBlock {
	b := q.first
	if b != nil && b == q.last {
		b.seal()
		q.last = nil
	}
	return b
}

// Done releases the block that Next returned, when it is written.
func (q *TagQueue) Done() {
	b := q.first
	q.ops -= b.ops
	q.first = b.after
	b.put()
}

// Drop forgets all that is queued.
func (q *TagQueue) Drop() {
	for q.Next() != nil {
		q.Done()
	}
}

func (b *TagBlock) seal() {
	if b.from < len(b.stage) {
		b.all = append(b.all, b.stage[b.from:])
		b.from = len(b.stage)
	}
	b.Pieces = b.all
}

func (b *TagBlock) put() {
	clear(b.all)
	b.stage, b.all, b.Pieces = b.stage[:0], b.all[:0], nil
	b.from, b.ops, b.after = 0, 0, nil
	tagBlocks.Put(b)
}

// Ops is how many operations are in the block.
func (b *TagBlock) Ops() int { return b.ops }
