package client

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// openRing serves the socket a Bind with rings asks for: the connection goes
// over to the reactor that will serve the rings (taken).
func openRing(f *Front, p *packetStream, id config.Identity, m *rdsdv1.Bind) (taken bool, err error) {
	if v := m.GetRing().GetVersion(); v != shm.Version {
		return false, rdserr.With(rdserr.ErrNotSupported, "rings of layout version %d; this daemon has version %d, or bind without", v, shm.Version)
	}
	if err := shm.Usable(); err != nil {
		return false, rdserr.With(rdserr.ErrNotSupported, "rings need mincore(2), which the system refuses the daemon (%v): let it through the filter of system calls (SystemCallFilter= of its unit), or bind without", err)
	}
	if err := f.deps.FDs.Room(base.RingMakingFDs, base.KeepOfClients); err != nil {
		f.deps.Count.BindsRefused.Add(1)
		return false, err
	}
	r := &ringSock{front: f, s: newSockStream(f, p, id), bell: -1, buried: make(chan struct{})}
	r.s.rings = r
	if err := r.open(f, m, p); err != nil {
		f.deps.Count.BindsRefused.Add(1)
		f.deps.Log.Log(p.ctx, refusalLevel(err), "bind refused", "uid", r.s.id.UID, "pid", r.s.id.PID, "error", err)
		return false, err
	}
	f.deps.Log.Debug("socket bound", "local", r.sock.Addr(), "uid", r.s.id.UID, "pid", r.s.id.PID, "rings", true)
	r.ctl.account = p.account
	ctl, err := p.conn.Detach()
	if err == nil && !f.take(r) {
		ctl.Close()
		err = base.ErrDraining
	}
	if err != nil {
		r.dispose(p)
		return false, err
	}
	ctl.Charge(shm.MaxRequest, r.ctl.charge)
	ctl.Toll.User = f.deps.Tolls.Of(id.UID)
	r.ctl.start(r, ctl)
	r.react.DoFor(r, r.begin)
	return true, nil
}

// take counts a socket with rings; false: the front has been stopped.
func (f *Front) take(r *ringSock) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns == nil {
		return false
	}
	f.rings[r] = struct{}{}
	r.felt.at = reactor.Clock()
	f.wg.Add(1) // until close
	return true
}

// open binds the socket, makes its region and hands it to the client.
func (r *ringSock) open(f *Front, m *rdsdv1.Bind, p *packetStream) (err error) {
	s := r.s
	opt, port, err := s.prepare(m, ringSocketBytes)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			r.dispose(p)
		}
	}()
	h, ok := s.eng.(*datagram.Local)
	if !ok {
		return rdserr.With(rdserr.ErrNotSupported, "this engine has no reactor")
	}
	r.Owner, r.host, r.react = r, h, h.Host().NextWorker()
	cfg := &s.front.deps.Config.RDS
	spec := shm.Spec{Local: netip.AddrPortFrom(h.Addr(), port), UID: opt.UID, PID: opt.PID, SndBuf: opt.SndBufBytes, RcvBuf: opt.RcvBufBytes, Instance: s.front.deps.Instance}
	if spec.SndBuf == 0 {
		spec.SndBuf = int(cfg.SendBufferBytes)
	}
	if spec.RcvBuf == 0 {
		spec.RcvBuf = int(cfg.RecvBufferBytes)
	}
	spec.MaxDatagram = min(spec.SndBuf, wire.MaxDatagram)
	r.purse.account, r.purse.total = s.front.deps.User(s.id), &f.pages.total
	theirs, err := r.lay(spec, m.GetRing().GetOneDoorbell())
	if theirs >= 0 {
		defer unix.Close(theirs)
	}
	if err != nil {
		return err
	}
	if err = r.handOver(p, theirs); err != nil {
		return err
	}
	r.alarm.Toll.User = f.deps.Tolls.Of(s.id.UID)
	r.alarm.Costly = func(err error) { r.react.DoFor(r, func() { r.end(err) }) }
	opt.Data, opt.Sink = r, r
	r.pairs.wanted = m.GetRing().GetPairs() && f.deps.Config.RDS.Pairs == config.PairsAuto
	_, opt, err = s.bindEngine(port, opt, r.attach)
	if err != nil {
		return err
	}
	r.reg.ForgetHeader()
	if err = f.step("bound"); err != nil {
		return err
	}
	b := s.bound(r.sock, opt)
	b.SetRing(r.grant())
	out := &rdsdv1.ServerMessage{}
	out.SetBound(b)
	return p.send(out)
}

