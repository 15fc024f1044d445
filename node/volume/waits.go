package volume

import (
	"context"
	"sync"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// waits bounds how many calls wait for a file system at a time: so many for one
// path, so that a file system that stands still keeps nobody from what lies on
// others, and so many in all, because each takes a thread.
type waits struct {
	m   *Machine
	all chan struct{} // has something for each slot that is free

	mu    sync.Mutex
	paths map[string]*pathWaits // guarded by mu
}

type pathWaits struct {
	slots chan struct{} // as waits.all
	one   turn          // of alone
	refs  int           // callers that have, or wait for, a slot; guarded by waits.mu
}

const (
	maxWaits     = 256
	maxPathWaits = 2
)

func newWaits(m *Machine) *waits {
	return &waits{m: m, all: slots(maxWaits), paths: map[string]*pathWaits{}}
}

// slots makes n of them, all free.
func slots(n int) chan struct{} {
	c := make(chan struct{}, n)
	for range n {
		c <- struct{}{}
	}
	return c
}

// enter waits for a turn to ask about path; leave ends it.
func (w *waits) enter(ctx context.Context, path string) (leave func(), err error) {
	w.mu.Lock()
	p := w.paths[path]
	if p == nil {
		p = &pathWaits{slots: slots(maxPathWaits), one: newTurn(w.m)}
		w.paths[path] = p
	}
	p.refs++
	w.mu.Unlock()
	forget := func() {
		w.mu.Lock()
		if p.refs--; p.refs == 0 {
			delete(w.paths, path)
		}
		w.mu.Unlock()
	}
	if !w.take(ctx, p.slots) {
		forget()
		return nil, rdserr.With(rdserr.ErrTimeout, "%d calls wait for the file system of %s already", maxPathWaits, path)
	}
	if !w.take(ctx, w.all) {
		p.slots <- struct{}{}
		forget()
		return nil, rdserr.With(rdserr.ErrTimeout, "%d calls wait for file systems already", maxWaits)
	}
	return func() {
		w.all <- struct{}{}
		p.slots <- struct{}{}
		forget()
	}, nil
}

// alone waits until no other that has entered for path is alone; leave ends it.
func (w *waits) alone(path string) (leave func()) {
	w.mu.Lock()
	one := w.paths[path].one
	w.mu.Unlock()
	one.Lock()
	return one.Unlock
}

// take waits for a slot until ctx ends, and takes one that is free in any case.
func (w *waits) take(ctx context.Context, slots chan struct{}) bool {
	select {
	case <-slots:
		return true
	default:
		return w.m.Wait(Forever, slots, ctx.Done()) == 0
	}
}

// do runs f, which waits for the file system of path, in a goroutine of its own, so
// that the caller can give up. For one that has given up it takes no turn.
func (h *Host) do(ctx context.Context, path string, f func() error) error {
	if ctx.Err() != nil {
		return rdserr.With(rdserr.ErrTimeout, "the file system was not asked in time")
	}
	leave, err := h.waits.enter(ctx, path)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	h.machine.Go(func() { // ends when the file system answers
		defer leave()
		defer close(done)
		defer h.guard.Recover(guard.Volume, func(e error) { err = e })
		err = f()
	})
	if h.machine.Wait(Forever, done, ctx.Done()) == 0 {
		return err
	}
	return rdserr.With(rdserr.ErrTimeout, "the file system has not answered in time")
}
