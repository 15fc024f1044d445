package roce

import (
	"bytes"
	"time"
)

// flow is what one end of a connection does with the other, and all that is known about it.
//
// In order: got, the first operation of which the target is not known to have heard; done, the
// first that has not completed; both at most what was posted.
type flow struct {
	w        *world
	from, to *end
	ops      []operation
	limit    int // how many there will be
	done     int
	got      int

	area    *area // the target's memory
	library *area // that is only read
	once    *area // with a key that the source ends
	lent    []*area
	waiting bool   // for the next once
	revoked bool   // the target has ended the key of area
	broke   bool   // the source has posted what it may not do
	frozen  []byte // memory of the target when its queue pair failed
}

// area is exposed memory with a fence around it, and what it should hold.
type area struct {
	mem   []byte
	want  []byte
	key   uint32
	addr  uint64
	full  int  // bytes from the first on that are known to be written
	gone  bool // its key has ended: nothing changes any more
	bound bool // the key is for one queue pair
}

type operation struct {
	Work
	data  []byte // that is sent; of a READ where it goes, with fences
	area  *area  // of a WRITE and a READ
	off   int
	heard bool // by the target, if it ever is
	wrong bool // it may not be done
}

func (f *flow) newArea(n int, r Rights) *area {
	a := &area{mem: make([]byte, n+2*fence), addr: f.w.rnd.Uint64() >> 1}
	f.w.rnd.Read(a.mem)
	a.want = bytes.Clone(a.mem)
	qp := choose(f.w, AnyQP, f.to.number())
	a.bound = qp != AnyQP
	key, err := f.to.memory().Expose(a.mem[fence:fence+n:fence+n], a.addr, r, qp)
	if err != nil {
		panic(err)
	}
	a.key = key
	return a
}

func (a *area) size() int { return len(a.mem) - 2*fence }

// at is the bytes of b, which is mem or want, that an operation is about.
func (o *operation) at(b []byte) []byte { return b[fence+o.off:][:o.Len()] }

func newFlow(w *world, from, to *end, limit int) *flow {
	f := &flow{w: w, from: from, to: to, limit: limit}
	from.out, to.in = f, f
	return f
}

// expose makes the target's memory.
func (f *flow) expose() {
	f.area = f.newArea(1+f.w.rnd.Intn(20000), RemoteWrite)
	f.library = f.newArea(1+f.w.rnd.Intn(60000), RemoteRead)
	f.lend()
}

// lend makes memory with a key that the source may end.
func (f *flow) lend() {
	f.once = f.newArea(1+f.w.rnd.Intn(4000), RemoteWrite|PeerRevokes)
	f.lent = append(f.lent, f.once)
	f.waiting = false
}

// drive posts operations now and then until all were.
func (f *flow) drive() {
	for len(f.ops) < f.limit && len(f.ops)-f.done < f.from.depth {
		f.postOne()
		if f.w.chance(0.3) {
			break
		}
	}
	if len(f.ops) < f.limit {
		f.w.After(f.w.upTo(choose(f.w, 20*time.Microsecond, time.Millisecond, 30*time.Millisecond)), f.drive)
	}
}

