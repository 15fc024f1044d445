package rdsd

import "slices"

// fifo is a queue that uses its array again once it was empty, so that a queue
// in steady use does not allocate.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) {
	if q.head > 0 && len(q.items) == cap(q.items) && q.head >= len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// front and back point at the first and the last item; the queue is not empty.
func (q *fifo[T]) front() *T { return &q.items[q.head] }
func (q *fifo[T]) back() *T  { return &q.items[len(q.items)-1] }

func (q *fifo[T]) pop() T {
	var zero T
	v := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return v
}

// all returns the items in the queue, to be read before its next change.
func (q *fifo[T]) all() []T { return q.items[q.head:] }

// delete takes out the first item for which is says yes.
func (q *fifo[T]) delete(is func(T) bool) {
	if i := slices.IndexFunc(q.all(), is); i >= 0 {
		q.items = slices.Delete(q.items, q.head+i, q.head+i+1)
	}
}
