package soft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
)

// dialing is a call of Dial. Its fields but done are guarded by Device.mu, until done is
// closed.
type dialing struct {
	q      *queuePair
	c      *cm.Conn
	remote netip.AddrPort
	done   chan struct{}
	over   bool
	err    error
	peer   ib.Peer
}

// finish ends the call, and reports whether it had not ended before. mu is held.
func (w *dialing) finish(err error) bool {
	if w.over {
		return false
	}
	w.over, w.err, w.q.dial = true, err, nil
	close(w.done)
	return true
}

// Dial connects q.
func (d *Device) Dial(ctx context.Context, local, remote netip.AddrPort, qp ib.QP, p ib.Param) (ib.Peer, error) {
	q, err := d.own(qp)
	if err != nil {
		return ib.Peer{}, err
	}
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	if a := local.Addr().Unmap(); a.IsValid() && !a.IsUnspecified() && a != d.cfg.Addr {
		return ib.Peer{}, fmt.Errorf("soft: %v is not the address of %s", a, d.name())
	}
	if remote.Addr().Is4() != d.cfg.Addr.Is4() {
		return ib.Peer{}, fmt.Errorf("soft: no route from %v to %v: they are of different families", d.cfg.Addr, remote.Addr())
	}
	if remote.Addr().IsLinkLocalUnicast() && remote.Addr().Is6() && d.sock.scope == 0 {
		return ib.Peer{}, fmt.Errorf("soft: %v is link-local, and %v is no address of its link", remote.Addr(), d.cfg.Addr)
	}
	if err := ctx.Err(); err != nil {
		return ib.Peer{}, err
	}
	w, err := d.dial(q, local.Port(), remote, p)
	if err != nil {
		return ib.Peer{}, err
	}
	d.doorbell()
	if d.m.Wait(w.done, ctx.Done()) == 1 {
		d.mu.Lock()
		if w.finish(ctx.Err()) {
			now := q.now()
			w.c.Disconnect(now)
			d.leave(now)
		}
		d.mu.Unlock()
		d.doorbell()
	}
	if w.err != nil {
		return ib.Peer{}, w.err
	}
	return w.peer, nil
}

// own takes a queue pair that was not connected yet.
func (d *Device) own(qp ib.QP) (*queuePair, error) {
	q, ok := qp.(*queuePair)
	if !ok || q.d != d {
		return nil, fmt.Errorf("soft: a queue pair of another device cannot be connected at %s", d.name())
	}
	return q, nil
}

// take marks q as one that is being connected. mu is held.
func (q *queuePair) take() error {
	switch d := q.d; {
	case d.closed:
		return ErrClosed
	case d.gone:
		return ErrGone
	case q.used || q.over || q.closed:
		return fmt.Errorf("soft: queue pair %d was connected before, or has ended", q.rq.Number())
	}
	q.used = true
	return nil
}

// dial sends the request.
func (d *Device) dial(q *queuePair, port uint16, remote netip.AddrPort, p ib.Param) (*dialing, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := q.take(); err != nil {
		return nil, err
	}
	now := q.now()
	w := &dialing{q: q, remote: remote, done: make(chan struct{})}
	q.first, q.mtu = d.dev.NewPSN(), d.port.mtu
	c, err := d.cm.Dial(now, netip.AddrPortFrom(d.cfg.Addr.WithZone(""), port), netip.AddrPortFrom(remote.Addr().WithZone(""), remote.Port()), q.param(p))
	if err != nil {
		return nil, fmt.Errorf("soft: dialling %v: %w", remote, err)
	}
	w.c, c.Owner, q.dial = c, w, w
	d.leave(now)
	return w, nil
}

// param is what q tells its peer.
func (q *queuePair) param(p ib.Param) cm.Param {
	return cm.Param{
		QPN: q.rq.Number(), RecvPSN: q.first, MTU: q.mtu, Retry: p.Retry, RNRRetry: p.RNRRetry, Ack: ackTime,
		Private: p.Private,
	}
}

func paramOf(c *cm.Conn) ib.Param {
	p := c.Peer()
	return ib.Param{Private: p.Private, Retry: p.Retry, RNRRetry: p.RNRRetry}
}

// start has q receive from its peer and send to it. mu is held.
func (q *queuePair) start(c *cm.Conn, retry uint8) error {
	p := c.Peer()
	q.mtu = p.MTU
	err := q.rq.Connect(roce.Peer{
		Number: p.QPN, Addr: c.Remote().Addr(), MTU: p.MTU, First: q.first,
		Timeout: ackTime, Retry: retry, RNRRetry: p.RNRRetry,
	})
	if err == nil {
		err = q.rq.Start(p.RecvPSN)
	}
	return err
}

// connected is called when the peer has accepted. mu is held.
func (w *dialing) connected() {
	q, d := w.q, w.q.d
	if w.over {
		return // the caller has given up, and the peer is told so
	}
	err := error(ErrClosed)
	if !q.over {
		err = q.start(w.c, w.c.Param().Retry)
	}
	if err != nil {
		w.finish(fmt.Errorf("soft: connecting to %v: %w", w.remote, err))
		d.refusals = append(d.refusals, w.c)
		return
	}
	q.conn, w.c.Owner = w.c, q
	w.peer = ib.Peer{Local: w.c.Local(), Remote: w.c.Remote(), Param: paramOf(w.c)}
	w.finish(nil)
}

