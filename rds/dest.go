package rds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// Sink is where a socket gives what it has for its client: received datagrams and outcomes
// (SocketOptions.Sink). The memory is the client's own, or the node's (Queue). The methods
// are called in the middle of a step, with the engine's lock held; they neither block nor
// call back into the engine.
type Sink interface {
	// Place puts received datagrams into the client's memory; the Seq of those that come
	// from this same address is Engine.Here. cost is the number of bytes of the client's
	// memory that they take until Freed gives them back; beyond arrivalBytes it may pass the
	// memory budget. ok is false when there is no room: an rdsd is refused the
	// datagrams, the link of a kernel pauses, both until Freed has made room (or until
	// ReadAll, if there is room for another reason). A client that holds nothing has room
	// for every datagram.
	Place(from *Peer, a conn.Arrival) (cost int, ok bool)
	// Done tells that datagrams have their outcome, and that the engine no longer reads their
	// payload. It is called for every datagram that was accepted, until the socket is closed.
	Done(d Decided)
	// Spent takes the place of Done when the socket is closed: the engine no longer reads the
	// payload of so many datagrams of the Post of cookie, and nobody is told what became of them.
	Spent(cookie uint32, count int)
	// Drained tells, once, that the socket is closed and the engine no longer reads any of
	// its payload. The call may come before Close returns.
	Drained()
	// WantRoom tells whether senders wait for the client to give back memory that it has
	// read. That is so from the moment this socket refused a datagram, for whatever lack,
	// until it takes datagrams again: a client that gives memory back meanwhile has to say
	// so at once.
	WantRoom(on bool)
	// Changed tells that the port of d became congested or clear.
	Changed(d *Dest, congested bool)
	// Each calls f for every datagram that is placed and not read, in order,
	// until f returns false.
	Each(f func(src netip.AddrPort, bytes int) bool)
}

// Decided is the outcome of Count datagrams with tags from Tag on. Cookie is that of their
// Post, and Report whether their sender asked to be told.
type Decided struct {
	Cookie  uint32
	Report  Report
	Tag     uint64
	Count   int
	Outcome conn.Outcome
	Why     conn.Why
}

// Reserver is a Sink that offers memory of the client for a payload of n bytes
// before it is read from the link; nil when it has none. It is the owner of
// that memory, and nobody else is given what lies there. See Engine.Buffer.
type Reserver interface {
	buf.Owner
	Reserve(n int) *buf.Buf
}

// Lacker is a Sink whose memory has to be paid for where it is first used.
type Lacker interface {
	// Lacked reports whether the Place that just found no room lacked memory of the node,
	// and not room in the client's own memory: then room may come from others.
	Lacked() bool
}

// Witness is a Sink whose client refuses its own sends, and lets them wait, without
// asking the engine.
type Witness interface {
	// Felt tells how many of the client's sends to d were refused or had to wait
	// since the port became congested, and how many wait now.
	Felt(d *Dest) (held uint64, waiting int)
}

// Dest is a destination of one socket, resolved once: sends through it look
// nothing up.
type Dest struct {
	Data any // the opener's
	f    *flow
}

// maxDests bounds how often a socket opens one destination: each is told of every change of its port. A
// client with rings opens it again when it has forgotten the entry of its table that it had, which takes
// the former Dest along.
const maxDests = 8

// Open resolves a destination for Post. After rdserr.ErrWouldBlock EvWritable follows, as after
// that of Admit.
func (s *Socket) Open(dst netip.AddrPort, data any) (*Dest, error) {
	f, err := s.reach(dst, 0)
	if err != nil {
		return nil, err
	}
	if len(f.dests) >= maxDests {
		return nil, rdserr.With(rdserr.ErrTooMany, "%v is open %d times already by this socket", dst, maxDests)
	}
	if f.price() > 0 {
		if err := s.checkSendBudget(f, 0); err != nil {
			return nil, s.later(err, f.cost())
		}
	}
	f.pay()
	d := &Dest{data, f}
	// A flow with a destination that is open is not idle: it must not be forgotten for want
	// of messages.
	s.e.stir(f)
	pp := f.pe.portOf(s.e.now, dst.Port())
	pp.opened.push(byOpened, f)
	pp.dests++
	f.dests = append(f.dests, d)
	return d, nil
}

// Close forgets the destination. Messages posted to it go on.
func (d *Dest) Close() {
	f := d.f
	if f == nil {
		return
	}
	d.f = nil
	i := slices.Index(f.dests, d)
	if i < 0 {
		return // with its socket
	}
	f.dests = slices.Delete(f.dests, i, i+1)
	f.pe.ports[f.dst.Port()].dests--
	if len(f.dests) == 0 {
		// This was the last one: the flow no longer needs news of the port.
		f.unopen()
		f.s.endFlow(f)
	}
}

// unopen takes f, with those of its destinations that are open still, out of what is told of the port.
func (f *flow) unopen() {
	port := f.dst.Port()
	if pp := f.pe.ports[port]; pp != nil {
		pp.dests -= int32(len(f.dests))
		f.dests = nil
		pp.opened.remove(byOpened, f)
		f.pe.tidy(port)
	}
}

// Addr is the destination's address, not valid when it is closed.
func (d *Dest) Addr() netip.AddrPort {
	if d.f == nil {
		return netip.AddrPort{}
	}
	return d.f.dst
}

// Congested reports whether the destination is congested as far as this node knows.
func (d *Dest) Congested() bool { return d.f != nil && d.f.pe.Congested(d.f.dst.Port()) }

