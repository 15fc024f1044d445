package volumetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rdserr"
)

// app is a program that uses a mapped volume: workers that write, read back,
// zero and flush, each in blocks of its own, and connect again when the socket
// is lost.
type app struct {
	t       testing.TB
	uri     string
	d       *disk
	clock   *await.Clock  // of the time that all of this had
	failing atomic.Bool   // errors of the volume are what is expected
	noFlush atomic.Bool   // nobody flushes
	cuts    atomic.Uint32 // power cuts so far
	rate    time.Duration

	stopped atomic.Bool
	wg      sync.WaitGroup
	ops     atomic.Int64       // that completed
	failed  atomic.Int64       // with an error
	flushes atomic.Int64       // that completed, begun since the last power cut
	longest atomic.Int64       // ns that one took, since the last stall
	last    atomic.Uint64      // generation
	seen    [appWorkers]uint32 // power cuts that the model of a worker's blocks knows of; the worker's

	mu    sync.Mutex
	conns [2]*nbd.Client // guarded by mu; nil: to be made
	dials atomic.Int64
	errs  []error   // guarded by mu; what should not be
	lost  time.Time // guarded by mu; the socket's first loss since the last back
	again []time.Duration
}

const (
	appWorkers   = 8
	workerBlocks = 256
)

// newApp is an app of the default size on a volume of zeroes.
func newApp(t testing.TB, uri string) *app {
	a := &app{t: t, uri: uri, d: newDisk(appWorkers * workerBlocks), clock: await.NewClock(t)}
	t.Cleanup(func() {
		a.stopped.Store(true)
		a.drop(nil)
	})
	return a
}

// appBytes is the size of its volume.
const appBytes = appWorkers * workerBlocks * blockSize

func (a *app) start() {
	a.stopped.Store(false)
	for i := range appWorkers {
		a.wg.Go(func() { a.work(i) })
	}
}

// stop lets every operation end, and shows what was wrong.
func (a *app) stop() {
	a.t.Helper()
	a.stopped.Store(true)
	ended := make(chan struct{})
	go func() { // ends with the workers
		a.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		a.t.Error("an operation has not ended after 30 s")
		a.drop(nil)
		<-ended
	}
	for i := range appWorkers {
		a.cut(i)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, err := range a.errs {
		a.t.Error(err)
	}
	a.errs = nil
}

func (a *app) wrong(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.errs) < 10 {
		a.errs = append(a.errs, err)
	}
}

// bad tells whether something was wrong already.
func (a *app) bad() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.errs) > 0
}

func (a *app) work(i int) {
	rng := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
	p := make([]byte, 16*blockSize)
	for !a.stopped.Load() {
		n := 1 << rng.IntN(5)
		at := i*workerBlocks + rng.IntN(workerBlocks-n+1)
		began := a.clock.Now()
		err := a.one(rng, p[:n*blockSize], at, i)
		took := int64(a.clock.Now() - began)
		for was := a.longest.Load(); took > was && !a.longest.CompareAndSwap(was, took); was = a.longest.Load() {
		}
		switch {
		case err == nil:
			a.ops.Add(1)
		case connectionLost(err):
		case isErrno(err) && a.failing.Load():
			a.failed.Add(1)
			time.Sleep(time.Millisecond)
		default:
			a.wrong(fmt.Errorf("after %v: %w", time.Duration(took).Round(time.Millisecond), err))
			return
		}
		if a.rate > 0 {
			time.Sleep(a.rate)
		}
	}
}

