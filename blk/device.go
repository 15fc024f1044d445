package blk

import "fmt"

// Device is a block device.
type Device interface {
	// Info returns the present properties. The struct is shared and never changed; after a
	// resize Info returns another one.
	Info() *Info

	// Submit starts the requests of a batch. Each completes exactly once, in
	// any order, perhaps before Submit returns and in the same goroutine. The
	// slice is the device's during the call, which may reorder it, and the
	// caller's again afterwards; the requests are the device's until they
	// complete. Submit does not wait for the medium unless the device was
	// opened with leave to. After Close every request fails with ErrClosed.
	Submit(batch []*Request)

	// Watch has f called after each change of Info, from any goroutine, until
	// stop is called. f may not block and may not call stop.
	Watch(f func(*Info)) (stop func())

	// Close lets requests in flight complete, then releases the device's resources; a
	// Completer must not call it. It does not flush. The second call does nothing.
	Close() error
}

// Op is the operation of a request.
type Op uint8

const (
	OpRead        Op = iota // fill Buf
	OpWrite                 // write Buf
	OpFlush                 // make every write durable that completed before this was submitted
	OpDiscard               // the range is not needed any more; reads there are unspecified afterwards but stay within the volume
	OpWriteZeroes           // the range reads as zeroes
	numOps
)

// NumOps is the number of operations, for tables indexed by Op.
const NumOps = int(numOps)

var opNames = [numOps]string{"read", "write", "flush", "discard", "write zeroes"}

func (o Op) String() string {
	if o < numOps {
		return opNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// Writes reports whether the operation changes the stored data.
func (o Op) Writes() bool { return o == OpWrite || o == OpDiscard || o == OpWriteZeroes }

// Flags refine an operation.
type Flags uint8

const (
	// FUA lets the request complete only when what it wrote is durable. It is allowed with
	// every operation, and has no effect where nothing is written.
	FUA Flags = 1 << iota
	// NoUnmap, with OpWriteZeroes: the range stays allocated.
	NoUnmap
	// FastZero, with OpWriteZeroes: fail with ErrNotSupported unless this is
	// faster than writing zeroes.
	FastZero
	allFlags = FUA | NoUnmap | FastZero
)

// Request is one I/O. The submitter owns the memory and may use it again as soon as it has
// completed; a device allocates nothing for it.
type Request struct {
	Op    Op
	Flags Flags
	Off   uint64 // bytes
	Len   uint64 // bytes; 0 for OpFlush
	Buf   []byte // OpRead and OpWrite: Len bytes; otherwise nil
	Err   error  // the outcome, set by the device

	Queue Completer // told of the completion
	Ctx   any       // the submitter's own; a pointer costs no allocation

	next *Request // of the List the holder keeps it in
}

// Completer is told of completions. It is compared with ==, so it is a pointer.
type Completer interface {
	// Complete takes back a batch of requests whose Err is set. It may not
	// block and may not keep the slice. It may submit further requests, but
	// not without end: a device may complete those before it returns.
	Complete(batch []*Request)
}

// Complete gives the requests of a batch back, each to its Queue, neighbours of
// the same queue together.
func Complete(batch []*Request) {
	for len(batch) > 0 {
		n := neighbours(batch)
		batch[0].Queue.Complete(batch[:n])
		batch = batch[n:]
	}
}

// neighbours is how many requests at the head of a batch have the same queue.
func neighbours(batch []*Request) int {
	n := 1
	for n < len(batch) && batch[n].Queue == batch[0].Queue {
		n++
	}
	return n
}

// CompleteFunc is a Completer that calls f for each request.
func CompleteFunc(f func(*Request)) Completer { return &completeFunc{f} }

type completeFunc struct{ f func(*Request) }

func (c *completeFunc) Complete(batch []*Request) {
	for _, r := range batch {
		c.f(r)
	}
}

// List is a queue of requests that takes no memory of its own. A request is in one list at
// most, that of its holder.
type List struct {
	head, tail *Request
	n          int
}

// Len is the number of requests in the list.
func (l *List) Len() int { return l.n }

// Push appends r.
func (l *List) Push(r *Request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
	l.n++
}

// Pop takes the first request, nil when there is none.
func (l *List) Pop() *Request {
	r := l.head
	if r == nil {
		return nil
	}
	l.head = r.next
	if l.head == nil {
		l.tail = nil
	}
	r.next = nil
	l.n--
	return r
}

// Append moves all of m to the end of l.
func (l *List) Append(m *List) {
	if m.head == nil {
		return
	}
	if l.tail == nil {
		l.head = m.head
	} else {
		l.tail.next = m.head
	}
	l.tail = m.tail
	l.n += m.n
	*m = List{}
}

// Extent is a run of bytes of one kind.
type Extent struct {
	Len  uint64 // bytes, not 0
	Hole bool   // nothing is allocated there
	Zero bool   // it reads as zeroes
}

// Mapper is a device that knows which of its ranges hold data.
type Mapper interface {
	// Map puts into out, which is empty, the extents from off on as far as its
	// capacity goes: at least one, together at most n bytes. It may wait for
	// the medium.
	Map(off, n uint64, out []Extent) ([]Extent, error)
}

// Prefetcher is a device that can be told which range will be read soon.
type Prefetcher interface {
	Prefetch(off, n uint64) error
}

// Resizer is a device whose size can be changed.
type Resizer interface {
	// Resize sets the size in bytes. Requests in flight beyond the new end fail.
	Resize(size uint64) error
}
