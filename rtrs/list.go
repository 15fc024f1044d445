package rtrs

// place is where a request is in a list of one kind.
type place struct{ next, prev *Req }

// A request is in at most one list of each kind.
const (
	byState = iota // where it waits, or is in flight
	byAge          // all that are not done
	numKinds
)

// list is a list of requests without memory of its own.
type list struct {
	kind        int
	first, last *Req
	n           int
}

func (l *list) push(r *Req) { l.insert(r, l.last) }

// insert puts r behind after, or first.
func (l *list) insert(r, after *Req) {
	at := &r.in[l.kind]
	at.prev = after
	if after == nil {
		at.next, l.first = l.first, r
	} else {
		at.next, after.in[l.kind].next = after.in[l.kind].next, r
	}
	if at.next == nil {
		l.last = r
	} else {
		at.next.in[l.kind].prev = r
	}
	l.n++
}

func (l *list) remove(r *Req) {
	at := &r.in[l.kind]
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.in[l.kind].next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.in[l.kind].prev = at.prev
	}
	*at = place{}
	l.n--
}

func (l *list) pop() *Req {
	r := l.first
	if r != nil {
		l.remove(r)
	}
	return r
}

// next is the request behind r, of the list it is in by state.
func (r *Req) next(kind int) *Req { return r.in[kind].next }
