package rnbd

import (
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Design notes.
//
// The device decides whether a request is possible (blk.Info.Check). Decided here are the
// handle it belongs to, whether the message agrees with itself, and the order of syncs. One
// RNBD request is up to three of the device's: a flush before, the operation, a flush
// after. A kernel before protocol 2.1 sends FUA for PREFLUSH, so a write with FUA of a
// client without FeatFlags is preceded by a flush, too; if the client has flushed already,
// as Linux does, that flush has nothing left to do.
//
// A request that was not submitted when its path or its volume went is dropped:
// Next looks at the last moment.

// ioReq is a request on its way through a device; it stays with the ServerReq.
type ioReq struct {
	req   blk.Request
	rt    *rtrs.ServerReq
	h     *handle
	next  []step // the steps that remain; a slice of a table
	op    blk.Op
	flags blk.Flags
	off   uint64
	n     uint64
	since time.Duration // it came
}

// step is one request to the device.
type step uint8

const (
	doFlush step = iota
	doOp
)

// plans, by flush before and flush after.
var plans = [2][2][]step{
	{{doOp}, {doOp, doFlush}},
	{{doFlush, doOp}, {doFlush, doOp, doFlush}},
}

// Request carries out r (rtrs.ServerEnv.Request): it is answered at once, or
// after the device, whose requests Next hands out.
func (s *Server) Request(now time.Duration, r *rtrs.ServerReq) {
	e, _ := r.Session.Ctx.(*session)
	// One may have waited for memory since Stale, which tells of its path once.
	if e == nil || e.down || r.Stale() {
		s.rt.Reply(now, r, 0, ErrNotOpen)
		return
	}
	kind, err := rnbdwire.Kind(r.Usr)
	switch {
	case err != nil:
		s.rt.Reply(now, r, 0, rdserr.With(rdserr.ErrInvalid, "%v", err))
	case kind == rnbdwire.IOType:
		s.io(now, e, r)
	case kind == rnbdwire.SessInfo:
		s.sessInfo(now, e, r)
	case kind == rnbdwire.OpenType:
		s.open(now, e, r)
	case kind == rnbdwire.CloseType:
		s.closeReq(now, e, r)
	case kind == rnbdwire.InfoType:
		s.info(now, e, r)
	default:
		s.rt.Reply(now, r, 0, rdserr.With(rdserr.ErrInvalid, "RNBD message of type %d", kind))
	}
}

// carrier is the RTRS request of an operation.
func carrier(o rtrs.Op) rtrswire.Type {
	if o == rtrs.Read {
		return rtrswire.Read
	}
	return rtrswire.Write
}

// ops are the operations of RNBD as the device has them.
var ops = [...]blk.Op{rnbdwire.Read: blk.OpRead, rnbdwire.Write: blk.OpWrite, rnbdwire.Flush: blk.OpFlush,
	rnbdwire.Discard: blk.OpDiscard, rnbdwire.WriteZeroes: blk.OpWriteZeroes}

func (s *Server) io(now time.Duration, e *session, r *rtrs.ServerReq) {
	m, err := rnbdwire.ParseIO(r.Usr)
	if err == nil {
		err = m.Check(carrier(r.Op), uint32(len(r.Data)))
	}
	if err != nil {
		s.rt.Reply(now, r, 0, rdserr.With(rdserr.ErrInvalid, "%v", err))
		return
	}
	h := e.open[m.DeviceID]
	switch {
	case h == nil || h.state != handleOpen:
		err = ErrNotOpen
	case m.Op() == rnbdwire.SecureErase:
		err = blk.ErrNotSupported
	case m.Sector > blk.MaxSize/rnbdwire.SectorSize && m.Op() != rnbdwire.Flush:
		err = blk.ErrRange
	default:
		// Each request, not the OPEN alone: a session may get a path from another address later.
		if err = h.mayUse(r.Path.Remote.Addr()); err == nil && !h.seen {
			s.request(h)
		}
	}
	if err != nil {
		s.rt.Reply(now, r, 0, err)
		return
	}
	// Kept with the request of the session, so that in steady state nothing is allocated.
	q, _ := r.Ctx.(*ioReq)
	if q == nil {
		q = &ioReq{}
		q.req.Ctx = q
		r.Ctx = q
	}
	info := h.store.dev.Info()
	q.rt, q.h, q.op, q.flags, q.since = r, h, ops[m.Op()], 0, now
	q.off, q.n = m.Sector*rnbdwire.SectorSize, uint64(m.Size)
	// A kernel's flush has all ones for a sector: the whole device is meant.
	if q.op == blk.OpFlush {
		q.off, q.n = 0, 0
	}
	if err = q.plan(info, m.Flags(), e.features&rnbdwire.FeatFlags != 0); err != nil {
		q.rt, q.h = nil, nil
		s.rt.Reply(now, r, 0, err)
		return
	}
	if q.op.Writes() {
		h.wrote, h.store.vol.last = true, h
		if h.store.vol.apart {
			s.overtakes(h)
		}
	}
	// From here on the volume is not closed before this is answered.
	h.inflight++
	s.step(q)
}

// AtStore tells which volume's device has r, or gets it next, also if no session has that volume open any
// more, and since when r is here; without a Device: r is about none.
func AtStore(r *rtrs.ServerReq) (of OpenInfo, since time.Duration) {
	// A request that waits for something else may have what is left of another.
	q, _ := r.Ctx.(*ioReq)
	if q == nil || q.rt != r || q.h.store == nil {
		return OpenInfo{}, 0
	}
	return q.h.info(), q.since
}

// plan decides which requests of the device make up q. An impossible request is refused
// before anything is flushed.
func (q *ioReq) plan(info *blk.Info, f rnbdwire.Flags, exact bool) error {
	var before, after int
	if q.op.Writes() {
		if q.h.access == rnbdwire.ReadOnly {
			return rdserr.With(blk.ErrReadOnly, "volume %q is open with access ro", q.h.name)
		}
		durable := f&(rnbdwire.FUA|rnbdwire.Preflush) != 0
		switch {
		case !durable:
		case info.FUA:
			q.flags |= blk.FUA
		case info.WriteCache:
			after = 1
		}
		// A kernel before protocol 2.1 says FUA where PREFLUSH was meant: unless the client has
		// shown that it tells them apart, both are done.
		if durable && info.WriteCache && (f&rnbdwire.Preflush != 0 || !exact) {
			before = 1
		}
		if q.op == blk.OpWriteZeroes && f&rnbdwire.NoUnmap != 0 {
			q.flags |= blk.NoUnmap
		}
		// A request that the device would refuse is refused before the flush, which would
		// be for nothing.
		if before == 1 {
			if err := info.CheckRange(q.op, q.flags, q.off, q.n); err != nil {
				return err
			}
		}
	}
	q.next = plans[before][after]
	return nil
}

// step queues the next request of q for its device.
func (s *Server) step(q *ioReq) {
	r := &q.req
	r.Queue, r.Err = nil, nil
	if q.next[0] == doFlush {
		r.Op, r.Flags, r.Off, r.Len, r.Buf = blk.OpFlush, 0, 0, 0, nil
	} else {
		r.Op, r.Flags, r.Off, r.Len, r.Buf = q.op, q.flags, q.off, q.n, nil
		if q.op == blk.OpRead || q.op == blk.OpWrite {
			r.Buf = q.rt.Data
		}
	}
	q.next = q.next[1:]
	st := q.h.store
	st.pending.Push(r)
	// Once in the list, however many of its requests wait.
	if !st.queued {
		st.queued = true
		s.ready = append(s.ready, st)
	}
}

// Next hands out requests for one device: as many as fit into buf, which is
// empty and has capacity. The caller sets their Queue, lets the lock go,
// submits them to d, and calls Next again, until there are none. Their
// completions go to Complete.
func (s *Server) Next(now time.Duration, buf []*blk.Request) (d blk.Device, batch []*blk.Request) {
	for len(s.ready) > 0 {
		st := s.ready[0]
		for st.pending.Len() > 0 && len(buf) < cap(buf) {
			r := st.pending.Pop()
			// This is the last moment to drop it: a request that has not begun when its path or
			// session is gone need not begin, and after a fence it must not.
			if q := r.Ctx.(*ioReq); q.h.state != handleOpen || q.rt.Stale() {
				s.finish(now, q, ErrNotOpen)
				continue
			}
			buf = append(buf, r)
		}
		last := len(s.ready) - 1
		copy(s.ready, s.ready[1:])
		// A device with more than fits goes behind the others: one that is busy does not keep them
		// waiting.
		if s.ready[last] = st; st.pending.Len() == 0 { // else behind the others
			st.queued = false
			s.ready[last] = nil
			s.ready = s.ready[:last]
		}
		if len(buf) > 0 {
			return st.dev, buf
		}
	}
	return nil, nil
}

// Complete takes requests back from a device, and answers.
func (s *Server) Complete(now time.Duration, batch []*blk.Request) {
	for _, r := range batch {
		q := r.Ctx.(*ioReq)
		// A step that failed ends the request: a write is not durable if the flush after it was
		// not, and is not done at all if the one before it failed.
		if r.Err != nil || len(q.next) == 0 {
			s.finish(now, q, r.Err)
		} else {
			s.step(q)
		}
	}
}

// finish answers q.
func (s *Server) finish(now time.Duration, q *ioReq, err error) {
	h, n := q.h, 0
	if err != nil {
		s.failed(h, q, err)
	} else {
		h.store.failing = false
		if q.op == blk.OpRead {
			n = len(q.rt.Data)
		}
	}
	r := q.rt
	// Before Reply, which may use the request, and q with it, for the next.
	q.rt, q.h, q.next, q.req.Buf, q.req.Queue = nil, nil, nil, nil, nil
	s.rt.Reply(now, r, n, err)
	h.inflight--
	s.drained(now, h)
}

// failed takes note of an error of the store.
func (s *Server) failed(h *handle, q *ioReq, err error) {
	if !storeError(err) {
		return
	}
	st := h.store
	ev := ServerEvent{Name: h.name, Session: h.sess.rt.Name, Access: h.access, Op: q.req.Op, Err: err}
	if !st.failing {
		st.failing = true
		ev.Kind = ServerIOError
		s.env.Event(ev)
	}
	// Once for a store that is open. Later flushes of it fail by themselves (blk.ErrSyncFailed).
	if blk.LosesSync(&q.req, err) && !st.lost {
		st.lost = true
		s.syncLost(st.vol.id)
		ev.Kind = ServerSyncLost
		s.env.Event(ev)
	}
}

// syncs tells whether a request completes only when something is durable.
func syncs(r *blk.Request) bool {
	return r.Op == blk.OpFlush || r.Flags&blk.FUA != 0 && r.Op.Writes()
}

// refusals are errors of the request, not of the store.
var refusals = []*rdserr.Error{blk.ErrRequest, blk.ErrReadOnly, blk.ErrNotSupported, blk.ErrClosed, ErrNotOpen, ErrWriter, rdserr.ErrPerm}

// storeError tells whether the store failed, as opposed to being asked wrongly.
func storeError(err error) bool {
	return !hasErrno(err, refusals)
}

// hasErrno reports whether err has the number of an error in list: an error from the wire
// is no more than that number.
func hasErrno(err error, list []*rdserr.Error) bool {
	n := rdserr.Errno(err)
	return slices.ContainsFunc(list, func(e *rdserr.Error) bool { return e.Errno == n })
}
