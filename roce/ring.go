package roce

// ring is a queue in memory that is made once.
type ring[T any] struct {
	slots []T
	first int // where the oldest is
	n     int
}

func newRing[T any](size int) ring[T] { return ring[T]{slots: make([]T, size)} }

// at is the i-th oldest. It stays in its place until it is taken out.
func (r *ring[T]) at(i int) *T {
	if i += r.first; i >= len(r.slots) {
		i -= len(r.slots)
	}
	return &r.slots[i]
}

// push adds v; there has to be room.
func (r *ring[T]) push(v T) {
	if r.n == len(r.slots) {
		panic("roce: a queue of a queue pair overflows")
	}
	*r.at(r.n) = v
	r.n++
}

// pop takes the oldest out, and lets go of what it refers to.
func (r *ring[T]) pop() (v T) {
	p := r.at(0)
	var none T
	v, *p = *p, none
	if r.first++; r.first == len(r.slots) {
		r.first = 0
	}
	r.n--
	return v
}
