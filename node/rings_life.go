package node

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// openRing serves the socket a Bind with rings asks for: the connection goes
// over to the reactor that will serve the rings (taken).
func openRing(f *localFront, p *packetStream, m *rdsdv1.Bind) (taken bool, err error) {
	n := f.node
	if v := m.GetRing().GetVersion(); v != shm.Version {
		return false, rdserr.With(rdserr.ErrNotSupported, "rings of layout version %d; this daemon has version %d, or bind without", v, shm.Version)
	}
	r := &ringSock{front: f, s: newSockStream(n, p), bell: -1, alarm: -1}
	if err := r.open(m, p); err != nil {
		n.count.BindsRefused.Add(1)
		n.log.Log(p.ctx, refusalLevel(err), "bind refused", "uid", r.s.id.UID, "pid", r.s.id.PID, "error", err)
		return false, err
	}
	n.log.Debug("socket bound", "local", r.sock.Addr(), "uid", r.s.id.UID, "pid", r.s.id.PID, "rings", true)
	f.mu.Lock()
	ended := f.conns == nil
	if !ended {
		f.rings[r] = struct{}{}
		f.wg.Add(1) // until close
	}
	f.mu.Unlock()
	if ended {
		r.dispose()
		return false, errDraining
	}
	ctl, err := p.conn.Detach()
	if err != nil {
		r.react.Do(func() { r.close() })
		return true, nil
	}
	r.ctl.start(r, ctl)
	r.react.Do(r.begin)
	return true, nil
}

// open binds the socket, makes its region and hands it to the client.
func (r *ringSock) open(m *rdsdv1.Bind, p *packetStream) (err error) {
	s := r.s
	opt, port, err := s.prepare(m)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			r.dispose()
		}
	}()
	h, ok := s.eng.(*host)
	if !ok {
		return rdserr.With(rdserr.ErrNotSupported, "this engine has no reactor")
	}
	r.host, r.react = h, h.all.nextWorker()
	cfg := &s.node.cfg.RDS
	spec := shm.Spec{UID: opt.UID, PID: opt.PID, SndBuf: opt.SndBufBytes, RcvBuf: opt.RcvBufBytes, Instance: s.node.instance}
	if spec.SndBuf == 0 {
		spec.SndBuf = int(cfg.SendBufferBytes)
	}
	if spec.RcvBuf == 0 {
		spec.RcvBuf = int(cfg.RecvBufferBytes)
	}
	spec.MaxDatagram = min(spec.SndBuf, wire.MaxDatagram)
	opt.Data, opt.Sink = r, r
	_, opt, err = s.bindEngine(port, opt, func(sock *rds.Socket) error {
		r.sock, s.sock = sock, sock
		spec.Local = sock.Addr()
		return r.lay(spec)
	})
	if err != nil {
		r.sock = nil
		return err
	}
	b := s.bound(r.sock, opt)
	g := &rdsdv1.RingGrant{}
	g.SetVersion(shm.Version)
	g.SetRegionBytes(r.reg.RegionBytes)
	b.SetRing(g)
	out := &rdsdv1.ServerMessage{}
	out.SetBound(b)
	return p.send(out, r.reg.FD, r.bell, r.alarm)
}

// lay makes the region and the doorbells. The lock is held.
func (r *ringSock) lay(spec shm.Spec) (err error) {
	if r.bell, err = shm.NewDoorbell(); err != nil {
		return err
	}
	if r.alarm, err = shm.NewDoorbell(); err != nil {
		return err
	}
	if r.reg, err = shm.Create(spec); err != nil {
		return rdserr.With(rdserr.ErrNoMemory, "%v", err)
	}
	if r.led, err = r.host.all.ledger.Region(r.reg); err != nil {
		return rdserr.With(rdserr.ErrNoMemory, "%v", err)
	}
	r.h = shm.NewHost(r.reg, r.led)
	return nil
}

// begin runs on the reactor's thread: from here on the rings are served.
func (r *ringSock) begin() {
	if r.closed {
		return
	}
	err := r.react.Add(r.bell, unix.EPOLLIN, r)
	if err == nil {
		err = r.ctl.begin()
	}
	if err != nil {
		r.end(rdserr.With(rdserr.ErrIO, "%v", err))
		return
	}
	r.react.Hot(r)
}

// end tells the client why and closes. On the reactor's thread.
func (r *ringSock) end(err error) {
	if r.closed {
		return
	}
	r.host.lock()
	r.h.CloseWord(errnoOf(err))
	r.host.unlock()
	shm.Ring(r.alarm)
	r.ctl.say(closingPB(err))
	r.close()
}

// close ends the socket. What has begun to leave keeps its memory until it is
// decided, as a copy, so that the region goes at once (R4). On the reactor's
// thread.
func (r *ringSock) close() {
	if r.closed {
		return
	}
	r.react.Forget(r)
	r.react.Remove(r.bell)
	r.front.mu.Lock()
	delete(r.front.rings, r)
	r.front.mu.Unlock()
	r.leave()
	r.ctl.close() // the client takes the end of the connection as a sign that its port is free
	r.s.forget()
	r.front.node.grpc.clients.remove(r.s.id)
	r.front.wg.Done()
}

