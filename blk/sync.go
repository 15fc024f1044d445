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
// write found no room it is known: it was refused, and nothing that was there before is lost. A failure
// that an earlier write may have caused (SyncLost) loses it, whatever r is.
func LosesSync(r *Request, err error) bool {
	if err == nil {
		return false
	}
	var lost SyncLost
	return errors.As(err, &lost) || r.syncs() && (r.Op == OpFlush || !errors.Is(err, ErrNoSpace))
}

// SyncLost is a failure in whose place the next sync would have failed: it tells what became of earlier
// writes, and is told once.
type SyncLost struct{ Err error }

func (e SyncLost) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e SyncLost) Unwrap() error { return e.Err }

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
