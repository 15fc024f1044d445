package client

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// ringSock is a socket whose datagrams go through shared memory (docs/shm.md).
// Its control connection is a sockStream's; its rings are served by one
// reactor. host's lock guards the daemon's end of the region, End, except that the
// reactor's thread asks End.HasPosts, HasRoom, Sleep and Wake without it.
//
// Work on a ring is a turn of the reactor: descriptors are taken and posted to
// the engine, releases are counted, and at the turn's end links are written to
// and the client is woken if it sleeps. Nothing is handed to another thread.
type ringSock struct {
	datagram.Ring
	s     *sockStream
	front *Front
	ctl   ringControl
	host  *datagram.Local
	react *datagram.Worker
	reg   *shm.Region
	led   *shm.LedgerRegion
	sock  *rds.Socket
	bell  int        // the client writes it; -1: none
	alarm *shm.Alarm // the client hears it

	blocked atomic.Bool     // the engine takes nothing more; EvWritable follows
	felt    felt            // guarded by front.mu
	share   *datagram.Share // of its user; the reactor's thread alone
	left    bool            // post was shown and not taken; the reactor's thread alone
	rung    bool            // the client's rings stand in the queue of alarm; the reactor's thread alone
	took    int             // descriptors taken the last time that there were any; the reactor's thread alone
	point   uint64          // descriptors posted before the Cancel or Flush read last; the reactor's thread alone
	marks   []cancelMark    // the reactor's thread alone
	flushes []flushMark     // that are kept, in the order of their points; guarded by host's lock

	giving sync.Mutex // held by whoever gives pages back, and by who ends the region; before the lock of the address

	// Guarded by host's lock.
	flows         []ringFlow
	posts         []ringPost // by the id of shm.Host
	bufs          bufList
	post          shm.Post
	reserved      int    // slots being read into
	reservedBytes uint64 // that they are for
	grown         int64  // bytes that are charged for more descriptors under way than at first
	begun         bool   // the rings are served, and the client can be told things; before that nobody polls
	early         error  // why it ends as soon as it begins; of the reactor's thread
	closed        bool   // the engine's socket is; written on the reactor's thread with the lock, so that either may read it
	moved         bool   // the region is not the client's any more
	freed         bool   // the region is gone, or about to be
	hostile       error
	evacuated     int64         // bytes of private memory that a dead client's datagrams take; the burier's
	pairs         socketPairs   // of which it is an end
	purse         purse         // pays for pages of the region; its account is set before the socket is
	keeps         bool          // of a region that is closed, the daemon's part is kept for the client; set before buried is closed
	buried        chan struct{} // closed when the region is not mapped here any more, or is evacuated
}

// ringFlow is an entry of the client's flow table as it was read.
type ringFlow struct {
	gen    uint32
	felt   uint64 // what the client had said of it when it became congested (Felt)
	bad    error  // why nothing can be sent there
	dest   *rds.Dest
	dst    netip.AddrPort // dest's
	target shm.Target     // the same, for the ledger
	here   bool           // at the socket's own address
	busy   busyFlow
}

// ringPost is a descriptor under way.
type ringPost struct {
	slot  uint64
	bytes uint32
	left  uint32 // datagrams without an outcome
}

// ringTurn bounds the descriptors one socket is served with in a turn.
const ringTurn = 64

// --- the reactor's side ----------------------------------------------------------

