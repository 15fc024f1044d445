package blk

import "sync"

// Do carries out one request and waits for it. Queue and Ctx are its own.
func Do(d Device, r *Request) error {
	w := waiters.Get().(*waiter)
	r.Queue, r.Ctx = w, nil
	w.batch[0], w.done = r, false
	d.Submit(w.batch[:])
	w.mu.Lock()
	for !w.done {
		w.wake.Wait()
	}
	w.mu.Unlock()
	err := r.Err
	w.batch[0], r.Queue = nil, nil
	waiters.Put(w)
	return err
}

// waiter is a condition and not a channel: a pool of channels could not be used
// inside a bubble of testing/synctest.
type waiter struct {
	mu    sync.Mutex
	wake  sync.Cond
	done  bool // guarded by mu
	batch [1]*Request
}

var waiters = sync.Pool{New: func() any {
	w := new(waiter)
	w.wake.L = &w.mu
	return w
}}

func (w *waiter) Complete([]*Request) {
	w.mu.Lock()
	w.done = true
	w.wake.Signal()
	w.mu.Unlock()
}

// ReadAt fills p from off on.
func ReadAt(d Device, p []byte, off uint64) error {
	return Do(d, &Request{Op: OpRead, Off: off, Len: uint64(len(p)), Buf: p})
}

// WriteAt writes p at off; with FUA it is durable afterwards.
func WriteAt(d Device, p []byte, off uint64, flags Flags) error {
	return Do(d, &Request{Op: OpWrite, Flags: flags, Off: off, Len: uint64(len(p)), Buf: p})
}

// Flush makes completed writes durable.
func Flush(d Device) error { return Do(d, &Request{Op: OpFlush}) }

// Discard gives up n bytes at off.
func Discard(d Device, off, n uint64, flags Flags) error {
	return Do(d, &Request{Op: OpDiscard, Flags: flags, Off: off, Len: n})
}

// WriteZeroes makes n bytes at off read as zeroes.
func WriteZeroes(d Device, off, n uint64, flags Flags) error {
	return Do(d, &Request{Op: OpWriteZeroes, Flags: flags, Off: off, Len: n})
}
