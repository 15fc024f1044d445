package blk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Design notes.
//
// A read that the page cache can answer costs less than telling another thread
// about it, so Submit tries it in place with RWF_NOWAIT, which never waits for
// the medium. What would have to wait goes to a worker.
//
// Workers are goroutines that start when requests wait and end when none do; a
// parked pool was no faster and has to be sized for the worst case. Requests
// that certainly wait for the medium (missed reads, syncs, holes) get a worker
// each, up to the limit. Buffered writes normally do not wait and contend for
// the inode's lock, so one worker takes many of them.
//
// A sync is shared: whoever finds none running calls fdatasync for all that
// wait at that moment; those that come meanwhile wait for the next one, because
// the running one may already have passed their pages.

// workerBatch is how many requests a worker completes at once at most.
const workerBatch = 16

// writesPerWorker is how many buffered writes wait before another worker helps.
const writesPerWorker = 8

// lingerBatch bounds how long a completed request waits for its batch.
const lingerBatch = 50 * time.Microsecond

// Submit completes in place what is wrong or in the page cache and leaves the
// rest to workers.
func (f *File) Submit(batch []*Request) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		for _, r := range batch {
			r.Err = ErrClosed
		}
		Complete(batch)
		return
	}
	f.inFlight += len(batch)
	f.mu.Unlock()

	info := f.Info()
	var rest List
	var slow, done int
	reads, writes := inlineRead, f.opts.InlineWrite
	for _, r := range batch {
		if r.Err = info.Check(r); r.Err == nil {
			switch {
			case r.Op == OpRead && f.readNow(r, &reads):
			case r.Op == OpWrite && r.Flags&FUA == 0 && f.writeNow(r, &writes):
			default:
				if waits(r) {
					slow++
				}
				rest.Push(r)
				continue
			}
		}
		batch[done] = r
		done++
	}
	if rest.Len() > 0 {
		f.enqueue(&rest, slow)
	}
	if done > 0 {
		Complete(batch[:done])
		f.finished(done)
	}
}

// waits tells whether a request that was not carried out in place is certain to
// wait for the medium.
func waits(r *Request) bool { return r.Op != OpWrite || r.Flags&FUA != 0 }

// finished accounts for completed requests.
func (f *File) finished(n int) {
	f.mu.Lock()
	if f.inFlight -= n; f.inFlight == 0 && f.closed {
		f.idle.Broadcast()
	}
	f.mu.Unlock()
}

// readNow reads from the page cache if all of it is there.
func (f *File) readNow(r *Request, budget *int) bool {
	if len(r.Buf) > *budget || f.refused.nowaitRead.Load() {
		return false
	}
	n, err := preadv2(f.fd, r.Buf, r.Off, unix.RWF_NOWAIT)
	*budget -= len(r.Buf)
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		// EOPNOTSUPP, ENOSYS: not here, not later. A true error shows again in the worker.
		f.refused.nowaitRead.Store(errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS))
	}
	return err == nil && n == len(r.Buf)
}

// writeNow puts a write into the page cache, if the options allow that.
func (f *File) writeNow(r *Request, budget *int) bool {
	if len(r.Buf) > *budget {
		return false
	}
	*budget -= len(r.Buf)
	r.Err = f.write(r.Buf, r.Off)
	return true
}

// enqueue hands requests to workers, slow of which are certain to wait.
func (f *File) enqueue(l *List, slow int) {
	f.mu.Lock()
	f.queue.Append(l)
	f.waiting += slow
	free := f.workers - f.slow // will look at the queue soon
	need := f.waiting + (f.queue.Len()-f.waiting+writesPerWorker-1)/writesPerWorker
	start := min(need-free, f.opts.Workers-f.workers)
	f.workers += max(start, 0)
	f.mu.Unlock()
	for range start {
		go f.run() // ends when the queue is empty; Close waits for the requests it holds
	}
}

// work carries out what is in the queue and ends when that is empty.
func (f *File) work() {
	f.mu.Lock()
	done := f.takeScratch()
	n := 0
	var last time.Time // when done[0] was put there
	for {
		r := f.queue.Pop()
		if r == nil && n == 0 {
			break
		}
		slow := r != nil && waits(r)
		if slow {
			f.waiting--
			f.slow++
		}
		f.mu.Unlock()

		if r == nil || n == len(done) || n > 0 && (slow || time.Since(last) > lingerBatch) {
			f.complete(done[:n])
			n = 0
		}
		switch {
		case r == nil:
		case f.carryOut(r):
			if n == 0 {
				last = time.Now()
			}
			done[n] = r
			n++
		default: // it waits for a sync
			f.syncAll(done)
		}
		f.mu.Lock()
		if slow {
			f.slow--
		}
	}
	f.workers--
	f.scratch = append(f.scratch, done)
	f.mu.Unlock()
}

// takeScratch gives a worker room for a batch. Called with mu held.
func (f *File) takeScratch() *[workerBatch]*Request {
	if n := len(f.scratch) - 1; n >= 0 {
		s := f.scratch[n]
		f.scratch = f.scratch[:n]
		return s
	}
	return new([workerBatch]*Request)
}

func (f *File) complete(batch []*Request) {
	Complete(batch)
	n := len(batch)
	clear(batch)
	f.finished(n)
}

// carryOut does what r asks and sets its outcome. False: it is in syncWait and
// completes after a sync.
func (f *File) carryOut(r *Request) bool {
	if r.Err = f.sync.before(r); r.Err != nil {
		return true
	}
	if r.Err = f.do(r); r.Err != nil || !r.syncs() {
		return true
	}
	f.mu.Lock()
	f.syncWait.Push(r)
	f.mu.Unlock()
	return false
}

// syncAll calls fdatasync for all that wait, again and again until none do,
// unless another worker is at it.
func (f *File) syncAll(done *[workerBatch]*Request) {
	f.mu.Lock()
	if f.syncing {
		f.mu.Unlock()
		return
	}
	f.syncing = true
	for f.syncWait.Len() > 0 {
		var wait List
		wait.Append(&f.syncWait)
		f.mu.Unlock()
		err := f.datasync()
		for wait.Len() > 0 {
			n := 0
			for n < len(done) && wait.Len() > 0 {
				done[n] = wait.Pop()
				done[n].Err = err
				n++
			}
			f.complete(done[:n])
		}
		f.mu.Lock()
	}
	f.syncing = false
	f.mu.Unlock()
}