// Poll implements reactor.Poller: it serves the release ring, if something changed there, the
// send ring, and the message that may be held until that is taken.
func (r *ringSock) Poll(now time.Duration) (worked bool) {
	if r.closed { // see Sleep
		return false
	}
	posts, room, nudges := r.End.Look()
	if nudges {
		// Where a share is spent the rest waits for the next turn.
		if worked = !r.share.MayRing(now, &r.Ring); !worked {
			r.ringReaders()
		}
	}
	// What was not shown yet is looked at though the engine had no room, or the rings could never sleep.
	posts = posts || r.left && !r.blocked.Load()
	if posts && !r.share.May(now, &r.Ring) {
		posts, worked = false, true
	}
	if room && !r.share.MayRelease(now, &r.Ring) {
		room, worked = false, true
	}
	if posts || room {
		_, now = r.host.LockAt(now)
		err := r.hostile
		if err == nil && !r.closed {
			if room {
				r.host.Touch(&r.Ring) // events may have waited for it
				err = r.takeReleases(now)
			}
			if posts && err == nil {
				var n int
				if n, err = r.takePosts(now, rds.Within); n > 0 {
					r.took = n
				}
				if r.marks != nil {
					r.passMarks()
				}
				if r.End.Lags {
					r.lag()
				}
			}
		}
		if err != nil {
			r.judge(err)
		}
		r.host.Unlock()
		if worked = err == nil; !worked {
			r.s.finish(err)
		}
	}
	if r.ctl.held && r.ctl.resume() {
		worked = true
	}
	return worked
}

// judge notes why the client is not served any more; nil: it is. The lock is held.
func (r *ringSock) judge(err error) {
	if err != nil && r.hostile == nil {
		r.hostile = err
		r.End.CloseWord(errnoOf(err))
		r.front.deps.Count.RingsHostile.Add(1)
	}
}

// Sleep declares that the daemon will not look any more until the doorbell
// rings, and looks once more. A closed one sleeps whatever it has left behind: another thread's
// Hot, asked for before close, brings it back for a moment, and its doorbell's descriptor may
// be anything by then.
func (r *ringSock) Sleep() bool {
	if r.closed {
		return true
	}
	if r.left && !r.blocked.Load() {
		return false
	}
	if r.rung {
		// Not when it rang: what it rang for comes first. A ring that is taken out here is no
		// event any more, so it is done before the last look.
		r.rung = false
		if err := r.alarm.Hear(); err != nil {
			r.ctl.fail(err)
			return false
		}
	}
	return r.End.Sleep()
}

// Wake takes it back.
func (r *ringSock) Wake() { r.End.Wake() }

// Ready is called when the doorbell rang.
func (r *ringSock) Ready(uint32) {
	guard.Point("ring.bell")
	r.rung = r.alarm.Hears()
	r.react.Hot(r)
}

// takePosts takes descriptors, at most a turn's. The lock is held.
func (r *ringSock) takePosts(now time.Duration, l rds.Limits) (n int, err error) {
	for range ringTurn {
		if l == rds.Past && int64(r.point-r.End.Taking()) <= 0 {
			return n, nil
		}
		ok, err := r.End.Next(&r.post)
		if err != nil || !ok {
			return n, err
		}
		// A client that posts one by one is served before it posts the next: its datagram goes the
		// short way. One that is quicker would have each turn begin with a batch of one.
		if n == 0 && l == rds.Within && r.took <= 1 && r.post.Only {
			r.host.OfferLone(r.react)
		}
		if r.left = !r.take(now, l); r.left {
			r.blocked.Store(true)
			return n, nil
		}
		n++
		if len(r.flushes) > 0 {
			r.passFlushes()
		}
		if r.share.Posts--; r.share.Posts <= 0 || r.share.Bytes <= 0 {
			return n, nil
		}
	}
	return n, nil
}

// takeReleases counts what the client has given back. The lock is held.
func (r *ringSock) takeReleases(now time.Duration) error {
	was := r.End.Released()
	bytes, cost, n, err := r.End.Releases()
	if err != nil {
		return err
	}
	r.share.Releases -= int(r.End.Released()-was) + r.End.Backlog()
	r.findOut()
	if n > 0 {
		r.sock.Freed(bytes, cost, n)
		r.host.Touch(&r.Ring) // the client may wait to hear whether that was enough
	}
	r.sock.ReadAll(now)
	return nil
}