func (r *ringSock) grant() *rdsdv1.RingGrant {
	g := &rdsdv1.RingGrant{}
	g.SetVersion(shm.Version)
	g.SetRegionBytes(r.reg.RegionBytes)
	return g
}

// handOver gives the client its region and its ends of the doorbells, waits until
// it says that it has mapped the region, and seals that. Up to here the client can
// make whoever touches the region wait (shm.Seal), so nobody has; and the
// socket does not exist yet, so nothing can come for it.
func (r *ringSock) handOver(p *packetStream, theirs int) error {
	if err := r.front.step("hand over"); err != nil {
		return err
	}
	out := &rdsdv1.ServerMessage{}
	out.SetRegion(r.grant())
	bell := r.bell
	if r.alarm.Hears() {
		bell = theirs
	}
	if err := p.send(out, r.reg.FD, r.reg.LendFD, bell, theirs); err != nil {
		return err
	}
	r.reg.Lent()
	in := &inMsg{}
	p.conn.SetReadDeadline(time.Now().Add(firstMessage))
	switch err := p.RecvMsg(in); {
	case errors.Is(err, rdserr.ErrTimeout):
		return rdserr.With(rdserr.ErrTimeout, "the region was not mapped within %v", firstMessage)
	case err != nil:
		return streamEnd(err)
	case in.isBatch || in.msg.WhichBody() != rdsdv1.ClientMessage_Mapped_case:
		return rdserr.With(rdserr.ErrInvalid, "the answer to a region must be RingMapped")
	}
	p.conn.SetReadDeadline(time.Time{})
	return r.seal(p)
}

// lay makes what rings need besides a socket: doorbells, the region and its
// place in the ledger. These are system calls, which may fail for want of
// anything and which a file system may hold up: so the socket does not exist
// yet and no lock is held. theirs, unless it is -1, is the client's end of its doorbell.
// What was made before an error is for dispose.
func (r *ringSock) lay(spec shm.Spec, oneDoorbell bool) (theirs int, err error) {
	theirs = -1
	type step struct {
		what string
		make func() error
	}
	bells := []step{
		{"bell", func() (err error) { r.bell, err = shm.NewBell(); return err }},
		{"alarm", func() (err error) { r.alarm, theirs, err = shm.NewAlarm(); return err }},
	}
	if oneDoorbell {
		bells = []step{{"doorbell", func() (err error) { r.alarm, theirs, err = shm.NewDoorbell(); return err }}}
	}
	for _, s := range append(bells,
		step{"region", func() (err error) { r.reg, err = shm.Create(spec); return err }},
		step{"ledger", func() (err error) { r.led, err = r.host.Host().Ledger().PrepareRegion(); return err }},
	) {
		if err = r.front.step(s.what); err == nil {
			err = s.make()
		}
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				return theirs, base.NoDescriptors(err)
			}
			return theirs, rdserr.With(rdserr.ErrNoMemory, "%v", err)
		}
	}
	if oneDoorbell {
		r.reg.Disown() // the doorbell tells when its client has let go
	}
	return theirs, nil
}

