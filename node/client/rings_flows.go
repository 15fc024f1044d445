package client

import (
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

const (
	// ringFlowBytes is the memory of an entry of ringSock.flows, and of a Dest beyond the first of a
	// flow of the engine.
	ringFlowBytes = 176
	// freeRingFlows are in ringSocketBytes.
	freeRingFlows = 16
)

// describe looks at the flow that p is of, which the client has described anew. The error says that
// there is no memory for it; after rdserr.ErrWouldBlock EvWritable follows.
func (r *ringSock) describe(p *shm.Post) error {
	if int(p.Flow) >= len(r.flows) {
		if err := r.growFlows(int(p.Flow) + 1); err != nil {
			return err
		}
	}
	if r.flows[p.Flow].gen == p.Gen { // of none: 0
		return nil
	}
	return r.resolve(p.Flow, p.Gen)
}

// growFlows makes r.flows so long, which is not longer than the client's table. That is charged before.
func (r *ringSock) growFlows(want int) error {
	n := max(freeRingFlows, len(r.flows))
	to := max(want, min(2*n, int(r.reg.Flows)))
	if want <= n {
		to = n
	}
	if to > n {
		if err := r.sock.Keep((to - n) * ringFlowBytes); err != nil {
			return err
		}
	}
	r.flows = append(make([]ringFlow, 0, to), r.flows...)[:to]
	return nil
}

// lack refuses p for want of memory that it cannot wait for. A flow that p only opens is refused.
func (r *ringSock) lack(p *shm.Post) {
	if !p.Open {
		r.refuse(p, rdserr.ErrNoMemory)
		return
	}
	r.End.SetFlow(p.Flow, p.Gen, shm.FlowRefused, uint16(rdserr.Errno(rdserr.ErrNoMemory)))
	r.End.Taken(p, shm.Target{}, false)
	r.host.Touch(&r.Ring)
}
