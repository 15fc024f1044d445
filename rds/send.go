package rds

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// Report says whether a sender is told the outcome of a datagram. A reported one asks for
// its acknowledgement at once, others when half of the send buffer is used. A socket with a
// Sink is always told.
type Report bool

const (
	Quiet    Report = false
	Reported Report = true
)

// Send offers one datagram without waiting (net/rds/send.c, rds_sendmsg with
// MSG_DONTWAIT). A nil error accepts it: exactly one outcome follows. payload is
// not copied and must stay as it is until then. A datagram is accepted while
// the send buffer is not full, even if it passes it by one.
//
// Port 0 pings the node: the answer is an empty datagram from its port 0.
func (s *Socket) Send(now time.Duration, dst netip.AddrPort, payload []byte, tag uint64, report Report) error {
	s.e.now = now // refused or not: reach asks for the time
	f, err := s.reach(dst, len(payload))
	if err != nil {
		return err
	}
	if f.q.head != nil {
		return rdserr.ErrWouldBlock // those that wait for the same destination go first
	}
	if err := s.admit(f, len(payload)); err != nil {
		if err == rdserr.ErrWouldBlock {
			s.wantSpace = true // afford has its own
		}
		if err == rdserr.ErrCongested {
			s.e.ctr.CongSendError++
			// The sender may be waiting for news of this port (Monitor), and the link may be needed to
			// learn of them (conn.Owner.Blocked).
			f.pe.block(now, dst.Port())
			s.concern(now, f)
		}
		return err
	}
	m := s.e.conns.NewMsg()
	m.Payload, m.Tag, m.Report, m.DPort = payload, tag, bool(report), dst.Port()
	s.accept(now, f, m)
	return nil
}

var errProbePort = rdserr.With(rdserr.ErrInvalid, "destination port 1 is reserved for the RDS handshake")

// check returns the errors that waiting cannot clear: a closed socket, a datagram that is
// too large, a reserved port.
func (s *Socket) check(dst netip.AddrPort, n int) error {
	if s.closed {
		return rdserr.ErrClosed
	}
	if n > s.opt.SndBufBytes || n > wire.MaxDatagram {
		return rdserr.With(rdserr.ErrTooLarge, "a datagram of %d bytes; the largest for this socket is %d", n, min(s.opt.SndBufBytes, wire.MaxDatagram))
	}
	if dst.Port() == wire.PortProbe {
		return errProbePort
	}
	return nil
}

// reach is check, and the flow to dst.
func (s *Socket) reach(dst netip.AddrPort, n int) (*flow, error) {
	if err := s.check(dst, n); err != nil {
		return nil, err
	}
	if f := s.find(dst); f != nil {
		return f, nil
	}
	pe, err := s.e.peer(s.e.now, dst.Addr(), origin{s.opt.UID, true})
	if err != nil {
		return nil, err
	}
	return s.flow(pe, dst), nil
}

// admit tests the send buffer, then the destination: each for its own reason.
func (s *Socket) admit(f *flow, n int) error {
	if err := s.room(); err != nil {
		return err
	}
	if f.pe.Congested(f.dst.Port()) {
		return rdserr.ErrCongested
	}
	return s.checkSendBudget(f, size(n, 0))
}

// room tests the send buffer.
func (s *Socket) room() error {
	e := s.e
	if s.used >= s.opt.SndBufBytes {
		e.ctr.SendQueueFull++
		return rdserr.ErrWouldBlock
	}
	if s.undecided >= e.cfg.MaxUndecided || s.outcomesN >= e.cfg.MaxOutcomes {
		e.ctr.SendTooMany++
		return rdserr.ErrWouldBlock
	}
	return nil
}

// msgBytes is the memory of an accepted datagram beside its payload, here and at its
// client's end. partBytes is that of one in a train, which may have to be split: the figure
// is the same whether it was or not.
const (
	msgBytes  = 192
	partBytes = 128
)

// outcomeBytes is the memory of a run of outcomes until it is fetched.
const outcomeBytes = 48

// spend takes n bytes of memory for sending; with a negative n it gives back.
func (s *Socket) spend(n int) {
	t := &s.e.tally
	if t.account != s.opt.Account {
		t.turn(s.opt.Account)
	}
	t.sending += int64(n)
	t.noted += int64(n)
}

