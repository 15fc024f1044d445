package blk

import (
	"errors"
	"sync/atomic"
)

// syncGuard keeps B7: after a sync has failed it is unknown which writes it lost (Linux
// forgets the error and marks the pages clean), so no later sync may succeed until the
// device is opened again.
type syncGuard struct{ failed atomic.Bool }

// syncs tells whether a request completes only when something is durable.
func (r *Request) syncs() bool { return r.Op == OpFlush || r.Flags&FUA != 0 && r.Op.Writes() }

// LosesSync tells whether it is unknown which writes are durable when a store has failed r with err. Where a
// write found no room it is known: it was refused, and nothing that was there before is lost.
func LosesSync(r *Request, err error) bool {
	return err != nil && r.syncs() && (r.Op == OpFlush || !errors.Is(err, ErrNoSpace))
}

func (g *syncGuard) fail()  { g.failed.Store(true) }
func (g *syncGuard) reset() { g.failed.Store(false) }

func (g *syncGuard) err() error {
	if g.failed.Load() {
		return ErrSyncFailed
	}
	return nil
}

// before refuses requests that would sync after a failure.
func (g *syncGuard) before(r *Request) error {
	if r.syncs() {
		return g.err()
	}
	return nil
}

// after takes note of how a request ended.
func (g *syncGuard) after(r *Request) {
	if LosesSync(r, r.Err) {
		g.fail()
	}
}
