package blk

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
)

// Design notes.
//
// A read that the page cache can answer costs less than telling another thread about it, so
// Submit tries it in place with RWF_NOWAIT, which never waits for the medium (resident.go
// says what it does where a file system knows no RWF_NOWAIT). A request
// that would have to wait goes to a worker, and so does every write (linger.go says why):
// Submit is called on threads that serve others too, and a store that stands still, frozen,
// full of dirty pages or gone, must cost only its users. The requests of one Submit are
// handed over together.
//
// Workers are the file's own, goroutines that start when requests wait and end when
// none do; a parked pool was no faster and has to be sized for the worst case. Requests
// that certainly wait for the medium (missed reads, syncs, holes) get a worker
// each, up to the limit. Buffered writes normally do not wait and contend for
// the inode's lock, so one worker takes many of them.
//
// A sync is shared: a worker that finds none running calls fdatasync for all that wait at
// that moment; those that come meanwhile wait for the next one, because the running one may
// already have passed their pages.

// workerBatch is how many requests a worker completes at once at most.
const workerBatch = 16

// writesPerWorker is how many buffered writes wait before another worker helps: two at one file
// wait for each other more than they help.
const writesPerWorker = 32

// lingerBatch bounds how long a completed request waits for its batch.
const lingerBatch = 50 * time.Microsecond

// Submit completes in place requests that are wrong or in the page cache, and leaves the
// others to workers.
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
	// Counted before anything is looked at: Close waits for inFlight, and finds these from
	// here on.
	f.inFlight += len(batch)
	f.mu.Unlock()

	// One Info for the whole batch, though the volume may be resized meanwhile.
	info := f.Info()
	var slow, writes List
	var done int
	reads := inlineRead
	for _, r := range batch {
		if r.Err = info.Check(r); r.Err == nil {
			switch {
			// In the page cache: no thread has to be woken. reads bounds the time this takes
			// from the submitter.
			case r.Op == OpRead && f.readNow(r, &reads):
			default:
				if waits(r) {
					slow.Push(r)
				} else {
					writes.Push(r)
				}
				continue
			}
		}
		batch[done] = r
		done++
	}
	if slow.Len()+writes.Len() > 0 {
		f.enqueue(&slow, &writes)
	}
	// Without the lock: a completion may submit the next request.
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
func (f *File) readNow(r *Request, budget *int) (done bool) {
	var fault error // then a worker says so
	defer f.broken.catch(&fault)
	if len(r.Buf) > *budget {
		return false
	}
	flags := unix.RWF_NOWAIT
	if f.refused.nowaitRead.Load() {
		if !f.isResident(r.Off, len(r.Buf)) {
			return false
		}
		flags = 0
	}
	n, err := preadv2(f.fd, r.Buf, r.Off, flags)
	*budget -= len(r.Buf)
	if err != nil && flags != 0 && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		// EOPNOTSUPP, ENOSYS: not here, not later. A true error shows again in the worker.
		f.refused.nowaitRead.Store(errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS))
	}
	guard.Point("store.read")
	return err == nil && n == len(r.Buf) && f.broken.err() == nil
}

// enqueue hands requests to workers.
func (f *File) enqueue(slow, writes *List) {
	f.mu.Lock()
	f.queue.Append(slow)
	f.writes.Append(writes)
	f.linger.posted.Store(true)
	free := f.workers - f.slow - f.writing // will look at the queues at once
	start := max(f.queue.Len()-free, 0)
	free = max(free-f.queue.Len(), 0)
	// Only other writes wait for a worker at a write, and they contend for the same lock.
	start += max((f.writes.Len()+writesPerWorker-1)/writesPerWorker-f.writing-free, 0)
	if start = min(start, f.opts.Workers-f.workers); start > 0 {
		start = moreWorkers(f.workers, start)
		f.workers += start
		f.linger.started()
	}
	f.mu.Unlock()
	for range start {
		go f.run() // ends when the queues are empty; Close waits for the requests it holds
	}
}

// take is the next request for a worker, which is counted as being at it; at says
// where. Writes go on while others wait, one at least at a time. mu is held.
func (f *File) take() (r *Request, at *int) {
	l, at := &f.queue, &f.slow
	if f.queue.Len() == 0 || f.writing == 0 && f.writes.Len() > 0 {
		l, at = &f.writes, &f.writing
	}
	if r = l.Pop(); r != nil {
		*at++
	}
	f.linger.posted.Store(f.queue.Len()+f.writes.Len() > 0)
	return r, at
}

// work carries out the requests in the queues and ends when they are empty.
func (f *File) work() {
	// Panics of a request are contained where it is carried out. Another one may leave the
	// queues half changed.
	defer f.broken.guard.Recover(guard.Step, nil)
	f.mu.Lock()
	done := f.takeScratch()
	n := 0
	var last time.Time // when done[0] was put there
	for {
		r, at := f.take()
		// Nothing to do and nothing to tell: look on for a moment (linger.go), then end.
		if r == nil && n == 0 {
			if f.closed || !f.look() {
				break
			}
			continue
		}
		f.mu.Unlock()

		// Completions are told in batches, but never kept while a request is carried out that
		// may take long.
		if r == nil || n == len(done) || n > 0 && (waits(r) || time.Since(last) > lingerBatch) {
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
		// at counts the workers that are at a request of this kind (take).
		if r != nil {
			*at--
		}
	}
	fewerWorkers(f.workers)
	f.workers--
	f.scratch = append(f.scratch, done)
	f.mu.Unlock()
}

// look waits a moment for something to do; false: there is nothing. mu is held,
// but for that moment.
func (f *File) look() bool {
	d := f.linger.begin()
	if d == 0 {
		return false
	}
	f.mu.Unlock()
	found, lost := f.linger.wait(d)
	f.mu.Lock()
	f.linger.end(found, lost)
	return found || f.queue.Len()+f.writes.Len() > 0
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
	n := len(batch)
	f.broken.complete(batch)
	clear(batch)
	f.finished(n)
}

// carryOut carries r out and sets its outcome. It returns false if r is in syncWait and
// completes after a sync.
func (f *File) carryOut(r *Request) bool {
	if r.Err = f.sync.before(r); r.Err != nil {
		return true
	}
	if r.Err = f.attempt(r); r.Err != nil || !r.syncs() {
		return true
	}
	f.mu.Lock()
	f.syncWait.Push(r)
	f.mu.Unlock()
	return false
}

// attempt is do in a store that is not broken, which a panic in it makes it.
func (f *File) attempt(r *Request) (err error) {
	if err := f.broken.err(); err != nil {
		return err
	}
	defer f.broken.catch(&err)
	guard.Point("store.work")
	return f.do(r)
}

// attemptSync is datasync in the same way.
func (f *File) attemptSync() (err error) {
	if err := f.broken.err(); err != nil {
		return err
	}
	defer f.broken.catch(&err)
	guard.Point("store.sync")
	return f.datasync()
}

// syncAll calls fdatasync for all that wait, again and again until none do,
// unless another worker is at it.
func (f *File) syncAll(done *[workerBatch]*Request) {
	f.mu.Lock()
	if f.syncing {
		f.mu.Unlock()
		return
	}
	// One fdatasync at a time: those that come during it wait for the next, which covers all
	// of them.
	f.syncing = true
	for f.syncWait.Len() > 0 {
		var wait List
		// Taken before the call: a write that completed later need not be covered by it.
		wait.Append(&f.syncWait)
		f.mu.Unlock()
		err := f.attemptSync()
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
