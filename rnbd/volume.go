package rnbd

import (
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// Volume is a volume of the server. Its methods are called with the Client's
// lock held. The shell makes a blk.Device of it: Submit, Info (a copy kept by
// ClientEnv.Changed) and Close (Unmap).
type Volume struct {
	Ctx any // the shell's

	c      *Client
	name   string
	access rnbdwire.Access

	// Where it stands (state.go).

	state State // changes in setState alone
	since time.Duration
	// failed is why the volume is closed for good: nothing but Remap opens it. It is nil
	// otherwise.
	failed error
	err    error // the last there was
	force  bool  // unmapped without waiting for the server
	// ending says that Unmap is giving up the requests that the session has; see empty.
	ending  bool
	leaving bool // Leave: the server is not told

	// Where it is not what it was (kept.go).

	stale  bool // it was found so, and was not opened since
	noting bool // ClientEnv.Note has not been answered

	// The server's answers about it.

	id uint32 // its device number, in this generation of the session
	// openAtServer says that the server has it open, as far as is known: it has to be
	// closed before the volume ends.
	openAtServer bool
	rsp          rnbdwire.OpenRsp
	store        rnbdwire.Store
	info         *blk.Info // made of rsp; replaced, never changed. nil: it was never open
	limits       limits    // of one message

	// Messages about it (duties). openSentIn and openAnsweredIn tell whether its state is
	// of the session's present generation (Client.generation): requests run again only
	// after that.
	//
	// Invariant: openAnsweredIn <= openSentIn <= Client.generation.

	admin          admin         // the one under way
	openSentIn     uint          // the generation in which OPEN was last sent
	openAnsweredIn uint          // the generation in which an OPEN was last answered
	retryAt        time.Duration // Closed: when OPEN goes again. Unmapped: when requests are given up again
	askAt          time.Duration // when INFO goes
	asked          bool          // Ask was called, and the question has not gone yet
	askErr         error         // how the last question ended
	former         *Kept         // MapAgain: what it was, until the server has answered. nil: it is mapped anew
	acceptAny      bool          // Remap: any store that the server has now is right (lost, sendOpen)

	// Requests (volumeio.go). A piece that is not done is with the session (inflight), or
	// held here because the volume was not Open when the session's requests ran.

	inflight  int // pieces the session has
	out       int // the sum of its calls' out: beyond maxPieces each has one
	held      *piece
	heldLast  *piece
	heldUntil time.Duration // the first of their limits; Never: none has one
	failing   bool          // the last request failed at the store

	// Durability (volumeio.go, outcome; docs/protocol.md, the verifier).
	//
	// Invariant: synced <= wrote. If the store may have lost unflushed writes while synced
	// < wrote, syncErr is set, for good.

	losses  uint   // counts the times when the store may have lost unflushed writes
	wrote   uint64 // completed writes that the next flush makes durable
	synced  uint64 // how many of them are
	syncErr error  // no flush and no write with FUA succeeds any more
}

// Name returns the volume's name at the server, Access how it is opened.
func (v *Volume) Name() string            { return v.name }
func (v *Volume) Access() rnbdwire.Access { return v.access }

// State returns the volume's state, and since when it has it.
func (v *Volume) State() (s State, since time.Duration) { return v.state, v.since }

// Err returns why it is closed, or else the last error, nil if there was none.
func (v *Volume) Err() error {
	if v.failed != nil {
		return v.failed
	}
	return v.err
}

// Final returns why it is closed until Remap, whatever becomes of its paths; nil: it is not.
func (v *Volume) Final() error { return v.failed }

// Info describes the volume as a device that takes requests of blk.MaxIO, as
// they are cut to pieces; nil before it was open. It is not changed any more.
func (v *Volume) Info() *blk.Info { return v.info }

// Piece returns how many bytes travel in one message.
func (v *Volume) Piece() uint32 { return uint32(v.most(blk.OpRead)) }

// Inflight returns how many messages of it the session has, and how many wait for the
// server to have the volume.
func (v *Volume) Inflight() (sent, held int) {
	for p := v.held; p != nil; p = p.next {
		held++
	}
	return v.inflight, held
}

// Asking reports whether a message about the volume itself (OPEN, CLOSE or INFO) has no
// answer yet.
func (v *Volume) Asking() bool { return v.admin.busy }

// AskErr returns why the last question about the volume's properties had no answer; nil: it had.
func (v *Volume) AskErr() error { return v.askErr }

// answered takes the outcome of the message about v that was under way.
func (v *Volume) answered(now time.Duration, a *admin) {
	switch err := a.req.Err; a.kind {
	case rnbdwire.CloseType:
		if v.state == Unmapped {
			v.finish(now)
			return
		}
	case rnbdwire.OpenType:
		// Any answer counts: requests of the session wait until each volume has had one.
		v.openAnsweredIn = v.c.generation
		if err == nil {
			err = v.opened(now)
		}
		switch {
		case err == nil:
		// It was only asked what it is like: what the server does not tell now changes nothing.
		case v.state == Open:
			v.askErr = err
		default:
			v.refused(now, err)
		}
		v.c.tryResume(now)
	case rnbdwire.InfoType:
		v.infoAnswered(now, err)
	}
	// A message that became due while this one was under way goes now.
	v.pump(now)
}

// opened takes the server's answer that the volume is open there. It returns an error if
// the volume is not the one it was.
func (v *Volume) opened(now time.Duration) error {
	rsp, err := rnbdwire.ParseOpenRsp(v.admin.rsp[:])
	if err != nil {
		return rdserr.With(rdserr.ErrProtocol, "volume %q: %v", v.name, err)
	}
	var store rnbdwire.Store
	if v.c.features&rnbdwire.FeatInfo != 0 {
		store = rnbdwire.ParseStore(v.admin.rsp[:])
	}
	v.id, v.openAtServer = rsp.DeviceID, !v.leaving
	if v.state == Unmapped || v.failed != nil {
		// It was unmapped while the server was opening it, or closed for good while it was asked
		// (Ask, of a kernel): pump closes it.
		return nil
	}
	// This comes after openAtServer is set: a volume that the server has opened and we
	// cannot use has to be closed.
	if err := v.describe(&rsp); err != nil {
		return err
	}
	if v.state == Init {
		if v.former != nil {
			if err := v.resume(&rsp, store); err != nil {
				v.stales()
				v.err = err
				v.fail(now, err)
				v.c.env.Mapped(v, nil)
				return nil
			}
		}
		v.rsp, v.store = rsp, store
		v.become(now, Open, nil)
		v.askAt = v.askFirst(now)
		v.c.env.Mapped(v, nil)
		return nil
	}
	if err := v.sameAs(&rsp, store); err != nil {
		v.stales()
		return err
	}
	is, was := store.Verifier, v.store.Verifier
	v.store, v.acceptAny = store, false
	if is != was || v.stale {
		v.stale = false
		v.c.env.Keep(v)
	}
	if v.state == Open { // Ask, of a kernel
		v.update(now, rsp)
		return nil
	}
	v.become(now, Open, nil)
	v.err = nil
	v.askAt = v.askFirst(now)
	v.update(now, rsp)
	// Otherwise tryResume does it, when the session's other volumes have been asked for too.
	if v.c.resumed {
		v.release(now)
	}
	return nil
}

// askFirst is when INFO goes for the first time: at once where the server says that others
// have written, and that was taken. It says so until it is asked something, also to the next
// process, for which it would be news.
func (v *Volume) askFirst(now time.Duration) time.Duration {
	if v.store.Foreign {
		return now
	}
	return v.askFrom(now)
}

// askFrom is when INFO goes next: on a grid that all volumes share, so that hundreds of them that
// nobody uses wake the shell some three times a second and not for each.
func (v *Volume) askFrom(now time.Duration) time.Duration {
	every := v.c.cfg.AskEvery
	if every < 0 {
		return Never
	}
	grid := max(every/16, 1)
	at := now + every + grid - 1
	return at - at%grid
}

// sameAs judges whether the volume that the server has opened again is the same, before
// waiting requests touch it.
func (v *Volume) sameAs(rsp *rnbdwire.OpenRsp, store rnbdwire.Store) error {
	changed := v.store.Verifier != 0 && store.Verifier != 0 && v.store.Verifier != store.Verifier
	// A verifier that was never known, or that does not come now, says nothing (a kernel's
	// server has none).
	switch {
	// The users of the device here have laid out everything in the old blocks.
	case rsp.LogicalBlock != v.rsp.LogicalBlock:
		return rdserr.With(ErrStale, "volume %q has come back with blocks of %d bytes, and had %d", v.name, rsp.LogicalBlock, v.rsp.LogicalBlock)
	// It is gone whatever has its name now: a file there is another store, also a kernel's, of which nothing else is known.
	case (changed && store.Volatile || v.store.Volatile && (changed || !store.Volatile)) && !v.acceptAny:
		return rdserr.With(ErrStale, "volume %q was in memory of the server, which has lost it", v.name)
	// Writes that wait here would overwrite data that the other session has written since, or
	// that of another store. Who reads is told of another store alone.
	case store.Foreign && !v.acceptAny:
		return rdserr.With(ErrStale, "volume %q has been open for writing in another session meanwhile, or is another store now; map it anew", v.name)
	// A flush now would succeed at the server and say that writes are durable which it has
	// never seen.
	case changed && v.wrote > v.synced:
		v.losses++
		v.syncLost(rdserr.With(blk.ErrSyncFailed, "volume %q: the server was started again, or a sync failed there, before all completed writes were flushed", v.name))
	// No completed request is lost, but the first pieces of a request in several pieces may
	// be (piece.end).
	case changed:
		v.losses++
	}
	return nil
}

// refused deals with a volume that could not be opened. Errors that may pass are tried
// again; anything else is left to the caller of Map.
func (v *Volume) refused(now time.Duration, err error) {
	if answeredBy(err) {
		err = answer(err)
	}
	v.err = err
	switch {
	case v.state == Init && !v.c.up && rdserr.Errno(err) == rtrs.ErrNoPath.Errno: // it waits for Up, as before
	// The caller of Map is told, and decides; a volume that was open once is tried again.
	case v.state == Init:
		v.c.forget(v)
		v.setState(now, Unmapped)
		v.c.env.Mapped(v, err)
	case v.state == Unmapped:
	case !v.c.up: // Down has been there, Up comes
	// The server may be about to have it: its disk is being attached, its daemon started.
	case transient(err):
		v.retryAt = now + v.c.cfg.RetryEvery
	default:
		v.fail(now, err)
	}
}

// passingErrnos may be answered by a server that is about to have the volume:
// EIO, ENXIO, EAGAIN; and timeouts of this side.
var transientErrnos = []*rdserr.Error{rdserr.ErrNotFound, ErrBusy, rdserr.ErrNoMemory, rdserr.ErrTooMany, rdserr.ErrIO, rdserr.ErrWouldBlock, rtrs.ErrTimeout,
	{Errno: 6, Name: "no-device", Text: "no such device"}}

func transient(err error) bool {
	return hasErrno(err, transientErrnos)
}

// fail closes the volume for good.
func (v *Volume) fail(now time.Duration, err error) {
	v.failed = err
	// This is told also when it is closed already, because the reason is new.
	v.c.env.Event(ClientEvent{Kind: VolumeState, Volume: v, From: v.state, To: Closed, Err: err})
	if v.state != Closed {
		v.setState(now, Closed)
	}
	v.failHeld(now, err)
}

// lost tells v that the session has no path any more.
func (v *Volume) lost(now time.Duration) {
	v.openAtServer, v.acceptAny = false, false
	if v.state == Open {
		v.become(now, Closed, rtrs.ErrNoPath)
	}
	v.pump(now) // an Unmap does not wait for the server any more
}

// infoAnswered takes the answer to INFO.
func (v *Volume) infoAnswered(now time.Duration, err error) {
	v.askErr = err
	switch {
	case err == nil:
		if rsp, err := rnbdwire.ParseOpenRsp(v.admin.rsp[:]); err == nil && rsp.DeviceID == v.id && v.state == Open && rsp != v.rsp {
			if err := v.describe(&rsp); err == nil && rsp.LogicalBlock == v.rsp.LogicalBlock {
				v.update(now, rsp)
			}
		}
	case answeredBy(err) && rdserr.Errno(err) == ErrNotOpen.Errno && v.state == Open:
		// There is nothing to be closed any more.
		v.openAtServer = false
		v.fail(now, rdserr.With(ErrNotOpen, "the server has taken volume %q from this session", v.name))
	}
}

// update takes over the server's answer. A size set by Resize stays until the server's
// changes.
func (v *Volume) update(now time.Duration, rsp rnbdwire.OpenRsp) {
	old := v.info
	info := infoOf(&rsp, v.access)
	// A size that Resize has set on this side stays until the server's own changes.
	if rsp.Sectors == v.rsp.Sectors {
		info.Size = old.Size
	}
	v.rsp = rsp
	if *info == *old {
		return
	}
	v.info = info
	v.c.env.Changed(v, info)
	if info.Size != old.Size {
		v.c.env.Event(ClientEvent{Kind: VolumeResized, Volume: v, Size: info.Size})
	}
}

// Resize changes the size on this side alone, as the kernel's attribute does:
// after the server's device has grown, and before the server was asked.
func (v *Volume) Resize(size uint64) error {
	if v.state == Unmapped || v.info == nil {
		return ErrGone
	}
	info := *v.info
	info.Size = size
	if err := info.Validate(); err != nil {
		return err
	}
	if size != v.info.Size {
		v.info = &info
		v.c.env.Changed(v, &info)
		v.c.env.Event(ClientEvent{Kind: VolumeResized, Volume: v, Size: size})
	}
	return nil
}

// Ask asks the server for the volume's present properties, now. Asking reports whether there is
// an answer yet, AskErr how that went.
func (v *Volume) Ask(now time.Duration) {
	v.askAt, v.asked = now, true
	v.pump(now)
}

// Ending reports whether v is closed for good and requests from before that have not ended. They
// must not run after Remap: it is for other writes than theirs that the volume was closed.
func (v *Volume) Ending() bool { return v.failed != nil && v.waits() }

// waits tells whether requests of v are with the session, held or to be started again.
func (v *Volume) waits() bool {
	for p := v.c.again; p != nil; p = p.next {
		if p.call.v == v {
			return true
		}
	}
	return v.inflight > 0 || v.held != nil
}

// Remap opens a closed volume again, also one that is closed for good; it is ErrBusy while that
// is Ending. Events tell how it ends.
func (v *Volume) Remap(now time.Duration) error {
	switch {
	case v.state == Open:
		return ErrAlready
	case v.state == Unmapped:
		return ErrGone
	case v.state == Init || v.admin.busy:
		return rdserr.With(ErrBusy, "volume %q is being opened", v.name)
	case !v.c.up:
		return rdserr.With(rdserr.ErrHostDown, "there is no path to the server; volume %q is opened when there is one", v.name)
	case v.Ending():
		return rdserr.With(ErrBusy, "volume %q: requests from before it was closed have not ended yet", v.name)
	}
	// acceptAny: the administrator who remaps has been told what may be lost, and takes the
	// volume as it is. Who was not told yet does so where nothing waits that could go over
	// something.
	v.acceptAny = v.acceptAny || v.failed != nil || !v.waits()
	v.failed, v.retryAt = nil, now
	v.pump(now)
	return nil
}

// Unmap ends the volume, or is ErrBusy while requests are under way. It is closed at
// the server; ClientEnv.Unmapped follows when that has answered.
func (v *Volume) Unmap(now time.Duration) error {
	switch {
	case v.state == Unmapped:
		return ErrGone
	case v.inflight > 0 || v.held != nil:
		return rdserr.With(ErrBusy, "volume %q has requests under way", v.name)
	}
	v.unmap(now)
	return nil
}

// ForceUnmap ends the volume with requests under way: those that wait fail, and those
// that the session has are given up as soon as it can. ClientEnv.Unmapped follows then,
// whether or not the server has answered.
func (v *Volume) ForceUnmap(now time.Duration) error {
	switch {
	case v.state == Unmapped && v.force:
		return ErrGone
	case v.state == Unmapped:
		// It waits for the server already, and from now on does not any more.
		v.force = true
		if v.inflight == 0 {
			v.finish(now)
		}
		return nil
	}
	v.force = true
	v.unmap(now)
	return nil
}

func (v *Volume) unmap(now time.Duration) {
	v.become(now, Unmapped, nil)
	// Requests held here end at once; the session ends those that it has as soon as their
	// memory is no longer used.
	v.failHeld(now, blk.ErrClosed)
	v.giveUp(now)
	v.pump(now)
	v.c.tryResume(now) // no request waits for this one any more
}

// giveUpEvery is the pause between attempts to give up the requests that a session without
// a path keeps.
const giveUpEvery = 100 * time.Millisecond

// giveUp takes back from the session the requests that it is not sending. A write that may still happen
// comes back when that is over, and has no limit: were it to fail, the session would send nothing of any
// volume until then.
func (v *Volume) giveUp(now time.Duration) {
	if v.inflight == 0 {
		return
	}
	v.retryAt = now + giveUpEvery
	// Each that comes back does so to donePiece, and the last would finish the volume while
	// the session's list is being walked.
	v.ending = true
	v.c.rt.Each(func(r *rtrs.Req) {
		if p, ok := r.Ctx.(*piece); ok && p.call.v == v {
			r.Abandoned = true
			v.c.rt.Recall(now, r, blk.ErrClosed)
		}
	})
	v.ending = false
}

// finish is the end of a volume that is unmapped.
func (v *Volume) finish(now time.Duration) {
	// The end may be reached by two ways: a CLOSE answered at once, and force behind it.
	if !slices.Contains(v.c.volumes, v) {
		return
	}
	v.c.forget(v)
	v.c.env.Unmapped(v)
}

func (c *Client) forget(v *Volume) {
	c.volumes = slices.DeleteFunc(c.volumes, func(o *Volume) bool { return o == v })
}

// tick carries out everything that is due.
func (v *Volume) tick(now time.Duration) {
	if v.expired(now) {
		v.failHeld(now, rtrs.ErrNoPath)
	}
	if v.held != nil && now >= v.heldUntil {
		v.expireHeld(now)
	}
	if v.state == Unmapped && now >= v.retryAt {
		v.giveUp(now)
	}
	v.pump(now)
}

// expired tells whether requests have waited long enough for the server to
// have the volume.
func (v *Volume) expired(now time.Duration) bool {
	return v.c.cfg.OnLoss == rtrs.Error && v.state == Closed && now-v.since >= v.c.cfg.LossTimeout
}

func (v *Volume) next() time.Duration {
	next := Never
	if v.state == Closed && v.held != nil && v.c.cfg.OnLoss == rtrs.Error {
		next = min(v.since+v.c.cfg.LossTimeout, v.heldUntil)
	}
	if v.state == Unmapped && v.inflight > 0 {
		next = v.retryAt
	}
	if v.c.introduced && !v.admin.busy {
		switch {
		case v.state == Closed && v.failed == nil:
			next = min(next, v.retryAt)
		case v.state == Open && v.c.features&rnbdwire.FeatInfo != 0:
			next = min(next, v.askAt)
		}
	}
	return next
}
