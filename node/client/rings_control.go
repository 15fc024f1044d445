package client

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// ringControl carries the messages of a socket with rings that are not
// datagrams. Everything happens on the reactor's thread, and in few bytes: no
// goroutine and no buffer for each of a thousand idle sockets.
//
// Turns: a turn reads a few messages of a user's clients (datagram.Share), in the order in
// which they came; who finds them read comes again in the next, behind those who wait
// already.
//
// Back-pressure: while answers wait for a client that does not read them, and while
// a Cancel waits for what was posted before it, nothing more is
// read. What the client sends then stays in its own socket buffer.
type ringControl struct {
	packetStream // its context
	r            *ringSock
	ctl          *shm.Control
	out          [][]byte // messages behind the one that ctl is writing; guarded by sockStream.wmu
	outHeld      int64    // what of them is charged; guarded by sockStream.wmu
	watched      uint32   // events asked for
	in           inMsg
	held         bool // in waits until the rings are taken up to ringSock.point
	queued       bool // again is about to be called
	againFn      func()
	half         *time.Timer // runs while a message has come in part
}

// maxControlOut bounds the answers that wait: one for each Flush that is not
// answered, those to the message that was read last, and what is said of pairs.
const maxControlOut = maxFlushes + 16 + 4*maxPairs

// maxRingMessage bounds the messages of a client with rings that are read: on the reactor,
// which a message of a megabyte of small fields would hold up for tens of milliseconds. The
// largest of them has some 100 bytes.
const maxRingMessage = 4 << 10

func (c *ringControl) start(r *ringSock, ctl *shm.Control) {
	c.r, c.ctl = r, ctl
	c.againFn = c.again
	r.s.stream = c
	r.s.answerer = c.wake
	r.s.onEnd(func(err error) { r.react.DoFor(r, func() { r.end(err) }) })
}

func (c *ringControl) begin() error {
	c.watched = unix.EPOLLIN
	return c.r.react.Add(c.ctl.FD, c.watched, c)
}

// stopped reports whether nothing is to be read for now.
func (c *ringControl) stopped() bool { return c.held || c.ctl.Pending() }

// watch brings up to date what the reactor watches the connection for.
func (c *ringControl) watch() error {
	var want uint32
	if !c.stopped() {
		want |= unix.EPOLLIN
	}
	if c.ctl.Pending() {
		want |= unix.EPOLLOUT
	}
	if want == c.watched {
		return nil
	}
	c.watched = want
	return c.r.react.Modify(c.ctl.FD, want)
}

// Ready is called when there are messages of the client, or its end, or room for ours.
func (c *ringControl) Ready(events uint32) {
	guard.Point("ring.control")
	if events&unix.EPOLLOUT != 0 && !c.flush() {
		c.r.close()
		return
	}
	c.read(events)
}

// again is read, in another turn.
func (c *ringControl) again() {
	c.queued = false
	if !c.r.closed {
		c.read(0)
	}
}