func (f *flow) postOne() {
	w := f.w
	o := operation{Work: Work{ID: uint64(len(f.ops)), Op: choose(w, OpSend, OpSendImm, OpSendInval, OpWrite, OpWrite, OpWriteImm, OpRead)}}
	n := choose(w, 0, 1, 3, 64, w.rnd.Intn(300), w.rnd.Intn(5000), w.rnd.Intn(30000))
	o.Solicited, o.Imm = w.chance(0.3), w.rnd.Uint32()
	o.Fence = w.chance(0.1)
	switch {
	case o.Op == OpRead && f.from.reads() == 0:
		o.Op = OpSend
	case o.Op == OpSendInval && (f.waiting || w.chance(0.5)):
		o.Op = OpSendImm
	}
	switch o.Op {
	case OpSend, OpSendImm, OpSendInval:
		n = min(n, f.to.size)
		if o.Op == OpSendInval {
			o.area, o.Inval, f.waiting = f.once, f.once.key, true
		}
	case OpRead:
		o.area = f.library
	default:
		o.area = f.area
		if !f.waiting && w.chance(0.3) {
			o.area = f.once
		}
	}
	if o.area != nil && o.Op != OpSendInval {
		n = min(n, o.area.size())
		o.off = w.rnd.Intn(o.area.size() - n + 1)
		if o.area == f.once && w.chance(0.5) {
			o.off = 0
		}
		o.Key, o.Addr = o.area.key, o.area.addr+uint64(o.off)
	}
	if f.area != nil && !f.broke && !f.from.ghost && w.chance(w.hostile) {
		n = f.trespass(&o)
	}
	o.data = make([]byte, n+2*fence)
	w.rnd.Read(o.data)
	body := o.data[fence : fence+n]
	a, b := w.rnd.Intn(n+1), w.rnd.Intn(n+1)
	o.Piece = [3][]byte{body[:min(a, b)], body[min(a, b):max(a, b)], body[max(a, b):]}
	if o.Op != OpRead {
		o.data = bytes.Clone(body)
	} else {
		o.Imm = 0
		for i := range fence {
			o.data[i], o.data[fence+n+i] = 0xee, 0xee
		}
	}
	if o.Op == OpWrite || o.Op == OpRead {
		o.Solicited = false
	}
	f.ops = append(f.ops, o)
	w.note("%s posts %v %d of %d bytes", f.from.name, o.Op, o.ID, n)
	f.from.post(o.Work)
}

// trespass makes o something that the target must not do: to write where only reading is
// allowed, around a region, with a key that has ended or is for another queue pair, or to end a
// key that is not the source's to end. It returns its length.
func (f *flow) trespass(o *operation) (n int) {
	f.broke, f.w.benign, o.wrong = true, false, true
	f.w.counts.trespasses++
	*o = operation{Work: Work{ID: o.ID, Op: choose(f.w, OpWrite, OpWriteImm), Imm: 1}, wrong: true}
	n = 1 + f.w.rnd.Intn(3000)
	a := f.area
	switch f.w.rnd.Intn(5) {
	case 0:
		n = min(n, f.library.size())
		o.Key, o.Addr = f.library.key, f.library.addr
	case 1:
		o.Key, o.Addr = a.key, a.addr-1
	case 2:
		o.Key, o.Addr = a.key, a.addr+uint64(a.size()-n)+1
	case 3:
		o.Key, o.Addr = f.lent[0].key, f.lent[0].addr
		n = min(n, f.lent[0].size())
		if len(f.lent) > 1 {
			break
		}
		for _, g := range f.w.flows { // of another connection of the target's, if there is one
			if g != f && g.to.h == f.to.h && g.area.key != a.key && g.area.bound {
				o.Key, o.Addr = g.area.key, g.area.addr
				n = min(n, g.area.size())
				return n
			}
		}
		o.Key += 77
	case 4:
		o.Op, o.Inval = OpSendInval, a.key
		n = min(n, f.to.size)
	}
	return n
}

// freeze notes what the target's memory is when its queue pair fails: it stays so.
func (f *flow) freeze() {
	f.frozen = bytes.Clone(f.area.mem)
}

func (e *end) reads() uint8 {
	if e.k != nil {
		return e.k.peer.Reads
	}
	return e.q.peer.Reads
}

// hears reports whether the target learns of o.
func (o *operation) hears() bool { return o.Op != OpWrite && o.Op != OpRead }

// apply does o to what the target's memory should hold.
func (o *operation) apply() {
	if o.Op != OpWrite && o.Op != OpWriteImm || len(o.data) == 0 || o.wrong || o.area.gone {
		return
	}
	copy(o.at(o.area.want), o.data)
	if o.off <= o.area.full {
		o.area.full = max(o.area.full, o.off+len(o.data))
	}
}

