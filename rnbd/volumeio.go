package rnbd

import (
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// Design notes.
//
// A request is a call of one piece or more, each one message, and for some a flush when all are
// done (call.flushes). A piece is with the session (which keeps it while there is no path, sends
// it again after a failover, and bounds its time), or it is held here, while there is a path but
// the server does not have the volume; and then it is cut again when the volume is back, because
// the server may take less at once than it did. The number of the device stands in each message, so nothing is sent in
// a new generation of the session before the volume was opened in it (Client.tryResume).

// call is a request of a user of the volume.
type call struct {
	r       *blk.Request
	v       *Volume
	left    int           // pieces that are not done
	out     int           // those that were started
	rest    *piece        // the others
	err     error         // the first there was
	store   bool          // it came from the store behind the volume
	lost    bool          // of any piece: an error of the store that loses a sync
	bare    bool          // a piece that is done was sent without the FUA of r
	flushes bool          // all are done, and a flush for that is under way
	wrote   uint64        // of a flush: v.wrote when it came
	losses  uint          // v.losses when it was started
	since   time.Duration // it was submitted
	first   piece
	next    *call // of the unused ones
}

// piece is one message.
type piece struct {
	req  rtrs.Req
	call *call
	off  uint64
	n    uint64
	next *piece // of a list it waits in, or of the unused ones
	bare bool   // it was sent without the FUA of its request (message)
	usr  [rnbdwire.IOLen]byte
}

// Submit starts requests. They come out of Client.Finished, perhaps at once.
func (v *Volume) Submit(now time.Duration, batch []*blk.Request) {
	c := v.c
	for _, r := range batch {
		if err := v.check(now, r); err != nil {
			r.Err = err
			c.done.Push(r)
			continue
		}
		k := c.calls
		if k == nil {
			k = &call{}
		} else {
			c.calls, k.next = k.next, nil
		}
		k.r, k.v, k.err, k.store, k.lost, k.wrote, k.since = r, v, nil, false, false, v.wrote, now
		// One flow for all pieces of a request: they arrive in order, on one connection.
		c.flow++
		k.start(now)
	}
	c.restart(now)
}

// start carries the call out from its beginning.
func (k *call) start(now time.Duration) {
	k.losses, k.bare, k.flushes = k.v.losses, false, false
	k.startFirst(now, k.r.Off, k.r.Len)
}

// startFirst starts the first piece of k, or its flush, when none is under way.
func (k *call) startFirst(now time.Duration, off, n uint64) {
	k.left, k.out = 1, 1
	k.v.out++
	k.first.call, k.first.off, k.first.n = k, off, n
	k.v.start(now, &k.first)
}

// op is what those pieces of k do that are under way.
func (k *call) op() blk.Op {
	if k.flushes {
		return blk.OpFlush
	}
	return k.r.Op
}

// maxPieces is how many pieces of a volume are under way or held, beside one of each request. The
// server says how much it takes at once: one that says a block would otherwise have this side make
// a message for each block of many discards of gigabytes.
const maxPieces = 1024

// check tells why a request fails at once.
func (v *Volume) check(now time.Duration, r *blk.Request) error {
	switch {
	case v.state == Unmapped:
		return blk.ErrClosed
	case v.failed != nil:
		return v.failed
	case v.state == Init:
		return ErrNotOpen
	case v.expired(now):
		return rtrs.ErrNoPath
	case v.syncErr != nil && syncs(r):
		return v.syncErr
	}
	return v.info.Check(r)
}

// start gives a piece to the session, cut to the size of one message.
func (v *Volume) start(now time.Duration, p *piece) {
	c := v.c
	for {
		switch {
		case v.state == Unmapped:
			p.end(now, blk.ErrClosed)
			return
		case v.failed != nil:
			p.end(now, v.failed)
			return
		case p.call.err != nil: // of a piece before, which the session did not take
			p.end(now, p.call.err)
			return
		// Requests of the session run, and this volume's have no device number to name. While the
		// session's wait, they wait there with the others (tryResume).
		case v.state != Open && c.resumed:
			v.hold(now, p)
			return
		}
		var rest *piece
		most := v.most(p.call.op())
		if most == 0 && p.n > 0 { // what it offered when the request came it does not offer any more
			p.end(now, rdserr.With(blk.ErrNotSupported, "volume %q: the server cannot %v any more", v.name, p.call.op()))
			return
		}
		if p.n > most {
			rest = c.newPiece(p.call)
			rest.off, rest.n = p.off+most, p.n-most
			p.n = most
			// Before p is sent: it may be done before Submit returns, and must not end the call.
			p.call.left++
		}
		v.send(now, p)
		if rest == nil {
			return
		}
		k := rest.call
		if k.out > 0 && v.out >= maxPieces {
			rest.next, k.rest = k.rest, rest
			return
		}
		k.out++
		v.out++
		p = rest
	}
}

// further starts the next piece of k, if one waits for the end of another; after an error none
// is worth a message.
func (k *call) further() {
	v := k.v
	c := v.c
	for k.rest != nil && (k.err != nil || k.out == 0 || v.out < maxPieces) {
		p := k.rest
		k.rest, p.next = p.next, nil
		if k.err == nil {
			k.out++
			v.out++
			c.startAgain(p)
			continue
		}
		k.left--
		c.unused(p)
	}
}

// startAgain has p started when no function on the stack walks a list of the session (restart).
func (c *Client) startAgain(p *piece) {
	if p.next = nil; c.again == nil {
		c.again = p
	} else {
		c.last.next = p
	}
	c.last = p
}

// unused keeps p, which is not the first of its call, for another.
func (c *Client) unused(p *piece) {
	p.call = nil
	p.next, c.pieces = c.pieces, p
}

func (c *Client) newPiece(k *call) *piece {
	p := c.pieces
	if p == nil {
		p = &piece{}
	} else {
		c.pieces, p.next = p.next, nil
	}
	p.call = k
	return p
}

// rws are the operations as a kernel sends them: with Sync always, and a flush with FUA.
var rws = [blk.NumOps]uint32{
	blk.OpRead:        rnbdwire.RW(rnbdwire.Read, rnbdwire.Sync),
	blk.OpWrite:       rnbdwire.RW(rnbdwire.Write, rnbdwire.Sync),
	blk.OpFlush:       rnbdwire.RW(rnbdwire.Flush, rnbdwire.Sync|rnbdwire.FUA),
	blk.OpDiscard:     rnbdwire.RW(rnbdwire.Discard, rnbdwire.Sync),
	blk.OpWriteZeroes: rnbdwire.RW(rnbdwire.WriteZeroes, rnbdwire.Sync),
}

// message writes the IO message of p for device id. A kernel fails FUA on anything but a write
// (block/blk-core.c, submit_bio_noacct): what else is to be durable goes to it without, and is
// flushed when all pieces are done (end).
func (p *piece) message(id uint32) {
	r, op := p.call.r, p.call.op()
	m := rnbdwire.IO{DeviceID: id, Sector: p.off / rnbdwire.SectorSize, RW: rws[op], Size: uint32(p.n)}
	// As a kernel sends it (docs/protocol.md, "RNBD").
	if op == blk.OpFlush {
		m.Sector = rnbdwire.NoSector
	}
	fua := r.Flags&blk.FUA != 0 && op.Writes()
	p.bare = fua && op != blk.OpWrite && p.call.v.c.features&rnbdwire.FeatFlags == 0
	if fua && !p.bare {
		m.RW |= uint32(rnbdwire.FUA)
	}
	if r.Flags&blk.NoUnmap != 0 && op == r.Op {
		m.RW |= uint32(rnbdwire.NoUnmap)
	}
	p.req.Usr = m.Append(p.usr[:0])
}

// send gives p to the session.
func (v *Volume) send(now time.Duration, p *piece) {
	p.message(v.id)
	q, r := &p.req, p.call.r
	q.Op, q.Data, q.Err, q.Ctx, q.Flow, q.Since, q.Abandoned = rtrs.Write, nil, nil, p, v.c.flow, p.call.since, false
	// A flush is carried by a READ without data.
	if op := p.call.op(); op == blk.OpRead || op == blk.OpFlush {
		q.Op = rtrs.Read
	}
	if r.Buf != nil {
		q.Data = r.Buf[p.off-r.Off:][:p.n]
	}
	// Before Submit, which may call Done.
	v.inflight++
	if err := v.c.rt.Submit(now, q); err != nil {
		v.inflight--
		p.end(now, err)
	}
}

// donePiece takes p back from the session.
func (c *Client) donePiece(now time.Duration, p *piece) {
	v, err := p.call.v, p.req.Err
	v.inflight--
	// It came back unsent because its volume is not open in this generation, or takes less at
	// once. It is started later, because the session's list is being walked.
	if err == errAgain {
		c.startAgain(p)
		return
	}
	if answeredBy(err) {
		if err = answer(err); rdserr.Errno(err) == ErrNotOpen.Errno && v.state == Open {
			v.openAtServer = false
			v.fail(now, rdserr.With(ErrNotOpen, "the server has taken volume %q from this session", v.name))
		} else if storeError(err) {
			// It counts only if it is the first error of the call, which is the one that
			// the caller gets.
			p.call.store = p.call.store || p.call.err == nil
			asked := blk.Request{Op: p.call.op(), Flags: p.call.r.Flags}
			if p.bare {
				asked.Flags &^= blk.FUA
			}
			p.call.lost = p.call.lost || blk.LosesSync(&asked, err)
		}
	}
	p.end(now, err)
	// A CLOSE, or the end of the volume, may have waited for the end of the last one.
	if v.inflight == 0 && v.state != Open {
		v.pump(now)
	}
}

// end counts p as done with err, and completes its call with the last piece.
func (p *piece) end(now time.Duration, err error) {
	k := p.call
	c := k.v.c
	if k.err == nil {
		k.err = err
	}
	k.bare = k.bare || p.bare
	// The caller's memory: nothing of ours may reach it once it is complete.
	p.req.Data = nil
	if p != &k.first {
		c.unused(p)
	}
	k.left--
	k.out--
	k.v.out--
	if k.further(); k.left > 0 {
		return
	}
	r, v := k.r, k.v
	// The store has lost unflushed writes since the first pieces were done, so the whole is
	// done again.
	if k.err == nil && k.losses != v.losses && r.Op.Writes() && r.Len > p.n && v.info.WriteCache && (!syncs(r) || k.bare) {
		k.start(now) //
		return
	}
	// What went without FUA (message) is durable after this.
	if k.err == nil && k.bare && !k.flushes {
		k.flushes = true
		k.startFirst(now, 0, 0)
		return
	}
	r.Err = v.outcome(k)
	k.r, k.v, k.err = nil, nil, nil
	k.next, c.calls = c.calls, k
	c.done.Push(r)
}

// outcome notes how a request ended and returns the error for its caller (B7).
func (v *Volume) outcome(k *call) error {
	r, err := k.r, k.err
	switch {
	case err != nil && k.store:
		if !v.failing {
			v.failing = true
			v.c.env.Event(ClientEvent{Kind: VolumeIOError, Volume: v, Op: k.op(), Err: err})
		}
		v.err = err
		// The store may have dropped data that it could not write and forgotten that: a later
		// flush would succeed and mean nothing (as with fsync of a file).
		if k.lost {
			v.syncLost(rdserr.With(blk.ErrSyncFailed, "volume %q: a %v failed at the server (%v): what was written before may be lost; map the volume anew", v.name, k.op(), err))
		}
		return err
	case err != nil:
		return err
	}
	v.failing = false
	switch {
	case syncs(r) && v.syncErr != nil: // of a moment ago
		return v.syncErr
	case r.Op == blk.OpFlush:
		// Only writes complete when the flush came count, not those completed since.
		v.synced = max(v.synced, k.wrote)
	case r.Op.Writes() && !syncs(r) && v.info.WriteCache:
		v.wrote++
	}
	return nil
}

// syncLost makes every flush and every write with FUA fail from now on.
func (v *Volume) syncLost(err error) {
	if v.syncErr == nil {
		v.syncErr = err
		v.c.env.Keep(v)
		v.c.env.Event(ClientEvent{Kind: VolumeSyncLost, Volume: v, Err: err})
	}
}

// hold keeps p until the server has the volume.
func (v *Volume) hold(now time.Duration, p *piece) {
	limit := v.c.limit(p)
	switch {
	case v.expired(now):
		p.end(now, rtrs.ErrNoPath)
		return
	// Its time may have passed while it was with the session.
	case now >= limit:
		p.end(now, rtrs.ErrTimeout)
		return
	}
	v.heldUntil, p.next = min(v.heldUntil, limit), nil
	if v.held == nil {
		v.held, v.heldUntil = p, limit
	} else {
		v.heldLast.next = p
	}
	v.heldLast = p
}

// limit returns when a request fails at the latest.
func (c *Client) limit(p *piece) time.Duration {
	if c.cfg.OnLoss != rtrs.Error {
		return Never
	}
	return p.call.since + c.cfg.IOTimeout + c.cfg.LossTimeout
}

// expireHeld fails pieces that have been held beyond their limit.
func (v *Volume) expireHeld(now time.Duration) {
	v.takeHeld(func(p *piece) { v.hold(now, p) })
}

// release starts the pieces that are held.
func (v *Volume) release(now time.Duration) {
	v.takeHeld(func(p *piece) { v.start(now, p) })
}

// failHeld fails the pieces that are held.
func (v *Volume) failHeld(now time.Duration, err error) {
	v.takeHeld(func(p *piece) { p.end(now, err) })
}

// takeHeld empties the list of held pieces, in order; do may hold them again.
func (v *Volume) takeHeld(do func(*piece)) {
	list := v.held
	// Emptied first: do may hold it again, and end may submit more.
	v.held = nil
	for list != nil {
		p := list
		list, p.next = p.next, nil
		do(p)
	}
}
