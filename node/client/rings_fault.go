package client

import (
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// Work implements reactor.Owner.
func (r *ringSock) Work() guard.What { return guard.Socket }

// Fault implements reactor.Owner: the work for this socket has panicked. Its client is
// told as far as that goes without a lock that the panic may have left behind.
func (r *ringSock) Fault(err error) {
	err = rdserr.With(rdserr.ErrIO, "%v", err)
	switch {
	case r.closed:
	case !r.begun:
		r.end(err)
	case r.s.wmu.TryLock():
		r.s.wmu.Unlock()
		r.end(err)
	default:
		r.close()
	}
}

// Work implements reactor.Owner.
func (c *ringControl) Work() guard.What { return guard.Socket }

// Fault implements reactor.Owner.
func (c *ringControl) Fault(err error) { c.r.Fault(err) }