// listener is a port that peers may dial.
type listener struct {
	d    *Device
	addr netip.AddrPort
	ask  func(ib.Asked)
}

// Ports that Listen takes from when it is asked for any (IANA's dynamic ones).
const (
	portFrom = 49152
	portTo   = 65535
)

// listen listens to port, or to one that is free. mu is held.
func (d *Device) listen(port uint16) (uint16, error) {
	if port != 0 {
		return port, d.cm.Listen(port)
	}
	for range portTo - portFrom {
		if d.anyPort++; d.anyPort < portFrom {
			d.anyPort = portFrom
		}
		err := d.cm.Listen(d.anyPort)
		if !errors.Is(err, cm.ErrBusy) {
			return d.anyPort, err
		}
	}
	return 0, cm.ErrBusy
}

// Listen has ask called for each peer that dials local's port; 0 is any that is free.
func (d *Device) Listen(local netip.AddrPort, ask func(ib.Asked)) (transport.Listener, error) {
	if a := local.Addr().Unmap(); a.IsValid() && !a.IsUnspecified() && a != d.cfg.Addr {
		return nil, fmt.Errorf("soft: %v is not the address of %s", a, d.name())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	port, err := d.listen(local.Port())
	if err != nil {
		return nil, fmt.Errorf("soft: listening on port %d of %v: %w", local.Port(), d.cfg.Addr, err)
	}
	l := &listener{d, netip.AddrPortFrom(d.cfg.Addr, port), ask}
	d.listens[port] = l
	return l, nil
}

// Addr is where the listener listens.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close ends the listening. ask is not called any more when it has returned, but for a call
// that it is called within.
func (l *listener) Close() error {
	d := l.d
	d.mu.Lock()
	if d.listens[l.addr.Port()] == l {
		delete(d.listens, l.addr.Port())
		d.cm.Unlisten(l.addr.Port())
	}
	now := d.m.Clock()
	for i := d.called; i < len(d.events); i++ {
		if ev := &d.events[i]; ev.l == l {
			_ = ev.a.c.Reject(now, nil)
			*ev = event{kind: evNothing}
		}
	}
	d.leave(now)
	d.mu.Unlock()
	d.r.Sync()
	d.doorbell()
	return nil
}

// asked is a peer that has dialled. over is guarded by Device.mu.
type asked struct {
	d     *Device
	c     *cm.Conn
	param ib.Param
	over  bool // it was answered, or the peer has given up
}

// Param is what the peer shows.
func (a *asked) Param() ib.Param { return a.param }

// LocalAddr is where it has dialled.
func (a *asked) LocalAddr() netip.AddrPort { return a.c.Local() }

// RemoteAddr is where it has dialled from.
func (a *asked) RemoteAddr() netip.AddrPort { return a.c.Remote() }

// FromPort reports whether the request came from RoCEv2's own port.
func (a *asked) FromPort() bool { return a.c.FromPort() }

// Accept connects q.
func (a *asked) Accept(qp ib.QP, p ib.Param) error {
	d := a.d
	q, err := d.own(qp)
	if err != nil {
		return err
	}
	d.mu.Lock()
	now := q.now()
	err = a.accept(now, q, p)
	d.leave(now)
	d.mu.Unlock()
	d.doorbell()
	return err
}

// accept connects q in a step. The queue pair is ready before the peer hears of it, because
// its first packet may overtake what it says to the connection manager.
func (a *asked) accept(now time.Duration, q *queuePair, p ib.Param) error {
	d := a.d
	if a.over {
		return fmt.Errorf("soft: the peer %v has been answered, or has given up", a.c.Remote())
	}
	err := q.take()
	if err == nil || errors.Is(err, ErrGone) {
		a.over = true
	}
	if err != nil {
		if a.over { // else it can be answered by another queue pair
			_ = a.c.Reject(now, nil)
		}
		return err
	}
	if mtu := a.c.Peer().MTU; mtu > d.port.mtu {
		_ = a.c.Reject(now, nil)
		return fmt.Errorf("%w: %v asks for %d, %s has %d", ErrMTU, a.c.Remote(), mtu, d.port.netdev, d.port.mtu)
	}
	q.first = d.dev.NewPSN()
	err = q.start(a.c, a.c.Peer().Retry)
	if err == nil {
		q.conn, a.c.Owner = a.c, q
		err = a.c.Accept(now, q.param(p))
	}
	if err != nil {
		q.over = true // it says so itself
		q.end(now, err)
		return fmt.Errorf("soft: accepting %v: %w", a.c.Remote(), err)
	}
	return nil
}

// Reject refuses.
func (a *asked) Reject(private []byte) {
	d := a.d
	d.mu.Lock()
	now := d.m.Clock()
	if !a.over {
		a.over = true
		_ = a.c.Reject(now, private[:min(len(private), cm.MaxRejectPrivate)]) // a peer that has gone is refused enough
	}
	d.leave(now)
	d.mu.Unlock()
	d.doorbell()
}

// Forget leaves the peer without an answer, unless it was told to wait for one.
func (a *asked) Forget() {
	d := a.d
	d.mu.Lock()
	now := d.m.Clock()
	if !a.over {
		a.over = true
		d.stats.Forgotten++
		if a.c.Forget(now) != nil {
			_ = a.c.Reject(now, nil)
		}
	}
	d.leave(now)
	d.mu.Unlock()
	d.doorbell()
}