// read takes messages as long as there are some and it is the client's turn.
func (c *ringControl) read(events uint32) {
	for !c.stopped() && !c.queued {
		if !c.r.share.MayLook(c.r.react.Now()) {
			c.queued = true
			c.r.react.DoFor(c.r, c.againFn)
			break
		}
		b, _, err := c.ctl.Recv()
		if errors.Is(err, shm.ErrAgain) {
			break
		}
		if errors.Is(err, io.EOF) {
			c.r.close()
			return
		}
		if err == nil && len(b) > maxRingMessage {
			err = rdserr.With(rdserr.ErrTooLarge, "a message of %d bytes; of a client with rings it has at most %d", len(b), maxRingMessage)
		}
		if err == nil {
			err = unmarshalCopy(b, &c.in)
		}
		if err == nil {
			err = c.r.control(&c.in)
			if !c.held {
				c.in.release()
			}
		}
		if c.r.closed { // by what the message did; the connection is another's to close
			return
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
	c.expectRest()
	if c.stopped() && events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.r.close() // it is gone, and nothing is read that would say so
		return
	}
	if err := c.watch(); err != nil {
		c.fail(err)
	}
}

// expectRest gives a message that has come in part a time to be complete.
func (c *ringControl) expectRest() {
	switch half := c.ctl.Half() && !c.stopped(); {
	case half && c.half == nil:
		c.half = time.AfterFunc(piecesTime, func() {
			defer c.r.front.deps.Guard.Recover(guard.Socket, nil)
			c.r.react.DoFor(c.r, c.restMissing)
		})
	case !half && c.half != nil:
		c.half.Stop()
		c.half = nil
	}
}

func (c *ringControl) restMissing() {
	if c.half != nil && !c.r.closed {
		c.r.end(rdserr.With(rdserr.ErrTimeout, "the rest of a message did not come in %v", piecesTime))
	}
}

func (c *ringControl) fail(err error) {
	c.r.front.deps.Count.StreamErrors.Add(1)
	c.r.end(err)
}

// control carries out one message, or has it held.
func (r *ringSock) control(in *inMsg) error {
	if in.isBatch {
		return rdserr.With(rdserr.ErrInvalid, "a SendBatch on the control connection of a socket with rings; datagrams go through the send ring")
	}
	switch in.msg.WhichBody() {
	case rdsdv1.ClientMessage_Credit_case, rdsdv1.ClientMessage_Peek_case:
		return rdserr.With(rdserr.ErrInvalid, "Credit and Peek have no meaning for a socket with rings")
	case rdsdv1.ClientMessage_Pair_case:
		return r.pairAnswer(in.msg.GetPair())
	case rdsdv1.ClientMessage_Cancel_case, rdsdv1.ClientMessage_Flush_case:
		// To post is to have sent: these are about everything that stands in the ring
		// now, and about nothing that comes later.
		r.point = r.End.Posted()
		if there, _ := r.reach(); !there {
			r.react.Hot(r)
			// A Flush is kept (keepFlush): what is read behind it may be the Cancel that makes room.
			if r.ctl.held = in.msg.HasCancel(); r.ctl.held {
				return nil
			}
		}
	}
	return r.carryOut(in)
}

// resume goes on with a message that was held, when its point is reached. It reports
// whether anything was done.
func (c *ringControl) resume() bool {
	there, more := c.r.reach()
	if !there {
		return more
	}
	c.held = false
	err := c.r.carryOut(&c.in)
	c.in.release()
	if err == nil {
		err = c.watch()
	}
	if err != nil {
		c.fail(err)
	}
	return true
}

func (r *ringSock) carryOut(in *inMsg) error {
	if in.msg.WhichBody() == rdsdv1.ClientMessage_Cancel_case {
		dst, err := Endpoint("cancel.destination", in.msg.GetCancel().GetDestination())
		if err == nil { // else whoever carries it out says so
			r.host.Lock()
			err = r.mark(dst, r.point)
			r.host.Unlock()
			if err != nil { // nothing is cancelled then
				r.s.reply(cancelRefused(in.msg.GetCancel().GetId(), err))
				return r.s.answer()
			}
		}
	}
	if err := r.s.control(in.msg); err != nil {
		return err
	}
	return r.s.answer()
}

// reach takes what was posted before point, whether the engine has room for it
// or not: the layout bounds how much that can be. A turn takes what the user's share of
// it has room for. Not there: come again, in the next turn if there is more to take at
// once. It is there also when the rest cannot be taken now, because the client
// passes the bounds of the layout, the ledger's file system is full or there is no memory.
func (r *ringSock) reach() (there, more bool) {
	if int64(r.point-r.End.Taking()) <= 0 {
		return true, false
	}
	now := r.react.Now()
	if !r.share.May(now, &r.Ring) {
		return false, true
	}
	_, now = r.host.LockAt(now)
	err := r.hostile
	n := 0
	if err == nil && !r.closed {
		n, err = r.takePosts(now, rds.Past)
		if r.marks != nil {
			r.passMarks()
		}
		r.lag()
	}
	r.judge(err)
	later := !r.closed && (r.End.Growing() || r.End.Finding() || r.End.HasPosts()) // with the lock: another thread ends the first two
	r.host.Unlock()
	switch {
	case err != nil:
		r.s.finish(err)
		return true, false
	case n == 0:
		return !later, false
	}
	return int64(r.point-r.End.Taking()) <= 0, true
}

// cancelMark is a Cancel whose point could not be reached, or an administrator's, which does
// not wait for that: what is taken later and was posted before it is cancelled then.
type cancelMark struct {
	dst    netip.AddrPort // port 0: every port
	before uint64
}

// findMark finds the mark of dst, or where it belongs: there is one for each destination, in order.
func (r *ringSock) findMark(dst netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(r.marks, dst, func(m cancelMark, dst netip.AddrPort) int { return m.dst.Compare(dst) })
}

// mark notes a Cancel for what stands before its point and could not be taken. On the reactor's thread, with the
// lock.
func (r *ringSock) mark(dst netip.AddrPort, point uint64) error {
	if int64(point-r.End.Taking()) <= 0 {
		return nil
	}
	r.End.Fence(point)
	i, found := r.findMark(dst)
	switch {
	case found:
		if m := &r.marks[i]; int64(point-m.before) > 0 { // an administrator's may be later than the client's own
			m.before = point
		}
	case len(r.marks) >= int(r.reg.Flows):
		return rdserr.With(rdserr.ErrTooMany, "cancels to %d destinations wait for descriptors that cannot be taken", len(r.marks))
	default:
		r.marks = slices.Insert(r.marks, i, cancelMark{dst, point})
		r.payMarks(len(r.marks) - 1)
	}
	if r.left { // it may be of what stands first, which needs no room then
		r.blocked.Store(false)
		r.react.Hot(r)
	}
	return nil
}

// freeMarks are in a socket's own price. Each beyond them takes markBytes.
const (
	freeMarks = 64
	markBytes = 64
)

// payMarks charges the client's user for marks, of which there were so many before: also where no memory is, for
// then they are needed, and there are no more of them than the client has flows. The lock is held.
func (r *ringSock) payMarks(was int) {
	if n := (max(len(r.marks), freeMarks) - max(was, freeMarks)) * markBytes; n != 0 {
		r.purse.account.Grow(quota.Sockets, int64(n))
		r.purse.kept += n
	}
}

// passMarks forgets marks whose points are reached. The lock is held.
func (r *ringSock) passMarks() {
	at, was := r.End.Taking(), len(r.marks)
	r.marks = slices.DeleteFunc(r.marks, func(m cancelMark) bool { return int64(m.before-at) <= 0 })
	r.payMarks(was)
	if len(r.marks) == 0 {
		r.marks = nil
	}
}

// cancelled ends a descriptor that a Cancel was about, and reports whether one was.
// The lock is held.
func (r *ringSock) cancelled(p *shm.Post, dst netip.AddrPort) bool {
	if !r.marked(dst) && !r.marked(netip.AddrPortFrom(dst.Addr(), 0)) {
		return false
	}
	id, _ := r.End.Taken(p, shm.MakeTarget(dst), true)
	r.End.Ended(id, p.Count, true, &shm.Event{Kind: shm.EventOutcome, Outcome: uint8(conn.Cancelled), Why: uint8(conn.WhyApp), Tag: p.Tag})
	r.host.Touch(&r.Ring)
	return true
}

// marked reports whether the next descriptor stands before the point of a Cancel of dst.
func (r *ringSock) marked(dst netip.AddrPort) bool {
	i, found := r.findMark(dst)
	return found && int64(r.marks[i].before-r.End.Taking()) > 0
}

// flushMark is a Flush whose point is not reached: the engine hears of it then.
type flushMark struct {
	id     uint64 // the engine's
	before uint64
}

// keepFlush keeps flush id until the point read last is reached; false: it is. On the reactor's thread,
// with the lock.
func (r *ringSock) keepFlush(id uint64) bool {
	if int64(r.point-r.End.Taking()) <= 0 {
		return false
	}
	r.End.Fence(r.point)
	r.flushes = append(r.flushes, flushMark{id, r.point})
	return true
}

// passFlushes tells the engine of flushes whose points are reached. It comes before anything behind them is taken,
// which they would wait for as well. The lock is held.
func (r *ringSock) passFlushes() {
	n := 0
	for ; n < len(r.flushes) && int64(r.flushes[n].before-r.End.Taking()) <= 0; n++ {
		r.sock.Flush(r.flushes[n].id)
	}
	r.flushes = slices.Delete(r.flushes, 0, n)
}

// forgetFlush forgets flush id, whose time is over, and tells how many descriptors before its point are not
// taken; false: it is not kept. The lock is held.
func (r *ringSock) forgetFlush(id uint64) (left int, ok bool) {
	i := slices.IndexFunc(r.flushes, func(f flushMark) bool { return f.id == id })
	if i < 0 {
		return 0, false
	}
	left = int(r.flushes[i].before - r.End.Taking())
	r.flushes = slices.Delete(r.flushes, i, i+1)
	return left, true
}

// wake writes the answers that others left.
func (c *ringControl) wake() {
	c.r.react.DoFor(c.r, func() {
		if c.r.closed {
			return
		}
		if c.r.s.answer() != nil || c.watch() != nil {
			c.r.close()
		}
	})
}

// SendMsg implements stream for sockStream. It does not block. Who
// calls it calls watch afterwards.
func (c *ringControl) SendMsg(m any) error {
	data, err := datagramCodec{}.Marshal(m)
	if err != nil {
		return err
	}
	defer data.Free()
	b := data.Materialize()
	if c.ctl.Pending() {
		if len(c.out) >= maxControlOut {
			return errGone
		}
		if c.out = append(c.out, b); len(c.out) > freeReplies {
			n := outBytes + int64(len(b))
			c.r.s.mu.Lock()
			c.r.s.hold(n)
			c.r.s.mu.Unlock()
			c.outHeld += n
		}
		return nil
	}
	_, err = c.ctl.Send(b)
	return err
}

// flush goes on writing; false: the connection is broken.
func (c *ringControl) flush() bool {
	c.r.s.wmu.Lock()
	defer c.r.s.wmu.Unlock()
	done, err := c.ctl.Flush()
	for err == nil && done && len(c.out) > 0 {
		done, err = c.ctl.Send(c.out[0])
		c.out[0] = nil
		c.out = c.out[1:]
	}
	if len(c.out) == 0 && c.outHeld > 0 {
		c.r.s.letGo(c.outHeld)
		c.outHeld = 0
	}
	return err == nil
}

// say writes a last word if the client reads.
func (c *ringControl) say(m any) {
	c.r.s.wmu.Lock()
	defer c.r.s.wmu.Unlock()
	_ = c.SendMsg(m) // it is the last word either way
}

// end ends the connection: the client sees that at once. Nothing is received,
// sent or closed any more on the reactor.
func (c *ringControl) end() {
	if c.half != nil {
		c.half.Stop()
		c.half = nil
	}
	if c.ctl != nil {
		c.r.react.Remove(c.ctl.FD)
		c.ctl.Shutdown()
	}
	if c.held {
		c.held = false
		c.in.release()
	}
}

// close closes the connection, with whatever stands in it.
func (c *ringControl) close() {
	if c.ctl != nil {
		c.ctl.Close()
	}
}
