package blk

import (
	"sync"
	"sync/atomic"
)

// split cuts requests a device takes only in pieces.
type split struct{ view }

// Split is a view of a device that takes reads and writes of MaxIO and discards and write
// zeroes of any length, even if d takes less at once. A request that is cut completes when
// all its pieces have, with the first error there was.
func Split(d Device) Device {
	s := &split{}
	s.Device = d
	s.change = func(i *Info) {
		i.MaxBytes = MaxIO
		if i.MaxDiscard > 0 {
			i.MaxDiscard = MaxSize
		}
		if i.MaxWriteZeroes > 0 {
			i.MaxWriteZeroes = MaxSize
		}
	}
	return s
}

func (s *split) Submit(batch []*Request) {
	below := s.Device.Info()
	handOn(s.Device, batch, func(r *Request) bool {
		most, _ := below.limit(r.Op)
		if r.Op == OpFlush || r.Len <= most || most == 0 {
			return false
		}
		p := parents.Get().(*parent)
		p.up[0] = r
		if r.Err = s.Info().Check(r); r.Err != nil {
			p.finish()
			return true
		}
		p.dev, p.done = s.Device, 0
		p.most = max(most&^uint64(below.LogicalBlock-1), uint64(below.LogicalBlock))
		p.run()
		return true
	})
}

// maxPieces is how many pieces of one request are below at a time.
const maxPieces = 64

// parent is a request that is being carried out in pieces.
type parent struct {
	up     [1]*Request             // the request
	dev    Device                  // where the pieces go
	most   uint64                  // bytes of a piece
	done   uint64                  // bytes handed on; owned by run
	left   atomic.Int32            // pieces below, and one while run submits
	failed atomic.Pointer[Request] // the piece that failed first
	piece  [maxPieces]Request
	batch  [maxPieces]*Request
}

var parents = sync.Pool{New: func() any { return new(parent) }}

// run hands pieces on, as many as go below at a time. The call that brings left to 0 goes
// on: run itself when all completed during Submit, else Complete.
func (p *parent) run() {
	for {
		r, n := p.up[0], 0
		for ; n < maxPieces && p.done < r.Len; n++ {
			q := &p.piece[n]
			*q = Request{Op: r.Op, Flags: r.Flags, Off: r.Off + p.done, Len: min(p.most, r.Len-p.done), Queue: p}
			if r.Buf != nil {
				q.Buf = r.Buf[p.done : p.done+q.Len]
			}
			p.done += q.Len
			p.batch[n] = q
		}
		p.left.Store(int32(n + 1))
		p.dev.Submit(p.batch[:n])
		if p.left.Add(-1) > 0 || p.finished() {
			return
		}
	}
}

// Complete is called by the device below.
func (p *parent) Complete(batch []*Request) {
	for _, q := range batch {
		if q.Err != nil {
			p.failed.CompareAndSwap(nil, q)
		}
	}
	if p.left.Add(-int32(len(batch))) == 0 && !p.finished() {
		p.run()
	}
}

// finished completes the request if nothing is left to hand on, or no use.
func (p *parent) finished() bool {
	r, failed := p.up[0], p.failed.Load()
	if failed == nil && p.done < r.Len {
		return false
	}
	r.Err = nil
	if failed != nil {
		r.Err = failed.Err
	}
	p.finish()
	return true
}

func (p *parent) finish() {
	Complete(p.up[:])
	p.up[0], p.dev = nil, nil
	p.failed.Store(nil)
	clear(p.piece[:])
	clear(p.batch[:])
	parents.Put(p)
}
