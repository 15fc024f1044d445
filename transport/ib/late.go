package ib

import (
	"sync"
	"unsafe"

	"github.com/rdsd/rdsd/transport"
)

// late is a queue of operations, with copies of their tails: a list of segments that many
// links share, one after the other.
type late struct{ first, last *segment }

const segmentOps = 32

// segmentBytes is what a segment is charged with.
const segmentBytes = int(unsafe.Sizeof(segment{}))

type segment struct {
	ops     [segmentOps]transport.Op
	tails   [max(segmentOps*tailRoom, transport.MaxTail)]byte
	from, n int // of ops
	used    int // of tails
	next    *segment
}

var segments = sync.Pool{New: func() any { return new(segment) }}

// push adds op. grow is asked before there is another segment; its error is push's.
func (l *late) push(op *transport.Op, grow func(n int) error) error {
	s := l.last
	if s == nil || s.n == segmentOps || len(op.Tail) > len(s.tails)-s.used {
		if err := grow(segmentBytes); err != nil {
			return err
		}
		s = segments.Get().(*segment)
		if l.last == nil {
			l.first = s
		} else {
			l.last.next = s
		}
		l.last = s
	}
	to := &s.ops[s.n]
	*to = *op
	to.Tail = s.tails[s.used:][:len(op.Tail):len(op.Tail)]
	copy(to.Tail, op.Tail)
	s.used += len(op.Tail)
	s.n++
	return nil
}

// peek is the oldest, nil if there is none.
func (l *late) peek() *transport.Op {
	if l.first == nil {
		return nil
	}
	return &l.first.ops[l.first.from]
}

// pop removes the oldest. free is told of a segment that is not used any more.
func (l *late) pop(free func(n int)) {
	s := l.first
	s.ops[s.from] = transport.Op{} // for the collector
	if s.from++; s.from < s.n {
		return
	}
	if l.first = s.next; l.first == nil {
		l.last = nil
	}
	s.from, s.n, s.used, s.next = 0, 0, 0, nil
	segments.Put(s)
	free(segmentBytes)
}