// Limits says whether a train has to keep to the socket's own limits.
type Limits bool

const (
	Within Limits = false // it waits while the socket has no room
	// Past is for a client that asks about all that it has posted so far, which the caller
	// bounds.
	Past Limits = true
)

// Admit says whether Post would accept the train: nil, or the error Post would
// return. After rdserr.ErrWouldBlock, which there is only within the socket's limits,
// EvWritable follows: the send buffer is full, too many datagrams are undecided or the node's
// memory is spent. After any other error trying again is of no use.
func (s *Socket) Admit(d *Dest, t wire.Train, l Limits) error {
	f := d.f
	switch {
	case s.closed:
		return rdserr.ErrClosed
	case f == nil || f.s != s:
		return rdserr.With(rdserr.ErrInvalid, "the destination was closed, or opened by another socket")
	}
	n := size(len(t.Body), 0)
	// Of a plain datagram the length alone is to be looked at.
	if largest := min(s.opt.SndBufBytes, wire.MaxDatagram); t.Count != 1 || t.Table || len(t.Body) > largest {
		if err := checkTrain(t, largest); err != nil {
			return err
		}
		if t.Count > 1 && f.dst.Port() < wire.PortFirst {
			return rdserr.With(rdserr.ErrInvalid, "a train of %d datagrams to port 0, which takes pings one by one", t.Count)
		}
		n = size(t.PayloadBytes(), msgCount(t))
	}
	if l == Past {
		return s.checkSendBudget(f, n)
	}
	if err := s.room(); err != nil {
		s.wantSpace = true
		return err
	}
	return s.later(s.checkSendBudget(f, n), n+f.cost())
}

// later returns err, why n bytes are refused: memory comes back, so that to a caller with a sink this
// is a full buffer, and EvWritable follows (serveSendWaiters).
func (s *Socket) later(err error, n int) error {
	if err != nil && s.e.cfg.Budget.everSends(n) {
		return rdserr.ErrWouldBlock
	}
	return err
}

// Keep charges n bytes more that the owner of the socket holds for its destinations, until the socket
// is closed. After rdserr.ErrWouldBlock EvWritable follows, as after that of Admit.
func (s *Socket) Keep(n int) error {
	if s.closed {
		return rdserr.ErrClosed
	}
	if !s.affords(n) {
		return s.later(s.lacks(n, s.kept+n), s.kept+n)
	}
	s.kept += n
	s.spend(n)
	return nil
}

// Post offers a train to a destination the socket opened. If it returns nil the train is
// accepted: each of its datagrams has exactly one outcome, told by Sink.Done, and the
// payload must not change until then. The train may have to wait in the engine until the
// destination is clear; it is never refused for congestion. With an error, one of those of
// Admit, nothing is taken.
//
// cell, when not nil, is kept as conn.Msg.Cell says until the outcome.
func (s *Socket) Post(now time.Duration, d *Dest, t wire.Train, cookie uint32, tag uint64, report Report, cell *uint64) error {
	if err := s.Admit(d, t, Within); err != nil {
		return err
	}
	s.PostAdmitted(now, d, t, cookie, tag, report, cell)
	return nil
}

// PostAdmitted is Post of a train that Admit has accepted in this step.
func (s *Socket) PostAdmitted(now time.Duration, d *Dest, t wire.Train, cookie uint32, tag uint64, report Report, cell *uint64) {
	e, f := s.e, d.f
	port := f.dst.Port()
	m := e.conns.NewMsg()
	switch {
	case t.Count == 1 && !t.Table:
		m.Payload, m.Bytes = t.Body, uint32(len(t.Body))
	case t.Count == 1:
		m.Payload, m.Bytes = oneDatagram(t), uint32(t.PayloadBytes())
	default:
		m.Payload, m.Bytes, m.Count, m.Table = t.Body, uint32(t.PayloadBytes()), uint16(t.Count), conn.TableOf(t)
	}
	m.Cookie, m.Tag, m.Report, m.DPort, m.Cell = cookie, tag, bool(report), port, cell
	// Charged before it leaves: the outcome, which takes it out of the accounts again, may
	// come before dispatch returns.
	s.charge(f, m)
	switch {
	// Behind those that wait, congested or not: a flow keeps its order.
	case f.q.head != nil:
		s.wait(f, m)
	case f.pe.cmap.Congested(port):
		s.wait(f, m)
		s.block(now, f)
	default:
		s.dispatch(now, f, m)
	}
}

// InFlight is how many datagrams have no outcome yet: while there are any, the
// engine may read payload of the socket's Posts.
func (s *Socket) InFlight() int { return s.undecided }

// Freed tells that the client has read datagrams of its memory: so many, of so
// many payload bytes, that had so much cost (Sink.Place). After the last of a
// run call ReadAll.
func (s *Socket) Freed(bytes, cost, datagrams int) {
	if !s.closed {
		s.taken(datagrams, bytes, cost)
	}
}

// Buffer offers memory for the n bytes of payload that follow the header raw on the link of
// p's attempt: memory of the client when they are for a Sink that has some to offer, else
// nil. It is a hint and changes nothing; Receive judges the frame. A buffer that is not
// used is released by its reader.
func (e *Engine) Buffer(p *conn.Lane, attempt uint64, raw []byte, n int) *buf.Buf {
	port, ok := p.Awaits(attempt, raw)
	if !ok {
		return nil
	}
	// Read straight there, a large payload is not copied at all.
	if s := e.sock(port); s != nil && s.reserver != nil {
		return s.reserver.Reserve(n)
	}
	return nil
}
