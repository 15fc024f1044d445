package conn

import (
	"sync/atomic"
)

// Trains. A message may carry many datagrams of one flow. Between two rdsd that both take
// trains it is sent as it is: one sequence, one acknowledgement, one refusal, one outcome.
// For every other peer it is split where it enters a lane's queue, and only there. That is
// possible because no message enters a queue before the sort of peer is known: Enqueue puts
// later messages there and spread those that waited, and gather takes undelivered messages
// back into waiting when the peer turns into another.

// Trains reports whether a train given to Enqueue now would leave as one, as
// far as is known.
func (c *Conn) Trains() bool { return c.nlanes == 0 || c.trains }

// enqueue puts m into the queue of its lane.
func (p *Lane) enqueue(m *Msg) {
	if m.slot = p.slot; m.Count > 1 && !p.c.trains {
		p.split(m)
		return
	}
	p.queue.push(m)
}

// split queues the datagrams of m one by one. Each completes by itself.
func (p *Lane) split(m *Msg) {
	if m.Cell != nil {
		// Several sequences take the place of one, which a cell cannot hold: CellSplit says that
		// the cell tells no more.
		atomic.StoreUint64(m.Cell, CellSplit)
		m.Cell = nil
	}
	cut := m.Train().Cut()
	m.Count, m.Table = 1, NoTable
	// m itself carries the last of them, so that it stays the owner's.
	for cut.Left() > 1 {
		n := p.c.com.NewMsg()
		*n = *m
		p.c.part(n, m)
		n.Payload, _ = cut.Next()
		n.Bytes = uint32(len(n.Payload))
		m.Bytes -= n.Bytes
		m.Tag++
		p.queue.push(n)
	}
	m.Payload, _ = cut.Next()
	p.queue.push(m)
}

// setSeq gives m its sequence, or takes it away (0).
func (p *Lane) setSeq(m *Msg, seq uint64) {
	m.seq = seq
	if m.Cell != nil {
		if seq != 0 {
			seq |= uint64(p.idx) << CellLane
		}
		atomic.StoreUint64(m.Cell, seq)
	}
}