// received checks what the target was told: the next operation that it hears of, with all
// before it done and none behind it begun.
func (f *flow) received(c Completion) {
	w := f.w
	if f.from.ghost || f.to.ghost {
		w.fail("%s received %v from an end that is not its peer", f.to.name, c.Op)
	}
	for ; ; f.got++ {
		if f.got == len(f.ops) {
			w.fail("%s received %+v, which nobody sent", f.to.name, c)
		}
		o := &f.ops[f.got]
		o.apply()
		if !o.hears() {
			continue
		}
		f.got++
		o.heard = true
		f.hear(o, c)
		return
	}
}

func (f *flow) hear(o *operation, c Completion) {
	w := f.w
	if o.wrong {
		w.fail("%s received %+v, which must not be done", f.to.name, c)
	}
	if q := f.from.q; o.Fence && q != nil && q.state == RTS && q.req.queue.n > 0 {
		for i := q.req.queue.at(0).ID; i < o.ID; i++ {
			if f.ops[i].Op == OpRead {
				w.fail("%s received %v %d before READ %d was complete", f.to.name, o.Op, o.ID, i)
			}
		}
	}
	want := Completion{ID: c.ID, Op: OpRecv, N: len(o.data), Solicited: o.Solicited, Filled: c.Filled}
	switch o.Op {
	case OpWriteImm:
		want.Op, want.HasImm, want.Imm, want.Key, want.Addr = OpRecvWrite, true, o.Imm, o.Key, o.Addr
	case OpSendImm:
		want.HasImm, want.Imm = true, o.Imm
	case OpSendInval:
		want.HasInval, want.Key = true, o.Inval
	}
	if c != want {
		w.fail("%s received %+v for %v %d, want %+v", f.to.name, c, o.Op, o.ID, want)
	}
	buf := f.to.bufs[c.ID]
	n := 0
	if o.Op != OpWriteImm {
		if n = len(o.data); !bytes.Equal(buf[fence:fence+n], o.data) {
			w.fail("%s received other bytes for %v %d", f.to.name, o.Op, o.ID)
		}
	}
	if !untouched(buf[:fence]) || !untouched(buf[fence+n:]) {
		w.fail("%s: %v %d wrote outside of its bytes", f.to.name, o.Op, o.ID)
	}
	// In the moment at which it is polled, later packets may have come: what they wrote is
	// checked with what was posted later.
	f.check(f.area, f.got)
	if o.Op == OpSendInval {
		a := o.area
		if f.to.k == nil && c.Filled != a.full {
			w.fail("%s: of key %#x %d bytes were written, said to be %d", f.to.name, a.key, a.full, c.Filled)
		}
		f.check(a, f.got)
		a.gone = true
		copy(a.want, a.mem)
		f.lend()
	}
}

func untouched(b []byte) bool {
	for _, v := range b {
		if v != 0xee {
			return false
		}
	}
	return true
}

// check compares memory with what it should hold, where operations from the one with number n
// on may have been done in part.
func (f *flow) check(a *area, n int) {
	if bytes.Equal(a.mem, a.want) {
		return
	}
	if a.gone {
		f.w.fail("%s: memory whose key %#x has ended was written", f.to.name, a.key)
	}
	may := make([]bool, len(a.mem))
	for i := range f.ops[n:] {
		o := &f.ops[n+i]
		if o.area != a || o.Op != OpWrite && o.Op != OpWriteImm {
			continue
		}
		for k, v := range o.data {
			if at := fence + o.off + k; a.mem[at] == v {
				may[at] = true
			}
		}
	}
	for i, v := range a.mem {
		if v != a.want[i] && !may[i] {
			f.w.fail("%s: byte %d of its memory, of %d, is of nothing that was sent, or of something that came before", f.to.name, i-fence, a.size())
		}
	}
}