// attach joins what was laid with the socket, before anything can arrive. The
// lock is held; nothing here can fail or block.
func (r *ringSock) attach(sock *rds.Socket) {
	r.sock, r.s.sock = sock, sock
	r.reg.SetLocal(sock.Addr())
	r.led.Begin(r.reg)
	r.End = shm.NewHost(r.reg, r.led)
	r.End.Pay(&r.purse)
}

// begin runs on the reactor's thread: from here on the rings are served.
func (r *ringSock) begin() {
	if r.closed {
		return
	}
	r.host.Lock()
	r.begun = true
	r.host.Unlock()
	if r.early != nil {
		r.end(r.early)
		return
	}
	err := r.react.Add(r.ear(), unix.EPOLLIN|unix.EPOLLET, r) // see shm/doorbell.go
	if err == nil {
		err = r.ctl.begin()
	}
	if err != nil {
		r.end(rdserr.With(rdserr.ErrIO, "%v", err))
		return
	}
	r.react.Enter(&r.Ring)
	r.share = r.react.Share(r.s.id.UID)
	r.react.Hot(r)
}

// ear is where the client rings.
func (r *ringSock) ear() int {
	if r.alarm.Hears() {
		return r.alarm.FD()
	}
	return r.bell
}

// end tells the client why and closes. On the reactor's thread. Before begin there is no
// connection to tell it by, and whoever opens the socket still has it in his hands: then
// begin ends it.
func (r *ringSock) end(err error) {
	if r.closed {
		return
	}
	if !r.begun {
		if r.early == nil {
			r.early = err
		}
		return
	}
	if toll.Costly(err) {
		r.front.ban(r.s.id, time.Now(), err)
	}
	r.host.Lock()
	r.End.CloseWord(errnoOf(err))
	r.host.Unlock()
	r.alarm.Ring()
	r.ctl.say(closingPB(err))
	r.close()
}

// close ends the socket. What has begun to leave keeps its memory until it is
// decided, as a copy, so that the region goes at once. On the reactor's
// thread, which is not to be held up by what a client leaves behind: what is
// unmapped and closed is buried elsewhere.
func (r *ringSock) close() {
	if r.closed {
		return
	}
	r.react.Forget(r)
	r.react.Exit(&r.Ring)
	if r.share != nil { // it is served
		r.react.Unshare(r.s.id.UID)
	}
	r.react.Remove(r.ear())
	r.front.mu.Lock()
	if _, ok := r.front.rings[r]; ok {
		r.front.heard.add(r.felt.hear(r.reg))
	}
	delete(r.front.rings, r)
	r.front.mu.Unlock()
	bury := r.leave()
	r.ctl.end() // the client takes the end of the connection as a sign that its port is free
	r.s.forget()
	r.aside(bury, nil)
	go func() { // ends with the last close, which may take as long as whoever passed us a descriptor likes
		defer r.front.deps.Guard.Recover(guard.Socket, nil)
		r.ctl.close()
		<-r.buried
		r.linger()
	}()
	r.front.wg.Done()
}

// leave closes the engine's socket. bury lets go of the rest; it makes
// system calls that take their time.
func (r *ringSock) leave() (bury func()) {
	_, now := r.host.Lock()
	r.closed = true
	r.leavePairs(now) // before the port is another's
	r.End.CloseWord(unix.ESHUTDOWN)
	for i := range r.flows {
		if d := r.flows[i].dest; d != nil {
			d.Close()
		}
	}
	r.flows = nil
	r.sock.Close(now)
	r.End.Leave()
	r.freed = r.idle()
	r.purse.charge(r.End.Paid()) // nothing is unread any more
	freed, needed := r.freed, r.inFlight()
	r.host.Unlock()
	return func() {
		defer close(r.buried)
		r.giving.Lock() // the keeper's look at it is over, and was the last
		defer r.giving.Unlock()
		r.giveBackOf(func() bool { return true }) // what is neither unread nor with the client
		r.keepUnread()
		if freed {
			r.free()
		} else {
			r.move(needed)
		}
		r.alarm.Mute()
		if !r.alarm.Hears() {
			r.alarm.Close()
			unix.Close(r.bell)
		}
	}
}

