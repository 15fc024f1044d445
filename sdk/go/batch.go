package rdsd

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/msgpool"
)

// Limits of one SendBatch message of ours. The daemon's window may lower them.
const (
	maxBatchBytes     = 1 << 20
	maxBatchDatagrams = 4096
	// A batch that gathers several callers stays smaller, and only small parts
	// join it: they are copied once more, with the lock held.
	maxGatherBytes     = 256 << 10
	maxGatherDatagrams = 1024
	maxJoinBytes       = 32 << 10
)

// batch is one SendBatch message, from the call that fills it until its
// SendResult. Guarded by Socket.mu until it is taken for writing; the writer
// then has it until it is in session.pending.
type batch struct {
	id       uint64
	seq      uint64 // order of queueing
	blob     *[]byte
	bytes    int // payload bytes, kept after blob is given away
	lengths  []uint32
	dests    []netip.AddrPort // each once
	index    []uint32
	many     map[netip.AddrPort]uint32 // where one is in dests, when these are more than fewDests
	firstTag uint64
	ctlAt    int       // control messages before it on its stream, in bytes
	deadline time.Time // with wait; zero: none

	wantOutcomes bool
	wait         bool
	posted       bool // accepted here: it waits at the daemon, and no call waits for it
	watched      bool // the daemon told of congestion when it was written
	slow         bool // posted, and something of it waits at the daemon
	resultLater  bool // posted, as an answer to what came: its result may come with what comes next

	marks []*postMark // with posted

	parts []part // whose datagrams these are, in order
}

// part is one caller's share of a batch.
type part struct {
	c *call
	n int // datagrams
}

var batchPool = sync.Pool{New: func() any { return new(batch) }}

func newBatch() *batch { return batchPool.Get().(*batch) }

// recycle gives a batch back once nothing points to it.
func (b *batch) recycle() {
	if b.blob != nil {
		msgpool.Pool.Put(b.blob)
	}
	clear(b.parts)
	clear(b.many)
	*b = batch{
		lengths: b.lengths[:0],
		dests:   b.dests[:0],
		index:   b.index[:0],
		many:    b.many,
		parts:   b.parts[:0],
	}
	if cap(b.lengths) <= maxBatchDatagrams {
		batchPool.Put(b)
	}
}

// add appends one datagram. reserve is how many payload bytes the batch is
// expected to get in all.
func (b *batch) add(dst netip.AddrPort, p []byte, reserve int) {
	b.lengths = append(b.lengths, uint32(len(p)))
	b.bytes += len(p)
	b.addDest(dst)
	b.append(p, reserve)
}

// append adds payload bytes to the blob.
func (b *batch) append(p []byte, reserve int) {
	if len(p) == 0 {
		return
	}
	switch {
	case b.blob == nil:
		b.blob = msgpool.Pool.Get(max(reserve, len(p)))
		*b.blob = (*b.blob)[:0]
	case cap(*b.blob)-len(*b.blob) < len(p):
		larger := msgpool.Pool.Get(max(2*cap(*b.blob), len(*b.blob)+len(p)))
		*larger = append((*larger)[:0], *b.blob...)
		msgpool.Pool.Put(b.blob)
		b.blob = larger
	}
	*b.blob = append(*b.blob, p...)
}

// fewDests is how many destinations are looked through one by one.
const fewDests = 64

// addDest finds dst among the destinations or adds it. Batches go to few
// destinations, and mostly to the one before. The daemon refuses what follows a refused
// datagram to the same entry of the list.
func (b *batch) addDest(dst netip.AddrPort) {
	if n := len(b.index); n > 0 && b.dests[b.index[n-1]] == dst {
		b.index = append(b.index, b.index[n-1])
		return
	}
	if len(b.dests) <= fewDests {
		for i := range b.dests {
			if b.dests[i] == dst {
				b.index = append(b.index, uint32(i))
				return
			}
		}
	} else if k, ok := b.many[dst]; ok {
		b.index = append(b.index, k)
		return
	}
	b.dests = append(b.dests, dst)
	b.index = append(b.index, uint32(len(b.dests)-1))
	if len(b.dests) > fewDests {
		b.noteMany()
	}
}

// noteMany puts the destinations into the map that are not there.
func (b *batch) noteMany() {
	if b.many == nil {
		b.many = make(map[netip.AddrPort]uint32)
	}
	for i := len(b.many); i < len(b.dests); i++ {
		b.many[b.dests[i]] = uint32(i)
	}
}

// join appends all datagrams of o, which has one part, and recycles it.
func (b *batch) join(o *batch) {
	b.merge(o)
	p := o.parts[0]
	p.c.batch = b
	b.parts = append(b.parts, p)
	o.recycle()
}

// merge appends the datagrams of o, whose parts stay with it.
func (b *batch) merge(o *batch) {
	for i, n := range o.lengths {
		b.lengths = append(b.lengths, n)
		b.addDest(o.dests[o.index[i]])
	}
	if o.blob != nil {
		b.append(*o.blob, 0)
	}
	b.bytes += o.bytes
}

// remove takes the part of c out of a batch that was not written yet.
func (b *batch) remove(c *call) {
	at, off := 0, 0
	for i, p := range b.parts {
		size := 0
		for _, n := range b.lengths[at : at+p.n] {
			size += int(n)
		}
		if p.c != c {
			at, off = at+p.n, off+size
			continue
		}
		if size > 0 {
			*b.blob = slices.Delete(*b.blob, off, off+size)
		}
		b.bytes -= size
		b.lengths = slices.Delete(b.lengths, at, at+p.n)
		b.index = slices.Delete(b.index, at, at+p.n)
		b.parts = slices.Delete(b.parts, i, i+1)
		return
	}
}

// timeoutNs is the timeout sent to the daemon. It is a little less than the time left, so
// that its answer (accepted or not) arrives before the caller gives up and must report an
// undecided datagram.
func (b *batch) timeoutNs() int64 {
	if b.deadline.IsZero() {
		return 0
	}
	left := time.Until(b.deadline)
	return max(1, int64(left-min(left/10, 20*time.Millisecond)))
}

// sendErr is a run of refused datagrams of one batch.
type sendErr struct {
	index, count int
	err          error
}

// call is one caller waiting for the result of a batch or of its part in one.
type call struct {
	done chan struct{} // capacity 1; one token when finished
	// The other fields are guarded by Socket.mu; the caller reads them freely after done.
	batch     *batch // while not finished
	sent      bool   // written to the stream: can no longer be taken back
	finished  bool
	abandoned bool
	undecided bool
	err       error     // all of it failed so
	errs      []sendErr // refused datagrams, counted from the call's first
	tag       uint64    // of its first datagram
	timer     *time.Timer
}

var callPool = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func newCall() *call { return callPool.Get().(*call) }

func (c *call) recycle() {
	clear(c.errs)
	*c = call{done: c.done, timer: c.timer, errs: c.errs[:0]}
	callPool.Put(c)
}

// finish tells the caller. Socket.mu is held.
func (c *call) finish() {
	if c.finished {
		return
	}
	c.finished = true
	c.batch = nil
	if !c.abandoned {
		c.done <- struct{}{}
	}
}