// take posts one descriptor to the engine. It reports false if the engine has no room now;
// the same descriptor is taken again when it has.
func (r *ringSock) take(now time.Duration, l rds.Limits) bool {
	p := &r.post
	if p.Bad != nil {
		r.refuse(p, p.Bad)
		return true
	}
	if int(p.Flow) >= len(r.flows) || r.flows[p.Flow].gen != p.Gen {
		if err := r.describe(p); err != nil {
			if err == rdserr.ErrWouldBlock {
				return false
			}
			r.lack(p)
			return true
		}
	}
	f := &r.flows[p.Flow]
	switch {
	case p.Open:
		r.End.Taken(p, shm.Target{}, false)
		return true
	case f.gen != p.Gen || f.gen == 0: // 0: it was never described
		r.refuse(p, rdserr.ErrDestination)
		return true
	case f.bad != nil:
		r.refuse(p, f.bad)
		return true
	case r.front.sockets.closed.Load() != nil:
		r.refuse(p, r.front.sockets.draining())
		return true
	case r.marks != nil && r.cancelled(p, f.dst):
		return true
	}
	err := r.sock.Admit(f.dest, p.Train, l)
	if l == rds.Past && errors.Is(err, rdserr.ErrNoMemory) {
		err = r.sock.Admit(f.dest, p.Train, rds.Within) // which says whether there may be some later
	}
	switch err {
	case nil:
	case rdserr.ErrWouldBlock:
		return false
	default:
		r.refuse(p, err)
		return true
	}
	// Between admission and acceptance, because a datagram for this same address has its outcome,
	// and its number in the cell, before PostAdmitted returns (docs/adr/0021).
	id, cell := r.End.Taken(p, f.target, true)
	if n := len(r.posts); int(id) >= n {
		r.posts = append(make([]ringPost, 0, min(max(2*n, int(id)+1, shm.GrowthEntries), r.End.Entries())), r.posts...)
		r.posts = r.posts[:cap(r.posts)]
	}
	r.posts[id] = ringPost{slot: p.Slot, bytes: uint32(len(p.Body)), left: uint32(p.Count)}
	r.sock.PostAdmitted(now, f.dest, p.Train, id, p.Tag, rds.Report(p.Want), cell)
	r.host.Moved += len(p.Body)
	if f.here {
		r.share.Bytes -= len(p.Body) // what leaves has a bound of its own, and is not copied here
		if r.pairs.wanted && f.busy.posted(now, p.Count) {
			r.offerPair(now, f.dst.Port())
		}
	}
	r.front.deps.Count.RingPosts.Add(1)
	r.front.deps.Count.RingDatagrams.Add(uint64(p.Count))
	return true
}

func (r *ringSock) refuse(p *shm.Post, err error) {
	r.front.deps.Count.RingRefused.Add(1)
	r.End.Taken(p, shm.Target{}, false)
	r.End.Refused(p, uint16(rdserr.Errno(err)))
	r.host.Touch(&r.Ring)
}

// resolve looks at a flow the client has described anew. The error says that there is no memory
// for it; after rdserr.ErrWouldBlock EvWritable follows, as after that of Admit.
func (r *ringSock) resolve(i, gen uint32) error {
	f := &r.flows[i]
	dst, have, ok := r.End.FlowEntry(i)
	if have != gen {
		return nil // described anew once more meanwhile: its own doing
	}
	if f.dest != nil {
		f.dest.Close()
	}
	*f = ringFlow{gen: gen, dst: dst, target: shm.MakeTarget(dst), here: dst.Addr() == r.host.Addr()}
	switch {
	case !ok:
		f.bad = rdserr.ErrDestination
	case dst.Port() == wire.PortProbe:
		f.bad = rdserr.ErrInvalid
	default:
		f.dest, f.bad = r.sock.Open(dst, i)
	}
	if err := f.bad; err == rdserr.ErrWouldBlock {
		*f = ringFlow{} // as if it had not been described
		return err
	}
	switch {
	case f.bad != nil:
		r.End.SetFlow(i, gen, shm.FlowRefused, uint16(rdserr.Errno(f.bad)))
	case f.dest.Congested():
		r.End.SetFlow(i, gen, shm.FlowCongested, 0)
	default:
		r.End.SetFlow(i, gen, shm.FlowClear, 0)
	}
	r.host.Touch(&r.Ring)
	return nil
}