// size returns the memory that a message of so many bytes takes. count is that of conn.Msg.
func size(bytes, count int) int {
	if count == 0 {
		return bytes + msgBytes
	}
	return bytes + count*partBytes
}

// checkSendBudget tests the memory budget for a message that takes n bytes, and for f, its flow. A
// message that is refused now and may fit later waits for memory.
func (s *Socket) checkSendBudget(f *flow, n int) error {
	more := n
	if f.fee == unpaid {
		more += f.cost()
	}
	if _, room, shared := s.e.room(s.opt.Account, more); more > room || !shared {
		return s.lacks(more, n+f.cost())
	}
	return nil
}

// lacks refuses n bytes more, which there is no memory for, whole with what goes with them and is
// charged already.
func (s *Socket) lacks(n, whole int) error {
	b := s.e.cfg.Budget
	b.refusedSending.Add(1)
	// Only what may fit some day is waited for.
	if b.everSends(whole) {
		s.awaitSendMemory(n)
	}
	if free, _, shared := s.e.room(s.opt.Account, n); !shared {
		return rdserr.With(rdserr.ErrNoMemory, "%v holds its share of limits.memory_bytes (%d): its datagrams may take twice what is free for all, and %d bytes are free", s.opt.Account.Holder(), b.Limit, free)
	}
	return rdserr.With(rdserr.ErrNoMemory, "limits.memory_bytes (%d) is spent, or what of it may be accepted at once, three quarters", b.Limit)
}

// affords reports whether n bytes of memory may be taken now. Nothing waits for them.
func (s *Socket) affords(n int) bool {
	_, room, shared := s.e.room(s.opt.Account, n)
	return n == 0 || n <= room && shared
}

// accept takes one datagram over. From here it has exactly one outcome.
func (s *Socket) accept(now time.Duration, f *flow, m *conn.Msg) {
	m.Bytes = uint32(len(m.Payload))
	s.charge(f, m)
	s.dispatch(now, f, m)
}

// charge takes a message into the accounts.
func (s *Socket) charge(f *flow, m *conn.Msg) {
	e := s.e
	n, k := int(m.Bytes), m.Datagrams()
	m.Owner, m.SPort = &f.out, s.port
	m.Epoch = s.lastEpoch
	s.epochs[s.lastEpoch].n += k
	s.used += n
	s.undecided += k
	f.pe.owed += uint32(k)
	s.Stats.Accepted += uint64(k)
	if f.fee == unpaid {
		f.pay()
	}
	s.spend(size(n, int(m.Count)))
	e.ctr.SendQueued += uint64(k)
	e.ctr.CopyFromUser += uint64(n)
	m.Kind = conn.MsgData
	if m.DPort == wire.PortPing {
		m.Kind = conn.MsgPing
		e.ctr.SendPong++
	}
	// A socket that wants news of congestion is told of the destinations that it sends to.
	if s.mon.Set {
		s.concern(e.now, f)
	}
	// At half a buffer the sender wants it back: ask for the acknowledgement.
	m.Want = m.Report || s.used >= s.opt.SndBufBytes/2
}

// dispatch lets an accepted message go.
func (s *Socket) dispatch(now time.Duration, f *flow, m *conn.Msg) {
	s.e.now = now
	if f.pe.c != nil {
		f.pe.c.Enqueue(now, m, s.e.Lone)
	} else {
		m.At = now
		s.deliverHere(f, m)
	}
}

