package soft

import (
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/netip"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
	"github.com/rdsd/rdsd/transport/ib"
)

// env is what the two cores tell a Device, in a step of its.
type env Device

var (
	_ roce.Env = (*env)(nil)
	_ cm.Env   = (*env)(nil)
)

// Completed has q's handler called.
func (e *env) Completed(q *roce.QP) {
	if p := e.qps[q]; p != nil && !p.queued {
		p.queued = true
		e.push(event{kind: evReady, q: p})
	}
}

func (e *env) push(ev event) { e.events = append(e.events, ev) }

// Arrived is told to the connection manager when the core of queue pairs is done.
func (e *env) Arrived(q *roce.QP) {
	if p := e.qps[q]; p != nil {
		e.arrived = append(e.arrived, p)
	}
}

// Failed ends q's handler's hopes.
func (e *env) Failed(q *roce.QP, why error) {
	if p := e.qps[q]; p != nil {
		p.tell(translate(why))
	}
}

// MAD keeps a message for the connection manager, whose answer the core of queue pairs would
// be given within its own call.
func (e *env) MAD(from netip.AddrPort, b []byte) {
	if e.numMADs == waiting || len(b) != cm.MADLen {
		e.stats.DroppedMADs++
		return
	}
	m := &e.mads[e.numMADs]
	m.from = from
	copy(m.b[:], b)
	e.numMADs++
}

// Drop has nothing to add to the core's counters.
func (e *env) Drop(roce.DropReason) {}

// Send is a message of the connection manager, which repeats what is lost.
func (e *env) Send(to netip.AddrPort, b []byte) {
	if e.dev.SendMAD(netip.AddrPortFrom(to.Addr(), roce.Port), b) != nil {
		e.stats.DroppedMADs++
	}
}

// Charge asks for the memory of a connection that a peer wants.
func (e *env) Charge(peer netip.Addr) bool {
	return e.cfg.charge(peer, connBytes) == nil
}

// Refund gives it back.
func (e *env) Refund(peer netip.Addr) {
	e.cfg.refund(peer, connBytes)
}

// connBytes is about what a peer that dials costs until it is a queue pair.
const connBytes = cm.ConnBytes

// Asked has a listener asked.
func (e *env) Asked(c *cm.Conn) {
	l := e.listens[c.Local().Port()]
	if l == nil { // it was closed a moment ago
		e.refusals = append(e.refusals, c)
		return
	}
	a := &asked{d: (*Device)(e), c: c, param: paramOf(c)}
	c.Owner = a
	e.push(event{kind: evAsked, l: l, a: a})
}

// Connected has the queue pair of a dialler send, or tells that the peer has understood.
func (e *env) Connected(c *cm.Conn) {
	switch o := c.Owner.(type) {
	case *dialing:
		o.connected()
	case *queuePair:
		if !o.told {
			e.push(event{kind: evEstablished, q: o})
		}
	}
}

// Refused ends a dialler's wait, or the queue pair of a peer that gave up.
func (e *env) Refused(c *cm.Conn, reason cm.Reason, private []byte) {
	switch o := c.Owner.(type) {
	case *dialing:
		o.finish(&ib.Rejected{Remote: o.remote, Reason: uint16(reason), Private: append([]byte(nil), private...)})
	case *queuePair:
		o.rq.Fail()
		o.tell(&ib.Rejected{Remote: c.Remote(), Reason: uint16(reason)})
	case *asked:
		o.over = true
	}
}

// Disconnected ends a queue pair whose peer has gone.
func (e *env) Disconnected(c *cm.Conn, why error) {
	if q, ok := c.Owner.(*queuePair); ok {
		if errors.Is(why, cm.ErrPeer) {
			why = io.EOF
		}
		q.rq.Fail()
		q.tell(why)
	}
}

// Released forgets a connection.
func (e *env) Released(c *cm.Conn) {
	if q, ok := c.Owner.(*queuePair); ok && q.conn == c {
		q.conn = nil
	}
	c.Owner = nil
}

// translate is an error of package roce in the words of package ib.
func translate(why error) error {
	if e, ok := errors.AsType[*roce.StatusError](why); ok {
		return &ib.StatusError{Op: opFrom[e.Op], Status: statusOf(e.Status)}
	}
	if e, ok := errors.AsType[*roce.AccessError](why); ok {
		return &ib.AccessError{Op: opFrom[e.Op], Key: e.Key, Addr: e.Addr, N: int(e.N), Err: e.Err}
	}
	return fmt.Errorf("soft: %w", why)
}

// random is the machine's random numbers: whoever can foresee them can guess keys, and numbers
// of queue pairs and packets.
func (m *Machine) random() *rand.Rand { return rand.New(source(m.Seed)) }

// source is random numbers as math/rand has them.
type source func() uint64

func (s source) Uint64() uint64 { return s() }
func (s source) Int63() int64   { return int64(s() >> 1) }

// Seed does nothing: the numbers are not to be repeated.
func (source) Seed(int64) {}