// WantRoom implements rds.Sink: the client is told whether what it releases is
// waited for, so that it rings then.
func (r *ringSock) WantRoom(on bool) {
	r.End.WantRoom(on)
	r.host.Touch(&r.Ring) // publishRings asks whether there is some already
}

// What the core, the shell and the reactor ask an owner of rings for, beside what its type
// has to have.
var (
	_ datagram.Waker     = (*ringSock)(nil)
	_ datagram.Publisher = (*ringSock)(nil)
	_ rds.Witness        = (*ringSock)(nil)
	_ rds.Paired         = (*ringSock)(nil)
	_ rds.Lacker         = (*ringSock)(nil)
	_ rds.Reserver       = (*ringSock)(nil)
	_ reactor.Poller     = (*ringSock)(nil)
	_ reactor.Owner      = (*ringSock)(nil)
)

// News implements datagram.Waker: the engine has news for this socket.
func (r *ringSock) News() (goroutine bool) {
	if r.blocked.Load() {
		r.blocked.Store(false)
		r.react.Hot(r)
	}
	return false
}

// Show implements datagram.RingOwner.
func (r *ringSock) Show() (bell *shm.Alarm) {
	if r.End.Publish() {
		bell = r.alarm
	}
	if !r.closed {
		r.purse.settle(r.End.Paid(), r.sock.ReceiveMemory())
	}
	if r.End.Lacks() && r.front.pages.lack(r) {
		r.front.deps.Memory.Want()
	}
	if r.begun && !r.closed && r.End.Due() {
		r.react.Hot(r)
	}
	return bell
}

// Collect implements datagram.RingOwner.
func (r *ringSock) Collect() {
	if !r.End.HasReleases() {
		return
	}
	if r.Poll(r.react.Now()); r.End.HasReleases() {
		r.react.Hot(r)
	}
}

// --- the engine's side, with the lock held ------------------------------------------

// Place implements rds.Sink.
func (r *ringSock) Place(from *rds.Peer, a conn.Arrival) (cost int, ok bool) {
	r.host.Moved += len(a.Train.Body)
	src, lane := from.AddrPort(a.SPort), r.host.LaneIndex(a.Lane)
	if b := a.Buf; b != nil && b.Owner() == buf.Owner(r) {
		if cost, ok = r.End.Place(src, uint64(b.ID)*shm.UnitBytes, a.Train, lane, a.Seq); ok {
			b.ID = slotTaken
			r.reserved--
			r.reservedBytes -= uint64(len(b.B))
		}
	} else {
		cost, ok = r.End.PlaceCopy(src, a.Train, lane, a.Seq)
	}
	if ok {
		r.host.Place(&r.Ring)
		// Before the sender hears of the outcome, which is told at the end of the step.
		if a.Lane == nil && r.pairs.in != nil {
			r.pairs.mark(a.SPort, r.End.Placed())
		}
	} else {
		r.host.Touch(&r.Ring) // room may have come meanwhile
	}
	return cost, ok
}

// Lacked implements rds.Lacker.
func (r *ringSock) Lacked() bool { return r.End.Lacked() }

// slotTaken marks a buffer whose slot belongs to the client by now.
const slotTaken = ^uint32(0)

// Reserve implements rds.Reserver: memory of the client's region to read a
// large payload into.
func (r *ringSock) Reserve(n int) *buf.Buf {
	if r.closed {
		return nil
	}
	// Lengths that were announced take half of the arena at most: the rest is for
	// what has come, which is then copied out of memory of the daemon's own.
	if r.reservedBytes+uint64(n) > r.reg.RecvArenaBytes/2 {
		return nil
	}
	off, mem, ok := r.End.Reserve(n)
	if !ok {
		r.host.Touch(&r.Ring)
		return nil
	}
	r.reserved++
	r.reservedBytes += uint64(n)
	b := r.bufs.get()
	b.Lend(mem, r, uint32(off/shm.UnitBytes))
	return b
}

