package conn

// queue holds the messages of a lane that wait to be sent for the first time. A lane
// carries many flows, and a flow that has megabytes waiting must not stand in front of one
// with a few bytes: flows are hashed into lists, and the lists take turns, each for about
// quantum bytes, in the order in which they began to wait. Datagrams of one flow stay in
// one list, in their order (D2). A frame is not interrupted: the kernel's framing has no
// fragments.
type queue struct {
	lists    *[queueLists]list // made by the first message, kept until trim
	order    uint32            // lists with something in them, 4 bits each, the lowest first: the one whose turn it is
	nonEmpty uint8             // lists with at least one message
	left     int               // bytes the first may still send before the next has its turn
	n        int               // datagrams
	bytes    int
}

const (
	queueLists = 8
	quantum    = 64 << 10 // bytes: a train, or the largest fragment others should wait for
)

func (q *queue) list(m *Msg) (*list, uint8) {
	i := uint8((uint32(m.SPort)<<16 | uint32(m.DPort)) * 0x9e3779b1 >> 29)
	return &q.lists[i], i
}

func (q *queue) push(m *Msg) {
	q.ready()
	l, i := q.list(m)
	if l.head == nil {
		q.add(i)
	}
	l.push(m)
	m.where = inQueue
	q.n += m.Datagrams()
	q.bytes += len(m.Payload)
}

// ready makes the lists, for a message that comes.
func (q *queue) ready() {
	if q.lists == nil {
		q.lists = new([queueLists]list)
	}
}

// trim lets the lists go if nothing stands in them.
func (q *queue) trim() {
	if q.n == 0 {
		q.lists = nil
	}
}

// all are the lists there are.
func (q *queue) all() []list {
	if q.lists == nil {
		return nil
	}
	return q.lists[:]
}

// add puts list i behind the others that have something.
func (q *queue) add(i uint8) {
	if q.nonEmpty == 0 {
		q.left = quantum
	}
	q.order |= uint32(i) << (4 * q.nonEmpty)
	q.nonEmpty++
}

// head is the next to be sent, nil when there is none.
func (q *queue) head() *Msg {
	if q.nonEmpty == 0 {
		return nil
	}
	return q.lists[q.order&15].head
}

// pop takes head.
func (q *queue) pop() *Msg {
	i := q.order & 15
	l := &q.lists[i]
	m := l.pop()
	q.left -= len(m.Payload)
	q.n -= m.Datagrams()
	q.bytes -= len(m.Payload)
	switch {
	case l.head == nil:
		q.order >>= 4
		q.nonEmpty--
		q.left = quantum
	// Its turn is over, and it goes behind the other lists. A message is never cut, so that
	// a turn may be longer by one.
	case q.left <= 0:
		q.order = q.order>>4 | i<<(4*(q.nonEmpty-1))
		q.left = quantum
	}
	return m
}

// remove takes m out of the middle of its flow.
func (q *queue) remove(m *Msg) {
	l, i := q.list(m)
	l.remove(m)
	q.n -= m.Datagrams()
	q.bytes -= len(m.Payload)
	if l.head != nil {
		return
	}
	// The list is empty and must not have a turn: its four bits are taken out of order.
	for k := range q.nonEmpty {
		if uint8(q.order>>(4*k)&15) != i {
			continue
		}
		low := uint32(1)<<(4*k) - 1
		q.order = q.order&low | q.order>>4&^low
		q.nonEmpty--
		if k == 0 {
			q.left = quantum
		}
		return
	}
}

// front puts all messages of o before those that wait, each before its own flow.
func (q *queue) front(o *list) {
	if o.head == nil {
		return
	}
	var first queue
	// In a queue of their own first: pushed one by one before the others they would come out
	// the wrong way round.
	for o.head != nil {
		first.push(o.pop())
	}
	q.ready()
	q.n += first.n
	q.bytes += first.bytes
	for i := range first.lists {
		if q.lists[i].head == nil && first.lists[i].head != nil {
			q.add(uint8(i))
		}
		q.lists[i].front(&first.lists[i])
	}
}

// each is list.each for all lists.
func (q *queue) each(f func(m *Msg) (take bool)) {
	order, some := q.order, q.nonEmpty
	// f may empty lists, so their order is built anew from those that are left.
	q.order, q.nonEmpty, q.n, q.bytes = 0, 0, 0, 0
	for range some {
		i := uint8(order & 15)
		order >>= 4
		l := &q.lists[i]
		l.each(f)
		if l.head != nil {
			q.add(i)
		}
		q.n += l.n
		q.bytes += l.bytes
	}
}

// moveTo appends everything to l, the flows one after the other.
func (q *queue) moveTo(l *list) {
	for i := range q.all() {
		l.splice(&q.lists[i])
	}
	*q = queue{}
}