// deliverHere is the loop transport: this very address is the destination.
func (s *Socket) deliverHere(f *flow, m *conn.Msg) {
	e := s.e
	if m.Kind == conn.MsgPing {
		s.place(e.loop, conn.Arrival{SPort: wire.PortPing, Train: wire.One(nil)})
		f.Completed(m, conn.Delivered, conn.WhyNone)
		return
	}
	to := e.sock(m.DPort)
	if to == nil {
		e.ctr.RecvDropNoSock += uint64(m.Datagrams())
		f.Completed(m, conn.Failed, conn.WhyNoPort)
		return
	}
	a := conn.Arrival{Seq: e.here + 1, SPort: s.port, DPort: m.DPort, Train: m.Train()}
	// What is placed outlives the sender's memory, which is the sender's again with the
	// outcome: without a Buf in the arrival every sink copies.
	switch {
	case to.place(e.loop, a) == conn.Placed:
		e.here++
		if e.tracer != nil {
			to.tracePlacedHere(m)
		}
		// The cell says that the message was placed here, and as which number.
		if m.Cell != nil {
			atomic.StoreUint64(m.Cell, conn.CellHere<<conn.CellLane|e.here)
		}
		f.Completed(m, conn.Delivered, conn.WhyNone)
	case to.recvWaitAt > 0:
		// An accepted message counts against the budget too, and could wait for ever.
		f.Completed(m, conn.Failed, conn.WhyNoMemory)
	default: // the port has become congested by it
		s.waitFirst(f, m)
		s.block(e.now, f)
	}
}

// Completed is conn.Completer: the one end of an accepted message.
func (f *flow) Completed(m *conn.Msg, o conn.Outcome, why conn.Why) {
	s, e := f.s, f.s.e
	n, k := int(m.Bytes), m.Datagrams()
	s.used -= n
	s.undecided -= k
	f.pe.owed -= uint32(k)
	s.spend(-size(n, int(m.Count)))
	switch o {
	case conn.Delivered:
		s.Stats.Delivered += uint64(k)
		e.ctr.OutcomeDelivered += uint64(k)
	case conn.Cancelled:
		s.Stats.Cancelled += uint64(k)
	case conn.Failed:
		s.Stats.Failed += uint64(k)
		e.ctr.OutcomeFailed += uint64(k)
	case conn.Unknown:
		s.Stats.Unknown += uint64(k)
		e.ctr.OutcomeUnknown += uint64(k)
	}
	if !s.closed {
		s.sink.Done(Decided{m.Cookie, Report(m.Report), m.Tag, k, o, why})
	} else {
		s.sink.Spent(m.Cookie, k)
	}
	// Flushes are answered behind the outcome that they wait for.
	ep := &s.epochs[m.Epoch]
	if ep.n -= k; ep.n == 0 {
		s.endEpoch(m.Epoch)
	}
	// Not at once: this is in the middle of a step, with lists of the connection half walked.
	if s.lined.n > 0 {
		s.hasSpace()
	}
	if s.wantSpace {
		s.writable()
	}
	// With the last outcome of a closed socket nothing reads the client's memory any more.
	if s.lingers && s.undecided == 0 {
		s.lingers = false
		s.sink.Drained()
	}
	if e.tracer != nil {
		s.traceDone(m, o, why)
	}
	e.conns.FreeMsg(m)
	if len(f.dests) == 0 { // or it is not idle
		s.endFlow(f)
	}
}

// writable tells a client that met no room for another datagram that there is some.
func (s *Socket) writable() {
	if s.used <= s.opt.SndBufBytes/2 && s.undecided <= s.e.cfg.MaxUndecided/2 && s.outcomesN <= s.e.cfg.MaxOutcomes/2 {
		s.wantSpace = false
		s.news(EvWritable)
	}
}

// Cancel is RDS_CANCEL_SENT_TO: drop the messages queued to dst (port 0: to every port of
// the address). See conn.Conn.Cancel. Sends that wait for acceptance fail with ErrCanceled
// and count as neither.
func (s *Socket) Cancel(now time.Duration, dst netip.AddrPort) (cancelled, begun int, err error) {
	if s.closed {
		return 0, 0, rdserr.ErrClosed
	}
	end := func(f *flow) {
		cancelled += s.failWaiting(f, rdserr.ErrCanceled, conn.WhyApp)
		if f.pe.c != nil {
			k, b := f.pe.c.Cancel(now, &f.out, conn.WhyApp)
			cancelled, begun = cancelled+k, begun+b
		}
	}
	if dst.Port() != 0 {
		if f := s.find(dst); f != nil {
			end(f)
		}
	} else {
		for _, f := range s.sortedFlows() {
			if f.dst.Addr() == dst.Addr() {
				end(f)
			}
		}
	}
	s.e.runDeferred(now)
	return cancelled, begun, nil
}