// Free implements buf.Owner: nobody refers to b any more. It may come from any
// thread, with or without the lock.
func (r *ringSock) Free(b *buf.Buf) {
	id, n := b.ID, uint64(len(b.B))
	r.bufs.put(b)
	if id == slotTaken {
		return
	}
	r.react.DoFor(r, func() { // rare: a link broke inside a payload, or it was refused
		_, now := r.host.Lock()
		r.End.Unreserve(uint64(id) * shm.UnitBytes)
		r.reserved--
		r.reservedBytes -= n
		if !r.closed {
			r.sock.ReadAll(now) // who found no room may find some now
		}
		r.freeIfIdle()
		r.host.Unlock()
	})
}

// Done implements rds.Sink.
func (r *ringSock) Done(d rds.Decided) {
	k := &r.posts[d.Cookie]
	k.left -= uint32(d.Count)
	r.End.Ended(d.Cookie, d.Count, k.left == 0, &shm.Event{Kind: shm.EventOutcome, Outcome: uint8(d.Outcome), Why: uint8(d.Why), Tag: d.Tag})
	r.host.Touch(&r.Ring)
}

// Spent implements rds.Sink.
func (r *ringSock) Spent(cookie uint32, count int) { r.posts[cookie].left -= uint32(count) }

// Changed implements rds.Sink.
func (r *ringSock) Changed(d *rds.Dest, congested bool) {
	i := d.Data.(uint32)
	if f := &r.flows[i]; f.dest == d {
		state := uint16(shm.FlowClear)
		if congested {
			state = shm.FlowCongested
			f.felt = r.jams(i, f.gen)
		}
		r.End.SetFlow(i, f.gen, state, 0)
		r.host.Touch(&r.Ring)
	}
}

// Felt implements rds.Witness.
func (r *ringSock) Felt(d *rds.Dest) (held uint64, waiting int) {
	i := d.Data.(uint32)
	f := &r.flows[i]
	if j, ok := r.End.Jam(i, f.gen); ok && f.dest == d {
		held, waiting = max(j.Refused+j.Waited, f.felt)-f.felt, int(j.Waiting)
	}
	return held, waiting
}

// jams is what the client has said of a flow so far: how many sends were refused or
// had to wait.
func (r *ringSock) jams(i, gen uint32) uint64 {
	j, _ := r.End.Jam(i, gen)
	return j.Refused + j.Waited
}

// Each implements rds.Sink.
func (r *ringSock) Each(f func(src netip.AddrPort, bytes int) bool) { r.End.EachUnread(f) }

// EachPaired implements rds.Paired.
func (r *ringSock) EachPaired(f func(src netip.AddrPort, u rds.PairedUnread)) { r.pairs.each(f) }

// Drained implements rds.Sink: the closed socket's last datagram is decided. It
// comes also for a socket that was bound on the way to another port, and never
// had rings.
func (r *ringSock) Drained() {
	if r.End != nil {
		r.freeIfIdle()
	}
}

// idle reports whether nothing reads or writes the region any more, nor the
// ledger's part for it.
func (r *ringSock) idle() bool {
	return r.reserved == 0 && r.sock.InFlight() == 0 && !r.End.Growing() && !r.End.Finding()
}

// Publish takes what the engine has for the client besides datagrams and
// outcomes. The lock is held.
func (r *ringSock) Publish() {
	ev := r.sock.Events()
	if ev&rds.EvCongestion != 0 {
		freed, changes := r.sock.CongestionNews()
		for _, c := range changes {
			r.End.Changed(c.Endpoint, c.Congested)
		}
		if freed != 0 {
			r.End.Freed(freed)
		}
		r.host.Touch(&r.Ring)
	}
	if ev&rds.EvFlushed != 0 {
		if replies := r.s.flushed(r.sock.Flushed()); len(replies) > 0 {
			for _, m := range replies {
				r.s.reply(m)
			}
			r.ctl.wake()
		}
	}
}

func errnoOf(err error) unix.Errno { return unix.Errno(rdserr.Errno(err)) }