// leave closes the engine's socket and lets the region go.
func (r *ringSock) leave() {
	_, now := r.host.lock()
	r.closed = true
	if r.h != nil {
		r.h.CloseWord(unix.ESHUTDOWN)
	}
	for i := range r.flows {
		if d := r.flows[i].dest; d != nil {
			d.Close()
		}
	}
	r.flows = nil
	r.sock.Close(now)
	idle := r.idle()
	var err error
	if !idle {
		err = r.h.Evacuate(r.inFlight)
	}
	r.host.unlock()
	switch {
	case err != nil:
		r.s.node.log.Error("a dead client's memory stays until its datagrams are decided", "error", err)
	case idle && r.h != nil:
		r.release()
	}
	for _, fd := range []int{r.bell, r.alarm} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// inFlight is what Evacuate has to keep.
func (r *ringSock) inFlight(yield func(slot uint64, n int) bool) {
	for _, p := range r.posts {
		if p.left > 0 && !yield(p.slot, int(p.bytes)) {
			return
		}
	}
}

// dispose gives up what open had made, before a reactor knows of it.
func (r *ringSock) dispose() {
	if r.sock != nil {
		r.leave()
	}
	r.s.forget()
}

// --- the control connection on the reactor -------------------------------------------

// ringControl carries the messages of a socket with rings that are not
// datagrams. Everything happens on the reactor's thread, and in few bytes: no
// goroutine and no buffer for each of a thousand idle sockets.
type ringControl struct {
	noHeaders
	packetStream // its context
	r            *ringSock
	ctl          *shm.Control
	out          [][]byte // messages behind the one that ctl is writing; guarded by sockStream.wmu
	in           inMsg
}

// maxControlOut bounds the answers that wait for a client that does not read.
const maxControlOut = 64

func (c *ringControl) start(r *ringSock, ctl *shm.Control) {
	c.r, c.ctl = r, ctl
	r.s.stream = c
	r.s.answerer = c.wake
	r.s.onEnd(func(err error) { r.react.Do(func() { r.end(err) }) })
}

func (c *ringControl) begin() error { return c.r.react.Add(c.ctl.FD, unix.EPOLLIN, c) }

// Ready: messages of the client, or its end, or room for ours.
func (c *ringControl) Ready(events uint32) {
	if events&unix.EPOLLOUT != 0 && !c.flush() {
		c.r.close()
		return
	}
	for range 16 {
		b, _, err := c.ctl.Recv()
		if errors.Is(err, shm.ErrAgain) {
			return
		}
		if errors.Is(err, io.EOF) {
			c.r.close()
			return
		}
		if err == nil {
			err = unmarshalCopy(b, &c.in)
		}
		if err == nil {
			err = c.r.control(&c.in)
			c.in.release()
		}
		if err != nil {
			c.r.s.node.count.StreamErrors.Add(1)
			c.r.end(err)
			return
		}
	}
}

// takePosts takes what the client posted before it asked: to post is to have
// sent, and a Cancel or a Flush is about everything sent before it. It ends also
// with a client that goes on posting.
func (r *ringSock) takePosts() {
	for n := 0; n <= int(r.reg.Sends) && r.hasPosts(); n += ringTurn {
		if !r.Poll() {
			return
		}
	}
}

// control carries out one message.
func (r *ringSock) control(in *inMsg) error {
	if in.isBatch {
		return rdserr.With(rdserr.ErrInvalid, "a SendBatch on the control connection of a socket with rings; datagrams go through the send ring")
	}
	switch in.msg.WhichBody() {
	case rdsdv1.ClientMessage_Credit_case, rdsdv1.ClientMessage_Peek_case:
		return rdserr.With(rdserr.ErrInvalid, "Credit and Peek have no meaning for a socket with rings")
	case rdsdv1.ClientMessage_Cancel_case, rdsdv1.ClientMessage_Flush_case:
		r.takePosts()
	}
	if err := r.s.control(in.msg); err != nil {
		return err
	}
	return r.s.answer()
}

// wake writes the answers that others left.
func (c *ringControl) wake() {
	c.r.react.Do(func() {
		if !c.r.closed && c.r.s.answer() != nil {
			c.r.close()
		}
	})
}

// SendMsg implements grpc.ServerStream for sockStream. It does not block.
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
		c.out = append(c.out, b)
		return nil
	}
	done, err := c.ctl.Send(b)
	if err == nil && !done {
		err = c.r.react.Modify(c.ctl.FD, unix.EPOLLIN|unix.EPOLLOUT)
	}
	return err
}

// flush goes on writing; false: the connection is broken.
func (c *ringControl) flush() bool {
	c.r.s.wmu.Lock()
	defer c.r.s.wmu.Unlock()
	done, err := c.ctl.Flush()
	for err == nil && done {
		if len(c.out) == 0 {
			return c.r.react.Modify(c.ctl.FD, unix.EPOLLIN) == nil
		}
		done, err = c.ctl.Send(c.out[0])
		c.out = c.out[1:]
	}
	return err == nil
}

// say writes a last word if the client reads.
func (c *ringControl) say(m any) {
	c.r.s.wmu.Lock()
	defer c.r.s.wmu.Unlock()
	_ = c.SendMsg(m) // it is the last word either way
}

func (c *ringControl) close() {
	if c.ctl != nil {
		c.r.react.Remove(c.ctl.FD)
		c.ctl.Close()
	}
}
