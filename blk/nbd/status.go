package nbd

import (
	"encoding/binary"
	"math"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// maxExtents is how many extents one reply tells of: as many as fit into the
// smallest buffer. A client asks on where they end.
const maxExtents = (statusSize - 4) / 8

// statusSize is the size of the buffer of such a reply.
const statusSize = 4 << 10

// later queues a command that may wait for the medium in a call.
func (c *conn) later(o *op) {
	c.mu.Lock()
	c.lookups.push(o)
	start := !c.looking
	c.looking = true
	c.mu.Unlock()
	if start {
		go c.lookFn() // ends when nothing is queued
	}
}

// lookUp carries out block status and cache commands, one after the other.
func (c *conn) lookUp() {
	defer c.srv.opts.Guard.Recover(guard.Volume, c.faultFn) // beside the commands themselves
	var scratch [maxExtents]blk.Extent
	for {
		c.mu.Lock()
		o := c.lookups.pop()
		if o == nil {
			c.looking = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if err := c.srv.opts.Guard.Do(guard.Volume, func() { o.err = c.lookAt(o, scratch[:0]) }); err != nil {
			o.err = rdserr.With(blk.ErrMedium, "%v", err)
		}
		c.finish(o)
	}
}

// lookAt carries one of them out.
func (c *conn) lookAt(o *op, out []blk.Extent) error {
	guard.Point("nbd.look")
	switch {
	case c.broken.Load():
	case o.cmd == cmdBlockStatus:
		return c.blockStatus(o, out)
	case c.x.prefetch != nil:
		return c.x.prefetch.Prefetch(o.req.Off, o.req.Len)
	}
	return nil
}

// blockStatus makes the payload of the reply. A device that does not know its holes reports
// everything as data.
func (c *conn) blockStatus(o *op, out []blk.Extent) error {
	if o.flags&cmdFlagReqOne != 0 {
		// Room for one extent is how the mapper learns that more are not wanted.
		out = out[:0:1]
	}
	if c.x.mapper != nil {
		var err error
		if out, err = c.x.mapper.Map(o.req.Off, o.req.Len, out); err != nil {
			return err
		}
	} else {
		out = append(out, blk.Extent{Len: o.req.Len})
	}
	be := binary.BigEndian
	o.buf = getBuf(statusSize)
	b := be.AppendUint32(o.buf[:0], allocationID)
	for _, e := range out {
		var state uint32
		if e.Hole {
			state |= stateHole
		}
		if e.Zero {
			state |= stateZero
		}
		// The request's length has 32 bits, and no extent is longer.
		b = be.AppendUint32(b, uint32(min(e.Len, math.MaxUint32)))
		b = be.AppendUint32(b, state)
	}
	o.data = b
	return nil
}