// keepUnread lets go of the daemon's part, unless there is something in it that the client may
// still read: then it stays, and is paid for, until the client has let go (letGo).
func (r *ringSock) keepUnread() {
	r.host.Lock()
	paid := r.End.Paid()
	r.host.Unlock()
	if paid > 0 {
		r.reg.Hold()
	} else {
		r.reg.Drop()
	}
	r.keeps = paid > 0
}

// inFlight lists what is still needed of the send arena.
func (r *ringSock) inFlight() (l []shm.Body) {
	for _, p := range r.posts {
		if p.left > 0 {
			l = append(l, shm.Body{Slot: p.slot, Bytes: int(p.bytes)})
		}
	}
	return l
}

// move takes the region away from its client while others still read parts of it.
func (r *ringSock) move(needed []shm.Body) {
	r.evacuated = r.reg.Evacuation(needed)
	r.front.deps.User(r.s.id) // the purse's account: it stays the user's until all is free, be its client gone before
	r.purse.account.Grow(quota.Regions, r.evacuated)
	if err := r.reg.Evacuate(needed); err != nil {
		r.front.deps.Log.Error("a dead client's memory stays until its datagrams are decided", "error", err)
	}
	r.host.Lock()
	r.moved = true
	r.freeIfIdle()
	r.host.Unlock()
}

// freeIfIdle has the memory of a closed socket freed when nothing needs it any
// more. The lock is held.
func (r *ringSock) freeIfIdle() {
	if r.moved && !r.freed && r.idle() {
		r.freed = true
		r.aside(func() {
			r.free()
			r.purse.account.Close()
		}, nil)
	}
}

// aside runs f, which makes system calls that take their time, in a goroutine that the
// daemon's stop waits for. end, unless nil, is told of a panic in it.
func (r *ringSock) aside(f func(), end func(error)) {
	r.host.Host().Aside(f, end)
}

// free unmaps the region and gives its place in the ledger back. Nothing needs
// them, and no lock is held.
func (r *ringSock) free() {
	r.purse.account.Give(quota.Regions, r.evacuated)
	r.End.Discard()
	if err := r.End.Close(); err != nil {
		r.front.deps.Log.Error("a socket's memory is lost", "error", err)
	}
	r.host.Lock()
	grown := r.grown + int64(r.purse.kept)
	r.host.Unlock()
	r.purse.account.Give(quota.Sockets, grown)
}

// closeAlarm closes the doorbell in a goroutine, which ends with the close: that may take as long
// as whoever has passed a descriptor there likes. after follows, which gives the client's place back.
func (r *ringSock) closeAlarm(after func()) {
	if r.alarm == nil {
		after()
		return
	}
	go func() {
		defer r.front.deps.Guard.Recover(guard.Socket, nil)
		r.alarm.Close()
		after()
	}()
}

// dispose gives up what open had made, before a reactor knows of it. The connection of p
// counts until that is closed.
func (r *ringSock) dispose(p *packetStream) {
	p.parting.Add(1)
	defer r.closeAlarm(p.parting.Done)
	if r.End != nil {
		r.reg.Hold() // until Drop: its client has mapped what was placed meanwhile
		var bury func()
		r.react.DoFor(nil, func() { // where it may have been told to end: something came for it
			bury = r.leave()
			r.react.Forget(r)
		})
		r.react.Sync()
		bury()
		r.reg.Drop()
		r.host.Lock()
		r.End.PaidOff()
		r.host.Unlock()
	} else {
		if r.bell >= 0 {
			unix.Close(r.bell)
		}
		r.led.Free()
		if r.reg != nil {
			r.reg.Close()
		}
	}
	if r.reg != nil {
		r.reg.Disown()
	}
	if r.purse.account != nil {
		r.purse.account.Close()
	}
	r.s.forget()
}
