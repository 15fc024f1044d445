package blk

import (
	"sync/atomic"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// broken makes a panic in the work of a store the end of that store: the request it was for
// fails, and so does every one after it, because the content of the store is unknown now.
// The process goes on, and with it the users of other stores.
type broken struct {
	guard *guard.Guard // nil: a panic goes on, as without this
	why   atomic.Pointer[error]
}

// err returns the error of every request once the store is broken.
func (b *broken) err() error {
	if why := b.why.Load(); why != nil {
		return *why
	}
	return nil
}

// catch is deferred by code that works for one request; *err is its outcome. A store makes
// no callback from there, so that the panic is its own even within a step.
func (b *broken) catch(err *error) {
	if b.guard == nil {
		return
	}
	if v := recover(); v != nil {
		e := rdserr.With(ErrMedium, "%v; the store is not used any more: open the volume again", b.guard.Below(guard.Volume, v))
		b.why.CompareAndSwap(nil, &e)
		*err = b.err()
	}
}

// complete is Complete for a worker: a panic in a Completer is not the store's, and the
// others are told all the same.
func (b *broken) complete(batch []*Request) {
	if b.guard == nil {
		Complete(batch)
		return
	}
	for len(batch) > 0 {
		n := neighbours(batch)
		b.tell(batch[:n])
		batch = batch[n:]
	}
}

func (b *broken) tell(batch []*Request) {
	defer b.guard.Recover(guard.Volume, nil)
	batch[0].Queue.Complete(batch)
}