// completed checks what the source was told: in order, and done by the target if it is said
// to be.
func (f *flow) completed(c Completion) {
	w := f.w
	o := &f.ops[f.done]
	if c.ID != o.ID || c.Op != o.Op {
		w.fail("%s: %v %d completes, want %v %d", f.from.name, c.Op, c.ID, o.Op, o.ID)
	}
	f.done++
	if c.Status != OK {
		if !f.from.dead() {
			w.fail("%s: %v %d ends with %v, and the queue pair goes on", f.from.name, o.Op, o.ID, c.Status)
		}
		switch c.Status {
		case Flushed, RetryExceeded, RNRExceeded:
		case RemoteAccess:
			if !f.revoked && !o.wrong {
				w.fail("%s: %v %d is refused", f.from.name, o.Op, o.ID)
			}
		default:
			w.fail("%s: %v %d ends with %v", f.from.name, o.Op, o.ID, c.Status)
		}
		return
	}
	w.counts.ok++
	if o.wrong {
		w.fail("%s: %v %d completes, which must not be done", f.from.name, o.Op, o.ID)
	}
	if f.from.ghost || f.to.ghost {
		w.fail("%s: %v %d was done by an end that is not its peer", f.from.name, o.Op, o.ID)
	}
	f.to.drain() // the target has been told, but may not have looked yet
	switch {
	case o.hears():
		if !o.heard {
			w.fail("%s: %v %d completes before it was received", f.from.name, o.Op, o.ID)
		}
	case o.Op == OpRead:
		n := o.Len()
		if !bytes.Equal(o.data[fence:fence+n], o.at(o.area.want)) {
			w.fail("%s: READ %d brought other bytes", f.from.name, o.ID)
		}
		f.around(o)
	default:
		f.writtenBy(o)
	}
}

// writtenBy checks that the bytes of o, a WRITE, are in their place, or newer ones.
func (f *flow) writtenBy(o *operation) {
	if o.area.gone {
		return // and what it held was checked when its key ended
	}
	may := make([]bool, len(o.data))
	for i := range f.ops[o.ID:] {
		l := &f.ops[int(o.ID)+i]
		if l.area != o.area || l.Op != OpWrite && l.Op != OpWriteImm {
			continue
		}
		for k := range may {
			if at := o.off + k - l.off; at >= 0 && at < len(l.data) && l.data[at] == o.at(o.area.mem)[k] {
				may[k] = true
			}
		}
	}
	for k, ok := range may {
		if !ok {
			f.w.fail("%s: WRITE %d completes, and byte %d of it is not there", f.from.name, o.ID, k)
		}
	}
}

// finish checks all that is to be seen when nothing moves any more.
func (f *flow) finish() {
	w := f.w
	if f.from.dead() || f.from.ghost || f.to.ghost || f.to.dead() || f.from.lost || f.to.lost {
		w.counts.died++
	} else if f.done == len(f.ops) {
		for ; f.got < len(f.ops); f.got++ {
			if o := &f.ops[f.got]; o.hears() && !o.heard {
				w.fail("%s: %v %d completed and was not received", f.from.name, o.Op, o.ID)
			}
			f.ops[f.got].apply()
		}
	}
	if f.from.lost {
		f.finishMemory()
		return
	}
	if f.from.dead() && f.done != len(f.ops) {
		w.fail("%s is dead, and %d of %d operations never completed", f.from.name, len(f.ops)-f.done, len(f.ops))
	}
	if !f.from.dead() && f.done != len(f.ops) {
		w.fail("%s is neither idle nor dead: %d of %d operations have completed", f.from.name, f.done, len(f.ops))
	}
	f.finishMemory()
}

func (f *flow) finishMemory() {
	for i := range f.ops {
		f.around(&f.ops[i])
	}
	if f.to.ghost || f.from.ghost {
		return
	}
	if f.frozen != nil && !bytes.Equal(f.frozen, f.area.mem) {
		f.w.fail("%s: memory was written after its queue pair had failed", f.to.name)
	}
	f.check(f.area, f.got)
	f.check(f.library, len(f.ops))
	for _, a := range f.lent {
		f.check(a, f.got)
	}
}

// around checks that a READ brought nothing more than it was to.
func (f *flow) around(o *operation) {
	if n := len(o.data) - fence; o.Op == OpRead && !(untouched(o.data[:fence]) && untouched(o.data[n:])) {
		f.w.fail("%s: READ %d brought more than its bytes", f.from.name, o.ID)
	}
}