// one does one operation of a worker on its blocks of p from at on.
func (a *app) one(rng *rand.Rand, p []byte, at, worker int) error {
	c, err := a.conn(rng.IntN(len(a.conns)))
	if err != nil {
		return err
	}
	mine := a.d.blocks[at:][:len(p)/blockSize]
	k := rng.IntN(40)
	var g uint64
	switch {
	case k < 18: // write
		g = a.last.Add(1)
		for i := range mine {
			fill(p[i*blockSize:][:blockSize], at+i, g)
			mine[i].begin(g)
		}
		_, err = c.WriteAt(p, int64(at)*blockSize)
	case k == 18: // zero
		for i := range mine {
			mine[i].begin(0)
		}
		err = c.WriteZeroes(int64(at)*blockSize, int64(len(p)))
	case k == 19 && a.noFlush.Load():
		return nil
	case k == 19: // flush: what completed for this worker
		err = c.Flush()
	default:
		_, err = c.ReadAt(p, int64(at)*blockSize)
	}
	if connectionLost(err) {
		a.drop(c)
	}
	if a.cut(worker) && k <= 19 { // nobody knows whether it was carried out before or after
		return err
	}
	switch {
	case err != nil:
	case k < 19:
		for i := range mine {
			mine[i].wrote(g)
		}
	case k == 19:
		a.flushes.Add(1)
		for i := range workerBlocks {
			a.d.blocks[worker*workerBlocks+i].flushed()
		}
	default:
		err = a.d.take(p, at)
	}
	return err
}

// cut takes a power cut into the model of a worker's blocks; true: there was one
// since the last call.
func (a *app) cut(worker int) bool {
	now := a.cuts.Load()
	if now == a.seen[worker] {
		return false
	}
	a.seen[worker] = now
	for i := range workerBlocks {
		a.d.blocks[worker*workerBlocks+i].powerCut()
	}
	return true
}

// conn is connection i; it is made if it is not there.
func (a *app) conn(i int) (*nbd.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.conns[i]; c != nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for {
		c, err := nbd.DialURI(ctx, a.uri)
		if err == nil {
			a.conns[i] = c
			a.dials.Add(1)
			if !a.lost.IsZero() {
				a.again = append(a.again, time.Since(a.lost))
				a.lost = time.Time{}
			}
			return c, nil
		}
		if a.stopped.Load() {
			return nil, rdserr.ErrReset
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no connection to %s: %w", a.uri, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// drop gives a connection up, nil: all.
func (a *app) drop(c *nbd.Client) {
	a.mu.Lock()
	var gone []*nbd.Client
	for i, o := range a.conns {
		if o != nil && (o == c || c == nil) {
			a.conns[i] = nil
			gone = append(gone, o)
			if a.lost.IsZero() {
				a.lost = time.Now()
			}
		}
	}
	a.mu.Unlock()
	for _, o := range gone {
		o.Close()
	}
}

// connectionLost reports whether the socket ended, so that nobody knows what became of the
// operation.
func connectionLost(err error) bool {
	return errors.Is(err, rdserr.ErrReset) || errors.Is(err, rdserr.ErrClosed) || errors.Is(err, net.ErrClosed)
}

// isErrno reports whether the volume answered with an error.
func isErrno(err error) bool {
	for _, e := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EINVAL, syscall.EPERM, syscall.ESHUTDOWN, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// progress waits until n more operations have completed, and returns how long
// that took.
func (a *app) progress(n int64, limit time.Duration) time.Duration {
	a.t.Helper()
	from, began := a.ops.Load(), a.clock.Now()
	for a.ops.Load() < from+n && !a.bad() {
		if a.clock.Now()-began > limit {
			a.t.Errorf("%d of %d operations in %v", a.ops.Load()-from, n, limit)
			return limit
		}
		time.Sleep(time.Millisecond)
	}
	return a.clock.Now() - began
}

// stall is the longest an operation took since the last call.
func (a *app) stall() time.Duration { return time.Duration(a.longest.Swap(0)) }

// verify reads everything.
func (a *app) verify() {
	a.t.Helper()
	c, err := a.conn(0)
	if err != nil {
		a.t.Error(err)
		return
	}
	p := make([]byte, 64*blockSize)
	for at := 0; at < len(a.d.blocks); at += 64 {
		if _, err := c.ReadAt(p, int64(at)*blockSize); err != nil {
			a.t.Errorf("reading everything: %v", err)
			return
		}
		if err := a.d.take(p, at); err != nil {
			a.t.Error(err)
		}
	}
}
