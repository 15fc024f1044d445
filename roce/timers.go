package roce

import (
	"math"
	"time"
)

// never is the time of what is not due.
const never = time.Duration(math.MaxInt64)

// due is when q does something by itself: the requester by its deadline, or the responder.
func (q *QP) due() time.Duration { return min(q.deadline, q.resp.repeat) }

// timers is a heap of queue pairs by when they are to be looked at, which is not after they
// are due. A time that moves away, as with each acknowledgement, moves nothing in the heap:
// the queue pair is looked at for nothing, once, and goes to its new place.
type timers struct{ heap []*QP }

// next is when the first of all is to be looked at.
func (t *timers) next() time.Duration {
	if len(t.heap) == 0 {
		return never
	}
	return t.heap[0].look
}

// arm puts q, of which it has changed when it is due, where it belongs.
func (t *timers) arm(q *QP) {
	due := q.due()
	switch {
	case due == never || q.place > 0 && q.look <= due:
		return
	case q.place == 0:
		t.heap = append(t.heap, q)
		q.place = len(t.heap)
	}
	q.look = due
	t.up(q.place - 1)
}

// pop takes the first out.
func (t *timers) pop() *QP {
	q := t.heap[0]
	t.remove(q)
	return q
}

// remove takes q out if it is in.
func (t *timers) remove(q *QP) {
	if q.place == 0 {
		return
	}
	i, last := q.place-1, len(t.heap)-1
	t.swap(i, last)
	t.heap[last] = nil
	t.heap = t.heap[:last]
	q.place = 0
	if i < last {
		t.down(i)
		t.up(i)
	}
}

func (t *timers) swap(i, j int) {
	h := t.heap
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (t *timers) less(i, j int) bool { return t.heap[i].look < t.heap[j].look }

func (t *timers) up(i int) {
	for p := (i - 1) / 2; i > 0 && t.less(i, p); i, p = p, (p-1)/2 {
		t.swap(i, p)
	}
}

func (t *timers) down(i int) {
	for {
		c := 2*i + 1
		if c+1 < len(t.heap) && t.less(c+1, c) {
			c++
		}
		if c >= len(t.heap) || !t.less(c, i) {
			return
		}
		t.swap(i, c)
		i = c
	}
}

// line is the queue pairs that have something to send, in the order of their turns.
type line struct{ first, last *QP }

// push lets q take its place at the end, if it has none.
func (l *line) push(q *QP) {
	if q.inLine {
		return
	}
	q.inLine = true
	if l.last == nil {
		l.first = q
	} else {
		l.last.behind = q
	}
	l.last = q
}

// pop takes the first out, if there is one.
func (l *line) pop() *QP {
	q := l.first
	if q == nil {
		return nil
	}
	l.first = q.behind
	if l.first == nil {
		l.last = nil
	}
	q.inLine, q.behind = false, nil
	return q
}

// remove takes q out, wherever it is. Only a queue pair that is closed leaves so.
func (l *line) remove(q *QP) {
	if !q.inLine {
		return
	}
	var before *QP
	for p := l.first; p != q; p = p.behind {
		before = p
	}
	if before == nil {
		l.first = q.behind
	} else {
		before.behind = q.behind
	}
	if l.last == q {
		l.last = before
	}
	q.inLine, q.behind = false, nil
}
